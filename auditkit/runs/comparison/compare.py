"""Two runs side by side: paired differences on the images that both have, and all that stands in the way of them."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.metrics.protocols import preset
from auditkit.metrics.statistics import Interval, paired_difference
from auditkit.runs.comparison import comparability
from auditkit.runs.evaluation.settings import CONTROL, Evaluation
from auditkit.runs.folder.results_schema import well_formed
from auditkit.runs.folder.store import RESULTS, RUN, Store
from auditkit.runs.summary.per_image import Gap, Group, Values, image_means, paired
from auditkit.runs.summary.row_table import Items
from auditkit.runs.summary.summarise import LOWER_IS_BETTER

SCHEMA_VERSION = 1
PAIRS = 2**31  # labels that an image can have in the keys of Values
NOT_COMPARED = ("tie_spread", "degenerate_boxes", "degenerate_boxes_tuned")  # neither high nor low is good in itself
SIDES = ("the first run", "the second run")
NEEDED = ("run", "subject", "settings", "environment")


@dataclass(frozen=True)
class Run:
    """A finished run: what it says, and its rows."""

    name: str
    results: Mapping[str, Any]
    digest: str  # of results.json
    items: Items

    @cached_property
    def bundles(self) -> list[str]:
        """Its sources other than controls."""
        return [source for source in self.items.sources if not source.startswith(CONTROL)]

    def metrics(self, bundle: str, infill: str) -> "dict[str, Values | Gap]":
        """Each metric of a bundle before it is averaged."""
        source, lane = self.items.sources.index(bundle), self.items.infills.index(infill)
        at = np.flatnonzero((self.items.source == source) & (self.items.infill == lane))
        return {found.name: found for found in Group(self.items, at).metrics()}

    def identity(self) -> dict[str, Any]:
        """What tells it from other runs."""
        said = self.results
        return {
            "run": self.name, "results": self.digest, "model": said["subject"]["model"],
            "images": said["subject"]["images"], "bundles": said["run"].get("bundles"),
            "policy": {key: (said.get("policy") or {}).get(key) for key in ("name", "sha256")},
            "environment": said["environment"], "verdict": said.get("verdict"),
            "suppressed": [one["id"] for one in said.get("checks") or [] if one["status"] == "suppressed"],
        }  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """A metric of the second run less that of the first, over what both have."""

    name: str
    bundle_a: str | None
    bundle_b: str | None
    infill: str
    value_a: float  # over the same images as the difference
    value_b: float
    interval: Interval
    noise: float = 0.0  # how far the two runtimes may be off together

    @property
    def shown(self) -> bool:
        """Whether the interval excludes 0, and all that the runtimes may have caused."""
        low, high = self.interval.low, self.interval.high
        return low is not None and high is not None and (low > self.noise or high < -self.noise)

    @property
    def better(self) -> bool | None:
        """Whether the second run is the better one; None where no difference is shown."""
        return (self.interval.value < 0) == (self.name in LOWER_IS_BETTER) if self.shown else None

    def to_json(self) -> dict[str, Any]:
        """The entry of a comparison."""
        found = self.interval
        return {
            "name": self.name, "bundle_a": self.bundle_a, "bundle_b": self.bundle_b, "infill": self.infill,
            "value_a": self.value_a, "value_b": self.value_b, "value": found.value, "low": found.low,
            "high": found.high, "confidence": found.confidence, "n": found.n, "better": self.better,
            "reason": found.note or None,
        }  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """All that two runs have in common, and where they differ; differences are b less a."""

    a: dict[str, Any]
    b: dict[str, Any]
    shared_images: int
    only_a: int
    only_b: int
    differences: tuple[Difference, ...]
    checks: tuple[dict[str, str | None], ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """One plain object."""
        return {
            "schema_version": SCHEMA_VERSION, "a": self.a, "b": self.b, "shared_images": self.shared_images,
            "only_a": self.only_a, "only_b": self.only_b, "differences": [one.to_json() for one in self.differences],
            "checks": list(self.checks), "notes": list(self.notes),
        }  # fmt: skip

    def as_baseline(self) -> dict[str, Any]:
        """The object for the results of b itself, whose digest is not yet known."""
        later = {key: value for key, value in self.b.items() if key != "results"}
        return self.to_json() | {"b": later, "run": self.a["run"], "results_sha256": self.a["results"]}


def compare(run_a: Path, run_b: Path) -> Comparison:
    """What changed from the run in one folder to that in another."""
    return between(read(run_a), read(run_b))


def read(folder: Path) -> Run:
    """The finished run in a folder."""
    if not folder.is_dir():
        raise BadInput(f"there is no run {folder}; give the folder that audit or evaluate wrote.")
    store = Store(folder)
    if not (folder / RUN).exists():
        raise BadInput(f"{folder} is not a run (it has no {RUN}); give the folder that audit or evaluate wrote.")
    results = store.results()
    if lacking := [name for name in NEEDED if not isinstance(results.get(name), dict)]:
        raise BadInput(f"{folder / RESULTS} says nothing of its {lacking[0]}; it is not what audit or evaluate wrote.")
    well_formed(results, folder / RESULTS)
    keys, settings = store.keys(), results["settings"]
    if not keys:
        raise BadInput(f"{folder} has no rows to compare; its folder 'items' is missing or empty.")
    named = Evaluation(labels=settings.get("labels"), renormalise=settings.get("renormalise")).targets_listed_labels
    items = Items(store.tables(keys), named=named)
    if len(items) != (expected := results["run"].get("rows", len(items))):
        raise BadInput(f"{folder / 'items'} holds {len(items)} rows, but the run made {expected}; see auditkit verify.")
    digest = hashlib.sha256((folder / RESULTS).read_bytes()).hexdigest()
    return Run(folder.resolve().name, results, digest, items)


def between(a: Run, b: Run) -> Comparison:
    """What changed from one run to another; refused where their figures are not of the same kind."""
    infills, notes = comparability.infills(a.results, b.results)
    pairs = _bundles(a, b, notes)
    shared = comparability.images(a, b, notes)
    numbers = [_numbers(run, shared) for run in (a, b)]
    found = [*_accuracy(a, b, numbers, len(shared))]
    for bundles in pairs:
        for infill in infills:
            found += _differences(a, b, bundles, infill, numbers, len(shared), notes)
    if not found:
        raise BadInput(f"the runs have no metric in common: {'; '.join(notes)}.")
    notes += comparability.doubts(a, b, shared)
    if any(one.shown for one in found):
        notes.append(
            f"{len(found)} differences are looked at, each with an interval of its own: some may exclude 0 by chance"
        )
    return Comparison(
        a.identity(), b.identity(), len(shared), len(a.items.images) - len(shared), len(b.items.images) - len(shared),
        tuple(found), tuple(_checks(a, b)), tuple(notes),
    )  # fmt: skip


def _bundles(a: Run, b: Run, notes: list[str]) -> list[tuple[str, str]]:
    """Bundles by name where both runs have it; else the only ones."""
    both, sides = [name for name in a.bundles if name in b.bundles], list(zip(SIDES, (a, b), strict=True))
    if not both and len(a.bundles) == len(b.bundles) == 1:
        return [(a.bundles[0], b.bundles[0])]
    if not both:
        listed = " and ".join(f"{side} has {', '.join(run.bundles) or 'no heatmaps'}" for side, run in sides)
        raise BadInput(f"no bundle is in both runs: {listed}; give runs with bundles of the same name, or one each.")
    for side, run in sides:
        if alone := [name for name in run.bundles if name not in both]:
            notes.append(f"only {side} has {', '.join(alone)}")
    return [(name, name) for name in both]


def _numbers(run: Run, shared: list[str]) -> Array:
    """The number of each of a run's images among those that are shared; -1 where it is not."""
    place = {name: number for number, name in enumerate(shared)}
    return np.array([place.get(name, -1) for name in run.items.images])


