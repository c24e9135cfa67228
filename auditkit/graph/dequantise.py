"""A quantised graph without its rounding: what straight-through gradients are the gradients of.

Eight-bit numbers become the real numbers that they round. Saturation stays, since it does the work of a Relu where the
zero point lies at the lower bound:

    QuantizeLinear(x)       clip(x / scale + zero, lowest, highest)
    DequantizeLinear(q)     (q - zero) scale
    one after the other     clip(x, (lowest - zero) scale, (highest - zero) scale)

The other operators are first spelled out in terms of these. A range measured at run time rounds but never saturates,
so that DynamicQuantizeLinear(x) is x, with scale 1 and zero 0.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from auditkit.errors import BadInput
from auditkit.graph import build, edit

# Operators of quantised operands (x, scale, zero), ..., scale and zero of the result: what they compute in floats.
PLAIN = {
    "QLinearAdd": "Add", "QLinearMul": "Mul", "QLinearMatMul": "MatMul", "QLinearSigmoid": "Sigmoid",
    "QLinearLeakyRelu": "LeakyRelu", "QLinearSoftmax": "Softmax", "QLinearAveragePool": "AveragePool",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
}  # fmt: skip
NOT_OURS = ("channels_last", "opset")  # attributes that the float operators do not have
QUANTISED = frozenset(PLAIN) | {
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearConcat", "QGemm",
    "ConvInteger", "MatMulInteger",
}  # fmt: skip


# The lowest and the highest number of each kind.
LIMITS: dict[int, tuple[int, int]] = {
    TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15), TensorProto.INT8: (-128, 127), TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767), TensorProto.UINT16: (0, 65535),
}  # fmt: skip


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)


def is_quantised(model: onnx.ModelProto) -> bool:
    """Whether a graph computes with whole numbers in the place of real ones."""
    return any(node.op_type in QUANTISED for node in model.graph.node)


def rounds(model: onnx.ModelProto, input_name: str) -> bool:
    """Whether what is computed from the image is rounded on its way; rounded weights alone leave gradients exact."""
    reached = {input_name}
    for node in model.graph.node:
        if not reached.isdisjoint(node.input):
            if node.op_type in QUANTISED - {"DequantizeLinear"}:
                return True
            reached.update(node.output)
    return False


def dequantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in real numbers."""
    fresh = edit.copy(model)
    rewriting = _Rewriting(fresh)
    for node in fresh.graph.node:
        rewriting.take(node)
    del fresh.graph.node[:], fresh.graph.value_info[:]
    rewriting.into(fresh.graph)
    return fresh


