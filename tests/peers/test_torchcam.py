"""The torchcam preset gives what the real torchcam gives, from 0.5 on, the first that has the metric."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from benchmarks.peers.adapters import Given
from tests.metrics.test_protocols import CLASSES, CLOSE, HEIGHT, SIZE, WIDTH, Pictures, run

torch = pytest.importorskip("torch")
metrics = pytest.importorskip("torchcam.metrics")
if not hasattr(metrics, "DeletionInsertionMetric"):
    pytest.skip("this torchcam has no DeletionInsertionMetric; 0.5 has", allow_module_level=True)

SOFTMAX = partial(torch.softmax, dim=-1)
pytestmark = pytest.mark.filterwarnings("default")  # what torchcam's own code warns of is not ours to mend


@pytest.fixture(scope="module")
def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.Tanh(), torch.nn.Flatten(),
        torch.nn.Linear(6 * HEIGHT * WIDTH, CLASSES),
    ).eval()  # fmt: skip


@pytest.fixture(scope="module")
def images() -> Any:
    return torch.randn(3, 3, *SIZE, generator=torch.Generator().manual_seed(1)) * 3


def _ours(
    folder: Path, net: Any, images: Any, maps: Any, labels: list[int], protocol: str = "torchcam", **settings: Any
) -> dict[str, float]:
    """What an evaluation by torchcam's protocol says."""

    def scores(rows: np.ndarray) -> Any:
        with torch.no_grad():
            return net(torch.from_numpy(rows)).numpy()

    pictures = Pictures(scores, images.numpy())
    found = run(
        folder, auditkit.load(pictures, size=SIZE, preset="none"), pictures.photographs(), maps.detach().numpy(),
        [[label] for label in labels], labels=sorted(set(labels)), protocol=protocol, **settings,
    )  # fmt: skip
    return {f"{name}_auc": found.value(name, "maps") for name in ("insertion", "deletion")}


def _same(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("steps", [None, 1, 7, 11, 143, 1000])
def test_given_maps(tmp_path: Path, net: Any, images: Any, steps: int | None, ties: bool) -> None:
    """143 pixels, in torchcam's 20 steps and others, for named labels."""
    labels = [0, 3, 4]
    maps = torch.randn(3, *SIZE, generator=torch.Generator().manual_seed(2))
    maps = maps.mul(1.5).round() if ties else maps
    settings = {} if steps is None else {"steps": steps}
    theirs = metrics.DeletionInsertionMetric(Given(net, maps), SOFTMAX, **settings)
    theirs.update(images, labels)
    _same(_ours(tmp_path, net, images, maps, labels, steps=steps), theirs.summary())


def test_its_own_maps(tmp_path: Path, net: Any, images: Any) -> None:
    """With a Grad-CAM by torchcam, of the probability and for the predicted labels; half of its pixels tie at 0."""
    methods = pytest.importorskip("torchcam.methods")
    labels = net(images).argmax(dim=1).tolist()
    with methods.GradCAM(net, target_layer="1") as extractor:
        maps = extractor.fuse_cams(extractor(labels, SOFTMAX(net(images))))
        theirs = metrics.DeletionInsertionMetric(extractor, SOFTMAX)
        theirs.update(images)
    _same(_ours(tmp_path, net, images, maps, labels), theirs.summary())


def test_another_order_in_ties_is_told_apart(tmp_path: Path, net: Any, images: Any) -> None:
    """So the equality above is not for want of a difference: a step a pixel, Xplique's rule differs in ties alone."""
    maps = torch.zeros(1, *SIZE)
    theirs = metrics.DeletionInsertionMetric(Given(net, maps), SOFTMAX, steps=HEIGHT * WIDTH)
    theirs.update(images[:1], [0])
    found = {}
    for protocol in ("torchcam", "xplique"):
        (tmp_path / protocol).mkdir()
        found[protocol] = _ours(tmp_path / protocol, net, images[:1], maps, [0], protocol, steps=HEIGHT * WIDTH)
    _same(found["torchcam"], theirs.summary())
    assert abs(found["xplique"]["insertion_auc"] - found["torchcam"]["insertion_auc"]) > 10 * CLOSE
