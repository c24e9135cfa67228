"""Products of matrices."""

from collections import Counter
from string import ascii_uppercase

from auditkit.graph.gradient.builder import Builder
from auditkit.graph.gradient.node import Node
from auditkit.graph.gradient.registry import NoRule, rule_per_operand


@rule_per_operand("MatMul")
def matmul(b: Builder, node: Node, grad: str, index: int) -> str:
    """g x₂ᵀ, x₁ᵀ g; a vector on the left counts as a row, one on the right as a column."""
    left, right = (b.shape(name) for name in node.inputs)
    vectors = [-2] * (len(left) == 1) + [-1] * (len(right) == 1)
    if vectors:
        grad = b.op("Unsqueeze", grad, b.constant(vectors))
    lead = b.shape(node.y)[: len(b.shape(node.y)) + len(vectors) - 2]
    own = ((1, *left) if len(left) == 1 else left, (*right, 1) if len(right) == 1 else right)[index]
    turned = _turned(b, node.inputs[1 - index], vector_axis=index)
    product = b.op("MatMul", grad, turned) if index == 0 else b.op("MatMul", turned, grad)
    summed = b.summed_to(product, (*lead, *own[-2:]), own)
    return b.reshape_like(summed, node.inputs[index]) if vectors else summed


def _turned(b: Builder, name: str, vector_axis: int) -> str:
    """A matrix transposed. The runtime does it once and for all where the matrix is a weight."""
    rank = len(b.shape(name))
    if rank == 1:
        return b.op("Unsqueeze", name, b.constant([vector_axis]))
    return b.op("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])


@rule_per_operand("Gemm")
def gemm(b: Builder, node: Node, grad: str, index: int) -> str:
    """Y = α A' B' + β C, where A' and B' may be transposed."""
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    turned_a, turned_b = node.get("transA", 0), node.get("transB", 0)
    first, second = node.inputs[:2]
    if index == 2:
        return b.summed_to(b.mul(grad, beta), b.shape(node.y), b.shape(node.inputs[2]))
    if index == 0 and turned_a:
        return b.op("Gemm", second, grad, alpha=alpha, transA=turned_b, transB=1)
    if index == 0:
        return b.op("Gemm", grad, second, alpha=alpha, transB=1 - turned_b)
    if turned_b:
        return b.op("Gemm", grad, first, alpha=alpha, transA=1, transB=turned_a)
    return b.op("Gemm", first, grad, alpha=alpha, transA=1 - turned_a)


@rule_per_operand("Einsum")
def einsum(b: Builder, node: Node, grad: str, index: int) -> str:
    """The same sum with the gradient in the operand's place, spread over letters that the operand alone has.

    An axis of size 1 is repeated where others are longer: the operand's own is summed over, another's counts as none.
    """
    terms, result = _letters(node.get("equation", ""), [len(b.shape(name)) for name in node.inputs])
    own = terms[index]
    if len(set(own)) < len(own):
        raise NoRule("its equation takes a diagonal")
    others = [place for place in range(len(terms)) if place != index]
    reachable = set(result).union(*(_long(b, terms[place], node.inputs[place]) for place in others))
    kept = "".join(letter for letter in own if letter in reachable & _long(b, own, node.inputs[index]))
    equation = ",".join([result, *(terms[place] for place in others)]) + "->" + kept
    found = b.op("Einsum", grad, *(node.inputs[place] for place in others), equation=equation)
    lost = [axis for axis, letter in enumerate(own) if letter not in kept]
    if lost:
        found = b.op("Unsqueeze", found, b.constant(lost))
    repeated = [axis for axis in lost if b.shape(node.inputs[index])[axis] != 1]
    return b.expand_like(found, node.inputs[index], repeated) if repeated else found


def _long(b: Builder, term: str, name: str) -> set[str]:
    """Letters of the axes of a tensor that are not of size 1."""
    return {letter for letter, size in zip(term, b.shape(name), strict=True) if size != 1}


def _letters(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Letters of the operands and of the result, with capitals for the axes that an ellipsis stands for."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    if not arrow:  # letters that occur once, in the order of the alphabet
        counts = Counter(left.replace(",", "").replace("...", ""))
        right = "..." * ("..." in left) + "".join(sorted(letter for letter in counts if counts[letter] == 1))
    if any(letter.isupper() for letter in equation) or len({n for n in hidden if n}) > 1:
        raise NoRule("its equation has ellipses for different numbers of axes")
    capitals = ascii_uppercase[: max(hidden)]
    return [term.replace("...", capitals) for term in terms], right.replace("...", capitals)
