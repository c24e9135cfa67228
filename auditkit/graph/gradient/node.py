"""A node as rules read it."""

from typing import Any

import onnx
from onnx import helper

from auditkit.graph import edit


class Node:
    """An operator with its operands, results and attributes by name."""

    def __init__(self, proto: onnx.NodeProto) -> None:
        self.proto = proto
        self.operator = proto.op_type
        self.inputs: list[str] = list(proto.input)
        self.outputs: list[str] = list(proto.output)
        self.attributes: dict[str, Any] = {entry.name: helper.get_attribute_value(entry) for entry in proto.attribute}

    @property
    def x(self) -> str:
        """The first operand."""
        return self.inputs[0]

    @property
    def y(self) -> str:
        """The first result."""
        return self.outputs[0]

    @property
    def reads(self) -> set[str]:
        """All that it is computed from, what its subgraphs take from outside included."""
        return set(edit.names_read(self.proto))

    def operand(self, index: int) -> str | None:
        """An operand that may be left out."""
        return self.inputs[index] if index < len(self.inputs) and self.inputs[index] else None

    def get(self, name: str, default: Any) -> Any:
        """An attribute, or what the standard says when it is left out; text as str."""
        value = self.attributes.get(name, default)
        if isinstance(value, bytes):
            return value.decode()
        return list(value) if isinstance(default, list) else value
