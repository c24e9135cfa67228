"""A unit of work made ready: its pictures, its maps as ranks, and the curves to be run over them.

Nothing here asks the model, so the next unit is prepared while the one before runs.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.data.frames import to_model_input
from auditkit.data.heatmaps import HeatmapSet
from auditkit.data.images import ImageSet
from auditkit.data.ranks import map_seed, ranks, tied_fraction
from auditkit.methods.controls import CONTROLS
from auditkit.model import pictures
from auditkit.model.card import Card
from auditkit.model.signature import Signature
from auditkit.runs.plan import NO_LABEL, NO_MAP, Evaluation

Array = np.ndarray[Any, Any]
HEAVY_TIES = 0.5  # share of tied pixels from which a map is flagged
BLUR_SIGMA_AT_224 = 5.0


@dataclass(frozen=True)
class Use:
    """One (image, label, source) whose figure is wanted, and the map that serves it."""

    image: int  # position in the unit
    label: int
    source: str
    ranks: int  # position in the unit's bank
    tied: float
    flags: tuple[str, ...]
    digest: str  # of the map itself, ties and all


@dataclass(frozen=True)
class Prepared:
    """Banks and uses of one unit."""

    pictures: Array  # images, then infills
    ranks: Array
    infills: tuple[tuple[int, ...], ...]  # for each image of the unit
    uses: tuple[Use, ...]
    missing: tuple[tuple[int, int, str, str], ...]  # image, label, source, and why there is no figure


class _Maps:
    """The bank of ranks: equal maps of one image stand in it once."""

    def __init__(self, settings: Evaluation) -> None:
        self.settings = settings
        self.stack: list[Array] = []
        self._known: dict[tuple[str, str], tuple[int, float]] = {}

    def place(self, image: str, values: Array) -> tuple[int, float, str]:
        """Position of a map's ranks, its tied share, and its digest."""
        plain = np.ascontiguousarray(values, np.float32) + np.float32(0)  # -0.0 becomes 0.0, the same score
        digest = hashlib.blake2b(plain.tobytes(), digest_size=16).hexdigest()
        if (image, digest) not in self._known:
            # The shuffle within ties depends on the map, not on the label: equal maps stay equal.
            seed = map_seed(self.settings.seed, image + digest, 0)
            self.stack.append(ranks(values, self.settings.ties, seed))  # type: ignore[arg-type]
            self._known[image, digest] = len(self.stack) - 1, tied_fraction(values)
        return *self._known[image, digest], digest


@dataclass(frozen=True)
class Seen:
    """The images of a unit, decoded once."""

    ids: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]  # height, width of each picture as it came
    pixels: Array  # uint8 [images, height, width, channels], what the network sees
    shown: Array  # the same as the network takes it


def look(unit: Sequence[int], images: ImageSet, card: Card, signature: Signature) -> Seen:
    """Decode and preprocess the images at those positions."""
    opened = [pictures.as_picture(images.picture(position), signature.channels) for position in unit]
    seen = np.stack([pictures.pixels(card, picture) for picture in opened])
    return Seen(
        tuple(images.ids[position] for position in unit),
        tuple((picture.height, picture.width) for picture in opened),
        seen,
        pictures.normalised(card, seen, signature.layout, signature.dtype),
    )


def prepare(
    seen: Seen, card: Card, signature: Signature, labels: Sequence[Array], predicted: Array,
    bundles: Mapping[str, HeatmapSet], settings: Evaluation, pool: ImageSet,
) -> Prepared:  # fmt: skip
    """The banks and uses of a unit's images, whose label sets and predictions are known."""
    extra, infills = _infills(seen, card, signature, settings, pool)
    maps, uses, missing = _Maps(settings), list[Use](), list[tuple[int, int, str, str]]()
    for place, image in enumerate(seen.ids):
        wanted = [int(label) for label in labels[place]]
        if not wanted:
            controls = [f"control:{name}" for name in CONTROLS] if settings.controls else []
            missing += [(place, int(predicted[place]), source, NO_LABEL) for source in (*bundles, *controls)]
            continue
        for source, bundle in bundles.items():
            found, absent = _of_bundle(bundle, image, wanted, card, seen.sizes[place])
            missing += [(place, label, source, NO_MAP) for label in absent]
            uses += _uses(place, image, source, found, maps)
            chief = int(predicted[place])
            if settings.controls and chief in found and len(wanted) > 1:
                same = dict.fromkeys(wanted, found[chief])
                uses += _uses(place, image, f"control:one-map:{source}", same, maps)
        if settings.controls:
            uses += _controls(place, image, seen.pixels[place], wanted, maps)
    stack = np.stack(maps.stack) if maps.stack else np.zeros((1, *card.size), np.int32)
    return Prepared(np.concatenate([seen.shown, extra]), stack, infills, tuple(uses), tuple(missing))


