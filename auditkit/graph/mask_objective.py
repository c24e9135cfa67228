"""The objective by which masks are learned, as nodes: masked images in front of a network, the loss behind it.

    minimise over W    mean over infills of -log f(M x + (1 - M) infill, label)  +  tv TV(M)  +  l1 |M|
    M = upsampled(sigmoid(W)),  TV = sum of squared differences of neighbours,  |M| = sum

Several masks for one image and label are disjoint: they are a softmax over their weights and a background of weight 0,
which for one mask is the sigmoid. Each mask should suffice alone: the loss is the mean of theirs. The map is their sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from auditkit.arrays import Array
from auditkit.graph import edit
from auditkit.graph.gradient import Builder, Facts, backward
from auditkit.graph.gradient.builder import Shape
from auditkit.graph.gradient.export import GRADIENT, SEED
from auditkit.graph.hard_masks import Ends
from auditkit.graph.upsampling import Upsampling

PICTURES = "auditkit_pictures"  # [P, ...] float32, images and infills in the form the network takes
IMAGE, LABEL = "auditkit_image", "auditkit_label"  # [M] int32: position in the bank, class
INFILLS = "auditkit_infills"  # [M, infills] int32, positions in the bank
RATE = "auditkit_rate"  # [M, 1, 1, 1], of learning
INPUTS = (PICTURES, IMAGE, LABEL, INFILLS, RATE)
WEIGHTS = "auditkit_weights"  # [M, masks, h, w]
DATA_LOSS, LOSS = "auditkit_data_loss", "auditkit_loss"  # [M]
MASK = "auditkit_mask"  # [M, H, W], the sum of disjoint ones
FIRST, SECOND = "auditkit_first_moment", "auditkit_second_moment"  # as the weights
COUNT = "auditkit_steps"  # [M, 1, 1, 1] float64, steps done
STATE = {name: f"{name}_next" for name in (WEIGHTS, FIRST, SECOND, COUNT)}
_OUTPUTS = (DATA_LOSS, LOSS, MASK)
MEMORY, _EPSILON = 0.9, 1e-8  # Adam's beta1 and epsilon, as in its paper
_FLOOR = 1e-30  # added to probabilities before their logarithm, so that log 0 stays finite in float32


@dataclass(frozen=True)
class Recipe:
    """The terms of the objective, and how it is minimised."""

    infills: int = 10  # for each mask in every step
    masks: int = 1  # disjoint, for each image and label
    factor: int = 1  # by which masks are upsampled
    tv: float = 0.01
    l1: float = 0.0
    memory: float = 0.999  # Adam's beta2
    code_loss: bool = False  # as in the paper's code: cross-entropy of averaged probabilities, taken for logits
    pairs: int | None = None  # of image and label in a batch; None: any number
    scale: float = 1.0  # of gradients inside the network, so that they do not underflow in half precision
    start: float = 0.0  # the weights before the first step
    clamped: bool = False  # the weights are the masks, kept between 0 and 1

    @property
    def rows(self) -> int:
        """Images that the network sees for each pair."""
        return self.infills * self.masks

    def grid(self, ends: Ends) -> tuple[int, int]:
        """Height and width of the weights."""
        return -(-ends.height // self.factor), -(-ends.width // self.factor)

    def declared(self, name: str, ends: Ends) -> onnx.ValueInfoProto:
        """An input or output of the graph, with its type and shape; one that is not listed holds a float per pair."""
        pairs, int32 = self.pairs or "M", TensorProto.INT32
        weights: list[int | str] = [pairs, self.masks, *self.grid(ends)]
        shapes: dict[str, list[int | str]] = {
            PICTURES: ["P", *ends.picture], INFILLS: [pairs, self.infills], MASK: [pairs, ends.height, ends.width],
            WEIGHTS: weights, FIRST: weights, SECOND: weights, COUNT: [pairs, 1, 1, 1],
            RATE: [pairs, 1, 1, 1],
        }  # fmt: skip
        kinds = {IMAGE: int32, LABEL: int32, INFILLS: int32, COUNT: TensorProto.DOUBLE}
        key = name.removesuffix("_next")
        return helper.make_tensor_value_info(name, kinds.get(key, TensorProto.FLOAT), shapes.get(key, [pairs]))


class Objective(edit.Builder):
    """Nodes in front of the network and behind it, with the shapes of their results for the backward pass."""

    def __init__(self, graph: onnx.GraphProto, ends: Ends, recipe: Recipe, prefix: str) -> None:
        super().__init__(graph, prefix)
        self.ends, self.recipe = ends, recipe
        self.classes = max(ends.outputs, 2)  # a single score has two labels
        self.pair: Shape = (recipe.pairs,)
        self.rows: Shape = (None if recipe.pairs is None else recipe.pairs * recipe.rows,)
        self.shapes: dict[str, Shape] = {WEIGHTS: (recipe.pairs, recipe.masks, *recipe.grid(ends))}

    def put(self, operator: str, inputs: list[str], shape: Shape, output: str | None = None, **attributes: Any) -> str:
        """A node whose result has a known shape."""
        name = self.node(operator, inputs, output, **attributes)
        self.shapes[name] = shape
        return name

    def reshaped(self, x: str, shape: Shape, output: str | None = None) -> str:
        """x reshaped; the first dimension may follow the batch."""
        return self.put("Reshape", [x, self.constant([-1 if size is None else size for size in shape])], shape, output)

    def number(self, value: float) -> str:
        """A float constant."""
        name = self.constant(value, np.float32)
        self.shapes[name] = ()
        return name

    # In front of the network

    def masks(self) -> str:
        """The masks [M, masks, H, W], from 0 (infill) to 1 (image)."""
        shape, count = self.shapes[WEIGHTS], self.recipe.masks
        if count == 1:
            return self._upsampled(self.put("Sigmoid", [WEIGHTS], shape))
        joined: Shape = (shape[0], count + 1, *shape[2:])
        with_background = self.put("Pad", [WEIGHTS, self.constant([0, 0, 0, 0, 0, 1, 0, 0])], joined)
        shares = self.put("Softmax", [with_background], joined, axis=1)
        return self._upsampled(self._slice(shares, 1, 0, count))

    def _upsampled(self, small: str) -> str:
        """Bilinear; the last rows and columns are cropped where the factor does not divide the image's size."""
        factor, count = self.recipe.factor, self.shapes[small][1]
        if factor == 1:
            return small
        height, width = (size * factor for size in self.recipe.grid(self.ends))
        scales = self.constant([1, 1, factor, factor], np.float32)
        large = self.put("Resize", [small, "", scales], (*self.pair, count, height, width), mode="linear")
        if height != self.ends.height:
            large = self._slice(large, 2, 0, self.ends.height)
        return self._slice(large, 3, 0, self.ends.width) if width != self.ends.width else large

    def _slice(self, x: str, axis: int, start: int, end: int) -> str:
        shape = list(self.shapes[x])
        shape[axis] = end - start
        bounds = [self.constant([number]) for number in (start, end, axis)]
        return self.put("Slice", [x, *bounds], tuple(shape))

    def differences(self, x: str, axis: int) -> str:
        """Each number less the one before it."""
        size = self.shapes[x][axis] or 1
        later, earlier = self._slice(x, axis, 1, size), self._slice(x, axis, 0, size - 1)
        return self.put("Sub", [later, earlier], self.shapes[later])

    def composed(self) -> str:
        """The masks; masked images, infill + mask (image - infill), get the name of the network's input."""
        masks, infills, count = self.masks(), self.recipe.infills, self.recipe.masks
        plane, flat = self._flat_shapes()
        shares = self.reshaped(masks, (*self.pair, count, 1, *plane))
        image, infill = (self.picture(positions) for positions in (IMAGE, INFILLS))
        image = self.reshaped(image, (*self.pair, 1, 1, *flat))
        infill = self.reshaped(infill, (*self.pair, 1, infills, *flat))
        difference = self.put("Sub", [image, infill], (*self.pair, 1, infills, *flat))
        foreground = self.put("Mul", [shares, difference], (*self.pair, count, infills, *flat))
        mixed = self.put("Add", [infill, foreground], (*self.pair, count, infills, *flat))
        self.reshaped(mixed, (*self.rows, *self.ends.picture), self.ends.input)
        return masks

    def _flat_shapes(self) -> tuple[Shape, Shape]:
        """The shapes of a mask and of a picture with rows and columns as one axis."""
        pixels, channels = self.ends.height * self.ends.width, self.ends.channels
        if self.ends.channels_last:
            return (pixels, 1), (pixels, channels)
        return (1, pixels), (channels, pixels)

    def picture(self, positions: str) -> str:
        """Pictures of the bank, which have no gradient."""
        return self.node("Gather", [PICTURES, positions], axis=0)

    def penalties(self, masks: str) -> str:
        """tv TV + l1 |M|, averaged over disjoint masks; the sum of the masks becomes an output."""
        each: Shape = (*self.pair, self.recipe.masks)
        plane = self.constant([2, 3])
        terms = [(self.put("ReduceSum", [masks, plane], each, keepdims=0), self.recipe.l1)]
        for axis, size in ((2, self.ends.height), (3, self.ends.width)):
            if self.recipe.tv and size > 1:
                squares = self.put("ReduceSumSquare", [self.differences(masks, axis), plane], each, keepdims=0)
                terms.append((squares, self.recipe.tv))
        weighted = [self.put("Mul", [term, self.number(weight)], each) for term, weight in terms]
        self.node("ReduceSum", [masks, self.constant([1])], MASK, keepdims=0)
        total = self.put("Sum", weighted, each)
        return self.put("ReduceMean", [total, self.constant([1])], self.pair, keepdims=0)

    # Behind it

    def data_loss(self, scores: str) -> str:
        """-log f(label), averaged over infills and masks."""
        count, infills = self.recipe.masks, self.recipe.infills
        logs = self.log_probabilities(scores)
        if not self.recipe.code_loss:
            return self._mean_at_label(self.reshaped(logs, (*self.pair, count * infills, self.classes)))
        shape: Shape = (*self.pair, count, self.classes)
        probabilities = self.put("Exp", [logs], self.shapes[logs])
        grouped = self.reshaped(probabilities, (*self.pair, count, infills, self.classes))
        average = self.put("ReduceMean", [grouped, self.constant([2])], shape, keepdims=0)
        return self._mean_at_label(self.put("LogSoftmax", [average], shape, axis=-1))

    def _mean_at_label(self, scores: str, sign: float = -1.0) -> str:
        """The mean over rows of [M, rows, classes] at the label, with a sign."""
        shape = self.shapes[scores]
        column = self.node("Reshape", [LABEL, self.constant([-1, 1, 1])])
        is_label = self.node("Equal", [column, self.constant(np.arange(self.classes).reshape(1, 1, -1), np.int32)])
        one_hot = self.put("Cast", [is_label], (*self.pair, 1, self.classes), to=TensorProto.FLOAT)
        at_label = self.put("Mul", [scores, one_hot], shape)
        total = self.put("ReduceSum", [at_label, self.constant([1, 2])], self.pair, keepdims=0)
        return self.put("Mul", [total, self.number(sign / (shape[1] or 1))], self.pair, DATA_LOSS)

    def log_probabilities(self, scores: str) -> str:
        """Logarithms of probabilities [rows, labels], from scores of any kind; a single p has the labels (1-p, p)."""
        ends = self.ends
        labels: Shape = (*self.rows, self.classes)
        if ends.kind == "logits":  # of a single logit z, the softmax of (0, z)
            logits = scores if ends.outputs > 1 else self.put("Pad", [scores, self.constant([0, 1, 0, 0])], labels)
            return self.put("LogSoftmax", [logits], labels, axis=-1)
        if ends.kind == "log-probabilities" and ends.outputs > 1:
            return scores
        likely = self.put("Exp", [scores], self.shapes[scores]) if ends.kind == "log-probabilities" else scores
        if ends.outputs == 1:
            rest = self.put("Sub", [self.number(1.0), likely], self.shapes[scores])
            likely = self.put("Concat", [rest, likely], labels, axis=1)
        return self.put("Log", [self.put("Add", [likely, self.number(_FLOOR)], labels)], labels)


