"""Whether the loss of masks on CIFAR-10 has settled after the steps they take.

On a few of the images the masks of `cifar10` are learned with a quarter and half of the steps, with twice as many, and
at the pace of the paper; those of the steps themselves are taken from its folder.
"""

from typing import Any

import numpy as np

from auditkit.data.bundles import HeatmapSet
from auditkit.metrics.statistics import paired_difference
from benchmarks.paper import claims, objective
from benchmarks.paper.cifar10 import BARE
from benchmarks.paper.work import FAITHFUL, Figure, Study, figure

WEIGHTS = (0.0, 0.01, 0.1)  # of the penalty
SHARES = (0.25, 0.5, 1, 2)  # of the steps
PAPER = "paper"
THEIR_PACE = {"steps": 2000, "rate": 0.05, "fall": 1.0, "memory": 0.999}


def measured(study: Study) -> dict[str, Any]:
    """What other numbers of steps do, and the paper's pace."""
    counts = [round(share * study.steps) for share in SHARES]
    ladder = {(tv, str(steps)): masks(study, tv, steps) for tv in WEIGHTS for steps in counts}
    ladder |= {(tv, PAPER): study.made(_name(tv, PAPER), "mask", "top2", tv=tv, **THEIR_PACE) for tv in WEIGHTS}
    rows = {_name(*key): own for key, own in ladder.items()}
    results = study.scored("ladder", rows, labels="top2", eps1=0.0, eps2=0.1, infill="gray", **BARE)
    return {
        "claims": claims.trade(results, _name(0.01, PAPER), _name(0.0, PAPER), "TV 0.01", "at the paper's pace"),
        "settling": [one for tv in WEIGHTS for one in _falling(study, results, ladder, tv)],
    }


def masks(study: Study, tv: float, steps: int) -> HeatmapSet:
    """Masks that take so many steps: those of `cifar10`, where theirs are as many."""
    name = f"tv{tv:g}" if steps == study.steps else _name(tv, str(steps))
    return study.made(name, "mask", "top2", tv=tv, steps=steps)


def _falling(study: Study, results: Any, ladder: dict[Any, HeatmapSet], tv: float) -> list[Figure]:
    """The loss of masks with one weight, by pace, and what it fell by where the steps were doubled."""
    found, before = list[Figure](), None
    like = ladder[tv, PAPER]
    for pace in (pace for weight, pace in ladder if weight == tv):
        seen = objective.losses(study, ladder[tv, pace], like, tv)
        one: Figure = {"tv": tv, "pace": pace, "n": len(study.images)}
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
