"""Reverse-mode differentiation of ONNX graphs: `engine` walks, `registry` says which rule, `rules_*` hold the rules.

    gradients = backward(builder, graph, seeds={"logits": "seed"}, wrt=["image"])

A rule is a fact about one operator, in terms of tensors' names: it adds nodes to the builder and returns the name of
the gradient. What it must know of shapes was found by running the model (`Facts`).
"""

from auditkit.graph.gradient import (
    rules_conv,
    rules_linear,
    rules_math,
    rules_norm,
    rules_pool,
    rules_reduce,
    rules_resize,
    rules_select,
    rules_shape,
)
from auditkit.graph.gradient.builder import Builder, Facts
from auditkit.graph.gradient.engine import backward, unreached
from auditkit.graph.gradient.missing import Missing, missing_rules
from auditkit.graph.gradient.registry import RULES

FAMILIES = (  # importing a file of rules registers them
    rules_conv, rules_linear, rules_math, rules_norm, rules_pool, rules_reduce, rules_resize, rules_select, rules_shape,
)  # fmt: skip

__all__ = ["FAMILIES", "RULES", "Builder", "Facts", "Missing", "backward", "missing_rules", "unreached"]
