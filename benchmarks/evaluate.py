"""Rows a second of a whole evaluation against the bare session, and against torch loops of the usual kind.

    python benchmarks/evaluate.py [MODEL.onnx] --device cuda --precision tf32 [--peers]

Without a model, a torchvision ResNet-50 is exported on the spot (needs torch and torchvision; weights do not matter
to speed). With --peers, the same weights run in torch, TF32 for all, on the same kind of rows: one image at a time as
research code does, a batch of images that is uploaded again at every step as RISE does, and batches of one curve's
points made on the device as torchcam does. Prints one JSON object.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import auditkit
from auditkit.data.heatmaps import open_bundle
from auditkit.data.images import ImageSet
from auditkit.metrics.curves import parse_steps
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.machine import describe
from auditkit.runs.evaluate import evaluate
from auditkit.runs.plan import Evaluation

REPEATS = 3


def median_rate(rows: int, work: Callable[[], object]) -> float:
    """Rows a second, the median of some repeats."""
    rates = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        rates.append(rows / (time.perf_counter() - start))
    return statistics.median(rates)


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


def bare(model: OnnxClassifier, batch: int, runs: int) -> float:
    """Rows a second of the vendor's graph alone: input and output bound on the device, nothing else done."""
    rows = np.random.default_rng(0).standard_normal(model.signature.array_shape(batch)).astype(np.float32)
    session, device = model.session._session, model.settings.device
    binding = session.io_binding()
    binding.bind_ortvalue_input(model.signature.input, model.session.upload(rows.astype(model.signature.dtype)))
    binding.bind_output(model.session.outputs[0], device)
    for _ in range(3):
        session.run_with_iobinding(binding)
    return median_rate(batch * runs, lambda: [session.run_with_iobinding(binding) for _ in range(runs)])


def whole(model: OnnxClassifier, images: int, maps: int, steps: int, folder: Path) -> float:
    """Rows a second of evaluate() from a bundle of heatmaps on disk to metrics."""
    rng = np.random.default_rng(0)
    size = (model.signature.height, model.signature.width)
    shown = rng.integers(0, 256, (images, *size, 3), dtype=np.uint8)
    chosen = ImageSet(folder, tuple(str(i) for i in range(images)), lambda index: shown[index])
    bundle = auditkit.Bundle(folder / "bundle", method="noise")
    for image in range(images):
        bundle.add([str(image)] * maps, list(range(maps)), rng.random((maps, *size), dtype=np.float32))
    settings = Evaluation(labels=",".join(map(str, range(maps))), steps=parse_steps(str(steps)), controls=False,
                          deletion=False)  # fmt: skip
    given = {"noise": open_bundle(folder / "bundle")}
    evaluate(model, ImageSet(folder, chosen.ids[:16], chosen.picture), given, settings)  # warm-up
    rows = images * maps * (steps - 1)
    return median_rate(rows, lambda: evaluate(model, chosen, given, settings))


def peers(curves: int, steps: int) -> dict[str, float]:
    """Rows a second of three torch loops over the same network."""
    import torch  # noqa: PLC0415
    import torchvision  # noqa: PLC0415

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

    def on_the_device(count: int) -> None:
        for image in range(count):
            heat = torch.from_numpy(maps[image]).cuda()
            rank = torch.argsort(torch.argsort(heat, descending=True)).reshape(1, 1, 224, 224)
            keep = (torch.arange(1, steps, device="cuda") * pixels // steps).reshape(-1, 1, 1, 1)
            torch.softmax(network(images[image : image + 1].cuda() * (rank < keep)), dim=1)[:, 0].cpu()

    with torch.inference_mode():
        one_at_a_time(1), reuploaded(), on_the_device(2)  # warm-up
        return {
            "one image at a time, sorted at every step": median_rate(4 * (steps - 1), lambda: one_at_a_time(4)),
            "64 images uploaded at every step": median_rate(64 * (steps - 1), reuploaded),
            "one curve a batch, on the device": median_rate(curves * (steps - 1), lambda: on_the_device(curves)),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--maps", type=int, default=4)
    parser.add_argument("--steps", type=int, default=224)
    parser.add_argument("--peers", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = asked.model or export_resnet50(folder)
        settings = auditkit.Settings(device=asked.device, precision=asked.precision, batch=asked.batch)
        model = auditkit.load(path, preset="imagenet", settings=settings)
        alone = bare(model, asked.batch, max(1, asked.images * asked.maps * asked.steps // asked.batch // 4))
        ours = whole(model, asked.images, asked.maps, asked.steps, folder)
    found: dict[str, Any] = {
        "machine": describe(), "command": sys.argv, "model": path.name, "device": model.settings.device,
        "precision": model.settings.precision, "batch": asked.batch, "steps": asked.steps,
        "bare_rows_s": round(alone, 1), "evaluate_rows_s": round(ours, 1), "ratio": round(ours / alone, 4),
    }  # fmt: skip
    if asked.peers:
        loops = peers(16, asked.steps)
        found["peers_rows_s"] = {name: round(rate, 1) for name, rate in loops.items()}
        found["times_peers"] = {name: round(ours / rate, 2) for name, rate in loops.items()}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
