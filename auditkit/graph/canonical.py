"""A vendor's graph prepared for use: for differentiation, functions inlined, a recent operator set and no branches;
for larger batches than it was exported for, Reshapes and Concats that follow the batch size of the input.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnx import defs, helper, inliner, numpy_helper, version_converter

from auditkit.arrays import Array
from auditkit.errors import NoGradient
from auditkit.graph import edit

# Operators that are replaced by their definition in the standard; CUDA has no kernel for most of them.
SPELLED_OUT = (
    "Attention", "Celu", "CenterCropPad", "GroupNormalization", "MeanVarianceNormalization", "Mish",
    "RMSNormalization", "RotaryEmbedding", "Swish",
)  # fmt: skip
OPSET = 18  # the first in which all reductions take their axes as an operand
_FIRST_OPSET_WITH_COORDINATES = 11  # a Resize could not choose its coordinates before
_LONGEST_REASON = 200  # characters of an error of onnx that are quoted


def spelled_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions of its own, and with compound operators replaced by their definitions."""
    model = edit.inlined(model)
    if not is_compound(model):
        return model
    fresh = edit.copy(model)
    for tensor in fresh.graph.initializer:  # otherwise the inliner does not know their types
        fresh.graph.value_info.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for node in fresh.graph.node:
        if _is_compound(node):  # some definitions read attributes that are missing, so write the defaults
            names = {attribute.name for attribute in node.attribute}
            schema = defs.get_schema(node.op_type, edit.opset(fresh)).attributes
            defaults = [attribute.default_value for name, attribute in schema.items() if name not in names]
            node.attribute.extend(default for default in defaults if default.name)
    functions = [("", operator) for operator in SPELLED_OUT]
    inlined = inliner.inline_selected_functions(fresh, functions, inline_schema_functions=True)
    del inlined.graph.value_info[:]
    return inlined


def is_compound(model: onnx.ModelProto) -> bool:
    """Whether a model has functions of its own or compound operators."""
    return bool(model.functions) or any(map(_is_compound, model.graph.node))


def _is_compound(node: onnx.NodeProto) -> bool:
    return node.op_type in SPELLED_OUT and node.domain in edit.STANDARD_DOMAINS


