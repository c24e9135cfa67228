"""Which rules tell honest maps from fakes: statuses of every set of maps under candidate rules.

    python -m benchmarks.calibration.rules FOLDER [FOLDER ...] [--images 20,50,100] [--half first]

FOLDER is what `python -m benchmarks.calibration` wrote. A rule is a list of tests, each about one number for each
image; it passes if all tests hold, and fails if the mean of their e-values against it reaches 20 (docs/metrics.md).
"""

import argparse
import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.betting import DECISIVE, Sample

BLIND = ("random", "centred-gaussian", "constant", "edges", "blurred-edges", "noisy-gaussian", "noisy-edges")
Record = dict[str, Any]
Status = Literal["pass", "fail", "inconclusive", "not assessed"]


@dataclass(frozen=True)
class Test:
    """One thing that is asked of maps: a figure, or its margin over every blind control, above a limit."""

    figure: str
    over_controls: bool
    clip: float
    limit: float = 0.0

    def samples(self, record: Record, source: str, images: slice) -> list[Sample]:
        """The values of each test; none where a figure is missing."""
        own = _values(record, source, self.figure, images)
        if not self.over_controls:
            return [self._sample(own)] if own is not None else []
        pairs = [(own, _values(record, f"control:{control}", self.figure, images)) for control in BLIND]
        return [self._sample(mine - theirs) for mine, theirs in pairs if mine is not None and theirs is not None]

    def _sample(self, values: Array) -> Sample:
        return Sample(np.clip(values[np.isfinite(values)], -self.clip, self.clip), (-self.clip, self.clip))


def _values(record: Record, source: str, figure: str, images: slice) -> Array | None:
    values = record["values"].get(source, {}).get(figure)
    return None if values is None else np.array(values, float)[images]


RULES: dict[str, tuple[Test, ...]] = {
    "prediction": (Test("insertion", True, 1.0),),
    "relevance gain": (Test("relevance_gain", True, 1.0),),
    "prediction, log-odds 2": (Test("predicted_log_odds", True, 2.0),),
    "prediction, log-odds 6": (Test("predicted_log_odds", True, 6.0),),
    "other labels 2": (Test("other_log_odds", True, 2.0),),
    "other labels 6": (Test("other_log_odds", True, 6.0),),
    "specificity 2": (Test("label_specificity", False, 2.0),),
    "specificity 6": (Test("label_specificity", False, 6.0),),
    "others over prediction 2": (Test("other_label_evidence", False, 2.0),),
    "worst completeness": (Test("worst_completeness", True, 1.0),),
    "soundness": (Test("soundness", True, 1.0, -0.05),),
}


def judged(tests: Iterable[Test], record: Record, source: str, images: slice) -> tuple[Status, float]:
    """The status of a set of maps, and the smallest mean of its tests."""
    samples = [(sample, test.limit) for test in tests for sample in test.samples(record, source, images)]
    samples = [(sample, limit) for sample, limit in samples if len(sample.values)]
    if not samples:
        return "not assessed", float("nan")
    least = min(float(sample.values.mean()) - limit for sample, limit in samples)
    if all(sample.e_above(limit) >= DECISIVE for sample, limit in samples):
        return "pass", least
    fails = statistics.fmean(sample.e_below(limit) for sample, limit in samples)
    return ("fail" if fails >= DECISIVE else "inconclusive"), least


def main() -> None:
    """Print the statuses as a table for each folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--rule", action="append", choices=RULES)
    asked = parser.parse_args()
    images = slice(asked.skip, asked.skip + asked.images)
    letters = {"pass": "P", "fail": "F", "inconclusive": "?", "not assessed": "-"}
    for folder in asked.folders:
        record = json.loads((folder / "values.json").read_text())
        rules = asked.rule or list(RULES)
        print(folder.name, len(record["images"]), "images;", "; ".join(rules))
        for source in record["values"]:
            if source.startswith("control:") and source.removeprefix("control:") not in BLIND:
                continue
            found = [judged(RULES[rule], record, source, images) for rule in rules]
            print(f"{source:52s}", *(f"{letters[status]} {least:+6.2f}" for status, least in found))


if __name__ == "__main__":
    main()
