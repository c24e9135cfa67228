"""Milliseconds a step of mask learning, against the same step in torch.

    python -m benchmarks.explain --device cuda --precision tf32 --precision float16 --peer eager --peer compile
    python -m benchmarks.explain --network small --device cpu --masks 4 --pixels 64 --peer eager

A step: masks from their weights, upsampled by 4, over 10 other pictures each, the network on all of them, the loss,
its gradient with respect to the weights, Adam. The network is a torchvision ResNet-50 (or, with `--network small`, an
18-layer one written down here), exported on the spot; its weights do not matter to speed. Ours feeds the pictures'
places and reads the losses at every step, as the method itself does; torch draws on the device and is waited for only
at the end of a repeat. Both take turns, so that whatever else the machine does falls on both; `cpu_ms` is processor
time, to be looked at with `--threads 1` where other work is under way. Prints one JSON object.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as all the world calls it

import auditkit
from auditkit.graph import mask_objective as names
from auditkit.methods.mask.method import MaskOptions, prepare
from auditkit.model.classifier import OnnxClassifier
from benchmarks.reporting import log, origin, printed_at_end

Steps = Callable[[int], None]  # run so many steps and wait until they are done
FACTOR, OTHERS = 4, 64
PEERS = ("eager", "eager-channels-last", "compile")


class Residual(nn.Module):
    """Two convolutions around which the image goes too."""

    def __init__(self, taken: int, made: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(taken, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU(),
            nn.Conv2d(made, made, 3, 1, 1, bias=False), nn.BatchNorm2d(made),
        )  # fmt: skip
        self.around: nn.Module = nn.Identity()
        if stride > 1 or taken != made:
            self.around = nn.Sequential(nn.Conv2d(taken, made, 1, stride, bias=False), nn.BatchNorm2d(made))

    def forward(self, x: Any) -> Any:
        return F.relu(self.body(x) + self.around(x))


def small() -> nn.Module:
    """A residual network of 18 layers."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for taken, made, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Residual(taken, made, stride), Residual(made, made, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def network(name: str) -> nn.Module:
    """The network in torch, its weights fixed."""
    torch.manual_seed(0)
    if name == "small":
        found = small()
    else:
        import torchvision  # noqa: PLC0415

        found = getattr(torchvision.models, name)(weights=None)
    return found.eval().requires_grad_(False)


def exported(net: nn.Module, folder: Path, pixels: int) -> Path:
    """The network as ONNX."""
    target, example = folder / f"network{pixels}.onnx", torch.randn(2, 3, pixels, pixels)
    torch.onnx.export(net, (example,), str(target), dynamo=True, input_names=["x"], output_names=["logits"],
                      dynamic_shapes=({0: torch.export.Dim("N")},), external_data=False, verbose=False)  # fmt: skip
    return target


def pictures(masks: int, pixels: int) -> np.ndarray[Any, Any]:
    """A bank of the images and of others."""
    return np.random.default_rng(0).standard_normal((masks + OTHERS, 3, pixels, pixels)).astype(np.float32)


def ours(model: OnnxClassifier, masks: int, asked: argparse.Namespace) -> Steps:
    """Steps of the graph, state kept on the device."""
    learner = prepare(model, MaskOptions(distractors=asked.distractors, factor=FACTOR))
    session = learner.session
    rng = np.random.default_rng(1)
    fixed = {
        names.PICTURES: pictures(masks, model.signature.height),
        names.IMAGE: np.arange(masks, dtype=np.int32),
        names.LABEL: np.arange(masks, dtype=np.int32) % model.signature.outputs,
        names.RATE: np.full((masks, 1, 1, 1), 0.3, np.float32),
    }
    feeds = {name: session.upload(array) for name, array in fixed.items()}
    draws = rng.integers(masks, masks + OTHERS, (asked.steps, masks, asked.distractors)).astype(np.int32)
    start = names.initial_state(masks, learner.ends, learner.recipe)
    stepper = session.stepper(names.STATE, start, {**feeds, names.INFILLS: draws[0]}, [names.LOSS])

    def steps(count: int) -> None:
        for step in range(count):
            (losses,) = stepper.step({names.INFILLS: draws[step]})
        assert np.isfinite(losses).all()

    return steps