def raised(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in an operator set for which all rules hold."""
    opset = edit.opset(model)
    if opset >= OPSET:
        return model
    fresh = edit.copy(model)
    # Old files list weights as inputs; the runtime does not list those that it folds, and the converter misses them.
    edit.replace(fresh.graph.input, edit.real_inputs(fresh.graph))
    fresh.ir_version = max(fresh.ir_version, edit.FIRST_IR_WITH_CONSTANTS)
    try:
        fresh = version_converter.convert_version(fresh, OPSET)
    except (RuntimeError, ValueError, version_converter.ConvertError) as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        message = f"the model's operator set {opset} cannot be raised to {OPSET}, which gradients need ({reason})"
        raise NoGradient(message, ", or ask the vendor for a newer export") from None
    if opset < _FIRST_OPSET_WITH_COORDINATES:  # the converter ignores that a Resize had one meaning then
        for node in fresh.graph.node:
            if node.op_type == "Resize":
                fixed = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
                settings = {"mode": edit.attribute(node, "mode", "nearest")} | fixed
                edit.replace(node.attribute, [helper.make_attribute(*setting) for setting in settings.items()])
    return fresh


def resolved(model: onnx.ModelProto, conditions: Mapping[str, bool]) -> onnx.ModelProto:
    """The model with each If whose condition is known replaced by the branch that is taken."""
    fresh = edit.copy(model)
    nodes: list[onnx.NodeProto] = []
    for node in fresh.graph.node:
        if node.op_type == "If" and node.input[0] in conditions:
            branch = edit.attributes(node)["then_branch" if conditions[node.input[0]] else "else_branch"]
            nodes += _branch_nodes(branch, node.output)
            fresh.graph.initializer.extend(branch.initializer)
        else:
            nodes.append(node)
    edit.replace(fresh.graph.node, nodes)
    return fresh


def _branch_nodes(branch: onnx.GraphProto, outputs: Iterable[str]) -> Iterator[onnx.NodeProto]:
    """The nodes of a branch, with its outputs under the names of the If's."""
    renamed = dict(zip((value.name for value in branch.output), outputs, strict=True))
    computed = edit.producers(branch)
    for name, output in renamed.items():
        if name not in computed:  # the branch returns a tensor from outside
            yield helper.make_node("Identity", [name], [output])
    for node in branch.node:
        node.output[:] = [renamed.get(name, name) for name in node.output]
        node.input[:] = [renamed.get(name, name) if name in computed else name for name in node.input]
        yield node


def with_known(model: onnx.ModelProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with tensors of known values as constants, and without the nodes that computed them."""
    fresh = edit.copy(model)
    nodes = [node for node in fresh.graph.node if any(name and name not in values for name in node.output)]
    edit.replace(fresh.graph.node, nodes)
    constants = sorted(edit.names_read(*nodes) & values.keys() - edit.producers(fresh.graph).keys())
    fresh.graph.initializer.extend(numpy_helper.from_array(values[name], name) for name in constants)
    return edit.with_outputs(fresh)


def with_free_batch(
    model: onnx.ModelProto, input_name: str, fixed_batch: int, infer: edit.Infer = edit.inferred_types
) -> onnx.ModelProto:
    """The model with Reshapes and Concats of the image's features that follow the batch size of the input.

    A target such as [1, 197, 192] becomes [-1, 197, 192], and [1, -1] becomes [0, -1]; a constant that is concatenated
    to the features, such as a class token, is repeated for each image. Whether that suits this graph is not known here:
    the caller must compare rows before it trusts the result.
    """
    fresh = edit.copy(model)
    graph = fresh.graph
    features = edit.descendants(graph.node, [input_name])
    constants, b = edit.constant_tensors(graph), edit.Builder(graph)
    ranks = {name: len(tensor.shape.dim) for name, tensor in infer(fresh).items()}
    for node in graph.node:
        if node.op_type == "Reshape" and node.input[0] in features and node.input[1] in constants:
            _free_reshape(b, node, numpy_helper.to_array(constants[node.input[1]]).reshape(-1).tolist(), fixed_batch)
        if node.op_type == "Concat" and not features.isdisjoint(node.input):
            _repeat_tokens(b, node, features, ranks)
        b.nodes.append(node)
    del graph.node[:]
    b.into(graph)
    return fresh


def _free_reshape(b: edit.Builder, reshape: onnx.NodeProto, target: list[int], fixed_batch: int) -> None:
    """Leave the batch size in the target of a Reshape open, if it holds one."""
    if not target or target[0] <= 0 or target[0] % fixed_batch:
        return
    if -1 not in target:
        reshape.input[1] = b.constant([-1, *target[1:]])
    elif target[0] == fixed_batch:
        reshape.input[1] = b.constant([0, *target[1:]])
        # With allowzero, which torch always sets, 0 would not mean "as in the input".
        edit.replace(reshape.attribute, [entry for entry in reshape.attribute if entry.name != "allowzero"])


def _repeat_tokens(b: edit.Builder, concat: onnx.NodeProto, features: set[str], ranks: dict[str, int]) -> None:
    """Repeat constants of the export's batch size that a Concat joins to features of the image."""
    rank = next((ranks[name] for name in concat.input if ranks.get(name)), 0)
    if rank < 2 or edit.attribute(concat, "axis", 0) % rank == 0:
        return
    feature = next(name for name in concat.input if name in features)
    first, ones = b.constant([0]), b.constant(np.ones(rank - 1))
    for index, name in enumerate(concat.input):
        if name not in features:
            token = b.node("Gather", [name, first], axis=0)
            rows = b.node("Gather", [b.node("Shape", [feature]), first], axis=0)
            concat.input[index] = b.node("Expand", [token, b.node("Concat", [rows, ones], axis=0)])
