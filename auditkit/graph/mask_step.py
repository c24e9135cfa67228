"""One step of learning masks as one graph: masks, masked images, the network, the loss, its gradient, Adam.

The state goes in and comes out, and can stay on the device between steps, as can the bank of pictures. Only the
infills' positions in that bank are new in every step. Losses and masks are those before the step.
"""

import numpy as np
import onnx

from auditkit.arrays import Array
from auditkit.graph import edit
from auditkit.graph import mask_objective as names
from auditkit.graph.gradient import Builder, Facts, backward
from auditkit.graph.gradient.export import GRADIENT, SEED
from auditkit.graph.hard_masks import Ends
from auditkit.graph.mask_objective import STATE, Objective, Recipe

_OUTPUTS = (names.DATA_LOSS, names.LOSS, names.MASK)
MEMORY, _EPSILON = 0.9, 1e-8  # Adam's beta1 and epsilon, as in its paper


def step(
    network: onnx.ModelProto, ends: Ends, recipe: Recipe, objective: type[Objective] = Objective
) -> onnx.ModelProto:
    """The graph of one step, over a network that takes a seed and returns its gradient too."""
    edit.refuse_names(network.graph, {*STATE, *STATE.values(), *names.INPUTS, *_OUTPUTS})
    fresh, b, gradient = with_gradient_of_weights(network, ends, objective, recipe)
    _add_adam(b, gradient, recipe)
    inputs = [recipe.declared(name, ends) for name in (*STATE, *names.INPUTS)]
    outputs = [recipe.declared(name, ends) for name in (*STATE.values(), *_OUTPUTS)]
    return closed(fresh, b, ends, inputs, outputs)


def with_gradient_of_weights(
    network: onnx.ModelProto, ends: Ends, objective: type[Objective], recipe: Recipe
) -> tuple[onnx.ModelProto, Builder, str]:
    """The network between masked images and their loss, a builder for further nodes, and the weights' gradient."""
    fresh = edit.copy(network)
    graph = fresh.graph
    head, tail = (objective(graph, ends, recipe, prefix) for prefix in ("auditkit_head", "auditkit_tail"))
    penalty = head.penalties(head.composed())
    scores = tail.reshaped(ends.output, (*tail.rows, ends.outputs))
    data_loss = tail.data_loss(scores)
    tail.node("Add", [data_loss, penalty], names.LOSS)
    after_seed = edit.descendants(graph.node, [SEED])
    forward = [node for node in graph.node if after_seed.isdisjoint(node.output)]
    from_seed = [node for node in graph.node if not after_seed.isdisjoint(node.output)]
    taken = edit.all_names(graph)
    edit.replace(graph.node, [*head.nodes, *forward, *tail.nodes])
    graph.initializer.extend([*head.constants, *tail.constants])
    b = Builder(graph, Facts(head.shapes | tail.shapes, {}))
    b.taken |= taken  # including the names of the nodes that follow the seed
    ones = b.as_float(b.op("Equal", names.LABEL, names.LABEL))  # without Shape, which the runtime computes on the CPU
    seed = backward(b, graph, {data_loss: ones}, [scores])[scores]
    b.node("Mul", [seed, b.array(recipe.scale)], SEED)
    b.nodes.extend(from_seed)
    seeds = {ends.input: b.mul(GRADIENT, 1 / recipe.scale), penalty: ones}
    return fresh, b, backward(b, graph, seeds, [names.WEIGHTS])[names.WEIGHTS]


def closed(
    model: onnx.ModelProto, b: Builder, ends: Ends, inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
) -> onnx.ModelProto:  # fmt: skip
    """The model with the nodes of the builder, between its new inputs and outputs."""
    graph = model.graph
    b.into(graph)
    kept = [value for value in edit.real_inputs(graph) if value.name not in (ends.input, SEED)]
    edit.replace(graph.input, [*inputs, *kept])
    edit.replace(graph.output, outputs)
    del graph.value_info[:]
    return model


def _add_adam(b: Builder, gradient: str, recipe: Recipe) -> None:
    """Add Adam's update of the state; bias corrections are in double, where 1 - 0.999^t does not cancel."""

    def corrected(moment: str, memory: float) -> str:
        power = b.op("Pow", b.constant(memory, np.float64), count)
        return b.div(moment, b.as_float(b.op("Sub", b.constant(1.0, np.float64), power)))

    count = b.node("Add", [names.COUNT, b.constant(1.0, np.float64)], STATE[names.COUNT])
    first = b.node("Add", [b.mul(names.FIRST, MEMORY), b.mul(gradient, 1 - MEMORY)], STATE[names.FIRST])
    second = b.node(
        "Add", [b.mul(names.SECOND, recipe.memory), b.mul(b.square(gradient), 1 - recipe.memory)], STATE[names.SECOND]
    )
    length = b.add(b.op("Sqrt", corrected(second, recipe.memory)), _EPSILON)
    move = b.mul(b.div(corrected(first, MEMORY), length), recipe.rate)
    if recipe.slowing != 1:
        move = b.op("Mul", move, b.as_float(b.op("Pow", b.constant(recipe.slowing, np.float64), names.COUNT)))
    if recipe.clamped:
        b.node("Clip", [b.sub(names.WEIGHTS, move), b.array(0.0), b.array(1.0)], STATE[names.WEIGHTS])
    else:
        b.node("Sub", [names.WEIGHTS, move], STATE[names.WEIGHTS])


def initial_state(pairs: int, ends: Ends, recipe: Recipe) -> dict[str, Array]:
    """The state before the first step; weights of 0 make every mask one half."""
    shape = (pairs, recipe.masks, *recipe.grid(ends))
    values = {names.WEIGHTS: recipe.start, names.FIRST: 0.0, names.SECOND: 0.0}
    state: dict[str, Array] = {name: np.full(shape, value, np.float32) for name, value in values.items()}
    return state | {names.COUNT: np.zeros((pairs, 1, 1, 1))}
