"""Reverse-mode differentiation of ONNX graphs: `engine` walks a graph, by the rules in `rules_*`.

    gradients = backward(builder, graph, seeds={"logits": "seed"}, wrt=["image"])

A rule is a fact about one operator, in terms of tensors' names: it adds nodes to the builder and returns the name of
the gradient. `Facts` holds the shapes it needs, which were measured by running the model.
"""

# Importing a file of rules registers them.
from auditkit.graph.gradient import rules_conv, rules_linear, rules_math, rules_reduce, rules_shape  # noqa: F401
from auditkit.graph.gradient.builder import RULES, Builder, Facts
from auditkit.graph.gradient.engine import Missing, backward, missing_rules, unreached

__all__ = ["RULES", "Builder", "Facts", "Missing", "backward", "missing_rules", "unreached"]
