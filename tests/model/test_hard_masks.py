"""The masked graph against np.where and a plain session: same pixels, same scores, same order of rows."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import auditkit
from auditkit.errors import BadInput, OutOfMemory
from auditkit.graph import edit, hard_masks
from auditkit.graph.hard_masks import BOTTOM, COLUMNS, KEEP, MAP, PICTURES, PROBABILITIES, RANKS, SHOWN, TOP
from auditkit.model import device, sandbox
from auditkit.model import masks as masked_sessions
from auditkit.model.masks import HostMasked, OnnxMasked
from auditkit.model.probe import examine
from auditkit.model.read import Limits, read
from auditkit.model.signature import Overrides, to_probabilities
from tests.support import onnx_models

CPU = auditkit.Settings(device="cpu")
ELEMENTS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "float64": TensorProto.DOUBLE,
            "uint8": TensorProto.UINT8}  # fmt: skip
LAST = {"probabilities": "Softmax", "log-probabilities": "LogSoftmax", "sigmoid": "Sigmoid"}
HEIGHT, WIDTH, PIXELS = 6, 9, 54


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial of a file in this process: a child for each of many small files takes most of the time."""

    def attempt(path: Path, wanted: Overrides, limits: Limits) -> sandbox.Outcome:
        file = read(path, limits)
        return sandbox.Outcome(examine(file, wanted), file.identity, None)

    monkeypatch.setattr(sandbox, "attempt", attempt)


def _net(
    *, layout: str = "NCHW", dtype: str = "float32", opset: int = 17, kind: str = "logits", classes: int = 4,
    batch: int | str = "N", ir_version: int = 8, names: Callable[[str], str] = lambda name: name, channels: int = 3,
) -> onnx.ModelProto:  # fmt: skip
    """One convolution with a nonlinearity, all positions weighted differently, to scores of the kind asked for."""
    rng = np.random.default_rng(7)
    inside = np.dtype("float32" if dtype == "uint8" else dtype)
    nodes, at = [], "image"

    def then(operator: str, *more: str, **attributes: Any) -> None:
        nonlocal at
        nodes.append(helper.make_node(operator, [at, *map(names, more)], [names(f"t{len(nodes)}")], **attributes))
        at = nodes[-1].output[0]

    if dtype == "uint8":
        then("Cast", to=TensorProto.FLOAT)
    if layout == "NHWC":
        then("Transpose", perm=[0, 3, 1, 2])
    filters = channels
    if inside != np.float64:  # the runtime has no convolution in float64
        filters = 5
        then("Conv", "w", pads=[1, 1, 1, 1])
        then("Relu")
    then("Flatten")
    then("Gemm", "g", "b")
    if kind in LAST:
        then(LAST[kind], **({} if kind == "sigmoid" else {"axis": 1}))
    scale = 0.01 if dtype == "uint8" else 1.0
    weights = {
        "w": scale * rng.standard_normal((5, channels, 3, 3)),
        "g": 0.1 * rng.standard_normal((filters * HEIGHT * WIDTH, classes)),
        "b": rng.standard_normal(classes),
    }
    named = {names(key): array.astype(inside) for key, array in weights.items() if filters == 5 or key != "w"}
    size = [batch, channels, HEIGHT, WIDTH] if layout == "NCHW" else [batch, HEIGHT, WIDTH, channels]
    out = TensorProto.FLOAT if dtype == "uint8" else ELEMENTS[dtype]
    proto = onnx_models.model(
        nodes, [onnx_models.value("image", size, ELEMENTS[dtype])],
        [onnx_models.value(at, [batch, classes], out)], named,
        opset=opset, ir_version=ir_version,
    )  # fmt: skip
    if ir_version < 4:  # old files list their weights as inputs too
        listed = [onnx_models.value(name, list(array.shape), ELEMENTS[str(inside)]) for name, array in named.items()]
        proto.graph.input.extend(listed)
    onnx.checker.check_model(proto)
    return proto


