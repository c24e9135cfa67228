"""A unit made ready to run: decoded, shown whole to the model, its maps ranked, its banks on the device."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from auditkit.metrics.faithfulness import choose_labels
from auditkit.model.classifier import AnyClassifier
from auditkit.model.masked import Masked
from auditkit.model.signature import to_probabilities
from auditkit.runs.crops import crops
from auditkit.runs.prepare import Prepared, look, prepare
from auditkit.runs.unit import Ready, curves
from auditkit.runs.work import Work

Array = np.ndarray[Any, Any]


def probabilities(model: AnyClassifier, shown: Array) -> Array:
    """Probabilities [N, classes] in float64, of rows as the network takes them."""
    return np.asarray(to_probabilities(model.scores(shown), model.signature.kind).astype(np.float32).astype(np.float64))


def shared(prob: Array, among: Array | None) -> Array:
    """Probabilities given that the label is one of `among` [N, classes]; as they are where that is None."""
    if among is None:
        return prob
    kept = prob * among
    whole = kept.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(kept, whole, out=np.full_like(kept, np.nan), where=whole > 0))


def ready(work: Work, over: Masked, unit: range) -> Ready:
    """All of a unit but its curves."""
    model, settings = work.model, work.settings
    seen = look(unit, work.images, model.card, model.signature)
    prob = probabilities(model, seen.shown)
    labels, among = choose_labels(prob, settings.labels), None
    if settings.renormalise:
        among = np.zeros(prob.shape, np.bool_)
        for place, own in enumerate(labels):
            among[place, own] = True
        among[~among.any(axis=1)] = True  # an image without a label in the set has no figure, but a prediction
    prob = shared(prob, among)
    predicted = prob.argmax(axis=1)
    banks = prepare(seen, model.card, labels, predicted, work.bundles, settings, work.lanes, work.infills)
    empty = {name: shared(found, among) for name, found in _on_infills(model, banks).items()}

    def on_crops(rows: Array, images: Array) -> Array:
        return shared(probabilities(model, rows), None if among is None else among[images])

    cut = crops(seen, banks.uses, model.card, model.signature, on_crops)
    return Ready(
        seen.ids, seen.truth, prob, predicted, empty, among, banks, cut,
        curves(banks, prob, predicted, empty, work.lanes), over.load(banks.pictures, banks.ranks),
    )  # fmt: skip


def _on_infills(model: AnyClassifier, banks: Prepared) -> Mapping[str, Array]:
    """By infill, probabilities [images, classes] when nothing of the image is shown; each picture is asked once."""
    listed = sorted({index for places in banks.infills.values() for indices in places for index in indices})
    found = dict(zip(listed, probabilities(model, banks.pictures[listed]), strict=True))
    return {
        name: np.stack([np.mean([found[index] for index in indices], axis=0) for indices in places])
        for name, places in banks.infills.items()
    }
