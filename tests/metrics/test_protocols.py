"""Protocols as users ask for them: `evaluate(..., protocol=...)` gives the numbers of the tools they are named after.

RISE, the paper and the paper's code are written out again here as plain loops over their published rule; Xplique and
OpenVINO-XAI are held against outputs recorded by the scripts in peers/recorded; torchcam itself runs in
peers/test_torchcam.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from scipy.ndimage import gaussian_filter

import auditkit
from auditkit.errors import BadInput
from auditkit.metrics.protocols import PRESETS
from auditkit.runs.evaluation.settings import Evaluation, resolved
from auditkit.runs.summary.summarise import Summary
from tests.support import onnx_models

Array = np.ndarray[Any, Any]
RECORDED = Path(__file__).parents[1] / "peers" / "recorded"
HEIGHT, WIDTH, CLASSES, COUNT = 13, 11, 5, 3
SIZE, PIXELS = (HEIGHT, WIDTH), HEIGHT * WIDTH
CLOSE = 1e-5
PLAIN: dict[str, Any] = {"controls": False, "saliency": "none"}
CPU = auditkit.Settings(device="cpu")


class Toy:
    """Two layers over all pixels, so that every pixel counts and none counts alike."""

    def __init__(self, first: Array, second: Array) -> None:
        self.first, self.second = first, second

    def __call__(self, images: Array) -> Array:
        return np.asarray(np.tanh(images.reshape(len(images), -1) @ self.first) @ self.second)

    def probabilities(self, image: Array, labels: list[int] | None = None) -> Array:
        logits = self(image[None])[0].astype(np.float64)[labels if labels is not None else slice(None)]
        powers = np.exp(logits - logits.max())
        return np.asarray(powers / powers.sum())

    def file(self, folder: Path) -> Path:
        nodes = [
            helper.make_node("Flatten", ["image"], ["flat"]),
            helper.make_node("MatMul", ["flat", "first"], ["a"]),
            helper.make_node("Tanh", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "second"], ["logits"]),
        ]
        ends = [onnx_models.value("image", ["N", 3, *SIZE])], [onnx_models.value("logits", ["N", CLASSES])]
        return onnx_models.save(onnx_models.model(nodes, *ends, {"first": self.first, "second": self.second}), folder)


class Pictures:
    """A function over float pictures [N, 3, height, width], whose photographs only say which of them is meant.

    A pixel that is not 0 stands for the picture's own there: peers take floats, photographs have 256 values.
    """

    def __init__(self, function: Callable[[Array], Array], pictures: Array) -> None:
        self.function, self.pictures = function, pictures

    def __call__(self, rows: Array) -> Array:
        which = (rows.max(axis=(1, 2, 3)).astype(int) - 1) % len(self.pictures)
        return self.function(np.where(rows > 0, self.pictures[which], 0).astype(np.float32))

    def photographs(self) -> Array:
        codes = np.arange(1, len(self.pictures) + 1, dtype=np.uint8)
        return np.broadcast_to(codes[:, None, None, None], (len(codes), *self.pictures.shape[2:], 3)).copy()


def small_toy() -> Toy:
    rng = np.random.default_rng(3)
    return Toy(
        (rng.standard_normal((3 * PIXELS, 8)) * 0.1).astype(np.float32),
        (rng.standard_normal((8, CLASSES)) * 1.5).astype(np.float32),
    )


@pytest.fixture(scope="module")
def toy() -> Toy:
    return small_toy()


@pytest.fixture(scope="module", params=["callable", "file"])
def model(request: pytest.FixtureRequest, toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param == "callable":
        return auditkit.load(toy, size=SIZE, preset="imagenet")
    return auditkit.load(toy.file(tmp_path_factory.mktemp("toy")), preset="imagenet", settings=CPU)


@pytest.fixture(scope="module")
def images() -> Array:
    return np.random.default_rng(4).integers(0, 256, (COUNT, *SIZE, 3), dtype=np.uint8)


def some_maps(kind: str, count: int = COUNT) -> Array:
    rng = np.random.default_rng(5)
    if kind == "ties":  # 6 scores for 143 pixels
        return rng.integers(-2, 4, (count, *SIZE)).astype(np.float32)
    return rng.standard_normal((count, *SIZE)).astype(np.float32)


def run(folder: Path, model: Any, images: Array, maps: Array, served: list[list[int]], **settings: Any) -> Summary:
    """An evaluation in which each image's map serves the labels that stand at its place."""
    bundle = auditkit.Bundle(folder / "maps")
    for index, own in enumerate(served):
        bundle.add([str(index)] * len(own), own, np.stack([maps[index]] * len(own)), layout="NHW")
    return auditkit.evaluate(model, images, bundle, **PLAIN | settings)


