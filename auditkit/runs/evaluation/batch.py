"""A unit of work made ready: its pictures, its maps as ranks, and who uses them.

Nothing here asks the model, so the next units are prepared while one runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.alignment import to_model_input
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset, Decoded
from auditkit.data.ranks import Order, Ties, map_seed
from auditkit.errors import BadInput
from auditkit.methods.controls import CONTROLS
from auditkit.metrics.localisation import box_region, iou, kept_first, pointing_hit
from auditkit.metrics.saliency_metric import Box, boxes, component_box
from auditkit.metrics.similarity import fingerprint, is_same_map, outline
from auditkit.model import preprocessing
from auditkit.model.card import Card
from auditkit.model.signature import Signature
from auditkit.runs.evaluation.infills import Infills, Places
from auditkit.runs.evaluation.settings import CONTROL, NO_LABEL, NO_MAP, Evaluation, Lane
from auditkit.runs.summary.row_table import CONSTANT, ONE_MAP, TIES

HEAVY_TIES = 0.5  # share of tied pixels from which a map is flagged


@dataclass(frozen=True)
class Placed:
    """A map in the bank of ranks: one entry for each order that its ties may take."""

    orders: Mapping[Ties, int]  # position by tie rule
    others: tuple[int, ...]  # further shuffles of the ties; none where nothing is tied
    tied: float
    digest: str  # of the order that the map gives, ties and all: maps that differ in scale are alike
    outline: Array  # by which maps that differ by noise are alike
    top: bytes  # fingerprint of it


@dataclass(frozen=True)
class Use:
    """One (image, label, source) whose figure is wanted, and the map that serves it."""

    image: int  # position in the unit
    label: int
    source: str
    map: Placed
    flags: tuple[str, ...]
    chief: bool  # whether figures of one label are about this one: it is predicted, or named
    boxes: tuple[Box, ...] = ()  # of the saliency metric, for chief labels
    pointing: float = np.nan  # where the image has a region, for the label that it shows
    iou: float = np.nan


@dataclass(frozen=True)
class Prepared:
    """Banks and uses of one unit."""

    pictures: Array  # images, then infills
    ranks: Array
    infills: Mapping[str, Places]  # by name
    uses: tuple[Use, ...]
    missing: tuple[tuple[int, int, str, str], ...]  # image, label, source, and why there is no figure


@dataclass(frozen=True)
class Seen:
    """The images of a unit, decoded once."""

    ids: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]  # height, width of each picture as it came
    pixels: Array  # uint8 [images, height, width, channels], what the network sees
    shown: Array  # the same as the network takes it
    truth: tuple[int | None, ...]  # the label that each image was given with
    regions: tuple[Array | None, ...]  # where its object is, a mask at the model's resolution


def look(unit: Sequence[int], images: Dataset, card: Card, signature: Signature) -> Seen:
    """Decode and preprocess the images at those positions."""
    decoded = [_decoded(images, position, card) for position in unit]
    seen = np.stack([image.pixels for image in decoded])
    return Seen(
        tuple(images.ids[position] for position in unit), tuple(image.size for image in decoded), seen,
        preprocessing.normalised(card, seen, signature.layout, signature.dtype),
        tuple(None if images.labels is None else int(images.labels[position]) for position in unit),
        tuple(_region(images, position, card, image) for position, image in zip(unit, decoded, strict=True)),
    )  # fmt: skip


def _decoded(images: Dataset, position: int, card: Card) -> Decoded:
    try:
        return images.decode(position, card)
    except BadInput as error:
        raise BadInput(f"image '{images.ids[position]}': {error}") from None


def _region(images: Dataset, position: int, card: Card, image: Decoded) -> Array | None:
    """Where the object lies in what the network sees; its mask goes before its box."""
    region, size = image.mask, image.size
    if region is None and images.boxes is not None and np.isfinite(images.boxes[position]).all():
        region = box_region(tuple(images.boxes[position]), *size)
    if region is None:
        return None
    if region.shape != size:
        found = f"{region.shape[0]}x{region.shape[1]}"
        raise BadInput(f"the mask of '{images.ids[position]}' has {found} pixels, its picture {size[0]}x{size[1]}.")
    return np.asarray(to_model_input(region.astype(np.float32), "original-image", card, size) >= 0.5)


def prepare(
    seen: Seen, card: Card, labels: Sequence[Array], predicted: Array, bundles: Mapping[str, HeatmapSet],
    settings: Evaluation, lanes: Sequence[Lane], infills: Infills,
) -> Prepared:  # fmt: skip
    """The banks and uses of a unit's images, whose label sets and predictions are known."""
    bank, uses, missing = _Maps(settings, lanes), list[Use](), list[tuple[int, int, str, str]]()
    for place, image in enumerate(seen.ids):
        wanted = [int(label) for label in labels[place]]
        if not wanted:
            controls = [f"{CONTROL}{name}" for name in CONTROLS] if settings.controls else []
            missing += [(place, int(predicted[place]), source, NO_LABEL) for source in (*bundles, *controls)]
            continue
        user = _User(bank, place, image, int(predicted[place]), seen.truth[place], seen.regions[place])
        for source, bundle in bundles.items():
            found, absent = _of_bundle(bundle, image, wanted, card, seen.sizes[place])
            missing += [(place, label, source, NO_MAP) for label in absent]
            uses += user.of(source, found)
            if settings.controls and user.predicted in found and len(wanted) > 1:
                uses += user.of(f"{CONTROL}one-map:{source}", dict.fromkeys(wanted, found[user.predicted]))
        if settings.controls:
            uses += _controls(user, seen.pixels[place], wanted, settings)
    shown, places = [seen.shown], dict[str, Places]()
    for name in dict.fromkeys(rule.infill for lane in lanes for rule in lane.rules):
        new, places[name] = infills.placed(name, seen.ids, seen.shown, sum(map(len, shown)))
        shown.append(new)
    stack = np.stack(bank.stack) if bank.stack else np.zeros((1, *card.size), np.int32)
    return Prepared(np.concatenate(shown), stack, places, tuple(uses), tuple(missing))


