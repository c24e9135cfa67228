"""The maps of one unit as ranks of pixels, and which image, label and source each of them serves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from auditkit.arrays import Array
from auditkit.data.alignment import to_model_input
from auditkit.data.bundles import HeatmapSet
from auditkit.data.ranks import Order, Ties, map_seed
from auditkit.errors import BadInput
from auditkit.methods.controls import CONTROLS
from auditkit.metrics.localisation import iou, kept_first, pointing_hit
from auditkit.metrics.saliency_metric import Box, boxes, component_box
from auditkit.metrics.similarity import fingerprint, is_same_map, outline
from auditkit.model.card import Card
from auditkit.runs.evaluation.images import UnitImages
from auditkit.runs.evaluation.plan import EvaluationPlan
from auditkit.runs.evaluation.settings import NO_LABEL, NO_MAP
from auditkit.runs.folder.figures import CONTROL
from auditkit.runs.summary.row_table import CONSTANT, SAME_MAP_FLAG, TIES

HEAVY_TIES = 0.5  # a map is flagged when more of its pixels are tied: chance then decides most of its order


@dataclass(frozen=True)
class RankedMap:
    """A map whose ranks are in the bank, once for each order that its ties may take."""

    positions: Mapping[Ties, int]  # in the bank, by tie rule
    reshuffles: tuple[int, ...]  # positions of further shuffles of the ties; empty where nothing is tied
    tied_fraction: float
    digest: str  # of the order of pixels, ties included: maps that differ only in scale share it
    outline: Array  # two maps that differ only by noise have similar ones
    fingerprint: bytes  # of the outline


@dataclass(frozen=True)
class MapUse:
    """One (image, label, source) to measure, and the map that serves it."""

    image: int  # position in the unit
    label: int
    source: str
    map: RankedMap
    flags: tuple[str, ...]
    is_target: bool  # deletion and the saliency metric are measured for the predicted or listed label
    boxes: tuple[Box, ...]  # of the saliency metric, for target labels
    pointing_hit: float | None = None  # where the image has a region, for the label that it shows
    iou: float | None = None


@dataclass(frozen=True)
class MissingMap:
    """An (image, label, source) without figures, and the reason."""

    image: int  # position in the unit
    label: int
    source: str
    reason: str


def rank_maps(
    plan: EvaluationPlan, images: UnitImages, labels: Sequence[Array], predicted: Array
) -> tuple[Array, list[MapUse], list[MissingMap]]:
    """Ranks [maps, height, width] of the maps of bundles and controls, their uses, and the maps that are missing."""
    settings, card = plan.settings, plan.model.card
    bank, uses, missing = _RankBank(plan), list[MapUse](), list[MissingMap]()
    controls = [f"{CONTROL}{name}" for name in CONTROLS] if settings.controls else []
    for position, name in enumerate(images.ids):
        label_set, prediction = labels[position].tolist(), int(predicted[position])
        if not label_set:
            missing += [MissingMap(position, prediction, source, NO_LABEL) for source in (*plan.bundles, *controls)]
            continue
        image = _ImageMaps(
            bank, position, images.digests[position], prediction, images.truth[position],
            images.regions[position],
        )  # fmt: skip
        for source, bundle in plan.bundles.items():
            covered = set(bundle.labels.get(name, ()))
            size = images.sizes[position]
            maps = {label: fitted_map(bundle, name, label, card, size) for label in label_set if label in covered}
            missing += [MissingMap(position, label, source, NO_MAP) for label in label_set if label not in covered]
            uses += image.uses(source, maps)
            if settings.controls and prediction in maps and len(label_set) > 1:
                uses += image.uses(f"{CONTROL}one-map:{source}", dict.fromkeys(label_set, maps[prediction]))
        if settings.controls:
            uses += image.control_uses(images.pixels[position], label_set)
    return np.stack(bank.ranks) if bank.ranks else np.zeros((1, *card.size), np.int32), uses, missing


class _RankBank:
    """The ranks of a unit's maps: maps of one image that order pixels alike are stored once."""

    def __init__(self, plan: EvaluationPlan) -> None:
        self.settings = plan.settings
        self.tie_rules = tuple(dict.fromkeys(rule.ties for rule in plan.curve_rules))
        self.ranks: list[Array] = []
        self._by_digest: dict[tuple[str, str], RankedMap] = {}

    def add(self, image: str, values: Array) -> RankedMap:
        """Rank the pixels of a map, unless the bank has their order already."""
        order = Order(values)
        key = image, order.digest()
        if key not in self._by_digest:
            self._by_digest[key] = self._ranked(image, values, order, key[1])
        return self._by_digest[key]

    def _ranked(self, image: str, values: Array, order: Order, digest: str) -> RankedMap:
        reshuffles, seed = tuple[int, ...](), self.settings.seed
        if order.tied:
            # The shuffle within ties depends on the order, not on the label: equal maps stay equal.
            seeds = [map_seed(seed, image + digest, number) for number in range(self.settings.tie_orders + 1)]
            positions = {rule: self._append(order.ranks(rule, seeds[0])) for rule in self.tie_rules}
            reshuffles = tuple(self._append(order.ranks("random", shuffle)) for shuffle in seeds[1:])
        else:
            positions = dict.fromkeys(self.tie_rules, self._append(order.ranks("first")))
        top = outline(values, self.ranks[positions[self.tie_rules[0]]])
        return RankedMap(positions, reshuffles, order.tied, digest, top, fingerprint(top, values.size, seed))

    def _append(self, ranks: Array) -> int:
        self.ranks.append(ranks)
        return len(self.ranks) - 1


