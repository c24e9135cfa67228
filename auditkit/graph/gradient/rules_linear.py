"""Products of matrices; a Resize is one along each axis, and its gradient takes the transposed matrix."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import ceil
from string import ascii_uppercase

import numpy as np

from auditkit.arrays import Array
from auditkit.graph.gradient.builder import Builder, Node, NoRule, rule, rule_per_operand

# Where output position o lies on the input's axis, for a scale, an input of size n and an output of size m.
_COORDINATES: dict[str, Callable[[Array, np.float32, int, int], Array]] = {
    "half_pixel": lambda o, scale, _n, _m: (o + 0.5) / scale - 0.5,
    "half_pixel_symmetric": lambda o, scale, n, m: n / 2 * (1 - m / (scale * n)) + (o + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda o, scale, _n, m: (o + 0.5) / scale - 0.5 if m > 1 else o * 0.0,
    "align_corners": lambda o, _scale, n, m: o * (n - 1) / (m - 1) if m > 1 else o * 0.0,
    "asymmetric": lambda o, scale, _n, _m: o / scale,
}
_ROUNDING: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@rule_per_operand("MatMul")
def matmul(b: Builder, node: Node, grad: str, index: int) -> str:
    """g x₂ᵀ, x₁ᵀ g; a vector on the left is a row, one on the right is a column."""
    left, right = (b.shape(name) for name in node.inputs)
    vectors = [-2] * (len(left) == 1) + [-1] * (len(right) == 1)
    if vectors:
        grad = b.op("Unsqueeze", grad, b.constant(vectors))
    lead = b.shape(node.y)[: len(b.shape(node.y)) + len(vectors) - 2]
    shape = right if index else left
    if len(shape) == 1:
        shape = (*shape, 1) if index else (1, *shape)
    transposed = _transposed(b, node.inputs[1 - index], vector_axis=index)
    product = b.op("MatMul", transposed, grad) if index else b.op("MatMul", grad, transposed)
    summed = b.summed_to(product, (*lead, *shape[-2:]), shape)
    return b.reshape_like(summed, node.inputs[index]) if vectors else summed


def _transposed(b: Builder, name: str, vector_axis: int) -> str:
    """A matrix transposed; if it is a weight, the runtime does so only once."""
    rank = len(b.shape(name))
    if rank == 1:
        return b.op("Unsqueeze", name, b.constant([vector_axis]))
    return b.op("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])


@rule_per_operand("Gemm")
def gemm(b: Builder, node: Node, grad: str, index: int) -> str:
    """Y = α A' B' + β C, where A' and B' may be transposed."""
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    trans_a, trans_b = node.get("transA", 0), node.get("transB", 0)
    first, second = node.inputs[:2]
    if index == 2:
        return b.summed_to(b.mul(grad, beta), b.shape(node.y), b.shape(node.inputs[2]))
    if index == 0 and trans_a:
        return b.op("Gemm", second, grad, alpha=alpha, transA=trans_b, transB=1)
    if index == 0:
        return b.op("Gemm", grad, second, alpha=alpha, transB=1 - trans_b)
    if trans_b:
        return b.op("Gemm", grad, first, alpha=alpha, transA=1, transB=trans_a)
    return b.op("Gemm", first, grad, alpha=alpha, transA=1 - trans_a)


@rule_per_operand("Einsum")
def einsum(b: Builder, node: Node, grad: str, index: int) -> str:
    """The same sum with the gradient in the operand's place, repeated over letters that only the operand has."""
    terms, result = _letters(node.get("equation", ""), [len(b.shape(name)) for name in node.inputs])
    operand, term = node.inputs[index], terms[index]
    if len(set(term)) < len(term):
        raise NoRule("its equation takes a diagonal")
    other_terms, other_inputs = (entries[:index] + entries[index + 1 :] for entries in (terms, node.inputs))
    # Axes of size 1 are repeated: in this operand the gradient is summed over them, in another one they are ignored.
    reachable = set(result).union(*map(partial(_long, b), other_terms, other_inputs))
    kept = "".join(letter for letter in term if letter in reachable & _long(b, term, operand))
    grad = b.op("Einsum", grad, *other_inputs, equation=f"{','.join([result, *other_terms])}->{kept}")
    lost = [axis for axis, letter in enumerate(term) if letter not in kept]
    if lost:
        grad = b.op("Unsqueeze", grad, b.constant(lost))
    repeated = [axis for axis in lost if b.shape(operand)[axis] != 1]
    return b.expand_like(grad, operand, repeated) if repeated else grad


