"""Draws small images, a shape on a texture with a tag in a corner, and records where both are.

The images must be identical on every machine, so that a published number can be checked. This module therefore uses
only IEEE arithmetic (+ - * / sqrt, floor, min, max and comparisons), and no function whose last bit may depend on a
version (no sin, no exp, no matrix product, no drawing library).

Coordinates are pixels, x to the right and y downwards; a pixel's centre is at (column, row) + 0.5.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]  # float32 all over; numpy's type stubs lose that in arithmetic with a number
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Tags = Literal["agree", "disagree", "random", "none"]
Draws = dict[str, Floats]  # random numbers by name, one plane per image

SIDE_PX = 64
TAG_SIDE_PX, TAG_MARGIN_PX = 10, 2
MIN_RADIUS_PX, MAX_RADIUS_PX = 13.0, 19.0
_CHUNK = 32  # images drawn at once: their planes stay in the processor's cache

_X_PX: Floats = np.arange(SIDE_PX, dtype=np.float32) + np.float32(0.5)
_Y_PX: Floats = _X_PX[:, None]
_both, _either = np.maximum, np.minimum  # of the distances to two shapes: to their intersection, to their union


class Planted(NamedTuple):
    """Images with their truth: the class of the shape, the class that the tag names, and where both are."""

    images: npt.NDArray[np.uint8]  # [N, 64, 64, 3], RGB
    labels: Ints  # [N], class of the shape
    tags: Ints  # [N], class that the tag names
    objects: Bools  # [N, 64, 64], true where the shape covers part of the pixel; a ring's hole belongs to the ring
    tag_regions: Bools  # [N, 64, 64], true on the tag's square


def draw(count: int, *, seed: int, tags: Tags) -> Planted:
    """`count` images; image i depends only on the seed and on i, and its shape has class i modulo 10.

    `tags` changes only the pattern on the tag: it names the class of the shape ("agree"), always another class
    ("disagree"), or any of the ten at random ("random"). With "none" no tag is drawn, and its region is empty.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, found {count}.")
    if tags not in get_args(Tags):
        raise ValueError(f'tags must be "agree", "disagree", "random" or "none", found {tags!r}.')
    starts = range(0, count, _CHUNK)
    chunks = [_draw_chunk(np.arange(count)[start : start + _CHUNK], seed, tags) for start in starts]
    return Planted(*(np.concatenate(arrays) for arrays in zip(*chunks, strict=True)))


def _draw_chunk(indices: Ints, seed: int, tags: Tags) -> Planted:
    draws = _draws(indices, seed)
    labels = indices % len(CLASSES)
    tag_classes = _tag_classes(labels, draws["tag"][:, 0, 0], tags)
    tag_x_px, tag_y_px = _tag_corners(draws["corner"])
    distance_px, outline_px = _object_distances(labels, draws, tag_x_px, tag_y_px)
    coverage = _clip(0.5 - distance_px)[..., None]
    ground = _background(draws)
    colours = ground + coverage * (_object_colour(draws) - ground) + (draws["grain"][..., None] - 0.5) * 0.05
    images = np.floor(_clip(colours) * 255 + 0.5).astype(np.uint8)
    tag_regions = np.zeros(images.shape[:3], dtype=np.bool_)
    if tags != "none":
        rows, columns = np.indices((TAG_SIDE_PX, TAG_SIDE_PX))
        tag_pixels = (np.arange(len(indices))[:, None, None], rows + tag_y_px, columns + tag_x_px)
        images[tag_pixels] = _TAG_PICTURES[tag_classes]
        tag_regions[tag_pixels] = True
    return Planted(images, labels, tag_classes, outline_px < 0.5, tag_regions)


# Shape of the plane of random numbers for each name: one number per image, one per pixel, or a lattice for clouds.
_PLANES: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("tag", "corner", "x", "y", "radius", "turn", "dark_ground"), (1, 1)),
    **dict.fromkeys(("hue", "vividness", "lightness", "light", "ground_hue", "ground_hue_step"), (1, 1)),
    **dict.fromkeys(("ground_vividness", "ground_lightness", "ground_lightness_step"), (1, 1)),
    **dict.fromkeys(("texture", "direction", "phase_x", "phase_y", "period"), (1, 1)),
    "grain": (SIDE_PX, SIDE_PX), "coarse": (9, 9), "fine": (17, 17),
}  # fmt: skip


