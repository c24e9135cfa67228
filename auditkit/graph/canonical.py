"""A vendor's graph prepared for differentiation: functions inlined, a recent operator set, no branches."""

from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import defs, helper, inliner, numpy_helper, version_converter

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph import edit

# Operators that are replaced by their definition in the standard; CUDA has no kernel for most of them.
SPELLED_OUT = (
    "Attention", "Celu", "CenterCropPad", "GroupNormalization", "MeanVarianceNormalization", "Mish",
    "RMSNormalization", "RotaryEmbedding", "Swish",
)  # fmt: skip
_OPSET = 18  # the first in which all reductions take their axes as an operand
_FIRST_OPSET_WITH_COORDINATES = 11  # a Resize could not choose its coordinates before
_LONGEST_REASON = 200  # characters of an error of onnx that are quoted


def taking_floats(model: onnx.ModelProto, input_name: str) -> onnx.ModelProto:
    """The model with an image input of bytes declared float, so that fractions can be added to it."""
    return edit.with_input_type(model, input_name, onnx.TensorProto.FLOAT)


def spelled_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions of its own, and with compound operators replaced by their definitions."""
    model = edit.inlined(model)
    if not any(node.op_type in SPELLED_OUT for node in model.graph.node):
        return model
    fresh = edit.copy(model)
    for tensor in fresh.graph.initializer:  # otherwise the inliner does not know their types
        fresh.graph.value_info.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for node in fresh.graph.node:
        if node.op_type in SPELLED_OUT:
            _write_defaults(node, edit.opset(fresh))
    functions = [("", operator) for operator in SPELLED_OUT]
    inlined = inliner.inline_selected_functions(fresh, functions, inline_schema_functions=True)
    del inlined.graph.value_info[:]
    return inlined


def _write_defaults(node: onnx.NodeProto, opset: int) -> None:
    """Write out the defaults of missing attributes, which some definitions read."""
    names = {attribute.name for attribute in node.attribute}
    for name, attribute in defs.get_schema(node.op_type, opset).attributes.items():
        if name not in names and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


def raised(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in an operator set for which all rules hold."""
    opset = edit.opset(model)
    if opset >= _OPSET:
        return model
    try:
        fresh = version_converter.convert_version(model, _OPSET)
    except (RuntimeError, ValueError, version_converter.ConvertError) as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise BadInput(
            f"the model's operator set {opset} cannot be raised to {_OPSET}, which gradients need ({reason}). "
            f"Use --gradient differences, or ask the vendor for a newer export."
        ) from None
    if opset < _FIRST_OPSET_WITH_COORDINATES:  # the converter ignores that a Resize had one meaning then
        for node in fresh.graph.node:
            if node.op_type == "Resize":
                _write_old_coordinates(node)
    return fresh


def _write_old_coordinates(resize: onnx.NodeProto) -> None:
    mode = edit.attribute(resize, "mode", "nearest")
    settings = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    edit.replace(resize.attribute, [helper.make_attribute(name, value) for name, value in settings.items()])


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
    return edit.with_outputs(fresh, [value.name for value in fresh.graph.output])
