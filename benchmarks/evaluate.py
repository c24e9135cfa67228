"""Rows a second of a whole evaluation against the bare session, and against torch loops of the usual kind.

    python -m benchmarks.evaluate [MODEL.onnx] --device cuda --precision tf32 --precision float16 [--peers]

Without a model, a torchvision ResNet-50 is exported on the spot (needs torch and torchvision; weights do not matter
to speed). With --peers, the same network runs in torch, TF32 for all, on the same kind of rows: one image at a time
and sorted anew at every step as the paper's code does, 64 images uploaded again at every step as RISE does (both
re-written here, as they are not packaged), and torchcam itself at its best batch. Rows are masked images the network
is asked about. A GPU that works for long runs slower than one that begins: let `--runs` keep the bare session busy for
some ten seconds. Prints one JSON object.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import auditkit
from auditkit.data.bundles import open_bundle
from auditkit.data.dataset import Dataset
from auditkit.metrics.curves import parse_steps
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.session import Session
from auditkit.runs.evaluate import evaluate
from auditkit.runs.evaluation.settings import Evaluation
from benchmarks.peers.adapters import Given
from benchmarks.reporting import log, origin, printed_at_end

REPEATS = 3


def rate(rows: int, work: Callable[[], object]) -> float:
    """Rows a second of some work."""
    start = time.perf_counter()
    work()
    return rows / (time.perf_counter() - start)


def median_rate(rows: int, work: Callable[[], object]) -> float:
    """Rows a second, the median of some repeats."""
    return statistics.median(rate(rows, work) for _ in range(REPEATS))


def export_resnet50(folder: Path) -> Path:
    """A torchvision ResNet-50 as ONNX, by torch's current exporter."""
    import torch  # noqa: PLC0415
    import torchvision  # noqa: PLC0415

    network = torchvision.models.resnet50(weights=None).eval()
    shapes = {"x": {0: torch.export.Dim("N")}}
    target, example = folder / "resnet50.onnx", torch.randn(2, 3, 224, 224)
    torch.onnx.export(network, (example,), str(target), dynamo=True, input_names=["x"], output_names=["logits"],
                      dynamic_shapes=shapes, external_data=False, verbose=False)  # fmt: skip
    return target


def bare_runs(model: OnnxClassifier, batch: int) -> Callable[[int], object]:
    """Runs of the vendor's graph alone, input and output bound on the device."""
    rows = np.random.default_rng(0).standard_normal(model.signature.array_shape(batch)).astype(np.float32)
    unguarded = Session(model.graph, replace(model.settings, worker=None, in_process=True), model.weights)
    session = unguarded._session.session
    binding = session.io_binding()
    binding.bind_ortvalue_input(model.signature.input, unguarded.upload(rows.astype(model.signature.dtype)))
    binding.bind_output(unguarded.outputs[0], model.settings.device)
    return lambda count: [session.run_with_iobinding(binding) for _ in range(count)]


def bare(model: OnnxClassifier, batch: int, runs: int) -> Callable[[], float]:
    """What measures rows a second of them; warmed up."""
    run = bare_runs(model, batch)
    run(3)
    return lambda: rate(batch * runs, lambda: run(runs))


def whole(model: OnnxClassifier, images: int, maps: int, steps: int, folder: Path) -> Callable[[], float]:
    """What measures rows a second of evaluate(), from a bundle of heatmaps on disk to metrics; warmed up."""
    rng = np.random.default_rng(0)
    size = (model.signature.height, model.signature.width)
    shown = rng.integers(0, 256, (images, *size, 3), dtype=np.uint8)
    chosen = Dataset(folder, tuple(str(i) for i in range(images)), shown)
    bundle = auditkit.Bundle(folder / "bundle", method="noise")
    for image in range(images):
        bundle.add([str(image)] * maps, list(range(maps)), rng.random((maps, *size), dtype=np.float32))
    settings = Evaluation(labels=",".join(map(str, range(maps))), steps=parse_steps(str(steps)), controls=False,
                          deletion=False, saliency="none")  # fmt: skip
    given = {"noise": open_bundle(folder / "bundle")}
    evaluate(model, Dataset(folder, chosen.ids[:16], shown[:16]), given, settings)  # warm-up
    rows = images * maps * (steps - 1)
    return lambda: rate(rows, lambda: evaluate(model, chosen, given, settings))


