"""What `prediction-above-controls` says when hidden pixels are imputed from their neighbours instead of painted gray.

    python -m benchmarks.calibration.road FOLDER MODEL.onnx IMAGES [--preset imagenet] [--copied mask rise]

FOLDER is what `python -m benchmarks.calibration` wrote for this model and these images. Noisy linear imputation, as in
ROAD (Rong et al., ICML 2022), leaves no gray shape that a model could recognise: each hidden pixel is the weighted mean
of its neighbours, plus a little noise. FOLDER/road.json keeps the figures of each set of maps as they come, so that the
command goes on where it was cut short. Prints one JSON object with the decisions under each infill.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from auditkit.arrays import Array
from auditkit.data.bundles import HeatmapSet, open_bundle
from auditkit.data.ranks import Order, map_seed
from auditkit.methods.controls import CONTROLS
from auditkit.model import preprocessing
from auditkit.model.classifier import OnnxClassifier
from auditkit.report.markdown import table
from auditkit.runs.evaluation.images import load_images, probabilities
from auditkit.runs.folder.figures import CONTROL
from benchmarks.calibration.__main__ import COPIED, HONEST, Values, chosen_images, fakes_of, opened
from benchmarks.calibration.rules import Record, judged
from benchmarks.reporting import log, origin

CHECK, FIGURE = "prediction-above-controls", "relevance_gain"
SHARES = (np.arange(8) + 0.5) / 8  # of the pixels; the middles of eight equal parts, so never all are hidden
NOISE = 0.1  # standard deviation, as a share of that of the image's own channel
NEIGHBOURS = {(0, 1): 1 / 6, (1, 0): 1 / 6, (1, 1): 1 / 12, (1, -1): 1 / 12}  # down, across; half of them, by symmetry
SEED = 0  # of the evaluation: controls and the order of ties are the same there


@cache
def system(height: int, width: int) -> sparse.csr_array:
    """A row for each pixel: the pixel less the weighted mean of its neighbours, 0 where it continues them.

    A pixel at the border has fewer neighbours; its row is scaled by the weight of those, which keeps the matrix
    symmetric.
    """
    index, weights = np.arange(height * width).reshape(height, width), sparse.csr_array((height * width,) * 2)
    for (down, across), weight in NEIGHBOURS.items():
        first = index[: height - down, max(0, -across) : width - max(0, across)].ravel()
        second = index[down:, max(0, across) : width - max(0, -across)].ravel()
        half = sparse.csr_array((np.full(first.size, weight), (first, second)), shape=weights.shape)
        weights = weights + half + half.T
    return sparse.csr_array(sparse.diags_array(weights.sum(axis=1)) - weights)


def imputed(pixels: Array, hidden: Array) -> Array:
    """Pixels [height, width, channels] whose hidden ones [height, width] are the weighted means of their neighbours."""
    values, gone = pixels.reshape(-1, pixels.shape[2]).astype(np.float64), hidden.ravel()
    if gone.any():
        rows = system(*hidden.shape)[gone]
        solver = splu(rows[:, gone].tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0,
                      options={"SymmetricMode": True})  # fmt: skip
        values[gone] = solver.solve(-(rows[:, ~gone] @ values[~gone]))
    return values.reshape(pixels.shape)


@dataclass(frozen=True)
class Image:
    """An image with its predicted label, and the gains of the orders of pixels that were measured on it."""

    model: OnnxClassifier
    name: str
    pixels: Array
    input: Array
    label: int
    known: dict[str, dict[str, float]]

    def gains(self, values: Array) -> dict[str, float]:
        """Insertion less deletion of a map under each infill; maps with the same order share them."""
        order = Order(values)
        digest = order.digest()
        if digest not in self.known:
            ranks = order.ranks("random", map_seed(SEED, self.name + digest, 0))
            self.known[digest] = {infill: self._gain(ranks, fill) for infill, fill in self._fills().items()}
        return self.known[digest]

    def map_of(self, bundle: HeatmapSet) -> Array:
        """The map of the predicted label in a set."""
        return bundle.get(self.name, self.label)

    def control(self, name: str) -> Array:
        """The map of a control, as in an evaluation."""
        draw, by_label = CONTROLS[name]
        return draw(self.pixels, map_seed(SEED, self.name, self.label if by_label else 0))

    def _gain(self, ranks: Array, fill: Callable[[Array], Array]) -> float:
        counts = (SHARES * ranks.size).round()
        hidden = [ranks >= count for count in counts] + [ranks < count for count in counts]
        shown = probabilities(self.model, np.stack([fill(mask) for mask in hidden]))[:, self.label]
        return float(shown[: len(counts)].mean() - shown[len(counts) :].mean())

    def _fills(self) -> dict[str, Callable[[Array], Array]]:
        """From which pixels are hidden to what the network takes, in its own units and layout."""
        signature = self.model.signature
        channels_first = signature.layout == "NCHW"
        picture = self.input.transpose(1, 2, 0) if channels_first else self.input
        gray = preprocessing.flat_picture(self.model.card, signature, self.model.card.gray)[0]
        rng = np.random.default_rng(map_seed(SEED, self.name, 0))
        noise = NOISE * picture.std(axis=(0, 1)) * rng.standard_normal(picture.shape)

        def with_gray(hidden: Array) -> Array:
            return np.where(hidden[None] if channels_first else hidden[..., None], gray, self.input)

        def with_neighbours(hidden: Array) -> Array:
            filled = (imputed(picture, hidden) + noise * hidden[..., None]).astype(self.input.dtype)
            return np.asarray(filled.transpose(2, 0, 1) if channels_first else filled)

        return {"gray": with_gray, "imputed": with_neighbours}


def loaded(model: OnnxClassifier, path: Path, names: list[str]) -> list[Image]:
    """The images of a study."""
    images = chosen_images(model, path, len(names))
    if set(images.ids) != set(names):
        raise SystemExit(f"{path} does not hold the images of the study; name the file that it was made with.")
    unit = load_images(range(len(images)), images, model.card, model.signature)
    labels = probabilities(model, unit.inputs).argmax(axis=1).tolist()
    return [Image(model, *facts, {}) for facts in zip(unit.ids, unit.pixels, unit.inputs, labels, strict=True)]


def kept_sets(folder: Path, copied: list[str]) -> dict[str, HeatmapSet]:
    """The honest sets, the fakes and the damaged sets of a study."""
    paths = {f"honest/{method}": folder / "honest" / method for method in HONEST}
    fakes = {name: folder / "fakes" / str(number) for number, name in enumerate(fakes_of(copied))}
    paths |= {name: path / "maps" for name, path in fakes.items() if (path / "done").exists()}
    return {name: open_bundle(path) for name, path in paths.items() if path.exists()}


def measured(folder: Path, images: list[Image], sets: Mapping[str, HeatmapSet]) -> dict[str, Values]:
    """The gains of all controls and sets under each infill, those that were kept and those that were not."""
    path = folder / "road.json"
    values: dict[str, Values] = json.loads(path.read_text()) if path.exists() else {"gray": {}, "imputed": {}}

    def keep(name: str, map_of: Callable[[Image], Array]) -> None:
        if name not in values["imputed"]:
            gains = [image.gains(map_of(image)) for image in images]
            for infill, by_source in values.items():
                by_source[name] = {FIGURE: [round(one[infill], 5) for one in gains]}
            path.write_text(json.dumps(values))
            log({"measured": name})

    for control in CONTROLS:
        keep(f"{CONTROL}{control}", partial(Image.control, name=control))
    for name, bundle in sets.items():
        keep(name, partial(Image.map_of, bundle=bundle))
    return values


def decisions(values: dict[str, Values], sets: Iterable[str]) -> Record:
    """The decision on each set under each infill, and the mean gain of every control."""
    controls = [f"{CONTROL}{name}" for name in CONTROLS]
    return {
        "sets": [{"set": source, **{infill: _decision(values[infill], source) for infill in values}}
                 for source in sets],
        "controls": {source: {infill: _mean_gain(values[infill], source) for infill in values} for source in controls},
    }  # fmt: skip


def _decision(values: Values, source: str) -> Record:
    found = judged(CHECK, {"values": values}, source, slice(None))
    return {"status": found["status"], "least": found["least"], "gain": _mean_gain(values, source)}


def _mean_gain(values: Values, source: str) -> float:
    return round(float(np.mean(np.array(values[source][FIGURE], float))), 3)


def road_table(results: Record) -> str:
    """Every set and control under the two infills side by side."""
    infills = ["gray", "imputed"]
    lines, changes = [], 0
    for one in results["sets"]:
        changed = one["gray"]["status"] != one["imputed"]["status"]
        decided = [f"{one[name]['status']} ({one[name]['least']:+.2f})" for name in infills]
        gains = [f"{one[name]['gain']:.2f}" for name in infills]
        lines.append([one["set"], *gains, *decided, "yes" if changed else ""])
        changes += changed
    lines += [[control, *(f"{mean[name]:.2f}" for name in infills), "", "", ""]
              for control, mean in results["controls"].items()]  # fmt: skip
    told = (
        f"{results['model']}, {results['images']} images: mean relevance gain, and the decision of `{CHECK}` with the "
        f"least margin over a control, both at {results['shares']} shares of pixels. Of {len(results['sets'])} sets "
        f"{changes} are decided otherwise with imputed pixels than with gray ones."
    )
    return f"{told}\n\n{table(['maps', *infills, *(f'decision, {name}' for name in infills), 'changed'], lines)}"


def main() -> None:
    """Measure, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--preset", help="how images are prepared; else as the card beside the model says")
    parser.add_argument("--copied", nargs="+", default=COPIED, help="methods whose maps are faked, as in the study")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    asked = parser.parse_args()
    sets = kept_sets(asked.folder, asked.copied)
    names = list(next(iter(sets.values())).labels)
    images = loaded(opened(asked.model, asked.preset, asked), asked.data, names)
    found = decisions(measured(asked.folder, images, sets), sets)
    facts = {"model": asked.model.name, "images": len(images), "shares": len(SHARES), "noise": NOISE}
    print(json.dumps({**origin("benchmarks.calibration.road"), **facts, **found}, indent=1))


if __name__ == "__main__":
    main()