def _banks(shape: tuple[int, ...], dtype: str, *, pictures: int = 5, maps: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of noise, and maps of ranks without a pattern; `shape` is that of one picture."""
    rng = np.random.default_rng(3)
    if dtype == "uint8":
        bank = rng.integers(0, 256, (pictures, *shape), dtype=np.uint8)
    else:
        bank = rng.standard_normal((pictures, *shape)).astype(dtype)
    height, width = shape[-2:] if shape[0] in (1, 3) else shape[:2]
    count = height * width
    return bank, np.stack([rng.permutation(count) for _ in range(maps)]).reshape(maps, height, width).astype(np.int32)


def _rows(count: int, pixels: int = PIXELS) -> np.ndarray:
    """Random rows; the first shows everything, the second nothing, the next two all but a pixel and one pixel."""
    rng = np.random.default_rng(5)
    top, bottom, maps, keep = (rng.integers(0, most, count) for most in (5, 5, 3, pixels + 1))
    keep[:4] = [pixels, 0, pixels - 1, 1][:count]
    return np.stack([top, bottom, maps, keep], axis=1).astype(np.int32)


def _composed(rows: np.ndarray, pictures: np.ndarray, ranks: np.ndarray, layout: str = "NCHW") -> np.ndarray:
    """One picture at a time, by the definition."""
    found = []
    for top, bottom, at, keep in rows.tolist():
        shown = ranks[at] < keep
        found.append(np.where(shown[None] if layout == "NCHW" else shown[..., None], pictures[top], pictures[bottom]))
    return np.stack(found)


def _plain(proto: onnx.ModelProto, images: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: images})[0])


def _ends(proto: onnx.ModelProto, kind: str = "logits", layout: str = "NCHW") -> hard_masks.Ends:
    given = proto.graph.input[0].type.tensor_type
    sizes = [dim.dim_value for dim in given.shape.dim][1:]
    channels, height, width = sizes if layout == "NCHW" else (sizes[2], *sizes[:2])
    output = proto.graph.output[0]
    return hard_masks.Ends(
        proto.graph.input[0].name, given.elem_type, layout == "NHWC", height, width, channels, output.name,
        output.type.tensor_type.shape.dim[1].dim_value, kind,
    )  # fmt: skip


def _masked_scores(
    proto: onnx.ModelProto, ends: hard_masks.Ends, feeds: dict[str, Any], *, channels_last: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of the masked graph, and the vendor's own scores inside it."""
    fresh = hard_masks.masked(proto, ends, channels_last=channels_last)
    onnx.checker.check_model(fresh)
    fresh.graph.output.append(onnx.ValueInfoProto(name=ends.output))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(fresh.SerializeToString(), options, providers=["CPUExecutionProvider"])
    probabilities, scores = session.run([PROBABILITIES, ends.output], feeds)
    return np.asarray(probabilities), np.asarray(scores)


def _assert_masks(proto: onnx.ModelProto, kind: str, layout: str, dtype: str, count: int = 12) -> None:
    """Random rows of the masked graph are the plain graph's rows over composed pictures, to the last bit."""
    ends = _ends(proto, kind, layout)
    shape = (ends.channels, HEIGHT, WIDTH) if layout == "NCHW" else (HEIGHT, WIDTH, ends.channels)
    pictures, ranks = _banks(shape, dtype)
    rows = _rows(count)
    feeds = {PICTURES: pictures, RANKS: ranks, **hard_masks.row_feeds(rows)}
    probabilities, scores = _masked_scores(proto, ends, feeds)
    expected = _plain(proto, _composed(rows, pictures, ranks, layout))
    assert scores.dtype == expected.dtype
    assert np.array_equal(scores, expected)
    # The first row keeps everything, the second nothing: the pictures themselves.
    assert np.array_equal(scores[:2], _plain(proto, pictures[[rows[0, 0], *rows[1:count, 1]]])[:2])
    assert probabilities.dtype == np.float32
    flat = expected.reshape(count, -1).astype(np.float32)
    np.testing.assert_allclose(probabilities, to_probabilities(flat, kind), atol=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("opset", [7, 8, 9, 11, 13, 17, 21])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "uint8"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_random_rows_equal_numpy_for_every_type_and_operator_set(layout: str, dtype: str, opset: int) -> None:
    proto = _net(layout=layout, dtype=dtype, opset=opset, ir_version=3 if opset < 9 else 8)
    if dtype == "uint8" and opset < 9:
        with pytest.raises(BadInput, match="uint8"):
            hard_masks.masked(proto, _ends(proto, "logits", layout))
        return
    _assert_masks(proto, "logits", layout, dtype)


@pytest.mark.parametrize("opset", [7, 9, 17])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pictures_held_with_channels_last_are_turned_back(dtype: str, opset: int) -> None:
    proto = _net(dtype=dtype, opset=opset, ir_version=3 if opset < 9 else 8)
    pictures, ranks = _banks((3, HEIGHT, WIDTH), dtype)
    rows = _rows(12)
    feeds = {PICTURES: pictures.transpose(0, 2, 3, 1), RANKS: ranks, **hard_masks.row_feeds(rows)}
    _, scores = _masked_scores(proto, _ends(proto), feeds, channels_last=True)
    assert np.array_equal(scores, _plain(proto, _composed(rows, pictures, ranks, "NCHW")))


def test_pictures_of_a_graph_with_channels_last_are_held_as_they_are() -> None:
    proto = _net(layout="NHWC")
    ends = _ends(proto, layout="NHWC")
    assert hard_masks.masked(proto, ends, channels_last=True) == hard_masks.masked(proto, ends)


@pytest.mark.parametrize("opset", [7, 8, 9, 21])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("shared", [(BOTTOM,), (TOP,), (MAP,), (TOP, BOTTOM), (TOP, BOTTOM, MAP)])
def test_what_all_rows_share_is_read_once(shared: tuple[int, ...], layout: str, opset: int) -> None:
    proto = _net(layout=layout, opset=opset, ir_version=3 if opset < 9 else 8)
    pictures, ranks = _banks((3, HEIGHT, WIDTH) if layout == "NCHW" else (HEIGHT, WIDTH, 3), "float32")
    rows = _rows(12)
    assert [own.tolist() for own in hard_masks.row_feeds(rows).values()] == rows.T.tolist()
    rows[:, shared] = 1
    feeds = hard_masks.row_feeds(rows)
    assert [at for at, name in enumerate(COLUMNS) if feeds[name].tolist() == [1]] == list(shared)
    _, scores = _masked_scores(proto, _ends(proto, layout=layout), {PICTURES: pictures, RANKS: ranks, **feeds})
    assert np.array_equal(scores, _plain(proto, _composed(rows, pictures, ranks, layout)))


@pytest.mark.parametrize("opset", [7, 12, 13])
@pytest.mark.parametrize(("kind", "classes"), [
    ("logits", 1), ("sigmoid", 1), ("log-probabilities", 1),
    ("logits", 2), ("logits", 4), ("probabilities", 2), ("probabilities", 4), ("log-probabilities", 4),
])  # fmt: skip
def test_scores_of_every_kind_become_probabilities(kind: str, classes: int, opset: int) -> None:
    """One number is the probability, the logit or the log-probability of the second of two labels."""
    _assert_masks(_net(kind=kind, classes=classes, opset=opset), kind, "NCHW", "float32")


def test_huge_logits_do_not_overflow() -> None:
    """Scores of a thousand: the softmax and the logistic function saturate, they do not turn into NaN."""
    for classes in (1, 3):
        proto = _net(classes=classes)
        bias = next(tensor for tensor in proto.graph.initializer if tensor.name == "b")
        bias.CopyFrom(onnx.numpy_helper.from_array(np.array([-1e4, 0, 1e4][-classes:], np.float32), "b"))
        pictures, ranks = _banks((3, HEIGHT, WIDTH), "float32")
        feeds = {PICTURES: pictures, RANKS: ranks, **hard_masks.row_feeds(_rows(4))}
        probabilities, _ = _masked_scores(proto, _ends(proto), feeds)
        np.testing.assert_allclose(probabilities, np.eye(max(classes, 2))[[-1] * 4], atol=1e-6)


def _opened(proto: onnx.ModelProto, folder: Path, settings: auditkit.Settings = CPU, **more: Any) -> Any:
    more.setdefault("preset", "unit")
    return auditkit.load(onnx_models.save(proto, folder), settings=settings, **more)


@pytest.fixture(autouse=True, params=["graph", "host"])
def _where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of a file are composed inside the graph, as on CUDA, or on the host, as on a CPU."""
    usual = masked_sessions._over_banks

    def over_banks(model: Any) -> Any:
        inside = request.param == "graph" and isinstance(model, auditkit.OnnxClassifier)
        return OnnxMasked(model) if inside else usual(model)

    monkeypatch.setattr(masked_sessions, "_over_banks", over_banks)


def _all(over: "_Loaded", rows: np.ndarray) -> np.ndarray:
    """All parts joined, which must follow one another without a gap."""
    found, at = [], 0
    for part, probabilities in over.run(rows):
        assert (part.start, part.stop - part.start) == (at, len(probabilities))
        found.append(probabilities)
        at = part.stop
    assert at == len(rows)
    return np.concatenate(found)


class _Loaded:
    """A classifier over banks that are loaded once."""

    def __init__(self, over: Any, pictures: np.ndarray, ranks: np.ndarray) -> None:
        self.over, self.session, self.banks = over, getattr(over, "session", None), over.load(pictures, ranks)

    def run(self, rows: np.ndarray) -> Any:
        return self.over.run(rows, self.banks)

    @property
    def batch(self) -> int:
        return int(self.over.batch(self.banks))


def _filled(model: Any, **banks: int) -> tuple[Any, np.ndarray, np.ndarray]:
    shape = model.signature.array_shape(1)[1:]
    pictures, ranks = _banks(shape, model.signature.dtype, **banks)
    return _Loaded(masked_sessions.masked(model), pictures, ranks), pictures, ranks


def _expected(model: Any, rows: np.ndarray, pictures: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Each composed picture alone through the model itself."""
    images = _composed(rows, pictures, ranks, model.signature.layout)
    if images.dtype == np.uint8:
        images = images.astype(np.float32)  # counts as preprocessed
    scores = np.concatenate([model.predict(images[i : i + 1]) for i in range(len(images))])
    return to_probabilities(scores.astype(np.float32), model.signature.kind)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_file_opened_in_earnest_is_masked(tmp_path: Path, layout: str, dtype: str) -> None:
    model = _opened(_net(layout=layout, dtype=dtype), tmp_path, preset="none" if dtype == "uint8" else "unit")
    over, pictures, ranks = _filled(model)
    rows = _rows(20)
    np.testing.assert_allclose(_all(over, rows), _expected(model, rows, pictures, ranks), atol=1e-6)


@pytest.mark.usefixtures("unguarded")
def test_keeping_everything_and_nothing_is_the_picture_itself(tmp_path: Path) -> None:
    """For probabilities that the graph itself gives, to the last bit, at the same batch size."""
    model = _opened(_net(kind="probabilities"), tmp_path)
    assert model.signature.kind == "probabilities"
    over, pictures, _ = _filled(model)
    whole = model.predict(pictures)
    everything = np.array([[place, 0, place % 3, PIXELS] for place in range(5)], np.int32)
    nothing = np.array([[0, place, place % 3, 0] for place in range(5)], np.int32)
    assert np.array_equal(_all(over, everything), whole)
    assert np.array_equal(_all(over, nothing), whole)


@pytest.mark.usefixtures("unguarded")
@pytest.mark.parametrize("kind", ["logits", "probabilities", "log-probabilities", "sigmoid"])
def test_a_function_gives_the_same_numbers_as_the_file(tmp_path: Path, kind: str) -> None:
    for classes in (1, 3):
        if (classes > 1) == (kind == "sigmoid"):
            continue
        proto = _net(kind=kind, classes=classes)
        graph = _opened(proto, tmp_path, overrides=Overrides(kind=kind))  # type: ignore[arg-type]
        host = auditkit.load(
            lambda images, proto=proto: _plain(proto, images), size=(HEIGHT, WIDTH), preset="unit",
            overrides=Overrides(kind=kind),  # type: ignore[arg-type]
        )  # fmt: skip
        inside, pictures, ranks = _filled(graph)
        outside, _, _ = _filled(host)
        assert isinstance(inside.over, OnnxMasked)
        assert isinstance(outside.over, HostMasked)
        rows = _rows(50)
        found = _all(outside, rows)
        assert found.dtype == np.float32
        np.testing.assert_allclose(_all(inside, rows), found, atol=1e-6)
        np.testing.assert_allclose(found, _expected(graph, rows, pictures, ranks), atol=1e-6)


def test_a_function_with_channels_last() -> None:
    proto = _net(layout="NHWC")
    host = auditkit.load(
        lambda images: _plain(proto, images), size=(HEIGHT, WIDTH), preset="unit", overrides=Overrides(layout="NHWC")
    )
    over, pictures, ranks = _filled(host)
    rows = _rows(40)
    np.testing.assert_allclose(_all(over, rows), _expected(host, rows, pictures, ranks), atol=1e-6)


@pytest.mark.usefixtures("unguarded")
def test_batches_of_any_size_give_the_same(tmp_path: Path) -> None:
    proto, rows = _net(), _rows(100)
    found = []
    for batch in (1, 17, 100, 1000, None):
        over, _, _ = _filled(_opened(proto, tmp_path, auditkit.Settings(device="cpu", batch=batch)))
        found.append(_all(over, rows))
        assert over.batch == batch or batch is None
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-6)


@pytest.mark.usefixtures("unguarded")
def test_every_device_masks_alike(tmp_path: Path, device: Any) -> None:
    """A last batch that is short, full batches, and more rows in a batch than there are."""
    rows = _rows(101)
    for batch in (17, 101, 200):
        settings = auditkit.Settings(device=device, precision="strict", batch=batch)
        over, pictures, ranks = _filled(_opened(_net(), tmp_path, settings))
        expected = to_probabilities(_plain(_net(), _composed(rows, pictures, ranks)), "logits")
        np.testing.assert_allclose(_all(over, rows), expected, atol=1e-5)


@pytest.mark.usefixtures("unguarded")
def test_no_rows_give_nothing(tmp_path: Path) -> None:
    for model in (_opened(_net(), tmp_path), auditkit.load(lambda i: i[:, :2, 0, 0], size=(HEIGHT, WIDTH))):
        over, _, _ = _filled(model)
        assert list(over.run(np.zeros((0, 4), np.int32))) == []


@pytest.mark.usefixtures("unguarded")
def test_banks_stand_side_by_side(tmp_path: Path) -> None:
    """Fewer or more pictures and maps than before, and integers of another width."""
    model = _opened(_net(), tmp_path)
    over, pictures, ranks = _filled(model)
    rows = np.array([[0, 1, 0, 20]], np.int32)
    first = _all(over, rows)
    few = _Loaded(over.over, pictures[2:4], ranks[1:2].astype(np.int64))
    np.testing.assert_allclose(_all(few, rows), _expected(model, rows, pictures[2:4], ranks[1:2]), atol=1e-6)
    many = _Loaded(over.over, np.concatenate([pictures, pictures]), np.concatenate([ranks, ranks]))
    assert np.array_equal(_all(over, rows), first)
    assert np.array_equal(_all(many, rows + np.array([5, 5, 3, 0], np.int32)), first)


def _fixed(batch: int, classes: int = 4, *, freeable: bool = True, dependent: bool = False) -> onnx.ModelProto:
    """A graph exported for one batch size; a bias for each row of the batch cannot be set free."""
    proto = _net(batch=batch, classes=classes)
    last, graph = proto.graph.output[0].name, proto.graph
    if not freeable:
        bias = np.random.default_rng(1).standard_normal((batch, classes)).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(bias if dependent else bias[:1].repeat(batch, 0), "rows"))
        graph.node.append(helper.make_node("Add", [last, "rows"], ["scores"]))
    elif dependent:
        graph.node.append(helper.make_node("ReduceMean", [last], ["mean"], axes=[0], keepdims=1))
        graph.node.append(helper.make_node("Sub", [last, "mean"], ["half"]))
        graph.node.append(helper.make_node("Add", ["half", last], ["scores"]))
    else:
        size = onnx.numpy_helper.from_array(np.array([batch, classes], np.int64), "size")
        graph.initializer.append(size)
        graph.node.append(helper.make_node("Reshape", [last, "size"], ["scores"]))
    del graph.output[:]
    graph.output.append(onnx_models.value("scores", [batch, classes]))
    onnx.checker.check_model(proto)
    return proto


