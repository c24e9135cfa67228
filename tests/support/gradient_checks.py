"""A gradient graph beside finite differences in float64, for tests of rules."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from auditkit.arrays import Array
from auditkit.graph import edit, float_types
from auditkit.graph.gradient import Builder, backward
from auditkit.model.gradient import measured_facts
from auditkit.model.session import Session, Settings
from tests.support import onnx_models

CPU = Settings(device="cpu", threads=1)
NAMES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}


def joined(
    model: onnx.ModelProto, feeds: list[dict[str, Array]], wrt: str = "x", *, adds_in_order: bool = True
) -> onnx.ModelProto:
    """The model with 'seed' of the shape of its output, and 'gradient'."""
    facts = measured_facts(model, {}, feeds, Settings(device="cpu"))
    fresh = edit.copy(model)
    b = Builder(fresh.graph, facts, adds_in_order=adds_in_order)
    output = model.graph.output[0].name
    b.node("Identity", [backward(b, fresh.graph, {output: "seed"}, [wrt])[wrt]], "gradient")
    b.into(fresh.graph)
    fresh.graph.input.append(onnx_models.value("seed", None))
    fresh.graph.output.append(onnx_models.value("gradient", None))
    return fresh


def one_node(
    node: onnx.NodeProto, x: Array, weights: dict[str, Array] | None = None, opset: int = 18
) -> onnx.ModelProto:
    """A graph of one node (or of a few), from 'x' [N, ...] to 'y'."""
    nodes = node if isinstance(node, list) else [node]
    declared = onnx_models.value("x", ["N", *x.shape[1:]] if x.ndim else [], NAMES[x.dtype])
    return onnx_models.model(nodes, [declared], [onnx_models.value("y", None)], weights, opset=opset, ir_version=10)


def worst_error(model: onnx.ModelProto, x: Array, *, by_runtime: bool = False, fixed: bool = False) -> float:
    """The largest relative error of the gradient along a few directions, against central differences.

    Those are taken in float64 by onnx's own reference implementation; by the runtime in float32 where the reference
    does not know the operator.
    """
    rng = np.random.default_rng(0)
    graph = joined(model, [{"x": x}] if fixed or x.ndim < 2 else [{"x": x}, {"x": np.concatenate([x, x[:1]])}])
    session = Session(graph, CPU)
    y = Session(model, CPU).run({"x": x})[0]
    weight = rng.standard_normal(y.shape).astype(np.float32)
    gradient = session.run({"x": x, "seed": weight}, ["gradient"])[0].astype(np.float64)
    assert gradient.shape == x.shape
    if by_runtime:
        plain = Session(model, CPU)
        f = lambda at: (plain.run({"x": at.astype(np.float32)})[0].astype(np.float64) * weight).sum()  # noqa: E731
        h = 1e-2
    else:
        exact = ReferenceEvaluator(float_types.in_one_float(model, {}, TensorProto.DOUBLE)[0])
        f = lambda at: (exact.run(["y"], {"x": at})[0] * weight).sum()  # noqa: E731
        h = 1e-5
    errors = []
    for _ in range(4):
        u = rng.standard_normal(x.shape)
        slope = (gradient * u).sum()
        at = x.astype(np.float64)
        near, far = (f(at + k * h * u) - f(at - k * h * u) for k in (1, 2))
        found = (8 * near - far) / (12 * h)
        errors.append(abs(found - slope) / max(abs(found), np.linalg.norm(gradient), 1e-6))
    return max(errors)


def node(operator: str, *others: str, outputs: int = 1, **attributes: Any) -> onnx.NodeProto:
    """An operator on 'x' (and further operands) that gives 'y'."""
    names = ["y", *(f"y{index}" for index in range(2, outputs + 1))]
    operands = list(others) if "x" in others else ["x", *others]
    return helper.make_node(operator, operands, names, name="under_test", **attributes)
