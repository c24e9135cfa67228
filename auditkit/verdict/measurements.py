"""The figures of a run by metric, bundle and infill, and their margins over controls."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product

from auditkit.metrics.faithfulness import FLOOR
from auditkit.metrics.table import METRICS
from auditkit.runs.folder.figures import CONTROL, MetricResult
from auditkit.runs.folder.results import Results
from auditkit.runs.summary.wording import remark
from auditkit.verdict.policy import ONE_MAP_CONTROL

_Key = tuple[str, str, str, str]  # metric, bundle, infill and, in comparisons, what they are compared with


@dataclass(frozen=True)
class Figure:
    """A figure to judge; without a value, the reason why there is none."""

    of: str  # whose it is, in words
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    reason: str = ""  # why there is none, or what it rests on
    exact: bool = False  # a count or a measurement that has no interval
    by_nature: bool = False  # missing because of the model's probabilities, not of the supplied maps
    equal: bool = False  # on every image it is that of the control
    images: int = 0  # that could have had the figure
    resting_on: str = ""  # what images must have to count, where not all of them do
    short: str = ""  # why too little was measured
    control: "Figure | None" = None  # of a margin: the control's own figure
    against: str = ""  # of a margin: the control's name


class Measurements:
    """The figures of a run, by bundle and infill."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self._metrics = _by_source(results.metrics)
        self._controls = _by_source(results.controls)
        self._comparisons = _by_source(results.comparisons)

    @property
    def bundles(self) -> tuple[str, ...]:
        """The bundles of the run."""
        return self.results.bundles

    @property
    def infills(self) -> tuple[str, ...]:
        """The infills of the run."""
        return self.results.infills

    @property
    def sources(self) -> list[tuple[str, str]]:
        """Every bundle under every infill."""
        return list(product(self.bundles, self.infills))

    def figures(self, metric: str) -> list[Figure]:
        """A metric of every bundle under every infill; of the model itself, where it is about no map."""
        sources = [("", "")] if metric == "accuracy" else self.sources
        figures = []
        for bundle, infill in sources:
            figures += self._figures(metric, bundle, infill)
        return figures or [Figure("the run", reason="no heatmaps were measured")]

    def _figures(self, metric: str, bundle: str, infill: str) -> list[Figure]:
        of = self._of(bundle, infill)
        figures = [_figure(entry, of) for entry in self._metrics.get((metric, bundle, infill, ""), [])]
        if metric == "best_effort":
            figures = [self._of_unsure(figure, f"{FLOOR:g} or more", bundle, infill) for figure in figures]
        return figures or [Figure(of, reason=f"{metric.replace('_', ' ')} was not measured")]

    def margins(self, metric: str, control: str) -> list[Figure]:
        """How far every bundle's metric lies above a control's, on the same images and labels."""
        figures = []
        for bundle, infill in self.sources:
            figures += self._margins(metric, control, bundle, infill)
        return figures or [Figure("the run", reason="no heatmaps were measured")]

    def _margins(self, metric: str, control: str, bundle: str, infill: str) -> list[Figure]:
        against = f"{CONTROL}{control}" + (f":{bundle}" if control == ONE_MAP_CONTROL else "")
        of = f"{self._of(bundle, infill)} over {CONTROL}{control}"
        margins = [_figure(entry, of) for entry in self._comparisons.get((metric, bundle, infill, against), [])]
        if not margins:
            missing = [figure for figure in self._figures(metric, bundle, infill) if figure.value is None]
            reason = missing[0] if missing else Figure(of, reason=f"it was not compared with {CONTROL}{control}")
            return [replace(reason, of=of, against=f"{CONTROL}{control}")]
        unsure = control == ONE_MAP_CONTROL and METRICS[metric].rests_on_predicted_label
        least = f"above {self.results.settings.eps1}" if unsure else f"{FLOOR:g} or more"
        if unsure or metric == "best_effort":
            margins = [self._of_unsure(figure, least, bundle, infill) for figure in margins]
        # One map on all images says nothing of those where another label counts; its best effort is about just them.
        beside = self._control("best_effort" if unsure else metric, against, infill)
        short = "" if unsure or beside.low is not None else f"how {CONTROL}{control} itself fares is not in the results"
        named = replace(beside, of=f"{CONTROL}{control}")
        return [replace(figure, control=named, short=short, against=named.of) for figure in margins]

    def _control(self, metric: str, source: str, infill: str) -> Figure:
        """A control's own figure; none should there be several."""
        figures = [_figure(entry, source) for entry in self._controls.get((metric, source, infill, ""), [])]
        return figures[0] if len(figures) == 1 else Figure(source)

    def _of_unsure(self, figure: Figure, least: str, bundle: str, infill: str) -> Figure:
        """A figure that rests on the images with a second label that counts."""
        images = max(figure.n for figure in self._figures("worst_completeness", bundle, infill))
        return replace(figure, images=images, resting_on=f"have a second label with probability {least}")

    def evaluated(self, bundle: str) -> int:
        """Images of which a bundle has any figure, under the infill that has least of them."""
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
        name = bundle or "the model"
        return f"{name} ({infill})" if len(self.infills) > 1 and infill else name


def _by_source(entries: Iterable[MetricResult]) -> dict[_Key, list[MetricResult]]:
    by_source: dict[_Key, list[MetricResult]] = {}
    for entry in entries:
        by_source.setdefault((entry.name, entry.bundle or "", entry.infill, entry.against or ""), []).append(entry)
    return by_source


def _figure(entry: MetricResult, of: str) -> Figure:
    """A figure with its interval; an interval without any width shows nothing, and is left out."""
    reason = remark(entry)
    if entry.value is None:
        by_nature = entry.not_assessed is not None and entry.not_assessed.by_nature
        return Figure(of, reason=reason or "it was not measured", by_nature=by_nature)
    if entry.low == entry.high:  # of a single image, or of images that are all alike in what has no bounds
        return Figure(of, entry.value, n=entry.n, reason=reason)
    equal = entry.value == 0 and entry.note is not None and entry.note.all_equal
    return Figure(of, entry.value, entry.low, entry.high, entry.n, reason, equal=equal)