def _differences(
    a: Run, b: Run, bundles: tuple[str, str], infill: str, numbers: list[Array], images: int, notes: list[str]
) -> Iterator[Difference]:  # fmt: skip
    first, second = a.metrics(bundles[0], infill), b.metrics(bundles[1], infill)
    missing: dict[str, list[str]] = {}
    for name in dict.fromkeys((*first, *second)):
        mine, theirs = first.get(name), second.get(name)
        if name in NOT_COMPARED:
            continue
        if isinstance(mine, Values) and isinstance(theirs, Values):
            found = _difference(_on(mine, numbers[0]), _on(theirs, numbers[1]), images, a)
            if found is not None:
                lane, noise = _infill(a, name, infill), _noise(a, b, name)
                yield Difference(name, *bundles, lane, found[0], found[1], found[2], noise)
                continue
        missing.setdefault(_why(mine, theirs), []).append(name.replace("_", " "))
    notes += [f"{bundles[1]} ({infill}), not compared: {', '.join(names)} ({why})" for why, names in missing.items()]


def _why(mine: "Values | Gap | None", theirs: "Values | Gap | None") -> str:
    """Why a metric has no difference."""
    said = {side: found.reason if isinstance(found, Gap) else "not measured"
            for side, found in zip(SIDES, (mine, theirs), strict=True) if not isinstance(found, Values)}  # fmt: skip
    if len(said) == len(SIDES) and len(set(said.values())) == 1:
        said = {"both runs": said[SIDES[0]]}
    return "; ".join(f"in {side}: {why}" for side, why in said.items()) or "no image has it in both runs"