@pytest.mark.usefixtures("unguarded")
@pytest.mark.parametrize(("batch", "freeable", "dependent", "found"), [
    (1, True, False, ("made-dynamic", "bitwise")),
    (4, True, False, ("made-dynamic", "bitwise")),
    (3, False, False, ("fixed:3", "bitwise")),
    (4, False, False, ("fixed:4", "bitwise")),
    (3, False, True, ("fixed:3", "dependent")),
    (2, True, True, ("fixed:2", "dependent")),
])  # fmt: skip
def test_graphs_of_one_batch_size(
    tmp_path: Path, batch: int, freeable: bool, dependent: bool, found: tuple[str, str]
) -> None:
    model = _opened(_fixed(batch, freeable=freeable, dependent=dependent), tmp_path)
    assert model.signature.batch == found[0]
    assert (model.signature.rows == "dependent") == (found[1] == "dependent")
    over, pictures, ranks = _filled(model)
    for count in (1, 2, 23):
        rows = _rows(count)
        np.testing.assert_allclose(_all(over, rows), _expected(model, rows, pictures, ranks), atol=1e-6)


@pytest.mark.usefixtures("unguarded")
def test_rows_that_heed_their_neighbours_are_run_alone(tmp_path: Path) -> None:
    """The scores are twice the picture's own minus the batch's mean: alone that is the picture's own."""
    proto = _fixed(2, dependent=True)
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    model = _opened(proto, tmp_path, auditkit.Settings(device="cpu", batch=17))
    assert (model.signature.batch, model.signature.rows) == ("fixed:1", "dependent")
    over, pictures, ranks = _filled(model)
    rows = _rows(23)
    scores = _plain(_net(), _composed(rows, pictures, ranks))
    np.testing.assert_allclose(_all(over, rows), to_probabilities(scores, "logits"), atol=1e-6)


