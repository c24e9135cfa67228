"""Examines a model: which parts of the images carry its predictions along, and which it can do without."""

from pathlib import Path

import numpy as np

from auditkit.arrays import Array
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.methods.controls import edges
from auditkit.metrics.betting import Sample
from auditkit.metrics.exchanges import EXCHANGES, WINDOWS, strongest_window
from auditkit.metrics.probes import PROBES
from auditkit.model.classifier import AnyClassifier
from auditkit.runs.evaluation.images import load_images, none_usable
from auditkit.runs.evaluation.maps import fitted_map
from auditkit.runs.examination.findings import findings
from auditkit.runs.examination.material import PARTNERS, Material, Predict, predictor
from auditkit.runs.examination.places import MOST, centre, zone
from auditkit.runs.examination.proposals import MOST_PROPOSALS, proposals, tested
from auditkit.runs.examination.rates import Outcome, outcomes
from auditkit.runs.executor import Progress, silent
from auditkit.runs.folder.examination import Examination, ExchangeRate, ProbeRate, Zone

MOST_IMAGES = 200  # of a run; a seeded sample of more
FEWEST_IMAGES = 20
FEWEST_OF_LABEL, APART = 5, 0.3  # images of a label whose evidence has a place, and how much more often than others


def passes(images: int) -> int:
    """The most forward passes that an examination of that many images takes."""
    return images * (1 + PARTNERS * len(EXCHANGES) + len(PROBES) + MOST_PROPOSALS)


def examine(
    model: AnyClassifier, images: Dataset, maps: HeatmapSet, out: Path, seed: int = 0, progress: Progress = silent
) -> Examination:
    """What the model relies on, by the maps of its predictions; example pictures go into `out`."""
    material = material_of(model, images, maps, seed)
    tick, predict = progress(len(material.ids)), predictor(model)
    rows = len(EXCHANGES) * len(material.pairs) + len(PROBES) * len(material.ids)

    def advance(done: int) -> None:
        tick(len(material.ids) * done / rows, done)

    exchanged, probed = outcomes(material, model, advance), list[ProbeRate]()
    for name in PROBES:
        probed.append(_probe(name, material, predict))
        advance(len(material.ids))
    tests = [tested(proposal, predict) for proposal in proposals(exchanged)]
    return Examination(
        maps.header.method,
        len(material.ids),
        int(material.proposes.sum()),
        passes(len(material.ids)),
        len(tests),
        tuple(map(_rate, exchanged)),
        tuple(probed),
        _zones(material),
        findings(tests, out, images.members()),
    )


def drawn(images: Dataset, maps: HeatmapSet | None, seed: int) -> list[int]:
    """Positions of the images to examine: at most MOST_IMAGES, of those that have maps if these are given."""
    mapped = [position for position, image in enumerate(images.ids) if maps is None or image in maps.labels]
    return sorted(np.random.default_rng([seed, 0]).permutation(mapped)[:MOST_IMAGES].tolist())


def require_enough(images: int) -> None:
    """BadInput where so few images have a map of the predicted label, or can have one."""
    if images < FEWEST_IMAGES:
        raise BadInput(f"an examination needs {FEWEST_IMAGES} images with a map of the predicted label; here are "
                       f"{images}.")  # fmt: skip


def material_of(model: AnyClassifier, images: Dataset, maps: HeatmapSet, seed: int) -> Material:
    """The images that have a map of their prediction."""
    unit = load_images(drawn(images, maps, seed), images, model.card, model.signature)
    if not unit.ids:
        raise none_usable(len(images), unit.failed)
    predicted = predictor(model)(list(unit.pixels)).argmax(axis=1)
    usable = [index for index, image in enumerate(unit.ids) if int(predicted[index]) in maps.labels[image]]
    require_enough(len(usable))
    if len(np.unique(predicted[usable])) == 1:
        raise BadInput("the model predicts one label for all images, so no part can come from another label: give "
                       "images that it takes for different labels.")  # fmt: skip
    heatmaps = [fitted_map(maps, unit.ids[index], int(predicted[index]), model.card, unit.sizes[index])
                for index in usable]  # fmt: skip
    ids = tuple(unit.ids[index] for index in usable)
    return Material(ids, unit.pixels[usable], predicted[usable], np.stack(heatmaps), seed)


def _rate(outcome: Outcome) -> ExchangeRate:
    everyone = np.ones(len(outcome.material.ids), dtype=np.bool_)
    values = outcome.by_donor(everyone)
    low, high = Sample(values, (0.0, 1.0)).interval or (None, None)
    name, chance = outcome.exchange.name, outcome.mean_chance(everyone)
    return ExchangeRate(name, float(values.mean()), outcome.stays, chance, low, high, len(values))


def _probe(name: str, material: Material, predict: Predict) -> ProbeRate:
    rng = np.random.default_rng([material.seed, 4, *name.encode()])
    seen = predict([PROBES[name](pixels, rng) for pixels in material.pixels]).argmax(axis=1)
    agrees = (seen == material.predicted).astype(np.float64)
    low, high = Sample(agrees, (0.0, 1.0)).interval or (0.0, 1.0)
    return ProbeRate(name, float(agrees.mean()), low, high, len(agrees))


def _zones(material: Material) -> tuple[Zone, ...]:
    """Where the evidence of all images lies, and that of labels which have a place of their own, beside edges."""
    shape, size = material.pixels.shape[1:3], WINDOWS["small"]
    evidence_zones = np.array([zone(*centre(side.windows["small"], shape)) for side in material.sides])
    squares = (strongest_window(edges(pixels, 0), size) for pixels in material.pixels)
    edge_zones = np.array([zone(*centre(square, shape)) for square in squares])
    zones = [
        _zone(place, None, evidence_zones, edge_zones)
        for place in sorted({*evidence_zones.tolist(), *edge_zones.tolist()})
    ]
    for label, number in zip(*np.unique(material.predicted, return_counts=True), strict=True):
        chosen = material.predicted == label
        places = evidence_zones[chosen].tolist()
        commonest = max(sorted(set(places)), key=places.count)
        share, other_share = places.count(commonest) / number, float(np.mean(evidence_zones[~chosen] == commonest))
        if number >= FEWEST_OF_LABEL and share >= MOST and share - other_share >= APART:
            zones.append(_zone(commonest, int(label), evidence_zones[chosen], edge_zones[chosen]))
    return tuple(zones)


def _zone(place: str, label: int | None, evidence_zones: Array, edge_zones: Array) -> Zone:
    return Zone(
        place, label, int(np.sum(evidence_zones == place)), int(np.sum(edge_zones == place)), len(evidence_zones)
    )
