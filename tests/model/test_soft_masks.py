"""The mixing graph against numpy and a plain session: same mixtures, same scores, same order of rows."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import auditkit
from auditkit.errors import BadInput, OutOfMemory
from auditkit.graph import hard_masks, soft_masks
from auditkit.graph.hard_masks import PICTURES, PROBABILITIES
from auditkit.graph.soft_masks import ACROSS, DOWN, GRIDS, ROWS
from auditkit.methods.differences import grids
from auditkit.model.masks import OnnxMixed, composed, mixed
from auditkit.model.signature import to_probabilities
from tests.support import onnx_models

CPU = auditkit.Settings(device="cpu")
ELEMENTS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "float64": TensorProto.DOUBLE,
            "uint8": TensorProto.UINT8}  # fmt: skip
HEIGHT, WIDTH = 6, 9


def _net(layout: str = "NCHW", dtype: str = "float32", batch: int | str = "N", opset: int = 17) -> onnx.ModelProto:
    """A matrix over all pixels, so that every one of them shows in the scores."""
    rng = np.random.default_rng(7)
    inside = np.dtype("float32" if dtype == "uint8" else dtype)
    weights = {
        "w": (rng.standard_normal((3 * HEIGHT * WIDTH, 4)) * (0.001 if dtype == "uint8" else 0.1)).astype(inside)
    }
    nodes = [helper.make_node("Cast", ["image"], ["x"], to=ELEMENTS[str(inside)]),
             helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["logits"])]  # fmt: skip
    size = [batch, 3, HEIGHT, WIDTH] if layout == "NCHW" else [batch, HEIGHT, WIDTH, 3]
    out = onnx_models.value("logits", [batch, 4], ELEMENTS[str(inside)])
    return onnx_models.model(nodes, [onnx_models.value("image", size, ELEMENTS[dtype])], [out], weights, opset=opset)


def _ends(layout: str, dtype: str) -> hard_masks.Ends:
    return hard_masks.Ends("image", ELEMENTS[dtype], layout == "NHWC", HEIGHT, WIDTH, 3, "logits", 4, "logits")


def _banks(layout: str, dtype: str) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(3)
    shape = (5, 3, HEIGHT, WIDTH) if layout == "NCHW" else (5, HEIGHT, WIDTH, 3)
    whole = rng.integers(0, 256, shape, dtype=np.uint8)
    pictures = whole if dtype == "uint8" else rng.standard_normal(shape).astype(dtype)
    spread = grids.jittered(HEIGHT, WIDTH, 2)
    values = (rng.random((7, *spread.shape)) < 0.5).astype(np.float32)
    values[0], values[1] = 1, 0
    return pictures, values, spread.down, spread.across


def _rows(banks: tuple[np.ndarray, ...], count: int = 12) -> np.ndarray:
    """Random rows; the first shows all of the top picture, the second none of it."""
    rng = np.random.default_rng(5)
    sizes = (5, 5, *(len(bank) for bank in banks[1:]))
    rows = np.stack([rng.integers(0, size, count) for size in sizes], axis=1).astype(np.int32)
    rows[:2, 2] = [0, 1]
    return rows


def _slow(rows: np.ndarray, banks: tuple[np.ndarray, ...], layout: str) -> np.ndarray:
    """One picture at a time, by the definition, in float64."""
    pictures, values, down, across = banks
    found = []
    for top, bottom, grid, vertical, horizontal in rows.tolist():
        mask = down[vertical].astype(float) @ values[grid].astype(float) @ across[horizontal].astype(float)
        mask = mask[None] if layout == "NCHW" else mask[..., None]
        found.append(mask * pictures[top] + (1 - mask) * pictures[bottom])
    return np.stack(found)


def _run(model: onnx.ModelProto, feeds: dict[str, Any], outputs: list[str]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(found) for found in session.run(outputs, feeds)]


@pytest.mark.parametrize("opset", [8, 13, 17])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "uint8"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_mixtures_equal_numpy_for_every_type(layout: str, dtype: str, opset: int) -> None:
    proto, banks = _net(layout, dtype, opset=opset), _banks(layout, dtype)
    rows = _rows(banks)
    fresh = soft_masks.mixed(proto, _ends(layout, dtype))
    onnx.checker.check_model(fresh)
    fresh.graph.output.append(onnx.ValueInfoProto(name="image"))
    feeds = dict(zip((PICTURES, GRIDS, DOWN, ACROSS, ROWS), (*banks, rows), strict=True))
    probabilities, shown = _run(fresh, feeds, [PROBABILITIES, "image"])
    assert shown.dtype == banks[0].dtype
    if dtype == "float16":  # the CPU rounds once, at the end
        np.testing.assert_allclose(shown, composed(rows, *banks, layout), atol=5e-3)
    else:
        assert np.array_equal(shown, composed(rows, *banks, layout))
    slow = _slow(rows, banks, layout)
    if dtype == "uint8":
        assert np.abs(shown - slow).max() <= 0.5001
    else:
        np.testing.assert_allclose(shown, slow, atol=5e-3 if dtype == "float16" else 1e-6)
    # A grid of ones shows the top picture, a grid of zeros the bottom one, to the last bit.
    assert np.array_equal(shown[:2], banks[0][[rows[0, 0], rows[1, 1]]])
    plain = _run(proto, {"image": shown}, ["logits"])[0]
    close = 1e-3 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(probabilities, to_probabilities(plain.astype(np.float32), "logits"), atol=close)


def _all(over: Any, rows: np.ndarray, banks: Any) -> np.ndarray:
    parts = list(over.run(rows, banks))
    assert [part.start for part, _ in parts] == [0, *(part.stop for part, _ in parts[:-1])]
    return np.concatenate([found for _, found in parts])


def _opened(proto: onnx.ModelProto, folder: Path) -> Any:
    return auditkit.load(onnx_models.save(proto, folder), preset="unit", settings=CPU)


def test_a_function_gives_the_same_numbers_as_the_file(tmp_path: Path) -> None:
    proto, banks = _net(), _banks("NCHW", "float32")
    rows = _rows(banks, 40)
    weights = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    function = auditkit.load(lambda x: x.reshape(len(x), -1) @ weights, size=(HEIGHT, WIDTH), preset="unit")
    found = []
    for model in (_opened(proto, tmp_path), function):
        over = mixed(model)
        assert mixed(model) is over
        found.append(_all(over, rows, over.load(over.upload(banks[0]), *banks[1:])))
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


@pytest.mark.parametrize("batch", ["N", 1, 4])
def test_graphs_of_one_batch_size(tmp_path: Path, batch: int | str) -> None:
    banks = _banks("NCHW", "float32")
    rows = _rows(banks, 11)
    over = OnnxMixed(_opened(_net(batch=batch), tmp_path))
    found = _all(over, rows, over.load(over.upload(banks[0]), *banks[1:]))
    plain = _run(_net(), {"image": _slow(rows, banks, "NCHW").astype(np.float32)}, ["logits"])[0]
    np.testing.assert_allclose(found, to_probabilities(plain, "logits"), atol=1e-5)


def test_rows_that_heed_their_neighbours_are_run_alone(tmp_path: Path) -> None:
    """The scores have the batch's own mean taken off: alone, all are alike."""
    proto = _net()
    proto.graph.node[-1].output[0] = "raw"
    proto.graph.node.append(helper.make_node("ReduceMean", ["raw"], ["mean"], axes=[0], keepdims=1))
    proto.graph.node.append(helper.make_node("Sub", ["raw", "mean"], ["logits"]))
    model, banks = _opened(proto, tmp_path), _banks("NCHW", "float32")
    assert model.signature.rows == "dependent"
    over = mixed(model)
    np.testing.assert_allclose(_all(over, _rows(banks), over.load(over.upload(banks[0]), *banks[1:])), 0.25)


