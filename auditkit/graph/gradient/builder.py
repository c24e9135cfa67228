"""The vocabulary of the rules: nodes, arithmetic on tensors by name, facts about them, and the table of all rules.

Most operators have one operand that a gradient flows to. Their rule maps the gradient of the result to its gradient:

    @rule("Exp")
    def exp(b, node, grad):
        return b.mul(grad, node.y)

Where there are several, the rule is called for each operand that needs a gradient:

    @rule_per_operand("Mul")
    def mul(b, node, grad, index):
        return b.mul(grad, node.inputs[1 - index])

Rules of one line are in tables. A rule for several results goes into `RULES` directly.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from auditkit.arrays import Array
from auditkit.graph import edit

T = TypeVar("T")
Shape = tuple[int | None, ...]
_Term = str | float  # a tensor's name, or a number
AXIS_END = 2**31 - 1  # the end of an axis in a Slice
BEFORE_START = -(2**31)  # the end of an axis in a Slice that runs backwards
_LONGEST_PRODUCT = 1024  # numbers in a row; above, the square matrix would hold more than a million
PREFIX = "auditkit_grad"  # of the name of every tensor that a gradient adds


class NoRule(Exception):
    """Why a node cannot be differentiated, although its operator has a rule."""


class Node:
    """An operator with its operands, results and attributes by name."""

    def __init__(self, proto: onnx.NodeProto) -> None:
        self.proto = proto
        self.operator = proto.op_type
        self.inputs: list[str] = list(proto.input)
        self.outputs: list[str] = list(proto.output)
        self.x = self.inputs[0] if self.inputs else ""
        self.y = self.outputs[0] if self.outputs else ""
        self.attributes = edit.attributes(proto)

    def operand(self, index: int) -> str | None:
        """An operand that may be left out."""
        return self.inputs[index] if index < len(self.inputs) and self.inputs[index] else None

    def get(self, name: str, default: T) -> T:
        """An attribute, or the standard's default for it."""
        value: T = self.attributes.get(name, default)
        return value


@dataclass(frozen=True)
class Facts:
    """What running a graph showed about its tensors."""

    shapes: Mapping[str, Shape]  # None: the dimension follows the batch
    kinds: Mapping[str, int]  # onnx element types
    values: Mapping[str, Array] = field(default_factory=dict)  # integers that do not depend on the input
    float_kind: int = TensorProto.FLOAT


def _method(operator: str) -> Callable[..., str]:
    return lambda b, *terms: b.op(operator, *terms)