def _controls(place: int, image: str, pixels: Array, wanted: list[int], maps: "_Maps") -> list[Use]:
    """Uses of the maps that know nothing of the model."""
    uses: list[Use] = []
    for name, (draw, own) in CONTROLS.items():
        seeds = {label: map_seed(maps.settings.seed, image, label if own else 0) for label in wanted}
        uses += _uses(place, image, f"control:{name}", {k: draw(pixels, seed) for k, seed in seeds.items()}, maps)
    return uses


def _of_bundle(
    bundle: HeatmapSet, image: str, wanted: list[int], card: Card, size: tuple[int, int]
) -> tuple[dict[int, Array], list[int]]:
    """Maps at the model's resolution by label, and the labels that have none."""
    have = set(bundle.labels.get(image, ()))
    found = {
        label: to_model_input(bundle.get(image, label), bundle.header.frame, card, size)
        for label in wanted
        if label in have
    }
    return found, [label for label in wanted if label not in have]


def _uses(place: int, image: str, source: str, maps: Mapping[int, Array], bank: _Maps) -> list[Use]:
    placed = {label: bank.place(image, values) for label, values in maps.items()}
    alike = len(placed) > 1 and len({digest for _, _, digest in placed.values()}) == 1
    uses = []
    for label, (position, tied, digest) in placed.items():
        flags = ["same-map-for-all-labels"] if alike else []
        flags += ["constant"] if maps[label].min() == maps[label].max() else []
        flags += ["ties"] if tied > HEAVY_TIES else []
        uses.append(Use(place, label, source, position, tied, tuple(flags), digest))
    return uses


def gray_picture(card: Card, signature: Signature) -> Array:
    """One picture [1, ...] of the card's gray, as the network takes it."""
    gray = np.array(card.gray[::-1] if card.channels == "BGR" else card.gray, np.float64)
    values = (gray * card.scale - np.array(card.mean)) / np.array(card.std)
    if signature.dtype == "uint8":
        values = np.round(values)
    shape = (-1, 1, 1) if signature.layout == "NCHW" else (1, 1, -1)
    return np.broadcast_to(values.reshape(shape), signature.array_shape(1)).astype(signature.dtype)


def blurred(shown: Array, signature: Signature) -> Array:
    """Gaussian blur of pictures, as the network takes them; sigma in proportion to the shorter side."""
    from scipy import ndimage  # noqa: PLC0415 - slow to import

    sigma = BLUR_SIGMA_AT_224 * min(signature.height, signature.width) / 224
    sigmas = (0, 0, sigma, sigma) if signature.layout == "NCHW" else (0, sigma, sigma, 0)
    smooth = ndimage.gaussian_filter(shown.astype(np.float64), sigmas)
    return np.asarray(np.round(smooth) if signature.dtype == "uint8" else smooth).astype(signature.dtype)


def _infills(
    seen: Seen, card: Card, signature: Signature, settings: Evaluation, pool: ImageSet
) -> tuple[Array, tuple[tuple[int, ...], ...]]:
    """Infill pictures, and which of them serve each image (positions behind the images)."""
    count = len(seen.ids)
    if settings.infill == "gray":
        return gray_picture(card, signature), ((count,),) * count
    if settings.infill == "blur":
        return blurred(seen.shown, signature), tuple((count + place,) for place in range(count))
    chosen = [_drawn(image, pool, settings) for image in seen.ids]
    listed = sorted({index for indices in chosen for index in indices})
    extra = np.stack([pictures.pixels(card, pool.picture(index)) for index in listed])
    where = {index: count + place for place, index in enumerate(listed)}
    return (
        pictures.normalised(card, extra, signature.layout, signature.dtype),
        tuple(tuple(where[index] for index in indices) for indices in chosen),
    )


def _drawn(image: str, pool: ImageSet, settings: Evaluation) -> list[int]:
    """Positions in the pool of one image's infills: never the image itself."""
    rng = np.random.default_rng(map_seed(settings.seed, image, -1))
    others = [index for index, name in enumerate(pool.ids) if name != image]
    return [int(others[i]) for i in rng.permutation(len(others))[: settings.draws]]