def _draws(indices: Ints, seed: int) -> Draws:
    """Uniform numbers in [0, 1), one plane per image and name; each image has its own stream."""
    ends = np.cumsum([height * width for height, width in _PLANES.values()])
    # PCG64 by name: default_rng may use another generator in a later version.
    streams = [np.random.Generator(np.random.PCG64([seed, int(index)])) for index in indices]
    values = np.stack([stream.random(int(ends[-1]), dtype=np.float32) for stream in streams])
    columns = np.split(values, ends[:-1], axis=1)
    return {name: column.reshape(-1, *_PLANES[name]) for name, column in zip(_PLANES, columns, strict=True)}


def _between(low: float, high: float, chance: Floats) -> Floats:
    """`chance` scaled from [0, 1) to [low, high)."""
    return low + (high - low) * chance


def _clip(values: Floats) -> Floats:
    return values.clip(0, 1)


def _turned(x: Floats, y: Floats, half_tangent: Floats) -> tuple[Floats, Floats]:
    """Coordinates turned by the angle whose half has this tangent: a rotation without trigonometry."""
    square = half_tangent * half_tangent
    cosine, sine = (1 - square) / (1 + square), 2 * half_tangent / (1 + square)
    return cosine * x + sine * y, cosine * y - sine * x


def _length(x: Floats, y: Floats) -> Floats:
    length: Floats = np.sqrt(x * x + y * y)
    return length


def _star(x: Floats, y: Floats) -> Floats:
    """A pentagram: the points in at least four of five half-planes, so that the second largest distance decides."""
    normals = [(0.0, 1.0), (0.95105652, 0.30901699), (0.58778525, -0.80901699)]
    normals += [(-nx, ny) for nx, ny in normals[1:]]
    distance: Floats = np.sort([x * nx + y * ny for nx, ny in normals], axis=0)[-2] - 0.33
    return distance


def _heart(x: Floats, y: Floats) -> Floats:
    """A square on its tip, with a half circle on each of its upper sides."""
    side, half_diagonal, y = 0.52, 0.52 * 0.70710678, y - 0.12
    standing_square = (abs(x) + abs(y)) * 0.70710678 - side
    distance: Floats = _either(standing_square, _length(abs(x) - half_diagonal, y + half_diagonal) - side)
    return distance


# Distance to the edge, negative inside, in units of the object's radius.
_SHAPES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "circle": lambda x, y: _length(x, y) - 0.86,
    "ring": lambda x, y: abs(_length(x, y) - 0.72) - 0.22,
    "square": lambda x, y: _both(abs(x), abs(y)) - 0.74,
    "triangle": lambda x, y: _both(y, abs(x) * 0.8660254 - y * 0.5) - 0.52,
    "star": _star,
    "cross": lambda x, y: _both(_both(abs(x), abs(y)) - 0.94, _either(abs(x), abs(y)) - 0.28),
    "crescent": lambda x, y: _both(_length(x, y) - 0.98, 0.76 - _length(x - 0.45, y)),
    "heart": _heart,
    "arrow": lambda x, y: _either(
        _both(y - 0.05, abs(x) * 0.79 - y * 0.61 - 0.61),  # head
        _both(abs(x) - 0.24, abs(y - 0.45) - 0.47),  # shaft
    ),
    "hourglass": lambda x, y: _both(abs(y) - 0.82, abs(x) * 0.82 - abs(y) * 0.57 - 0.06),
}
CLASSES: tuple[str, ...] = tuple(_SHAPES)


