"""The torchcam preset gives what the real torchcam gives, from 0.5 on, the first that has the metric."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.data.ranks import ranks
from auditkit.metrics.presets import PRESETS, Preset
from auditkit.model.masked import masked

torch = pytest.importorskip("torch")
metrics = pytest.importorskip("torchcam.metrics")
if not hasattr(metrics, "DeletionInsertionMetric"):
    pytest.skip("this torchcam has no DeletionInsertionMetric; 0.5 has", allow_module_level=True)

HEIGHT, WIDTH, CLASSES = 13, 11, 5
SIZE = (HEIGHT, WIDTH)
CLOSE = 1e-5
SOFTMAX = partial(torch.softmax, dim=-1)
pytestmark = pytest.mark.filterwarnings("default")  # what torchcam's own code warns of is not ours to mend


class Given:
    """An extractor whose maps are given, in the place of one that computes them."""

    def __init__(self, model: Any, maps: Any) -> None:
        self.model, self.maps = model, maps

    def __call__(self, *_: Any, **__: Any) -> list[Any]:
        return [self.maps]

    def fuse_cams(self, cams: list[Any]) -> Any:
        return cams[0]

    @contextmanager
    def _hooks_off(self) -> Iterator[None]:
        yield


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


def _ours(net: Any, which: Preset, images: Any, maps: Any, labels: list[int]) -> dict[str, float]:
    """Mean areas through auditkit's masks."""

    def scores(rows: np.ndarray) -> Any:
        with torch.no_grad():
            return net(torch.from_numpy(rows)).numpy()

    runner = masked(auditkit.load(scores, size=SIZE))
    pictures = np.concatenate([images.numpy(), np.zeros((1, *images.shape[1:]), np.float32)])
    empty, found = len(images), {}
    for name, curve in (("insertion_auc", which.insertion), ("deletion_auc", which.deletion)):
        assert curve.infill == "zero"
        counts, areas = curve.counts(HEIGHT * WIDTH), []
        runner.fill(pictures, ranks(maps.detach().numpy(), curve.ties))
        for index, label in enumerate(labels):
            ends = [index, empty] if name == "insertion_auc" else [empty, index]
            rows = np.array([[*ends, index, count] for count in counts], np.int32)
            values = np.concatenate([part for _, part in runner.run(rows)])
            areas.append(curve.area(counts, values[:, label]))
        found[name] = float(np.mean(areas))
    return found


def _same(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("steps", [None, 1, 7, 11, 143, 1000])
def test_given_maps(net: Any, images: Any, steps: int | None, ties: bool) -> None:
    """143 pixels, in torchcam's 20 steps and others, for named labels."""
    labels = [0, 3, 4]
    maps = torch.randn(3, *SIZE, generator=torch.Generator().manual_seed(2))
    maps = maps.mul(1.5).round() if ties else maps
    settings = {} if steps is None else {"steps": steps}
    theirs = metrics.DeletionInsertionMetric(Given(net, maps), SOFTMAX, **settings)
    theirs.update(images, labels)
    which = PRESETS["torchcam"] if steps is None else PRESETS["torchcam"].with_steps(steps)
    _same(_ours(net, which, images, maps, labels), theirs.summary())


def test_its_own_maps(net: Any, images: Any) -> None:
    """With a Grad-CAM by torchcam, of the probability and for the predicted labels; half of its pixels tie at 0."""
    methods = pytest.importorskip("torchcam.methods")
    labels = net(images).argmax(dim=1).tolist()
    with methods.GradCAM(net, target_layer="1") as extractor:
        maps = extractor.fuse_cams(extractor(labels, SOFTMAX(net(images))))
        theirs = metrics.DeletionInsertionMetric(extractor, SOFTMAX)
        theirs.update(images)
    _same(_ours(net, PRESETS["torchcam"], images, maps, labels), theirs.summary())


def test_another_order_in_ties_is_told_apart(net: Any, images: Any) -> None:
    """So the equality above is not for want of a difference."""
    maps = torch.zeros(1, *SIZE)
    theirs = metrics.DeletionInsertionMetric(Given(net, maps), SOFTMAX)
    theirs.update(images[:1], [0])
    wrong = PRESETS["rise"].with_steps(20).deletion
    ours = _ours(net, PRESETS["torchcam"], images[:1], maps, [0])
    other = _ours(net, Preset("", wrong, wrong), images[:1], maps, [0])
    _same(ours, theirs.summary())
    assert abs(other["insertion_auc"] - ours["insertion_auc"]) > 10 * CLOSE
