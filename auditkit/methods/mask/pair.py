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
_KEYS, _LENGTHS, _LOSSES, _BEST = "keys", "lengths", "losses", "best"  # arrays of a checkpoint, beside STATE


@dataclass(frozen=True)
class Ending:
    """When a mask is done."""

    steps: int  # at most
    window: int  # steps over which losses are averaged
    settled: float  # least decrease of the loss that counts, as a share of it; below 0: masks take all steps
    patience: int  # windows without such a decrease after which a mask has settled

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
    best: Array | None = None  # weights after the window with the lowest average
    settled: bool = False

    def left(self, ending: Ending) -> int:
        """Steps to the end of the current window."""
        done = len(self.losses)
        return min(ending.window - done % ending.window, ending.steps - done)

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

    def advance(self, losses: Array, state: dict[str, Array], ending: Ending) -> None:
        """Record the losses of some steps and the state after them."""
        self.state = state
        self.losses.extend(losses.tolist())
        done = len(self.losses)
        if done % ending.window and done < ending.steps:
            return
        self.averages.append(float(np.mean(self.losses[(done - 1) // ending.window * ending.window :])))
        if not np.isfinite(self.averages[-1]):
            raise loss_failure(self.name, self.label, done)
        if self.averages[-1] <= min(self.averages):
            self.best = state[WEIGHTS]
        self.settled = ending.has_settled(self.averages)

    def is_done(self, ending: Ending) -> bool:
        """Whether the mask takes no more steps."""
        return self.settled or len(self.losses) >= ending.steps

    def continue_from(self, losses: list[float], state: dict[str, Array], best: Array, ending: Ending) -> None:
        """Take over the steps of an earlier run."""
        self.losses, self.state, self.averages = losses, state, ending.averages(losses)
        self.best = best if self.averages else None
        self.settled = ending.has_settled(self.averages)


def loss_failure(image: str, label: int, steps: int) -> RuntimeFailure:
    """The error of a loss that is NaN or infinite."""
    what = f"the loss of image '{image}' for label {label} is not a number after {steps} steps"
    return RuntimeFailure(f"{what}; a score is NaN, or the gradient overflows. Try --precision strict.")


class SavedStates:
    """Pairs in a checkpoint, each under a key that stands for all that can change its mask."""

    def __init__(self, checkpoint: Checkpoint, keys: Mapping[Pair, str], ending: Ending) -> None:
        self._checkpoint, self._keys, self._ending = checkpoint, keys, ending
        self._last_save = time.monotonic()

    def load(self) -> None:
        """Let pairs continue from the states that the checkpoint has of them."""
        arrays = self._checkpoint.load()
        if not {_KEYS, _LENGTHS, _LOSSES, _BEST, *STATE} <= arrays.keys():
            return
        positions = {key: position for position, key in enumerate(arrays[_KEYS].tolist())}
        losses = np.split(arrays[_LOSSES], np.cumsum(arrays[_LENGTHS])[:-1])
        for pair, key in self._keys.items():
            if key in positions:
                position = positions[key]
                state = {name: arrays[name][position] for name in STATE}
                pair.continue_from(losses[position].tolist(), state, arrays[_BEST][position], self._ending)

    def is_due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self._last_save >= _SAVE_SECONDS

    def save(self, pairs: Iterable[Pair]) -> None:
        """Replace the checkpoint by those of the pairs that have taken steps."""
        begun = [pair for pair in pairs if pair.losses]
        if begun:
            best = [pair.state[WEIGHTS] if pair.best is None else pair.best for pair in begun]
            states = {name: np.stack([pair.state[name] for pair in begun]) for name in STATE}
            self._checkpoint.save({
                _KEYS: np.array([self._keys[pair] for pair in begun]),
                _LENGTHS: np.array([len(pair.losses) for pair in begun]),
                _LOSSES: np.concatenate([pair.losses for pair in begun]), _BEST: np.stack(best), **states,
            })  # fmt: skip
        self._last_save = time.monotonic()
