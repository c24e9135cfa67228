"""One step of learning masks as one graph: masks, masked images, the network, the loss, its gradient, Adam.

What is learned goes in and comes out, and can stay on the device between two steps; the pictures lie there in a bank.
Only the infills' places in that bank are new at every step. Losses and masks are those before the step.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph import edit
from auditkit.graph.gradient import Builder, Facts, backward
from auditkit.graph.gradient.export import GRADIENT, SEED
from auditkit.graph.hard_masks import Ends
from auditkit.graph.mask_objective import (
    DATA_LOSS,
    IMAGE,
    INFILLS,
    LABEL,
    LOSS,
    MASK,
    PICTURES,
    WEIGHTS,
    Objective,
    Recipe,
)

FIRST, SECOND = "auditkit_first_moment", "auditkit_second_moment"  # [M, masks, h, w], as the weights
COUNT = "auditkit_steps"  # [M, 1, 1, 1] float64, steps done
STATE = {name: f"{name}_next" for name in (WEIGHTS, FIRST, SECOND, COUNT)}
NAMES = frozenset({PICTURES, IMAGE, LABEL, INFILLS, *STATE, *STATE.values(), DATA_LOSS, LOSS, MASK})
MEMORY, EPSILON = 0.9, 1e-8  # Adam's


def step(
    network: onnx.ModelProto, ends: Ends, recipe: Recipe, objective: type[Objective] = Objective
) -> onnx.ModelProto:
    """The graph of one step over a network that takes a seed and returns its gradient too."""
    fresh, b, slope = with_slope(network, ends, objective, recipe)
    _adam(b, slope, recipe)
    return closed(fresh, b, ends, _inputs(ends, recipe), _outputs(ends, recipe))


def with_slope(
    network: onnx.ModelProto, ends: Ends, objective: type[Objective], recipe: Recipe, own: frozenset[str] = NAMES
) -> tuple[onnx.ModelProto, Builder, str]:
    """The network between masked images and their loss, a builder for what follows, and the weights' gradient."""
    fresh = edit.copy(network)
    graph = fresh.graph
    if clash := edit.all_names(graph) & own:
        raise BadInput(f"the model already has a tensor named '{clash.pop()}', a name that auditkit adds itself.")
    head, tail = (objective(graph, ends, recipe, prefix) for prefix in ("auditkit_head", "auditkit_tail"))
    penalty = head.penalties(head.composed())
    scores = tail.scores()
    data = tail.data_loss(scores)
    tail.node("Add", [data, penalty], LOSS)
    before, after = _apart(graph)
    taken = edit.all_names(graph)
    _replace(graph.node, [*head.nodes, *before, *tail.nodes])
    graph.initializer.extend([*head.constants, *tail.constants])
    b = Builder(graph, Facts(head.shapes | tail.shapes, {}))
    b.taken |= taken  # by nodes that are set aside, too
    ones = b.as_float(b.op("Equal", LABEL, LABEL))  # shapes are computed on the CPU, so that none is asked for
    seed = backward(b, graph, {data: ones}, [scores])[scores]
    b.node("Mul", [seed, b.array(recipe.scale)], SEED)
    b.nodes.extend(after)
    arriving = {ends.input: b.mul(GRADIENT, 1 / recipe.scale), penalty: ones}
    return fresh, b, backward(b, graph, arriving, [WEIGHTS])[WEIGHTS]


def closed(
    model: onnx.ModelProto, b: Builder, ends: Ends, inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
) -> onnx.ModelProto:  # fmt: skip
    """The model with what was built, between its new ends."""
    graph = model.graph
    b.into(graph)
    kept = [value for value in edit.real_inputs(graph) if value.name not in (ends.input, SEED)]
    _replace(graph.input, [*inputs, *kept])
    _replace(graph.output, outputs)
    del graph.value_info[:]
    return model


def _replace(entries: Any, others: Sequence[Any]) -> None:
    del entries[:]
    entries.extend(others)


def _apart(graph: onnx.GraphProto) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    """The nodes that compute the scores, and those that wait for the seed."""
    waiting = {SEED}
    parts: tuple[list[onnx.NodeProto], list[onnx.NodeProto]] = ([], [])
    for node in graph.node:
        waits = not waiting.isdisjoint(edit.names_read(node))
        if waits:
            waiting.update(node.output)
        parts[waits].append(node)
    return parts


def _adam(b: Builder, gradient: str, recipe: Recipe) -> None:
    """The next state; the corrections for its start are in double, where 1 - 0.999^t does not cancel."""

    def corrected(moment: str, memory: float) -> str:
        power = b.op("Pow", b.constant(memory, np.float64), count)
        return b.div(moment, b.as_float(b.op("Sub", b.constant(1.0, np.float64), power)))

    count = b.node("Add", [COUNT, b.constant(1.0, np.float64)], STATE[COUNT])
    first = b.node("Add", [b.mul(FIRST, MEMORY), b.mul(gradient, 1 - MEMORY)], STATE[FIRST])
    second = b.node("Add", [b.mul(SECOND, recipe.memory), b.mul(b.square(gradient), 1 - recipe.memory)], STATE[SECOND])
    length = b.add(b.op("Sqrt", corrected(second, recipe.memory)), EPSILON)
    move = b.mul(b.div(corrected(first, MEMORY), length), recipe.rate)
    if recipe.slowing != 1:
        move = b.op("Mul", move, b.as_float(b.op("Pow", b.constant(recipe.slowing, np.float64), COUNT)))
    if recipe.clamped:
        b.node("Clip", [b.sub(WEIGHTS, move), b.array(0.0), b.array(1.0)], STATE[WEIGHTS])
    else:
        b.node("Sub", [WEIGHTS, move], STATE[WEIGHTS])


def _declared(name: str, kind: int, first: int | str, *sizes: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [first, *sizes])


def _inputs(ends: Ends, recipe: Recipe) -> list[onnx.ValueInfoProto]:
    pairs = recipe.pairs or "M"
    return [
        *_state(STATE, ends, recipe),
        _declared(PICTURES, TensorProto.FLOAT, "P", *ends.picture),
        _declared(IMAGE, TensorProto.INT32, pairs),
        _declared(LABEL, TensorProto.INT32, pairs),
        _declared(INFILLS, TensorProto.INT32, pairs, recipe.infills),
    ]


def _outputs(ends: Ends, recipe: Recipe) -> list[onnx.ValueInfoProto]:
    pairs = recipe.pairs or "M"
    return [
        *_state(STATE.values(), ends, recipe),
        *(_declared(name, TensorProto.FLOAT, pairs) for name in (DATA_LOSS, LOSS)),
        _declared(MASK, TensorProto.FLOAT, pairs, ends.height, ends.width),
    ]


def _state(names: Iterable[str], ends: Ends, recipe: Recipe) -> list[onnx.ValueInfoProto]:
    pairs = recipe.pairs or "M"
    *moments, count = names
    shape = (recipe.masks, *recipe.grid(ends))
    return [
        *(_declared(name, TensorProto.FLOAT, pairs, *shape) for name in moments),
        _declared(count, TensorProto.DOUBLE, pairs, 1, 1, 1),
    ]


def start(pairs: int, ends: Ends, recipe: Recipe) -> dict[str, Array]:
    """The state before the first step; weights of 0 make every mask one half."""
    shape = (pairs, recipe.masks, *recipe.grid(ends))
    begin = {WEIGHTS: recipe.start, FIRST: 0.0, SECOND: 0.0}
    state: dict[str, Array] = {name: np.full(shape, number, np.float32) for name, number in begin.items()}
    return state | {COUNT: np.zeros((pairs, 1, 1, 1))}
