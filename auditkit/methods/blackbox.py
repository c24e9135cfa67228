"""Methods that replace parts of an image by gray and measure the label's probability: occlusion and RISE."""

from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.methods import option_values
from auditkit.methods.differences.grids import Grids, Spread, answers, coin_flips, default_passes, jittered
from auditkit.methods.request import MethodResult, Request
from auditkit.model.masks import mixed


@dataclass(frozen=True)
class Occlusion:
    """Size and stride of the gray square, in shares of the image's shorter side."""

    size: float = 0.25
    stride: float = 0.0625

    def __post_init__(self) -> None:
        for name, share in (("size", self.size), ("stride", self.stride)):
            option_values.require(0 < share <= 1, f"{name} {share} is not a share of the picture above 0 and up to 1.")
        gaps = f"stride {self.stride} is more than size {self.size}: pixels between would be left out."
        option_values.require(self.stride <= self.size, gaps)


@dataclass(frozen=True)
class Rise:
    """Random masks over gray (Petsiuk et al.)."""

    passes: int | None = None  # masks per image, for all its labels; None: 1,024 up to 64 pixels a side, 4,000 above
    cells: int = 7  # of the grid, per side
    keep: float = 0.5  # probability that a grid point is kept

    def __post_init__(self) -> None:
        option_values.require_whole(self, "passes")
        option_values.require_whole(self, "cells", most=option_values.MOST_CELLS)
        option_values.require(0 < self.keep < 1, f"keep {self.keep} must lie between 0 and 1.")


def occlusion(request: Request, options: Occlusion = Occlusion()) -> MethodResult:
    """The mean drop of the label's probability over the gray squares that cover a pixel."""
    height, width = request.model.signature.height, request.model.signature.width
    side, step = (max(1, round(share * min(height, width))) for share in (options.size, options.stride))
    spread, squares = _squares(height, width, side, step)
    # The square is the mask of the gray picture; the last grid hides nothing.
    values = np.append(squares.values, np.zeros((1, 1, 1), np.float32), axis=0)
    grids = Grids(values, np.append(squares.down, 0), np.append(squares.across, 0))
    covered = squares.weighted_sum(spread, np.ones(len(squares)))
    request.expect(len(grids) * len(request.ids))
    maps = []
    for probabilities in _probabilities(request, spread, [grids] * len(request.ids), image_on_top=False):
        drops = (probabilities[-1:] - probabilities[:-1]).T
        maps.append(squares.weighted_sum(spread, drops) / covered)
    return _found(request, maps, len(grids))


def rise(request: Request, options: Rise = Rise()) -> MethodResult:
    """The mean of random masks, each weighted by the label's probability behind it, over the expected mask.

    The mean probability is taken off the weights and added to the map. It is the same map in expectation, but how often
    chance kept a pixel no longer shows in it; where masks say little, that was most of what one saw.
    """
    height, width = request.model.signature.height, request.model.signature.width
    spread, passes = jittered(height, width, options.cells), options.passes or default_passes(height, width)
    request.expect(passes * len(request.ids))  # before the masks fill the memory
    generators = [request.generator(position, "rise") for position in range(len(request.ids))]
    grids = [coin_flips(spread, passes, options.keep, rng) for rng in generators]
    maps = []
    for masks, probabilities in zip(grids, _probabilities(request, spread, grids, image_on_top=True), strict=True):
        mean = probabilities.mean(axis=0)
        maps.append(
            masks.weighted_sum(spread, (probabilities - mean).T) / (passes * options.keep) + mean[:, None, None]
        )
    return _found(request, maps, passes)


def _probabilities(request: Request, spread: Spread, grids: list[Grids], *, image_on_top: bool) -> list[Array]:
    """Probabilities [grids, labels] of each image behind its grids and gray elsewhere, or the reverse."""
    over = mixed(request.model)
    pictures = over.upload(np.concatenate([request.gray, request.inputs]))
    results: list[Array] = []
    for position, masks in enumerate(grids):
        image, gray = np.full(len(masks), 1 + position), np.zeros(len(masks), np.int64)
        layers = (image, gray) if image_on_top else (gray, image)
        rows = np.stack([*layers, np.arange(len(masks)), masks.down, masks.across], axis=1)
        banks = over.load(pictures, masks.values, spread.down, spread.across)
        results += answers(over, banks, [rows], [request.labels[position]], request.tick)
    return results


def _found(request: Request, maps: list[Array], passes: int) -> MethodResult:
    pairs = zip(request.labels, maps, strict=True)
    by_label = tuple(dict(zip(labels, of_image.astype(np.float32), strict=True)) for labels, of_image in pairs)
    return MethodResult(by_label, passes * len(maps))


def _squares(height: int, width: int, side: int, step: int) -> tuple[Spread, Grids]:
    """Hard squares from edge to edge: grids of one cell, spread by indicators of rows and of columns."""
    down, across = _bars(height, side, step), _bars(width, side, step)
    row, column = (index.ravel() for index in np.indices((len(down), len(across))))
    spread = Spread(down[:, :, None], np.ascontiguousarray(across[:, None, :]))
    return spread, Grids(np.ones((len(row), 1, 1), np.float32), row, column)


def _bars(length: int, side: int, step: int) -> Array:
    """Indicators [positions, length] of a bar at every step, and of one at the end."""
    starts = np.unique([*range(0, length - side, step), max(length - side, 0)])
    pixel = np.arange(length)
    return ((pixel >= starts[:, None]) & (pixel < starts[:, None] + side)).astype(np.float32)
