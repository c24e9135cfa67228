"""Gradients that a vendor's file contains: an input for the seed, an output for the gradient."""

import onnx

from auditkit.errors import BadInput
from auditkit.graph import edit
from auditkit.graph.gradient.export import GRADIENT, SEED


def ends(model: onnx.ModelProto, gradient_output: str | None = None) -> tuple[str, str] | None:
    """Names of the seed and the gradient, if a file has both: 'seed' and 'gradient' unless an output is named."""
    outputs = {value.name for value in model.graph.output}
    gradient = gradient_output or GRADIENT
    scores = outputs - {gradient}
    for_scores = edit.ancestors(model.graph, scores)
    seeds = [v.name for v in edit.real_inputs(model.graph) if scores and v.name not in for_scores]
    if gradient in outputs and (seeds == [SEED] or (len(seeds) == 1 and gradient_output)):
        return seeds[0], gradient
    if gradient_output is None:
        return None
    if gradient not in outputs:
        raise BadInput(f"the model has no output '{gradient}'; it has {', '.join(sorted(outputs))}.")
    raise BadInput(
        f"'{gradient}' is no gradient: it needs one input of its own, the seed [N, classes], and has "
        f"{', '.join(seeds) or 'none'}."
    )


def without_gradient(model: onnx.ModelProto, gradient_output: str | None = None) -> onnx.ModelProto:
    """The classifier alone; a model without a gradient is returned unchanged."""
    names = ends(model, gradient_output)
    if names is None:
        return model
    seed, gradient = names
    outputs = [value.name for value in model.graph.output if value.name != gradient]
    return edit.without_inputs(edit.with_outputs(model, outputs), [seed])


def with_standard_names(model: onnx.ModelProto, output: str, names: tuple[str, str]) -> onnx.ModelProto:
    """The vendor's scores and gradient under the names of our gradient files."""
    fresh = edit.with_outputs(model, [output, names[1]])
    renamed = dict(zip(names, (SEED, GRADIENT), strict=True))
    for node in fresh.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    for value in (*fresh.graph.input, *fresh.graph.output):
        value.name = renamed.get(value.name, value.name)
    return fresh