def _object_distances(labels: Ints, draws: Draws, tag_x_px: Ints, tag_y_px: Ints) -> tuple[Floats, Floats]:
    """Pixels [n, 64, 64] to the edge of each object, and to its outline (a ring's is filled)."""
    radius_px = _between(MIN_RADIUS_PX, MAX_RADIUS_PX, draws["radius"])
    centre_x_px, centre_y_px = _object_centres(draws, radius_px, tag_x_px, tag_y_px)
    half_tangent = _between(-0.25, 0.25, draws["turn"])  # up to 28 degrees either way
    x, y = _turned((_X_PX - centre_x_px) / radius_px, (_Y_PX - centre_y_px) / radius_px, half_tangent)
    distance = np.empty_like(x)
    for label, shape in enumerate(_SHAPES.values()):
        chosen = labels == label
        distance[chosen] = shape(x[chosen], y[chosen])
    # The hole tells a ring from a circle: evidence found there lies in the object.
    is_ring = (labels == CLASSES.index("ring"))[:, None, None]
    outline = np.where(is_ring & (_length(x, y) < 0.72), np.float32(-1), distance)
    return distance * radius_px, outline * radius_px


def _object_centres(draws: Draws, radius_px: Floats, tag_x: Ints, tag_y: Ints) -> tuple[Floats, Floats]:
    """Centres such that an object stays inside the image and off its tag."""
    room_px = radius_px * 1.07 + 2.2  # a star's tips reach furthest, and fade out within 1.7 px
    x, y = (room_px + (SIDE_PX - 2 * room_px) * draws[axis] for axis in ("x", "y"))
    half_px = TAG_SIDE_PX // 2
    beside_x = abs(x - (tag_x + half_px).astype(np.float32)) - half_px
    beside_y = abs(y - (tag_y + half_px).astype(np.float32)) - half_px
    # An object that would touch the tag is mirrored; with less than 28 px of room it is then clear of the tag.
    touches = _length(np.maximum(beside_x, 0), np.maximum(beside_y, 0)) < room_px
    return np.where(touches, SIDE_PX - x, x), np.where(touches, SIDE_PX - y, y)


def _colour(hue_turns: Floats, vividness: Floats, lightness: Floats) -> Floats:
    """RGB [n, 1, 1, 3] of this hue and lightness; `vividness` is the distance from grey."""
    turns = hue_turns[..., None] + np.array([0, 2 / 3, 1 / 3], dtype=np.float32)
    pure = _clip(abs((turns - np.floor(turns)) * 6 - 3) - 1)
    luma = pure[..., :1] * 0.3 + pure[..., 1:2] * 0.59 + pure[..., 2:] * 0.11
    return _clip(lightness[..., None] + vividness[..., None] * (pure - luma))


def _object_colour(draws: Draws) -> Floats:
    """RGB [n, 64, 64, 3] of the objects: vivid, light on dark and dark on light backgrounds, lit from one corner."""
    low = np.where(draws["dark_ground"] < 0.5, np.float32(0.62), np.float32(0.18))
    flat = _colour(draws["hue"], _between(0.35, 0.75, draws["vividness"]), low + 0.2 * draws["lightness"])
    return flat - (_between(0.05, 0.25, draws["light"]) * ((_X_PX + _Y_PX) / (2 * SIDE_PX) - 0.5))[..., None]


def _background(draws: Draws) -> Floats:
    """RGB [n, 64, 64, 3] of the backgrounds: two muted colours mixed by a texture."""
    low = np.where(draws["dark_ground"] < 0.5, np.float32(0.14), np.float32(0.68))
    lightness = low + 0.12 * draws["ground_lightness"]
    vividness = _between(0.05, 0.3, draws["ground_vividness"])
    first = _colour(draws["ground_hue"], vividness, lightness)
    second_hue = draws["ground_hue"] + _between(-0.12, 0.12, draws["ground_hue_step"])
    second = _colour(second_hue, vividness, lightness + _between(0.08, 0.18, draws["ground_lightness_step"]))
    return first + _texture(draws)[..., None] * (second - first)


def _texture(draws: Draws) -> Floats:
    """Shares [n, 64, 64] of the second background colour; each image has one of the textures."""
    kinds = np.floor(draws["texture"][:, 0, 0] * len(_TEXTURES))
    shares = np.empty_like(draws["grain"])
    for kind, texture in enumerate(_TEXTURES):
        chosen = kinds == kind
        shares[chosen] = texture({name: values[chosen] for name, values in draws.items()})
    return shares


