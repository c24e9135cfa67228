"""A vendor's graph made ready to be differentiated: operators spelled out, newest forms only, no branches."""

from collections.abc import Mapping

import onnx
from onnx import defs, helper, inliner, numpy_helper, version_converter

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph import edit

# Operators whose own definition in the standard is differentiated in their place; CUDA has no kernel for most of them.
SPELLED_OUT = (
    "Attention", "Celu", "CenterCropPad", "GroupNormalization", "MeanVarianceNormalization", "Mish",
    "RMSNormalization", "RotaryEmbedding", "Swish",
)  # fmt: skip
OPSET = 18  # from here on, axes are operands
FIRST_OPSET_WITH_COORDINATES = 11


def taking_floats(model: onnx.ModelProto, input_name: str) -> onnx.ModelProto:
    """The model with an image input of bytes declared float, so that it can be moved by fractions."""
    fresh = edit.copy(model)
    for value in fresh.graph.input:
        if value.name == input_name:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return fresh


def spelled_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions of its own, and with compound operators replaced by what they stand for."""
    if model.functions:
        model = inliner.inline_local_functions(model)
    if not any(node.op_type in SPELLED_OUT for node in model.graph.node):
        return model
    fresh = edit.copy(model)
    for tensor in fresh.graph.initializer:  # whose types the inliner would not know otherwise
        fresh.graph.value_info.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for node in fresh.graph.node:
        if node.op_type in SPELLED_OUT:
            _write_out_defaults(node, opset_of(fresh))
    wanted = [("", operator) for operator in SPELLED_OUT]
    inlined = inliner.inline_selected_functions(fresh, wanted, inline_schema_functions=True)
    del inlined.graph.value_info[:]
    return inlined


def _write_out_defaults(node: onnx.NodeProto, opset: int) -> None:
    """Attributes left out, which some definitions read without saying what they are then."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in defs.get_schema(node.op_type, opset).attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


def opset_of(model: onnx.ModelProto) -> int:
    """Version of the standard operators."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def raised(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in an operator set in which all rules hold."""
    opset = opset_of(model)
    if opset >= OPSET:
        return model
    try:
        fresh = version_converter.convert_version(model, OPSET)
    except (RuntimeError, ValueError, version_converter.ConvertError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(
            f"the model's operator set {opset} cannot be raised to {OPSET}, which gradients need ({reason}). "
            f"Use --gradient differences, or ask the vendor for a newer export."
        ) from None
    if opset < FIRST_OPSET_WITH_COORDINATES:  # the converter forgets that resizes had one meaning then
        for node in (node for node in fresh.graph.node if node.op_type == "Resize"):
            mode = next((a.s for a in node.attribute if a.name == "mode"), b"nearest")
            del node.attribute[:]
            settings = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            node.attribute.extend(helper.make_attribute(name, value) for name, value in settings.items())
    return fresh


def resolved(model: onnx.ModelProto, conditions: Mapping[str, bool]) -> onnx.ModelProto:
    """The model with each If whose condition is known replaced by the branch that is taken."""
    fresh = edit.copy(model)
    nodes: list[onnx.NodeProto] = []
    for node in fresh.graph.node:
        if node.op_type != "If" or node.input[0] not in conditions:
            nodes.append(node)
            continue
        wanted = "then_branch" if conditions[node.input[0]] else "else_branch"
        branch = next(attribute.g for attribute in node.attribute if attribute.name == wanted)
        renamed = dict(zip((value.name for value in branch.output), node.output, strict=True))
        made = edit.producers(branch)
        for name, wanted_name in renamed.items():
            if name not in made:  # a branch that hands on what it was given
                nodes.append(onnx.helper.make_node("Identity", [name], [wanted_name]))
        for inner in branch.node:
            inner.output[:] = [renamed.get(name, name) for name in inner.output]
            inner.input[:] = [renamed.get(name, name) if name in made else name for name in inner.input]
            nodes.append(inner)
        fresh.graph.initializer.extend(branch.initializer)
    del fresh.graph.node[:]
    fresh.graph.node.extend(nodes)
    return fresh


def with_known(model: onnx.ModelProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with tensors that are always the same as constants, and without what computed them."""
    fresh = edit.copy(model)
    nodes = [node for node in fresh.graph.node if any(name and name not in values for name in node.output)]
    made = {name for node in nodes for name in node.output}
    del fresh.graph.node[:]
    fresh.graph.node.extend(nodes)
    read = {name for node in nodes for name in edit.names_read(node)} - made
    fresh.graph.initializer.extend(numpy_helper.from_array(values[name], name) for name in sorted(read & values.keys()))
    return edit.with_outputs(fresh, [value.name for value in fresh.graph.output])
