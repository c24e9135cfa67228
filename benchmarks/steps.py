"""How good `--steps auto` and a fixed number are, on real curves known at every pixel or nearly so.

    python -m benchmarks.steps MODEL.onnx IMAGES -o FOLDER --preset imagenet [--images 10] [--labels top2]
        [--method gradient-input ...] [--points 6272] [--device cuda] [--precision float16]

Maps of some methods are made, scored with `--steps exact`, and the curves then asked again at the points that `auto`,
or a fixed number, would have taken. Each (image, label, method) is a curve of its own; methods that give one map for
all labels have one curve a label all the same. Of large images curves may be known at fewer points, in equal steps: a
step is then what a pixel is otherwise. `even` and `odd` images are also reported apart, so that constants tuned
on one half can be checked on the other. Goes on where it was cut short, and prints one JSON object:

    holds       share of curves whose area is off by no more than the error reported
    passes      points between the two ends, median and mean over the curves
    error95     95 % quantile of the error; `uniform95` that of the uniform trapezoid with as many passes (the mean)
    uniform     passes that the uniform trapezoid needs for the same 95 % error; `uniform_within` for the tolerance
    alpha, beta mean over the curves with `auto` less that of the exact areas
    jump        mean change from one pixel to the next: what no choice of points can foresee
    ms          host time a curve, in milliseconds

and for each fixed number of steps

    holds       as above
    off, said   mean over the curves of the true error and of the one reported
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import auditkit
from auditkit.arrays import Array
from auditkit.data.dataset import Dataset
from auditkit.metrics.curves import Refinement, area, error_limits, sampled_errors, uniform_counts
from auditkit.metrics.faithfulness import EPS1, EPS2, completeness, soundness
from auditkit.model.classifier import OnnxClassifier
from auditkit.report.markdown import table
from benchmarks.reporting import origin, printed_at_end

Figures = dict[str, Any]
METHODS = ("gradient-input", "grad-cam", "rise", "occlusion", "edges")
TOLERANCES = (5e-3, 1e-3)
STEPS = (6, 7, 8, 9, 16, 17, 28, 32, 64, 128)
MOST_POINTS = 512  # as in a run


def recorded(model: OnnxClassifier, images: Dataset, asked: argparse.Namespace) -> tuple[Array, Array, Array]:
    """Curves [C, pixels + 1], the whole image's probability of each curve's label [C], and each curve's image [C]."""
    maps = {method: auditkit.explain(model, images, asked.out / "maps" / method, method, labels=asked.labels)
            for method in asked.method}  # fmt: skip
    found = auditkit.evaluate(model, images, maps, out=asked.out / asked.points, labels=asked.labels,
                              steps=asked.points, controls=False, deletion=False, saliency="none")  # fmt: skip
    tables = [one for one in found.tables() if one.num_rows]
    curves = [np.asarray(curve.values) for one in tables for curve in one["curve"]]
    prob, named = (np.concatenate([np.asarray(one[name]) for one in tables]) for name in ("prob", "image"))
    return np.stack(curves).astype(np.float64), prob, np.array([images.ids.index(name) for name in named])


def auto(curves: Array, prob: Array, tolerance: float) -> tuple[Array, Array, Array]:
    """Areas, reported errors and passes of curves [C, points]."""

    def needed(active: Array, areas: Array) -> Array:
        return error_limits(areas, prob[active][:, None], tolerance, EPS1, EPS2)

    pixels = curves.shape[1] - 1
    refinement = Refinement(pixels, curves[:, :1], curves[:, -1:], needed, min(MOST_POINTS, pixels))
    while len(refinement.next_counts()[0]):
        active, counts = refinement.next_counts()
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
        "uniform_within": uniform_passes(curves, exact, tolerance),
        "alpha": float((completeness(areas, prob) - completeness(exact, prob)).mean()),
        "beta": float((soundness(areas, prob) - soundness(exact, prob)).mean()),
        "jump": float(np.abs(np.diff(curves)).mean()), "ms": round(1000 * seconds / len(curves), 2),
    }  # fmt: skip


def fixed(curves: Array, steps: int) -> dict[str, Any]:
    """One row of the table of fixed numbers of steps."""
    counts = uniform_counts(curves.shape[1] - 1, steps)
    off = np.abs(area(counts, curves[:, counts]) - curves[:, 1:].mean(axis=1))
    said = sampled_errors(counts, curves[:, counts][..., None])[:, 0]
    holds = round(float((off <= said).mean()), 3)
    means = [round(float(values.mean()), 5) for values in (off, said)]
    return {"curves": len(curves), "steps": steps, "holds": holds, "off": means[0], "said": means[1]}


def halves(image: Array) -> dict[str, Array]:
    """Which curves are of all images, of the even and of the odd ones."""
    return {"all": image >= 0, "even": image % 2 == 0, "odd": image % 2 == 1}


def steps_table(found: Figures) -> str:
    """`auto` and fixed numbers of steps beside the exact areas."""
    head = ["tolerance", "images", "curves", "error holds in", "95 % of errors within", "passes, median", "mean",
            "uniform passes for that", "for the tolerance", "off in mean alpha", "beta", "jump a pixel"]  # fmt: skip
    rows = [[f"{one['tolerance']:g}", one["images"], str(one["curves"]), f"{one['holds']:.0%}",
             f"{one['error95']:.2g}", f"{one['passes_median']:g}", f"{one['passes_mean']:g}",
             *(str(one[name] or "nearly all") for name in ("uniform", "uniform_within")),
             f"{one['alpha']:+.1e}", f"{one['beta']:+.1e}", f"{one['jump']:.2g}"]
            for one in found["auto"]]  # fmt: skip
    fixed_rows = [[str(one["steps"]), f"{one['holds']:.0%}", f"{one['off']:.2g}", f"{one['said']:.2g}"]
                  for one in found["fixed"]]  # fmt: skip
    points = found.get("points", "exact")
    known = "" if points == "exact" else f" Curves known at {int(points):,} steps, each taken for a pixel."
    what = f"{found['model']}, {found['images']} images, {found['labels']}, {', '.join(found['methods'])}.{known}"
    few = table(["fixed steps", "error holds in", "mean error", "mean error said"], fixed_rows)
    return "\n\n".join([what, table(head, rows), few])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--preset", default="imagenet")
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--labels", default="top2")
    parser.add_argument("--points", default="exact", help="at which the curves are known: a number, or all")
    parser.add_argument("--method", action="extend", nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    asked = parser.parse_args()
    asked.method = asked.method or METHODS
    settings = auditkit.Settings(device=asked.device, precision=asked.precision)
    model = auditkit.load(asked.model, preset=asked.preset, settings=settings)
    assert isinstance(model, OnnxClassifier)
    every = Dataset.open(asked.pictures, model.signature.classes)
    at = np.linspace(0, len(every) - 1, asked.images).astype(int).tolist()
    images = Dataset(every.source, tuple(every.ids[one] for one in at), [every.images[one] for one in at])
    curves, prob, image = recorded(model, images, asked)
    found = {
        **origin("benchmarks.steps"), "model": asked.model.name,
        "device": model.settings.device, "precision": model.settings.precision, "images": len(images),
        "labels": asked.labels, "points": asked.points, "methods": list(asked.method),
    }  # fmt: skip
    with printed_at_end(found):
        found["auto"] = [
            {"images": half, **measure(curves[chosen], prob[chosen], tolerance)}
            for tolerance in TOLERANCES for half, chosen in halves(image).items() if chosen.any()
        ]  # fmt: skip
        found["fixed"] = [fixed(curves, steps) for steps in STEPS]


if __name__ == "__main__":
    main()
