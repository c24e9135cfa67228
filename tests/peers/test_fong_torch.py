"""The steps of fong and igos++ give the masks that torch's autograd gives for the published objectives."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.methods.fong import FongOptions, fong
from auditkit.methods.igos import IgosOptions, igos
from auditkit.methods.request import Pool, Request, over_blur
from auditkit.model.session import Settings

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from tests.peers import nets  # noqa: E402 - it needs torch

F = torch.nn.functional

Array = np.ndarray[Any, Any]
# What torch's exporters warn of is not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")
STEPS, LABELS = 20, (0, 1)
FONG = FongOptions(steps=STEPS, factor=4, blur=4.0, jitter=0, start="ones", rate=0.02)
IGOS = IgosOptions(steps=3, points=3, factor=4, blur=4.0, noise=0.0, l1=0.002, tv=0.05)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Request]:
    torch.manual_seed(0)
    net = nets.families()["convnext"].eval()  # smooth: at kinks float32 is a matter of luck
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    nets.export(net, path)
    model = auditkit.load(path, settings=Settings(device="cpu"))
    pixels = np.random.default_rng(0).integers(0, 256, (3, nets.SIZE, nets.SIZE, 3), dtype=np.uint8)
    shown = model.preprocess(pixels)
    return net, Request(model, ("a", "b", "c"), pixels, shown, (LABELS,) * 3, shown[:1], Pool((), shown[:0]))


def spread(request: Request, sigma: float) -> tuple[Any, Any, Any]:
    """For every pair its image, the same out of focus, and its label."""
    pictures, times = over_blur(request, sigma).pictures, len(LABELS)
    images, soft = (torch.from_numpy(part).repeat_interleave(times, 0) for part in (pictures[:3], pictures[3:]))
    return images, soft, torch.tensor(LABELS * 3)


def wide(masks: Any, size: int = nets.SIZE) -> Any:
    return F.interpolate(masks, size=(size, size), mode="bilinear", align_corners=False)


def tv(masks: Any, power: float, weights: tuple[Any, Any] = (1, 1)) -> Any:
    down, across = (masks.diff(dim=axis).abs() ** power for axis in (2, 3))
    return (weights[0] * down).mean((1, 2, 3)) + (weights[1] * across).mean((1, 2, 3))


def likely(net: Any, rows: Any, label: Any) -> Any:
    return net(rows).softmax(1).gather(1, label[:, None])[:, 0]


@pytest.mark.parametrize("options", [FONG, replace(FONG, beta=2.0, l1=0.002, tv=0.05)], ids=["usual", "others"])
def test_deleting_masks(asked: tuple[Any, Request], options: FongOptions) -> None:
    net, request = asked
    image, soft, label = spread(request, options.blur)
    masks = torch.ones(len(image), 1, nets.SIZE // 4, nets.SIZE // 4, requires_grad=True)
    adam = torch.optim.Adam([masks], lr=options.rate)
    for _ in range(STEPS):
        kept = wide(masks)
        loss = likely(net, kept * image + (1 - kept) * soft, label) + options.tv * tv(masks, options.beta)
        adam.zero_grad()
        (loss + options.l1 * (1 - masks).abs().mean((1, 2, 3))).sum().backward()
        adam.step()
        masks.data.clamp_(0, 1)
    expected = 1 - wide(masks.detach())[:, 0].numpy()
    found = np.stack([maps[label] for maps in fong(request, options).maps for label in LABELS])
    assert expected.max() > 0.1
    np.testing.assert_allclose(found, expected, atol=1e-3)


def bilateral_loss(net: Any, masks: Any, image: Any, soft: Any, label: Any, alike: Any, options: IgosOptions) -> Any:
    """The published objective, its four terms halved."""
    deletion, insertion = wide(masks[:, :1]), wide(masks[:, 1:])
    both = deletion * insertion
    total = 0.0
    for point in (torch.arange(options.points) + 1) / options.points:
        for kept in (deletion, both):
            total = total + likely(net, point * kept * image + (1 - point * kept) * soft, label)
        for kept in (insertion, both):
            total = total - likely(net, point * kept * soft + (1 - point * kept) * image, label)
    coarse = masks[:, :1] * masks[:, 1:]
    smooth = 0.5 * (tv(coarse, 2) + tv(wide(coarse), 2, alike))
    return total / options.points / 2 + options.l1 * (1 - coarse).abs().mean((1, 2, 3)) + options.tv * smooth


@pytest.mark.parametrize("options", [IGOS, replace(IGOS, tv=0.5, edge=0.3)], ids=["rough", "smooth"])
def test_bilateral_masks(asked: tuple[Any, Request], options: IgosOptions) -> None:
    net, request = asked
    image, soft, label = spread(request, options.blur)
    edge = options.edge * torch.from_numpy(np.ptp(request.model.card.table(), axis=1)).view(1, -1, 1, 1)
    alike = tuple(torch.exp(-((image.diff(dim=axis) / edge) ** 2)).mean(1, keepdim=True) for axis in (2, 3))
    masks = torch.ones(len(image), 2, nets.SIZE // 4, nets.SIZE // 4, requires_grad=True)
    for _ in range(options.steps):
        before = bilateral_loss(net, masks, image, soft, label, alike, options)
        (slope,) = torch.autograd.grad(before.sum(), masks)
        with torch.no_grad():
            new, open_ = masks.clone(), torch.ones(len(masks), dtype=torch.bool)
            length = options.alpha
            while open_.any() and length >= 1e-5:
                tried = (masks - length * slope).clamp(0, 1)
                after = bilateral_loss(net, tried, image, soft, label, alike, options)
                good = open_ & (after <= before - 1e-4 * length * (slope**2).sum((1, 2, 3)))
                new[good], open_, length = tried[good], open_ & ~good, 0.2 * length
        masks = new.requires_grad_()
    expected = 1 - wide((masks[:, :1] * masks[:, 1:]).detach())[:, 0].numpy()
    found = np.stack([maps[label] for maps in igos(request, options).maps for label in LABELS])
    assert expected.max() > 0.05
    np.testing.assert_allclose(found, expected, atol=1e-3)
