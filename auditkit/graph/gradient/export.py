"""A model that also returns its gradient: `seed` [N, classes] in, `gradient` out, the scores as they were.

`gradient` is that of sum(seed · scores) with respect to the input, or to any named tensor, and has its shape.
"""

import onnx
from onnx import TensorProto, helper

from auditkit.errors import BadInput
from auditkit.graph import build, edit
from auditkit.graph.gradient.builder import Builder, Facts, Shape
from auditkit.graph.gradient.engine import backward

SEED, GRADIENT, METADATA = "seed", "gradient", "auditkit.gradient"
NUDGE = "auditkit_nudge"
STAND_IN = "auditkit_stand_in/"  # before the names of a model that stands in for the vendor's


def with_gradient(model: onnx.ModelProto, facts: Facts, output: str, wrt: str) -> onnx.ModelProto:
    """The model with its gradient; a named tensor that is no input becomes an output too."""
    fresh = edit.copy(model)
    graph = fresh.graph
    if taken := edit.all_names(graph) & {SEED, GRADIENT}:
        raise BadInput(f"the model already has a tensor named '{taken.pop()}', a name that auditkit adds itself.")
    b = Builder(graph, facts)
    seed = SEED if len(facts.shapes[output]) == 2 else b.reshape_like(SEED, output)
    b.node("Identity", [backward(b, graph, {output: seed}, [wrt])[wrt]], GRADIENT)
    b.into(graph)
    graph.input.append(_declared(SEED, facts, _per_row(facts.shapes[output])))
    graph.output.append(_declared(GRADIENT, facts, facts.shapes[wrt]))
    if wrt not in {value.name for value in (*graph.input, *graph.output)}:
        graph.output.append(_declared(wrt, facts, facts.shapes[wrt]))
    del graph.value_info[:]
    _import_what_is_used(fresh)
    return fresh


def _import_what_is_used(model: onnx.ModelProto) -> None:
    """Forget the operator sets that the runtime lists whenever it writes a model."""
    used = {node.domain for node in model.graph.node} | {""}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def _per_row(shape: Shape) -> Shape:
    """[N, classes] for scores of any shape that has one number a class."""
    rows, *rest = shape if len(shape) > 1 else (1, *shape)
    classes = 1
    for size in rest:
        classes *= size or 1
    return rows, classes


def _declared(name: str, facts: Facts, shape: Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, facts.float_kind, ["N" if size is None else size for size in shape])


def nudged(model: onnx.ModelProto, facts: Facts, wrt: str) -> onnx.ModelProto:
    """The model with a further input that is added to a tensor before anything reads it."""
    fresh = edit.copy(model)
    b = build.Builder(fresh.graph)
    moved = b.name("moved")
    for node in fresh.graph.node:
        node.input[:] = [moved if name == wrt else name for name in node.input]
    made_by = next((i for i, node in enumerate(fresh.graph.node) if wrt in node.output), -1)
    fresh.graph.node.insert(made_by + 1, helper.make_node("Add", [wrt, NUDGE], [moved]))
    fresh.graph.input.append(_declared(NUDGE, facts, facts.shapes[wrt]))
    return fresh


def taking(model: onnx.ModelProto, input_name: str, kind: int) -> onnx.ModelProto:
    """The model with an input of another type, cast to float where it enters."""
    if kind == TensorProto.FLOAT:
        return model
    fresh = edit.copy(model)
    real = build.Builder(fresh.graph).name("float_input")
    for node in fresh.graph.node:
        node.input[:] = [real if name == input_name else name for name in node.input]
    fresh.graph.node.insert(0, helper.make_node("Cast", [input_name], [real], to=TensorProto.FLOAT))
    for value in fresh.graph.input:
        if value.name == input_name:
            value.type.tensor_type.elem_type = kind
    return fresh


def beside(vendors: onnx.ModelProto, stand_in: onnx.ModelProto, input_name: str) -> onnx.ModelProto:
    """The vendor's own scores, and the gradient of a model that stands in for it."""
    fresh, other = edit.copy(vendors), edit.copy(stand_in)
    kept = {input_name, SEED, GRADIENT, ""}

    def renamed(name: str) -> str:
        return name if name in kept else f"{STAND_IN}{name}"

    for tensor in other.graph.initializer:
        tensor.name = renamed(tensor.name)
    for node in other.graph.node:
        node.input[:], node.output[:] = map(renamed, node.input), map(renamed, node.output)
        node.name = node.name and f"{STAND_IN}{node.name}"
    fresh.graph.node.extend(other.graph.node)
    fresh.graph.initializer.extend(other.graph.initializer)
    fresh.graph.input.extend(value for value in other.graph.input if value.name == SEED)
    fresh.graph.output.extend(value for value in other.graph.output if value.name == GRADIENT)
    fresh.ir_version = max(fresh.ir_version, other.ir_version)
    return fresh
