"""Results of an evaluation, asked for by name: figures with the intervals they are judged by, or why there are none.

Nothing is taken on trust: what is missing, null or no number comes back as a figure that cannot pass.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from auditkit.metrics.faithfulness import FLOOR
from auditkit.metrics.statistics import SAME
from auditkit.runs.evaluation.settings import CONTROL
from auditkit.runs.summary.summarise import OWN_MAPS
from auditkit.verdict.policy import ONE_MAP

Results = Mapping[str, Any]
NO_SECOND_LABEL = "no image has a second label with probability"  # how a reason begins that lies with the model


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
    resting_on: str = ""  # what images must have to count, where not all of them do
    short: str = ""  # why too little was measured to go by
    control: "Figure | None" = None  # of a margin: the control's own figure


class Measured:
    """What an evaluation found, by bundle and infill."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.bundles = bundles(results)
        self.infills = _infills(results)
        self._metrics = _by_source(results, "metrics")
        self._controls = _by_source(results, "controls")
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
        found = [_figure(entry, of) for entry in self._metrics.get((metric, bundle, infill, ""), [])]
        if metric == "best_effort":
            found = [self._of_unsure(figure, f"{FLOOR:g} or more", bundle, infill) for figure in found]
        return found or [Figure(of, reason=f"{metric.replace('_', ' ')} was not measured")]

    def margins(self, metric: str, control: str) -> list[Figure]:
        """How far every bundle's metric lies above a control's, on the same images and labels."""
        found = [figure for source in self.sources for figure in self._margins(metric, control, *source)]
        return found or [Figure("the run", reason="no heatmaps were measured")]

    def _margins(self, metric: str, control: str, bundle: str, infill: str) -> list[Figure]:
        against = f"{CONTROL}{control}" + (f":{bundle}" if control == ONE_MAP else "")
        of = f"{self._of(bundle, infill)} over {CONTROL}{control}"
        found = [_figure(entry, of) for entry in self._comparisons.get((metric, bundle, infill, against), [])]
        if not found:
            own = [figure for figure in self._figures(metric, bundle, infill) if figure.value is None]
            why = own[0] if own else Figure(of, reason=f"it was not compared with {CONTROL}{control}")
            return [replace(why, of=of)]
        unsure = control == ONE_MAP and metric in OWN_MAPS
        least = f"above {part(self.results, 'settings').get('eps1')}" if unsure else f"{FLOOR:g} or more"
        if unsure or metric == "best_effort":
            found = [self._of_unsure(figure, least, bundle, infill) for figure in found]
        # One map on all images says nothing of those where another label counts; its best effort is about just them.
        beside = self._control("best_effort" if unsure else metric, against, infill)
        short = "" if unsure or beside.low is not None else f"how {CONTROL}{control} itself fares is not in the results"
        named = replace(beside, of=f"{CONTROL}{control}")
        return [replace(figure, control=named, short=short) for figure in found]

    def _control(self, metric: str, source: str, infill: str) -> Figure:
        """A control's own figure; none should there be several."""
        found = [_figure(entry, source) for entry in self._controls.get((metric, source, infill, ""), [])]
        return found[0] if len(found) == 1 else Figure(source)

    def _of_unsure(self, figure: Figure, least: str, bundle: str, infill: str) -> Figure:
        """A figure that rests on the images with a second label that counts."""
        images = max(figure.n for figure in self._figures("worst_completeness", bundle, infill))
        return replace(figure, images=images, resting_on=f"have a second label with probability {least}")

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


def _figure(entry: Mapping[str, Any], of: str) -> Figure:
    reason = str(entry.get("reason") or "")
    if entry.get("value") is None:
        return Figure(of, reason=reason or "it was not measured", by_nature=reason.startswith(NO_SECOND_LABEL))
    return interval(of, entry, "value", reason)


def interval(of: str, entry: Mapping[str, Any], key: str, reason: str = "") -> Figure:
    """A figure with its interval; one without any width shows nothing, and is left out."""
    value, low, high = (_number(entry.get(name)) for name in (key, "low", "high"))
    missing = [name for name in ("low", "high") if entry.get(name) is None]
    n = _count(entry)
    if value is None or n < 1 or (len(missing) < 2 and (low is None or high is None or low > high)):
        return Figure(of, reason="its entry in the results is damaged", broken=True)
    if low == high:  # of a single image, or of images that are all alike in what has no bounds
        return Figure(of, value, n=n, reason=reason)
    return Figure(of, value, low, high, n, reason, equal=value == 0 and reason.startswith(SAME))


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
