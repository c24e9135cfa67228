"""The figures of a run by metric, bundle and infill, and their margins over controls."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, product

from auditkit.metrics.betting import Sample
from auditkit.metrics.faithfulness import FLOOR
from auditkit.metrics.groups import FEWEST_OF_GROUP
from auditkit.metrics.statistics import Bounds
from auditkit.metrics.table import METRICS
from auditkit.runs.folder.figures import CONTROL, MetricResult
from auditkit.runs.folder.results import Results
from auditkit.runs.summary.groups import in_group
from auditkit.runs.summary.samples import Samples
from auditkit.runs.summary.wording import remark, source_name, source_text
from auditkit.verdict.policy import ONE_MAP_CONTROL

_Key = tuple[str, str, str, str]  # metric, bundle, infill and, in comparisons, what they are compared with


@dataclass(frozen=True)
class Figure:
    """A figure to judge; without a value, the reason why there is none."""

    of: str  # whose it is, in words
    value: float | None = None
    n: int = 0
    reason: str = ""  # why there is none, or what it rests on
    sample: Sample | None = None  # the values of its images, which a test takes
    error: float | None = 0.0  # how far it may be off because its curves are known at some points only; None: unknown
    exact: bool = False  # a count or a measurement that no chance affects
    by_nature: bool = False  # missing because of the model's probabilities, not of the supplied maps
    same_curves: bool = False  # of a margin: the maps rank pixels as the control's do, on every image
    images: int = 0  # that could have had the figure
    resting_on: str = ""  # what images must have to count, where not all of them do
    short: str = ""  # why too little was measured
    control: "Figure | None" = None  # of a margin: the control's own figure
    against: str = ""  # of a margin: the control's name
    group: str = ""  # whose images it is about; empty: all

    @property
    def interval(self) -> Bounds | None:
        """The limits between which the tests do not decide."""
        return None if self.sample is None else self.sample.interval


NO_HEATMAPS = Figure("the run", reason="no heatmaps were measured")


class Measurements:
    """The figures of a run, by bundle and infill; without samples, no test can decide about them."""

    def __init__(self, results: Results, samples: Samples | None, group: str = "") -> None:
        self._samples, self._group = samples, group
        self.results, self.bundles, self.infills = results, results.bundles, results.infills
        self.sources = list(product(results.bundles, results.infills))
        self._metrics = _by_source(results.metrics)
        self._controls = _by_source(results.controls)
        self._comparisons = _by_source(results.comparisons)
        self._errors = {(entry.bundle, entry.infill): entry for entry in results.points}

    def by_group(self) -> "list[Measurements]":
        """The same of the images of each group of each column."""
        samples, parts = self._samples, list[Measurements]()
        if samples is None:
            return parts
        for column, groups in (self.results.subject.groups or {}).items():
            parts += [Measurements(self.results, samples.of_images(in_group(samples, images)), f"{column} {group}")
                      for group, images in groups.items()]  # fmt: skip
        return parts

    def figures(self, metric: str) -> list[Figure]:
        """A metric of every bundle under every infill; of the model itself, where it is about no map."""
        sources = [("", "")] if metric == "accuracy" else self.sources
        figures = list(chain.from_iterable(self._figures(metric, *source) for source in sources))
        return figures or [NO_HEATMAPS]

    def _figures(self, metric: str, bundle: str, infill: str) -> list[Figure]:
        of, sample = self._of(bundle, infill), self._sample(metric, bundle, infill)
        error = self._error(metric, bundle, infill)
        entries = self._metrics.get((metric, bundle, infill, ""), [])
        figures = [self._figure(entry, of, sample, error) for entry in entries]
        if metric == "best_effort":
            figures = [self._of_unsure(figure, f"{FLOOR:g} or more", bundle, infill) for figure in figures]
        return figures or [Figure(of, reason=f"{metric.replace('_', ' ')} was not measured")]

    def margins(self, metric: str, control: str) -> list[Figure]:
        """How far every bundle's metric lies above a control's, on the same images and labels."""
        margins = list(chain.from_iterable(self._margins(metric, control, *source) for source in self.sources))
        return margins or [NO_HEATMAPS]

    def _margins(self, metric: str, control: str, bundle: str, infill: str) -> list[Figure]:
        name = f"{CONTROL}{control}"
        against = f"{name}:{bundle}" if control == ONE_MAP_CONTROL else name
        of = self._of(bundle, infill)
        sample = None if self._samples is None else self._samples.of_margin(metric, bundle, infill, against)
        errors = [self._error(metric, source, infill) for source in (bundle, against)]
        error = None if None in errors else sum(filter(None, errors))
        margins = [self._figure(entry, of, sample, error)
                   for entry in self._comparisons.get((metric, bundle, infill, against), [])]  # fmt: skip
        if not margins:
            missing = [figure for figure in self._figures(metric, bundle, infill) if figure.value is None]
            figure = missing[0] if missing else Figure(of, reason=f"it was not compared with {source_text(name)}")
            return [replace(figure, of=of, against=name)]
        unsure = control == ONE_MAP_CONTROL and METRICS[metric].rests_on_predicted_label
        least = f"above {self.results.settings.eps1}" if unsure else f"{FLOOR:g} or more"
        if unsure or metric == "best_effort":
            margins = [self._of_unsure(margin, least, bundle, infill) for margin in margins]
        # Only images on which another label counts tell of the one map; its best effort is about just them.
        of_control = self._of_control("best_effort" if unsure else metric, against, infill)
        known = unsure or of_control.sample is not None
        short = "" if known else f"the results lack the figure of {source_text(name)} itself"
        same_curves = self._samples is not None and self._samples.same_curves(bundle, infill, against)
        return [replace(margin, control=of_control, short=short, against=name, same_curves=same_curves)
                for margin in margins]  # fmt: skip

    def _of_control(self, metric: str, control: str, infill: str) -> Figure:
        entries = self._controls.get((metric, control, infill, ""), [])
        sample = self._sample(metric, control, infill)
        return self._figure(entries[0], control, sample) if len(entries) == 1 else Figure(control)

    def _figure(self, entry: MetricResult, of: str, sample: Sample | None, error: float | None = 0.0) -> Figure:
        """The figure of an entry; of a group, that of its images, where they are enough."""
        figure = _figure(entry, of, sample, error)
        if not self._group or figure.value is None:
            return replace(figure, group=self._group)
        images = 0 if sample is None else len(sample.values)
        if sample is None or images < FEWEST_OF_GROUP:
            few = f"{images} images of {self._group} have this figure, {FEWEST_OF_GROUP} are needed"
            return Figure(of, reason=few, group=self._group)
        error = None if error is None else error * math.sqrt(figure.n / images)
        return replace(figure, value=float(sample.values.mean()), n=images, error=error, group=self._group)

    def _sample(self, metric: str, source: str, infill: str) -> Sample | None:
        return None if self._samples is None else self._samples.of_metric(metric, source, infill)

    def _error(self, metric: str, source: str, infill: str) -> float | None:
        """How far a figure may be off because of the points of its curves; None if the results do not say."""
        if not METRICS[metric].curve:
            return 0.0
        entry = self._errors.get((source, infill))
        return None if entry is None else entry.of(metric)

    def _of_unsure(self, figure: Figure, least: str, bundle: str, infill: str) -> Figure:
        """A figure that rests on the images with a second label that counts."""
        images = max(figure.n for figure in self._figures("worst_completeness", bundle, infill))
        return replace(figure, images=images, resting_on=f"have a second label with probability {least}")

    def evaluated(self, bundle: str) -> int:
        """Images for which a bundle has any figure, under the infill that has the fewest."""
        counts = dict.fromkeys(self.infills, 0)
        for entry in self.results.metrics:
            if entry.bundle == bundle:
                counts[entry.infill] = max(counts.get(entry.infill, 0), entry.n)
        return min(counts.values(), default=0)

    def has_control(self, control: str, infill: str) -> bool:
        """Whether there is any figure of a control."""
        source = f"{CONTROL}{control}"
        return any((entry.bundle, entry.infill) == (source, infill) and entry.value is not None
                   for entry in self.results.controls)  # fmt: skip

    def _of(self, bundle: str, infill: str) -> str:
        name = source_name(bundle)
        name = f"{name} ({infill})" if len(self.infills) > 1 and infill else name
        return f"{name}, {self._group}" if self._group else name


def _by_source(entries: Iterable[MetricResult]) -> dict[_Key, list[MetricResult]]:
    by_source: dict[_Key, list[MetricResult]] = {}
    for entry in entries:
        by_source.setdefault((entry.name, entry.bundle or "", entry.infill, entry.against or ""), []).append(entry)
    return by_source


def _figure(entry: MetricResult, of: str, sample: Sample | None, error: float | None = 0.0) -> Figure:
    """A figure with the values of its images; notes on the entry's interval are dropped, since a check has its own."""
    if entry.value is None:
        by_nature = entry.not_assessed is not None and entry.not_assessed.by_nature
        return Figure(of, reason=remark(entry) or "it was not measured", by_nature=by_nature)
    reason = "" if entry.note is not None and entry.note.about_interval else remark(entry)
    return Figure(of, entry.value, entry.n, reason, sample, error)
