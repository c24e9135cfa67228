"""A graph exported for one batch size, made to follow the batch size of its input."""

import numpy as np
import onnx
from onnx import numpy_helper

from auditkit.graph import edit
from auditkit.graph.edit import Builder


def with_free_batch(model: onnx.ModelProto, input_name: str, own_batch: int) -> onnx.ModelProto:
    """The model with Reshapes and Concats of the image's features that follow the batch size of the input.

    A target such as [1, 197, 192] becomes [-1, 197, 192], and [1, -1] becomes [0, -1]; a constant that is concatenated
    to the features, such as a class token, is repeated for each image. Whether that suits this graph is not known here:
    the caller must compare rows before it trusts the result.
    """
    fresh = edit.copy(model)
    graph = fresh.graph
    features = _descendants(graph, input_name)
    constants, ranks, b = edit.constant_tensors(graph), _ranks(fresh), Builder(graph)
    for node in graph.node:
        if node.op_type == "Reshape" and node.input[0] in features and node.input[1] in constants:
            _free_reshape(b, node, numpy_helper.to_array(constants[node.input[1]]).reshape(-1).tolist(), own_batch)
        if node.op_type == "Concat" and not features.isdisjoint(node.input):
            _repeat_tokens(b, node, features, ranks)
        b.nodes.append(node)
    del graph.node[:]
    b.into(graph)
    return fresh


def _descendants(graph: onnx.GraphProto, name: str) -> set[str]:
    descendants = {name}
    for node in graph.node:
        if descendants.intersection(node.input):
            descendants.update(node.output)
    return descendants


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    ranks = {name: len(tensor.shape.dim) for name, tensor in edit.inferred_types(model).items()}
    return ranks | {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}


def _free_reshape(b: Builder, reshape: onnx.NodeProto, target: list[int], own_batch: int) -> None:
    """Leave the batch size in the target of a Reshape open, if it holds one."""
    if not target or target[0] <= 0 or target[0] % own_batch:
        return
    if -1 not in target:
        reshape.input[1] = b.constant([-1, *target[1:]])
    elif target[0] == own_batch:
        reshape.input[1] = b.constant([0, *target[1:]])
        # With allowzero, which torch always sets, 0 would not mean "as in the input".
        edit.replace(reshape.attribute, [entry for entry in reshape.attribute if entry.name != "allowzero"])


def _repeat_tokens(b: Builder, concat: onnx.NodeProto, features: set[str], ranks: dict[str, int]) -> None:
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