class _Maps:
    """The bank of ranks: maps of one image that give the same order stand in it once."""

    def __init__(self, settings: Evaluation, lanes: Sequence[Lane]) -> None:
        self.settings = settings
        self.rules = tuple(dict.fromkeys(rule.ties for lane in lanes for rule in lane.rules))
        self.stack: list[Array] = []
        self._known: dict[tuple[str, str], Placed] = {}

    def place(self, image: str, values: Array) -> Placed:
        """The map's ranks in the bank, its tied share, and its digest."""
        order = Order(values)
        digest = order.digest()
        if (image, digest) not in self._known:
            self._known[image, digest] = self._placed(image, values, order, digest)
        return self._known[image, digest]

    def _placed(self, image: str, values: Array, order: Order, digest: str) -> Placed:
        if not order.tied:
            place = self._add(order.ranks("first"))
            return Placed(dict.fromkeys(self.rules, place), (), 0.0, digest, *self._outline(values, place))
        # The shuffle within ties depends on the order, not on the label: equal maps stay equal.
        seeds = [map_seed(self.settings.seed, image + digest, number) for number in range(self.settings.tie_orders + 1)]
        orders = {rule: self._add(order.ranks(rule, seeds[0])) for rule in self.rules}
        others = tuple(self._add(order.ranks("random", seed)) for seed in seeds[1:])
        return Placed(orders, others, order.tied, digest, *self._outline(values, orders[self.rules[0]]))

    def _outline(self, values: Array, place: int) -> tuple[Array, bytes]:
        held = outline(values, self.stack[place])
        return held, fingerprint(held, values.size, self.settings.seed)

    def _add(self, order: Array) -> int:
        self.stack.append(order)
        return len(self.stack) - 1


