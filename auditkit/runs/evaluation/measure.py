"""A unit made ready to run: decoded, shown whole to the model, its maps ranked, its banks on the device."""

from collections.abc import Sequence

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.metrics.faithfulness import choose_labels
from auditkit.model.classifier import AnyClassifier
from auditkit.model.hard_masks import Masked
from auditkit.model.signature import to_probabilities
from auditkit.runs.evaluation.batch import Prepared, look, prepare
from auditkit.runs.evaluation.crops import crops
from auditkit.runs.evaluation.plan import Work
from auditkit.runs.evaluation.rows import Ready, curves


def probabilities(model: AnyClassifier, shown: Array) -> Array:
    """Probabilities [N, classes] in float64, of rows as the network takes them."""
    return np.asarray(to_probabilities(model.scores(shown), model.signature.kind).astype(np.float32).astype(np.float64))


def shared(prob: Array, among: Array | None) -> Array:
    """Probabilities given that the label is one of `among` [N, classes]; as they are where that is None."""
    if among is None:
        return prob
    kept = prob * among
    whole = kept.sum(axis=1, keepdims=True)
    if not whole.all():
        raise BadInput(
            "every label of the set has probability 0 on an image, an infill or a crop, so that there is nothing to "
            "renormalise over; name other labels, or take whole probabilities."
        )
    return np.asarray(kept / whole)


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
    empty = _on_infills(work, banks, among)

    def on_crops(rows: Array, images: Array) -> Array:
        return shared(probabilities(model, rows), None if among is None else among[images])

    cut = crops(seen, banks.uses, model.card, model.signature, on_crops)
    return Ready(
        seen.ids, seen.truth, prob, predicted, empty, among, banks, cut,
        curves(banks, prob, empty, work.lanes), over.load(banks.pictures, banks.ranks),
    )  # fmt: skip


def _on_infills(work: Work, banks: Prepared, among: Array | None) -> dict[str, Array]:
    """By infill, probabilities [images, classes] when nothing of the image is shown; each picture is asked once."""
    found: dict[int, Array] = {}
    for name, places in banks.infills.items():
        listed = sorted({index for indices in places for index in indices})
        told = work.infills.told.get(name)
        if told is None:
            told = probabilities(work.model, banks.pictures[listed])
            if work.infills.same_for_all(name):
                work.infills.told[name] = told
        found |= dict(zip(listed, told, strict=True))

    def mean(place: int, indices: Sequence[int]) -> Array:
        rows = np.stack([found[index] for index in indices])
        return np.asarray(shared(rows, None if among is None else among[place]).mean(axis=0))

    return {name: np.stack([mean(*one) for one in enumerate(places)]) for name, places in banks.infills.items()}
