"""An image and a label whose mask is being learned, and the checkpoint of all of them."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import RuntimeFailure
from auditkit.graph.mask_objective import COUNT, STATE
from auditkit.methods.request import Checkpoint

WINDOW = 50  # steps whose random draws are made at once; then losses are looked at
_SAVE_SECONDS = 60.0  # between two checkpoints; about as much work is lost when a run is killed
_KEYS = "keys"  # the array of a checkpoint beside STATE


@dataclass(frozen=True)
class Pace:
    """How many steps a mask takes, and how large they are."""

    steps: int
    rate: float
    fall: float = 1.0  # the rate at the last step, as a share of the first

    def rates(self, done: int, count: int) -> Array:
        """The rates of `count` steps after those that are done."""
        return np.asarray(self.rate * self.fall ** (np.arange(done, done + count) / self.steps), np.float32)


@dataclass(eq=False)
class Pair:
    """An image and a label, and the state of their mask."""

    image: int
    label: int
    name: str
    seed: int
    infills: Array  # positions in the bank
    state: dict[str, Array]  # without the axis of pairs

    @property
    def done(self) -> int:
        """Steps that the mask has taken."""
        return int(self.state[COUNT].item())

    def draws(self, count: int) -> Array:
        """Positions [steps, count] of the infills in the rest of the current window, distinct if possible."""
        if len(self.infills) == 1:
            return np.broadcast_to(self.infills, (WINDOW, count))
        done = self.done % WINDOW
        rng = np.random.default_rng([self.seed, self.done - done])
        if len(self.infills) < count:
            return self.infills[rng.integers(0, len(self.infills), (WINDOW, count))][done:]
        chances = rng.random((WINDOW, len(self.infills)), np.float32)
        return self.infills[np.sort(np.argpartition(chances, count - 1, axis=1)[:, :count], axis=1)][done:]

    def advance(self, losses: Array, state: dict[str, Array]) -> None:
        """Take over the state after some steps, if their losses are numbers."""
        self.state = state
        if not np.isfinite(losses).all():
            raise loss_failure(self.name, self.label, self.done)


def loss_failure(image: str, label: int, steps: int) -> RuntimeFailure:
    """The error of a loss that is NaN or infinite."""
    what = f"the loss of image '{image}' for label {label} is not a number after {steps} steps"
    return RuntimeFailure(f"{what}; a score is NaN, or the gradient overflows. Try --precision strict.")


class SavedStates:
    """Pairs in a checkpoint, each under a key that stands for all that can change its mask."""

    def __init__(self, checkpoint: Checkpoint, keys: Mapping[Pair, str]) -> None:
        self._checkpoint, self._keys = checkpoint, keys
        self._last_save = time.monotonic()

    def load(self) -> None:
        """Let pairs continue from the states that the checkpoint has of them."""
        arrays = self._checkpoint.load((_KEYS, *STATE))
        if not {_KEYS, *STATE} <= arrays.keys():
            return
        keys = arrays.pop(_KEYS)
        if keys.ndim != 1 or any(values.shape[:1] != keys.shape for values in arrays.values()):
            return  # others may have written it
        positions = {key: position for position, key in enumerate(keys.tolist())}
        for pair, key in self._keys.items():
            if key in positions:
                state = {name: values[positions[key]] for name, values in arrays.items()}
                if _is_like(state, pair.state):
                    pair.state = state

    def is_due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self._last_save >= _SAVE_SECONDS

    def save(self, pairs: Iterable[Pair]) -> None:
        """Replace the checkpoint by those of the pairs that have taken steps."""
        begun = [pair for pair in pairs if pair.done]
        if begun:
            states = {name: np.stack([pair.state[name] for pair in begun]) for name in STATE}
            self._checkpoint.save({_KEYS: np.array([self._keys[pair] for pair in begun]), **states})
        self._last_save = time.monotonic()


def _is_like(state: Mapping[str, Array], begin: Mapping[str, Array]) -> bool:
    """Whether a state can have come from the one at the beginning."""
    for name in STATE:
        if (state[name].shape, state[name].dtype) != (begin[name].shape, begin[name].dtype):
            return False
    return bool(0 <= state[COUNT].item() < np.inf)