def rows_of(found: Summary) -> dict[tuple[int, int], dict[str, Any]]:
    return {(int(row["image"]), row["label"]): row for row in found.rows if not row["error"]}


def everyone(count: int = COUNT) -> list[list[int]]:
    return [list(range(CLASSES))] * count


# --- RISE ------------------------------------------------------------------------------------------------------------


def _rise(toy: Toy, start: Array, finish: Array, scores: Array, step: int, label: int) -> float:
    """Turn `start` into `finish`, `step` pixels at a time, by an ascending sort read backwards."""
    order = np.argsort(scores.ravel(), kind="stable")[::-1]
    now = start.reshape(3, -1).copy()
    found = [toy.probabilities(now)[label]]
    while len(order):
        now[:, order[:step]] = finish.reshape(3, -1)[:, order[:step]]
        order = order[step:]
        found.append(toy.probabilities(now)[label])
    return (sum(found) - (found[0] + found[-1]) / 2) / (len(found) - 1)


def rise_blurred(image: Array) -> Array:
    """A sum over 11x11 neighbours, those outside the picture being 0."""
    spike = np.zeros((11, 11))
    spike[5, 5] = 1
    kernel = gaussian_filter(spike, 5).astype(np.float32)
    padded = np.pad(image, ((0, 0), (5, 5), (5, 5)))
    blurred = np.zeros(image.shape)
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            blurred[:, y, x] = (padded[:, y : y + 11, x : x + 11] * kernel).sum(axis=(1, 2))
    return blurred.astype(np.float32)


@pytest.mark.parametrize("kind", ["ties", "no ties"])
@pytest.mark.parametrize(("steps", "step"), [(None, 1), (13, 11), (6, 23), (1, 143)])
def test_rise(tmp_path: Path, toy: Toy, model: Any, images: Array, kind: str, steps: int | None, step: int) -> None:
    """Of the predicted label; also where the last step is shorter: 143 pixels are 6 steps of 23 and one of 5."""
    maps = some_maps(kind)
    found = run(tmp_path, model, images, maps, everyone(), protocol="rise", steps=steps)
    rows, predicted = rows_of(found), model.probabilities(images).argmax(axis=1)
    assert list(rows) == [(place, int(label)) for place, label in enumerate(predicted)]
    for (place, label), row in rows.items():
        image = model.preprocess(images)[place]
        shown = _rise(toy, rise_blurred(image), image, maps[place], step, label)
        hidden = _rise(toy, image, np.zeros_like(image), maps[place], step, label)
        assert (row["insertion"], row["deletion"]) == pytest.approx((shown, hidden), abs=CLOSE)
        assert (row["alpha"], row["beta"]) == (None, None)
    assert found.value("deletion", "maps") == pytest.approx(np.mean([row["deletion"] for row in rows.values()]))
    assert {metric.name for metric in found.metrics} == {"insertion", "deletion", "relevance_gain"}


# --- the paper's code ------------------------------------------------------------------------------------------------


def _paper_code(probability: Callable[[Array], float], image: Array, scores: Array, step: int, deleting: bool) -> float:
    """Mean over fractions of the probability of what the last of an ascending sort leave of the image."""
    pixels = scores.size
    order = np.argsort((-scores if deleting else scores).ravel(), kind="stable")
    kept_counts = list(range(0, pixels + 1, step))
    found = []
    for kept in kept_counts[:-1] if deleting else kept_counts[1:]:
        shown = np.zeros(pixels, bool)
        if kept:
            shown[order[-int(float(kept) / pixels * pixels) :]] = True
        found.append(probability(np.where(shown, image.reshape(3, -1), 0).astype(np.float32)))
    return float(np.mean(found))