@pytest.mark.usefixtures("unguarded")
@pytest.mark.parametrize("batch", ["N", 1])
def test_scores_with_two_more_axes(tmp_path: Path, batch: int | str) -> None:
    """[N, C, 1, 1], as a fully convolutional classifier gives."""
    rng = np.random.default_rng(2)
    nodes = [helper.make_node("Conv", ["image", "w"], ["c"]), helper.make_node("GlobalAveragePool", ["c"], ["scores"])]
    weights = {"w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32)}
    proto = onnx_models.model(
        nodes,
        [onnx_models.value("image", [batch, 3, HEIGHT, WIDTH])],
        [onnx_models.value("scores", [batch, 4, 1, 1])],
        weights,
    )
    model = _opened(proto, tmp_path)
    over, pictures, ranks = _filled(model)
    rows = _rows(30)
    np.testing.assert_allclose(_all(over, rows), _expected(model, rows, pictures, ranks), atol=1e-6)


@pytest.mark.usefixtures("unguarded")
def test_a_grey_network_and_an_open_size(tmp_path: Path) -> None:
    """One channel, and a size that only the auditor knows."""
    proto = _net(channels=1)
    for axis in (2, 3):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"side{axis}"
    model = _opened(proto, tmp_path, overrides=Overrides(size=(HEIGHT, WIDTH)))
    over, pictures, ranks = _filled(model)
    rows = _rows(30)
    np.testing.assert_allclose(_all(over, rows), _expected(model, rows, pictures, ranks), atol=1e-6)


@pytest.mark.parametrize("taken", [PICTURES, RANKS, *COLUMNS, SHOWN, PROBABILITIES])
def test_a_model_that_uses_our_names_is_refused(taken: str) -> None:
    proto = _net(names=lambda name: {"t1": taken}.get(name, name))
    with pytest.raises(BadInput, match=f"already has a tensor named '{taken}'"):
        hard_masks.masked(proto, _ends(proto))


def test_inner_names_like_ours_are_stepped_around() -> None:
    """Names that are ours by habit only: each of our tensors takes the next free one."""
    ours = {node.output[0] for node in hard_masks.masked(_net(), _ends(_net())).graph.node}
    ours = sorted(name for name in ours if name.startswith("auditkit_") and name != PROBABILITIES)
    assert "auditkit_gather_1" in ours
    for tensor, name in zip(["t0", "t1", "t2", "w", "g", "b"] * len(ours), ours * 6, strict=True):
        proto = _net(names=lambda plain, tensor=tensor, name=name: name if plain == tensor else plain)
        fresh = hard_masks.masked(proto, _ends(proto))
        onnx.checker.check_model(fresh, full_check=True)
    _assert_masks(_net(names=lambda name: {"t0": "auditkit_gather", "w": "auditkit_constant", "g": "auditkit_one"}.get(
        name, name)), "logits", "NCHW", "float32")  # fmt: skip


def test_an_inner_graph_may_use_names_like_ours() -> None:
    """A branch of an If reads the image from outside and calls its own tensors as we call ours."""
    proto = _net()
    branch = helper.make_graph(
        [helper.make_node("Relu", ["image"], ["auditkit_gather"]),
         helper.make_node("Add", ["auditkit_gather", "image"], ["auditkit_less"])],
        "branch", [], [onnx.ValueInfoProto(name="auditkit_less")],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Identity", ["image"], ["auditkit_reshape"])],
        "other", [], [onnx.ValueInfoProto(name="auditkit_reshape")],
    )  # fmt: skip
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "yes"))
    proto.graph.node[0].input[0] = "chosen"
    choice = helper.make_node("If", ["yes"], ["chosen"], then_branch=branch, else_branch=other)
    proto.graph.node.insert(0, choice)
    _assert_masks(proto, "logits", "NCHW", "float32")