def test_memory_running_out_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    banks = _banks("NCHW", "float32")
    rows = _rows(banks, 23)
    over = OnnxMixed(_opened(_net(), tmp_path))
    loaded = over.load(over.upload(banks[0]), *banks[1:])
    expected, run = _all(over, rows, loaded), over.session.run
    over._batch = 16

    def cramped(feeds: Any, wanted: Any = None, at_once: int | None = None, **limits: int) -> Any:
        if len(feeds[ROWS]) > 5:
            raise OutOfMemory("too much")
        return run(feeds, wanted, at_once, **limits)

    monkeypatch.setattr(over.session, "run", cramped)
    np.testing.assert_allclose(_all(over, rows, loaded), expected, atol=1e-6)
    assert over._batch == 4


@pytest.mark.parametrize("taken", [GRIDS, DOWN, ACROSS, ROWS])
def test_a_model_that_uses_our_names_is_refused(taken: str) -> None:
    proto = _net()
    proto.graph.node[0].output[0] = proto.graph.node[1].input[0] = taken
    with pytest.raises(BadInput, match=taken):
        soft_masks.mixed(proto, _ends("NCHW", "float32"))


def test_a_planted_swap_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    column = soft_masks._column
    monkeypatch.setattr(soft_masks, "_column", lambda b, index: column(b, {0: 1, 1: 0}.get(index, index)))
    with pytest.raises(AssertionError):
        test_mixtures_equal_numpy_for_every_type("NCHW", "float32", 17)


