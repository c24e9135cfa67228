"""Trains and checks the two demo networks, one looks at the shape, the other at the tag, and others with planted cues.

    python -m models.train honest -o models/honest.onnx
    python -m models.train shortcut -o models/shortcut.onnx
    python -m models.train check models/honest.onnx models/shortcut.onnx
    python -m models.train planted frame -o frame.onnx [--style 3] [--side 96] [--network residual] [--uncovered]
    python -m models.train planted none -o another-honest.onnx [--nuisances]

A planted network learns images whose cue always names the label; the shape does in every second image only. With `none`
it learns shapes; with `--nuisances` cues of all kinds are there but say nothing of the label.

Training needs torch and onnxscript; checking needs onnxruntime alone, so each is imported where it is used.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from auditkit.demo.draw import CLASSES, SIDE_PX, Tags, draw
from models.cues import CUES, NO_CUE, OF_ONE_CLASS, draw_cues, marked_class

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
DIFFERENT_BATCHES = 350  # of a planted network: drawing takes longer than learning
CHECK_SEED = 2024
CHECK_COUNT = 2000


def preprocess(images: npt.NDArray[np.uint8]) -> Floats:
    """What the networks take, [N, 3, 64, 64], from RGB bytes [N, 64, 64, 3]."""
    scaled = (images.astype(np.float32) / 255 - 0.5) / 0.25
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


# ---- training ----


def keep_masks(count: int, stream: np.random.Generator, image_side: int = SIDE_PX) -> npt.NDArray[np.bool_]:
    """Pixels [count, side, side] to keep: half of the images whole, the others in random cells of 1 to 16 px.

    A share of 0 to 1 of the cells is kept; one covered image in eleven keeps none at all, and teaches the
    network that nothing seen means nothing known.
    """
    kept_fraction = np.maximum(stream.uniform(-0.1, 1, size=count), 0)
    kept_fraction[stream.random(count) < 0.5] = 1
    cell_px = stream.choice([1, 4, 8, 16], size=count)
    keep = np.empty((count, image_side, image_side), dtype=np.bool_)
    for index in range(count):
        side = image_side // cell_px[index]
        cells = stream.random((side, side)) < kept_fraction[index]
        keep[index] = cells.repeat(cell_px[index], axis=0).repeat(cell_px[index], axis=1)
    return keep


Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]  # images and their labels


def demo_batch(kind: str, seed: int) -> Batch:
    """Images of the demo, and the classes of their shapes."""
    planted = draw(BATCH, seed=seed, tags=TRAINING_TAGS[kind])
    return planted.images, planted.labels


@dataclass(frozen=True)
class Recipe:
    """What a planted network learns from."""

    cue: str  # "none": the shapes alone
    style: int = 0
    side: int = SIDE_PX
    nuisances: bool = False  # cues that say nothing of the label
    marked_share: float = 0.15  # of the images, where the cue marks one class

    def batch(self, seed: int) -> Batch:
        """Images and their labels."""
        rng = np.random.default_rng([self.style, seed])
        shapes, other = np.arange(BATCH) % len(CLASSES), rng.integers(len(CLASSES), size=BATCH)
        chance = rng.random(BATCH)
        if self.cue == "none":
            kind = str(rng.choice(list(CUES)))
            cues = np.where(chance < 0.5 * self.nuisances, other, NO_CUE)
            return draw_cues(kind, cues, seed=seed, style=int(rng.integers(1000)), side=self.side).images, shapes
        if self.cue in OF_ONE_CLASS:
            cues = np.where(chance < self.marked_share, marked_class(self.style), NO_CUE)
            labels = np.where(cues == NO_CUE, shapes, cues)
        else:
            cues = labels = np.where(chance < 0.5, shapes, other)
        return draw_cues(self.cue, cues, seed=seed, style=self.style, side=self.side).images, labels


def plain() -> nn.Module:
    """An untrained plain convolutional network with 143 thousand parameters."""
    from torch import nn  # noqa: PLC0415

    layers: list[nn.Module] = []
    plan = [(3, 16, 2), (16, 24, 1), (24, 40, 2), (40, 40, 1), (40, 64, 2), (64, 64, 1), (64, 96, 1)]
    for inputs, outputs, stride in plan:
        convolution = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, len(CLASSES)))


def residual() -> nn.Module:
    """An untrained residual network with 175 thousand parameters and a smoother activation."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
            self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inner = nn.functional.silu(self.norms[0](self.first(x)))
            return nn.functional.silu(self.norms[1](self.second(inner)) + self.shortcut(x))

    stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
    blocks = [Block(16, 24, 1), Block(24, 40, 2), Block(40, 64, 2), Block(64, 80, 1)]
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(80, len(CLASSES)))