@pytest.mark.usefixtures("unguarded")
@pytest.mark.parametrize("precision", ["strict", "float16"])
def test_weights_beside_the_graph(tmp_path: Path, precision: Any) -> None:
    path = tmp_path / "big.onnx"
    proto = onnx_models.convnet(size=32, classes=2000)
    onnx.save_model(proto, path, save_as_external_data=True, location="big.bin", size_threshold=0)
    settings = auditkit.Settings(device="cpu", precision=precision)
    model = auditkit.load(path, preset="imagenet", limits=Limits(inline_bytes=1), settings=settings)
    assert isinstance(model, auditkit.OnnxClassifier)
    assert set(model.file.weights) == {"g", "b"}
    over, pictures, ranks = _filled(model)
    rows = _rows(8, 32 * 32)
    np.testing.assert_allclose(_all(over, rows), _expected(model, rows, pictures, ranks), atol=1e-6)


@pytest.mark.usefixtures("unguarded")
def test_float16_masks_as_the_float16_model_does(tmp_path: Path) -> None:
    proto, rows = _net(), _rows(30)
    half = _opened(proto, tmp_path, auditkit.Settings(device="cpu", precision="float16"))
    over, pictures, ranks = _filled(half)
    found = _all(over, rows)
    np.testing.assert_allclose(found, _expected(half, rows, pictures, ranks), atol=1e-6)
    exact = _expected(_opened(proto, tmp_path), rows, pictures, ranks)
    assert 0 < np.abs(found - exact).max() < (1e-2 if onnx_models.ARM else 5e-3)


