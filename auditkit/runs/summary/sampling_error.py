"""How far figures may be off because their curves are known at some points only.

An interval over images says nothing of it: in part, what a straight line between two points misses has the same sign
on every image, and more images do not make that smaller.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from auditkit.metrics.curves import Steps
from auditkit.metrics.faithfulness import alpha, beta
from auditkit.runs.evaluation.settings import CONTROL, Evaluation
from auditkit.runs.summary.per_image import FAITHFUL, Gap, Group, Values
from auditkit.runs.summary.row_table import Items

Groups = Mapping[tuple[str, str], Group]  # by source and infill
Figures = Mapping[tuple[str, str], "Sequence[Values | Gap]"]
MOVED = ("insertion", *FAITHFUL)
# Set on 3,930 curves of five models, known at every point. Areas are off by 0.1 to 0.4 of their bounds on average, and
# up to a quarter of that has the same sign on all images. Of figures by 8 to 128 steps 98 in 100 kept to what is said,
# of those by auto 96; the figure that is off most is off by a half to an eighth of it.
USUAL, COMMON = 0.4, 0.25
MATTERS = 0.005


def by_points(groups: Groups, figures: Figures, items: Items, settings: Evaluation) -> list[dict[str, Any]]:
    """For each source under each infill, how far every figure may be off, and the one that may be off most."""
    moved = [_moved(items, sign * USUAL, settings) for sign in (1, -1)]
    unknown = np.isnan(items.column("insertion_error")) & ~items.failed()
    found = []
    for (source, infill), group in groups.items():
        known = {one.name: one for one in figures[source, infill] if isinstance(one, Values) and one.name in MOVED}
        others = [{one.name: one for one in Group(other, group.at).metrics()} for other in moved]
        off = {name: _error(one, [other[name] for other in others]) for name, one in known.items()}
        most = None if unknown[group.at].any() else max(off, key=lambda name: off[name], default=None)
        found.append({"name": most, "bundle": source, "infill": infill, "error": None if most is None else off[most],
                      "errors": {} if most is None else off,
                      "n": len(np.unique(items.image[group.at[~items.failed()[group.at]]]))})  # fmt: skip
    return found


def _moved(items: Items, errors: float, settings: Evaluation) -> Items:
    """The rows with their areas moved by so many errors, and what follows from the areas."""
    shown = items.column("insertion") + errors * np.nan_to_num(items.column("insertion_error"))
    columns = {"insertion": np.clip(shown, 0, 1)}
    rows = np.flatnonzero(np.isfinite(shown))
    for name, ratio, eps in (("alpha", alpha, settings.eps1), ("beta", beta, settings.eps2)):
        if eps is not None:
            columns[name] = np.full(len(items), np.nan)
            columns[name][rows] = ratio(columns["insertion"][rows], items.column("prob")[rows], eps)
    return items.with_columns(columns)


def _error(figure: Values, moved: "Sequence[Values | Gap]") -> float:
    """How far a mean may be off: what its values share, and twice what chance leaves of the rest over the images.

    Each value rises or falls with its areas, so that moving all of them up, then down, holds whatever their signs are.
    """
    off = np.max([np.abs(one.values - figure.values) for one in moved if isinstance(one, Values)], axis=0)
    by_image = np.bincount(figure.images, weights=off)
    return float(np.hypot(COMMON * off.mean(), 2 * np.sqrt((by_image**2).sum()) / len(off)))


def remarks(points: Sequence[Mapping[str, Any]], settings: Evaluation) -> list[str]:
    """A sentence for each bundle whose figures may be off by more than matters, or nobody knows by how much."""
    worst: dict[str, float | None] = {}
    for one in points:
        source, error = one["bundle"], one["error"]
        if not source.startswith(CONTROL) and one["n"]:
            before = worst.get(source, 0.0)
            worst[source] = None if error is None or before is None else max(before, error)
    steps, way_out = _told(settings)
    return [
        f"points: with {steps} "
        + (f"a figure of {source} may be off by {error:.3f}" if error is not None
           else f"nobody knows how far a figure of {source} is off") + f"; {way_out}"
        for source, error in worst.items() if error is None or error > MATTERS
    ]  # fmt: skip


def _told(settings: Evaluation) -> tuple[str, str]:
    """How many points there are, in words, and what would give better figures."""
    steps = settings.steps or Steps("exact")
    if settings.protocol is not None:
        return f"the points and areas of {settings.protocol}", "without --protocol, --steps auto finds what it needs"
    if steps.rule == "auto":
        return f"steps {steps}", f"--steps auto:{steps.tolerance / 5:g} asks for more points"
    return f"{steps.count} step{'s' if steps.count > 1 else ''}", "--steps auto finds what it needs"
