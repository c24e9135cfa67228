"""What the checks of `standard` say of every set of maps that was measured.

    python -m benchmarks.calibration.rules FOLDER [FOLDER ...] [--images 100] [--skip 0]

FOLDER is what `python -m benchmarks.calibration` wrote. Prints one JSON object: for each model and set the status of
each check and of all together, and for each family how many sets pass, fail and stay open.
"""

import argparse
import json
import statistics
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.betting import DECISIVE, FEWEST_IMAGES, Sample
from auditkit.metrics.label_specificity import CLIPPED
from auditkit.report.markdown import table
from auditkit.runs.folder.figures import CONTROL
from auditkit.verdict.policy import CONTROLS, ONE_MAP_CONTROL
from auditkit.verdict.policy_file import read_policy
from benchmarks.reporting import origin

BLIND = tuple(control for control in CONTROLS if control != ONE_MAP_CONTROL)
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
        return [self._sample(own - other) for other in others] if others else [self._sample(own)]

    def _sample(self, values: Array) -> Sample:
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
    return {"status": status if enough else "inconclusive", "least": round(least, 3), "fails": fails}


def verdict(record: Record, source: str, images: slice) -> Record:
    """The statuses of all checks, and the verdict that they give together."""
    found = {name: judged(name, record, source, images) for name in CHECKS}
    against = statistics.fmean(value for check in found.values() for value in check.pop("fails"))
    statuses = {check["status"] for check in found.values()}
    together = (
        "pass" if statuses == {"pass"} else "fail" if "fail" in statuses and against >= DECISIVE else "inconclusive"
    )
    return {"set": source, "verdict": together, "checks": found}


def calibration_table(results: Record) -> str:
    """The families, then every set of every model."""
    counts = ", ".join(f"{name} {count}" for name, count in results["families"].items())
    parts = [f"In brackets, how far the least of a check's means lies above its limit. Sets of maps: {counts}."]
    for model in results["models"]:
        lines = [[one["set"], one["verdict"], *(f"{check['status']} ({check['least']:+.2f})"
                  for check in one["checks"].values())] for one in model["sets"]]  # fmt: skip
        parts += [f"{model['model']}, {model['images']} images:", table(["maps", "verdict", *CHECKS], lines)]
    return "\n\n".join(parts)


def main() -> None:
    """Judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--skip", type=int, default=0, help="images before those")
    asked = parser.parse_args()
    images, models, families = slice(asked.skip, asked.skip + asked.images), [], Counter[str]()
    for folder in asked.folders:
        record = json.loads((folder / "values.json").read_text())
        sets = [verdict(record, source, images) for source in record["values"] if not source.startswith(CONTROL)]
        families.update(f"{one['set'].partition('/')[0]}: {one['verdict']}" for one in sets)
        models.append({"model": record["model"], "images": len(record["images"][images]), "sets": sets})
    print(json.dumps({**origin("benchmarks.calibration.rules"), "families": families, "models": models}, indent=1))


if __name__ == "__main__":
    main()