class Builder(edit.Builder):
    """Adds nodes to a graph that is being differentiated."""

    def __init__(self, graph: onnx.GraphProto, facts: Facts, *, adds_in_order: bool = True) -> None:
        super().__init__(graph, prefix=PREFIX)
        self.facts, self.adds_in_order = facts, adds_in_order
        self.float_type = helper.tensor_dtype_to_np_dtype(facts.float_kind)
        self._tensors = edit.constant_tensors(graph)
        self._constants = {n.output[0]: n for n in graph.node if n.op_type == "Constant"}

    # Facts

    def shape(self, name: str) -> Shape:
        """Dimensions of a tensor of the model; None where one follows the batch."""
        return self.facts.shapes[name]

    def size(self, name: str, axis: int) -> int:
        """One dimension, which must not follow the batch."""
        size = self.shape(name)[axis]
        if size is None:
            raise NoRule(f"axis {axis} of '{name}' follows the batch")
        return size

    def sizes(self, name: str, start: int = 2) -> list[int]:
        """Dimensions from `start` on, none of which must follow the batch."""
        return [self.size(name, axis) for axis in range(start, len(self.shape(name)))]

    def value(self, name: str | None) -> Array | None:
        """The values of a tensor that is constant; None for any other."""
        if name is None:
            return None
        if name in self.facts.values:
            return self.facts.values[name]
        if name in self._tensors:
            return numpy_helper.to_array(self._tensors[name])
        if name in self._constants:  # a plain number or list instead of a tensor
            (value,) = edit.attributes(self._constants[name]).values()
            return np.asarray(value)
        return None

    def fixed(self, name: str | None, what: str) -> list[int]:
        """The integers in an operand that must be constant."""
        values = self.value(name)
        if values is None:
            raise NoRule(f"{what} are computed from the image or the batch")
        return [int(number) for number in values.reshape(-1)]

    # Arithmetic

    def array(self, values: ArrayLike) -> str:
        """A constant of the graph's float type."""
        return self.constant(values, self.float_type)

    def op(self, operator: str, *terms: _Term, **attributes: Any) -> str:
        """Any operator, on tensors and numbers."""
        return self.node(operator, [t if isinstance(t, str) else self.array(t) for t in terms], **attributes)

    add, sub, div, neg, exp = _method("Add"), _method("Sub"), _method("Div"), _method("Neg"), _method("Exp")
    greater, less = _method("Greater"), _method("Less")

    def mul(self, x: _Term, y: _Term) -> str:
        """x · y."""
        return x if y == 1 and isinstance(x, str) else self.op("Mul", x, y)

    def square(self, x: str) -> str:
        """x²."""
        return self.op("Mul", x, x)

    def where(self, condition: str, x: _Term, y: _Term) -> str:
        """x where the condition holds, y elsewhere."""
        return self.op("Where", condition, x, y)

    def as_float(self, x: str) -> str:
        """Booleans or integers as floats."""
        return self.op("Cast", x, to=self.facts.float_kind)

    def sum(self, x: str, axes: Sequence[int], *, keep: bool = True) -> str:
        """Sum over axes; x itself where there are none."""
        return self.op("ReduceSum", x, self.constant(list(axes)), keepdims=int(keep)) if axes else x

    def mean(self, x: str, axes: Sequence[int]) -> str:
        """Mean over axes, which are kept with size 1."""
        return self.op("ReduceMean", x, self.constant(list(axes)), keepdims=1)

    # Shapes

    def reshape(self, x: str, shape: Shape) -> str:
        """x reshaped; one dimension may be None."""
        if shape.count(None) > 1:
            raise NoRule("several dimensions follow the batch")
        return self.op("Reshape", x, self.constant([-1 if size is None else size for size in shape]))

    def shape_of(self, like: str) -> str:
        """The shape of a tensor of the model, as a constant where possible."""
        sizes = [size for size in self.shape(like) if size is not None]
        return self.constant(sizes) if len(sizes) == len(self.shape(like)) else self.op("Shape", like)

    def reshape_like(self, x: str, like: str) -> str:
        """x reshaped to the shape of a tensor of the model."""
        if self.shape(like).count(None) > 1:
            return self.op("Reshape", x, self.op("Shape", like))
        return self.reshape(x, self.shape(like))

    def expand_like(self, x: str, like: str, axes: Sequence[int]) -> str:
        """x repeated along axes of size 1 to the size of a tensor of the model."""
        shape = self.shape(like)
        if any(shape[axis] is None for axis in axes):
            return self.op("Expand", x, self.op("Shape", like))
        target = [size if axis in axes and size is not None else 1 for axis, size in enumerate(shape)]
        return self.op("Expand", x, self.constant(target))

    def zeros_like(self, like: str) -> str:
        """Zeros in the shape of a tensor of the model."""
        zero = helper.make_tensor("zero", self.facts.float_kind, [1], [0.0])
        return self.op("ConstantOfShape", self.shape_of(like), value=zero)

    def summed_to(self, grad: str, shape: Shape, target: Shape) -> str:
        """A gradient summed over the axes along which the target was broadcast to its shape."""
        lead = len(shape) - len(target)
        repeated = [lead + i for i, size in enumerate(target) if size == 1 and shape[lead + i] != 1]
        grad = self.sum(grad, repeated)
        return self.sum(grad, range(lead), keep=False)

    def pad(self, x: str, rank: int, before: Mapping[int, int], after: Mapping[int, int]) -> str:
        """Zeros added around the named axes; negative numbers crop instead."""
        pairs = {axis: (before.get(axis, 0), after.get(axis, 0)) for axis in {*before, *after}}
        cropped = {axis: pair for axis, pair in sorted(pairs.items()) if min(pair) < 0}
        if cropped:
            starts = [max(0, -first) for first, _ in cropped.values()]
            ends = [last if last < 0 else AXIS_END for _, last in cropped.values()]
            x = self.op("Slice", x, *map(self.constant, (starts, ends, list(cropped))))
        pads = [max(0, margins.get(axis, 0)) for margins, axis in product((before, after), range(rank))]
        return self.op("Pad", x, self.constant(pads)) if any(pads) else x

    def flipped(self, x: str, axes: Sequence[int]) -> str:
        """x in reverse order along axes."""
        back, end = ([number] * len(axes) for number in (-1, BEFORE_START))
        return self.op("Slice", x, *map(self.constant, (back, end, list(axes), back)))

    def every(self, x: str, axes: Sequence[int], starts: Sequence[int], steps: Sequence[int]) -> str:
        """Every so many numbers of x along axes, from the start of each."""
        if all(step == 1 for step in steps):
            return x
        ends = [AXIS_END] * len(axes)
        return self.op("Slice", x, *map(self.constant, (list(starts), ends, list(axes), list(steps))))

    def spread(self, x: str, shape: Shape, steps: Mapping[int, int]) -> str:
        """Each number followed by step - 1 zeros along the named axes."""
        sizes, steps = list(shape), {axis: step for axis, step in steps.items() if step > 1}
        for axis, step in sorted(steps.items(), reverse=True):
            size = sizes[axis]
            if axis == len(sizes) - 1 and size is not None and size * step <= _LONGEST_PRODUCT:
                # Along the last axis, a CPU's Pad takes twenty times as long as a product with a matrix of 0 and 1.
                x = self.along(axis, np.eye(size * step)[:, ::step], x, tuple(sizes))
            else:
                # One axis at a time, in four dimensions: in six the CUDA provider's Pad takes 13 times as long.
                folded = self.reshape(x, (_size_of(sizes[: axis + 1]), 1, 1, _size_of(sizes[axis + 1 :])))
                x = self.pad(folded, 4, {}, {2: step - 1})
            sizes[axis] = _size_of([size, step])
        return self.reshape(x, tuple(sizes)) if steps else x

    def along(self, axis: int, matrix: Array, x: str, shape: Shape) -> str:
        """The matrix [m, n] applied along an axis of size n of x."""
        tail = shape[axis + 1 :]
        if not tail:
            return self.op("MatMul", x, self.array(matrix.T))
        tail_size = _size_of(tail)
        if tail_size is None:
            raise NoRule("an axis behind it follows the batch")
        folded = self.reshape(x, (None, shape[axis], tail_size))
        mapped = self.op("MatMul", self.array(matrix), folded)
        return self.reshape(mapped, (*shape[:axis], len(matrix), *tail))

    def put_back(self, parts: Iterable[Sequence[str]], like: str) -> str:
        """Gradients added to zeros in the shape of `like`, part by part, at flat positions that may repeat."""
        total = self.op("Reshape", self.zeros_like(like), self.constant([-1]))
        for part in parts:
            numbers, positions = (self.op("Reshape", x, self.constant([-1])) for x in part)
            total = self.op("ScatterElements", total, positions, numbers, axis=0, reduction="add")
        return self.reshape_like(total, like)

    # The forward pass

    def side_output(self, node: Node, index: int) -> str:
        """A further result of a node, added to its outputs where it is missing."""
        outputs = node.proto.output
        outputs.extend([""] * (index + 1 - len(outputs)))
        outputs[index] = name = outputs[index] or self.name(f"{node.operator.lower()}_side")
        return str(name)


