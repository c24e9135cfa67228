"""What the checks of `standard` say of every set of maps that was measured.

    python -m benchmarks.calibration.rules FOLDER [FOLDER ...] [--chosen-on FOLDER] [--images 100] [--plot FILE.svg]

FOLDER is what `python -m benchmarks.calibration` wrote. Prints one JSON object: for each model and set the status of
each check and of all together; how many sets of each family pass and fail, with exact 95 % intervals; and how many
checks are decided, by their margin. Models that the limits were chosen on are judged too, but not counted.
"""

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from auditkit.arrays import Array
from auditkit.metrics.betting import DECISIVE, FEWEST_IMAGES, Sample
from auditkit.metrics.label_specificity import CLIPPED
from auditkit.report.markdown import table
from auditkit.report.svg import Axis
from auditkit.runs.folder.figures import CONTROL
from auditkit.verdict.policy import CONTROLS, ONE_MAP_CONTROL
from auditkit.verdict.policy_file import read_policy
from benchmarks.drawing import MARKS, page
from benchmarks.reporting import origin

BLIND = tuple(control for control in CONTROLS if control != ONE_MAP_CONTROL)
HONEST, FAKE = "honest maps", "fake maps"
GOOD = ("mask", "rise", "grad-cam", "occlusion", "differences")  # methods whose maps should pass
MARGINS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)  # in shares of half the range of a figure
Record = dict[str, Any]


@dataclass(frozen=True)
class Test:
    """One thing that is asked of maps: a figure, or its margin over every blind control."""

    figure: str
    over_controls: bool
    clip: float

    def samples(self, record: Record, source: str, images: slice) -> list[Sample]:
        """The values of each test; none where a figure is missing."""
        own = _values(record, source, self.figure, images)
        controls = [f"{CONTROL}{control}" for control in BLIND] if self.over_controls else []
        others = [_values(record, control, self.figure, images) for control in controls]
        return [self.sample(own - other) for other in others] if others else [self.sample(own)]

    def sample(self, values: Array) -> Sample:
        """Values that there are, within the range of the test."""
        return Sample(np.clip(values[np.isfinite(values)], -self.clip, self.clip), (-self.clip, self.clip))


def _values(record: Record, source: str, figure: str, images: slice) -> Array:
    return np.array(record["values"][source][figure], float)[images]


LOG_ODDS = CLIPPED[1]
CHECKS: dict[str, tuple[Test, ...]] = {
    "prediction-above-controls": (Test("relevance_gain", True, 1.0),),
    "other-labels-above-controls": (
        Test("other_log_odds", True, LOG_ODDS),
        Test("other_label_evidence", False, LOG_ODDS),
    ),
    "labels-differ": (Test("label_specificity", False, LOG_ODDS),),
}
FIGURES = {test.figure for tests in CHECKS.values() for test in tests}
LIMITS = {check.id: check.limit for check in read_policy("standard").checks}


def judged(name: str, record: Record, source: str, images: slice) -> Record:
    """The status of a check, the least mean above its limit, and the e-values."""
    limit = LIMITS[name]
    samples = list(chain.from_iterable(test.samples(record, source, images) for test in CHECKS[name]))
    least = min(float(sample.values.mean()) - limit for sample in samples)
    holds = min(sample.e_above(limit) for sample in samples)
    fails = [sample.e_below(limit) for sample in samples]
    status = "pass" if holds >= DECISIVE else "fail" if statistics.fmean(fails) >= DECISIVE else "inconclusive"
    enough = min(len(sample.values) for sample in samples) >= FEWEST_IMAGES
    share = least / CHECKS[name][0].clip  # of half the range
    return {"status": status if enough else "inconclusive", "least": round(least, 3), "share": round(share, 4),
            "fails": fails}  # fmt: skip


def verdict(record: Record, source: str, images: slice) -> Record:
    """The statuses of all checks, and the verdict that they give together."""
    found = {name: judged(name, record, source, images) for name in CHECKS}
    against = statistics.fmean(value for check in found.values() for value in check.pop("fails"))
    statuses = {check["status"] for check in found.values()}
    together = (
        "pass" if statuses == {"pass"} else "fail" if "fail" in statuses and against >= DECISIVE else "inconclusive"
    )
    return {"set": source, "family": family(source), "verdict": together, "checks": found,
            "shown_worse": shown_worse(record, source, images)}  # fmt: skip


def family(source: str) -> str:
    """What kind of maps a set has."""
    kind, _, name = source.partition("/")
    if kind == "honest":
        return HONEST if name in GOOD else "gradient methods"
    return FAKE if kind == "blind" else f"{kind} maps"


