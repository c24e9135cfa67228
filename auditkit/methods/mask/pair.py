"""An image and a label whose mask is being learned, and the checkpoint of all of them."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import RuntimeFailure
from auditkit.graph.mask_objective import STATE, WEIGHTS
from auditkit.methods.request import Checkpoint

_SAVE_SECONDS = 60.0  # between two checkpoints; about as much work is lost when a run is killed
_KEYS, _LENGTHS, _LOSSES, _MEAN = "keys", "lengths", "losses", "mean"  # arrays of a checkpoint, beside STATE


@dataclass(frozen=True)
class Pace:
    """How large the steps of a mask are, when it is done, and which of its states make the mask."""

    steps: int  # at most
    rate: float
    fall: float  # the rate at the last step, as a share of the first
    mean: float  # share of the steps, up to the last, after whose windows weights are averaged; 0: the last weights
    window: int  # steps over which losses are averaged
    settled: float  # least decrease of the loss that counts, as a share of it; below 0: masks take all steps
    patience: int  # windows without such a decrease after which a mask has settled

    def rates(self, done: int, count: int) -> Array:
        """The rates of `count` steps after those that are done."""
        return np.asarray(self.rate * self.fall ** (np.arange(done, done + count) / self.steps), np.float32)

    def averaged(self, done: int) -> int:
        """Of the windows that have ended after so many steps, the number whose weights are averaged."""
        ends = [min(start + self.window, self.steps) for start in range(0, done, self.window)]
        return sum((1 - self.mean) * self.steps < end <= done for end in ends)

    def averages(self, losses: list[float]) -> list[float]:
        """The mean loss of each window that has ended."""
        starts = range(0, len(losses), self.window)
        ended = [start for start in starts if len(losses) >= min(start + self.window, self.steps)]
        return [float(np.mean(losses[start : start + self.window])) for start in ended]

    def has_settled(self, averages: list[float]) -> bool:
        """Whether the last windows lowered the loss by too little."""
        if len(averages) <= self.patience:
            return False
        before, recent = min(averages[: -self.patience]), min(averages[-self.patience :])
        return recent >= before - self.settled * abs(before)


@dataclass(eq=False)
class Pair:
    """An image and a label, and the state of their mask."""

    image: int
    label: int
    name: str
    seed: int
    infills: Array  # positions in the bank
    state: dict[str, Array]  # without the axis of pairs
    losses: list[float] = field(default_factory=list)
    averages: list[float] = field(default_factory=list)
    mean: Array | None = None  # of the weights after the last windows
    settled: bool = False

    def left(self, pace: Pace) -> int:
        """Steps to the end of the current window."""
        done = len(self.losses)
        return min(pace.window - done % pace.window, pace.steps - done)

    def draws(self, count: int, window: int) -> Array:
        """Positions [steps, count] of the infills in the rest of the current window, distinct if possible."""
        if len(self.infills) == 1:
            return np.broadcast_to(self.infills, (window, count))
        done = len(self.losses) % window
        rng = np.random.default_rng([self.seed, len(self.losses) - done])
        if len(self.infills) < count:
            return self.infills[rng.integers(0, len(self.infills), (window, count))][done:]
        chances = rng.random((window, len(self.infills)), np.float32)
        return self.infills[np.sort(np.argpartition(chances, count - 1, axis=1)[:, :count], axis=1)][done:]

    def advance(self, losses: Array, state: dict[str, Array], pace: Pace) -> None:
        """Record the losses of some steps and the state after them."""
        self.state = state
        self.losses.extend(losses.tolist())
        done = len(self.losses)
        if done % pace.window and done < pace.steps:
            return
        self.averages.append(float(np.mean(self.losses[(done - 1) // pace.window * pace.window :])))
        if not np.isfinite(self.averages[-1]):
            raise loss_failure(self.name, self.label, done)
        if number := pace.averaged(done):
            before = state[WEIGHTS] if self.mean is None else self.mean
            self.mean = before + (state[WEIGHTS] - before) / np.float32(number)
        self.settled = pace.has_settled(self.averages)

    @property
    def weights(self) -> Array:
        """The weights of the mask."""
        return self.state[WEIGHTS] if self.mean is None else self.mean

    def is_done(self, pace: Pace) -> bool:
        """Whether the mask takes no more steps."""
        return self.settled or len(self.losses) >= pace.steps

    def continue_from(self, losses: list[float], state: dict[str, Array], mean: Array, pace: Pace) -> None:
        """Take over the steps of an earlier run."""
        self.losses, self.state, self.averages = losses, state, pace.averages(losses)
        self.mean = mean if pace.averaged(len(losses)) else None
        self.settled = pace.has_settled(self.averages)


def loss_failure(image: str, label: int, steps: int) -> RuntimeFailure:
    """The error of a loss that is NaN or infinite."""
    what = f"the loss of image '{image}' for label {label} is not a number after {steps} steps"
    return RuntimeFailure(f"{what}; a score is NaN, or the gradient overflows. Try --precision strict.")


class SavedStates:
    """Pairs in a checkpoint, each under a key that stands for all that can change its mask."""

    def __init__(self, checkpoint: Checkpoint, keys: Mapping[Pair, str], pace: Pace) -> None:
        self._checkpoint, self._keys, self._pace = checkpoint, keys, pace
        self._last_save = time.monotonic()

    def load(self) -> None:
        """Let pairs continue from the states that the checkpoint has of them."""
        arrays = self._checkpoint.load()
        if not {_KEYS, _LENGTHS, _LOSSES, _MEAN, *STATE} <= arrays.keys():
            return
        positions = {key: position for position, key in enumerate(arrays[_KEYS].tolist())}
        losses = np.split(arrays[_LOSSES], np.cumsum(arrays[_LENGTHS])[:-1])
        for pair, key in self._keys.items():
            if key in positions:
                position = positions[key]
                state = {name: arrays[name][position] for name in STATE}
                pair.continue_from(losses[position].tolist(), state, arrays[_MEAN][position], self._pace)

    def is_due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self._last_save >= _SAVE_SECONDS

    def save(self, pairs: Iterable[Pair]) -> None:
        """Replace the checkpoint by those of the pairs that have taken steps."""
        begun = [pair for pair in pairs if pair.losses]
        if begun:
            states = {name: np.stack([pair.state[name] for pair in begun]) for name in STATE}
            self._checkpoint.save({
                _KEYS: np.array([self._keys[pair] for pair in begun]),
                _LENGTHS: np.array([len(pair.losses) for pair in begun]),
                _LOSSES: np.concatenate([pair.losses for pair in begun]),
                _MEAN: np.stack([pair.weights for pair in begun]), **states,
            })  # fmt: skip
        self._last_save = time.monotonic()