def test_a_planted_shift_by_one_pixel_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    node = edit.Builder.node

    def shifted(self: Any, operator: str, *given: Any, **attributes: Any) -> str:
        return node(self, "LessOrEqual" if operator == "Less" else operator, *given, **attributes)

    monkeypatch.setattr(edit.Builder, "node", shifted)
    with pytest.raises(AssertionError):
        _assert_masks(_net(), "logits", "NCHW", "float32")


def _cramped(over: Any, monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Lets at most so many rows through at once, and says how many were asked for each time."""
    run, asked = over.session.run, list[int]()

    def cramped(
        feeds: dict[str, Any], wanted: list[str] | None = None, at_once: int | None = None, **limits: int
    ) -> list[np.ndarray]:  # fmt: skip
        first = next(iter(feeds.values()))  # on the host a composer with its rows
        count = len(feeds[COLUMNS[KEEP]] if COLUMNS[KEEP] in feeds else first[1])
        asked.append(count)
        if count > most:
            raise OutOfMemory("full")
        return list(run(feeds, wanted, at_once, **limits))

    monkeypatch.setattr(over.session, "run", cramped)
    return asked


@pytest.mark.usefixtures("unguarded")
@pytest.mark.parametrize("in_flight", [1, 2, 3])
@pytest.mark.parametrize("most", [1, 3, 5, 31])
def test_memory_running_out_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, in_flight: int
) -> None:
    model = _opened(_net(), tmp_path, auditkit.Settings(device="cpu", batch=32))
    model.device = replace(device.CPU, batches_in_flight=in_flight)
    over, pictures, ranks = _filled(model)
    rows = _rows(101)
    asked = _cramped(over, monkeypatch, most)
    np.testing.assert_allclose(_all(over, rows), _expected(model, rows, pictures, ranks), atol=1e-6)
    assert asked[0] == 32
    assert over.batch == {1: 1, 3: 2, 5: 4, 31: 16}[most]


@pytest.mark.usefixtures("unguarded")
def test_memory_for_not_one_row_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for proto, batch in ((_net(), 4), (_fixed(3, freeable=False), None), (_net(), None)):
        over, _, _ = _filled(_opened(proto, tmp_path, auditkit.Settings(device="cpu", batch=batch)))
        _cramped(over, monkeypatch, 0)
        with pytest.raises(OutOfMemory, match="not even one"):
            _all(over, _rows(9))


@pytest.mark.usefixtures("unguarded")
def test_memory_running_out_while_measuring_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _opened(_net(), tmp_path)
    over, pictures, ranks = _filled(model)
    _cramped(over, monkeypatch, 5)
    rows = _rows(40)
    np.testing.assert_allclose(_all(over, rows), _expected(model, rows, pictures, ranks), atol=1e-6)
    assert over.batch <= 4


@pytest.mark.usefixtures("unguarded")
def test_the_next_classifier_of_a_graph_starts_with_the_batch_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _opened(_net(), tmp_path)
    first, pictures, ranks = _filled(model)
    measured = first.batch
    rows = _rows(measured)
    _cramped(first, monkeypatch, measured // 2)
    np.testing.assert_allclose(_all(first, rows), _expected(model, rows, pictures, ranks), atol=1e-6)
    again, *_ = _filled(_opened(_net(), tmp_path))
    assert again.batch == first.batch < measured


@pytest.mark.usefixtures("unguarded")
def test_two_in_flight_overlap_and_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other batch is slow, so that the next one is done before it."""
    model = _opened(_net(), tmp_path, auditkit.Settings(device="cpu", batch=7))
    model.device = replace(device.CPU, batches_in_flight=2)
    over, pictures, ranks = _filled(model)
    run, lock, running, peak, calls = over.session.run, threading.Lock(), 0, 0, 0

    def slow(
        feeds: dict[str, Any], wanted: list[str] | None = None, at_once: int | None = None, **limits: int
    ) -> list[np.ndarray]:
        nonlocal running, peak, calls
        with lock:
            running, calls = running + 1, calls + 1
            peak, late = max(peak, running), calls % 2
        time.sleep(0.02 * late)
        found = list(run(feeds, wanted, at_once, **limits))
        with lock:
            running -= 1
        return found

    monkeypatch.setattr(over.session, "run", slow)
    rows = _rows(60)
    np.testing.assert_allclose(_all(over, rows), _expected(model, rows, pictures, ranks), atol=1e-6)
    assert peak == 2


@pytest.mark.usefixtures("unguarded")
def test_a_reader_that_stops_early_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _opened(_net(), tmp_path, auditkit.Settings(device="cpu", batch=4))
    model.device = replace(device.CPU, batches_in_flight=2)
    over, _, _ = _filled(model)
    run, asked = over.session.run, list[int]()
    monkeypatch.setattr(
        over.session,
        "run",
        lambda feeds, wanted, at_once, **limits: asked.append(1) or run(feeds, wanted, at_once, **limits),
    )
    parts = over.run(_rows(40))
    part, _ = next(parts)
    parts.close()
    assert (part.start, part.stop) == (0, 4)
    begun = len(asked)
    assert begun <= 3
    time.sleep(0.05)
    assert len(asked) == begun
