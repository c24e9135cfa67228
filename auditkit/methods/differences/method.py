"""Maps without gradients: a regression of the model's answers on random masks of the image.

Each query is a pair: a random soft mask and its complement, both over the same other picture. The answers, in log-odds,
are regressed on the masks under a smooth prior (`regression`); all labels share the passes. An image is done when the
maps from two halves of its queries rank the pixels so similarly that more queries would add little.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.methods import option_values
from auditkit.methods.differences.grids import SMALL_SIDE, Spread, answers, coin_flips, default_passes, jittered
from auditkit.methods.differences.refinement import PASSES_A_STEP, Objective, refined
from auditkit.methods.differences.regression import Cosines, Prior, best_priors, fitted, split_half_agreement
from auditkit.methods.notes import Note
from auditkit.methods.request import MethodResult, Request, bank
from auditkit.model.masks import Mixed, mixed

_CLIP_OF_CHANCE = 1e-3  # probabilities are clipped to this share of one over the classes, and as far below 1
_COSINES_PER_CELL = 3  # a bilinear grid has hardly any content beyond two
_LENGTHS = (0.3, 0.5, 0.8, 1.2)  # of the prior, in cells
_LOOKS = 8  # at most so many times the agreement is computed
_COARSE_SIDE = 32  # pixels a side at which the maps of two halves are compared
_LEAST_PASSES = 16  # fewer cannot be halved and regressed


@dataclass(frozen=True)
class Differences:
    """How many queries are made, and how."""

    most_passes: int | None = None  # per image, for all its labels; None: 1,024 up to 64 pixels a side, 4,000 above
    least_passes: int | None = None  # before agreement may end it; None: a quarter of the most
    tolerance: float = 0.05  # done when twice the passes would raise the agreement by less
    grid: int | None = None  # points a side; None: 5 up to 64 pixels, 7 above
    hide: str = "random"  # infill of hidden pixels: random (pictures of the pool) | gray
    refine: int = 0  # further passes per label, which turn its map into a mask of the paper's kind; 0: none
    tv: float = 0.01  # weight of the refined mask's total variation, as in the method mask
    l1: float | None = None  # weight of its sum; None: one over the pixels

    def __post_init__(self) -> None:
        option_values.require_whole(self, "most_passes", "least_passes", least=_LEAST_PASSES)
        option_values.require_whole(self, "grid", least=2, most=option_values.MOST_CELLS)
        option_values.require_not_negative(self, "tv", "l1")
        option_values.require(self.tolerance >= 0, f"tolerance {self.tolerance} is less than 0.")
        if self.most_passes is not None and self.least_passes is not None and self.least_passes > self.most_passes:
            raise BadInput(f"least_passes {self.least_passes} is more than most_passes {self.most_passes}.")
        option_values.require(self.hide in ("random", "gray"), f"hide can be random or gray, not '{self.hide}'.")
        if self.refine < 0 or 0 < self.refine < PASSES_A_STEP:
            raise BadInput(f"refine {self.refine} is not enough for one step; give {PASSES_A_STEP} passes or more.")


class _Plan:
    """The options, with defaults for the size of the images."""

    def __init__(self, options: Differences, height: int, width: int) -> None:
        most = options.most_passes or max(default_passes(height, width), options.least_passes or 0)
        cells = (options.grid or (5 if max(height, width) <= SMALL_SIDE else 7)) - 1
        self.pairs = most // 2
        self.least = (options.least_passes or most // 4) // 2  # pairs
        self.portion = -(-self.pairs // _LOOKS)  # pairs between two looks
        self.spread = jittered(height, width, cells)
        self.lengths = tuple(length / cells for length in _LENGTHS)
        self.cosines = Cosines.of(height, width, _COSINES_PER_CELL * cells)
        coarse = Cosines.of(min(height, _COARSE_SIDE), min(width, _COARSE_SIDE), _COSINES_PER_CELL * cells)
        # The same at fewer pixels, unless there are more cosines than coarse pixels.
        self.coarse = coarse if coarse.count == self.cosines.count else self.cosines


class _Image:
    """The queries of one image, drawn in advance, and the answers so far."""

    def __init__(self, request: Request, position: int, plan: _Plan, infills: Array) -> None:
        rng = request.generator(position, "differences")
        self.position, self.plan = position, plan
        self.clip = _CLIP_OF_CHANCE / request.model.signature.classes
        self.grids = coin_flips(plan.spread, plan.pairs, 0.5, rng)
        self.infills = rng.choice(infills, plan.pairs)
        self.features = plan.cosines.features(self.grids, plan.spread)
        self.responses = np.zeros((0, 2, len(request.labels[position])))
        self.priors: list[Prior] = []
        self.agreement = float("nan")

    def rows(self, part: slice, first_grid: int) -> Array:
        """Rows [2 * pairs, 5]: for each pair, the image inside the mask, then the image outside it."""
        grids, infills = self.grids.part(part), self.infills[part]
        image, grid = np.full(len(grids), self.position), first_grid + np.arange(len(grids))
        inside = np.stack([image, infills, grid, grids.down, grids.across], axis=1)
        return np.stack([inside, inside[:, [1, 0, 2, 3, 4]]], axis=1).reshape(-1, 5)

    def add(self, probabilities: Array) -> None:
        """Add the answers to the next part."""
        clipped = np.clip(probabilities.astype(np.float64), self.clip, 1 - self.clip)
        log_odds = np.log(clipped) - np.log1p(-clipped)
        self.responses = np.concatenate([self.responses, log_odds.reshape(-1, 2, log_odds.shape[1])])

    def done(self, tolerance: float) -> bool:
        """Whether all pairs are queried, or twice the passes would hardly change the ranks (Spearman-Brown formula)."""
        queried, plan = len(self.responses), self.plan
        if queried < plan.least and queried < plan.pairs:
            return False
        features = self.features[:queried]
        self.priors = best_priors(features, self.responses, plan.cosines, plan.lengths)
        self.agreement = float(split_half_agreement(features, self.responses, plan.coarse, self.priors).min())
        with_twice = 2 * self.agreement / (1 + self.agreement) if self.agreement > 0 else 1.0
        return queried == plan.pairs or with_twice - self.agreement < tolerance

    def maps(self) -> Array:
        """Maps [labels, height, width] from all answers."""
        if not self.priors:  # no label was queried
            return np.zeros((0, 1, 1), np.float32)
        cosines = self.plan.cosines
        masks = np.arange(len(self.responses))
        (weights,) = fitted(self.features[: len(masks)], self.responses, cosines, self.priors, [masks])
        return cosines.field(weights).astype(np.float32)


def differences(request: Request, options: Differences = Differences()) -> MethodResult:
    """A map for every image and label, from forward passes alone."""
    plan = _Plan(options, request.model.signature.height, request.model.signature.width)
    refine_passes = options.refine // PASSES_A_STEP * PASSES_A_STEP * len(request.pairs())
    request.expect(2 * plan.pairs * sum(map(bool, request.labels)) + refine_passes)  # before masks fill the memory
    over, pool = mixed(request.model), bank(request, "distractors" if options.hide == "random" else "gray")
    pictures = over.upload(pool.pictures)
    images = [_Image(request, position, plan, infills) for position, infills in enumerate(pool.infills)]
    active = [image for image in images if request.labels[image.position]]
    while active:
        _query(request, over, pictures, active)
        active = [image for image in active if not image.done(options.tolerance)]
    maps = [dict(zip(request.labels[image.position], image.maps(), strict=True)) for image in images]
    passes, notes = sum(2 * len(image.responses) for image in images), _notes(images)
    if options.refine:
        _refine(request, over, pictures, pool.infills, maps, options)
        passes += refine_passes
        notes += (Note("refined", str(options.refine // PASSES_A_STEP * PASSES_A_STEP)),)
    return MethodResult(tuple(maps), passes, notes=notes)


def _query(request: Request, over: Mixed, pictures: Any, active: list[_Image]) -> None:
    """Add the answers to the next part of all active images, in shared batches."""
    plan, done = active[0].plan, [len(image.responses) for image in active]
    parts = [slice(first, min(first + plan.portion, plan.pairs)) for first in done]
    firsts = np.cumsum([0, *(part.stop - part.start for part in parts)]).tolist()
    rows = [image.rows(part, first) for image, part, first in zip(active, parts, firsts[:-1], strict=True)]
    grids = np.concatenate([image.grids.values[part] for image, part in zip(active, parts, strict=True)])
    banks = over.load(pictures, grids, plan.spread.down, plan.spread.across)
    probabilities = answers(over, banks, rows, [request.labels[image.position] for image in active], request.tick)
    for image, of_image in zip(active, probabilities, strict=True):
        image.add(of_image)


def _notes(images: list[_Image]) -> tuple[Note, ...]:
    queried = [image for image in images if image.responses.size]
    if not queried:
        return ()
    passes = tuple(2 * len(image.responses) for image in queried)
    early = sum(count < 2 * images[0].plan.pairs for count in passes)
    notes = (Note("passes", values=passes), Note("early", hits=early, total=len(passes)))
    agreements = tuple(image.agreement for image in queried if np.isfinite(image.agreement))
    return (*notes, Note("agreement", values=agreements)) if agreements else notes


def _refine(
    request: Request, over: Mixed, pictures: Any, infills: list[Array], maps: list[dict[int, Array]],
    options: Differences,
) -> None:  # fmt: skip
    """Replace every map by a mask."""
    pairs = request.pairs()
    if not pairs:
        return
    generators = [request.generator(position, f"refine {label}") for position, label in pairs]

    def probabilities(grids: Array, spread: Spread) -> Array:
        rows, count = [], grids.shape[1]
        for number, ((position, _), rng) in enumerate(zip(pairs, generators, strict=True)):
            block = np.zeros((count, 5), np.int64)
            block[:, 0], block[:, 1] = position, rng.choice(infills[position], count // 2).repeat(2)
            block[:, 2] = number * count + np.arange(count)
            rows.append(block)
        banks = over.load(pictures, grids.reshape(-1, *grids.shape[2:]), spread.down, spread.across)
        columns = answers(over, banks, rows, [[label] for _, label in pairs], request.tick)
        return np.stack([column[:, 0] for column in columns])

    starts = np.stack([maps[position][label] for position, label in pairs])
    l1 = 1 / starts[0].size if options.l1 is None else options.l1
    masks = refined(starts, Objective(probabilities, generators, options.tv, l1), options.refine)
    for (position, label), mask in zip(pairs, masks, strict=True):
        maps[position][label] = mask
