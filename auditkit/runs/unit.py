"""One prepared unit run: every use becomes a row of figures."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from auditkit.metrics.curves import area
from auditkit.metrics.faithfulness import alpha, beta
from auditkit.model.masked import Masked
from auditkit.runs.curves import Curve, Found, run_curves
from auditkit.runs.plan import Evaluation
from auditkit.runs.prepare import Prepared, Use

Array = np.ndarray[Any, Any]
Row = dict[str, Any]


def run_unit(
    masked: Masked, ready: Prepared, ids: Sequence[str], prob: Array, predicted: Array, settings: Evaluation
) -> list[Row]:
    """A row for each use, in the order of the uses, then one for each missing map."""
    masked.fill(ready.pictures, ready.ranks)
    pixels = int(np.prod(ready.ranks.shape[1:]))
    empty = _on_infill(masked, ready)
    insertions = _insertions(ready, prob, empty)
    deletions = _deletions(ready, prob, empty, predicted) if settings.deletion else {}
    curves = [*insertions.values(), *deletions.values()]
    found = run_curves(masked, curves, pixels, settings.steps, settings.eps1, settings.eps2)
    results = dict(zip([*(("in", *k) for k in insertions), *(("out", *k) for k in deletions)], found, strict=True))
    rows = [_row(use, ids, prob, predicted, insertions, results, settings) for use in ready.uses]
    for image, label, source, why in ready.missing:
        chief = predicted[image] == label
        rows.append(_base(ids[image], label, source, prob[image, label], chief, settings) | {"error": why})
    return rows


def _on_infill(masked: Masked, ready: Prepared) -> Array:
    """Probabilities [images, classes] when nothing of the image is shown, each infill picture asked once."""
    pictures = sorted({index for indices in ready.infills for index in indices})
    rows = np.array([[picture, picture, 0, 0] for picture in pictures], np.int32)
    found = np.concatenate([part for _, part in masked.run(rows)])
    at = {picture: place for place, picture in enumerate(pictures)}
    return np.stack([found[[at[index] for index in indices]].mean(axis=0) for indices in ready.infills])


def _insertions(ready: Prepared, prob: Array, empty: Array) -> dict[tuple[int, int], Curve]:
    """One curve for each map of an image, watched for all the labels that it serves."""
    served: dict[tuple[int, int], set[int]] = {}
    for use in ready.uses:
        served.setdefault((use.image, use.ranks), set()).add(use.label)
    return {key: _curve(key, sorted(labels), ready, prob, empty) for key, labels in served.items()}


def _deletions(ready: Prepared, prob: Array, empty: Array, predicted: Array) -> dict[tuple[int, int], Curve]:
    """The same for deletion, for the predicted label alone."""
    keys = {(use.image, use.ranks) for use in ready.uses if use.label == predicted[use.image]}
    return {k: _curve(k, [int(predicted[k[0]])], ready, prob, empty, deletion=True) for k in sorted(keys)}


def _curve(
    key: tuple[int, int], labels: list[int], ready: Prepared, prob: Array, empty: Array, *, deletion: bool = False
) -> Curve:
    image, ranks = key
    whole = tuple(float(value) for value in prob[image, labels])
    nothing = tuple(float(value) for value in empty[image, labels])
    return Curve(image, ready.infills[image], ranks, tuple(labels), whole, nothing, deletion)


def _base(image: str, label: int, source: str, prob: float, predicted: bool, settings: Evaluation) -> Row:
    return {"image": image, "label": label, "bundle": source, "infill": settings.infill, "prob": float(prob),
            "predicted": bool(predicted), "flags": []}  # fmt: skip


def _row(
    use: Use, ids: Sequence[str], prob: Array, predicted: Array, insertions: dict[tuple[int, int], Curve],
    results: dict[tuple[Any, ...], Found], settings: Evaluation,
) -> Row:  # fmt: skip
    key = (use.image, use.ranks)
    found = results["in", *key]
    at = insertions[key].labels.index(use.label)
    shown = float(area(found.counts, found.values[:, at]))
    whole = float(prob[use.image, use.label])
    row = _base(ids[use.image], use.label, use.source, whole, predicted[use.image] == use.label, settings)
    row |= {
        "insertion": shown, "insertion_error": float(found.errors[at]),
        "alpha": float(alpha(shown, whole, settings.eps1)), "beta": float(beta(shown, whole, settings.eps2)),
        "tied_fraction": use.tied, "flags": list(use.flags), "keep_counts": found.counts.astype(np.int32),
        "curve": found.values[:, at].astype(np.float32), "map_digest": use.digest,
    }  # fmt: skip
    if ("out", *key) in results and row["predicted"]:
        deleted = results["out", *key]
        row |= {"deletion": float(area(deleted.counts, deleted.values[:, 0])),
                "deletion_error": float(deleted.errors[0])}  # fmt: skip
    return row
