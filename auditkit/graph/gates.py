"""Gates of a gradient in the form that CPUs run fastest.

A gradient goes on where a Relu let something through: Where(y > 0, g, 0). On a CPU a product with 0 or 1 takes a third
of that time, and 0 or 1 is what HardSigmoid makes of y when it is as steep as floats allow, subnormal ones aside. GPUs
do better with Where.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from auditkit.graph import edit
from auditkit.graph.gradient.builder import PREFIX

STEEP = float(np.float32(3e38))


def as_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the gates that a gradient added behind Relus as products; what is not ours stays as it is."""
    graph, made = model.graph, edit.producers(model.graph)
    zeros = {tensor.name for tensor in graph.initializer if _is_zero(tensor)}
    gates = {node.output[0]: made[node.input[0]].input[0] for node in graph.node if _is_gate(node, made, zeros)}
    if not gates:
        return model
    fresh, nodes = edit.copy(model), list[onnx.NodeProto]()
    for node in fresh.graph.node:
        name = node.output[0] if node.output else ""
        if name not in gates:
            nodes.append(node)
            continue
        opened = f"{name}/open"
        nodes.append(helper.make_node("HardSigmoid", [gates[name]], [opened], name=opened, alpha=STEEP, beta=0.0))
        nodes.append(helper.make_node("Mul", [node.input[1], opened], [name], name=name))
    del fresh.graph.node[:]
    fresh.graph.node.extend(nodes)
    return edit.with_outputs(fresh, [value.name for value in graph.output])  # the runtime keeps what nothing reads


def _is_zero(tensor: onnx.TensorProto) -> bool:
    """A zero of ours in float32: CPUs have no HardSigmoid of another type."""
    ours = tensor.name.startswith(PREFIX) and tensor.data_type == TensorProto.FLOAT and not tensor.dims
    return ours and not numpy_helper.to_array(tensor).any()


def _is_gate(node: onnx.NodeProto, made: dict[str, onnx.NodeProto], zeros: set[str]) -> bool:
    if node.op_type != "Where" or not node.output[0].startswith(PREFIX) or node.input[2] not in zeros:
        return False
    asked = made.get(node.input[0])
    if asked is None or asked.op_type != "Greater" or asked.input[1] not in zeros:
        return False
    read = made.get(asked.input[0])
    return read is not None and read.op_type == "Relu"
