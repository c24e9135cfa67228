"""Graphs that contradict themselves, their card or the command line: one sentence, before anything runs for long."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from auditkit.errors import BadInput
from auditkit.model import probe
from auditkit.model.card import CardFile
from auditkit.model.read import read
from auditkit.model.signature import Kind, Overrides, Signature
from tests.support import onnx_models


def _ending(operator: str, **attributes: int) -> onnx.ModelProto:
    """A classifier whose logits go through one more operator."""
    model = onnx_models.convnet()
    model.graph.node.append(helper.make_node(operator, ["logits"], ["scores"], **attributes))
    model.graph.output[0].name = "scores"
    return model


@pytest.mark.parametrize(
    ("operator", "words"), [("Sigmoid", "sigmoid"), ("Softmax", "softmax"), ("LogSoftmax", "log-softmax")]
)
def test_what_comes_out_of_a_softmax_or_sigmoid_is_no_logits(tmp_path: Path, operator: str, words: str) -> None:
    file = read(onnx_models.save(_ending(operator), tmp_path))
    with pytest.raises(BadInput, match=f"'scores' come out of a {words}; leave the kind out, or name.*--output"):
        probe.examine(file, Overrides(kind="logits"))
    assert probe.examine(file, Overrides(kind="logits", output="logits")).kind == "logits"


def test_percent_of_unknown_origin_is_refused(tmp_path: Path) -> None:
    model = _ending("Softmax", axis=1)
    model.graph.initializer.append(numpy_helper.from_array(np.float32(100), "hundred"))
    model.graph.node.append(helper.make_node("Mul", ["scores", "hundred"], ["percent"]))
    model.graph.node.append(helper.make_node("Abs", ["percent"], ["shown"]))
    model.graph.output[0].name = "shown"
    file = read(onnx_models.save(model, tmp_path))
    with pytest.raises(BadInput, match="'shown' of each image sum to 100, like percent; give --output"):
        probe.examine(file, Overrides())
    assert probe.examine(file, Overrides(output="percent")).output == "scores"
    assert probe.examine(file, Overrides(kind="logits")).output == "shown"


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_a_guess_by_the_numbers_can_be_overridden(tmp_path: Path, kind: Kind) -> None:
    file = read(onnx_models.save(_ending("HardSigmoid"), tmp_path))
    assert probe.examine(file, Overrides(kind=kind)).kind == kind


@pytest.mark.parametrize("shape", [["N", 6, 8, 8], ["N", 6, "height", "width"], None], ids=str)
def test_pictures_are_refused_before_they_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: list[int | str | None] | None
) -> None:
    model = onnx_models.convnet()
    model.graph.output[0].CopyFrom(onnx_models.value("r", shape))
    monkeypatch.setattr(probe, "Trial", lambda *_: pytest.fail("the model was run"))
    with pytest.raises(BadInput, match=r"no output is one vector.*\('r' \[.*6, 8, 8\]\): it looks like a segmentation"):
        probe.examine(read(onnx_models.save(model, tmp_path)), Overrides())


@pytest.mark.parametrize("shape", [["N", 6, 1, 1], ["N", "a", "b", "c"], None], ids=str)
def test_a_vector_with_axes_of_1_is_no_picture(tmp_path: Path, shape: list[int | str | None] | None) -> None:
    model = onnx_models.convnet()
    model.graph.output[0].CopyFrom(onnx_models.value("p", shape))
    assert probe.examine(read(onnx_models.save(model, tmp_path)), Overrides()).classes == 6


@pytest.mark.parametrize("depth", [0, 1])
def test_an_attribute_of_a_function_outside_of_one_is_refused(tmp_path: Path, depth: int) -> None:
    model = onnx_models.convnet()
    model.graph.node[3].attribute.append(onnx.AttributeProto(name="axis", type=2, ref_attr_name="axis"))
    if depth:
        inner = helper.make_graph([model.graph.node[3]], "inner", [], [onnx_models.value("f", None)])
        condition = helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("yes", 9, [], [True]))
        branches = helper.make_node("If", ["yes"], ["f"], then_branch=inner, else_branch=inner)
        del model.graph.node[3]
        model.graph.node.insert(3, condition)
        model.graph.node.insert(4, branches)
    with pytest.raises(BadInput, match="node 'flatten' takes an attribute from a function, but lies in none"):
        read(onnx_models.save(model, tmp_path))


@pytest.fixture(scope="module")
def signature(tmp_path_factory: pytest.TempPathFactory) -> Signature:
    return probe.examine(read(onnx_models.save(onnx_models.convnet(), tmp_path_factory.mktemp("model"))), Overrides())


def _opened(path: Path, signature: Signature) -> None:
    file = CardFile.read(path)
    file.overrides()
    file.card(signature)


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("number", ["{}", "-{}", "0x{}", "{}.0", "1e{}"])
@pytest.mark.parametrize(
    "line",
    ["scale = {}", "mean = [{}, 0, 0]", "size = [{}, 8]", "resize = {}", "gray = {}", "preset = {}", "crop = {}",
     "exif_orientation = {}"],
)  # fmt: skip
def test_long_numbers_in_a_card(tmp_path: Path, signature: Signature, line: str, number: str, digits: int) -> None:
    text = line.format(number.format("9" * digits))
    path = tmp_path / "card.toml"
    base = "" if line.startswith("preset") else 'preset = "unit"\n'
    path.write_text(f"schema_version = 1\n[preprocessing]\n{base}{text}\n")
    with pytest.raises(BadInput) as refused:
        _opened(path, signature)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    "text",
    ["schema_version = 0x" + "f" * 5000, "schema_version = true",
     "schema_version = 1\n[signature]\nkind = 0x" + "f" * 5000, "schema_version = 1\n[classes]\nfile = 7",
     "schema_version = 1\n[classes]\nnames = 7"],
)  # fmt: skip
def test_other_types_in_a_card(tmp_path: Path, text: str) -> None:
    (tmp_path / "card.toml").write_text(text)
    with pytest.raises(BadInput):
        CardFile.read(tmp_path / "card.toml").overrides()
