"""What coarser masks change on CIFAR-10: learned of cells of 4 x 4 pixels and upsampled, beside those of every pixel.

The latter are those of `cifar10`, which settled. Upsampled masks have a sixteenth of the weights and take a quarter of
the steps; on half of the images those without a penalty take all of them, too, to see whether that changes anything.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from auditkit.data.bundles import HeatmapSet
from auditkit.metrics.statistics import paired_difference
from benchmarks.paper import claims, objective
from benchmarks.paper.cifar10 import BARE
from benchmarks.paper.work import FAITHFUL, Figure, Study, change, figure, first

WEIGHTS = (0.0, 0.01)  # of the penalty
CELL = 4
SOONER = 4  # times fewer steps


def measured(study: Study) -> dict[str, Any]:
    """What is claimed of upsampling, the figures of both kinds of masks, and whether the coarse ones settled."""
    rows = {f"TV {tv:g}": study.made(f"tv{tv:g}", "mask", "top2", tv=tv) for tv in WEIGHTS}
    rows |= {f"TV {tv:g}, upsampled": _coarse(study, tv, study.steps // SOONER) for tv in WEIGHTS}
    results = _scored(study, "upsampled", rows)
    return {
        "claims": claims.of_upsampling(results, WEIGHTS),
        "upsampled": [figure(results, name, row, "gray") for row in rows for name in ("insertion", *FAITHFUL)],
        "coarse": _more_steps(replace(study, images=first(study.images, len(study.images) // 2))),
    }


def _more_steps(study: Study) -> list[Figure]:
    """Loss and figures of upsampled masks without a penalty, by their steps, and what the additional ones change."""
    rows = {f"{steps:,} steps": _coarse(study, 0.0, steps) for steps in (study.steps // SOONER, study.steps)}
    few, many = rows
    results = _scored(study, "coarse", rows)
    seen = {row: objective.losses(study, masks, rows[many], 0.0)["loss"] for row, masks in rows.items()}
    found, kind = list[Figure](), {"name": "loss", "infill": "random"}
    for row, losses in seen.items():
        found.append({**kind, "bundle": row, "value": float(np.mean(losses)), "low": None, "high": None})
        found += [figure(results, name, row, "gray") for name in FAITHFUL]
    fell = paired_difference(seen[many], seen[few])
    less: list[Figure] = [{**kind, "value": fell.value, "low": fell.low, "high": fell.high}]
    less += [change(results, name, many, few, "gray") for name in FAITHFUL]
    return [*found, *({**one, "bundle": "the difference", "n": len(study.images)} for one in less)]


def _coarse(study: Study, tv: float, steps: int) -> HeatmapSet:
    return study.made(f"tv{tv:g} s={CELL} {steps}", "mask", "top2", tv=tv, factor=CELL, steps=steps)


def _scored(study: Study, name: str, rows: dict[str, HeatmapSet]) -> Any:
    return study.scored(name, rows, labels="top2", eps1=0.0, eps2=0.1, infill="gray", controls=False, **BARE)
