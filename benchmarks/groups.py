"""How often a gap between groups is found: where there is none, and where a model fails at one site only.

    python -m benchmarks.groups > benchmarks/results/groups.json

Simulated runs draw the figures of each image; where all groups are alike, whatever is found is false. The planted model
is the demo's shortcut, which reads a tag: at one site the tags lie. Prints one JSON object.
"""

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np

import auditkit
from auditkit.arrays import Array
from auditkit.demo.draw import draw
from auditkit.demo.planted import bundled_model
from auditkit.metrics.betting import Sample
from auditkit.metrics.table import METRICS
from auditkit.model.classifier import AnyClassifier
from auditkit.report.markdown import table
from auditkit.runs.folder.groups import Gap
from auditkit.runs.summary.groups import Compared, widest_gaps
from benchmarks.reporting import log, origin, printed_at_end

SEED = 4713
FIGURES = tuple(name for name, metric in METRICS.items() if metric.by_group)
SITES, IMAGES = ("north", "south", "west"), 100  # of each site
COLUMNS: Mapping[str, int] = {"site": 3, "device": 2, "sex": 2, "light": 5}  # and how many groups each has
# Of accuracy at the site that fails, where it is 0.95 elsewhere.
ACCURACIES = (0.5, 0.7, 0.8, 0.9)


def alike(images: int, rng: np.random.Generator) -> tuple[Gap, ...]:
    """The gaps of a run whose groups are alike in every column and figure."""
    groups = {column: rng.integers(count, size=images).astype(str) for column, count in COLUMNS.items()}
    compared = []
    for name in FIGURES:
        low, high = METRICS[name].limits
        share = rng.random() < 0.5
        values = rng.random(images) < 0.9 if share else rng.beta(*rng.uniform(0.3, 3, 2), images)
        scaled = low + (high - low) * values.astype(np.float64)
        compared += [_compared(column, name, of_image, scaled) for column, of_image in groups.items()]
    return widest_gaps(compared)[1]


def one_site(accuracy: float, rng: np.random.Generator) -> tuple[Gap, ...]:
    """The gaps of accuracy where one of three sites is worse, among figures and columns that are alike."""
    sites = np.repeat(SITES, IMAGES)
    right = rng.random(len(sites)) < np.where(sites == "west", accuracy, 0.95)
    compared = [_compared("site", "accuracy", sites, right.astype(np.float64))]
    compared += [_compared("site", name, sites, np.full(len(sites), 0.5)) for name in FIGURES[1:]]
    return widest_gaps(compared)[1]


def planted(model: AnyClassifier, seed: int) -> tuple[Gap, ...]:
    """The gaps of the accuracy of a model on drawn images, whose tags lie at one site."""
    right = []
    for number, site in enumerate(SITES):
        images = draw(IMAGES, seed=len(SITES) * seed + number, tags="disagree" if site == "west" else "agree")
        right.append(model.predict(images.images).argmax(axis=1) == images.labels)
    values = np.concatenate(right).astype(np.float64)
    return widest_gaps([_compared("site", "accuracy", np.repeat(SITES, IMAGES), values)])[1]


def _compared(column: str, name: str, groups: Array, values: Array) -> Compared:
    samples = {str(group): Sample(values[groups == group], METRICS[name].limits) for group in np.unique(groups)}
    return Compared(column, name, "" if name == "accuracy" else "maps", "", samples)


def groups_table(results: dict[str, Any]) -> str:
    """In how many runs a gap was shown."""
    rows = [[line["what"], str(line["images"]), f"{line['shown']} of {line['runs']}", line["expected"]]
            for line in results["lines"]]  # fmt: skip
    return table(["what", "images", "runs with a gap", "expected"], rows)


def measured(runs: int, drawn: int) -> list[dict[str, Any]]:
    """A line for each kind of run."""
    lines = []
    for images in (60, 300, 1000):
        shown = sum(any(gap.at_least for gap in alike(images, _rng(images, run))) for run in range(runs))
        lines.append(_line("groups that are alike, 4 columns", images, shown, runs, "at most 5 %"))
    for accuracy in ACCURACIES:
        found = [one_site(accuracy, _rng(int(1000 * accuracy), run)) for run in range(runs)]
        shown = sum(any(gap.at_least and gap.lower == "west" for gap in gaps) for gaps in found)
        what = f"accuracy {accuracy:g} at one site, 0.95 at two others"
        lines.append(_line(what, IMAGES * len(SITES), shown, runs, "all" if accuracy <= ACCURACIES[0] else ""))
    for name, expected in (("shortcut", "all"), ("honest", "none")):
        model = auditkit.load(bundled_model(name))
        gaps = [planted(model, seed) for seed in range(drawn)]
        shown = sum(any(gap.at_least for gap in each) for each in gaps)
        what = f"the demo's model {name}, tags lie at one site"
        lines.append(_line(what, IMAGES * len(SITES), shown, drawn, expected))
    return lines


def _rng(*numbers: int) -> np.random.Generator:
    return np.random.default_rng([SEED, *numbers])


def _line(what: str, images: int, shown: int, runs: int, expected: str) -> dict[str, Any]:
    line = {"what": what, "images": images, "shown": shown, "runs": runs, "expected": expected}
    log(line)
    return line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--drawn", type=int, default=10)
    arguments = parser.parse_args()
    results: dict[str, Any] = {**origin("benchmarks.groups"), "lines": []}
    with printed_at_end(results):
        results["lines"] += measured(arguments.runs, arguments.drawn)


if __name__ == "__main__":
    main()
