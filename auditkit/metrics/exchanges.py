"""Exchanges between two images: one part comes from the donor, the rest stays the recipient's.

A model that relies on a part predicts the donor's label when that part is the donor's. A model that is merely fragile
predicts something else. That tells a shortcut from the stumbling that every network shows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product

import numpy as np
from scipy import ndimage

from auditkit.arrays import Array

Window = tuple[slice, slice]  # rows and columns of a square
CORNER, BAND, CENTRE = 1 / 4, 1 / 5, 0.6  # of the side
FRAMES = {"thin frame": 1 / 16, "frame": 1 / 8}  # widths, of the side
BANDS = (0.0, 0.1, 0.2, 0.6, 0.7, 0.8)  # where bands begin, from 0 to 1; objects lie in the middle, which is left out
CORNERS = ("upper left corner", "upper right corner", "lower left corner", "lower right corner")
FINE_SIGMA = 1 / 64  # of the side: structures finer than that are the fine residual
LEAST_SIGMA = 0.75  # pixels: blurred by half a pixel, stripes of one pixel keep 57 % of their contrast; by this, 13 %
PATCHES = 8  # along a side, when the fine residual is shuffled
WINDOWS = {"tiny": 1 / 8, "small": 1 / 6, "medium": 1 / 4}  # of the side: squares where the evidence is strongest


@dataclass(frozen=True)
class Side:
    """One of the two images, with where its evidence lies."""

    pixels: Array  # uint8 [height, width, channels]
    windows: dict[str, Window]  # by the name of a size
    elsewhere: Window  # one of the size "small" at a place of chance
    shuffle: Array  # an order of the patches

    @cached_property
    def coarse(self) -> Array:
        """The image without its fine residual."""
        return coarse(self.pixels)

    @cached_property
    def shuffled_fine(self) -> Array:
        """The fine residual in shuffled patches, so that no outline is left in it."""
        return shuffled(self.pixels - self.coarse, self.shuffle)


CONTROL = "control"  # the kind of an exchange that reveals no cue; others are compared with it


@dataclass(frozen=True)
class Exchange:
    """What comes from the donor."""

    name: str
    kind: str  # of cue that it would reveal
    breadth: float  # how much is exchanged; the narrowest exchange that carries the label along names the cue
    mix: Callable[[Side, Side], Array]  # recipient, donor


def _pasted(region: Callable[[int, int], Array]) -> Callable[[Side, Side], Array]:
    """An exchange of the pixels of a fixed region."""

    def mix(recipient: Side, donor: Side) -> Array:
        chosen = region(*recipient.pixels.shape[:2])
        return np.where(chosen[..., None], donor.pixels, recipient.pixels)

    return mix


def frame_region(height: int, width: int, share: float = FRAMES["frame"]) -> Array:
    """The outermost pixels."""
    inner = np.zeros((height, width), dtype=np.bool_)
    rows, columns = max(1, round(height * share)), max(1, round(width * share))
    inner[rows:-rows, columns:-columns] = True
    return ~inner


def corner_region(height: int, width: int, corner: str | None = None) -> Array:
    """A square in one corner, or in all four."""
    rows, columns = round(height * CORNER), round(width * CORNER)
    down, across = np.arange(height), np.arange(width)
    upper, left, lower, right = down < rows, across < columns, down >= height - rows, across >= width - columns
    if corner is None:
        return np.asarray(np.logical_and.outer(upper | lower, left | right))
    return np.asarray(np.logical_and.outer(upper if "upper" in corner else lower, left if "left" in corner else right))


def surround_region(height: int, width: int) -> Array:
    """Everything but a rectangle in the middle."""
    down, across = (abs((np.arange(size) + 0.5) / size - 0.5) * 2 for size in (height, width))
    return np.asarray(~np.logical_and.outer(down < CENTRE, across < CENTRE))


def band_region(height: int, width: int, start: float, *, across: bool) -> Array:
    """A band from side to side that begins at `start`, from 0 to 1."""
    centres = (np.arange(height if across else width) + 0.5) / (height if across else width)
    inside = (centres >= start) & (centres < start + BAND)
    return np.asarray(np.broadcast_to(inside[:, None] if across else inside, (height, width)))


def _mean_colour(recipient: Side, donor: Side) -> Array:
    shift = donor.pixels.mean(axis=(0, 1)) - recipient.pixels.mean(axis=(0, 1))
    return np.asarray(np.clip(np.round(recipient.pixels + shift), 0, 255), np.uint8)


def coarse(pixels: Array, times: float = 1.0) -> Array:
    """What is left when structures finer than a few pixels are blurred away."""
    sigma = times * max(FINE_SIGMA * min(pixels.shape[:2]), LEAST_SIGMA)
    return np.asarray(ndimage.gaussian_filter(pixels.astype(np.float32), (sigma, sigma, 0), mode="reflect"))


def _fine_residual(recipient: Side, donor: Side) -> Array:
    return np.asarray(np.clip(np.round(recipient.coarse + donor.shuffled_fine), 0, 255), np.uint8)


def shuffled(pixels: Array, order: Array) -> Array:
    """The same with its patches in another order; a rest at the right and at the bottom stays."""
    count = round(len(order) ** 0.5)
    rows, columns = (size // count for size in pixels.shape[:2])
    result = pixels.copy()
    patches = pixels[: rows * count, : columns * count].reshape(count, rows, count, columns, -1).swapaxes(1, 2)
    moved = patches.reshape(len(order), rows, columns, -1)[order].reshape(patches.shape)
    result[: rows * count, : columns * count] = moved.swapaxes(1, 2).reshape(rows * count, columns * count, -1)
    return result


def _windows(name: str) -> Callable[[Side, Side], Array]:
    """The places where either image has its strongest evidence."""
    return lambda recipient, donor: _squares(recipient, donor, [recipient.windows[name], donor.windows[name]])


def _squares(recipient: Side, donor: Side, windows: Sequence[Window]) -> Array:
    result = recipient.pixels.copy()
    for window in windows:
        result[window] = donor.pixels[window]
    return result


def band_name(start: float, *, across: bool) -> str:
    """What a band is called, by its middle."""
    percent = round(100 * (start + BAND / 2))
    return f"band across, {percent} % down" if across else f"band down, {percent} % across"


EXCHANGES: tuple[Exchange, ...] = (
    Exchange("mean colour", "colour", 0.0, _mean_colour),
    Exchange("fine residual", "fine pattern", 0.005, _fine_residual),
    *(Exchange(f"{name} window", "mark", 2 * side * side, _windows(name)) for name, side in WINDOWS.items()),
    *(Exchange(name, "border", 1 - (1 - 2 * share) ** 2, _pasted(partial(frame_region, share=share)))
      for name, share in FRAMES.items()),
    Exchange("corners", "corner", 0.25, _pasted(corner_region)),
    *(Exchange(corner, "corner", CORNER * CORNER, _pasted(partial(corner_region, corner=corner)))
      for corner in CORNERS),
    *(Exchange(band_name(start, across=across), "place", BAND,
               _pasted(partial(band_region, start=start, across=across)))
      for start, across in product(BANDS, (True, False))),
    Exchange("surround", "background", 0.64, _pasted(surround_region)),
    Exchange("small windows elsewhere", CONTROL, 0.0,
             lambda recipient, donor: _squares(recipient, donor, [recipient.elsewhere, donor.elsewhere])),
    Exchange("the recipient's small window", CONTROL, 0.0,
             lambda recipient, donor: _squares(recipient, donor, [recipient.windows["small"]])),
)  # fmt: skip


def strongest_window(heatmap: Array, fraction: float) -> Window:
    """The square with the most evidence; negative evidence does not count."""
    height, width = heatmap.shape
    rows, columns = max(1, round(height * fraction)), max(1, round(width * fraction))
    sums = np.pad(np.maximum(heatmap, 0).astype(np.float64), ((1, 0), (1, 0))).cumsum(axis=0).cumsum(axis=1)
    inside = sums[rows:, columns:] - sums[:-rows, columns:] - sums[rows:, :-columns] + sums[:-rows, :-columns]
    top, left = np.unravel_index(int(inside.argmax()), inside.shape)
    return slice(int(top), int(top) + rows), slice(int(left), int(left) + columns)
