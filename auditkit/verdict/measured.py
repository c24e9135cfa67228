"""Results of an evaluation, asked for by name: figures with the intervals they are judged by, or why there are none.

Nothing is taken on trust: what is missing, null or no number comes back as a figure that cannot pass.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from auditkit.runs.plan import CONTROL
from auditkit.verdict.rules import METRICS, ONE_MAP

Results = Mapping[str, Any]
Bounds = tuple[float, float]
DIFFERENCE = (-1.0, 1.0)  # of two shares
NO_SECOND_LABEL = "no image has a second label with probability"  # how a reason begins that lies with the model
COMPLETE = ("completeness", "worst_completeness", "best_effort")


@dataclass(frozen=True)
class Figure:
    """One figure as it is judged; without a value, the reason why there is none."""

    of: str  # whose it is, in words
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    reason: str = ""  # why there is none, or what it rests on
    exact: bool = False  # a count or a measurement that has no interval
    by_nature: bool = False  # it is missing because of the model's probabilities, not of what was supplied
    broken: bool = False  # the results are damaged
    equal: bool = False  # on every image it is that of the control
    images: int = 0  # that could have had the figure
    short: str = ""  # why too little was measured to go by


class Measured:
    """What an evaluation found, by bundle and infill."""

    def __init__(self, results: Results, confidence: float) -> None:
        self.results, self.confidence = results, confidence
        self.bundles = bundles(results)
        self.infills = _infills(results)
        self._metrics = _by_source(results, "metrics")
        self._comparisons = _by_source(results, "comparisons")

    @property
    def sources(self) -> list[tuple[str, str]]:
        """Every bundle under every infill."""
        return [(bundle, infill) for bundle in self.bundles for infill in self.infills]

    def figures(self, metric: str) -> list[Figure]:
        """A metric of every bundle under every infill; of the model itself, where it is about no map."""
        sources = [("", "")] if metric == "accuracy" else self.sources
        found = [figure for source in sources for figure in self._figures(metric, *source)]
        return found or [Figure("the run", reason="no heatmaps were measured")]

    def _figures(self, metric: str, bundle: str, infill: str) -> list[Figure]:
        of = self._of(bundle, infill)
        entries = self._metrics.get((metric, bundle, infill, ""), [])
        found = [_figure(entry, of, METRICS[metric], self.confidence) for entry in entries]
        if metric == "best_effort":
            found = [replace(figure, images=self._images(bundle, infill)) for figure in found]
        return found or [Figure(of, reason=f"{metric.replace('_', ' ')} was not measured")]

    def margins(self, metric: str, control: str) -> list[Figure]:
        """How far every bundle's metric lies above a control's, on the same images and labels."""
        found = [figure for source in self.sources for figure in self._margins(metric, control, *source)]
        return found or [Figure("the run", reason="no heatmaps were measured")]

    def _margins(self, metric: str, control: str, bundle: str, infill: str) -> list[Figure]:
        against = f"{CONTROL}{control}" + (f":{bundle}" if control == ONE_MAP else "")
        of = f"{self._of(bundle, infill)} over {CONTROL}{control}"
        entries = self._comparisons.get((metric, bundle, infill, against), [])
        found = [_figure(entry, of, DIFFERENCE, self.confidence) for entry in entries]
        found = [replace(figure, equal=(entry.get("value") == entry.get("low") == entry.get("high") == 0))
                 for figure, entry in zip(found, entries, strict=True)]  # fmt: skip
        if metric == "best_effort":
            found = [replace(figure, images=self._images(bundle, infill)) for figure in found]
        if not found:
            own = [figure for figure in self._figures(metric, bundle, infill) if figure.value is None]
            why = own[0] if own else Figure(of, reason=f"it was not compared with {CONTROL}{control}")
            return [replace(why, of=of)]
        if control == ONE_MAP and metric in COMPLETE and self.one_label(bundle, infill):
            return [self._nothing_to_tell(figure) if figure.equal else figure for figure in found]
        return found

    @staticmethod
    def _nothing_to_tell(figure: Figure) -> Figure:
        """Where no second label counts, one map for all labels is as complete as any, whoever made the maps."""
        why = f"{NO_SECOND_LABEL} 0.01 or more, so one map for all labels cannot be told from maps of their own"
        return Figure(figure.of, reason=why, by_nature=True)

    def one_label(self, bundle: str, infill: str) -> bool:
        """Whether the model is so sure of every image that its other labels do not count."""
        return any(figure.by_nature for figure in self._figures("best_effort", bundle, infill))

    def _images(self, bundle: str, infill: str) -> int:
        return max(figure.n for figure in self._figures("worst_completeness", bundle, infill))

    def evaluated(self, bundle: str) -> int:
        """Images of which a bundle has any figure, under the infill that has least of them."""
        counts: dict[str, int] = dict.fromkeys(self.infills, 0)
        for (_, source, infill, _), entries in self._metrics.items():
            if source == bundle:
                counts[infill] = max([counts.get(infill, 0), *(_count(entry) for entry in entries)])
        return min(counts.values(), default=0)

    def control_values(self, control: str, infill: str) -> int:
        """How many figures of a control there are."""
        return sum(entry.get("bundle") == f"{CONTROL}{control}" and entry.get("infill") == infill
                   and _number(entry.get("value")) is not None
                   for entry in entries_of(self.results, "controls"))  # fmt: skip

    def _of(self, bundle: str, infill: str) -> str:
        named = bundle or "the model"
        return f"{named} ({infill})" if len(self.infills) > 1 and infill else named


def entries_of(results: Results, key: str) -> list[Mapping[str, Any]]:
    """The objects of a list in the results; what is none is left out."""
    listed = results.get(key)
    return [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []


def part(results: Results, *keys: str) -> Mapping[str, Any]:
    """An object inside the results; an empty one where it is missing."""
    found: Any = results
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def bundles(results: Results) -> tuple[str, ...]:
    """Bundles that the run names or has figures of, without the controls."""
    measured = [str(entry["bundle"]) for entry in entries_of(results, "metrics") if entry.get("bundle")]
    return tuple(dict.fromkeys([*part(results, "run", "bundles"), *measured]))


def _infills(results: Results) -> tuple[str, ...]:
    said = part(results, "settings").get("infill")
    listed = [str(name) for name in said] if isinstance(said, list) else []
    measured = [str(entry["infill"]) for entry in entries_of(results, "metrics") if entry.get("infill")]
    return tuple(dict.fromkeys([*listed, *measured]))


def _by_source(results: Results, key: str) -> dict[tuple[str, str, str, str], list[Mapping[str, Any]]]:
    """Entries by metric, bundle, infill and, in comparisons, what they are compared with."""
    found: dict[tuple[str, str, str, str], list[Mapping[str, Any]]] = {}
    for entry in entries_of(results, key):
        name, *rest = (str(entry.get(part) or "") for part in ("name", "bundle", "infill", "against"))
        found.setdefault((name, rest[0], rest[1], rest[2]), []).append(entry)
    return found


def _figure(entry: Mapping[str, Any], of: str, bounds: Bounds, confidence: float) -> Figure:
    reason = str(entry.get("reason") or "")
    if entry.get("value") is None:
        return Figure(of, reason=reason or "it was not measured", by_nature=reason.startswith(NO_SECOND_LABEL))
    return interval(of, entry, "value", bounds, confidence, reason)


def interval(
    of: str, entry: Mapping[str, Any], key: str, bounds: Bounds, confidence: float, reason: str = ""
) -> Figure:
    """A figure with its interval, widened where the images showed no spread."""
    value, low, high = (_number(entry.get(name)) for name in (key, "low", "high"))
    missing = [name for name in ("low", "high") if entry.get(name) is None]
    n = _count(entry)
    if value is None or n < 1 or (len(missing) < 2 and (low is None or high is None or low > high)):
        return Figure(of, reason="its entry in the results is damaged", broken=True)
    if low is None or high is None or low < high:
        return Figure(of, value, low, high, n, reason)
    return _widened(Figure(of, value, low, high, n), bounds, confidence)


def _widened(figure: Figure, bounds: Bounds, confidence: float) -> Figure:
    """The interval of a figure that was the same on every image.

    A bootstrap of equal values has no width, however few they are. What n equal images do show is that no more than a
    share p of all images differs, where (1 - p)^n is the chance of seeing none; those could have any value there is.
    """
    value = figure.value or 0.0
    share = 1 - ((1 - confidence) / 2) ** (1 / figure.n)
    low, high = value - share * (value - bounds[0]), value + share * (bounds[1] - value)
    note = f"all images have the same value; the interval allows for {share:.1%} of images that differ"
    return replace(figure, low=low, high=high, reason=note)


def _number(value: Any) -> float | None:
    """A finite number, or None."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if fits else None


def _count(entry: Mapping[str, Any]) -> int:
    n = entry.get("n")
    return n if isinstance(n, int) and not isinstance(n, bool) else 0


def largest(values: Iterable[Any]) -> float | None:
    """The largest of some numbers; None if one is no number."""
    numbers = [_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    return max(known) if known and len(known) == len(numbers) else None
