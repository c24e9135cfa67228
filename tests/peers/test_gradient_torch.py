"""Gradients of exported networks are those of torch.autograd, by either exporter; a vendor's own are taken."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

import auditkit
from auditkit.graph import float_types
from auditkit.graph.gradient import export
from auditkit.model import gradient
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.session import Session, Settings

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from tests.peers import nets  # noqa: E402 - it needs torch

Array = np.ndarray[Any, Any]
# What torch's exporters warn of is not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")
SMOOTH = ("convnext", "efficientnet", "hourglass", "mixer", "swin", "vit")
KINKED = ("alexnet", "densenet", "inception", "mobilenet_v2", "mobilenet_v3", "resnet", "resnext", "shufflenet", "vgg")
CPU = Settings(device="cpu")


@pytest.fixture(scope="module")
def families() -> dict[str, Any]:
    torch.manual_seed(0)
    return dict(nets.families())


def exported(net: Any, path: Path, *, new: bool) -> OnnxClassifier:
    image = (torch.randn(2, 3, nets.SIZE, nets.SIZE, dtype=next(net.parameters()).dtype),)
    names = {"input_names": ["image"], "output_names": ["logits"]}
    if new:
        batch = {0: torch.export.Dim("N", min=1)}
        torch.onnx.export(net, image, path, dynamo=True, verbose=False, dynamic_shapes=(batch,), **names)
    else:
        axes = {"image": {0: "N"}, "logits": {0: "N"}}
        torch.onnx.export(net, image, path, dynamo=False, dynamic_axes=axes, opset_version=17, **names)
    found = auditkit.load(path, settings=CPU)
    assert isinstance(found, OnnxClassifier)
    return found


def autograd(net: Any, image: Array, seed: Array) -> Array:
    x = torch.from_numpy(image).requires_grad_()
    (net(x) * torch.from_numpy(seed)).sum().backward()
    return np.asarray(x.grad)


def inputs(dtype: Any) -> tuple[Array, Array]:
    rng = np.random.default_rng(1)
    image = rng.standard_normal((3, 3, nets.SIZE, nets.SIZE)).astype(dtype)
    return image, rng.standard_normal((3, nets.CLASSES)).astype(dtype)


def relative(found: Array, expected: Array) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("new", [True, False], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_networks(name: str, new: bool, families: dict[str, Any], tmp_path: Path) -> None:
    found = gradient.differentiate(exported(families[name], tmp_path / "net.onnx", new=new))
    image, seed = inputs(np.float32)
    session = Session(found.model, CPU, found.weights)
    result = session.run({"image": image, export.SEED: seed}, [export.GRADIENT])[0]
    assert relative(result, autograd(families[name], image, seed)) < 1e-5


@pytest.mark.parametrize("new", [True, False], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize("name", KINKED)
def test_networks_with_kinks_in_double_precision(
    name: str, new: bool, families: dict[str, Any], tmp_path: Path
) -> None:
    """In float32 a number that rounds to the other side of a kink changes the gradient, in torch as well as here."""
    classifier = exported(families[name], tmp_path / "net.onnx", new=new)
    assert gradient.differentiate(classifier).check.passed
    base = gradient.ready(classifier)
    model, _ = float_types.in_one_float(base.model, base.weights, TensorProto.DOUBLE)
    kinds = {n: TensorProto.DOUBLE if kind == TensorProto.FLOAT else kind for n, kind in base.facts.kinds.items()}
    facts = replace(base.facts, kinds=kinds, float_kind=TensorProto.DOUBLE)
    joined = export.with_gradient(model, facts, "logits", "image")
    image, seed = inputs(np.float64)
    result = ReferenceEvaluator(joined).run([export.GRADIENT], {"image": image, export.SEED: seed})[0]
    families[name].double()
    try:
        assert relative(result, autograd(families[name], image, seed)) < 1e-5
    finally:
        families[name].float()


@pytest.mark.parametrize("name", ["convnext", "mixer", "swin"])
def test_half_precision_has_the_gradient_of_its_rounded_weights(
    name: str, families: dict[str, Any], tmp_path: Path
) -> None:
    """The reference is the network of the same float16 weights in float64."""
    halved = copy.deepcopy(families[name]).half()
    found = gradient.differentiate(exported(halved, tmp_path / "net.onnx", new=False))
    image, seed = (array.astype(np.float16) for array in inputs(np.float64))
    session = Session(found.model, CPU, found.weights)
    result = session.run({"image": image, export.SEED: seed.astype(np.float32)}, [export.GRADIENT])[0]
    expected = autograd(halved.double(), image.astype(np.float64), seed.astype(np.float64))
    assert relative(result, expected) < 2e-5


# The gates of a Relu open at the rounded features of torch, and at unrounded ones here: they differ by more.
@pytest.mark.parametrize(("activation", "most"), [("ReLU", 0.25), ("Tanh", 0.05)])
def test_a_quantised_network_has_nearly_the_straight_through_gradient(
    activation: str, most: float, tmp_path: Path
) -> None:
    """The reference is torch's gradient of fake quantisation, which passes straight through the rounding."""

    class Quantised(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.convs = torch.nn.ModuleList([torch.nn.Conv2d(size, 8, 3, padding=1) for size in (3, 8, 8)])
            self.head, self.activation = torch.nn.Linear(8, nets.CLASSES), getattr(torch.nn, activation)()

        def forward(self, x: Any) -> Any:
            def rounded(x: Any, scale: float, zero: int, low: int, high: int) -> Any:
                return torch.fake_quantize_per_tensor_affine(x, scale, zero, low, high)

            x = rounded(x, 6 / 255, 128, 0, 255)
            for conv in self.convs:
                weight = rounded(conv.weight, 1 / 254, 0, -128, 127)
                x = torch.nn.functional.conv2d(x, weight, conv.bias, padding=1)
                x = rounded(self.activation(x), 2 / 255, 128, 0, 255)
            return self.head(x.mean(dim=(2, 3)))

    torch.manual_seed(1)
    net = Quantised().eval()
    found = gradient.differentiate(exported(net, tmp_path / "net.onnx", new=False))
    assert found.surrogate
    image, seed = inputs(np.float32)
    session = Session(found.model, CPU, found.weights)
    result = session.run({"image": image, export.SEED: seed}, [export.GRADIENT])[0]
    assert 1e-4 < relative(result, autograd(net, image, seed)) < most


def test_a_gradient_exported_by_the_vendor_is_taken(tmp_path: Path) -> None:
    """A module that returns logits and their gradient, as a vendor may export it."""

    class Vendors(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.Linear(6, nets.CLASSES)

        def forward(self, image: Any, seed: Any) -> Any:
            hidden = torch.tanh(self.conv(image))
            share = (seed @ self.head.weight)[:, :, None, None] / (hidden.shape[2] * hidden.shape[3])
            back = torch.nn.functional.conv_transpose2d(share * (1 - hidden**2), self.conv.weight, padding=1)
            return self.head(hidden.mean(dim=(2, 3))), back

    net, (image, seed) = Vendors().eval(), inputs(np.float32)
    batch = {0: torch.export.Dim("N", min=1)}
    torch.onnx.export(
        net, (torch.from_numpy(image), torch.from_numpy(seed)), tmp_path / "net.onnx", dynamo=True, verbose=False,
        dynamic_shapes=(batch, batch), input_names=["image", "seed"], output_names=["logits", "gradient"],
    )  # fmt: skip
    classifier = auditkit.load(tmp_path / "net.onnx", settings=CPU)
    assert isinstance(classifier, OnnxClassifier)
    found = gradient.differentiate(classifier)
    assert found.vendors_own
    session = Session(found.model, CPU, found.weights)
    result = session.run({"image": image, export.SEED: seed}, [export.GRADIENT])[0]
    expected = autograd(lambda x: net(x, torch.from_numpy(seed))[0], image, seed)
    assert relative(result, expected) < 1e-5