def upsampling(ends: Ends, factor: int) -> Upsampling:
    """What the graph does to coarse masks."""
    return Upsampling("bilinear", factor, (ends.height, ends.width))


def coarse_masks(weights: Array) -> Array:
    """The masks [M, h, w] of weights [M, masks, h, w] at their own resolution; disjoint ones are summed."""
    background = np.zeros_like(weights[:, :1])
    top = np.maximum(weights.max(axis=1, keepdims=True), background)
    shares = np.exp(weights - top)
    small = shares / (shares.sum(axis=1, keepdims=True) + np.exp(background - top))
    return np.asarray(small.sum(axis=1))


def before_squashing(graph: onnx.GraphProto, ends: Ends, shapes: Mapping[str, Shape]) -> Ends:
    """The ends with logits for scores, where a final Softmax, or the Sigmoid of a single score, hides them."""
    node = edit.producers(graph).get(ends.output)
    if node is None or len(shapes.get(ends.output, ())) != 2:
        return ends
    softmax = node.op_type == "Softmax" and ends.outputs > 1 and edit.attribute(node, "axis", -1) in (1, -1)
    if not softmax and (node.op_type != "Sigmoid" or ends.outputs > 1):
        return ends
    return replace(ends, output=node.input[0], kind="logits")


def step(
    network: onnx.ModelProto, ends: Ends, recipe: Recipe, objective: type[Objective] = Objective
) -> onnx.ModelProto:
    """The graph of one step of Adam, over a network that takes a seed and returns its gradient too."""
    # State and pictures can stay on the device between steps. Losses and masks are those before the step.
    edit.refuse_names(network.graph, {*STATE, *STATE.values(), *INPUTS, *_OUTPUTS})
    fresh, b, gradient = with_gradient_of_weights(network, ends, objective, recipe)
    _add_adam(b, gradient, recipe)
    inputs = [recipe.declared(name, ends) for name in (*STATE, *INPUTS)]
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
    tail.node("Add", [data_loss, penalty], LOSS)
    after_seed = edit.descendants(graph.node, [SEED])
    forward = [node for node in graph.node if after_seed.isdisjoint(node.output)]
    from_seed = [node for node in graph.node if not after_seed.isdisjoint(node.output)]
    taken = edit.all_names(graph)
    edit.replace(graph.node, [*head.nodes, *forward, *tail.nodes])
    graph.initializer.extend([*head.constants, *tail.constants])
    b = Builder(graph, Facts(head.shapes | tail.shapes, {}))
    b.taken |= taken  # including the names of the nodes that follow the seed
    ones = b.as_float(b.op("Equal", LABEL, LABEL))  # without Shape, which the runtime computes on the CPU
    seed = backward(b, graph, {data_loss: ones}, [scores])[scores]
    b.node("Mul", [seed, b.array(recipe.scale)], SEED)
    b.nodes.extend(from_seed)
    seeds = {ends.input: b.mul(GRADIENT, 1 / recipe.scale), penalty: ones}
    return fresh, b, backward(b, graph, seeds, [WEIGHTS])[WEIGHTS]


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

    count = b.node("Add", [COUNT, b.constant(1.0, np.float64)], STATE[COUNT])
    first = b.node("Add", [b.mul(FIRST, MEMORY), b.mul(gradient, 1 - MEMORY)], STATE[FIRST])
    second = b.node("Add", [b.mul(SECOND, recipe.memory), b.mul(b.square(gradient), 1 - recipe.memory)], STATE[SECOND])
    length = b.add(b.op("Sqrt", corrected(second, recipe.memory)), _EPSILON)
    move = b.op("Mul", b.div(corrected(first, MEMORY), length), RATE)
    if recipe.clamped:
        b.node("Clip", [b.sub(WEIGHTS, move), b.array(0.0), b.array(1.0)], STATE[WEIGHTS])
    else:
        b.node("Sub", [WEIGHTS, move], STATE[WEIGHTS])


def initial_state(pairs: int, ends: Ends, recipe: Recipe) -> dict[str, Array]:
    """The state before the first step; weights of 0 make every mask one half."""
    shape = (pairs, recipe.masks, *recipe.grid(ends))
    values = {WEIGHTS: recipe.start, FIRST: 0.0, SECOND: 0.0}
    state: dict[str, Array] = {name: np.full(shape, value, np.float32) for name, value in values.items()}
    return state | {COUNT: np.zeros((pairs, 1, 1, 1))}
