"""Operators that onnxruntime writes into the files that it optimises, spelled out into those of the standard.

    FusedConv, FusedGemm             the operator, a summand, an activation
    FusedMatMul                      alpha · Aᵀ Bᵀ, each transposed or not
    BiasGelu, Gelu                   x Φ(x), with x = input + bias
    FastGelu                         the same with tanh in place of the normal distribution Φ
    QuickGelu                        x sigmoid(αx)
    SkipLayerNormalization           LayerNormalization(input + skip + bias); "Simplified" ones do not subtract the mean
    NhwcMaxPool, channels_last=1     the operator between two Transposes

Files of the highest level are laid out for the processor of one machine; they are refused by name.
"""

from collections.abc import Callable, Mapping
from math import pi, sqrt
from typing import Any

import numpy as np
import onnx

from auditkit.errors import NoGradient
from auditkit.graph import edit

_DOMAIN, _MACHINE_BOUND = "com.microsoft", "com.microsoft.nchwc"
_FIRST_WITH_LAYER_NORM, _FIRST_WITH_CLIP_OPERANDS, _FIRST_WITH_AXES_OPERAND = 17, 11, 18  # operator sets
# What the numbers in `activation_params` are called by the operator itself.
_PARAMETERS = {"LeakyRelu": ("alpha",), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max")}
Ranks = Mapping[str, int]


def is_fused(node: onnx.NodeProto, opset: int) -> bool:
    """Whether a node is one that `spelled_out` rewrites."""
    return _rewrite(node, opset) is not None


def refuse_machine_bound(model: onnx.ModelProto) -> None:
    """Refuse a graph whose tensors are laid out for the processor of one machine."""
    nodes = [node for node in model.graph.node if node.domain == _MACHINE_BOUND]
    if nodes:
        names = f"{len(nodes)} node{'s' * (len(nodes) > 1)} of {_MACHINE_BOUND}, first '{nodes[0].name}'"
        reason = f"onnxruntime laid the file out for the processor of one machine ({names}), which leaves no gradient"
        raise NoGradient(reason, ", or ask the vendor for the file before onnxruntime optimised it at its level 'all'")


def spelled_out(model: onnx.ModelProto, ranks: Ranks) -> onnx.ModelProto:
    """The model in operators of the standard; `ranks` are the numbers of axes of its tensors."""
    fresh = edit.copy(model)
    b = _Speller(fresh.graph, edit.opset(fresh), ranks)
    for node in fresh.graph.node:
        b.spell(node)
    del fresh.graph.node[:], fresh.graph.value_info[:]
    b.into(fresh.graph)
    return fresh


def _rewrite(node: onnx.NodeProto, opset: int) -> "_Rewrite | None":
    if node.domain in edit.STANDARD_DOMAINS:
        unknown = node.op_type != "LayerNormalization" or opset < _FIRST_WITH_LAYER_NORM  # to the standard
        return _NORMALISATIONS.get(node.op_type) if unknown else None
    if node.domain != _DOMAIN:
        return None
    if node.op_type.startswith("Nhwc") or edit.attribute(node, "channels_last", 0):
        return _Speller.with_channels_first
    return (_FUSED | _NORMALISATIONS).get(node.op_type)


class _Speller(edit.Builder):
    """Rewrites nodes in order."""

    def __init__(self, graph: onnx.GraphProto, opset: int, ranks: Ranks) -> None:
        super().__init__(graph, prefix="auditkit_plain")
        self.opset, self.ranks = opset, ranks

    def spell(self, node: onnx.NodeProto) -> None:
        """Rewrite a node, or keep it."""
        rewrite = _rewrite(node, self.opset)
        if rewrite is None:
            self.nodes.append(node)
        else:
            rewrite(self, node)

    def _number(self, value: float) -> str:
        return self.constant(value, np.float32)

    def _sum(self, *names: str) -> str:
        total, *rest = filter(None, names)
        for name in rest:
            total = self.node("Add", [total, name])
        return total

    def _transposed(self, name: str, order: list[int], output: str | None = None) -> str:
        return self.node("Transpose", [name], output, perm=order)

    def with_channels_first(self, node: onnx.NodeProto) -> None:
        """The same operator on [N, channels, ...]; FusedConv's summand has the channels last, too."""
        last = self.ranks[node.input[0]] - 1
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        plain.op_type = node.op_type.removeprefix("Nhwc")
        plain.domain = "" if plain.op_type in ("QLinearConv", "MaxPool") else _DOMAIN
        for index in (0, 3) if plain.op_type == "FusedConv" else (0,):
            if len(node.input) > index:
                plain.input[index] = self._transposed(node.input[index], [0, last, *range(1, last)])
        plain.output[0] = self.name("channels_first")
        edit.replace(plain.attribute, [entry for entry in node.attribute if entry.name != "channels_last"])
        self.spell(plain)
        self._transposed(plain.output[0], [0, *range(2, last + 1), 1], node.output[0])

    def conv(self, node: onnx.NodeProto) -> None:
        """FusedConv."""
        x, weight, bias, summand = (*node.input, "", "")[:4]
        attributes = edit.attributes(node)
        operator, numbers = attributes.pop("activation", "Identity"), attributes.pop("activation_params", [])
        y = self.node("Conv", [x, weight, *([bias] if bias else [])], **attributes)
        parameters = dict(zip(_PARAMETERS.get(operator, ()), numbers, strict=False))
        self._activate(operator, self._sum(y, summand), parameters, node.output[0])

    def gemm(self, node: onnx.NodeProto) -> None:
        """FusedGemm."""
        attributes = edit.attributes(node)
        operator = attributes.pop("activation", "Identity")
        names = [name for name in attributes if name.startswith("activation_")]
        parameters = {name.removeprefix("activation_"): attributes.pop(name) for name in names}
        self._activate(operator, self.node("Gemm", list(node.input), **attributes), parameters, node.output[0])

    def _activate(self, operator: str, x: str, parameters: dict[str, Any], output: str) -> None:
        operands: list[str] = []
        if operator == "Clip" and self.opset >= _FIRST_WITH_CLIP_OPERANDS:
            operands = [self._number(parameters.pop(name)) for name in _PARAMETERS["Clip"]]
        self.node(operator, [x, *operands], output, **parameters)

    def matmul(self, node: onnx.NodeProto) -> None:
        """FusedMatMul."""
        operands = []
        for name, side in zip(node.input, "AB", strict=True):
            order = list(range(self.ranks[name]))
            if edit.attribute(node, f"transBatch{side}", 0):
                order = [*order[1:-1], 0, order[-1]]
            if edit.attribute(node, f"trans{side}", 0):
                order[-2:] = reversed(order[-2:])
            operands.append(name if order == sorted(order) else self._transposed(name, order))
        product, factor = self.node("MatMul", operands), self._number(edit.attribute(node, "alpha", 1.0))
        self.node("Mul", [product, factor], node.output[0])

    def gelu(self, node: onnx.NodeProto) -> None:
        """BiasGelu, Gelu: x (1 + erf(x / √2)) / 2."""
        x = self._sum(*node.input)
        self._gated(x, self.node("Erf", [self.node("Mul", [x, self._number(sqrt(0.5))])]), node.output[0])

    def fast_gelu(self, node: onnx.NodeProto) -> None:
        """FastGelu: x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2."""
        x = self._sum(*node.input)
        cube = self.node("Mul", [self.node("Mul", [x, x]), x])
        inner = self._sum(x, self.node("Mul", [cube, self._number(0.044715)]))
        self._gated(x, self.node("Tanh", [self.node("Mul", [inner, self._number(sqrt(2 / pi))])]), node.output[0])

    def _gated(self, x: str, gate: str, output: str) -> None:
        half = self.node("Mul", [x, self._number(0.5)])
        self.node("Mul", [half, self._sum(gate, self._number(1.0))], output)

    def quick_gelu(self, node: onnx.NodeProto) -> None:
        """QuickGelu."""
        scaled = self.node("Mul", [node.input[0], self._number(edit.attribute(node, "alpha", 1.702))])
        self.node("Mul", [node.input[0], self.node("Sigmoid", [scaled])], node.output[0])

    def normalisation(self, node: onnx.NodeProto) -> None:
        """LayerNormalization and SimplifiedLayerNormalization."""
        x, *affine = filter(None, node.input)
        self._normalise(node, x, affine)

    def skip_normalisation(self, node: onnx.NodeProto) -> None:
        """SkipLayerNormalization and its simplified form, which has no beta; their fourth output is the sum."""
        names = [*node.input, "", ""]
        bias = 3 if "Simplified" in node.op_type else 4
        total = self._sum(*names[:2], names[bias])
        if len(node.output) > 3 and node.output[3]:
            self.node("Identity", [total], node.output[3])
        self._normalise(node, total, [name for name in names[2:bias] if name])

    def _normalise(self, node: onnx.NodeProto, x: str, affine: list[str]) -> None:
        """x, less its mean unless the form is simplified, over its spread; times gamma, plus beta."""
        rank = self.ranks[node.input[0]]
        axes = list(range(edit.attribute(node, "axis", -1) % rank, rank))
        if "Simplified" not in node.op_type:
            x = self.node("Sub", [x, self._mean(x, axes)])
        epsilon = self._number(edit.attribute(node, "epsilon", 1e-5))
        variance = self._mean(self.node("Mul", [x, x]), axes)
        x = self.node("Div", [x, self.node("Sqrt", [self._sum(variance, epsilon)])])
        for operator, name in zip(("Mul", "Add"), affine, strict=False):
            x = self.node(operator, [x, name])
        self.node("Identity", [x], node.output[0])

    def _mean(self, x: str, axes: list[int]) -> str:
        if self.opset < _FIRST_WITH_AXES_OPERAND:
            return self.node("ReduceMean", [x], axes=axes)
        return self.node("ReduceMean", [x, self.constant(axes)])


_Rewrite = Callable[[_Speller, onnx.NodeProto], None]
_FUSED: dict[str, _Rewrite] = {
    "FusedConv": _Speller.conv, "FusedGemm": _Speller.gemm, "FusedMatMul": _Speller.matmul, "Gelu": _Speller.gelu,
    "BiasGelu": _Speller.gelu, "FastGelu": _Speller.fast_gelu, "QuickGelu": _Speller.quick_gelu,
    "SkipLayerNormalization": _Speller.skip_normalisation,
    "SkipSimplifiedLayerNormalization": _Speller.skip_normalisation,
}  # fmt: skip
_NORMALISATIONS: dict[str, _Rewrite] = dict.fromkeys(
    ("LayerNormalization", "SimplifiedLayerNormalization"), _Speller.normalisation
)