@dataclass(frozen=True)
class _User:
    """One image whose maps are put to use."""

    bank: _Maps
    place: int
    image: str
    predicted: int
    truth: int | None
    region: Array | None

    def of(self, source: str, maps: Mapping[int, Array]) -> list[Use]:
        """Uses of a source's maps by label."""
        distinct = {
            id(values): values for values in maps.values()
        }  # a map that serves several labels is looked at once
        known = {key: (self.bank.place(self.image, values), self._boxes(values, key, maps))
                 for key, values in distinct.items()}  # fmt: skip
        alike = len(maps) > 1 and self._alike(maps.get(self.predicted, next(iter(maps.values()))), known)
        return [self._use(source, label, values, *known[id(values)], alike) for label, values in maps.items()]

    def _alike(self, first: Array, known: Mapping[int, tuple[Placed, Any]]) -> bool:
        """Whether the labels share a map."""
        others = [placed.outline for key, (placed, _) in known.items() if key != id(first)]
        return not others or is_same_map(known[id(first)][0].outline, others, first.size)

    def _chief(self, label: int) -> bool:
        return self.bank.settings.named or label == self.predicted

    def _boxes(self, values: Array, key: int, maps: Mapping[int, Array]) -> tuple[Box, ...]:
        wanted = any(self._chief(label) for label, held in maps.items() if id(held) == key)
        return _boxes(values, self.bank.settings.saliency) if wanted else ()

    def _use(self, source: str, label: int, values: Array, placed: Placed, boxes: tuple[Box, ...], alike: bool) -> Use:
        flags = [ONE_MAP] if alike else []
        flags += [CONSTANT] if values.min() == values.max() else []
        flags += [TIES] if placed.tied > HEAVY_TIES else []
        chief = self._chief(label)
        use = (self.place, label, source, placed, tuple(flags), chief, boxes if chief else ())
        if self.region is None or label != (self.predicted if self.truth is None else self.truth):
            return Use(*use)
        # As many of the most important pixels as the object has: no threshold to choose.
        order = self.bank.stack[placed.orders[self.bank.rules[0]]]
        overlap = float(iou(kept_first(order, int(self.region.sum())), self.region))
        return Use(*use, pointing_hit(values, self.region), overlap)


def _boxes(values: Array, rule: str) -> tuple[Box, ...]:
    """The box of the largest component, then those of every delta that is tuned over, as far as they are asked for."""
    component = [component_box(values)] if rule in ("component", "both") else []
    return (*component, *(boxes(values) if rule in ("tuned", "both") else ()))


def _controls(user: _User, pixels: Array, wanted: list[int], settings: Evaluation) -> list[Use]:
    """Uses of the maps that know nothing of the model."""
    uses: list[Use] = []
    for name, (draw, own) in CONTROLS.items():
        if own:
            maps = {label: draw(pixels, map_seed(settings.seed, user.image, label)) for label in wanted}
        else:
            maps = dict.fromkeys(wanted, draw(pixels, map_seed(settings.seed, user.image, 0)))
        uses += user.of(f"{CONTROL}{name}", maps)
    return uses


def _of_bundle(
    bundle: HeatmapSet, image: str, wanted: list[int], card: Card, size: tuple[int, int]
) -> tuple[dict[int, Array], list[int]]:
    """Maps at the model's resolution by label, and the labels that have none."""
    have = set(bundle.labels.get(image, ()))
    found = {label: fitted_map(bundle, image, label, card, size) for label in wanted if label in have}
    return found, [label for label in wanted if label not in have]


def fitted_map(bundle: HeatmapSet, image: str, label: int, card: Card, size: tuple[int, int]) -> Array:
    """A bundle's map at the model's resolution; `size` is the photograph's height and width."""
    values = bundle.get(image, label)
    try:
        return to_model_input(values, bundle.header.frame, card, size)
    except BadInput as error:
        raise BadInput(f"{bundle.path}, image '{image}', label {label}: {error}") from None