def peers(steps: int) -> dict[str, float]:
    """Rows a second of the paper's loop, of RISE's, and of torchcam itself at its best batch, on one network."""
    import torch  # noqa: PLC0415
    import torchvision  # noqa: PLC0415
    from torchcam.metrics import DeletionInsertionMetric  # noqa: PLC0415

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    network = torchvision.models.resnet50(weights=None).eval().cuda()
    images = torch.randn(64, 3, 224, 224)
    maps = np.random.default_rng(0).random((64, 224 * 224), dtype=np.float32)
    pixels = 224 * 224

    def one_at_a_time(count: int) -> None:
        for image in range(count):
            for step in range(1, steps):
                order = np.argsort(maps[image])[::-1]
                mask = np.zeros(pixels, np.float32)
                mask[order[: step * pixels // steps]] = 1
                shown = images[image : image + 1] * torch.from_numpy(mask.reshape(1, 1, 224, 224))
                torch.softmax(network(shown.cuda()), dim=1)[0, 0].item()

    def reuploaded() -> None:
        order = np.flip(np.argsort(maps, axis=1), axis=-1)
        start, finish = torch.zeros_like(images).numpy().reshape(64, 3, pixels), images.numpy().reshape(64, 3, pixels)
        for step in range(1, steps):
            coordinates = order[:, (step - 1) * pixels // steps : step * pixels // steps]
            for channel in range(3):
                np.put_along_axis(start[:, channel], coordinates,
                                  np.take_along_axis(finish[:, channel], coordinates, axis=1), axis=1)  # fmt: skip
            torch.softmax(network(torch.from_numpy(start.reshape(64, 3, 224, 224)).cuda()), dim=1)[:, 0].cpu()

    def by_torchcam(batch: int, count: int) -> None:
        given = Given(network, torch.from_numpy(maps[:count].reshape(count, 224, 224)).cuda())
        metric = DeletionInsertionMetric(given, lambda scores: torch.softmax(scores, -1), steps=steps, batch_size=batch)
        metric.update(images[:count].cuda(), [0] * count)
        metric.summary()

    with torch.inference_mode():
        one_at_a_time(1), reuploaded()  # warm-up
        found = {
            "the paper's loop: one image at a time, sorted at every step": median_rate(
                4 * (steps - 1), lambda: one_at_a_time(4)
            ),
            "RISE's loop: 64 images uploaded at every step": median_rate(64 * (steps - 1), reuploaded),
        }
        points = len([*range(0, pixels, -(-pixels // steps)), pixels])
        for batch in (64, 128, 256, 512):
            by_torchcam(batch, 2)
            rate = median_rate(8 * (2 * (points - 2) + 1), lambda batch=batch: by_torchcam(batch, 8))
            found["torchcam, at its best batch"] = max(rate, found.get("torchcam, at its best batch", 0.0))
    return found


def measured(path: Path, precision: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Bare session and whole evaluation in one precision."""
    settings = auditkit.Settings(device=asked.device, precision=precision, batch=asked.batch)
    model = auditkit.load(path, preset=asked.preset, settings=settings)
    with tempfile.TemporaryDirectory() as name:
        run = whole(model, asked.images, asked.maps, asked.steps, Path(name))
        graph = bare(model, asked.batch, asked.runs)
        alone, ours = [graph()], list[float]()
        for _ in range(asked.repeats):  # in turns, since machines have moods
            ours.append(run())
            alone.append(graph())
    ratios = [mine / statistics.mean(pair) for mine, pair in zip(ours, pairwise(alone), strict=True)]
    return {
        "device": model.settings.device, "precision": model.settings.precision, "batch": asked.batch,
        "bare_rows_s": round(statistics.median(alone), 1), "evaluate_rows_s": round(statistics.median(ours), 1),
        "ratio": round(statistics.median(ratios), 4), "ratios": [round(ratio, 4) for ratio in ratios],
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", action="append")
    parser.add_argument("--preset", default="imagenet")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--maps", type=int, default=4)
    parser.add_argument("--steps", type=int, default=224)
    parser.add_argument("--runs", type=int, default=50, help="of the bare session, each repeat")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--peers", action="store_true")
    asked = parser.parse_args()
    globals()["REPEATS"] = asked.repeats
    found: dict[str, Any] = {
        **origin("benchmarks.evaluate"),
        "model": asked.model.name if asked.model else "torchvision ResNet-50, exported on the spot",
        "images": asked.images, "maps": asked.maps, "steps": asked.steps, "repeats": asked.repeats, "modes": [],
    }  # fmt: skip
    with printed_at_end(found), tempfile.TemporaryDirectory() as name:
        path = asked.model or export_resnet50(Path(name))
        for precision in asked.precision or ["auto"]:
            found["modes"].append(measured(path, precision, asked))
            log(found["modes"][-1])
        if asked.peers:
            loops = peers(asked.steps)
            ours = next(mode["evaluate_rows_s"] for mode in found["modes"] if mode["precision"] == "tf32")
            found["peers_rows_s"] = {name: round(rate, 1) for name, rate in loops.items()}
            found["times_peers"] = {name: round(ours / rate, 2) for name, rate in loops.items()}


if __name__ == "__main__":
    main()
