"""Gradients that a vendor's file brings along: an input for the seed, an output for the gradient."""

import onnx

from auditkit.errors import BadInput
from auditkit.graph import edit
from auditkit.graph.gradient.export import GRADIENT, SEED


def ends(model: onnx.ModelProto, gradient_output: str | None = None) -> tuple[str, str] | None:
    """Names of the seed and of the gradient, where a file has both: 'seed' and 'gradient', unless told otherwise."""
    outputs = {value.name for value in model.graph.output}
    wanted = gradient_output or GRADIENT
    scores = outputs - {wanted}
    for_scores = edit.ancestors(model.graph, scores)
    seeds = [v.name for v in edit.real_inputs(model.graph) if scores and v.name not in for_scores]
    if wanted in outputs and (seeds == [SEED] or (len(seeds) == 1 and gradient_output)):
        return seeds[0], wanted
    if gradient_output is None:
        return None
    if wanted not in outputs:
        raise BadInput(f"the model has no output '{wanted}'; it has {', '.join(sorted(outputs))}.")
    raise BadInput(
        f"'{wanted}' is no gradient: it needs one input of its own, the seed [N, classes], and has "
        f"{', '.join(seeds) or 'none'}."
    )


def without_gradient(model: onnx.ModelProto, gradient_output: str | None = None) -> onnx.ModelProto:
    """The classifier alone: a file that brings no gradient as it is."""
    found = ends(model, gradient_output)
    if found is None:
        return model
    fresh = edit.with_outputs(model, [value.name for value in model.graph.output if value.name != found[1]])
    kept = [value for value in fresh.graph.input if value.name != found[0]]
    del fresh.graph.input[:]
    fresh.graph.input.extend(kept)
    return fresh


def in_our_form(model: onnx.ModelProto, output: str, names: tuple[str, str]) -> onnx.ModelProto:
    """The vendor's scores and gradient, under the names that gradient files have here."""
    fresh = edit.with_outputs(model, [output, names[1]])
    renamed = dict(zip(names, (SEED, GRADIENT), strict=True))
    for node in fresh.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    for value in (*fresh.graph.input, *fresh.graph.output):
        value.name = renamed.get(value.name, value.name)
    return fresh
