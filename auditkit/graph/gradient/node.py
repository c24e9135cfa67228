"""A node as rules read it."""

from typing import TypeVar

import onnx

from auditkit.graph import edit

T = TypeVar("T")


class NoRule(Exception):
    """Why a node cannot be differentiated, although its operator has a rule."""


class Node:
    """An operator with its operands, results and attributes by name."""

    def __init__(self, proto: onnx.NodeProto) -> None:
        self.proto = proto
        self.operator = proto.op_type
        self.inputs: list[str] = list(proto.input)
        self.outputs: list[str] = list(proto.output)
        self.attributes = edit.attributes(proto)

    @property
    def x(self) -> str:
        """The first operand."""
        return self.inputs[0]

    @property
    def y(self) -> str:
        """The first result."""
        return self.outputs[0]

    def operand(self, index: int) -> str | None:
        """An operand that may be left out."""
        return self.inputs[index] if index < len(self.inputs) and self.inputs[index] else None

    def get(self, name: str, default: T) -> T:
        """An attribute, or the standard's default for it."""
        value: T = self.attributes.get(name, default)
        return value
