"""Descent for iGOS++: gradients and losses come from two graphs, the line search runs here, for many pairs at once.

Masks are a few hundred numbers, so little data moves to and from the device. The noise of a pair is its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import OutOfMemory
from auditkit.graph.hard_masks import Ends
from auditkit.graph.igos_objective import NOISE, POINTS, SLOPE, TERMS, BilateralRecipe
from auditkit.graph.mask_objective import IMAGE, INFILLS, LABEL, LOSS, PICTURES, WEIGHTS
from auditkit.methods.mask.learner import loss_failure
from auditkit.model.session import Session

_Tick = Callable[[int], None]
_SHORTER, _SHORTEST = 0.2, 1e-5  # the factor between two tried step lengths, and the shortest one
_SUFFICIENT = 1e-4  # share of the decrease predicted by the slope that a step must reach


@dataclass(frozen=True)
class Targets:
    """Pairs of an image and a label, and the pictures that they need."""

    pairs: Array  # [M, 2], image and label
    names: tuple[str, ...]
    seeds: list[int]
    pictures: Array  # the images, their infills, and last the noise
    infills: Array  # for each image, the position of its infill
    noises: int

    def part(self, chosen: slice) -> "Targets":
        """Some of the pairs, with the same pictures."""
        return replace(self, pairs=self.pairs[chosen], names=self.names[chosen], seeds=self.seeds[chosen])


@dataclass
class Result:
    """The masks, and the cost of the search."""

    masks: Array  # [M, 2, h, w]
    passes: int = 0
    gradients: int = 0


@dataclass
class Search:
    """A classifier's two graphs, and the descent over them."""

    slope: Session
    loss: Session
    recipe: BilateralRecipe
    ends: Ends
    surrogate: bool  # whether the graphs are those of a model without its rounding
    steps: int
    points: int  # of the path
    longest_step: float
    room: int  # pairs in a batch; halved if memory runs out

    def run(self, targets: Targets, tick: _Tick) -> Result:
        """Both masks of every pair."""
        result = Result(np.ones((len(targets.pairs), 2, *self.recipe.grid(self.ends))))
        uploaded = self.slope.upload(targets.pictures)
        start = 0
        while start < len(targets.pairs):
            chosen = slice(start, start + self.room)
            try:
                result.masks[chosen] = _Batch(self, targets.part(chosen), uploaded, tick, result).descend()
            except OutOfMemory:
                if self.room == 1 or self.recipe.pairs is not None:
                    raise OutOfMemory("not even one pair of masks fits into memory; use the option rows=4.") from None
                self.room //= 2
                continue
            start += self.room
        return result


class _Batch:
    """Pairs that descend together; their cost is added to the result."""

    def __init__(self, search: Search, targets: Targets, uploaded: Any, tick: _Tick, result: Result) -> None:
        self.search, self.targets, self.uploaded, self.tick, self.result = search, targets, uploaded, tick, result
        self.points = (np.arange(search.points, dtype=np.float32) + 1) / search.points

    def descend(self) -> Array:
        """The masks [pairs, 2, h, w] after all steps."""
        targets = self.targets
        masks = np.ones((len(targets.pairs), 2, *self.search.recipe.grid(self.search.ends)))
        everyone = np.arange(len(masks))
        for step in range(self.search.steps):
            noise = np.stack([self._noise(seed, step) for seed in targets.seeds])
            losses, slopes = self._evaluate(self.search.slope, masks, everyone, noise)
            bad = np.flatnonzero(~np.isfinite(losses))
            if len(bad):
                raise loss_failure(targets.names[bad[0]], targets.pairs[bad[0], 1], step)
            masks = self._line_search(masks, losses, slopes, noise)
        return masks

    def _noise(self, seed: int, step: int) -> Array:
        """Positions [TERMS, points] of a step's pictures of noise."""
        last, shape = len(self.targets.pictures), (TERMS, len(self.points))
        return np.random.default_rng([seed, step]).integers(last - self.targets.noises, last, shape)

    def _line_search(self, masks: Array, losses: Array, slopes: Array, noise: Array) -> Array:
        """Each pair's masks after the longest step with a sufficient decrease; the same masks if there is none."""
        sufficient = _SUFFICIENT * (slopes**2).sum(axis=(1, 2, 3))
        new, left, length = masks.copy(), np.arange(len(masks)), self.search.longest_step
        while len(left) and length >= _SHORTEST:
            candidates = np.clip(masks[left] - length * slopes[left], 0, 1)
            (candidate_losses,) = self._evaluate(self.search.loss, candidates, left, noise)
            accepted = candidate_losses <= losses[left] - length * sufficient[left]
            new[left[accepted]] = candidates[accepted]
            left, length = left[~accepted], length * _SHORTER
        return new

    def _evaluate(self, session: Session, masks: Array, members: Array, noise: Array) -> list[Array]:
        """Losses of some pairs, and slopes if the session has them, as means over the runs that cover the path."""
        search, targets, points = self.search, self.targets, self.search.recipe.points
        # On CUDA a run of another size costs more than is saved by leaving out the pairs that are done.
        pairs = len(targets.pairs) if session.device.pads_batches else len(members)
        filled = np.resize(members, search.recipe.pairs or pairs)
        image, label = targets.pairs[filled].T
        feeds = {
            PICTURES: self.uploaded, WEIGHTS: masks[np.resize(np.arange(len(members)), len(filled))].astype(np.float32),
            IMAGE: image, LABEL: label, INFILLS: targets.infills[image][:, None].astype(np.int32),
        }  # fmt: skip
        outputs, runs = [name for name in (LOSS, SLOPE) if name in session.outputs], range(0, len(self.points), points)
        totals = [np.zeros(1)] * len(outputs)
        for start in runs:
            part = slice(start, start + points)
            positions = noise[filled][:, :, part].reshape(len(filled), -1).astype(np.int32)
            arrays = session.run({**feeds, NOISE: positions, POINTS: self.points[part]}, outputs)
            arrays = [array[: len(members)].astype(np.float64) for array in arrays]
            totals = [total + array for total, array in zip(totals, arrays, strict=True)]
            rows = len(members) * search.recipe.rows
            self.result.passes += rows
            self.result.gradients += rows * (SLOPE in outputs)
            self.tick(rows)
        return [total / len(runs) for total in totals]
