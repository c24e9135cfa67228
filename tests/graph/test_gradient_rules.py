"""Every rule against finite differences: one small graph each, with the corners of its attributes."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from auditkit.arrays import Array
from auditkit.graph.gradient import RULES
from auditkit.model.session import Session
from tests.support import onnx_models
from tests.support.gradient_checks import CPU, joined, node, one_node, worst_error

TOLERANCE = {"reference": 1e-5, "runtime": 3e-4}  # differences in float64, in float32
rng = np.random.default_rng(7)


def normal(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return rng.uniform(0.5, 2, shape).astype(np.float32)


def inside(*shape: int) -> Array:
    return rng.uniform(-0.8, 0.8, shape).astype(np.float32)


def distinct(*shape: int) -> Array:
    """Numbers far enough from each other and from 0 for no difference to cross a kink."""
    size = int(np.prod(shape))
    return ((rng.permutation(size) - size / 2 + 0.3) * 0.1).astype(np.float32).reshape(shape)


def off_zero(*shape: int) -> Array:
    return positive(*shape) * rng.choice([-1, 1], shape).astype(np.float32)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def floats(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


Case = tuple[onnx.NodeProto, Array, dict[str, Array], dict[str, Any]]
CASES: dict[str, Case] = {}


def case(label: str, tested: onnx.NodeProto, x: Array, weights: dict[str, Array] | None = None, **how: Any) -> None:
    key = f"{tested.op_type} {label}".strip()
    assert key not in CASES, key
    CASES[key] = (tested, x, weights or {}, how)


# Elementwise

for name in ("Relu", "LeakyRelu", "Elu", "Selu", "Abs", "Softsign", "HardSwish", "ThresholdedRelu"):
    case("", node(name), distinct(3, 4, 5))
for name in ("Sigmoid", "Tanh", "Softplus", "Exp", "Neg", "Sin", "Cos", "Sinh", "Cosh", "Tan",
             "Identity", "Dropout", "Asinh", "Atan"):  # fmt: skip
    case("", node(name), normal(3, 4, 5))
for name in ("Log", "Sqrt", "Reciprocal"):
    case("", node(name), positive(3, 4, 5))
for name in ("Asin", "Acos", "Atanh"):
    case("", node(name), inside(3, 4, 5))
case("", node("Erf"), normal(3, 4, 5), by_runtime=True)
case("", node("Acosh"), positive(3, 4) + 1)
case("alpha", node("LeakyRelu", alpha=0.3), distinct(3, 4))
case("alpha", node("Elu", alpha=0.7), distinct(3, 4))
case("alpha gamma", node("Selu", alpha=1.3, gamma=0.9), distinct(3, 4))
case("alpha", node("ThresholdedRelu", alpha=0.5), distinct(3, 4))
case("", node("HardSigmoid"), distinct(3, 20))
case("alpha beta", node("HardSigmoid", alpha=0.3, beta=0.4), distinct(3, 20))
case("", node("Shrink"), distinct(3, 20))
case("bias", node("Shrink", lambd=1.2, bias=0.5), distinct(3, 20))
case("", node("Gelu"), normal(3, 5), opset=20, by_runtime=True)
case("tanh", node("Gelu", approximate="tanh"), normal(3, 5), opset=20)
case("both bounds", node("Clip", "low", "high"), distinct(3, 20), {"low": np.float32(-0.55), "high": np.float32(0.55)})
case("upper bound", node("Clip", "", "high"), distinct(3, 20), {"high": np.float32(0.55)})
case("lower bound", node("Clip", "low"), distinct(3, 20), {"low": np.float32(-0.55)})
case("no bound", node("Clip"), distinct(3, 20))
case("", node("Cast", to=onnx.TensorProto.FLOAT), normal(3, 4))
case("", node("CastLike", "w"), normal(3, 4), {"w": floats(1)})
case("per channel", node("PRelu", "w"), distinct(3, 4, 5), {"w": positive(4, 1)})
for name in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
    for label, other in (("same shape", (3, 4, 5)), ("narrower", (4, 1)), ("wider", (2, 3, 4, 5)), ("scalar", ())):
        for order in (("x", "w"), ("w", "x")):
            data = positive(3, 4, 5) if name == "Div" and order[1] == "x" else distinct(3, 4, 5)
            case(f"{label} {order.index('x')}", node(name, *order), data, {"w": positive(*other)})
case("three", node("Sum", "w", "x", "v"), normal(3, 1, 5), {"w": normal(4, 5), "v": normal(1)})
case("three", node("Mean", "w", "x", "v"), normal(3, 1, 5), {"w": normal(4, 5), "v": normal(1)}, by_runtime=True)
case("three", node("Max", "w", "x", "v"), distinct(3, 1, 5), {"w": normal(4, 5), "v": normal(1)})
case("twice the same", node("Mul", "x", "x"), normal(3, 4))
case("square", node("Pow", "p"), normal(3, 4), {"p": np.float32(2)})
case("cube", node("Pow", "p"), normal(3, 4), {"p": np.float32(3)})
case("whole-number exponent", node("Pow", "p"), normal(3, 4), {"p": np.int64(3)}, by_runtime=True)
case("root", node("Pow", "p"), positive(3, 4), {"p": np.float32(0.5)})
case("per channel", node("Pow", "p"), positive(3, 4), {"p": floats(0.5, 1, 2, 3)})
case("of the exponent", node("Pow", "w", "x"), normal(3, 4), {"w": positive(4)})
case("of itself", node("Pow", "x", "x"), positive(3, 4))
case("second operand", node("Where", "c", "w", "x"), normal(3, 4), {"c": np.array([True, False] * 2), "w": normal(4)})
case("first operand", node("Where", "c", "x", "w"), normal(3, 4), {"c": np.array([True, False] * 2), "w": normal(4)})
case("remainder", node("Mod", "w", fmod=1), distinct(3, 4), {"w": floats(0.35, 0.45, 0.61, 5)})

# Products

case("weight on the right", node("MatMul", "w"), normal(3, 4, 5), {"w": normal(5, 2)})
case("weight on the left", node("MatMul", "w", "x"), normal(3, 4, 5), {"w": normal(2, 4)})
case("broadcast", node("MatMul", "w"), normal(3, 1, 4, 5), {"w": normal(6, 5, 2)})
case("broadcast up", node("MatMul", "w"), normal(3, 4, 5), {"w": normal(2, 3, 5, 2)})
case("vector on the right", node("MatMul", "w"), normal(3, 4, 5), {"w": normal(5)})
case("vector on the left", node("MatMul", "w", "x"), normal(3, 4, 5), {"w": normal(4)})
case("of a vector", node("MatMul", "w", "x"), normal(5), {"w": normal(2, 5)})
case("of a vector on the left", node("MatMul", "x", "w"), normal(5), {"w": normal(3, 5, 2)})
case("of two vectors", node("MatMul", "x", "w"), normal(5), {"w": normal(5)})
for turned_a in (0, 1):
    for turned_b in (0, 1):
        attributes: dict[str, Any] = {"transA": turned_a, "transB": turned_b, "alpha": 0.5, "beta": 2.0}
        free = 3 if turned_a else 5
        weight = normal(7, free) if turned_b else normal(free, 7)
        case(
            f"A {turned_a}{turned_b}", node("Gemm", "w", "c", **attributes), normal(3, 5), {"w": weight, "c": normal(7)}
        )
        left = normal(3, 6) if turned_a else normal(6, 3)
        if turned_b:
            left = normal(5, 6) if turned_a else normal(6, 5)
        case(f"B {turned_a}{turned_b}", node("Gemm", "w", "x", **attributes), normal(3, 5), {"w": left})
case("C", node("Gemm", "w", "v", "x", beta=2.0), normal(3, 1), {"w": normal(3, 2), "v": normal(2, 4)}, fixed=True)
for equation, shapes in {
    "bij,jk->bik": [(5, 2)], "bij,bkj->bik": [(3, 4, 5)], "bij->bji": [], "bij->b": [], "bij,j->bi": [(5,)],
    "bhid,bhjd->bhij": [(3, 2, 4, 5)], "bij,jk": [(5, 2)], "bij,jk,kl->bil": [(5, 2), (2, 3)],
}.items():  # fmt: skip
    first = (3, 2, 6, 5) if "bhid" in equation else (3, 4, 5)
    others = {f"w{i}": normal(*shape) for i, shape in enumerate(shapes)}
    case(equation, node("Einsum", *others, equation=equation), normal(*first), others, fixed=True)
case("ellipsis", node("Einsum", "w", equation="...ij,jk->...ik"), normal(3, 2, 4, 5), {"w": normal(5, 2)})
case("ellipsis in both", node("Einsum", "x", "x", equation="...ij,...kj->...ik"), normal(3, 2, 4, 5))
case("ellipsis, no arrow", node("Einsum", "w", equation="...ij,jk"), normal(3, 4, 5), {"w": normal(5, 2)})
case("second operand", node("Einsum", "w", "x", equation="ij,bjk->bik"), normal(3, 4, 5), {"w": normal(2, 4)})
for label, equation, first, second in [
    ("repeated, summed over", "bchw,bchw->bc", (3, 4, 1, 1), (1, 4, 5, 6)),
    ("repeated, kept", "bchw,bchw->bchw", (3, 4, 1, 1), (1, 4, 5, 6)),
    ("repeated, one of both", "bchw,bcwk->bhk", (3, 4, 5, 1), (1, 1, 6, 2)),
    ("beside repeated, summed over", "bchw,bchw->bc", (3, 4, 5, 6), (1, 4, 1, 1)),
    ("beside repeated, kept", "bchw,bchw->bhw", (3, 4, 5, 6), (1, 4, 1, 1)),
    ("repeated ellipsis", "...ij,...jk->...ik", (3, 1, 4, 5), (1, 6, 5, 2)),
]:
    case(label, node("Einsum", "w", equation=equation), normal(*first), {"w": normal(*second)})
    case(f"{label}, behind", node("Einsum", "w", "x", equation=equation), normal(*second), {"w": normal(*first)},
         fixed=True)  # fmt: skip

# Convolutions

for label, x, w, attributes in [
    ("plain", (3, 4, 9, 8), (6, 4, 3, 3), {}),
    ("same size", (3, 4, 9, 8), (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    ("stride 2", (3, 4, 9, 8), (6, 4, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ("stride 2, asymmetric pads", (3, 4, 8, 8), (6, 4, 3, 3), {"pads": [0, 0, 1, 1], "strides": [2, 2]}),
    ("uneven strides", (3, 4, 9, 8), (6, 4, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ("dilated", (3, 4, 9, 9), (6, 4, 3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    ("dilated stride 2", (3, 4, 10, 9), (6, 4, 3, 3), {"pads": [2, 1, 2, 1], "dilations": [2, 2], "strides": [2, 2]}),
    ("groups", (3, 8, 9, 9), (6, 4, 3, 3), {"pads": [1, 1, 1, 1], "group": 2}),
    ("groups stride 3", (3, 8, 13, 11), (6, 4, 5, 5), {"pads": [2, 2, 2, 2], "group": 2, "strides": [3, 3]}),
    ("depthwise", (3, 4, 9, 9), (4, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 4}),
    ("depthwise stride 2", (3, 4, 9, 8), (4, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 4, "strides": [2, 2]}),
    ("depthwise multiplier", (3, 4, 9, 9), (8, 1, 3, 3), {"pads": [0, 1, 2, 1], "group": 4}),
    ("depthwise dilated", (3, 4, 9, 9), (4, 1, 3, 3), {"pads": [2, 2, 2, 2], "group": 4, "dilations": [2, 2]}),
    ("depthwise wide margins", (3, 4, 6, 6), (4, 1, 3, 3), {"pads": [3, 3, 3, 3], "group": 4}),
    ("wide margins", (3, 4, 6, 6), (6, 4, 3, 3), {"pads": [3, 3, 3, 3]}),
    ("1x1 stride 2", (3, 4, 9, 8), (6, 4, 1, 1), {"strides": [2, 2]}),
    ("patches", (3, 4, 18, 17), (6, 4, 4, 4), {"strides": [4, 4]}),
    ("stride beyond kernel", (3, 4, 14, 15), (6, 4, 3, 3), {"strides": [5, 4]}),
    ("SAME_UPPER", (3, 4, 9, 8), (6, 4, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("SAME_LOWER", (3, 4, 9, 8), (6, 4, 2, 2), {"strides": [1, 1], "auto_pad": "SAME_LOWER"}),
    ("VALID", (3, 4, 9, 8), (6, 4, 3, 3), {"strides": [2, 2], "auto_pad": "VALID"}),
    ("1-d", (3, 4, 15), (6, 4, 3), {"strides": [2], "pads": [1, 1]}),
    ("3-d", (3, 2, 5, 6, 4), (3, 2, 3, 3, 2), {"pads": [1, 1, 0, 1, 1, 1]}),
]:  # fmt: skip
    case(label, node("Conv", "w", **attributes), normal(*x), {"w": normal(*w)}, by_runtime=True)
case("bias", node("Conv", "w", "b"), normal(2, 3, 6, 6), {"w": normal(4, 3, 3, 3), "b": normal(4)})
for label, x, w, attributes in [
    ("plain", (3, 4, 5, 6), (4, 3, 3, 3), {}),
    ("stride 2", (3, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]}),
    ("asymmetric", (3, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 0, 0, 1]}),
    ("dilated", (3, 4, 5, 6), (4, 3, 3, 3), {"dilations": [2, 2], "strides": [2, 2]}),
    ("groups", (3, 4, 5, 6), (4, 2, 3, 3), {"group": 2, "strides": [2, 2]}),
    ("no margin, output padding", (3, 4, 5, 6), (4, 3, 2, 2), {"strides": [3, 3], "output_padding": [2, 1]}),
    ("SAME_UPPER", (3, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("SAME_LOWER", (3, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ("output_shape", (3, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "output_shape": [10, 12]}),
    ("1-d", (3, 4, 7), (4, 3, 3), {"strides": [2]}),
]:  # fmt: skip
    case(label, node("ConvTranspose", "w", **attributes), normal(*x), {"w": normal(*w)}, by_runtime=True)

sizes = {"i": ints(6, 5), "k": ints(3, 2)}
case("", node("Col2Im", "i", "k"), normal(3, 4 * 6, 16), sizes)
case("strides, margins", node("Col2Im", "i", "k", strides=[2, 1], pads=[1, 0, 1, 1]), normal(3, 2 * 6, 15), sizes)
case("dilations", node("Col2Im", "i", "k", dilations=[2, 3]), normal(3, 2 * 6, 4), sizes)

# Pools

for label, size, attributes in [
    ("2", (8, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("3 stride 2", (9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("3 stride 1", (6, 7), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("ceil", (10, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("ceil with margins", (9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ("ceil uneven", (11, 10), {"kernel_shape": [5, 5], "strides": [3, 3], "pads": [2, 2, 2, 2], "ceil_mode": 1}),
    ("asymmetric", (9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]}),
    ("SAME_UPPER", (9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("SAME_LOWER", (9, 8), {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ("dilated", (9, 8), {"kernel_shape": [2, 2], "dilations": [2, 2]}),
    ("dilated by its stride", (9, 9), {"kernel_shape": [2, 2], "dilations": [2, 2], "strides": [2, 2]}),
    ("one axis dilated", (8, 9), {"kernel_shape": [2, 2], "dilations": [1, 2], "strides": [2, 2]}),
    ("1-d", (9,), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
]:  # fmt: skip
    case(label, node("MaxPool", **attributes), distinct(3, 2, *size), by_runtime=True)
    for counted in (0, 1):
        average = node("AveragePool", count_include_pad=counted, **attributes)
        case(f"{label}, margins {counted}", average, normal(3, 2, *size), by_runtime=True, opset=19)
for p in (1, 2, 3):
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    case(f"{p}", node("LpPool", p=p, **attributes), off_zero(3, 2, 8, 8), by_runtime=True)
    dilated = {"kernel_shape": [2, 2], "strides": [2, 2], "dilations": [2, 2]}
    case(f"{p}, dilated", node("LpPool", p=p, **dilated), off_zero(3, 2, 9, 9), by_runtime=True)
    case(f"{p}", node("GlobalLpPool", p=p), off_zero(3, 2, 4, 4), by_runtime=True)
case("", node("GlobalAveragePool"), normal(3, 4, 5, 6))
case("", node("GlobalMaxPool"), distinct(3, 4, 5, 6))

# Normalisations

for name in ("Softmax", "LogSoftmax"):
    case("default axis", node(name), normal(3, 4, 5))
    case("axis 1", node(name, axis=1), normal(3, 4, 5))
    case("axis -2", node(name, axis=-2), normal(3, 4, 5))
statistics = {name: positive(4) for name in ("s", "b", "m", "v")}
case("", node("BatchNormalization", "s", "b", "m", "v"), normal(3, 4, 5, 5), statistics)
case("epsilon", node("BatchNormalization", "s", "b", "m", "v", epsilon=0.1), normal(3, 4), statistics)
case("", node("LayerNormalization", "s", "b"), normal(3, 4, 8), {"s": positive(8), "b": normal(8)})
case("axis 1", node("LayerNormalization", "s", axis=1, epsilon=0.1), normal(3, 4, 8), {"s": positive(4, 8)})
case("", node("InstanceNormalization", "s", "b"), normal(3, 4, 5, 5), {"s": positive(4), "b": normal(4)})
case(
    "epsilon", node("InstanceNormalization", "s", "b", epsilon=0.1), normal(3, 4, 5), {"s": positive(4), "b": normal(4)}
)
case("2", node("LpNormalization", axis=1), normal(3, 4, 5))
case("1", node("LpNormalization", axis=-1, p=1), off_zero(3, 4, 5), by_runtime=True)
case("", node("LRN", size=3), normal(3, 6, 4, 4), by_runtime=True)
case("strong", node("LRN", size=5, alpha=0.3, beta=0.6, bias=1.5), normal(3, 6, 4, 4), by_runtime=True)

# Reductions

for name in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"):
    data = positive(3, 4, 5) if name in ("LogSum", "Prod") else distinct(3, 4, 5)
    case("axis", node(f"Reduce{name}", "axes"), data, {"axes": ints(1)})
    case("negative, dropped", node(f"Reduce{name}", "axes", keepdims=0), data, {"axes": ints(-1, 1)})
case("all", node("ReduceSum"), normal(3, 4, 5))
case("over the batch", node("ReduceMean", "axes"), normal(3, 4, 5), {"axes": ints(0, 2)})
case("one zero", node("ReduceProd", "axes"), floats(0, 1, 2, 3, 4, 5).reshape(2, 3), {"axes": ints(1)})
case("", node("CumSum", "axis"), normal(3, 4, 5), {"axis": np.int64(1)})
case("exclusive", node("CumSum", "axis", exclusive=1), normal(3, 4, 5), {"axis": np.int64(-1)})
case("reverse", node("CumSum", "axis", reverse=1), normal(3, 4, 5), {"axis": np.int64(1)})

# Shapes

case("", node("Reshape", "s"), normal(3, 4, 6), {"s": ints(0, -1, 3)})
case("over the batch", node("Reshape", "s"), normal(3, 4, 6), {"s": ints(-1, 2, 6)})
case("", node("Flatten"), normal(3, 4, 6))
case("axis 2", node("Flatten", axis=2), normal(3, 4, 6))
case("", node("Squeeze", "a"), normal(3, 1, 6, 1), {"a": ints(1, -1)})
case("", node("Unsqueeze", "a"), normal(3, 6), {"a": ints(1, -1)})
case("", node("Transpose", perm=[0, 3, 1, 2]), normal(3, 4, 5, 6))
case("batch away", node("Transpose", perm=[2, 0, 1]), normal(3, 4, 5))
case("reversed", node("Transpose"), normal(3, 4, 5))
case("", node("Expand", "s"), normal(3, 1, 5), {"s": ints(4, 1)})
case("up", node("Expand", "s"), normal(3, 1, 5), {"s": ints(2, 1, 4, 5)})
case("", node("Tile", "r"), normal(3, 4, 5), {"r": ints(1, 2, 3)})
case("first", node("Concat", "x", "x", axis=1), normal(3, 4, 5))
case("negative axis", node("Concat", "x", "x", "x", axis=-1), normal(3, 4, 5))
case("of batches", node("Concat", "x", "w", "x", axis=0), normal(3, 4), {"w": normal(2, 4)})
case("", node("Split", "s", outputs=2, axis=1), normal(3, 6, 5), {"s": ints(2, 4)})
case("num_outputs", node("Split", outputs=3, axis=-1, num_outputs=3), normal(3, 6, 8))
case("DCR", node("DepthToSpace", blocksize=2), normal(3, 8, 3, 4))
case("CRD", node("DepthToSpace", blocksize=2, mode="CRD"), normal(3, 8, 3, 4))
case("", node("SpaceToDepth", blocksize=2), normal(3, 2, 6, 4))
case("upper", node("Trilu"), normal(3, 4, 5))
case("lower, shifted", node("Trilu", "k", upper=0), normal(3, 4, 5), {"k": np.int64(1)})
case("", node("Pad", "p"), normal(3, 4, 5), {"p": ints(0, 1, 2, 0, 0, 1)})
case("crop", node("Pad", "p", "v"), normal(3, 4, 5), {"p": ints(0, -1, 2, 0, 1, -2), "v": np.float32(0.5)},
     by_runtime=True)  # fmt: skip
case("axes", node("Pad", "p", "", "a"), normal(3, 4, 5), {"p": ints(1, 2), "a": ints(-1)})
for mode in ("reflect", "edge", "wrap"):
    case(mode, node("Pad", "p", mode=mode), normal(3, 2, 5, 6), {"p": ints(0, 0, 1, 2, 0, 0, 0, 3)}, opset=19)
    case(f"{mode} and crop", node("Pad", "p", mode=mode), normal(3, 2, 5, 6), {"p": ints(0, 0, -1, 2, 0, 0, 1, -1)},
         opset=19, by_runtime=True)  # fmt: skip

# Picks

case("", node("Slice", "s", "e", "a"), normal(3, 6, 5), {"s": ints(1), "e": ints(-1), "a": ints(1)})
case("all axes", node("Slice", "s", "e"), normal(3, 6, 5), {"s": ints(0, 2, 1), "e": ints(2**62, 5, 4)})
case("steps", node("Slice", "s", "e", "a", "t"), normal(3, 7, 8),
     {"s": ints(1, 0), "e": ints(2**62, 7), "a": ints(1, -1), "t": ints(2, 3)})  # fmt: skip
case("steps along a long row", node("Slice", "s", "e", "a", "t"), normal(3, 1030),
     {"s": ints(1), "e": ints(2**62), "a": ints(1), "t": ints(2)})  # fmt: skip
case("backwards", node("Slice", "s", "e", "a", "t"), normal(3, 6, 5),
     {"s": ints(-1), "e": ints(-(2**62)), "a": ints(2), "t": ints(-1)})  # fmt: skip
case("backwards in steps", node("Slice", "s", "e", "a", "t"), normal(3, 8, 5),
     {"s": ints(6), "e": ints(0), "a": ints(1), "t": ints(-2)})  # fmt: skip
case("of the batch", node("Slice", "s", "e", "a"), normal(3, 6, 5), {"s": ints(1), "e": ints(2**62), "a": ints(0)})
case("one", node("Gather", "i", axis=1), normal(3, 6, 5), {"i": np.int64(0)})
case("last", node("Gather", "i", axis=-1), normal(3, 6, 5), {"i": np.int64(-1)})
case("run", node("Gather", "i", axis=1), normal(3, 6, 5), {"i": ints(2, 3, 4)})
case("repeated", node("Gather", "i", axis=1), normal(3, 6, 5), {"i": ints(3, 3, 1)})
case("matrix", node("Gather", "i", axis=2), normal(3, 6, 5), {"i": np.array([[3, 0], [1, -1]])})
case("", node("GatherElements", "i", axis=1), normal(3, 4, 5), {"i": rng.integers(-4, 4, (3, 2, 5))}, fixed=True)
case("", node("GatherND", "i"), normal(3, 4, 5), {"i": np.array([[0, 1], [2, 3], [0, 1]])})
case("batch_dims", node("GatherND", "i", batch_dims=1), normal(3, 4, 5), {"i": np.array([[1], [3], [0]])}, fixed=True)
case("", node("TopK", "k", outputs=2, axis=1), distinct(3, 6, 5), {"k": ints(2)})
case("smallest", node("TopK", "k", outputs=2, axis=-1, largest=0), distinct(3, 6, 5), {"k": ints(3)})
places, kept = np.array([[[1, 0], [2, 1]]]), {"u": normal(1, 2, 2)}
case("into", node("ScatterElements", "i", "u", axis=1), normal(3, 4, 5), {"i": places, **kept})
case("into, added", node("ScatterElements", "i", "u", axis=1, reduction="add"), normal(3, 4, 5), {"i": places, **kept})
case("of what is put in", node("ScatterElements", "w", "i", "x", axis=1), normal(1, 2, 2),
     {"i": places, "w": normal(3, 4, 5)}, fixed=True)  # fmt: skip
case("into", node("ScatterND", "i", "u"), normal(3, 4, 5), {"i": np.array([[0, 1], [2, 3]]), "u": normal(2, 5)})
case("of what is put in", node("ScatterND", "w", "i", "x"), normal(2, 5),
     {"i": np.array([[0, 1], [2, 3]]), "w": normal(3, 4, 5)}, fixed=True)  # fmt: skip

# Resizes

for mode in ("nearest", "linear", "cubic"):
    for where in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"):
        resize = node("Resize", "", "s", mode=mode, coordinate_transformation_mode=where)
        case(f"{mode} {where}", resize, normal(2, 3, 5, 6), {"s": floats(1, 1, 2.5, 0.7)}, by_runtime=True, opset=19)
    to_size = node("Resize", "", "", "z", mode=mode)
    case(f"{mode} to a size", to_size, normal(2, 3, 5, 6), {"z": ints(2, 3, 9, 4)}, by_runtime=True, fixed=True)
for rounding in ("round_prefer_ceil", "floor", "ceil"):
    resize = node("Resize", "", "s", mode="nearest", nearest_mode=rounding, coordinate_transformation_mode="asymmetric")
    case(rounding, resize, normal(2, 3, 5, 6), {"s": floats(1, 1, 2.5, 0.7)}, by_runtime=True)
case("twice, as in upsampling", node("Resize", "", "s"), normal(2, 3, 5, 6), {"s": floats(1, 1, 2, 2)}, by_runtime=True)
for mode in ("linear", "cubic"):
    smooth = node("Resize", "", "s", mode=mode, antialias=1)
    case(f"antialias {mode}", smooth, normal(2, 3, 12, 10), {"s": floats(1, 1, 0.5, 0.4)}, by_runtime=True)
case("cubic outside", node("Resize", "", "s", mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5),
     normal(2, 3, 5, 6), {"s": floats(1, 1, 2.5, 0.7)}, by_runtime=True)  # fmt: skip
case(
    "axes",
    node("Resize", "", "s", mode="linear", axes=[2, 3]),
    normal(2, 3, 5, 6),
    {"s": floats(2, 3)},
    by_runtime=True,
)
for mode in ("nearest", "linear", "cubic"):
    for policy in ("not_larger", "not_smaller"):
        kept_ratio = node("Resize", "", "", "z", mode=mode, keep_aspect_ratio_policy=policy, axes=[2, 3])
        case(f"{mode} {policy}", kept_ratio, normal(2, 3, 9, 8), {"z": ints(5, 5)}, by_runtime=True)
        case(f"{mode} {policy}, larger", kept_ratio, normal(2, 3, 4, 5), {"z": ints(9, 9)}, by_runtime=True)


@pytest.mark.parametrize("label", CASES)
def test_gradient_is_the_limit_of_differences(label: str) -> None:
    tested, x, weights, how = CASES[label]
    opset = how.get("opset", 18)
    model = one_node(tested, x, weights, opset)
    by_runtime = how.get("by_runtime", False)
    error = worst_error(model, x, by_runtime=by_runtime, fixed=how.get("fixed", False))
    assert error < TOLERANCE["runtime" if by_runtime else "reference"]


@pytest.mark.parametrize("label", [label for label in CASES if label.startswith("MaxPool")])
def test_no_two_numbers_are_put_at_one_position_at_once_where_their_order_varies(label: str) -> None:
    tested, x, _, _ = CASES[label]
    model, feeds = one_node(tested, x), {"x": x}
    plain, ordered = (joined(model, [feeds, {"x": x[:1]}], adds_in_order=each) for each in (True, False))
    feeds["seed"] = normal(*Session(model, CPU).run({"x": x})[0].shape)
    positions = [put.input[1] for put in ordered.graph.node if put.op_type == "ScatterElements"]
    for name in positions:
        ordered.graph.output.append(onnx_models.value(name, None, TensorProto.INT64))
    gradient, *found = Session(ordered, CPU).run(feeds, ["gradient", *positions])
    assert all(len(np.unique(places)) == len(places) for places in found)
    assert sum(map(len, found)) == feeds["seed"].size
    np.testing.assert_allclose(gradient, Session(plain, CPU).run(feeds, ["gradient"])[0], rtol=1e-6, atol=1e-6)


def test_every_rule_has_a_case() -> None:
    assert set(RULES) == {tested.op_type for tested, *_ in CASES.values()}