def test_weights_of_a_spread_sum_to_one_exactly() -> None:
    for spread in (grids.jittered(32, 45, 4), grids.jittered(224, 224, 6), grids.stretched(32, 45, 8, 16)):
        assert np.all(spread.down.sum(axis=2) == 1)
        assert np.all(spread.across.sum(axis=1) == 1)
        steps = spread.down * grids.WEIGHT_STEPS
        assert np.array_equal(steps, np.round(steps))


def test_a_stretched_grid_is_bilinear() -> None:
    """Twice as many pixels as numbers: a quarter of the neighbour each, constant beyond the outer middles."""
    spread = grids.stretched(4, 4, 2, 2)
    line = spread.down[0] @ np.array([0.0, 1.0])
    np.testing.assert_allclose(line, [0, 0.25, 0.75, 1])


def test_a_jittered_grid_moves_by_a_pixel_and_shows_each_alike() -> None:
    spread = grids.jittered(32, 32, 4)
    assert spread.down.shape == (8, 32, 6)
    np.testing.assert_allclose(spread.down[3, :-1], spread.down[2, 1:])
    rng = np.random.default_rng(0)
    drawn = grids.coin_flips(spread, 4000, 0.5, rng)
    mean = drawn.weighted_sum(spread, np.full(4000, 1 / 4000))
    np.testing.assert_allclose(mean, 0.5, atol=0.05)


def test_a_weighted_sum_is_the_sum_of_weighted_masks() -> None:
    spread, rng = grids.jittered(10, 13, 3), np.random.default_rng(1)
    drawn = grids.coin_flips(spread, 20, 0.5, rng)
    weights = rng.standard_normal((2, 20))
    masks = np.stack([spread.down[d] @ v @ spread.across[a]
                      for v, d, a in zip(drawn.values, drawn.down, drawn.across, strict=True)])  # fmt: skip
    expected = np.einsum("ln,nhw->lhw", weights, masks)
    np.testing.assert_allclose(drawn.weighted_sum(spread, weights), expected, atol=1e-5)
    np.testing.assert_allclose(drawn.weighted_sum(spread, weights[1]), expected[1], atol=1e-5)


def test_every_device_mixes_alike(tmp_path: Path, device: Any) -> None:
    """Masks are exact in TensorFloat-32 too; strict, so that the scores behind them are."""
    banks = _banks("NCHW", "float32")
    rows = _rows(banks, 50)
    settings = auditkit.Settings(device=device, precision="strict")
    over = mixed(auditkit.load(onnx_models.save(_net(), tmp_path), preset="unit", settings=settings))
    plain = _run(_net(), {"image": composed(rows, *banks, "NCHW")}, ["logits"])[0]
    found = _all(over, rows, over.load(over.upload(banks[0]), *banks[1:]))
    np.testing.assert_allclose(found, to_probabilities(plain, "logits"), atol=1e-5)
