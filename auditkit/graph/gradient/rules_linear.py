"""Products of matrices."""

from collections import Counter
from functools import partial
from string import ascii_uppercase

from auditkit.graph.gradient.builder import Builder, Node, NoRule
from auditkit.graph.gradient.registry import rule_per_operand


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
    """The same sum with the gradient in the operand's place, repeated over letters that only the operand has.

    An axis of size 1 is repeated where others are longer: in this operand the gradient is summed over it, in another
    one it is ignored.
    """
    terms, result = _letters(node.get("equation", ""), [len(b.shape(name)) for name in node.inputs])
    operand, term = node.inputs[index], terms[index]
    if len(set(term)) < len(term):
        raise NoRule("its equation takes a diagonal")
    other_terms, other_inputs = (entries[:index] + entries[index + 1 :] for entries in (terms, node.inputs))
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