@dataclass(frozen=True)
class _ImageMaps:
    """Turns the maps of one image into uses."""

    bank: _RankBank
    position: int
    digest: str  # of the image's pixels
    predicted: int
    truth: int | None
    region: Array | None

    def uses(self, source: str, maps: Mapping[int, Array]) -> list[MapUse]:
        """The uses of a source's maps, given by label; a map that serves several labels is ranked once."""
        distinct = {id(values): values for values in maps.values()}
        ranked = {key: self.bank.add(self.digest, values) for key, values in distinct.items()}
        targets = {id(values) for label, values in maps.items() if self._is_target(label)}
        boxes_of = {key: _boxes(distinct[key], self.bank.settings.saliency) for key in targets}
        first = id(maps.get(self.predicted, next(iter(maps.values()), None)))
        rest = [entry.outline for key, entry in ranked.items() if key != first]
        shared = len(maps) > 1 and (not rest or is_same_map(ranked[first].outline, rest, distinct[first].size))
        return [self._use(source, label, values, ranked[id(values)], boxes_of.get(id(values), ()), shared)
                for label, values in maps.items()]  # fmt: skip

    def control_uses(self, pixels: Array, labels: Sequence[int]) -> list[MapUse]:
        """The uses of the maps that ignore the model."""
        uses, seed = list[MapUse](), self.bank.settings.seed
        for control, (draw, per_label) in CONTROLS.items():
            if per_label:
                maps = {label: draw(pixels, map_seed(seed, self.digest, label)) for label in labels}
            else:
                maps = dict.fromkeys(labels, draw(pixels, map_seed(seed, self.digest, 0)))
            uses += self.uses(f"{CONTROL}{control}", maps)
        return uses

    def _is_target(self, label: int) -> bool:
        return self.bank.settings.targets_listed_labels or label == self.predicted

    def _use(
        self, source: str, label: int, values: Array, ranked: RankedMap, target_boxes: tuple[Box, ...],
        shared: bool,
    ) -> MapUse:  # fmt: skip
        flags = [SAME_MAP_FLAG] if shared else []
        flags += [CONSTANT] if values.min() == values.max() else []
        flags += [TIES] if ranked.tied_fraction > HEAVY_TIES else []
        is_target = self._is_target(label)
        use = MapUse(self.position, label, source, ranked, tuple(flags), is_target, target_boxes if is_target else ())
        if self.region is None or label != (self.predicted if self.truth is None else self.truth):
            return use
        hit = pointing_hit(values, self.region)
        if not np.isfinite(hit):
            return use
        # As many of the most important pixels as the object has: no threshold to choose.
        order = self.bank.ranks[ranked.positions[self.bank.tie_rules[0]]]
        overlap = float(iou(kept_first(order, int(self.region.sum())), self.region))
        return replace(use, pointing_hit=hit, iou=overlap)


def _boxes(values: Array, rule: str) -> tuple[Box, ...]:
    """The boxes that the saliency setting asks for: the largest component's first, then one for every delta."""
    component = [component_box(values)] if rule in ("component", "both") else []
    return (*component, *(boxes(values) if rule in ("tuned", "both") else ()))


def fitted_map(bundle: HeatmapSet, image: str, label: int, card: Card, size: tuple[int, int]) -> Array:
    """A bundle's map at the model's resolution; `size` is the photograph's height and width."""
    values = bundle.get(image, label)
    try:
        return to_model_input(values, bundle.header.frame, card, size)
    except BadInput as error:
        raise BadInput(f"{bundle.path}, image '{image}', label {label}: {error}") from None