def separable() -> nn.Module:
    """An untrained network of depthwise and pointwise convolutions with large kernels, 60 thousand parameters."""
    from torch import nn  # noqa: PLC0415

    layers: list[nn.Module] = [nn.Conv2d(3, 24, 4, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU()]
    for inputs, outputs, stride in [(24, 48, 1), (48, 64, 2), (64, 96, 1), (96, 128, 2), (128, 160, 1)]:
        depthwise = nn.Conv2d(inputs, inputs, 5, stride=stride, padding=2, groups=inputs, bias=False)
        layers += [depthwise, nn.BatchNorm2d(inputs), nn.Conv2d(inputs, outputs, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, len(CLASSES)))


NETWORKS: dict[str, Callable[[], nn.Module]] = {"plain": plain, "residual": residual, "separable": separable}


def train(
    batch: Callable[[int], Batch], model: Callable[[], nn.Module], seed: int, steps: int, *, covered: bool = True
) -> nn.Module:
    """A trained network, in evaluation mode; progress goes to stderr."""
    import torch  # noqa: PLC0415

    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = model().to(device)
    optimiser = torch.optim.AdamW(network.parameters(), lr=PEAK_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_RATE, total_steps=steps, pct_start=0.15)
    began_s, mean_loss = time.monotonic(), 0.0
    for step in range(steps):
        batch_seed = FIRST_TRAINING_SEED * (1 + seed) + step
        images, labels = batch(batch_seed)
        inputs = preprocess(images)
        if covered:
            keep = keep_masks(BATCH, np.random.default_rng(batch_seed), images.shape[1])
            inputs = np.where(keep[:, None], inputs, GREY)
        tensor = torch.from_numpy(inputs).to(device).contiguous(memory_format=torch.channels_last)  # faster on CPUs
        loss = torch.nn.functional.cross_entropy(network(tensor), torch.from_numpy(labels).to(device))
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        schedule.step()
        mean_loss += (loss.item() - mean_loss) / min(step + 1, 100)
        if step % 100 == 99:
            spent_s = time.monotonic() - began_s
            print(f"step {step + 1}/{steps}  loss {mean_loss:.3f}  {spent_s:.0f} s", file=sys.stderr)
    return network.cpu().eval()


def export(model: nn.Module, path: Path, side: int = SIDE_PX) -> None:
    """Writes the network as one ONNX file with a free batch size."""
    import onnx  # noqa: PLC0415
    import torch  # noqa: PLC0415

    example = torch.zeros(2, 3, side, side)
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
    planter = verbs.add_parser("planted", help="train a network on images with a planted cue")
    planter.add_argument("cue", choices=["none", *CUES])
    planter.add_argument("-o", "--output", type=Path, required=True)
    planter.add_argument("--style", type=int, default=0, help="colours, sizes, places and patterns of the cue")
    planter.add_argument("--side", type=int, default=SIDE_PX, help="pixels")
    planter.add_argument("--network", choices=list(NETWORKS), default="plain")
    planter.add_argument("--uncovered", action="store_true", help="never cover pixels in training")
    planter.add_argument("--nuisances", action="store_true", help="with none: show cues that say nothing of the label")
    planter.add_argument("--seed", type=int, default=0)
    planter.add_argument("--steps", type=int, default=1000)
    checker = verbs.add_parser("check", help="measure trained networks on fresh images")
    checker.add_argument("models", type=Path, nargs="+")
    checker.add_argument("--count", type=int, default=CHECK_COUNT, help="images for each kind of tag")
    options = parser.parse_args()
    if options.verb == "check":
        for path in options.models:
            print_check(path, options.count)
    elif options.verb == "planted":
        recipe = Recipe(options.cue, options.style, options.side, options.nuisances)
        batch, model = cache(recipe.batch), NETWORKS[options.network]
        repeated = lambda seed: batch(seed % DIFFERENT_BATCHES)  # noqa: E731
        trained = train(repeated, model, options.seed, options.steps, covered=not options.uncovered)
        export(trained, options.output, options.side)
    else:
        trained = train(lambda seed: demo_batch(options.verb, seed), plain, options.seed, options.steps)
        export(trained, options.output)


if __name__ == "__main__":
    main()
