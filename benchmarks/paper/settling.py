"""How many steps masks on CIFAR-10 need.

The paper's table of the two likeliest labels, of masks that take so many steps that their loss should have settled.
Whether it had is looked at on a few of the images: the same masks with a quarter and half of the steps, with twice as
many, and learned at the pace of the paper.
"""

from typing import Any

import numpy as np

from auditkit.data.heatmaps import HeatmapSet
from auditkit.data.images import ImageSet
from auditkit.metrics.statistics import paired_difference
from benchmarks.paper import claims, objective
from benchmarks.paper.cifar10 import BARE, top_two
from benchmarks.paper.published import TV
from benchmarks.paper.work import FAITHFUL, Figure, Study, figure, first

WEIGHTS = (0.0, 0.01, 0.1)  # of the penalty, where the loss is looked at
SHARES = (0.25, 0.5, 1, 2)  # of the steps
PAPER = "paper"
THEIR_PACE = {"steps": 2000, "rate": 0.05, "fall": 1.0, "memory": 0.999}


def measured(study: Study, few: int) -> dict[str, Any]:
    """The table and, on so many images, what other numbers of steps do."""
    counts = [round(share * study.steps) for share in SHARES]
    paces: dict[str, dict[str, Any]] = {str(steps): {"steps": steps} for steps in counts} | {PAPER: THEIR_PACE}
    some = first(study.images, few)

    def made(tv: float, pace: str, images: ImageSet) -> HeatmapSet:
        return study.made(_name(tv, pace), "mask", "top2", images, tv=tv, **paces[pace])

    maps = {f"tv{tv:g}": made(tv, str(study.steps), study.images) for tv in TV}
    ladder = {(tv, pace): made(tv, pace, some) for tv in WEIGHTS for pace in paces}
    rows = {_name(*key): masks for key, masks in ladder.items()}
    results = study.scored("ladder", rows, some, labels="top2", eps1=0.0, eps2=0.1, infill="gray", **BARE)
    found = top_two(study, maps, f", {study.steps:,} steps")
    found["claims"] += claims.trade(results, _name(0.01, PAPER), _name(0.0, PAPER), "TV 0.01", "at the paper's pace")
    return found | {"settling": [one for tv in WEIGHTS for one in _falling(study, results, ladder, some, tv)]}


def _falling(study: Study, results: Any, ladder: dict[Any, HeatmapSet], some: ImageSet, tv: float) -> list[Figure]:
    """The loss of masks with one weight, by pace, and what it fell by where the steps were doubled."""
    found, before = list[Figure](), None
    like = ladder[tv, PAPER]
    for pace in (pace for weight, pace in ladder if weight == tv):
        seen = objective.losses(study, ladder[tv, pace], like, some, tv)
        one: Figure = {"tv": tv, "pace": pace, "n": len(some)}
        one |= {part: float(np.mean(values)) for part, values in seen.items()}
        one |= {name: figure(results, name, _name(tv, pace), "gray") for name in FAITHFUL}
        if before is not None and pace != PAPER:
            fell = paired_difference(seen["loss"], before)
            one["less_half"] = {"value": fell.value, "low": fell.low, "high": fell.high}
        found.append(one)
        before = seen["loss"]
    return found


def _name(tv: float, pace: str) -> str:
    return f"tv{tv:g} {pace}"
