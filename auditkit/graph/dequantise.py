"""A quantised graph without its rounding: straight-through gradients are the gradients of this graph.

Quantised numbers become the real numbers that they round. Saturation stays, since it does the work of a Relu where the
zero point is the lower bound:

    QuantizeLinear(x)       clip(x / scale + zero, lowest, highest)
    DequantizeLinear(q)     (q - zero) scale
    both in sequence        clip(x, (lowest - zero) scale, (highest - zero) scale)

Other operators are first expressed in terms of these. A range that is measured at run time rounds but never saturates,
so DynamicQuantizeLinear(x) is x, with scale 1 and zero 0.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from auditkit.errors import NoGradient
from auditkit.graph import edit

# The float operators of those that take quantised operands (x, scale, zero), ..., and the scale and zero of the result.
PLAIN = {
    "QLinearAdd": "Add", "QLinearMul": "Mul", "QLinearMatMul": "MatMul", "QLinearSigmoid": "Sigmoid",
    "QLinearLeakyRelu": "LeakyRelu", "QLinearSoftmax": "Softmax", "QLinearAveragePool": "AveragePool",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
}  # fmt: skip
_EXTRA_ATTRIBUTES = ("channels_last", "opset")  # the float operators do not have them
# The lowest and the highest number of each type.
LIMITS: dict[int, tuple[int, int]] = {
    TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15), TensorProto.INT8: (-128, 127), TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767), TensorProto.UINT16: (0, 65535),
}  # fmt: skip


def is_quantised(model: onnx.ModelProto) -> bool:
    """Whether a graph computes with quantised numbers."""
    return any(node.op_type in QUANTISED for node in model.graph.node)


def rounds(model: onnx.ModelProto, input_name: str) -> bool:
    """Whether features of the image are rounded; with rounded weights alone gradients are exact."""
    features = edit.descendants(model.graph.node, [input_name])
    rounding = QUANTISED - {"DequantizeLinear"}
    return any(node.op_type in rounding and not features.isdisjoint(node.output) for node in model.graph.node)


def dequantised(model: onnx.ModelProto, infer: edit.Infer = edit.inferred_types) -> onnx.ModelProto:
    """The model in real numbers."""
    fresh = edit.copy(model)
    rewriter = _Rewriter(fresh, infer(model))
    for node in fresh.graph.node:
        rewriter.rewrite(node)
    del fresh.graph.node[:], fresh.graph.value_info[:]
    rewriter.into(fresh.graph)
    return fresh


class _Rewriter(edit.Builder):
    """Rewrites nodes in order, from quantised to real numbers."""

    def __init__(self, model: onnx.ModelProto, types: edit.Types) -> None:
        super().__init__(model.graph, prefix="auditkit_real")
        self.ranks = {name: len(tensor.shape.dim) for name, tensor in types.items()}
        self.kinds = {name: tensor.elem_type for name, tensor in types.items()}
        self.tensors = edit.constant_tensors(model.graph)
        self.real: set[str] = set()  # tensors that held quantised numbers
        self.rounded: dict[str, tuple[str, str, str]] = {}  # x, scale and zero of the result of a QuantizeLinear

    def rewrite(self, node: onnx.NodeProto) -> None:
        """Rewrite a node, or keep it."""
        _REWRITES.get(node.op_type, _Rewriter._keep)(self, node)

    def _keep(self, node: onnx.NodeProto) -> None:
        """Keep a node that computes the same with real numbers; a Cast of quantised numbers becomes Identity."""
        first = node.input[0] if node.input else ""
        if node.op_type == "Cast" and first in self.real:
            node = helper.make_node("Identity", [first], node.output, node.name)
        if node.op_type == "Identity":
            for table in (self.ranks, self.kinds, self.tensors, self.rounded):
                if first in table:
                    table[node.output[0]] = table[first]  # type: ignore[assignment]
        if self.real.intersection(node.input) and node.op_type != "Shape":
            self.real.update(node.output)
        self.nodes.append(node)

    def _make(self, operator: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """A new node, which may need rewriting itself."""
        output = output or self.name(operator.lower())
        self.rewrite(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def _float(self, name: str) -> str:
        return self.node("Cast", [name], to=TensorProto.FLOAT)

    def _limits(self, kind: int) -> tuple[int, int]:
        """The lowest and the highest number of a type."""
        if kind not in LIMITS:
            name = TensorProto.DataType.Name(kind).lower()
            raise NoGradient(f"the model rounds to {name}, for which there is no gradient")
        return LIMITS[kind]

    def _broadcastable(self, name: str, like: str, node: onnx.NodeProto) -> str:
        """A scale or zero point in float; if there is one per channel, along the channels' axis."""
        real = self._float(name)
        if self.ranks.get(name, 0) == 0:
            return real
        axis, rank = edit.attribute(node, "axis", 1), self.ranks.get(like, 0)
        if not rank:
            raise NoGradient(f"'{like}' is quantised per channel, and its rank is unknown")
        later_axes = list(range(1, rank - axis % rank))
        return self.node("Unsqueeze", [real, self.constant(later_axes)]) if later_axes else real

    def _quantise(self, node: onnx.NodeProto) -> None:
        x, scale, zero = (*node.input, "")[:3]
        shifted = self.node("Div", [x, self._broadcastable(scale, x, node)])
        if zero:
            shifted = self.node("Add", [shifted, self._broadcastable(zero, x, node)])
        kind = self.kinds.get(zero) or edit.attribute(node, "output_dtype", 0) or TensorProto.UINT8
        bounds = [self.constant(bound, np.float32) for bound in self._limits(kind)]
        q = self.node("Clip", [shifted, *bounds], node.output[0])
        self.real.add(q)
        self.rounded[q] = (x, scale, zero)
        self.ranks[q], self.kinds[q] = self.ranks.get(x, 0), kind

    def _dequantise(self, node: onnx.NodeProto) -> None:
        q, scale, zero = (*node.input, "")[:3]
        if edit.attribute(node, "block_size", 0) and q not in self.real:  # weights, which need no gradient
            self.nodes.append(node)
            return
        x, q_scale, q_zero = self.rounded.get(q, ("", "", ""))
        if x and self._are_equal(scale, q_scale) and self._are_equal(zero, q_zero) and scale in self.tensors:
            step = float(numpy_helper.to_array(self.tensors[scale]).reshape(()))
            middle = float(numpy_helper.to_array(self.tensors[zero]).reshape(())) if zero else 0.0
            bounds = [self.constant((bound - middle) * step, np.float32) for bound in self._limits(self.kinds[q])]
            self.node("Clip", [x, *bounds], node.output[0])
        else:
            shifted = self._float(q)
            if zero:
                shifted = self.node("Sub", [shifted, self._broadcastable(zero, q, node)])
            self.node("Mul", [shifted, self._broadcastable(scale, q, node)], node.output[0])
        self.ranks[node.output[0]] = self.ranks.get(q, 0)

    def _are_equal(self, first: str, second: str) -> bool:
        """Whether two scales are the same single number; per channel, bounds are better left where they are."""
        if first not in self.tensors or second not in self.tensors:
            return first == second == ""
        pair = [numpy_helper.to_array(self.tensors[name]) for name in (first, second)]
        return pair[0].size == pair[1].size == 1 and bool(pair[0] == pair[1])

    def _dynamic(self, node: onnx.NodeProto) -> None:
        self.node("Identity", [node.input[0]], node.output[0])
        for name, number in zip(node.output[1:], (1.0, 0.0), strict=False):
            self.node("Identity", [self.constant(number, np.float32)], name)

    def _real(self, triple: list[str]) -> str:
        return self._make("DequantizeLinear", [name for name in triple if name])

    def _float_attributes(self, node: onnx.NodeProto) -> dict[str, Any]:
        return {name: value for name, value in edit.attributes(node).items() if name not in _EXTRA_ATTRIBUTES}

    def _requantised(self, operator: str, inputs: list[str], node: onnx.NodeProto, scale: str, zero: str) -> None:
        """The float operator, with its result quantised under the old name."""
        result = self._make(operator, inputs, **self._float_attributes(node))
        self._make("QuantizeLinear", [result, scale, *([zero] if zero else [])], node.output[0])

    def _plain(self, node: onnx.NodeProto) -> None:
        names = list(node.input)
        count = 2 if PLAIN[node.op_type] in ("Add", "Mul", "MatMul") else 1
        operands = [self._real(names[3 * i : 3 * i + 3]) for i in range(count)]
        scale, zero = (*names[3 * count :], "", "")[:2]
        self._requantised(PLAIN[node.op_type], operands, node, scale, zero)

    def _concat(self, node: onnx.NodeProto) -> None:
        scale, zero, *names = node.input
        parts = [self._real(names[i : i + 3]) for i in range(0, len(names), 3)]
        self._requantised("Concat", parts, node, scale, zero)

    def _conv(self, node: onnx.NodeProto) -> None:
        x, w = list(node.input[:3]), list(node.input[3:6])
        weight = self._make("DequantizeLinear", w, axis=0)
        operands = [self._real(x), weight, *self._bias(node.input[8:9], x[1], w[1])]
        self._requantised("Conv", operands, node, node.input[6], node.input[7])

    def _gemm(self, node: onnx.NodeProto) -> None:
        names = [*node.input, "", "", ""]
        weight = self._make("DequantizeLinear", names[3:6], axis=0 if edit.attribute(node, "transB", 0) else 1)
        operands = [self._real(names[:3]), weight, *self._bias(names[6:7], names[1], names[4])]
        if names[7]:
            self._requantised("Gemm", operands, node, names[7], names[8])
        else:
            self._make("Gemm", operands, node.output[0], **self._float_attributes(node))

    def _matmul_of_real(self, node: onnx.NodeProto) -> None:
        """DynamicQuantizeMatMul and MatMulIntegerToFloat: a product in real numbers."""
        names = [*node.input, "", "", ""]
        if node.op_type == "DynamicQuantizeMatMul":
            x, weight, bias = names[0], [names[1], names[2], names[3]], names[4]
        else:
            x, weight, bias = self._real([names[0], names[2], names[4]]), [names[1], names[3], names[5]], names[6]
        operands = [x, self._make("DequantizeLinear", [name for name in weight if name], axis=-1)]
        product = self.node("MatMul", operands, None if bias else node.output[0])
        if bias:
            self.node("Add", [product, bias], node.output[0])

    def _bias(self, names: Sequence[str], x_scale: str, w_scale: str) -> list[str]:
        """A bias in float; its scale is the product of both scales."""
        if not any(names):
            return []
        return [self.node("Mul", [self._float(names[0]), self.node("Mul", [x_scale, w_scale])])]

    def _integer(self, node: onnx.NodeProto) -> None:
        """ConvInteger and MatMulInteger: the float operator on operands less their zero points."""
        operands = [self._float(name) for name in node.input[:2]]
        for index, zero in enumerate(node.input[2:4]):
            if zero:
                operands[index] = self.node("Sub", [operands[index], self._float(zero)])
        self.node(node.op_type.removesuffix("Integer"), operands, node.output[0], **self._float_attributes(node))


_REWRITES: Mapping[str, Callable[[_Rewriter, onnx.NodeProto], None]] = dict.fromkeys(PLAIN, _Rewriter._plain) | {
    "QuantizeLinear": _Rewriter._quantise, "DequantizeLinear": _Rewriter._dequantise, "QLinearConv": _Rewriter._conv,
    "DynamicQuantizeLinear": _Rewriter._dynamic, "QLinearConcat": _Rewriter._concat, "QGemm": _Rewriter._gemm,
    "ConvInteger": _Rewriter._integer, "MatMulInteger": _Rewriter._integer,
    "DynamicQuantizeMatMul": _Rewriter._matmul_of_real, "MatMulIntegerToFloat": _Rewriter._matmul_of_real,
}  # fmt: skip
QUANTISED = frozenset(_REWRITES)
