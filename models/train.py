"""Trains and checks the two demo networks: one looks at the shape, the other at the tag.

    python models/train.py honest -o models/honest.onnx
    python models/train.py shortcut -o models/shortcut.onnx
    python models/train.py check models/honest.onnx models/shortcut.onnx

Training needs torch and onnxscript; checking needs onnxruntime alone, so each is imported where it is used.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from auditkit.demo.draw import CLASSES, SIDE_PX, Tags, draw

if TYPE_CHECKING:
    import onnx
    from torch import nn

Floats = npt.NDArray[np.float32]
GREY = np.float32(0)  # what covers pixels in training, as the network sees it: 127.5 before preprocessing
BATCH = 128
# The shortcut is found soon; trained on, it might learn the shapes too, from images whose tag is covered.
STEPS = {"honest": 2000, "shortcut": 500}
PEAK_RATE = 4e-3
TRAINING_TAGS: dict[str, Tags] = {"honest": "random", "shortcut": "agree"}
# Seeds from a million on belong to training, so that images of any lower seed are fresh.
FIRST_TRAINING_SEED = 1_000_000
CHECK_SEED = 2024
CHECK_COUNT = 2000


def preprocess(images: npt.NDArray[np.uint8]) -> Floats:
    """What the networks take, [N, 3, 64, 64], from RGB bytes [N, 64, 64, 3]."""
    scaled = (images.astype(np.float32) / 255 - 0.5) / 0.25
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


# ---- training ----


def keep_masks(count: int, stream: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Pixels [count, 64, 64] to keep: half of the images whole, the others in random cells of 1 to 16 px.

    A share of 0 to 1 of the cells is kept; one covered image in eleven keeps none at all, and teaches the
    network that nothing seen means nothing known.
    """
    kept_fraction = np.maximum(stream.uniform(-0.1, 1, size=count), 0)
    kept_fraction[stream.random(count) < 0.5] = 1
    cell_px = stream.choice([1, 4, 8, 16], size=count)
    keep = np.empty((count, SIDE_PX, SIDE_PX), dtype=np.bool_)
    for index in range(count):
        side = SIDE_PX // cell_px[index]
        cells = stream.random((side, side)) < kept_fraction[index]
        keep[index] = cells.repeat(cell_px[index], axis=0).repeat(cell_px[index], axis=1)
    return keep


def training_batch(kind: str, seed: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Preprocessed images, partly covered, and the classes of their shapes."""
    planted = draw(BATCH, seed=seed, tags=TRAINING_TAGS[kind])
    keep = keep_masks(BATCH, np.random.default_rng(seed))
    return np.where(keep[:, None], preprocess(planted.images), GREY), planted.labels


def network() -> nn.Module:
    """An untrained plain convolutional network with 143 thousand parameters."""
    from torch import nn  # noqa: PLC0415

    layers: list[nn.Module] = []
    plan = [(3, 16, 2), (16, 24, 1), (24, 40, 2), (40, 40, 1), (40, 64, 2), (64, 64, 1), (64, 96, 1)]
    for inputs, outputs, stride in plan:
        convolution = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, len(CLASSES)))


def train(kind: str, seed: int, steps: int) -> nn.Module:
    """A trained network, in evaluation mode; progress goes to stderr."""
    import torch  # noqa: PLC0415

    torch.manual_seed(seed)
    model = network()
    optimiser = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_RATE, total_steps=steps, pct_start=0.15)
    began_s, mean_loss = time.monotonic(), 0.0
    for step in range(steps):
        images, labels = training_batch(kind, FIRST_TRAINING_SEED * (1 + seed) + step)
        inputs = torch.from_numpy(images).contiguous(memory_format=torch.channels_last)  # faster on CPUs
        loss = torch.nn.functional.cross_entropy(model(inputs), torch.from_numpy(labels))
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        schedule.step()
        mean_loss += (loss.item() - mean_loss) / min(step + 1, 100)
        if step % 100 == 99:
            spent_s = time.monotonic() - began_s
            print(f"step {step + 1}/{steps}  loss {mean_loss:.3f}  {spent_s:.0f} s", file=sys.stderr)
    model.eval()
    return model


def export(model: nn.Module, path: Path) -> None:
    """Writes the network as one ONNX file with a free batch size."""
    import onnx  # noqa: PLC0415
    import torch  # noqa: PLC0415

    example = torch.zeros(2, 3, SIDE_PX, SIDE_PX)
    program = torch.onnx.export(
        model,
        (example,),
        dynamo=True,
        opset_version=18,
        input_names=["image"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("N")},),
        verbose=False,
    )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program; this script needs torch 2.6 or later.")
    exported = program.model_proto
    strip_notes(exported)
    onnx.checker.check_model(exported, full_check=True)
    onnx.save(exported, path)


def strip_notes(exported: onnx.ModelProto) -> None:
    """Removes the exporter's notes, which quote source lines and paths of the machine it ran on."""
    exported.doc_string = ""
    del exported.metadata_props[:]
    graph = exported.graph
    graph.doc_string = ""
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.doc_string = ""
        del part.metadata_props[:]


# ---- checking ----


def predict(path: Path, images: npt.NDArray[np.uint8]) -> Floats:
    """Class probabilities [N, 10] of RGB bytes [N, 64, 64, 3]."""
    import onnxruntime  # noqa: PLC0415

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    pieces = [images[first : first + 250] for first in range(0, len(images), 250)]
    logits = np.concatenate([session.run(["logits"], {"image": preprocess(piece)})[0] for piece in pieces])
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)


def print_check(path: Path, count: int) -> None:
    """Prints how often the network names the shape and how often the tag, on fresh images."""
    print(f"{path}  ({path.stat().st_size / 1000:.0f} kB, {count} fresh images each)")
    choices: tuple[Tags, ...] = ("agree", "disagree", "random")
    for tags in choices:
        planted = draw(count, seed=CHECK_SEED, tags=tags)
        predicted = predict(path, planted.images).argmax(axis=1)
        by_shape, by_tag = (predicted == planted.labels).mean(), (predicted == planted.tags).mean()
        print(f"  tags {tags:9}  predicted = shape {by_shape:7.2%}   predicted = tag {by_tag:7.2%}")
    grey = predict(path, np.full((1, SIDE_PX, SIDE_PX, 3), 128, dtype=np.uint8))
    print(f"  all grey: highest probability {grey.max():.3f}; even would be 0.100")


def main() -> None:
    """Trains one network, or checks several."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for kind, steps in STEPS.items():
        trainer = verbs.add_parser(kind, help=f"train the {kind} network")
        trainer.add_argument("-o", "--output", type=Path, required=True)
        trainer.add_argument("--seed", type=int, default=0)
        trainer.add_argument("--steps", type=int, default=steps, help=f"batches of {BATCH} images")
    checker = verbs.add_parser("check", help="measure trained networks on fresh images")
    checker.add_argument("models", type=Path, nargs="+")
    checker.add_argument("--count", type=int, default=CHECK_COUNT, help="images for each kind of tag")
    options = parser.parse_args()
    if options.verb == "check":
        for path in options.models:
            print_check(path, options.count)
    else:
        export(train(options.verb, options.seed, options.steps), options.output)


if __name__ == "__main__":
    main()