def torchs(net: nn.Module, masks: int, pixels: int, peer: str, precision: str, asked: argparse.Namespace) -> Steps:
    """Steps of the same in torch."""
    device = "cuda" if torch.cuda.is_available() and asked.device != "cpu" else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "strict"
    torch.backends.cudnn.benchmark = True
    kind = torch.float16 if precision == "float16" else torch.float32
    layout = torch.channels_last if "channels-last" in peer else torch.contiguous_format
    scale = 1024.0 if kind == torch.float16 else 1.0
    net = net.to(device, kind, memory_format=layout)
    bank = torch.from_numpy(pictures(masks, pixels)).to(device)
    labels = torch.arange(masks, device=device)[:, None, None].expand(masks, asked.distractors, 1)
    grid = -(-pixels // FACTOR)
    weights = torch.zeros(masks, 1, grid, grid, device=device, requires_grad=True)
    adam = torch.optim.Adam([weights], lr=0.05)

    def loss(drawn: Any) -> Any:
        kept = F.interpolate(torch.sigmoid(weights), scale_factor=FACTOR, mode="bilinear", align_corners=False)
        kept = kept[..., :pixels, :pixels]
        rows = (kept[:, None] * bank[:masks, None] + (1 - kept[:, None]) * bank[drawn]).flatten(0, 1)
        scores = net(rows.to(kind, memory_format=layout)).float().view(masks, asked.distractors, -1)
        data = -scores.log_softmax(-1).gather(2, labels).mean((1, 2))
        tv = (kept.diff(dim=2) ** 2).sum((1, 2, 3)) + (kept.diff(dim=3) ** 2).sum((1, 2, 3))
        return (data + 0.01 * tv + kept.sum((1, 2, 3)) / pixels**2).sum() * scale

    compiled = torch.compile(loss) if peer == "compile" else loss

    def steps(count: int) -> None:
        for _ in range(count):
            drawn = torch.randint(masks, masks + OTHERS, (masks, asked.distractors), device=device)
            adam.zero_grad()
            compiled(drawn).backward()
            if scale != 1:
                weights.grad.div_(scale)
            adam.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return steps


def taking_turns(runs: dict[str, Steps], asked: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Median milliseconds a step of each, by the clock and of processor time."""
    for run in runs.values():
        run(min(3, asked.steps))  # warm-up: algorithm search, compilation
    walls: dict[str, list[float]] = {name: [] for name in runs}
    processors: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(asked.repeats):
        for name, run in runs.items():
            wall, processor = time.perf_counter(), time.process_time()
            run(asked.steps)
            walls[name].append(1e3 * (time.perf_counter() - wall) / asked.steps)
            processors[name].append(1e3 * (time.process_time() - processor) / asked.steps)
    return {
        name: {"ms": round(statistics.median(walls[name]), 3), "cpu_ms": round(statistics.median(processors[name]), 3)}
        for name in runs
    }


def measured(model: OnnxClassifier, masks: int, asked: argparse.Namespace) -> dict[str, Any]:
    """One line of the table."""
    decided, pixels = model.settings.precision, model.signature.height
    runs = {"auditkit": ours(model, masks, asked)}
    for peer in asked.peer or []:
        runs[peer] = torchs(network(asked.network), masks, pixels, peer, decided, asked)
    found = taking_turns(runs, asked)
    mine = found["auditkit"]
    others = {name: times for name, times in found.items() if name != "auditkit"}
    return {
        "precision": decided, "masks": masks, "pixels": pixels, "rows": masks * asked.distractors, "step": found,
        "rows_s": round(1e3 * masks * asked.distractors / mine["ms"], 1),
        "times_peers": {name: round(times["ms"] / mine["ms"], 3) for name, times in others.items()},
        "times_peers_cpu": {name: round(times["cpu_ms"] / mine["cpu_ms"], 3) for name, times in others.items()},
    }  # fmt: skip


def every_line(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All sizes, precisions and numbers of masks."""
    with tempfile.TemporaryDirectory() as name:
        for pixels in asked.pixels or [224]:
            path = exported(network(asked.network), Path(name), pixels)
            for precision in asked.precision or ["auto"]:
                settings = auditkit.Settings(device=asked.device, precision=precision, threads=asked.threads)
                model = auditkit.load(path, preset="imagenet", settings=settings)
                for masks in asked.masks or [1, 4, 16, 64]:
                    yield measured(model, masks, asked)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet50", help="of torchvision, or: small")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--precision", action="append")
    parser.add_argument("--masks", type=int, nargs="+", action="extend", help="1 4 16 64 unless given")
    parser.add_argument("--pixels", type=int, nargs="+", action="extend", help="224 unless given")
    parser.add_argument("--distractors", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20, help="in each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer", action="append", choices=PEERS)
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    found: dict[str, Any] = {
        **origin("benchmarks.explain"), "torch": torch.__version__, "network": asked.network,
        "distractors": asked.distractors, "steps": asked.steps, "repeats": asked.repeats, "lines": [],
    }  # fmt: skip
    with printed_at_end(found):
        for line in every_line(asked):
            found["lines"].append(line)
            log(line)


if __name__ == "__main__":
    main()
