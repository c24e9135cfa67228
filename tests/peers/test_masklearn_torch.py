"""Twenty steps of mask learning give the weights that torch's autograd and Adam give."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.graph import mask_objective as names
from auditkit.methods.mask.method import MaskOptions, prepare
from auditkit.model.session import Settings

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from tests.peers import nets  # noqa: E402 - it needs torch

F = torch.nn.functional

Array = np.ndarray[Any, Any]
# What torch's exporters warn of is not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")
PAIRS, PICTURES, STEPS = 3, 12, 20
BASE = MaskOptions(steps=STEPS, distractors=4, tv=0.01, factor=1)
VARIANTS = {
    "plain": BASE,
    "upsampled": replace(BASE, factor=4),
    "by 3, which does not divide": replace(BASE, factor=3, l1=0.02),
    "the paper's code": replace(BASE, loss="paper-code", factor=2),
    "two masks": replace(BASE, masks=2, factor=4),
    "the paper's pace": replace(BASE, rate=0.05, fall=1.0, memory=0.999),
}


def torch_loss(net: Any, weights: Any, image: Any, infills: Any, label: Any, options: MaskOptions) -> Any:
    """The loss of each pair, as one would write it in torch."""
    size, factor = image.shape[-1], options.factor or 1
    maps = torch.softmax(torch.cat([weights, torch.zeros_like(weights[:, :1])], 1), 1)[:, :-1]
    masks = F.interpolate(maps, scale_factor=factor, mode="bilinear", align_corners=False)[..., :size, :size]
    kept = masks[:, :, None, None]
    rows = kept * image[:, None, None] + (1 - kept) * infills[:, None]
    pairs, many, drawn = rows.shape[:3]
    scores = net(rows.flatten(0, 2)).view(pairs, many, drawn, -1)
    each = label[:, None].expand(pairs, many)
    if options.loss == "paper-code":
        averaged = scores.softmax(-1).mean(2)
        data = F.cross_entropy(averaged.flatten(0, 1), each.flatten(), reduction="none").view(pairs, many)
    else:
        data = -scores.log_softmax(-1).mean(2).gather(2, each[..., None])[..., 0]
    tv = (masks.diff(dim=2) ** 2).sum((2, 3)) + (masks.diff(dim=3) ** 2).sum((2, 3))
    l1 = 1 / size**2 if options.l1 is None else options.l1
    return (data + options.tv * tv + l1 * masks.sum((2, 3))).mean(1)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    torch.manual_seed(0)
    net = nets.families()["convnext"].eval()  # smooth: at kinks float32 is a matter of luck
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    nets.export(net, path)
    return net, auditkit.load(path, settings=Settings(device="cpu"))


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_twenty_steps(network: tuple[Any, Any], options: MaskOptions) -> None:
    net, model = network
    rng = np.random.default_rng(0)
    pictures = rng.standard_normal((PICTURES, 3, nets.SIZE, nets.SIZE)).astype(np.float32)
    labels = np.arange(PAIRS, dtype=np.int32)
    draws = rng.integers(PAIRS, PICTURES, (STEPS, PAIRS, options.distractors)).astype(np.int32)

    learner = prepare(model, options)
    session, start = learner.session, names.initial_state(PAIRS, learner.ends, learner.recipe)
    fixed = {names.PICTURES: pictures, names.IMAGE: np.arange(PAIRS, dtype=np.int32), names.LABEL: labels}
    feeds = {name: session.upload(array) for name, array in fixed.items()}
    rates = learner.pace.rates(0, STEPS)[:, None, None, None, None].repeat(PAIRS, axis=1)
    fed = {names.INFILLS: draws[0], names.RATE: rates[0]}
    stepper = session.stepper(names.STATE, start, {**feeds, **fed}, [names.LOSS])

    bank = torch.from_numpy(pictures)
    weights = torch.zeros(start[names.WEIGHTS].shape, requires_grad=True)
    adam = torch.optim.Adam([weights], lr=options.rate, betas=(0.9, options.memory))
    falling = torch.optim.lr_scheduler.ExponentialLR(adam, options.fall ** (1 / options.steps))
    for drawn, rate in zip(draws, rates, strict=True):
        (ours,) = stepper.step({names.INFILLS: drawn, names.RATE: rate})
        adam.zero_grad()
        chosen = bank[torch.from_numpy(drawn).long()]
        loss = torch_loss(net, weights, bank[:PAIRS], chosen, torch.from_numpy(labels).long(), options)
        loss.sum().backward()
        adam.step()
        falling.step()
        np.testing.assert_allclose(ours, loss.detach().numpy(), rtol=1e-4)
    np.testing.assert_allclose(stepper.state()[names.WEIGHTS], weights.detach().numpy(), atol=1e-4)
