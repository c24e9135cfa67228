"""A model that also returns its gradient: `seed` [N, classes] in, `gradient` out, the scores unchanged.

`gradient` is that of sum(seed · scores) with respect to the input or to a named tensor, and has its shape.
"""

from math import prod

import onnx
from onnx import TensorProto, helper

from auditkit.errors import BadInput
from auditkit.graph import edit
from auditkit.graph.gradient.builder import Builder, Facts, Shape
from auditkit.graph.gradient.engine import backward

SEED, GRADIENT, METADATA = "seed", "gradient", "auditkit.gradient"
NUDGE = "auditkit_nudge"
STAND_IN = "auditkit_stand_in/"  # prefix of all names of a differentiable model beside the vendor's


def with_gradient(
    model: onnx.ModelProto, facts: Facts, output: str, wrt: str, *, adds_in_order: bool = True
) -> onnx.ModelProto:
    """The model with its gradient; a tensor in `wrt` that is not an input becomes an output too.

    Where the device does not add in order, more nodes see to it that the gradient comes out the same each time.
    """
    edit.refuse_names(model.graph, {SEED, GRADIENT})
    fresh = edit.copy(model)
    graph = fresh.graph
    b = Builder(graph, facts, adds_in_order=adds_in_order)
    seed = SEED if len(facts.shapes[output]) == 2 else b.reshape_like(SEED, output)
    b.node("Identity", [backward(b, graph, {output: seed}, [wrt])[wrt]], GRADIENT)
    b.into(graph)
    shape = facts.shapes[output]
    rows, *rest = shape if len(shape) > 1 else (1, *shape)
    graph.input.append(_declared(SEED, facts, (rows, prod(size or 1 for size in rest))))
    graph.output.append(_declared(GRADIENT, facts, facts.shapes[wrt]))
    if wrt not in {value.name for value in (*graph.input, *graph.output)}:
        graph.output.append(_declared(wrt, facts, facts.shapes[wrt]))
    del graph.value_info[:]
    # The runtime lists all its operator sets in every model that it writes; keep those that are used.
    used = {node.domain for node in graph.node} | {""}
    edit.replace(fresh.opset_import, [entry for entry in fresh.opset_import if entry.domain in used])
    return fresh


def _declared(name: str, facts: Facts, shape: Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, facts.float_kind, ["N" if size is None else size for size in shape])


def _redirect(graph: onnx.GraphProto, name: str, replacement: str) -> None:
    """Make all nodes that read a tensor read another one."""
    for node in graph.node:
        node.input[:] = [replacement if operand == name else operand for operand in node.input]


def nudged(model: onnx.ModelProto, facts: Facts, wrt: str) -> onnx.ModelProto:
    """The model with a further input that is added to a tensor before any node reads it."""
    fresh = edit.copy(model)
    moved = edit.Builder(fresh.graph).name("moved")
    _redirect(fresh.graph, wrt, moved)
    producer = next((i for i, node in enumerate(fresh.graph.node) if wrt in node.output), -1)
    fresh.graph.node.insert(producer + 1, helper.make_node("Add", [wrt, NUDGE], [moved]))
    fresh.graph.input.append(_declared(NUDGE, facts, facts.shapes[wrt]))
    return fresh


def taking(model: onnx.ModelProto, input_name: str, kind: int) -> onnx.ModelProto:
    """The model with an input of another type, which is cast to float."""
    if kind == TensorProto.FLOAT:
        return model
    fresh = edit.with_input_type(model, input_name, kind)
    cast = edit.Builder(fresh.graph).name("float_input")
    _redirect(fresh.graph, input_name, cast)
    fresh.graph.node.insert(0, helper.make_node("Cast", [input_name], [cast], to=TensorProto.FLOAT))
    return fresh


def beside(vendors: onnx.ModelProto, stand_in: onnx.ModelProto, input_name: str) -> onnx.ModelProto:
    """The vendor's own scores and the gradient of a differentiable model in its place."""
    fresh, other = edit.copy(vendors), edit.copy(stand_in)
    shared = {input_name, SEED, GRADIENT, ""}

    def renamed(name: str) -> str:
        return name if name in shared else f"{STAND_IN}{name}"

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


# Gradients that a vendor's file contains: an input for the seed, an output for the gradient


def gradient_names(model: onnx.ModelProto, gradient_output: str | None = None) -> tuple[str, str] | None:
    """Names of the seed and the gradient, if a file has both: 'seed' and 'gradient' unless an output is named."""
    outputs = {value.name for value in model.graph.output}
    gradient = gradient_output or GRADIENT
    scores = outputs - {gradient}
    for_scores = edit.ancestors(model.graph, scores)
    seeds = [v.name for v in edit.real_inputs(model.graph) if scores and v.name not in for_scores]
    if gradient in outputs and (seeds == [SEED] or (len(seeds) == 1 and gradient_output)):
        return seeds[0], gradient
    if gradient_output is None:
        return None
    if gradient not in outputs:
        raise BadInput(f"the model has no output '{gradient}'; it has {', '.join(sorted(outputs))}.")
    inputs = ", ".join(seeds) or "none"
    raise BadInput(f"'{gradient}' is not a gradient: it needs its own input, a seed [N, classes], but has {inputs}.")


def without_gradient(model: onnx.ModelProto, gradient_output: str | None = None) -> onnx.ModelProto:
    """The classifier alone; a model without a gradient is returned unchanged."""
    names = gradient_names(model, gradient_output)
    if names is None:
        return model
    seed, gradient = names
    outputs = [value.name for value in model.graph.output if value.name != gradient]
    return edit.without_inputs(edit.with_outputs(model, outputs), [seed])


def with_standard_names(model: onnx.ModelProto, output: str, names: tuple[str, str]) -> onnx.ModelProto:
    """The vendor's scores and gradient under the names of our gradient files."""
    fresh = edit.with_outputs(model, [output, names[1]])
    renamed = dict(zip(names, (SEED, GRADIENT), strict=True))
    for node in fresh.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    for value in (*fresh.graph.input, *fresh.graph.output):
        value.name = renamed.get(value.name, value.name)
    return fresh