def _infill(run: Run, name: str, infill: str) -> str:
    protocol = run.results["settings"].get("protocol")
    return preset(protocol).deletion.infill if protocol and name == "deletion" else infill


def _noise(a: Run, b: Run, name: str) -> float:
    """How far both runtimes together were from strict float32 on the CPU, in such a figure."""
    kind = "alpha" if name.endswith(("completeness", "effort")) else "beta" if "soundness" in name else "insertion"
    return sum((run.results.get("runtime") or {}).get(kind) or 0.0 for run in (a, b))


def _on(values: Values, numbers: Array) -> Values:
    """The values on shared images, under the numbers that these have in both runs."""
    at = numbers[values.images]
    here = at >= 0
    keys = at[here] * PAIRS + values.keys[here] % PAIRS
    return replace(values, keys=keys, images=at[here], values=values.values[here])


def _difference(mine: Values, theirs: Values, images: int, run: Run) -> tuple[float, float, Interval] | None:
    """Both means and the paired difference: by label where both have the same ones, else by image."""
    if not np.array_equal(np.sort(mine.keys), np.sort(theirs.keys)):
        mine, theirs = _by_image(mine, images), _by_image(theirs, images)
    said = {key: run.results["settings"][name] for key, name in
            (("confidence", "confidence"), ("method", "interval"), ("seed", "seed"))}  # fmt: skip
    found: tuple[float, float, Interval] | None = paired(theirs, mine, lambda later, earlier, at: (
        float(earlier.mean()), float(later.mean()), paired_difference(later, earlier, at, **said)
    ))  # fmt: skip
    return found


def _by_image(values: Values, images: int) -> Values:
    means = image_means(values, images)
    have = np.flatnonzero(np.isfinite(means))
    return replace(values, keys=have * PAIRS, images=have, values=means[have])


def _accuracy(a: Run, b: Run, numbers: list[Array], images: int) -> Iterator[Difference]:
    """How often the models are right, where both runs were told what is right."""

    def hits(run: Run, places: Array) -> Values:
        known = np.flatnonzero(np.isfinite(run.items.truth))
        right = (run.items.truth == run.items.prediction)[known].astype(np.float64)
        return _on(Values("accuracy", known * PAIRS, known, right), places)

    found = _difference(hits(a, numbers[0]), hits(b, numbers[1]), images, a)
    if found is not None:
        yield Difference("accuracy", None, None, "", *found)


def _checks(a: Run, b: Run) -> Iterator[dict[str, str | None]]:
    """What each check of either run said before and after."""
    before, after = ({check["id"]: check["status"] for check in run.results.get("checks") or []} for run in (a, b))
    for name in dict.fromkeys((*before, *after)):
        yield {"id": name, "before": before.get(name), "after": after.get(name)}
