"""Maps of the real explainers go into a bundle in two lines each and come out as the explainers made them."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.data.bundles import Bundle, open_bundle
from tests.support import onnx_models
from tests.support.commands import auditkit as command

torch = pytest.importorskip("torch")

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"
IDS = [f"{index}.png" for index in range(3)]
CLASSES = 4
# What the explainers' own code warns of is not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.Tanh(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(6, CLASSES),
    ).eval()  # fmt: skip


@pytest.fixture
def images() -> Any:
    return torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def _close(found: np.ndarray, expected: Any) -> None:
    np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-5, atol=1e-7)


def test_torch_tensors(tmp_path: Path) -> None:
    """With a gradient, in bfloat16, on labels that are tensors."""
    maps = torch.randn(3, 16, 16, requires_grad=True)
    Bundle(tmp_path / "a").add(IDS, torch.tensor([0, 1, 2]), maps * 2)
    _close(open_bundle(tmp_path / "a").get("2.png", 2), (maps * 2).detach()[2])
    Bundle(tmp_path / "b").add(IDS, 1, maps.to(torch.bfloat16))
    _close(open_bundle(tmp_path / "b").get("2.png", 1), maps.to(torch.bfloat16).float().detach()[2])


def test_captum(tmp_path: Path, net: Any, images: Any) -> None:
    attr = pytest.importorskip("captum.attr")
    labels = torch.tensor([2, 0, 3])

    maps = attr.IntegratedGradients(net).attribute(images, target=labels)
    Bundle(tmp_path / "ig", method="captum IntegratedGradients").add(IDS, labels, maps)

    coarse = attr.LayerGradCam(net, net[0]).attribute(images, target=1)
    Bundle(tmp_path / "cam", method="captum LayerGradCam").add(IDS, 1, coarse)

    bundle = open_bundle(tmp_path / "ig")
    assert (bundle.header.layout, bundle.header.channels, bundle.header.sign) == (("NCHW",), "sum", "signed")
    _close(bundle.get("1.png", 0), maps[1].sum(dim=0).detach())
    _close(open_bundle(tmp_path / "cam").get("2.png", 1), coarse[2, 0].detach())


def _import(library: str) -> None:
    """Import a library, or skip the test; a torchvision whose operators cannot be loaded is good enough for it.

    Beside a torch without CUDA, torchvision from the package index has no operators, and then not even imports.
    """
    try:
        pytest.importorskip(library)
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] in ("torchvision", library)]:
            del sys.modules[name]
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        pytest.importorskip(library)


@pytest.mark.parametrize(("library", "folder"), [("captum", "maps"), ("pytorch_grad_cam", "cam-maps")])
def test_the_loops_of_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, net: Any, images: Any, library: str, folder: str
) -> None:
    """Both loops over labels, as they stand there, fill a bundle that the check accepts."""
    _import(library)
    blocks = GUIDE.read_text().partition("With Captum:\n")[2].partition("With pytorch-grad-cam:\n")[::2]
    code = blocks[library != "captum"].partition("\n`bundle.add")[0]
    model = onnx_models.save(onnx_models.convnet(size=16, classes=CLASSES), tmp_path, "vendor.onnx")
    monkeypatch.chdir(tmp_path)
    object.__setattr__(net, "layer4", net[0])  # a name beside the layers, not one more of them
    variables = {"auditkit": auditkit, "net": net, "images": images, "ids": IDS, "labels": range(CLASSES)}
    exec(textwrap.dedent(code), variables)  # noqa: S102 - our own guide
    bundle = open_bundle(tmp_path / folder)
    assert bundle.labels == dict.fromkeys(IDS, tuple(range(CLASSES)))
    assert not any((bundle.get("1.png", 0) == bundle.get("1.png", label)).all() for label in range(1, CLASSES))
    done = command("bundle", "check", folder, "--model", model)
    assert (done.returncode, "0 errors" in done.stdout) == (0, True)


def test_shap_with_torch(tmp_path: Path, net: Any, images: Any) -> None:
    """N,C,H,W,K in current versions, a list with one array a class in older ones: the same line for both."""
    shap = pytest.importorskip("shap")

    values = shap.GradientExplainer(net, images).shap_values(images, nsamples=8, rseed=0)
    Bundle(tmp_path / "all", method="shap GradientExplainer").add(IDS, range(CLASSES), values)

    best, labels = shap.GradientExplainer(net, images).shap_values(images, nsamples=8, ranked_outputs=2, rseed=0)
    Bundle(tmp_path / "best", method="shap GradientExplainer").add(IDS, labels, best)

    last = np.stack(values, axis=-1) if isinstance(values, list) else values
    bundle = open_bundle(tmp_path / "all")
    assert len(bundle) == len(IDS) * CLASSES
    _close(bundle.get("1.png", 3), last[1, ..., 3].sum(axis=0))
    best = np.stack(best, axis=-1) if isinstance(best, list) else best
    _close(open_bundle(tmp_path / "best").get("2.png", int(labels[2, 1])), best[2, ..., 1].sum(axis=0))


def test_shap_explanation(tmp_path: Path) -> None:
    """The model-agnostic explainers return an object with N,H,W,C,K values."""
    shap = pytest.importorskip("shap")
    values = np.random.default_rng(0).standard_normal((3, 16, 16, 3, CLASSES))

    explanation = shap.Explanation(values, base_values=np.zeros((3, CLASSES)), data=np.zeros((3, 16, 16, 3)))
    Bundle(tmp_path / "b", method="shap Partition").add(IDS, range(CLASSES), explanation)

    bundle = open_bundle(tmp_path / "b")
    assert bundle.header.layout == ("NHWCK",)
    _close(bundle.get("0.png", 2), values[0, ..., 2].sum(axis=-1).astype(np.float32))