def shown_worse(record: Record, source: str, images: slice) -> bool | None:
    """Whether a paired comparison with the maps that damaged ones were made from shows them to be worse."""
    kind, _, name = source.partition("/")
    honest = f"honest/{name.rpartition(', of ')[2]}"
    if kind != "damaged" or honest not in record["values"]:
        return None
    tests = [check[0] for check in CHECKS.values()]
    samples = [test.sample(_values(record, source, test.figure, images) - _values(record, honest, test.figure, images))
               for test in tests]  # fmt: skip
    return statistics.fmean(sample.e_below(0.0) for sample in samples) >= DECISIVE


def rates(sets: list[Record]) -> list[Record]:
    """How many sets of each family pass and fail, with exact intervals."""
    found = []
    for name in dict.fromkeys(one["family"] for one in sets):
        own = [one for one in sets if one["family"] == name]
        row: Record = {"family": name, "sets": len(own)}
        for status in ("pass", "fail"):
            count = sum(one["verdict"] == status for one in own)
            ends = binomtest(count, len(own)).proportion_ci(method="exact")
            row[status] = {"count": count, "low": round(float(ends.low), 3), "high": round(float(ends.high), 3)}
        found.append(row)
    return found


def decided(sets: list[Record]) -> list[Record]:
    """The share of checks that are decided, by how far the least mean lies from the limit."""
    checks = [check for one in sets for check in one["checks"].values()]
    found = []
    for low, high in pairwise((*MARGINS, math.inf)):
        own = [check for check in checks if low <= abs(check["share"]) < high]
        count = sum(check["status"] != "inconclusive" for check in own)
        found.append({"margin": low, "checks": len(own), "decided": count})
    return found


def calibration_table(results: Record) -> str:
    """The rates on models that nothing was chosen on, then every set of every model."""
    lines = [[row["family"], str(row["sets"]), *(_rate(row[status], row["sets"]) for status in ("pass", "fail"))]
             for row in results["rates"]]  # fmt: skip
    margins = [[f"{row['margin']:g} or more", str(row["checks"]), str(row["decided"])] for row in results["decided"]]
    parts = ["On models that nothing was chosen on, with exact 95 % intervals:",
             table(["maps", "sets", "pass", "fail"], lines),
             "Checks by the margin between the least mean and its limit, as a share of half the figure's range:",
             table(["margin", "checks", "decided"], margins),
             "Every set: in brackets, how far the least of a check's means lies above its limit. The last column says "
             "whether a paired comparison shows damaged maps to be worse than the undamaged ones."]  # fmt: skip
    for model in results["models"]:
        lines = [_line(one) for one in model["sets"]]
        chosen = "; limits were chosen on it" if model["chosen_on"] else ""
        head = ["maps", "verdict", *CHECKS, "shown to be worse"]
        parts += [f"{model['model']}, {model['images']} images{chosen}:", table(head, lines)]
    return "\n\n".join(parts)


def _line(one: Record) -> list[str]:
    checks = (f"{check['status']} ({check['least']:+.2f})" for check in one["checks"].values())
    return [one["set"], one["verdict"], *checks, {None: "", True: "yes", False: "no"}[one["shown_worse"]]]


def _rate(figure: Record, sets: int) -> str:
    return f"{figure['count']} ({figure['count'] / sets:.0%}; {figure['low']:.0%} to {figure['high']:.0%})"


def plot(rows: list[Record]) -> str:
    """The share of checks that are decided, against their margin."""
    points = []
    for row, following in zip(rows, [*MARGINS[1:], 0.4], strict=True):
        if row["checks"]:
            ends = binomtest(row["decided"], row["checks"]).proportion_ci(method="exact")
            points.append([(row["margin"] + following) / 2, row["decided"] / row["checks"], ends.low, ends.high])
    series = [("checks of all sets of maps, 40 or 100 images", *MARKS[0], np.array(points))]
    axes = Axis(0.0, 0.4, "margin, in shares of half the range"), Axis(0.0, 1.0, "share decided")
    return page([("Checks that are decided", *axes, series)])


def main() -> None:
    """Judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--chosen-on", type=Path, action="append", default=[], help="a model that is not counted")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    models = []
    for folder in [*asked.folders, *asked.chosen_on]:
        record = json.loads((folder / "values.json").read_text())
        sets = [verdict(record, source, slice(asked.images)) for source in record["values"]
                if not source.startswith(CONTROL) and record["values"][source].keys() >= FIGURES]  # fmt: skip
        models.append({"model": record["model"], "images": len(record["images"][: asked.images]), "sets": sets,
                       "chosen_on": folder in asked.chosen_on})  # fmt: skip
    counted = [one for model in models if not model["chosen_on"] for one in model["sets"]]
    found = {"rates": rates(counted), "decided": decided(counted), "models": models}
    if asked.plot:
        asked.plot.write_text(plot(found["decided"]))
    print(json.dumps({**origin("benchmarks.calibration.rules"), **found}, indent=1))


if __name__ == "__main__":
    main()