def _size_of(sizes: Sequence[int | None]) -> int | None:
    """The size of several axes taken as one; None where one of them follows the batch."""
    return None if None in sizes else prod(size for size in sizes if size is not None)


Grads = Sequence[str | None]  # None where no gradient flows
RULES: dict[str, Callable[[Builder, Node, Grads, Sequence[bool]], Grads]] = {}
_RuleOfFirst = Callable[[Builder, Node, str], str]
RulePerOperand = Callable[[Builder, Node, str, int], str]


def rule(*operators: str) -> Callable[[_RuleOfFirst], _RuleOfFirst]:
    """Register a rule for the first operand of operators with one result."""

    def register(function: _RuleOfFirst) -> _RuleOfFirst:
        def apply(b: Builder, node: Node, grads: Grads, needed: Sequence[bool]) -> Grads:
            if any(needed[1:]):
                raise NoRule(f"its operand {needed.index(True, 1) + 1} depends on the image")
            return [function(b, node, _only_result(grads))]

        RULES.update(dict.fromkeys(operators, apply))
        return function

    return register


def rules(**table: _RuleOfFirst) -> None:
    """Register a rule for the first operand of each operator."""
    for operator, function in table.items():
        rule(operator)(function)


def rule_per_operand(*operators: str) -> Callable[[RulePerOperand], RulePerOperand]:
    """Register a rule for any operand."""

    def register(function: RulePerOperand) -> RulePerOperand:
        def apply(b: Builder, node: Node, grads: Grads, needed: Sequence[bool]) -> Grads:
            grad = _only_result(grads)
            return [function(b, node, grad, index) if need else None for index, need in enumerate(needed)]

        RULES.update(dict.fromkeys(operators, apply))
        return function

    return register


def _only_result(grads: Grads) -> str:
    if grads[0] is None or any(grads[1:]):
        raise NoRule("a side result of it is used")
    return grads[0]
