"""How good `--steps auto` and a fixed number are on curves known at every point: benchmarks/steps.py FILE.npz [...].

A file holds curves of one model, recorded once with `--steps exact` or on a fine regular grid:

    curves  float [images, maps, points, labels]  probability of each label at each keep count, first and last included
    probs   float [images, labels]                probability of each label on the whole image
    counts  int   [points]                        keep counts from 0 to all pixels, in equal steps

The recorded grid stands for the pixels: the exact area is the mean over all points but the first, and `auto` may ask
for any of them. Each (image, map, label) is a curve of its own. `even` and `odd` images are also reported apart, so
that constants tuned on one half can be checked on the other.

Prints one JSON object, then the same as Markdown tables:

    holds       share of curves whose area is off by no more than the error reported
    passes      points between the two ends, median and mean over the curves
    error95     95 % quantile of the error; `uniform95` that of the uniform trapezoid with as many passes (the mean)
    uniform     passes that the uniform trapezoid needs for the same 95 % error
    alpha, beta mean over the curves with `auto` less that of the exact areas
    ms          host time a curve, in milliseconds

and for each fixed number of steps

    holds       as above
    off, said   mean over the curves of the true error and of the one reported
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.metrics.curves import Refinement, area, needed_errors, sampled_errors, uniform_counts
from auditkit.metrics.faithfulness import EPS1, EPS2, alpha, beta

Array = np.ndarray[Any, Any]
TOLERANCES = (5e-3, 1e-3)
STEPS = (6, 7, 8, 9, 16, 17, 28, 32, 64, 128)
MOST_POINTS = 512  # as in a run


def auto(curves: Array, prob: Array, tolerance: float) -> tuple[Array, Array, Array]:
    """Areas, reported errors and passes of curves [C, points]."""

    def needed(active: Array, areas: Array) -> Array:
        return needed_errors(areas, prob[active][:, None], tolerance, EPS1, EPS2)

    pixels = curves.shape[1] - 1
    refinement = Refinement(pixels, curves[:, :1], curves[:, -1:], needed, min(MOST_POINTS, pixels))
    while len(refinement.wanted()[0]):
        active, counts = refinement.wanted()
        refinement.add(curves[active[:, None], counts][..., None])
    points = zip(refinement.counts, refinement.values, strict=True)
    areas = np.array([area(counts, values[:, 0]) for counts, values in points])
    return areas, refinement.errors[:, 0], np.array([len(counts) - 2 for counts in refinement.counts])


def uniform_error(curves: Array, exact: Array, passes: int) -> float:
    """95 % quantile of the uniform trapezoid's error."""
    counts = uniform_counts(curves.shape[1] - 1, passes + 1)
    return float(np.quantile(np.abs(area(counts, curves[:, counts]) - exact), 0.95))


def uniform_passes(curves: Array, exact: Array, error: float) -> int | None:
    """Fewest passes with which the uniform trapezoid is as good, in steps of 5 %; None when it never is."""
    passes = 8
    while passes < curves.shape[1] - 2:
        if uniform_error(curves, exact, passes) <= error:
            return passes
        passes = int(passes * 1.05) + 1
    return None


def measure(curves: Array, prob: Array, tolerance: float) -> dict[str, Any]:
    """One row of the table."""
    exact = curves[:, 1:].mean(axis=1)
    start = time.perf_counter()
    areas, errors, passes = auto(curves, prob, tolerance)
    seconds = time.perf_counter() - start
    off = np.abs(areas - exact)
    error = float(np.quantile(off, 0.95))
    return {
        "curves": len(curves), "tolerance": tolerance, "holds": round(float((off <= errors).mean()), 3),
        "passes_median": float(np.median(passes)), "passes_mean": round(float(passes.mean()), 1),
        "error95": error, "uniform95": uniform_error(curves, exact, round(float(passes.mean()))),
        "uniform": uniform_passes(curves, exact, error),
        "alpha": float((alpha(areas, prob) - alpha(exact, prob)).mean()),
        "beta": float((beta(areas, prob) - beta(exact, prob)).mean()),
        "ms": round(1000 * seconds / len(curves), 2),
    }  # fmt: skip


def fixed(curves: Array, steps: int) -> dict[str, Any]:
    """One row of the table of fixed numbers of steps."""
    counts = uniform_counts(curves.shape[1] - 1, steps)
    off = np.abs(area(counts, curves[:, counts]) - curves[:, 1:].mean(axis=1))
    said = sampled_errors(counts, curves[:, counts][..., None])[:, 0]
    holds = round(float((off <= said).mean()), 3)
    means = [round(float(values.mean()), 5) for values in (off, said)]
    return {"curves": len(curves), "steps": steps, "holds": holds, "off": means[0], "said": means[1]}


def read(path: Path) -> tuple[Array, Array, Array]:
    """Curves [C, points], the whole image's probability of each curve's label [C], and each curve's image [C]."""
    with np.load(path) as file:
        curves, probs, counts = file["curves"].astype(np.float64), file["probs"].astype(np.float64), file["counts"]
    images, maps, points, labels = curves.shape
    steps = np.diff(counts)
    if probs.shape != (images, labels) or len(counts) != points or counts[0] != 0 or steps.min() != steps.max():
        sys.exit(f"{path}: curves, probs and counts do not fit together; see the head of benchmarks/steps.py.")
    flat = curves.transpose(0, 1, 3, 2).reshape(-1, points)
    prob = np.broadcast_to(probs[:, None], (images, maps, labels)).reshape(-1)
    return flat, prob, np.repeat(np.arange(images), maps * labels)


def rows(path: Path) -> list[dict[str, Any]]:
    """Rows for all images, and for the even and the odd ones, at each tolerance."""
    curves, prob, image = read(path)
    halves = {"all": image >= 0, "even": image % 2 == 0, "odd": image % 2 == 1}
    return [
        {"file": path.stem, "images": half, **measure(curves[chosen], prob[chosen], tolerance)}
        for tolerance in TOLERANCES
        for half, chosen in halves.items()
        if chosen.any()
    ]


def markdown(table: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table, numbers short."""
    lines = ["| " + " | ".join(table[0]) + " |", "|" + "---|" * len(table[0])]
    for row in table:
        cells = [f"{cell:.2g}" if isinstance(cell, float) and abs(cell) < 0.1 else str(cell) for cell in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    found = [row for name in sys.argv[1:] for row in rows(Path(name))]
    few = [{"file": Path(name).stem, **fixed(read(Path(name))[0], steps)} for name in sys.argv[1:] for steps in STEPS]
    print(json.dumps({"results": found, "fixed": few}, indent=2))
    print(markdown(found), markdown(few), sep="\n\n")