class _Rewriting(build.Builder):
    """Nodes taken one by one, in order, and given on in real numbers."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model.graph, prefix="auditkit_real")
        inferred = shape_inference.infer_shapes(model).graph
        values = (*inferred.value_info, *inferred.input, *inferred.output)
        tensors = model.graph.initializer
        self.ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in values}
        self.ranks |= {tensor.name: len(tensor.dims) for tensor in tensors}
        self.kinds = {v.name: v.type.tensor_type.elem_type for v in values} | {t.name: t.data_type for t in tensors}
        self.known = {t.name: t for t in tensors if t.data_location == TensorProto.DEFAULT}
        self.known |= {n.output[0]: n.attribute[0].t for n in model.graph.node if edit.is_tensor_constant(n)}
        self.real: set[str] = set()  # tensors that held whole numbers
        self.rounded: dict[str, tuple[str, str, str]] = {}  # what a QuantizeLinear gave: its x, scale and zero
        self.forms: Mapping[str, Callable[[onnx.NodeProto], None]] = dict.fromkeys(PLAIN, self._plain) | {
            "QuantizeLinear": self._quantise, "DequantizeLinear": self._dequantise, "QLinearConv": self._conv,
            "DynamicQuantizeLinear": self._dynamic, "QLinearConcat": self._concat, "QGemm": self._gemm,
            "ConvInteger": self._integer, "MatMulInteger": self._integer,
        }  # fmt: skip

    def take(self, node: onnx.NodeProto) -> None:
        """Rewrite a node, or keep it."""
        self.forms.get(node.op_type, self._keep)(node)

    def _keep(self, node: onnx.NodeProto) -> None:
        """Other nodes compute with real numbers what they did with whole ones, and casts between those are none."""
        first = node.input[0] if node.input else ""
        if node.op_type == "Cast" and first in self.real:
            node = helper.make_node("Identity", [first], node.output, node.name)
        if node.op_type == "Identity":
            for table in (self.ranks, self.kinds, self.known, self.rounded):
                if first in table:
                    table[node.output[0]] = table[first]  # type: ignore[assignment]
        if self.real.intersection(node.input) and node.op_type != "Shape":
            self.real.update(node.output)
        self.nodes.append(node)

    def _make(self, operator: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """A node that may itself want rewriting."""
        output = output or self.name(operator.lower())
        self.take(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def _float(self, name: str) -> str:
        return self.node("Cast", [name], to=TensorProto.FLOAT)

    def _limits(self, kind: int) -> tuple[int, int]:
        """The lowest and the highest of so many bits."""
        if kind not in LIMITS:
            name = TensorProto.DataType.Name(kind).lower()
            raise BadInput(f"the model rounds to {name}, for which there is no gradient. Use --gradient differences.")
        return LIMITS[kind]

    def _placed(self, name: str, like: str, node: onnx.NodeProto) -> str:
        """A scale or zero point in float, along its axis where there is one for each channel."""
        real = self._float(name)
        if self.ranks.get(name, 0) == 0:
            return real
        axis, rank = _attribute(node, "axis", 1), self.ranks.get(like, 0)
        if not rank:
            raise BadInput(f"the number of axes of '{like}', which is rounded channel by channel, is not known.")
        behind = list(range(1, rank - axis % rank))
        return self.node("Unsqueeze", [real, self.constant(behind)]) if behind else real

    def _quantise(self, node: onnx.NodeProto) -> None:
        x, scale, zero = (*node.input, "")[:3]
        shifted = self.node("Div", [x, self._placed(scale, x, node)])
        if zero:
            shifted = self.node("Add", [shifted, self._placed(zero, x, node)])
        kind = self.kinds.get(zero) or _attribute(node, "output_dtype", 0) or TensorProto.UINT8
        bounds = [self.constant(bound, np.float32) for bound in self._limits(kind)]
        q = self.node("Clip", [shifted, *bounds], node.output[0])
        self.real.add(q)
        self.rounded[q] = (x, scale, zero)
        self.ranks[q], self.kinds[q] = self.ranks.get(x, 0), kind

    def _dequantise(self, node: onnx.NodeProto) -> None:
        q, scale, zero = (*node.input, "")[:3]
        if _attribute(node, "block_size", 0) and q not in self.real:  # weights, which need no gradient
            self.nodes.append(node)
            return
        x, own_scale, own_zero = self.rounded.get(q, ("", "", ""))
        if x and self._same(scale, own_scale) and self._same(zero, own_zero) and scale in self.known:
            self._clip(node, x, scale, zero, q)
            return
        shifted = self._float(q)
        if zero:
            shifted = self.node("Sub", [shifted, self._placed(zero, q, node)])
        self.node("Mul", [shifted, self._placed(scale, q, node)], node.output[0])
        self.ranks[node.output[0]] = self.ranks.get(q, 0)

    def _same(self, one: str, other: str) -> bool:
        """Whether two scales are the same number; channel by channel the bounds are better left where they are."""
        if one not in self.known or other not in self.known:
            return one == other == ""
        pair = [numpy_helper.to_array(self.known[name]) for name in (one, other)]
        return pair[0].size == pair[1].size == 1 and bool(pair[0] == pair[1])

    def _clip(self, node: onnx.NodeProto, x: str, scale: str, zero: str, q: str) -> None:
        step = float(numpy_helper.to_array(self.known[scale]).reshape(()))
        middle = float(numpy_helper.to_array(self.known[zero]).reshape(())) if zero else 0.0
        bounds = [self.constant((bound - middle) * step, np.float32) for bound in self._limits(self.kinds[q])]
        self.node("Clip", [x, *bounds], node.output[0])
        self.ranks[node.output[0]] = self.ranks.get(q, 0)

    def _dynamic(self, node: onnx.NodeProto) -> None:
        self.node("Identity", [node.input[0]], node.output[0])
        for name, number in zip(node.output[1:], (1.0, 0.0), strict=False):
            self.node("Identity", [self.constant(number, np.float32)], name)

    def _real(self, triple: list[str]) -> str:
        return self._make("DequantizeLinear", [name for name in triple if name])

    def _kept(self, node: onnx.NodeProto) -> dict[str, Any]:
        return {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name not in NOT_OURS}

    def _requantised(self, operator: str, inputs: list[str], node: onnx.NodeProto, scale: str, zero: str) -> None:
        """The float operator, and its result quantised under the name it had."""
        result = self._make(operator, inputs, **self._kept(node))
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
        weight = self._make("DequantizeLinear", names[3:6], axis=0 if _attribute(node, "transB", 0) else 1)
        operands = [self._real(names[:3]), weight, *self._bias(names[6:7], names[1], names[4])]
        if names[7]:
            self._requantised("Gemm", operands, node, names[7], names[8])
        else:
            self._make("Gemm", operands, node.output[0], **self._kept(node))

    def _bias(self, names: Any, x_scale: str, w_scale: str) -> list[str]:
        """A bias counts in steps of both scales together."""
        if not any(names):
            return []
        return [self.node("Mul", [self._float(names[0]), self.node("Mul", [x_scale, w_scale])])]

    def _integer(self, node: onnx.NodeProto) -> None:
        """ConvInteger and MatMulInteger: the float operator on shifted whole numbers."""
        operands = [self._float(name) for name in node.input[:2]]
        for place, zero in enumerate(node.input[2:4]):
            if zero:
                operands[place] = self.node("Sub", [operands[place], self._float(zero)])
        self.node(node.op_type.removesuffix("Integer"), operands, node.output[0], **self._kept(node))
