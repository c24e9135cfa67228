"""Why masks without a penalty become less complete as they settle: the pixels kept, or the order of the rest.

A mask keeps few pixels and hides the others nearly all alike, yet a curve asks for an order of these too. Here the
masks of `settling` swap orders: what is kept by masks that settled, the rest as ordered by those that took a quarter of
the steps, and the other way round.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

import auditkit
from auditkit.data.bundles import HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from benchmarks.paper import claims, settling
from benchmarks.paper.cifar10 import BARE
from benchmarks.paper.work import FAITHFUL, INFILLS, Array, Figure, Study, change, figure

KEPT = 0.5
SWAPPED = "kept by {0:,} steps, the rest by {1:,}"


def measured(study: Study) -> dict[str, Any]:
    """Figures of both kinds of masks and of what they make together."""
    few, many = study.steps // 4, study.steps
    masks = {steps: settling.masks(study, 0.0, steps) for steps in (few, many)}
    rows = {f"{steps:,} steps": own for steps, own in masks.items()}
    for kept, rest in ((many, few), (few, many)):
        rows[SWAPPED.format(kept, rest)] = _swapped(
            masks[kept], masks[rest], study.images, study.out / "maps" / f"swapped-{kept}-{rest}"
        )
    results = study.scored("order", rows, labels="top2", eps1=0.0, eps2=0.1, infill=tuple(INFILLS), controls=False,
                           **BARE)  # fmt: skip
    before, _, new_kept, new_order = rows
    told = list[Figure]()
    for infill, where in INFILLS.items():
        ordered, kept = (change(results, "worst_completeness", row, before, infill) for row in (new_order, new_kept))
        said = f"of masks without penalty, {many:,} steps instead of {few:,}, over {where}"
        told += [
            claims.judged(f"the order of hidden pixels lowers completeness {said}", ordered, "below"),
            claims.judged(f"keeping other pixels costs hardly any completeness {said}", kept, "above", -claims.NEAR),
        ]
    shown = [figure(results, name, row, infill) for row in rows for infill in INFILLS
             for name in ("insertion", *FAITHFUL)]  # fmt: skip
    return {"claims": told, "order": shown}


def _swapped(kept: HeatmapSet, rest: HeatmapSet, images: Dataset, place: Path) -> HeatmapSet:
    """Maps of both kinds of masks together."""
    if not place.exists():
        begun = place.with_suffix(".part")
        shutil.rmtree(begun, ignore_errors=True)
        bundle = auditkit.Bundle(begun, method="swapped")
        for image in images.ids:
            for label in sorted({*kept.labels[image]} & {*rest.labels[image]}):
                bundle.add([image], [label], together(kept.get(image, label), rest.get(image, label))[None])
        begun.rename(place)
    return open_bundle(place)


def together(kept: Array, rest: Array) -> Array:
    """One mask where it keeps a pixel; elsewhere, all below it, the other's order."""
    order = rest.argsort(axis=None, kind="stable").argsort(kind="stable").reshape(rest.shape)
    found: Array = np.where(kept > KEPT, kept, KEPT * order / order.size).astype(np.float32)
    return found
