"""The paper's two figures of its main table: completeness against soundness, and best effort."""

from collections.abc import Sequence

import numpy as np

from auditkit.report.svg import MARKERS, Axis
from benchmarks.drawing import Series, page
from benchmarks.paper.work import Figure

TONES = ("b0", "b1", "b2", "b3")
SHAPES = tuple(shape for shape in MARKERS if shape not in ("saltire", "ring"))  # which are but strokes
ACROSS, UP, EFFORT = "worst_completeness", "worst_soundness", "best_effort"


class Lines(Axis):
    """One line after the other, without numbers."""

    def ticks(self) -> list[float]:
        """None."""
        return []


def figure(figures: Sequence[Figure]) -> str:
    """Every row of a table as a mark with its intervals, controls in gray, as SVG."""
    by = {(str(one["row"]), one["name"]): one for one in figures if one["value"] is not None}
    rows = [row for row in dict.fromkeys(row for row, _ in by) if (row, ACROSS) in by and (row, UP) in by]
    plane, effort = list[Series](), list[Series]()
    methods = sum(not by[row, ACROSS]["bundle"].startswith("control:") for row in rows)
    for place, row in enumerate(rows):
        tone = TONES[place % len(TONES)] if place < methods else "k"
        look = (tone, SHAPES[(place if place < methods else place - methods) % len(SHAPES)])
        (x, left, right), (y, low, high) = (_known(by[row, name]) for name in (ACROSS, UP))
        plane.append((row, *look, np.array([[x, y, low, high, left, right]])))
        if (row, EFFORT) in by:
            value, left, right = _known(by[row, EFFORT])
            at = len(rows) - place
            effort.append((row, *look, np.array([[value, at, at, at, left, right]])))
    complete, sound, best = (Axis(0, 1, name.replace("_", " ")) for name in (ACROSS, UP, EFFORT))
    return page([
        ("Completeness and soundness, 95 % intervals", complete, sound, plane),
        ("Best effort", best, Lines(0, len(rows) + 1, "in the order of the key"), effort),
    ])  # fmt: skip


def _known(one: Figure) -> tuple[float, float, float]:
    """A figure and its interval; where there is none, the figure alone."""
    ends = (one["value"] if one[end] is None else one[end] for end in ("low", "high"))
    return (one["value"], *ends)
