"""Maps without any gradient: what a model answers to random halves of an image, regressed on their pixels.

Each query is a pair: a random soft mask and its complement, both over one other picture. The answers, in log-odds, are
regressed on the masks under a smooth prior (methods.regression); all labels share the passes. An image is done when
maps from either half of its queries rank the pixels so much alike that more queries would add little.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.methods import option_values
from auditkit.methods.differences.grids import Spread, coin_flips, jittered
from auditkit.methods.differences.refinement import PASSES_A_STEP, Penalties, refined
from auditkit.methods.differences.regression import Cosines, Prior, chosen, fitted, split_half_agreement
from auditkit.methods.notes import Note, Range, Share
from auditkit.methods.queries import answers, generator, others
from auditkit.methods.request import Found, Request
from auditkit.model.soft_masks import Mixed, mixed

SMALL_SIDE = 64  # pixels; larger pictures get a finer grid and more passes
LEAST_OF_CHANCE = 1e-3  # probabilities are clipped at this share of one over the classes, and as far below 1
COSINES_A_CELL = 3  # a bilinear grid holds hardly anything beyond two
LENGTHS = (0.3, 0.5, 0.8, 1.2)  # of the prior, in cells
LOOKS = 8  # times at most that the agreement is looked at
LOOKED_AT = 32  # pixels a side, at which maps of two halves are compared
LAMBDA_TV = 0.01


@dataclass(frozen=True)
class Differences:
    """How many questions are asked, and how."""

    most_passes: int | None = None  # an image, for all its labels; None: 1,024 up to 64 pixels a side, 4,000 above
    least_passes: int | None = None  # before agreement may end it; None: a quarter of the most
    tolerance: float = 0.05  # done when twice the passes would raise the agreement by less
    grid: int | None = None  # points a side; None: 5 up to 64 pixels, 7 above
    hide: str = "random"  # what is behind hidden pixels: random (pictures of the pool) | gray
    refine: int = 0  # passes more for each label, to turn its map into a mask of the paper's kind; 0: none
    tv: float = LAMBDA_TV  # weight of the refined mask's total variation
    l1: float | None = None  # and of its sum; None: one over the pixels

    def __post_init__(self) -> None:
        option_values.whole(self, "most_passes", "least_passes")
        option_values.whole(self, "grid", most=option_values.MOST_CELLS)
        for name, number, least in (
            ("most passes", self.most_passes, 16), ("least passes", self.least_passes, 16), ("grid", self.grid, 2),
            ("tolerance", self.tolerance, 0), ("tv", self.tv, 0), ("l1", self.l1, 0),
        ):  # fmt: skip
            if number is not None and not number >= least:
                raise BadInput(f"{name} {number} is less than {least}.")
        if self.most_passes is not None and self.least_passes is not None and self.least_passes > self.most_passes:
            raise BadInput(f"least passes {self.least_passes} are more than most passes {self.most_passes}.")
        if self.hide not in ("random", "gray"):
            raise BadInput(f"hidden pixels can be random or gray, not '{self.hide}'.")
        if self.refine < 0 or 0 < self.refine < PASSES_A_STEP:
            raise BadInput(f"refine {self.refine} is not enough for one step; give {PASSES_A_STEP} passes or more.")


@dataclass(frozen=True)
class _Plan:
    """The options with all that depends on the picture's size decided."""

    pairs: int
    least: int  # pairs
    portion: int  # pairs asked between two looks
    spread: Spread
    cosines: Cosines
    coarse: Cosines  # the same at fewer pixels
    lengths: tuple[float, ...]

    @classmethod
    def of(cls, options: Differences, height: int, width: int) -> "_Plan":
        small = max(height, width) <= SMALL_SIDE
        most = options.most_passes or max(1024 if small else 4000, options.least_passes or 0)
        pairs, cells = most // 2, (options.grid or (5 if small else 7)) - 1
        sizes = ((height, width), (min(height, LOOKED_AT), min(width, LOOKED_AT)))
        cosines, coarse = (Cosines.of(*size, COSINES_A_CELL * cells) for size in sizes)
        if cosines.count != coarse.count:  # more cosines than pixels to look at
            coarse = cosines
        return cls(pairs, (options.least_passes or most // 4) // 2, -(-pairs // LOOKS),
                   jittered(height, width, cells), cosines, coarse,
                   tuple(length / cells for length in LENGTHS))  # fmt: skip


class _Image:
    """The queries of one image, drawn ahead, and the answers so far."""

    def __init__(self, request: Request, place: int, plan: _Plan, behind: Array) -> None:
        rng = generator(request, place, "differences")
        self.place, self.plan = place, plan
        self.clip = LEAST_OF_CHANCE / request.model.signature.classes
        self.grids = coin_flips(plan.spread, plan.pairs, 0.5, rng)
        self.behind = rng.choice(behind, plan.pairs)
        self.features = plan.cosines.features(self.grids, plan.spread)
        self.responses = np.zeros((0, 2, len(request.labels[place])))
        self.priors: list[Prior] = []
        self.agreement = float("nan")

    def next_part(self) -> slice:
        """The pairs to ask now."""
        asked = len(self.responses)
        return slice(asked, min(asked + self.plan.portion, self.plan.pairs))

    def rows(self, part: slice, first_grid: int) -> Array:
        """For each pair, the row that shows the image inside the mask and the one that shows it outside."""
        grids, behind = self.grids.part(part), self.behind[part]
        image, grid = np.full(len(grids), self.place), first_grid + np.arange(len(grids))
        inside = np.stack([image, behind, grid, grids.down, grids.across], axis=1)
        return np.stack([inside, inside[:, [1, 0, 2, 3, 4]]], axis=1).reshape(-1, 5)

    def take(self, probabilities: Array) -> None:
        """Add the answers to the next part."""
        clipped = np.clip(probabilities.astype(np.float64), self.clip, 1 - self.clip)
        log_odds = np.log(clipped) - np.log1p(-clipped)
        self.responses = np.concatenate([self.responses, log_odds.reshape(-1, 2, log_odds.shape[1])])

    def done(self, tolerance: float) -> bool:
        """Whether twice the passes would hardly change the ranks, by Spearman and Brown's formula, or none are left."""
        asked, plan = len(self.responses), self.plan
        if asked < plan.least and asked < plan.pairs:
            return False
        features = self.features[:asked]
        self.priors = chosen(features, self.responses, plan.cosines, plan.lengths)
        self.agreement = float(split_half_agreement(features, self.responses, plan.coarse, self.priors).min())
        risen = 2 * self.agreement / (1 + self.agreement) if self.agreement > 0 else 1.0
        return asked == plan.pairs or risen - self.agreement < tolerance

    def maps(self) -> Array:
        """A map [labels, height, width] from all answers."""
        if not self.priors:  # nothing was asked
            return np.zeros((0, 1, 1), np.float32)
        cosines = self.plan.cosines
        weights = fitted(self.features[: len(self.responses)], self.responses, cosines, self.priors)
        return cosines.field(weights).astype(np.float32)


def differences(request: Request, options: Differences = Differences()) -> Found:
    """A map of every label asked for, from forward passes alone."""
    plan = _Plan.of(options, request.model.signature.height, request.model.signature.width)
    over = mixed(request.model)
    at_random = options.hide == "random"
    pictures = over.upload(np.concatenate([request.shown, request.pool.shown if at_random else request.gray]))
    first = len(request.ids)
    behind = [first + (others(request, place) if at_random else np.zeros(1, np.int64)) for place in range(first)]
    images = [_Image(request, place, plan, own) for place, own in enumerate(behind)]
    active = [image for image in images if request.labels[image.place]]
    while active:
        _ask(request, over, pictures, active)
        active = [image for image in active if not image.done(options.tolerance)]
    maps = [dict(zip(request.labels[image.place], image.maps(), strict=True)) for image in images]
    passes, notes = sum(2 * len(image.responses) for image in images), _notes(images)
    if options.refine:
        passes += _refine(request, over, pictures, behind, maps, options)
        notes += (f"masks refined with {options.refine // PASSES_A_STEP * PASSES_A_STEP} passes a label",)
    return Found(tuple(maps), passes, notes=notes)


def _ask(request: Request, over: Mixed, pictures: Any, active: list[_Image]) -> None:
    """The next part of all images that are not done, in batches that they share."""
    parts = [image.next_part() for image in active]
    firsts = np.cumsum([0, *(part.stop - part.start for part in parts)]).tolist()
    rows = [image.rows(part, first) for image, part, first in zip(active, parts, firsts[:-1], strict=True)]
    grids = np.concatenate([image.grids.values[part] for image, part in zip(active, parts, strict=True)])
    spread = active[0].plan.spread
    banks = over.load(pictures, grids, spread.down, spread.across)
    found = answers(over, banks, rows, [request.labels[image.place] for image in active], request.tick)
    for image, own in zip(active, found, strict=True):
        image.take(own)


def _notes(images: list[_Image]) -> tuple[Note, ...]:
    asked = [2 * len(image.responses) for image in images if image.responses.size]
    if not asked:
        return ()
    early = sum(count < 2 * images[0].plan.pairs for count in asked)
    agreements = tuple(image.agreement for image in images if image.responses.size and np.isfinite(image.agreement))
    agreed = (Range("split-half agreement of ranks", agreements),) if agreements else ()
    return (Range("passes an image", tuple(asked)), Share("images stopped early", early, len(asked)), *agreed)


def _refine(
    request: Request, over: Mixed, pictures: Any, behind: list[Array], maps: list[dict[int, Array]],
    options: Differences,
) -> int:  # fmt: skip
    """Turn every map into a mask, in place; how many passes that took."""
    pairs = [(place, label) for place, own in enumerate(maps) for label in own]
    if not pairs:
        return 0
    generators = [generator(request, place, f"refine {label}") for place, label in pairs]
    asked = 0

    def ask(grids: Array, spread: Spread) -> Array:
        nonlocal asked
        rows, count = [], grids.shape[1]
        for number, ((place, _), rng) in enumerate(zip(pairs, generators, strict=True)):
            own = np.zeros((count, 5), np.int64)
            own[:, 0], own[:, 1] = place, rng.choice(behind[place], count // 2).repeat(2)
            own[:, 2] = number * count + np.arange(count)
            rows.append(own)
        banks = over.load(pictures, grids.reshape(-1, *grids.shape[2:]), spread.down, spread.across)
        asked += len(pairs) * count
        found = answers(over, banks, rows, [[label] for _, label in pairs], request.tick)
        return np.stack([own[:, 0] for own in found])

    starts = np.stack([maps[place][label] for place, label in pairs])
    penalties = Penalties(options.tv, 1 / starts[0].size if options.l1 is None else options.l1)
    for (place, label), own in zip(pairs, refined(starts, ask, options.refine, penalties, generators), strict=True):
        maps[place][label] = own
    return asked
