"""Figures by group of images, as results.json holds them."""

from collections.abc import Mapping
from dataclasses import dataclass

from auditkit.runs.folder.figures import IntervalKind


@dataclass(frozen=True)
class GroupFigure:
    """A figure of the images of one group, with the interval of the tests that decide."""

    column: str
    group: str
    name: str  # of the metric
    bundle: str | None  # None: it is about the model
    infill: str
    value: float
    low: float | None
    high: float | None
    n: int
    interval: IntervalKind = "test"


@dataclass(frozen=True)
class Gap:
    """The two groups of a column whose figures differ most."""

    column: str
    name: str  # of the metric
    bundle: str | None
    infill: str
    lower: str
    higher: str
    difference: float
    at_least: float  # which all gaps of the run exceed together with a probability of 95 %; 0: it may be chance


@dataclass(frozen=True)
class Groups:
    """The figures of each group that is large enough, and the gaps between groups."""

    fewest: int  # images of a group; a smaller one has no figures
    tests: int  # comparisons of two groups, in either direction, that share the error of 5 %
    figures: tuple[GroupFigure, ...]
    gaps: tuple[Gap, ...]
    too_small: Mapping[str, Mapping[str, int]]  # images of such groups, by column
    without_group: Mapping[str, int]  # images whose column is empty
