"""Layers are found and forget what they have learned; maps that do not notice are told from maps that do."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from scipy.stats import spearmanr

import auditkit
from auditkit.data.bundles import Bundle, HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput, OutOfMemory, RuntimeFailure
from auditkit.graph import edit
from auditkit.graph.randomise import Layer, drawn, layers, parameters, randomised
from auditkit.methods.registry import METHODS
from auditkit.methods.request import MethodResult, Request
from auditkit.model import gradient
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.session import Session, Settings
from auditkit.records import to_json
from auditkit.runs import randomisation as checking
from auditkit.runs.explain import Explanation, explain
from auditkit.runs.folder.names import WAITING
from auditkit.runs.summary.wording import why_not_randomised
from tests.support import onnx_models

Array = np.ndarray[Any, Any]
CPU = Settings(device="cpu", threads=1)
MODELS = Path(__file__).parents[2] / "models"
node = helper.make_node


def tensors(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def normal(*shape: int) -> Array:
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def named(model: onnx.ModelProto, output: str = "y") -> list[tuple[str, ...]]:
    return [layer.tensors for layer in layers(model, output)]


def graph(nodes: list[onnx.NodeProto], weights: dict[str, Array], shape: list[Any] | None = None) -> onnx.ModelProto:
    return onnx_models.model(
        nodes, [onnx_models.value("x", shape or ["N", 4])], [onnx_models.value("y", None)], weights
    )


# --- layers ---------------------------------------------------------------------------------------------------------


def test_layers_come_from_the_last_to_the_first_each_with_its_bias() -> None:
    model = graph([
        node("MatMul", ["x", "w1"], ["a"]), node("Add", ["b1", "a"], ["b"]), node("Relu", ["b"], ["c"]),
        node("Gemm", ["c", "w2", "b2"], ["d"]), node("Mul", ["d", "half"], ["e"]), node("MatMul", ["e", "w3"], ["y"]),
    ], {"w1": normal(4, 5), "b1": normal(5), "w2": normal(5, 6), "b2": normal(6), "half": np.float32([0.5]),
        "w3": normal(6, 3)})  # fmt: skip
    assert named(model) == [("w3",), ("w2", "b2"), ("w1", "b1")]
    assert [layer.parameters for layer in layers(model, "y")] == [18, 36, 25]
    assert parameters(model, "y") == 80  # with the number that halves


def test_an_images_normalisation_and_constants_of_no_layer_stay() -> None:
    model = graph([
        node("Sub", ["x", "mean"], ["a"]), node("Div", ["a", "std"], ["b"]), node("Mul", ["b", "gain"], ["c"]),
        node("Conv", ["c", "w"], ["d"]), node("Relu", ["d"], ["e"]), node("Add", ["e", "positions"], ["y"]),
    ], {"mean": normal(3, 1, 1), "std": normal(3, 1, 1), "gain": normal(3, 1, 1), "w": normal(5, 3, 1, 1),
        "positions": normal(1, 5, 4, 4)}, ["N", 3, 4, 4])  # fmt: skip
    assert named(model) == [("w",)]


def test_a_normalisation_forgets_its_scale_and_shift_and_keeps_its_statistics() -> None:
    model = graph([
        node("Conv", ["x", "w"], ["a"]), node("BatchNormalization", ["a", "scale", "shift", "mean", "variance"], ["b"]),
        node("GlobalAveragePool", ["b"], ["y"]),
    ], {"w": normal(5, 3, 1, 1), "scale": normal(5), "shift": normal(5), "mean": normal(5),
        "variance": np.ones(5, np.float32)}, ["N", 3, 4, 4])  # fmt: skip
    assert named(model) == [("scale", "shift"), ("w",)]


def test_weights_are_found_behind_what_hands_them_on_or_puts_them_together() -> None:
    transposed = node("Transpose", ["half"], ["t"], perm=[1, 0])
    constant = node("Constant", [], ["k"], value=numpy_helper.from_array(normal(5, 6), "anything"))
    model = graph([
        node("Cast", ["h"], ["half"], to=TensorProto.FLOAT), transposed, node("MatMul", ["x", "t"], ["a"]), constant,
        node("Identity", ["k"], ["same"]), node("Reshape", ["same", "shape"], ["r"]), node("MatMul", ["a", "r"], ["b"]),
        node("Concat", ["left", "right"], ["w"], axis=1), node("ReduceMean", ["w"], ["m"]),
        node("Sub", ["w", "m"], ["v"]), node("Gemm", ["b", "v"], ["y"]),
    ], {"h": normal(5, 4).astype(np.float16), "shape": np.array([5, 6]), "left": normal(6, 2),
        "right": normal(6, 1)})  # fmt: skip
    assert named(model) == [("left", "right"), ("k",), ("h",)]
    fresh, _ = randomised(model, layers(model, "y"), 0)
    before, after = (Session(one, CPU).run({"x": normal(2, 4)})[0] for one in (model, fresh))
    assert before.shape == after.shape
    assert not np.allclose(before, after)


def test_only_what_the_scores_need_is_a_layer() -> None:
    model = graph([node("MatMul", ["x", "w"], ["y"]), node("MatMul", ["x", "v"], ["z"])],
                  {"w": normal(4, 2), "v": normal(4, 3)})  # fmt: skip
    model.graph.output.append(onnx_models.value("z", None))
    assert (named(model, "y"), named(model, "z")) == ([("w",)], [("v",)])
    assert parameters(model, "y") == 8


def test_a_shared_weight_belongs_to_the_last_layer_that_reads_it() -> None:
    model = graph([node("Gemm", ["x", "w", "b"], ["a"]), node("Gemm", ["a", "w", "c"], ["y"])],
                  {"w": normal(4, 4), "b": normal(4), "c": normal(4)})  # fmt: skip
    assert named(model) == [("w", "c"), ("b",)]


def test_weights_in_functions_and_branches_are_found() -> None:
    def branch(name: str) -> onnx.GraphProto:
        weight = numpy_helper.from_array(normal(4, 3), f"{name}_w")
        product = node("MatMul", ["x", f"{name}_w"], [f"{name}_y"])
        return helper.make_graph([product], name, [], [onnx_models.value(f"{name}_y", None)], [weight])

    asked = node("If", ["yes"], ["y"], then_branch=branch("then"), else_branch=branch("else"))
    assert set(named(graph([asked], {"yes": np.array(True)}))) == {("then_w",), ("else_w",)}
    inner = helper.make_function("own", "Dense", ["a", "k"], ["c"], [node("MatMul", ["a", "k"], ["c"])],
                                 [helper.make_opsetid("", 17)])  # fmt: skip
    model = graph([node("Dense", ["x", "w"], ["y"], domain="own")], {"w": normal(4, 3)})
    model.functions.append(inner)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model = edit.inlined(model)
    assert named(model) == [("w",)]
    fresh, _ = randomised(model, layers(model, "y"), 0)
    assert not np.allclose(*(Session(one, CPU).run({"x": normal(2, 4)})[0] for one in (model, fresh)))


def test_a_graph_without_weights_has_no_layers() -> None:
    assert layers(graph([node("Relu", ["x"], ["y"])], {}), "y") == []


# --- draws ----------------------------------------------------------------------------------------------------------


def test_a_draw_keeps_type_shape_mean_and_spread_and_none_of_the_values() -> None:
    trained = (3 + 0.5 * normal(100, 200)).astype(np.float16)
    fresh = drawn(trained, TensorProto.FLOAT16, "w", seed=1)
    assert (fresh.dtype, fresh.shape) == (trained.dtype, trained.shape)
    wide = fresh.astype(np.float64)
    assert (wide.mean(), wide.std()) == pytest.approx((3, 0.5), rel=0.02)
    assert abs(np.corrcoef(wide.ravel(), trained.astype(np.float64).ravel())[0, 1]) < 0.03
    assert not np.array_equal(np.sort(fresh, axis=None), np.sort(trained, axis=None))  # no shuffle of the old ones
    np.testing.assert_array_equal(fresh, drawn(trained, TensorProto.FLOAT16, "w", seed=1))
    for other in (drawn(trained, TensorProto.FLOAT16, "w", seed=2), drawn(trained, TensorProto.FLOAT16, "v", seed=1)):
        assert not np.array_equal(fresh, other)


@pytest.mark.parametrize(("kind", "dtype"), [(TensorProto.INT8, np.int8), (TensorProto.UINT8, np.uint8)])
def test_whole_numbers_stay_whole_and_within_their_type(kind: int, dtype: Any) -> None:
    ends = np.iinfo(dtype)
    trained = np.random.default_rng(0).choice([ends.min, ends.max], (50, 50)).astype(dtype)
    fresh = drawn(trained, kind, "w", seed=0)
    assert fresh.dtype == dtype
    assert (fresh.min(), fresh.max()) == (ends.min, ends.max)  # cut off, not wrapped around
    assert 0.1 < float((fresh == ends.max).mean()) < 0.25  # one normal number in six lies a deviation above


def quantised() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    return graph([
        node("DequantizeLinear", ["w", "scales", "zeros"], ["real"], axis=0),
        node("DequantizeLinear", ["b", "step"], ["bias"]), node("Conv", ["x", "real", "bias"], ["a"]),
        node("QuantizeLinear", ["a", "scale", "zero"], ["q"]),
        node("QLinearConv", ["q", "scale", "zero", "v", "scale", "zero_v", "scale", "zero", "c"], ["p"]),
        node("DequantizeLinear", ["p", "scale", "zero"], ["y"]),
    ], {"w": rng.integers(-99, 99, (4, 3, 3, 3)).astype(np.int8), "scales": np.full(4, 0.01, np.float32),
        "zeros": np.zeros(4, np.int8), "b": rng.integers(-900, 900, 4).astype(np.int32), "step": np.float32(0.001),
        "scale": np.float32(0.05), "zero": np.uint8(128), "v": rng.integers(-99, 99, (2, 4, 1, 1)).astype(np.int8),
        "zero_v": np.int8(0), "c": rng.integers(-99, 99, 2).astype(np.int32)}, ["N", 3, 4, 4])  # fmt: skip


def test_quantised_weights_are_drawn_as_such_and_their_scales_stay() -> None:
    model = quantised()
    found = layers(model, "y")
    assert [layer.tensors for layer in found] == [("v", "c"), ("w", "b")]
    fresh, _ = randomised(model, found, seed=0)
    before, after = tensors(model), tensors(fresh)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"v", "c", "w", "b"}
    assert all(before[name].dtype == after[name].dtype for name in before)
    assert np.isfinite(Session(fresh, CPU).run({"x": normal(2, 3, 4, 4)})[0]).all()


# --- re-initialised models ------------------------------------------------------------------------------------------


def test_with_no_layer_the_model_is_the_same_and_each_stage_holds_the_one_before() -> None:
    model = onnx_models.convnet()
    content = model.SerializeToString()
    found = layers(model, "logits")
    stages = [tensors(randomised(model, found[:count], seed=3)[0]) for count in range(3)]
    assert randomised(model, [], seed=3)[0].SerializeToString() == content
    changed = [{name for name, held in stage.items() if (held != stages[0][name]).any()} for stage in stages]
    assert changed == [set(), {"g", "b"}, {"w", "g", "b"}]
    np.testing.assert_array_equal(stages[1]["g"], stages[2]["g"])
    assert model.SerializeToString() == content


def test_weights_beside_the_graph_get_the_same_draws() -> None:
    model = onnx_models.convnet()
    found, held = layers(model, "logits"), tensors(model)["w"]
    inside, _ = randomised(model, found, seed=0)
    apart = onnx_models.convnet()
    stub = next(tensor for tensor in apart.graph.initializer if tensor.name == "w")
    stub.ClearField("raw_data")
    stub.data_location = TensorProto.EXTERNAL
    fresh, weights = randomised(apart, layers(apart, "logits"), seed=0, weights={"w": held})
    np.testing.assert_array_equal(weights["w"], tensors(inside)["w"])
    np.testing.assert_array_equal(held, tensors(model)["w"])
    assert Session(fresh, CPU, weights).run({"image": normal(2, 3, 8, 8)})[0].shape == (2, 5)


@pytest.mark.assets
def test_every_dress_of_a_network_has_the_same_layers(assets: Path) -> None:
    for path in [assets / "models" / "cifar10_resnet20.onnx", *sorted((assets / "models" / "variants").glob("*.onnx"))]:
        model = onnx.load(path)
        output = model.graph.output[0].name
        found = layers(model, output)
        assert (len(found), found[0].parameters, found[-1].parameters) == (20, 650, 448), path
        assert sum(layer.parameters for layer in found) > 0.99 * parameters(model, output), path


# --- maps under re-initialised models -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> tuple[OnnxClassifier, Dataset]:
    """A model of one layer, whose gradient times input is weight times input; and twelve images."""
    model = graph([node("Flatten", ["x"], ["f"]), node("Gemm", ["f", "w", "b"], ["y"])],
                  {"w": normal(192, 4), "b": normal(4)}, ["N", 3, 8, 8])  # fmt: skip
    pictures = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    opened = auditkit.load(onnx_models.save(model, tmp_path_factory.mktemp("linear")), preset="unit", settings=CPU)
    assert isinstance(opened, OnnxClassifier)
    return opened, Dataset(Path("array"), tuple(f"{i}.png" for i in range(12)), pictures)


def made(
    given: tuple[OnnxClassifier, Dataset], folder: Path, method: str = "gradient-input", **options: Any
) -> HeatmapSet:
    return explain(*given, asked(method, **options), folder / "maps")


def asked(method: str = "gradient-input", seed: int = 0, **options: Any) -> Explanation:
    return Explanation(method, "top1", tuple((name, str(value)) for name, value in options.items()), seed)


def measured(
    given: tuple[OnnxClassifier, Dataset], bundle: HeatmapSet, out: Path | None = None, images: int = 12,
    stages: int = 2, what: Explanation | None = None, pool: Dataset | None = None,
) -> dict[str, Any]:  # fmt: skip
    what = what or asked()
    found = checking.randomisation(
        *given, what, pool, bundle, images_wanted=images, stages=stages, seed=what.seed, out=out
    )
    plain = to_json(found)
    assert isinstance(plain, dict)
    return plain | ({} if found.not_assessed is None else {"not_assessed": why_not_randomised(found.not_assessed)})


def test_the_figure_is_the_rank_correlation_of_the_two_maps(linear: Any, tmp_path: Path) -> None:
    model, images = linear
    bundle = made(linear, tmp_path)
    found = measured(linear, bundle)
    fresh, _ = randomised(model.file.proto, layers(model.file.proto, "y"), seed=0)
    shown = model.preprocess([images.images[index] for index in range(12)])
    labels = model.predict(shown).argmax(axis=1)  # of the true model
    weights = tensors(fresh)["w"].T.reshape(4, 3, 8, 8)
    maps = [(weights[label] * row).sum(axis=0) for label, row in zip(labels, shown, strict=True)]
    true = [bundle.get(image, int(label)) for image, label in zip(images.ids, labels, strict=True)]
    pairs = list(zip(true, maps, strict=True))
    (only,) = found["series"]
    assert only["spearman"] == pytest.approx(np.mean([spearmanr(a.ravel(), b.ravel())[0] for a, b in pairs]), abs=1e-6)
    assert only["absolute"] == pytest.approx(
        np.mean([spearmanr(abs(a).ravel(), abs(b).ravel())[0] for a, b in pairs]), abs=1e-6
    )
    assert (only["stage"], only["layers"], only["share"], only["n"], only["constant"]) == (1, ["w"], 1.0, 12, 0)
    assert (found["images"], found["layers"], found["label"], found["seed"]) == (12, 1, "predicted", 0)
    assert found["notes"] == []
    assert only["low"] < only["spearman"] < only["high"] < 0.5


def planted(method: str, folder: Path) -> dict[str, Any]:
    model = auditkit.load(MODELS / "honest.onnx", settings=CPU)
    assert isinstance(model, OnnxClassifier)
    side = model.signature.height
    np.savez(
        folder / "images.npz", images=np.random.default_rng(1).integers(0, 256, (5, side, side, 3), dtype=np.uint8)
    )
    given = model, Dataset.open(folder / "images.npz", model.signature.classes)
    return measured(given, made(given, folder, method), images=5, what=asked(method))


def test_a_map_that_ignores_the_model_stays_and_one_that_does_not_goes(tmp_path: Path) -> None:
    (tmp_path / "edges").mkdir()
    blind, seeing = (
        planted(method, tmp_path / folder)["series"] for method, folder in (("edges", "edges"), ("gradient-input", ""))
    )
    assert [entry["spearman"] for entry in blind] == pytest.approx([1, 1])
    assert [len(entry["layers"]) for entry in seeing] == [1, 8]
    assert seeing[0]["share"] < 0.01
    assert seeing[1]["share"] == 1.0
    assert seeing[1]["high"] < 0.3


def test_learned_masks_can_be_checked_too(linear: Any, tmp_path: Path) -> None:
    few = {"steps": 5, "distractors": 2}
    found = measured(linear, made(linear, tmp_path, "mask", **few), images=3, what=asked("mask", **few))
    assert found["series"][0]["n"] == 3
    assert found["method"].startswith("mask(")


def test_images_are_chosen_by_seed_and_content_alone(linear: Any, tmp_path: Path) -> None:
    model, images = linear
    bundle = made(linear, tmp_path)
    few = {one.image for one in checking._originals(model, images, bundle, 0, 5)[0]}
    turned = Dataset(images.source, images.ids[::-1], images.images[::-1])
    assert {one.image for one in checking._originals(model, turned, bundle, 0, 5)[0]} == few
    assert {one.image for one in checking._originals(model, images, bundle, 1, 5)[0]} != few
    assert measured(linear, bundle, images=5)["images"] == 5


@pytest.mark.parametrize(("found", "stages", "counts"), [
    (8, 5, [1, 3, 4, 6, 8]), (20, 2, [1, 20]), (20, 1, [20]), (3, 9, [1, 2, 3]), (1, 4, [1]),
])  # fmt: skip
def test_stages_go_from_one_layer_to_all(found: int, stages: int, counts: list[int]) -> None:
    assert checking._layer_counts(found, stages) == counts


def test_the_gradient_is_checked_once_for_the_model_and_all_its_stages(
    deep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages differ in weights, not in nodes; a graph with other nodes is checked for itself."""
    real, checked = gradient._checked, list[OnnxClassifier]()

    def watched(classifier: OnnxClassifier, *words: Any) -> Any:
        checked.append(classifier)
        return real(classifier, *words)

    monkeypatch.setattr(gradient, "_checked", watched)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # earlier tests may have checked the same graph
    fresh = auditkit.load(deep[0].file.path, preset="unit", settings=CPU), deep[1]
    found = measured(fresh, made(fresh, tmp_path))  # type: ignore[arg-type]
    assert len(found["series"]) == 2
    assert checked == [fresh[0]]
    gradient.differentiate(fresh[0], "t")  # type: ignore[arg-type]
    assert len(checked) == 2


