"""The figures of each group of images, such as those of a site, and the widest gaps between groups."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np

from auditkit.arrays import Array
from auditkit.data.dataset import Members
from auditkit.metrics.betting import Sample
from auditkit.metrics.groups import FEWEST_OF_GROUP, gap_at_least
from auditkit.metrics.table import METRICS
from auditkit.runs.folder.figures import SamplingError
from auditkit.runs.folder.groups import Gap, GroupFigure, Groups
from auditkit.runs.summary.samples import Samples


@dataclass(frozen=True)
class Compared:
    """A figure in every group of a column that is large enough."""

    column: str
    name: str
    bundle: str
    infill: str
    samples: Mapping[str, Sample]  # by group
    error: SamplingError | None = None  # by the points of curves

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every two groups, the one with the lower mean first."""
        groups = sorted(self.samples, key=lambda group: self.samples[group].values.mean())
        return list(combinations(groups, 2))

    def figures(self) -> Iterator[GroupFigure]:
        """The figure of each group."""
        for group, sample in self.samples.items():
            low, high = sample.interval or (None, None)
            yield GroupFigure(self.column, group, self.name, self.bundle or None, self.infill,
                              float(sample.values.mean()), low, high, len(sample.values))  # fmt: skip

    def widest(self, tests: int) -> Gap:
        """The gap that is shown to be widest; the widest one seen where none is shown."""
        return max((self._gap(*pair, tests) for pair in self.pairs), key=lambda gap: (gap.at_least, gap.difference))

    def _gap(self, lower: str, higher: str, tests: int) -> Gap:
        samples = self.samples[lower], self.samples[higher]
        least = gap_at_least(*samples, tests)
        if least:
            least = max(0.0, least - sum(group_error(self.name, self.error, len(each.values)) for each in samples))
        difference = float(samples[1].values.mean() - samples[0].values.mean())
        return Gap(self.column, self.name, self.bundle or None, self.infill, lower, higher, difference, least)


def group_error(metric: str, entry: SamplingError | None, images: int) -> float:
    """How far a figure of so many of the images may be off because of the points of its curves; infinite if unknown."""
    if not METRICS[metric].curve:
        return 0.0
    error = None if entry is None else entry.of(metric)
    return math.inf if entry is None or error is None else error * math.sqrt(entry.n / images)


def in_group(samples: Samples, members: Sequence[str]) -> Array:
    """Which images of the run are members, by number."""
    return np.isin(np.array(samples.table.images, object), list(members))


def by_group(samples: Samples, members: Members, points: Sequence[SamplingError]) -> Groups:
    """The figures by group of every column, and the widest gaps."""
    errors = {(entry.bundle, entry.infill): entry for entry in points}
    too_small, without, compared = dict[str, dict[str, int]](), dict[str, int](), list[Compared]()
    for column, groups in members.items():
        chosen = {group: in_group(samples, images) for group, images in groups.items()}
        sizes = {group: int(images.sum()) for group, images in chosen.items()}
        too_small[column] = {group: size for group, size in sizes.items() if size < FEWEST_OF_GROUP}
        without[column] = len(samples.table.images) - sum(sizes.values())
        parts = {group: samples.of_images(images) for group, images in chosen.items() if group not in too_small[column]}
        for name, bundle, infill in _figures(samples):
            values = {group: part.of_metric(name, bundle, infill) for group, part in parts.items()}
            known = {group: sample for group, sample in values.items() if sample and _enough(sample)}
            if known:
                compared.append(Compared(column, name, bundle, infill, known, errors.get((bundle, infill))))
    figures = chain.from_iterable(entry.figures() for entry in compared)
    tests, gaps = widest_gaps(compared)
    few = {column: groups for column, groups in too_small.items() if groups}
    return Groups(FEWEST_OF_GROUP, tests, tuple(figures), gaps, few, {name: n for name, n in without.items() if n})


def widest_gaps(compared: Sequence[Compared]) -> tuple[int, tuple[Gap, ...]]:
    """How many tests share the error of 5 %, one for each order of two groups, and the widest gap of each figure.

    Half of the error is for accuracy, the other half for the maps, which have more figures.
    """
    tests = {True: 0, False: 0}  # of the maps, and of the model
    for entry in compared:
        tests[bool(entry.bundle)] += 2 * len(entry.pairs)
    parts = sum(map(bool, tests.values()))
    gaps = (entry.widest(parts * tests[bool(entry.bundle)]) for entry in compared if entry.pairs)
    return sum(tests.values()), tuple(gaps)


def _enough(sample: Sample) -> bool:
    return len(sample.values) >= FEWEST_OF_GROUP


def _figures(samples: Samples) -> Iterator[tuple[str, str, str]]:
    """Metric, bundle and infill of the figures that are compared: those that policies set limits to."""
    yield "accuracy", "", ""
    for bundle in samples.table.bundles:
        for number, infill in enumerate(samples.table.infills):
            for name, metric in METRICS.items():
                if metric.by_group and metric.compute and (number == 0 or metric.depends_on_infill):
                    yield name, bundle, infill