def _long(b: Builder, term: str, name: str) -> set[str]:
    """Letters of the axes whose size is not 1."""
    return {letter for letter, size in zip(term, b.shape(name), strict=True) if size != 1}


def _letters(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Letters of the operands and of the result, with capitals for the axes of an ellipsis."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    if not arrow:  # letters that occur once, in alphabetical order
        counts = Counter(left.replace(",", "").replace("...", ""))
        right = "..." * ("..." in left) + "".join(sorted(letter for letter in counts if counts[letter] == 1))
    if any(letter.isupper() for letter in equation) or len({n for n in hidden if n}) > 1:
        raise NoRule("its equation has ellipses for different numbers of axes")
    capitals = ascii_uppercase[: max(hidden)]
    return [term.replace("...", capitals) for term in terms], right.replace("...", capitals)


@rule("Resize")
def resize(b: Builder, node: Node, grad: str) -> str:
    """g mapped back axis by axis."""
    before, after = b.shape(node.x), list(b.shape(node.y))
    scales = _scales(b, node)
    for axis in range(len(before)):
        if before[axis] == after[axis] and scales.get(axis, 1.0) == 1.0:
            continue
        size, new_size = b.size(node.x, axis), b.size(node.y, axis)
        matrix = _interpolation(node, size, new_size, scales.get(axis, new_size / size))
        grad = b.along(axis, matrix.T, grad, tuple(after))
        after[axis] = size
    return grad


def _scales(b: Builder, node: Node) -> dict[int, float]:
    """The scale of each axis, where it is an operand or common to all axes; elsewhere it is the ratio of the sizes."""
    rank = len(b.shape(node.x))
    axes = [axis % rank for axis in node.get("axes", list[int]())] or range(rank)
    scales = b.value(node.operand(2))
    if scales is not None and scales.size:
        return dict(zip(axes, map(float, scales), strict=True))
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return {}
    sizes = b.fixed(node.operand(3), "its sizes")
    ratios = [size / b.size(node.x, axis) for axis, size in zip(axes, sizes, strict=True)]
    return dict.fromkeys(axes, min(ratios) if policy == "not_larger" else max(ratios))


def _interpolation(node: Node, size: int, new_size: int, scale: float) -> Array:
    """The matrix [new size, size] that a Resize applies along one axis."""
    transformation, mode = node.get("coordinate_transformation_mode", "half_pixel"), node.get("mode", "nearest")
    if transformation not in _COORDINATES:
        raise NoRule(f"its coordinates are '{transformation}'")
    # In float32, as in the runtime: the last bit can decide which neighbour is nearest.
    x = _COORDINATES[transformation](np.arange(new_size, dtype=np.float32), np.float32(scale), size, new_size)
    if mode == "nearest":
        nearest = _ROUNDING[node.get("nearest_mode", "round_prefer_floor")](x)
        return np.asarray(np.eye(size)[np.clip(nearest, 0, size - 1).astype(int)])
    shrink = min(scale, 1.0) if node.get("antialias", 0) else 1.0
    reach = (2 if mode == "cubic" else 1) / shrink
    first = np.floor(x).astype(int) - ceil(reach) + 1
    taps = first[:, None] + np.arange(2 * ceil(reach))
    distance = np.abs(taps - x[:, None].astype(float)) * shrink
    weights = _cubic(distance, node.get("cubic_coeff_a", -0.75)) if mode == "cubic" else np.maximum(1 - distance, 0)
    if node.get("exclude_outside", 0):
        weights = weights * ((taps >= 0) & (taps < size))
    matrix = np.zeros((new_size, size))
    np.add.at(matrix, (np.arange(new_size)[:, None], np.clip(taps, 0, size - 1)), weights)
    return np.asarray(matrix / matrix.sum(axis=1, keepdims=True))


def _cubic(distance: Array, a: float) -> Array:
    """Keys' kernel."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