# --- going on -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory, linear: Any) -> tuple[OnnxClassifier, Dataset]:
    """A model of two layers."""
    model = graph([node("Flatten", ["x"], ["f"]), node("Gemm", ["f", "w"], ["a"]), node("Tanh", ["a"], ["t"]),
                   node("Gemm", ["t", "v"], ["y"])],
                  {"w": 0.1 * normal(192, 8), "v": normal(8, 4)}, ["N", 3, 8, 8])  # fmt: skip
    opened = auditkit.load(onnx_models.save(model, tmp_path_factory.mktemp("deep")), preset="unit", settings=CPU)
    assert isinstance(opened, OnnxClassifier)
    return opened, linear[1]


def planted_method(monkeypatch: pytest.MonkeyPatch, run: Callable[[Request, Any], MethodResult]) -> None:
    monkeypatch.setitem(METHODS, "gradient-input", replace(METHODS["gradient-input"], run=run))


def test_what_is_finished_is_kept_and_only_the_rest_is_made(
    deep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, out = made(deep, tmp_path), tmp_path / "out"
    whole = measured(deep, bundle, out)
    assert whole == measured(deep, bundle)
    made_again: list[str] = []
    real = METHODS["gradient-input"].run

    def watched(request: Request, options: Any) -> MethodResult:
        made_again.extend(request.ids)
        return real(request, options)

    planted_method(monkeypatch, watched)
    assert measured(deep, bundle, out) == whole
    assert made_again == []
    (out / "stage-2").rename(tmp_path / "lost")
    shutil.copytree(out / "stage-1", out / "stage-1" / WAITING / "000001")  # killed before it could be removed
    assert measured(deep, bundle, out) == whole
    assert len(made_again) == 12
    assert not (out / "stage-1" / WAITING).exists()


def test_stages_of_another_seed_choice_or_picture_are_never_reused(deep: Any, tmp_path: Path) -> None:
    model, images = deep
    bundle, out = made(deep, tmp_path), tmp_path / "out"
    measured(deep, bundle, out)
    nearly = model, replace(images, images=np.minimum(images.images, 250))  # the same labels
    (tmp_path / "seed").mkdir()
    (tmp_path / "nearly").mkdir()
    others: list[dict[str, Any]] = [
        {"given": deep, "bundle": made(deep, tmp_path / "seed", seed=1), "what": asked(seed=1)},
        {"given": deep, "bundle": bundle, "images": 3},
        {"given": nearly, "bundle": made(nearly, tmp_path / "nearly")},
    ]
    for other in others:
        with pytest.raises(BadInput, match="use another bundle"):
            measured(out=out, **other)


# --- what cannot be said --------------------------------------------------------------------------------------------


def test_supplied_maps_a_function_and_a_model_without_weights_are_not_assessed(linear: Any, tmp_path: Path) -> None:
    model, images = linear
    supplied = Bundle(tmp_path / "supplied", model=model, method="the vendor's")
    supplied.add(list(images.ids), [0] * 12, normal(12, 8, 8), layout="NHW")
    assert "cannot make them again" in measured(linear, auditkit.open_bundle(tmp_path / "supplied"))["not_assessed"]
    bundle = made(linear, tmp_path)
    assert "cannot make them again" in measured(linear, bundle, what=asked(seed=9))["not_assessed"]
    function = auditkit.load(model.predict, size=(8, 8), preset="unit")
    assert "no layers" in measured((function, images), bundle)["not_assessed"]  # type: ignore[arg-type]
    bare = graph([node("GlobalAveragePool", ["x"], ["y"])], {}, ["N", 3, 8, 8])
    opened = auditkit.load(onnx_models.save(bare, tmp_path, "bare.onnx"), preset="unit", settings=CPU)
    (tmp_path / "bare").mkdir()
    given = (opened, images)
    assert "0 of the model's 0 parameters" in measured(given, made(given, tmp_path / "bare"))["not_assessed"]  # type: ignore[arg-type]


def test_constant_maps_of_the_true_model_are_left_out(linear: Any, tmp_path: Path) -> None:
    found = measured(linear, made(linear, tmp_path, "constant"), what=asked("constant"))
    assert found == {"not_assessed": f"12 images left out: {checking.CONSTANT}"}


def test_images_without_a_map_for_the_prediction_are_left_out(linear: Any, tmp_path: Path) -> None:
    model, images = linear
    predicted = model.predict([images.images[index] for index in range(12)]).argmax(axis=1)
    listed = replace(asked(), labels=str(int(predicted[0])))
    found = measured(linear, explain(model, images, listed, tmp_path / "maps"), what=listed)
    alike = int((predicted == predicted[0]).sum())
    assert (found["images"], found["series"][0]["n"]) == (alike, alike)
    assert found["notes"] == [f"{12 - alike} images left out: {checking.NO_MAP}"]


def test_a_constant_map_of_a_changed_model_counts_as_no_correlation() -> None:
    ramp = np.arange(16, dtype=np.float32).reshape(4, 4)
    found = checking.stage_result(1, (), 1.0, [ramp] * 4, [ramp, -ramp, ramp**2, np.zeros_like(ramp)], 0.9)
    assert (found.spearman, found.absolute, found.constant, found.n) == (0.25, 0.75, 1, 4)


def not_a_number(request: Request, _options: Any) -> MethodResult:
    return MethodResult(tuple({label: np.full((8, 8), np.nan) for label in labels} for labels in request.labels))


def failing(error: Exception) -> Callable[[Request, Any], MethodResult]:
    def run(_request: Request, _options: Any) -> MethodResult:
        raise error

    return run


def test_a_changed_model_that_cannot_be_explained_is_told_of(
    deep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, real = made(deep, tmp_path), METHODS["gradient-input"].run
    stages = iter([real, not_a_number])

    def worse_and_worse(request: Request, options: Any) -> MethodResult:
        return next(stages)(request, options)

    planted_method(monkeypatch, worse_and_worse)
    found = measured(deep, bundle)
    assert [entry["stage"] for entry in found["series"]] == [1]
    assert found["notes"] == ["stage 2, 2 of 2 layers, has no figure: its maps hold NaN or infinity"]
    planted_method(monkeypatch, failing(RuntimeFailure("the scores hardly change.")))
    assert measured(deep, bundle)["not_assessed"] == ("stage 2, 2 of 2 layers, has no figure: the scores hardly change")


def test_a_full_disk_or_memory_ends_the_check_instead_of_passing_for_a_finding(
    deep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = made(deep, tmp_path)
    with monkeypatch.context() as patch:
        planted_method(patch, failing(OutOfMemory("no room.")))
        with pytest.raises(RuntimeFailure, match=r"^image '\d+\.png'.*: no room\.$"):
            measured(deep, bundle)
    with monkeypatch.context() as patch:
        patch.setattr(Bundle, "add", failing_add)
        with pytest.raises(RuntimeFailure, match="disk"):
            measured(deep, bundle)


def failing_add(*_arguments: Any, **_settings: Any) -> int:
    raise RuntimeFailure("the disk is full.")


@pytest.mark.parametrize(("images", "stages"), [(0, 2), (2, 0)])
def test_no_images_or_no_stages_is_refused(linear: Any, tmp_path: Path, images: int, stages: int) -> None:
    with pytest.raises(BadInput, match="1 or more"):
        measured(linear, made(linear, tmp_path), images=images, stages=stages)


def test_a_layer_is_named_after_its_first_tensor() -> None:
    assert layers(onnx_models.convnet(), "logits")[0] == Layer("g", "Gemm", ("g", "b"), 35)
