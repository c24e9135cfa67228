"""Passes of onnx over a graph, in the worker of its model: nothing interrupts their C++ code."""

from collections.abc import Callable
from functools import partial

import onnx
from google.protobuf.message import DecodeError
from onnx import shape_inference

from auditkit.arrays import Weights
from auditkit.errors import AuditError, LoadFailure, RuntimeFailure
from auditkit.graph import canonical, edit, float_types
from auditkit.model.session import Settings, resolved

_ROOM = 2**26  # bytes by which a graph may grow in a pass, besides doubling
_LONGEST_REASON = 200  # characters of an error of onnx that are quoted


def inlined(model: onnx.ModelProto, settings: Settings) -> onnx.ModelProto:
    """The model without functions of its own."""
    return _passed("inlined", model, settings) if model.functions else model


def spelled_out(model: onnx.ModelProto, settings: Settings) -> onnx.ModelProto:
    """The same, and with compound operators replaced by their definitions."""
    return _passed("spelled_out", model, settings) if canonical.is_compound(model) else model


def raised(model: onnx.ModelProto, settings: Settings) -> onnx.ModelProto:
    """The model in an operator set for which all rules hold."""
    return _passed("raised", model, settings) if edit.opset(model) < canonical.OPSET else model


def with_types(model: onnx.ModelProto, settings: Settings) -> onnx.ModelProto:
    """An outline of the model, without its large weights, with all types that can be inferred."""
    return _passed("with_types", edit.outline(model), settings)


def infer(settings: Settings) -> edit.Infer:
    """What infers the types of a model's tensors."""
    return partial(_inferred, settings)


def _inferred(settings: Settings, model: onnx.ModelProto) -> edit.Types:
    return edit.declared_types(with_types(model, settings).graph)


def in_precision(
    model: onnx.ModelProto,
    weights: Weights,
    settings: Settings,
) -> tuple[onnx.ModelProto, Weights]:
    """The graph and its weights in the precision asked for; inputs and outputs stay in float32."""
    if resolved(settings).precision != "float16":
        return model, weights
    return float_types.to_float16(inlined(model, settings), weights, infer(settings))


def _passed(name: str, model: onnx.ModelProto, settings: Settings) -> onnx.ModelProto:
    content = model.SerializeToString()
    if settings.worker is None:
        result = run(name, content)
    else:
        result = settings.worker.call("run_pass", name, content, most=2 * len(content) + _ROOM)
    fresh = onnx.ModelProto()
    try:
        fresh.ParseFromString(result)
    except (DecodeError, TypeError):
        raise RuntimeFailure("the worker returned something that is no graph.") from None
    return fresh


def run(name: str, content: bytes) -> bytes:
    """The serialised graph after a pass."""
    model = onnx.ModelProto()
    model.ParseFromString(content)
    try:
        return bytes(_PASSES[name](model).SerializeToString())
    except (AuditError, MemoryError):
        raise
    except Exception as error:  # onnx has many kinds, and its C++ code raises others
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise LoadFailure(f"onnx cannot take the graph apart: {reason}") from None


_PASSES: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "inlined": edit.inlined,
    "spelled_out": canonical.spelled_out,
    "raised": canonical.raised,
    "with_types": shape_inference.infer_shapes,
}
