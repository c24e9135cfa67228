"""Methods that hide parts of an image behind gray and watch the label's probability: occlusion and RISE."""

from dataclasses import dataclass, replace

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.methods import option_values
from auditkit.methods.differences.grids import Grids, Spread, coin_flips, jittered, weighted_sum
from auditkit.methods.queries import answers, generator
from auditkit.methods.request import Found, Request
from auditkit.model.soft_masks import mixed

SMALL_SIDE = 64  # pixels; larger pictures get more masks


@dataclass(frozen=True)
class Occlusion:
    """A gray square and its steps, in shares of the picture's shorter side."""

    size: float = 0.25
    stride: float = 0.0625

    def __post_init__(self) -> None:
        for name, share in (("size", self.size), ("stride", self.stride)):
            if not 0 < share <= 1:
                raise BadInput(f"{name} {share} must be a share of the picture, above 0 and at most 1.")
        if self.stride > self.size:
            raise BadInput(f"stride {self.stride} is more than size {self.size}: pixels between would be left out.")


@dataclass(frozen=True)
class Rise:
    """Random masks over gray (Petsiuk et al.)."""

    passes: int | None = None  # masks an image, for all its labels; None: 1,024 up to 64 pixels a side, 4,000 above
    cells: int = 7  # of the grid, a side
    keep: float = 0.5  # chance of a grid point to be shown

    def __post_init__(self) -> None:
        option_values.whole(self, "passes")
        option_values.whole(self, "cells", most=option_values.MOST_CELLS)
        if not 0 < self.keep < 1:
            raise BadInput(f"keep {self.keep} must lie between 0 and 1.")

    def for_size(self, height: int, width: int) -> "Rise":
        """The options with each None decided."""
        return replace(self, passes=self.passes or (1024 if max(height, width) <= SMALL_SIDE else 4000))


def occlusion(request: Request, options: Occlusion = Occlusion()) -> Found:
    """How much of the label's probability is lost, on average over the gray squares that cover a pixel."""
    height, width = request.model.signature.height, request.model.signature.width
    side, step = (max(1, round(share * min(height, width))) for share in (options.size, options.stride))
    spread, squares = _squares(height, width, side, step)
    whole = Grids(np.zeros((1, 1, 1), np.float32), np.zeros(1, np.int64), np.zeros(1, np.int64))
    grids = Grids(*(np.concatenate(pair) for pair in zip(_fields(squares), _fields(whole), strict=True)))
    # The square is the mask of the gray picture; the last row hides nothing.
    found = _asked(request, spread, [grids] * len(request.ids), image_on_top=False)
    covered = weighted_sum(squares, spread, np.ones(len(squares)))
    drops = [(own[-1:] - own[:-1]).T for own in found]
    sums = [weighted_sum(squares, spread, drop) / covered for drop in drops]
    return _found(request, sums, len(grids))


def rise(request: Request, options: Rise = Rise()) -> Found:
    """The mean of random masks, each weighted by the label's probability behind it, over the expected mask."""
    height, width = request.model.signature.height, request.model.signature.width
    options = options.for_size(height, width)
    spread, passes = jittered(height, width, options.cells), options.passes or 0
    grids = [
        coin_flips(spread, passes, options.keep, generator(request, place, "rise")) for place in range(len(request.ids))
    ]
    found = _asked(request, spread, grids, image_on_top=True)
    sums = [
        weighted_sum(own, spread, probabilities.T) / (passes * options.keep)
        for own, probabilities in zip(grids, found, strict=True)
    ]
    return _found(request, sums, passes)


def _asked(request: Request, spread: Spread, grids: list[Grids], *, image_on_top: bool) -> list[Array]:
    """Probabilities [grids, labels] of each image behind its grids, gray elsewhere (or the other way round)."""
    over = mixed(request.model)
    pictures = over.upload(np.concatenate([request.gray, request.shown]))
    found: list[Array] = []
    for place, own in enumerate(grids):
        image, gray = np.full(len(own), 1 + place), np.zeros(len(own), np.int64)
        ends = (image, gray) if image_on_top else (gray, image)
        rows = np.stack([*ends, np.arange(len(own)), own.down, own.across], axis=1)
        banks = over.load(pictures, own.values, spread.down, spread.across)
        found += answers(over, banks, [rows], [request.labels[place]], request.tick)
    return found


def _found(request: Request, maps: list[Array], passes: int) -> Found:
    named = [
        dict(zip(labels, own.astype(np.float32), strict=True)) for labels, own in zip(request.labels, maps, strict=True)
    ]
    return Found(tuple(named), passes * len(maps))


def _squares(height: int, width: int, side: int, step: int) -> tuple[Spread, Grids]:
    """Hard squares from edge to edge: one number each, spread by indicators of rows and of columns."""
    down, across = _bars(height, side, step), _bars(width, side, step)
    places = np.stack(np.meshgrid(np.arange(len(down)), np.arange(len(across)), indexing="ij"), axis=-1).reshape(-1, 2)
    spread = Spread(down[:, :, None], np.ascontiguousarray(across[:, None, :]))
    return spread, Grids(np.ones((len(places), 1, 1), np.float32), places[:, 0], places[:, 1])


def _bars(length: int, side: int, step: int) -> Array:
    """Indicators [positions, length] of a bar at every step, and of one at the very end."""
    starts = np.unique([*range(0, length - side, step), max(length - side, 0)])
    at = np.arange(length)
    return ((at >= starts[:, None]) & (at < starts[:, None] + side)).astype(np.float32)


def _fields(grids: Grids) -> tuple[Array, Array, Array]:
    return grids.values, grids.down, grids.across
