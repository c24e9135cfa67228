"""New nodes and constants for a graph, under names that the graph does not use yet."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import helper, numpy_helper

from auditkit.graph import edit


class Builder:
    """Collects nodes and constants for a graph; `into` appends them to it."""

    def __init__(self, graph: onnx.GraphProto, prefix: str = "auditkit") -> None:
        self.prefix = prefix
        self.taken = edit.all_names(graph)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._constant_names: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._counts: Counter[str] = Counter()

    def name(self, stem: str) -> str:
        """A new name: the prefix, the stem and the first free number."""
        while True:
            self._counts[stem] += 1
            name = f"{self.prefix}_{stem}_{self._counts[stem]}"
            if name not in self.taken:
                self.taken.add(name)
                return name

    def constant(self, values: ArrayLike, dtype: DTypeLike = np.int64) -> str:
        """Name of a constant; equal constants share one name."""
        array = np.asarray(values, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constant_names:
            self._constant_names[key] = self.name("constant")
            self.constants.append(numpy_helper.from_array(array, self._constant_names[key]))
        return self._constant_names[key]

    def node(self, operator: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Name of the output of a new node."""
        output = output or self.name(operator.lower())
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def into(self, graph: onnx.GraphProto) -> None:
        """Append the collected nodes and constants to the graph."""
        graph.node.extend(self.nodes)
        graph.initializer.extend(self.constants)
