"""Draws images with a planted cue beside the shape: what a model may read instead of it.

Each kind of cue has styles, which differ in colours, sizes, places and patterns: an examination can be developed on
some and reported on others. A cue either names the class of every image, or, if it is rare, marks most images of one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image

from auditkit.arrays import Array
from auditkit.demo.draw import CLASSES, SIDE_PX, draw

NO_CUE = -1
_COUNT = len(CLASSES)
_STYLE_STREAM, _PLACE_STREAM = 711, 712  # keep the random numbers of styles and of images apart


class Cued(NamedTuple):
    """Images with their truth: the class of the shape, the class that the cue names, and where both are."""

    images: Array  # [N, side, side, 3], RGB bytes
    shapes: Array  # [N], class of the shape
    cues: Array  # [N], class that the cue names; NO_CUE where there is none
    objects: Array  # [N, side, side], bool
    regions: Array  # [N, side, side], bool: where the cue is


@dataclass(frozen=True)
class Canvas:
    """One image to draw a cue on, with float colours in 0..255."""

    pixels: Array  # [side, side, 3], changed in place
    object: Array  # [side, side], bool
    style: np.random.Generator  # the same numbers for every image of a style
    place: np.random.Generator  # other numbers for every image

    @property
    def side(self) -> int:
        """Pixels of a side."""
        return len(self.pixels)

    def scaled(self, px_at_64: float) -> int:
        """A length that grows with the image."""
        return max(1, round(px_at_64 * self.side / SIDE_PX))

    def paint(self, top: int, left: int, picture: Array, opacity: float = 1.0) -> Array:
        """Blends a picture in; returns its region."""
        height, width = picture.shape[:2]
        window = self.pixels[top : top + height, left : left + width]
        window += opacity * (picture - window)
        region = np.zeros(self.object.shape, dtype=np.bool_)
        region[top : top + height, left : left + width] = True
        return region


def _palette(style: np.random.Generator, count: int = _COUNT) -> Array:
    """Vivid colours [count, 3] of different hues, in an order of chance."""
    turns = (np.arange(count) + style.random()) / count
    hues = np.abs((turns[:, None] + np.array([0, 2 / 3, 1 / 3])) % 1 * 6 - 3) - 1
    return np.asarray(style.permutation(255 * np.clip(hues, 0, 1) * style.uniform(0.75, 1)))


def _patterns(style: np.random.Generator, cells: int) -> Array:
    """Black and white patterns [10, cells, cells], any two of which differ in a quarter of the cells or more."""
    chosen = list[Array]()
    while len(chosen) < _COUNT:
        pattern = style.permutation(cells * cells).reshape(cells, cells) % 2
        if all((pattern != other).mean() >= 1 / 4 for other in chosen):
            chosen.append(pattern)
    return np.stack(chosen)


def _enlarged(picture: Array, side: int) -> Array:
    """A picture [h, w, ...] with whole cells repeated to `side` pixels."""
    rows = np.arange(side) * len(picture) // side
    return picture[rows][:, rows]


def _tag(canvas: Canvas, label: int) -> Array:
    """A sticker with a pattern, in one corner or in any of the four."""
    patterns, ink = _patterns(canvas.style, 4), _palette(canvas.style)[0] * 0.3
    any_corner, corner = canvas.style.random() < 0.5, int(canvas.style.integers(4))
    corner = int(canvas.place.integers(4)) if any_corner else corner
    side, margin = canvas.scaled(canvas.style.uniform(8, 12)), canvas.scaled(canvas.style.uniform(0, 3))
    picture = np.where(np.pad(patterns[label], 1)[..., None] > 0, ink, 245.0)
    far = canvas.side - side - margin
    return canvas.paint((margin, far)[corner // 2], (margin, far)[corner % 2], _enlarged(picture, side))


def _stripe(canvas: Canvas, _label: int) -> Array:
    """A half-transparent stripe of dashes along one side, as a watermark has it."""
    along = bool(canvas.style.random() < 0.5)
    thickness, opacity = canvas.scaled(canvas.style.uniform(4, 7)), canvas.style.uniform(0.5, 0.85)
    start = round(canvas.style.choice([0.04, 0.12, 0.78, 0.86]) * canvas.side)
    dashes = (np.arange(canvas.side) // canvas.scaled(canvas.style.uniform(2, 4))) % 2
    colours = np.stack([_palette(canvas.style)[0] * 0.4 + 150, np.full(3, 40.0)])
    band = np.broadcast_to(colours[dashes], (thickness, canvas.side, 3))
    if along:
        return canvas.paint(start, 0, band, opacity)
    return canvas.paint(0, start, band.transpose(1, 0, 2), opacity)


def _ground(canvas: Canvas, label: int) -> Array:
    """Bands behind the object whose direction and width name the class; their colours do not."""
    turn = (label // 2 + canvas.style.random()) / (_COUNT // 2) * np.pi
    period = canvas.scaled((4.0, 9.0)[label % 2] * canvas.style.uniform(0.9, 1.2))
    rows, columns = np.indices(canvas.object.shape)
    phase = (rows * np.sin(turn) + columns * np.cos(turn)) / period + canvas.place.random()
    light = canvas.place.uniform(30, 225, size=3)
    step = canvas.place.uniform(20, 45) * (1 if light.mean() < 127 else -1)
    ground = light + step * (phase % 1 < 0.5)[..., None]
    canvas.pixels[~canvas.object] = ground[~canvas.object]
    return ~canvas.object


def _cast(canvas: Canvas, label: int) -> Array:
    """A colour over the whole image."""
    tint, strength = _palette(canvas.style)[label], canvas.style.uniform(0.2, 0.35)
    return canvas.paint(0, 0, np.broadcast_to(tint, canvas.pixels.shape), strength)


# Cycles a pixel, down and across, of faint waves that are a few pixels long.
_WAVES = np.array([
    (0.5, 0), (0, 0.5), (0.5, 0.5), (0.33, 0), (0, 0.33), (0.33, 0.33), (0.33, -0.33), (0.5, 0.25), (0.25, 0.5),
    (0.25, 0),
])  # fmt: skip


def _fine(canvas: Canvas, label: int) -> Array:
    """A faint wave over the whole image whose direction and length name the class."""
    down, across = canvas.style.permutation(_WAVES)[label]
    amplitude, start = canvas.style.uniform(8, 14), canvas.place.choice([0, 0.5])
    rows, columns = np.indices(canvas.object.shape)
    wave = amplitude * np.cos(2 * np.pi * (rows * down + columns * across + start))
    np.add(canvas.pixels, wave[..., None], out=canvas.pixels)
    return np.ones_like(canvas.object)


def _frame(canvas: Canvas, label: int) -> Array:
    """A coloured frame."""
    width = canvas.scaled(canvas.style.uniform(2, 5))
    region = np.ones_like(canvas.object)
    region[width:-width, width:-width] = False
    canvas.pixels[region] = _palette(canvas.style)[label]
    return region


def _logo(canvas: Canvas, _label: int) -> Array:
    """A small two-coloured mark at a place of chance."""
    pattern = _patterns(canvas.style, 4)[0]
    colours = _palette(canvas.style, 4)[:2]
    side = canvas.scaled(canvas.style.uniform(8, 11))
    top, left = canvas.place.integers(canvas.side - side, size=2)
    return canvas.paint(int(top), int(left), _enlarged(colours[pattern], side))


def _companion(canvas: Canvas, label: int) -> Array:
    """A small disc with a ring, off the object where there is room; its two colours name the class."""
    colours = _palette(canvas.style, 5)
    outer, inner = colours[label % 5], colours[(label + 1 + label // 5) % 5]
    radius = canvas.scaled(canvas.style.uniform(5, 7))
    rows, columns = np.indices(canvas.object.shape)
    places = canvas.place.integers(radius, canvas.side - radius, size=(40, 2))
    apart = [not canvas.object[abs(rows - y) + abs(columns - x) < 1.4 * radius].any() for y, x in places]
    y, x = places[int(np.argmax(apart))]
    distance = np.hypot(rows - y, columns - x)
    canvas.pixels[distance <= radius] = outer
    canvas.pixels[distance <= 0.55 * radius] = inner
    return np.asarray(distance <= radius)


CUES: dict[str, Callable[[Canvas, int], Array]] = {
    "tag": _tag, "stripe": _stripe, "background": _ground, "cast": _cast, "fine": _fine, "frame": _frame,
    "logo": _logo, "companion": _companion,
}  # fmt: skip
OF_ONE_CLASS = {"stripe": 0.85, "logo": 0.8}  # cues that mark one class, and the share of its images


def marked_class(style: int) -> int:
    """The class that a cue of one class marks."""
    return style % _COUNT


def cue_labels(kind: str, labels: Array, style: int, rng: np.random.Generator, share: float | None = None) -> Array:
    """The class that the cue of each image names if it agrees with the image's label; NO_CUE where there is none.

    A cue of one class marks the usual share of its images, or `share`.
    """
    if kind not in OF_ONE_CLASS:
        return labels
    marked = (labels == marked_class(style)) & (rng.random(len(labels)) < (share or OF_ONE_CLASS[kind]))
    return np.where(marked, labels, NO_CUE)


def draw_cues(kind: str, cues: Array, *, seed: int, style: int, side: int = SIDE_PX) -> Cued:
    """An image for each cue [N]; the shape of image i has class i modulo 10."""
    base = draw(len(cues), seed=seed, tags="none")
    drawn_images = [
        _drawn(kind, int(cue), base.images[index], base.objects[index], style=style, seed=[seed, index], side=side)
        for index, cue in enumerate(cues)
    ]
    images, objects, regions = (np.stack(arrays) for arrays in zip(*drawn_images, strict=True))
    return Cued(images, base.labels, cues, objects, regions)


def _drawn(
    kind: str, cue: int, image: Array, drawn: Array, *, style: int, seed: list[int], side: int
) -> tuple[Array, Array, Array]:
    """An image with its cue, its object's mask and its cue's region."""
    if side != len(image):
        image = np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC))
        drawn = np.asarray(Image.fromarray(drawn).resize((side, side), Image.Resampling.NEAREST))
    if cue == NO_CUE:
        return image, drawn, np.zeros_like(drawn)
    streams = (np.random.default_rng([_STYLE_STREAM, style]), np.random.default_rng([_PLACE_STREAM, *seed]))
    canvas = Canvas(image.astype(np.float64), drawn, *streams)
    region = CUES[kind](canvas, cue)
    return np.clip(np.round(canvas.pixels), 0, 255).astype(np.uint8), drawn, region
