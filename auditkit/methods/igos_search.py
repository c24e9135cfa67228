"""Descent for iGOS++: gradients and losses from two graphs, steps and their lengths found here, many pairs at once.

Masks are a few hundred numbers, so that little crosses the bus; what a pair draws depends on nothing but itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import OutOfMemory, RuntimeFailure
from auditkit.graph.igos_objective import NOISE, POINTS, SLOPE, TERMS, BilateralRecipe
from auditkit.graph.mask_objective import IMAGE, INFILLS, LABEL, LOSS, PICTURES, WEIGHTS
from auditkit.model.session import Session

Tick = Callable[[int], None]
SHORTER, SHORTEST = 0.2, 1e-5  # each length tried is this share of the last; below the least none is
PROMISED = 1e-4  # share of what the slope promises that a step must keep


@dataclass(frozen=True)
class Descent:
    """How far it goes."""

    steps: int
    points: int  # of the path
    alpha: float  # the longest step


@dataclass(frozen=True)
class Asked:
    """Pairs of an image and a label, and the pictures that they need."""

    pairs: Array  # [M, 2], image and label
    names: tuple[str, ...]
    seeds: list[int]
    pictures: Any  # images, what hides their pixels, and last the noise
    infills: Array  # for each image, the place of what hides its pixels
    noises: int

    def part(self, chosen: slice) -> "Asked":
        """Some of the pairs."""
        return replace(self, pairs=self.pairs[chosen], names=self.names[chosen], seeds=self.seeds[chosen])


@dataclass
class Sought:
    """What was found, and what it took."""

    masks: Array  # [M, 2, h, w]
    passes: int = 0
    gradients: int = 0


class Search:
    """A classifier's two graphs, and the way down."""

    def __init__(
        self, slope: Session, loss: Session, recipe: BilateralRecipe, grid: tuple[int, int], descent: Descent, room: int
    ) -> None:
        self.slope, self.loss, self.recipe, self.grid, self.descent, self.room = (
            slope,
            loss,
            recipe,
            grid,
            descent,
            room,
        )

    def run(self, asked: Asked, tick: Tick) -> Sought:
        """Both masks of every pair."""
        found = Sought(np.ones((len(asked.pairs), 2, *self.grid)))
        uploaded = self.slope.upload(asked.pictures)
        start = 0
        while start < len(asked.pairs):
            chosen = slice(start, start + self.room)
            try:
                way = Way(self, asked.part(chosen), len(asked.pictures) - asked.noises, uploaded, tick, found)
                found.masks[chosen] = way.down()
            except OutOfMemory:
                if self.room == 1 or self.recipe.pairs is not None:
                    raise OutOfMemory("not even one pair of masks fits into memory; use the option rows=4.") from None
                self.room //= 2
                continue
            start += self.room
        return found


class Way:
    """The way down of some pairs together."""

    def __init__(
        self, search: Search, asked: Asked, first_noise: int, pictures: Any, tick: Tick, spent: Sought
    ) -> None:
        self.search, self.asked, self.pictures, self.tick, self.spent = search, asked, pictures, tick, spent
        self.first_noise = first_noise
        points = search.descent.points
        self.points = (np.arange(points, dtype=np.float32) + 1) / points

    def down(self) -> Array:
        """The masks after all steps."""
        masks = np.ones((len(self.asked.pairs), 2, *self.search.grid))
        everyone = np.arange(len(masks))
        for step in range(self.search.descent.steps):
            noise = np.stack([self._drawn(seed, step) for seed in self.asked.seeds])
            losses, slopes = self._ask(self.search.slope, masks, everyone, noise)
            self._must_be_numbers(losses, step)
            masks = self._stepped(masks, losses, slopes, noise)
        return masks

    def _drawn(self, seed: int, step: int) -> Array:
        """Places [4, points] of a step's noise."""
        shape, last = (TERMS, len(self.points)), self.first_noise + self.asked.noises
        return np.random.default_rng([seed, step]).integers(self.first_noise, last, shape)

    def _must_be_numbers(self, losses: Array, step: int) -> None:
        if len(wrong := np.flatnonzero(~np.isfinite(losses))):
            name, label = self.asked.names[wrong[0]], self.asked.pairs[wrong[0], 1]
            raise RuntimeFailure(
                f"the loss of image '{name}' for label {label} is not a number after {step} steps; the model answers a "
                f"mixture of images with NaN, or its gradient overflows. Try --precision strict."
            )

    def _stepped(self, masks: Array, losses: Array, slopes: Array, noise: Array) -> Array:
        """Each pair's masks after the longest step that keeps its promise; where there is none, the same masks."""
        promised = PROMISED * (slopes**2).sum(axis=(1, 2, 3))
        new, left, length = masks.copy(), np.arange(len(masks)), self.search.descent.alpha
        while len(left) and length >= SHORTEST:
            tried = np.clip(masks[left] - length * slopes[left], 0, 1)
            (reached,) = self._ask(self.search.loss, tried, left, noise)
            kept = reached <= losses[left] - length * promised[left]
            new[left[kept]] = tried[kept]
            left, length = left[~kept], length * SHORTER
        return new

    def _ask(self, session: Session, masks: Array, who: Array, noise: Array) -> list[Array]:
        """Losses, and slopes if the session has them, as means over the runs that the path is divided into."""
        search, points = self.search, self.search.recipe.points
        # On CUDA a run of another size costs more than what is saved by leaving out the pairs that are done.
        pairs = len(self.asked.pairs) if session.device.fixed_batch else len(who)
        filled = np.resize(who, search.recipe.pairs or pairs)
        image, label = self.asked.pairs[filled].T
        feeds = {
            PICTURES: self.pictures, WEIGHTS: masks[np.resize(np.arange(len(who)), len(filled))].astype(np.float32),
            IMAGE: image, LABEL: label, INFILLS: self.asked.infills[image][:, None].astype(np.int32),
        }  # fmt: skip
        wanted, runs = [LOSS, *([SLOPE] if SLOPE in session.outputs else [])], range(0, len(self.points), points)
        total = [np.zeros(1)] * len(wanted)
        for start in runs:
            part = slice(start, start + points)
            places = noise[filled][:, :, part].reshape(len(filled), -1).astype(np.int32)
            found = session.run({**feeds, NOISE: places, POINTS: self.points[part]}, wanted)
            total = [one + other[: len(who)].astype(np.float64) for one, other in zip(total, found, strict=True)]
            self._count(len(who) * search.recipe.rows, differentiated=len(wanted) > 1)
        return [array / len(runs) for array in total]

    def _count(self, rows: int, *, differentiated: bool) -> None:
        self.spent.passes += rows
        self.spent.gradients += rows * differentiated
        self.tick(rows)