@pytest.mark.parametrize("kind", ["ties", "no ties"])
@pytest.mark.parametrize(("steps", "step", "labels"), [(None, 5, "1,2,4"), (6, 23, "top2"), (200, 1, "all")])
def test_paper_code(
    tmp_path: Path, toy: Toy, model: Any, images: Array, kind: str, steps: int | None, step: int, labels: str
) -> None:
    """A softmax over the listed logits is the probability among the listed; alpha and beta use 0.1 and 0.1."""
    maps, inputs = some_maps(kind), model.preprocess(images)
    found = run(tmp_path, model, images, maps, everyone(), protocol="paper-code", steps=steps, labels=labels)
    rows = rows_of(found)
    for place, image in enumerate(inputs):
        best = np.argsort(-toy.probabilities(image))
        listed = {"1,2,4": [1, 2, 4], "top2": sorted(best[:2].tolist()), "all": list(range(CLASSES))}[labels]
        assert sorted(label for at, label in rows if at == place) == listed
        whole = toy.probabilities(image, listed)
        for at, label in enumerate(listed):
            row, deleting = rows[place, label], at == whole.argmax()
            share = [lambda shown, at=at, listed=listed: toy.probabilities(shown, listed)[at], image, maps[place], step]
            area = _paper_code(*share, False)
            assert row["prob"] == pytest.approx(whole[at], abs=CLOSE)
            assert row["insertion"] == pytest.approx(area, abs=CLOSE)
            assert row["alpha"] == pytest.approx(min(max(0.1, area) / whole[at], 1), abs=CLOSE)
            assert row["beta"] == pytest.approx(min(max(0.1, whole[at]) / area, 1), abs=CLOSE)
            assert row["predicted"] == deleting
            if deleting:
                assert row["deletion"] == pytest.approx(_paper_code(*share, True), abs=CLOSE)
    minima = [min(row["beta"] for (at, _), row in rows.items() if at == place) for place in range(COUNT)]
    assert found.value("worst_soundness", "maps") == pytest.approx(np.mean(minima))


# --- the paper -------------------------------------------------------------------------------------------------------


def test_paper(tmp_path: Path, toy: Toy, model: Any, images: Array) -> None:
    """The mean over every s in 1..n, gray for what is hidden, all labels, 0.01 and 0.001."""
    maps = some_maps("no ties")
    found = run(tmp_path, model, images, maps, everyone(), protocol="paper")
    rows = rows_of(found)
    assert len(rows) == COUNT * CLASSES
    for place, image in enumerate(model.preprocess(images)):  # gray is what the network takes for 0
        order, whole = np.argsort(-maps[place].ravel()), toy.probabilities(image)
        curve = []
        for count in range(1, PIXELS + 1):
            shown = np.zeros(PIXELS, bool)
            shown[order[:count]] = True
            curve.append(toy.probabilities(np.where(shown, image.reshape(3, -1), 0).astype(np.float32)))
        for label, area in enumerate(np.mean(curve, axis=0)):
            row = rows[place, label]
            assert row["insertion"] == pytest.approx(area, abs=CLOSE)
            assert row["insertion_error"] == 0
            assert row["alpha"] == pytest.approx(min(max(area, 0.01) / whole[label], 1), abs=CLOSE)
            assert row["beta"] == pytest.approx(min(max(whole[label], 0.001) / area, 1), abs=CLOSE)
    again = auditkit.evaluate(model, images, tmp_path / "maps", steps="exact", **PLAIN)
    for metric in found.metrics:  # the defaults are the paper's, but for the steps
        assert found.value(metric.name, "maps") == pytest.approx(again.value(metric.name, "maps"), abs=1e-9)


# --- recorded outputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["xplique", "openvino"])
@pytest.mark.parametrize("which", range(4))
def test_recorded_outputs(tmp_path: Path, name: str, which: int) -> None:
    """To the default number of steps, one that does not divide the pixels, one a pixel, and more than pixels."""
    with np.load(RECORDED / f"{name}.npz") as file:
        recorded = dict(file)
    toy, steps = Toy(recorded["first"], recorded["second"]), int(recorded["steps"][which])
    if name == "xplique":  # its network takes channels last and pictures of any numbers
        pictures = Pictures(lambda x: toy(x.transpose(0, 2, 3, 1)), recorded["images"].transpose(0, 3, 1, 2))
        model, images = auditkit.load(pictures, size=SIZE, preset="none"), pictures.photographs()
    else:
        model, images = auditkit.load(toy, size=SIZE, preset="imagenet"), recorded["images"]
    labels = recorded["labels"].tolist()
    found = run(
        tmp_path, model, images, recorded["maps"], [[label] for label in labels], protocol=name, labels=labels,
        steps=steps if which else None,
    )  # fmt: skip
    for direction in ("insertion", "deletion"):
        expected = recorded[f"{direction}_{steps}"]
        values = [rows_of(found)[place, label][direction] for place, label in enumerate(labels)]
        np.testing.assert_allclose(values, expected, atol=CLOSE)
        assert found.value(direction, "maps") == pytest.approx(expected.mean(), abs=CLOSE)


# --- all of them -----------------------------------------------------------------------------------------------------


def settings_of(name: str) -> dict[str, Any]:
    return {"protocol": name, "labels": "all" if name == "paper-code" else None}