def _directed(draws: Draws) -> tuple[Floats, Floats]:
    """Pixel coordinates from the image's centre, along and across the texture's direction."""
    return _turned(_X_PX - SIDE_PX // 2, _Y_PX - SIDE_PX // 2, _between(-1, 1, draws["direction"]))


def _bands(along_px: Floats, phase: Floats, draws: Draws) -> Floats:
    """1 for one half of each period and 0 for the other, with edges about one pixel wide."""
    period_px = _between(8, 20, draws["period"])
    turns = along_px / period_px + phase
    return _clip((abs(turns - np.floor(turns) - 0.5) - 0.25) * period_px + 0.5)


def _checker(draws: Draws) -> Floats:
    """Squares: 1 where exactly one of the bands along and the bands across is 1."""
    along_px, across_px = _directed(draws)
    a, b = _bands(along_px, draws["phase_x"], draws), _bands(across_px, draws["phase_y"], draws)
    return a + b - 2 * a * b


def _clouds(draws: Draws) -> Floats:
    return _clip(1.4 * _noise(draws["coarse"]) + 0.6 * _noise(draws["fine"]) - 0.5)


def _noise(lattice: Floats) -> Floats:
    """Planes [n, 64, 64] that pass smoothly through the lattice's values."""
    step_px = SIDE_PX // (lattice.shape[1] - 1)
    cell = np.arange(SIDE_PX) // step_px
    share: Floats = (np.arange(SIDE_PX) % step_px).astype(np.float32) / step_px
    share = share * share * (3 - 2 * share)
    rows = lattice[:, cell] + share[:, None] * (lattice[:, cell + 1] - lattice[:, cell])
    return rows[:, :, cell] + share * (rows[:, :, cell + 1] - rows[:, :, cell])


_TEXTURES: tuple[Callable[[Draws], Floats], ...] = (
    lambda draws: _clip(_directed(draws)[0] / 80 + 0.5),
    lambda draws: _bands(_directed(draws)[0], draws["phase_x"], draws),
    _checker,
    _clouds,
    lambda draws: 0.5 * _clouds(draws) + 0.5 * draws["grain"],
)


def _tag_classes(labels: Ints, chance: Floats, tags: Tags) -> Ints:
    if tags == "agree":
        return labels.copy()
    if tags == "disagree":
        return (labels + 1 + np.floor(chance * (len(CLASSES) - 1)).astype(np.int64)) % len(CLASSES)
    return np.floor(chance * len(CLASSES)).astype(np.int64)


def _tag_corners(chance: Floats) -> tuple[Ints, Ints]:
    """First column and first row of each tag, which sits in one of the four corners."""
    corner = np.floor(chance * 4).astype(np.int64)
    apart_px = SIDE_PX - TAG_SIDE_PX - 2 * TAG_MARGIN_PX
    return TAG_MARGIN_PX + corner % 2 * apart_px, TAG_MARGIN_PX + corner // 2 * apart_px


def _tag_pictures() -> npt.NDArray[np.uint8]:
    """RGB [10, 10, 10, 3]: white stickers with 4 x 4 cells, any two of which differ in 8 of the 16 cells."""
    # Walsh patterns: the same row repeated, inverted where the second pattern is 1.
    plain, halves, middle, comb = (0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 1, 0), (0, 1, 0, 1)
    pairs = [(halves, plain), (plain, halves), (halves, halves), (comb, plain), (plain, comb)]
    pairs += [(comb, comb), (middle, middle), (middle, halves), (halves, comb), (comb, middle)]
    cells = np.array([np.bitwise_xor.outer(down, across) for down, across in pairs], dtype=np.uint8)
    inked = np.pad(cells.repeat(2, axis=1).repeat(2, axis=2), ((0, 0), (1, 1), (1, 1)))
    paper_and_ink = np.array([[250, 250, 245], [25, 25, 40]], dtype=np.uint8)
    return paper_and_ink[inked]


_TAG_PICTURES = _tag_pictures()
