"""One prepared unit: the curves it needs, and a row of figures for every use once they are known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.faithfulness import alpha, beta
from auditkit.runs.evaluation.batch import Prepared, Use
from auditkit.runs.evaluation.crops import Crop
from auditkit.runs.evaluation.curves import Curve, Found
from auditkit.runs.evaluation.settings import Evaluation, Lane, Rule

Row = dict[str, Any]
Key = tuple[Rule, int, int]  # the rule, the image, the position of the ranks


@dataclass(frozen=True)
class Ready:
    """A unit whose images and infills the model has seen whole, and whose banks are made."""

    ids: tuple[str, ...]
    truth: tuple[int | None, ...]
    prob: Array  # [images, classes]
    predicted: Array
    empty: dict[str, Array]  # by infill, probabilities [images, classes] when nothing of the image is shown
    among: Array | None  # [images, classes]: labels that share the probability, where it is renormalised
    prepared: Prepared
    crops: dict[int, tuple[Crop, ...]]  # of the saliency metric, by position of the use
    curves: dict[Key, Curve]
    banks: Any


def curves(prepared: Prepared, prob: Array, empty: dict[str, Array], lanes: Sequence[Lane]) -> dict[Key, Curve]:
    """One curve for each order of an image's pixels, watched for all the labels that it serves.

    Insertion serves every label, deletion the chief ones; the further orders of tied maps serve insertion alone.
    """
    served: dict[Key, set[int]] = {}
    for use in prepared.uses:
        for rule in (rule for lane in lanes for rule in lane.rules if use.chief or not rule.deletion):
            others = () if rule.deletion else use.map.others
            for position in (use.map.orders[rule.ties], *others):
                served.setdefault((rule, use.image, position), set()).add(use.label)
    found: dict[Key, Curve] = {}
    for (rule, image, ranks), watched in served.items():
        labels = sorted(watched)
        whole = tuple(float(value) for value in prob[image, labels])
        nothing = tuple(float(value) for value in empty[rule.infill][image, labels])
        infills = prepared.infills[rule.infill][image]
        found[rule, image, ranks] = Curve(rule, image, infills, ranks, tuple(labels), whole, nothing)
    return found


def rows(ready: Ready, found: Sequence[Found], lanes: Sequence[Lane], settings: Evaluation) -> list[Row]:
    """A row for each use and lane, in the order of the uses, then one for each missing map."""
    known = {key: (curve, result) for (key, curve), result in zip(ready.curves.items(), found, strict=True)}
    made = [_row(place, use, lane, ready, known, settings)
            for place, use in enumerate(ready.prepared.uses) for lane in lanes]  # fmt: skip
    if settings.eps1 is not None and settings.eps2 is not None:
        shown, whole = (np.array([row[name] for row in made]) for name in ("insertion", "prob"))
        ratios = zip(made, alpha(shown, whole, settings.eps1), beta(shown, whole, settings.eps2), strict=True)
        made = [row | {"alpha": float(complete), "beta": float(sound)} for row, complete, sound in ratios]
    for image, label, source, why in ready.prepared.missing:
        made += [_base(ready, image, label, source, lane) | {"error": why} for lane in lanes]
    return made


def _base(ready: Ready, image: int, label: int, source: str, lane: Lane) -> Row:
    return {
        "image": ready.ids[image], "label": label, "bundle": source, "infill": lane.insertion.infill,
        "truth": ready.truth[image], "prob": float(ready.prob[image, label]),
        "predicted": bool(ready.predicted[image] == label), "prediction": int(ready.predicted[image]), "flags": [],
    }  # fmt: skip


def _row(
    place: int, use: Use, lane: Lane, ready: Ready, known: dict[Key, tuple[Curve, Found]], settings: Evaluation
) -> Row:
    def at(rule: Rule, position: int) -> tuple[Found, int]:
        curve, found = known[rule, use.image, position]
        return found, curve.labels.index(use.label)

    found, label = at(lane.insertion, use.map.orders[lane.insertion.ties])
    shown = float(found.areas[label])
    row = _base(ready, use.image, use.label, use.source, lane) | {
        "insertion": shown, "insertion_error": float(found.errors[label]), "tied_fraction": use.map.tied,
        "flags": list(use.flags), "keep_counts": found.counts.astype(np.int32), "map_digest": use.map.digest,
        "map_top": use.map.top,
        "curve": found.values[:, label].astype(np.float32),
    }  # fmt: skip
    if np.isfinite(use.pointing):
        row |= {"pointing_hit": use.pointing, "iou": use.iou}
    if settings.tie_orders:
        tried = [shown, *(float(other.areas[i]) for other, i in (at(lane.insertion, o) for o in use.map.others))]
        row |= {"insertion_low": min(tried), "insertion_high": max(tried)}
    if use.chief and lane.deletion is not None:
        deleted, label = at(lane.deletion, use.map.orders[lane.deletion.ties])
        row |= {"deletion": float(deleted.areas[label]), "deletion_error": float(deleted.errors[label])}
    return row | _saliency(ready.crops.get(place, ()), settings)


def _saliency(crops: tuple[Crop, ...], settings: Evaluation) -> Row:
    """The saliency metric by the rules that were asked for, the largest component's crop first."""
    row: Row = {}
    if crops and settings.saliency in ("component", "both"):
        row |= {"saliency_metric": crops[0].value, "box_degenerate": crops[0].box.degenerate}
        crops = crops[1:]
    if crops:
        row |= {"saliency_by_delta": [crop.value for crop in crops],
                "degenerate_by_delta": [crop.box.degenerate for crop in crops]}  # fmt: skip
    return row
