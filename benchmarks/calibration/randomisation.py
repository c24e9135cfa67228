"""How alike the maps of a model and of a copy that has forgotten everything are, for honest methods and a blind one.

    python -m benchmarks.calibration.randomisation MODEL.onnx IMAGES -o FOLDER [--preset imagenet] [--images 12]
        [--seeds 3]

`strict` asks for a mean rank correlation of at most 0.5 once all layers are re-initialised. Each seed draws another
copy, which all images of the seed share, and draws the method's own masks or noise anew, the same for model and copy;
how alike the model's own maps under two seeds are shows how much of a map is such chance. Maps stay in FOLDER, so that
the command goes on where it was cut short. Prints one JSON object.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import auditkit
from auditkit.data.bundles import open_bundle
from auditkit.data.dataset import Dataset
from auditkit.metrics.reliability import spearman
from auditkit.model.classifier import OnnxClassifier
from auditkit.report.markdown import table
from auditkit.runs.explain import Explanation
from auditkit.runs.randomisation import randomisation
from benchmarks.calibration.__main__ import chosen_images, opened
from benchmarks.calibration.rules import Record
from benchmarks.reporting import log, origin, printed_at_end

LIMIT = 0.5  # of `strict`
METHODS: dict[str, dict[str, Any]] = {
    "edges": {}, "grad-cam": {}, "occlusion": {}, "gradient-input": {}, "integrated-gradients": {}, "smoothgrad": {},
    "rise": {"passes": 500}, "mask": {"steps": 100},
}  # fmt: skip


def forgotten(model: OnnxClassifier, images: Dataset, method: str, seed: int, folder: Path) -> Record:
    """The correlations of one method with one copy of the model."""
    options = METHODS[method]
    bundle = auditkit.explain(model, images, folder / "maps", method, labels="top1", seed=seed, **options)
    what = Explanation(method, "top1", tuple((name, str(value)) for name, value in options.items()), seed)
    found = randomisation(
        model, images, what, None, bundle, images_wanted=len(images), stages=1, seed=what.seed, out=folder / "stages"
    )
    assert found.series, found.not_assessed
    last = found.series[-1]
    assert last.spearman is not None
    assert last.absolute is not None
    return {"method": method, "options": options, "seed": seed, "mean": round(last.spearman, 3),
            "absolute": round(last.absolute, 3), "constant": last.constant,
            "correlations": [round(value, 3) for value in last.correlations]}  # fmt: skip


def repeated(folder: Path) -> float:
    """The mean rank correlation of the model's own maps under the first two seeds."""
    first, second = (open_bundle(folder / str(seed) / "maps") for seed in range(2))
    pairs = [(first.get(image, label), second.get(image, label)) for image, (label, *_) in first.labels.items()]
    return round(float(np.mean([spearman(np.stack([a.ravel(), b.ravel()], axis=1))[0, 1] for a, b in pairs])), 3)


def randomisation_table(results: Record) -> str:
    """A line for each method: the mean with each copy, the spread over images, and whether the limit is kept."""
    copies = results["copies"]
    seeds = sorted({one["seed"] for one in copies})
    lines = []
    for method in dict.fromkeys(one["method"] for one in copies):
        own = results["repeated"].get(method)
        known = [one for one in copies if one["method"] == method]
        means = {one["seed"]: f"{one['mean']:+.2f}" for one in known}
        each = np.concatenate([one["correlations"] for one in known])
        size, constant = f"{np.mean([one['absolute'] for one in known]):+.2f}", sum(one["constant"] for one in known)
        lines.append([_named(method, known[0]["options"]), *(means.get(seed, "") for seed in seeds),
                      f"{each.min():+.2f} to {each.max():+.2f}", f"{np.mean(each > LIMIT):.0%}", size,
                      f"{constant} of {each.size}", "" if own is None else f"{own:+.2f}"])  # fmt: skip
    head = ["method", *(f"copy {seed + 1}" for seed in seeds), "single images", f"images above {LIMIT}",
            "by size, sign ignored", "constant maps of copies", "the model's own, two seeds"]  # fmt: skip
    told = (
        f"{results['model']}, {results['images']} images, predicted label: mean rank correlation of the model's map "
        f"with that of a copy whose layers are all re-initialised. `strict` asks for at most {LIMIT}. "
        "A constant map of a copy counts as 0."
    )
    return f"{told}\n\n{table(head, lines)}"


def _named(method: str, options: Record) -> str:
    return ", ".join([method, *(f"{value} {name}" for name, value in options.items())])


def main() -> None:
    """Make maps, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--preset", help="how images are prepared; else as the card beside the model says")
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3, help="two or more")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    asked = parser.parse_args()
    model = opened(asked.model, asked.preset, asked)
    images = chosen_images(model, asked.data, asked.images)
    results = {**origin("benchmarks.calibration.randomisation"), "model": asked.model.name, "images": len(images),
               "limit": LIMIT, "repeated": {}, "copies": []}  # fmt: skip
    with printed_at_end(results):
        for method in METHODS:
            for seed in range(asked.seeds):
                results["copies"].append(forgotten(model, images, method, seed, asked.out / method / str(seed)))
                log(results["copies"][-1])
            results["repeated"][method] = repeated(asked.out / method)


if __name__ == "__main__":
    main()
