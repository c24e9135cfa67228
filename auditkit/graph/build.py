"""New nodes and constants for a graph, under names that nothing in it uses yet."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from auditkit.graph import edit


class Builder:
    """Collects nodes and constants for a graph; `into` appends them to it."""

    def __init__(self, graph: onnx.GraphProto, prefix: str = "auditkit") -> None:
        self.prefix = prefix
        self.taken = edit.all_names(graph)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._numbers: Counter[str] = Counter()

    def name(self, wanted: str) -> str:
        """`wanted` behind the prefix, with the first number that makes it new."""
        while True:
            self._numbers[wanted] += 1
            found = f"{self.prefix}_{wanted}_{self._numbers[wanted]}"
            if found not in self.taken:
                self.taken.add(found)
                return found

    def constant(self, values: Any, kind: Any = np.int64) -> str:
        """Name of a constant; equal ones are one."""
        array = np.asarray(values, kind)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = self.name("constant")
            self.constants.append(numpy_helper.from_array(array, self._known[key]))
        return self._known[key]

    def node(self, operator: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Name of what a new node computes."""
        output = output or self.name(operator.lower())
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def into(self, graph: onnx.GraphProto) -> None:
        """Append what was collected to the graph."""
        graph.node.extend(self.nodes)
        graph.initializer.extend(self.constants)
