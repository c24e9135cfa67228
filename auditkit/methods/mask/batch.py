"""Many masks learned at once: as many pairs of an image and a label as fit take steps together.

Between windows of steps what was learned lies on the host, so that a pair that has settled makes room for the next,
and a batch that did not fit into memory is tried again at half its size. A pair's draws depend on nothing but itself.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.ranks import map_seed
from auditkit.errors import OutOfMemory, RuntimeFailure
from auditkit.graph.hard_masks import Ends
from auditkit.graph.mask_objective import IMAGE, INFILLS, LABEL, LOSS, PICTURES, WEIGHTS, Recipe
from auditkit.graph.mask_step import STATE, initial_state
from auditkit.methods.mask.infills import Bank
from auditkit.methods.request import Request
from auditkit.model.session import Session, Stepper

Tick = Callable[[int], None]
EIGHTH = 8


@dataclass(frozen=True)
class Ending:
    """When a mask is done."""

    steps: int  # at most
    window: int  # steps over which losses are averaged
    settled: float  # share of the loss by which it must still fall
    patience: int  # windows for which it need not

    def has_settled(self, averages: list[float]) -> bool:
        """Whether the last windows brought the lowest loss down by too little."""
        if len(averages) <= self.patience:
            return False
        before, lately = min(averages[: -self.patience]), min(averages[-self.patience :])
        return lately >= before - self.settled * abs(before)


@dataclass(eq=False)
class Pair:
    """An image and a label, and what has been learned about them."""

    image: int
    label: int
    name: str
    seed: int
    infills: Array  # places in the bank
    state: dict[str, Array]  # without the axis of pairs
    losses: list[float] = field(default_factory=list)
    averages: list[float] = field(default_factory=list)
    best: Array | None = None  # weights after the window with the lowest average
    settled: bool = False

    @classmethod
    def new(cls, request: Request, bank: Bank, image: int, label: int, state: dict[str, Array]) -> "Pair":
        """A pair before its first step."""
        name = request.ids[image]
        return cls(image, label, name, map_seed(request.seed, name, label), bank.infills[image], state)

    def left(self, ending: Ending) -> int:
        """Steps to the end of its window."""
        done = len(self.losses)
        return min(ending.window - done % ending.window, ending.steps - done)

    def drawn(self, count: int, first: int, window: int) -> Array:
        """Places [window, count] of the infills of the window that begins at a step; none twice where that can be."""
        if len(self.infills) == 1:
            return np.broadcast_to(self.infills, (window, count))
        rng = np.random.default_rng([self.seed, first])
        if len(self.infills) < count:
            return self.infills[rng.integers(0, len(self.infills), (window, count))]
        chances = rng.random((window, len(self.infills)), np.float32)
        return self.infills[np.sort(np.argpartition(chances, count - 1, axis=1)[:, :count], axis=1)]

    def went_on(self, losses: Array, state: dict[str, Array], ending: Ending) -> bool:
        """Take in some steps; true when it is done."""
        self.state = state
        self.losses.extend(losses.tolist())
        done = len(self.losses)
        if done % ending.window and done < ending.steps:
            return False
        self.averages.append(float(np.mean(self.losses[(done - 1) // ending.window * ending.window :])))
        if not np.isfinite(self.averages[-1]):
            raise RuntimeFailure(
                f"the loss of image '{self.name}' for label {self.label} is not a number after {done} steps; the model "
                f"answers a mixture of images with NaN, or its gradient overflows. Try --precision strict."
            )
        if self.averages[-1] <= min(self.averages):
            self.best = state[WEIGHTS]
        self.settled = ending.has_settled(self.averages)
        return self.settled or done >= ending.steps


class Batch:
    """Pairs that take steps together in one session."""

    def __init__(self, session: Session, recipe: Recipe, ending: Ending, rows: int) -> None:
        self.session, self.recipe, self.ending = session, recipe, ending
        self.room = recipe.pairs or max(1, rows // recipe.rows)

    def learn(self, pairs: list[Pair], bank: Bank, tick: Tick) -> None:
        """Steps for all pairs until each is done."""
        pictures = self.session.upload(bank.pictures)
        waiting, active = deque(pairs), list[Pair]()
        while waiting or active:
            while waiting and len(active) < self.room:
                active.append(waiting.popleft())
            try:
                done = self._window(active, pictures, tick)
            except OutOfMemory:
                self._halve()
                waiting.extendleft(reversed(active[self.room :]))
                del active[self.room :]
                continue
            active = [pair for pair in active if pair not in done]

    def _halve(self) -> None:
        if self.room == 1 or self.recipe.pairs is not None:
            raise OutOfMemory("not even one mask fits into memory; use fewer distractors, or a device with more.")
        self.room //= 2

    def _window(self, pairs: list[Pair], pictures: Any, tick: Tick) -> list[Pair]:
        """Steps to the end of the first window that ends; returns the pairs that are done."""
        count = min(pair.left(self.ending) for pair in pairs)
        filled = pairs + pairs[-1:] * (self._width(len(pairs)) - len(pairs))
        draws = np.stack([self._draws(pair, count) for pair in filled], axis=1).astype(np.int32)
        begin = {name: np.stack([pair.state[name] for pair in filled]) for name in STATE}
        feeds = {
            PICTURES: pictures,
            IMAGE: self.session.upload(np.array([pair.image for pair in filled], np.int32)),
            LABEL: self.session.upload(np.array([pair.label for pair in filled], np.int32)),
            INFILLS: draws[0],
        }
        stepper = Stepper(self.session, STATE, begin, feeds, [LOSS])
        losses = np.empty((count, len(filled)))
        for step in range(count):
            (losses[step],) = stepper.step({INFILLS: draws[step]})
            tick(len(pairs) * self.recipe.rows)
        state = stepper.state()
        own = [{name: array[place] for name, array in state.items()} for place in range(len(pairs))]
        return [p for p, s, column in zip(pairs, own, losses.T, strict=False) if p.went_on(column, s, self.ending)]

    def _width(self, pairs: int) -> int:
        """Pairs in a run: the graph's own number, else as many as there are, and a few more where they end apart."""
        if self.recipe.pairs is not None:
            return self.recipe.pairs
        together = self.ending.settled < 0 or not self.session.device.fixed_batch
        return pairs if together else width(pairs, self.room)

    def _draws(self, pair: Pair, count: int) -> Array:
        into = len(pair.losses) % self.ending.window
        table = pair.drawn(self.recipe.infills, len(pair.losses) - into, self.ending.window)
        return table[into : into + count]


def width(pairs: int, room: int) -> int:
    """Pairs in a run on CUDA, which sets every size up anew, where they end one after the other: one of a few sizes.

    Those are eighths of the room, and below the first of them its halves: little is run in vain, and little set up.
    """
    eighth = max(1, room // EIGHTH)
    if pairs > eighth:
        return min(-(-pairs // eighth) * eighth, room)
    while eighth // 2 >= pairs:
        eighth //= 2
    return eighth


def fresh_states(count: int, ends: Ends, recipe: Recipe) -> list[dict[str, Array]]:
    """The state of so many pairs before their first step."""
    state = initial_state(count, ends, recipe)
    return [{name: array[place] for name, array in state.items()} for place in range(count)]