def test_protocols_tell_each_other_apart(tmp_path: Path, toy: Toy, images: Array) -> None:
    """What makes them differ moves the figure by more than the tests above allow."""
    model, maps, areas = auditkit.load(toy, size=SIZE, preset="imagenet"), some_maps("ties"), {}
    for name in PRESETS:
        (tmp_path / name).mkdir()
        found = run(tmp_path / name, model, images, maps, everyone(), **settings_of(name))
        areas[name] = np.array([found.value("insertion", "maps"), found.value("deletion", "maps")])
    for name, own in areas.items():
        for other, others in areas.items():
            assert name == other or abs(own - others).max() > 10 * CLOSE, (name, other)


@pytest.mark.parametrize("name", PRESETS)
def test_a_protocol_is_part_of_every_figures_name(tmp_path: Path, toy: Toy, images: Array, name: str) -> None:
    model = auditkit.load(toy, size=SIZE, preset="imagenet")
    found = run(tmp_path, model, images, some_maps("ties"), everyone(), **settings_of(name))
    protocol, settings = PRESETS[name], found.settings
    assert (settings.eps1, settings.eps2, settings.renormalise) == (protocol.eps1, protocol.eps2, protocol.renormalise)
    assert settings.steps.count == (protocol.insertion.steps or 0)
    for metric in found.metrics:
        assert metric.protocol == name
        assert metric.infill == (protocol.deletion if metric.name == "deletion" else protocol.insertion).infill
    for row in found.rows:
        assert row["keep_counts"] == protocol.insertion.counts(PIXELS).tolist()


@pytest.mark.parametrize("name", ["rise", "paper-code", "torchcam"])
def test_the_order_in_ties_is_seen(tmp_path: Path, toy: Toy, images: Array, name: str) -> None:
    """Turning the picture and its map round turns the order in ties round, and nothing else."""
    model = auditkit.load(toy, size=SIZE, preset="imagenet")
    turned = auditkit.load(lambda rows: toy(rows[:, :, ::-1, ::-1]), size=SIZE, preset="imagenet")
    values = []
    for kind in ("no ties", "ties"):
        maps = some_maps(kind)
        for number, (seen, flip) in enumerate(((model, slice(None)), (turned, slice(None, None, -1)))):
            folder = tmp_path / f"{kind}{number}"
            folder.mkdir()
            found = run(folder, seen, images[:, flip, flip], maps[:, flip, flip], everyone(), **settings_of(name))
            values.append(found.value("deletion", "maps"))
    assert values[0] == pytest.approx(values[1], abs=CLOSE)
    assert abs(values[2] - values[3]) > 10 * CLOSE


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"protocol": "raise"}, "unknown protocol 'raise'; did you mean 'rise'?"),
        ({"protocol": "rise", "infill": "gray"}, "the protocol rise has its own infill"),
        ({"protocol": "rise", "infill": "pink"}, "the protocol rise has its own infill"),
        ({"protocol": "rise", "ties": "random"}, "its own ties"),
        ({"protocol": "paper", "eps1": 0.01}, "its own eps1"),
        ({"protocol": "rise", "eps2": 0.1}, "its own eps2"),
        ({"protocol": "paper-code", "labels": "top2", "renormalise": False}, "its own rule to renormalise"),
        ({"protocol": "openvino", "renormalise": True}, "its own rule to renormalise"),
        ({"protocol": "torchcam", "range": (0.2, 0.6)}, "takes whole curves"),
        ({"protocol": "torchcam", "tie_orders": 3}, "one order"),
        ({"protocol": "xplique", "steps": "auto"}, "takes a number of steps, not 'auto:0.005'"),
        ({"protocol": "xplique", "steps": "exact"}, "takes a number of steps, not 'exact'"),
        ({"protocol": "paper", "steps": "10"}, "takes every pixel count, not '10'"),
        ({"protocol": "paper", "steps": "auto"}, "takes every pixel count, not 'auto:0.005'"),
        ({"protocol": "paper-code"}, "needs the labels to renormalise over"),
    ],
)
def test_what_a_protocol_refuses(toy: Toy, images: Array, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        auditkit.evaluate(auditkit.load(toy, size=SIZE, preset="imagenet"), images, **asked)


def test_a_protocol_takes_labels_steps_and_a_whole_range() -> None:
    for range_ in ((0, 1), [0.0, 1.0]):
        asked = Evaluation(protocol="rise", labels="0,3", range=range_)
        assert resolved(asked, CLASSES).labels == "0,3"
    assert resolved(Evaluation(protocol="paper"), CLASSES).labels == "all"
    assert resolved(Evaluation(protocol="torchcam"), CLASSES).labels == "top1"
