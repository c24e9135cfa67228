"""Two small masking networks for CIFAR-10, trained through the classifier's gradient file and exported as ONNX.

    auditkit differentiate MODEL.onnx -o GRADIENT.onnx
    python -m benchmarks.paper.maskers GRADIENT.onnx IMAGES.npz -o FOLDER [--steps 1500] [--leave PLACES.txt]

They stand for the two of the paper's table that ship a trained network, at a size that two cores train in minutes:

- `by-label.onnx`, image and label in, in the manner of Dabkowski & Gal 2017: what is kept over a blur, or over a flat
  colour, must show the label, what is left must not, masks are small and smooth, and labels that the image does not
  show are to get no mask;
- `by-image.onnx`, image alone in, in the manner of Phang et al. 2020: what is left over must leave the classifier
  without an opinion, whatever the label; one mask serves every label.

Needs torch. The classifier itself never becomes a torch network: its scores and gradients come from the ONNX file.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn
from torch.nn import functional

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLASSES, BATCH, SEED = 10, 32, 2022
SMALL, SMOOTH, LEFT, FADE = 1.5, 2e-3, 1.0, 0.3  # weights of size, variation, what is left, and its power
FAKE = 0.3  # share of the labels that are drawn by chance and get no mask
SEEDS, GRADIENT = "seed", "gradient"  # of the classifier's gradient file
Tensor = torch.Tensor


class Scores(torch.autograd.Function):
    """Logits of the classifier in the file, and the way back through its `gradient`."""

    @staticmethod
    def forward(context: Any, shown: Tensor, session: onnxruntime.InferenceSession) -> Tensor:
        context.save_for_backward(shown)
        context.session = session
        scores = next(entry.name for entry in session.get_outputs() if entry.name != GRADIENT)
        return torch.from_numpy(_run(session, scores, shown, np.zeros((len(shown), CLASSES), np.float32)))

    @staticmethod
    def backward(context: Any, seed: Tensor) -> tuple[Tensor, None]:
        (shown,) = context.saved_tensors
        return torch.from_numpy(_run(context.session, GRADIENT, shown, seed.numpy())), None


def _run(session: onnxruntime.InferenceSession, wanted: str, shown: Tensor, seed: Any) -> Any:
    image = next(entry.name for entry in session.get_inputs() if entry.name != SEEDS)
    return session.run([wanted], {image: shown.detach().numpy(), SEEDS: seed})[0]


class Network(nn.Module):
    """Three scales down and up again; a label, where one is given, opens or shuts the coarsest cells."""

    def __init__(self, labels: bool, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = _block(3, width), _block(width, 2 * width)
        self.third = _block(2 * width, 4 * width)
        self.label = nn.Embedding(CLASSES, 4 * width) if labels else None
        self.up, self.last = _block(6 * width, 2 * width), _block(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, shown: Tensor, label: Tensor | None = None) -> Tensor:
        fine = self.first(shown)
        middle = self.second(functional.max_pool2d(fine, 2))
        coarse = self.third(functional.max_pool2d(middle, 2))
        if self.label is not None:
            match = (coarse * self.label(label)[:, :, None, None]).sum(1, keepdim=True)
            coarse = coarse * torch.sigmoid(match)
        middle = self.up(torch.cat([functional.interpolate(coarse, scale_factor=2.0), middle], 1))
        fine = self.last(torch.cat([functional.interpolate(middle, scale_factor=2.0), fine], 1))
        return torch.sigmoid(self.out(fine))


def _block(inside: int, outside: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.ReLU())


def behind(shown: Tensor, chance: torch.Generator) -> Tensor:
    """What hidden pixels are replaced with: a blur of the image, or a flat colour with some noise."""
    blurred = functional.avg_pool2d(functional.pad(shown, (5,) * 4, mode="reflect"), 11, 1)
    flat = torch.randn(len(shown), 3, 1, 1, generator=chance) * 0.5 + 0.2 * torch.randn(shown.shape, generator=chance)
    return torch.where(torch.rand(len(shown), 1, 1, 1, generator=chance) < 0.5, blurred, flat)


def variation(mask: Tensor) -> Tensor:
    return (mask.diff(dim=2) ** 2).sum((1, 2, 3)) + (mask.diff(dim=3) ** 2).sum((1, 2, 3))


def loss_by_label(network: Network, shown: Tensor, scores: Any, chance: torch.Generator) -> Tensor:
    """The label must be seen in what is kept and not in what is left; labels drawn by chance are to get nothing."""
    likely = scores(shown).argmax(1)
    drawn = torch.rand(len(shown), generator=chance) < FAKE
    label = torch.where(drawn, torch.randint(0, CLASSES, likely.shape, generator=chance), likely)
    mask, other, real = network(shown, label), behind(shown, chance), label == likely
    kept = functional.log_softmax(scores(mask * shown + (1 - mask) * other), 1).gather(1, label[:, None])[:, 0]
    left = functional.softmax(scores((1 - mask) * shown + mask * other), 1).gather(1, label[:, None])[:, 0]
    wanted = SMALL * mask.mean((1, 2, 3)) + SMOOTH * variation(mask) - kept + LEFT * (left + 1e-6) ** FADE
    return torch.where(real, wanted, 5 * mask.mean((1, 2, 3))).mean()


def loss_by_image(network: Network, shown: Tensor, scores: Any, chance: torch.Generator) -> Tensor:
    """What is left must leave the classifier undecided, and masks are small and smooth."""
    mask, other = network(shown), behind(shown, chance)
    left = functional.log_softmax(scores((1 - mask) * shown + mask * other), 1)
    entropy = -(left.exp() * left).sum(1)
    return (2 * SMALL * mask.mean((1, 2, 3)) + SMOOTH * variation(mask) - entropy).mean()


def trained(network: Network, loss: Any, images: Tensor, session: onnxruntime.InferenceSession, steps: int) -> Network:
    """The network after so many batches, each mirrored by chance."""
    chance = torch.Generator().manual_seed(SEED)
    adam = torch.optim.Adam(network.parameters(), 3e-3)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    total = 0.0
    for step in range(1, steps + 1):
        shown = images[torch.randint(0, len(images), (BATCH,), generator=chance)]
        shown = shown.flip(3) if torch.rand(1, generator=chance) < 0.5 else shown
        found = loss(network, shown, lambda rows: Scores.apply(rows, session), chance)
        adam.zero_grad()
        found.backward()
        adam.step()
        fall.step()
        total += float(found.detach())
        if step % 100 == 0:
            print(f"{step} of {steps}: loss {total / 100:.3f}", flush=True)
            total = 0.0
    return network.eval()


def main() -> None:
    """Train both, and export them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gradient", type=Path, help="the classifier's gradient file")
    parser.add_argument("images", type=Path, help=".npz with images [N, 32, 32, 3]")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--leave", type=Path, help="text with the places of images that are not to be trained on")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with np.load(asked.images) as held:
        pictures = held["images"]
    away = np.loadtxt(asked.leave, int) if asked.leave else np.zeros(0, int)
    pictures = np.delete(pictures, away, axis=0)
    shown = torch.from_numpy(((pictures / 255 - MEAN) / STD).astype(np.float32).transpose(0, 3, 1, 2).copy())
    session = onnxruntime.InferenceSession(str(asked.gradient), providers=["CPUExecutionProvider"])
    for name, labels, loss in (("by-label", True, loss_by_label), ("by-image", False, loss_by_image)):
        torch.manual_seed(SEED)
        network = trained(Network(labels), loss, shown, session, asked.steps)
        example = (shown[:2], torch.tensor([3, 5])) if labels else (shown[:2],)
        inputs = ["image", "label"][: len(example)]
        torch.onnx.export(network, example, str(asked.out / f"{name}.onnx"), dynamo=False, output_names=["mask"],
                          input_names=inputs, dynamic_axes={key: {0: "N"} for key in (*inputs, "mask")})  # fmt: skip


if __name__ == "__main__":
    main()
