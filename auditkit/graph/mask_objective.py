"""What masks are learned by: masked images in front of a network, and the loss behind it, as nodes of a graph.

    minimise over W    mean over infills of -log f(M x + (1 - M) infill, label)  +  tv TV(M)  +  l1 |M|
    M = upsampled(sigmoid(W)),  TV = sum of squared differences of neighbours,  |M| = sum

Several masks for one image and label are disjoint: a softmax over them and a background whose weight is 0, which for
one mask is the sigmoid. Each of them is to suffice alone: the loss is the mean of theirs. The map is their sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from auditkit.arrays import Array
from auditkit.graph import build, edit
from auditkit.graph.gradient.builder import Shape
from auditkit.graph.hard_masks import Ends

PICTURES = "auditkit_pictures"  # [P, ...] float32, images and infills as the network takes them
IMAGE, LABEL = "auditkit_image", "auditkit_label"  # [M] int32: place in the bank, class
INFILLS = "auditkit_infills"  # [M, infills] int32, places in the bank
WEIGHTS = "auditkit_weights"  # [M, masks, h, w]
DATA_LOSS, LOSS = "auditkit_data_loss", "auditkit_loss"  # [M]
MASK = "auditkit_mask"  # [M, H, W], the sum of disjoint ones
FLOOR = 1e-30  # added to probabilities whose logarithm is taken


@dataclass(frozen=True)
class Recipe:
    """What is minimised, and how."""

    infills: int = 10  # for each mask, at every step
    masks: int = 1  # disjoint ones for each image and label
    factor: int = 1  # by which masks are upsampled
    tv: float = 0.01
    l1: float = 0.0
    rate: float = 0.05
    slowing: float = 1.0  # by which the rate is multiplied after every step
    memory: float = 0.999  # what Adam keeps of the squares at every step
    code_loss: bool = False  # cross-entropy of averaged probabilities taken for logits, as the paper's code has it
    pairs: int | None = None  # images with labels in a batch; None: any number
    scale: float = 1.0  # of gradients inside the network, so that half precision can hold them
    start: float = 0.0  # the weights before the first step
    clamped: bool = False  # weights are masks themselves, kept between 0 and 1

    @property
    def rows(self) -> int:
        """Images that the network sees for each pair."""
        return self.infills * self.masks

    def grid(self, ends: Ends) -> tuple[int, int]:
        """Height and width of the weights."""
        return -(-ends.height // self.factor), -(-ends.width // self.factor)


class Objective(build.Builder):
    """Nodes in front of the network and behind it; the shape of what they make is noted for the way back."""

    def __init__(self, graph: onnx.GraphProto, ends: Ends, recipe: Recipe, prefix: str) -> None:
        super().__init__(graph, prefix)
        self.ends, self.recipe = ends, recipe
        self.pair: Shape = (recipe.pairs,)
        rows = None if recipe.pairs is None else recipe.pairs * recipe.rows
        self.rows: Shape = (rows,)
        self.shapes: dict[str, Shape] = {WEIGHTS: (recipe.pairs, recipe.masks, *recipe.grid(ends))}

    def put(self, operator: str, inputs: list[str], shape: Shape, output: str | None = None, **attributes: Any) -> str:
        """A node whose result has a known shape."""
        name = self.node(operator, inputs, output, **attributes)
        self.shapes[name] = shape
        return name

    def reshaped(self, x: str, shape: Shape, output: str | None = None) -> str:
        """Numbers regrouped; the first dimension may follow the batch."""
        return self.put("Reshape", [x, self.constant([-1 if size is None else size for size in shape])], shape, output)

    def number(self, value: float) -> str:
        """A constant, which has no gradient."""
        name = self.constant(value, np.float32)
        self.shapes[name] = ()
        return name

    # In front of the network

    def masks(self) -> str:
        """The masks [M, masks, H, W], from 0 (infill) to 1 (image)."""
        shape, many = self.shapes[WEIGHTS], self.recipe.masks
        if many == 1:
            return self._upsampled(self.put("Sigmoid", [WEIGHTS], shape))
        joined: Shape = (shape[0], many + 1, *shape[2:])
        with_background = self.put("Pad", [WEIGHTS, self.constant([0, 0, 0, 0, 0, 1, 0, 0])], joined)
        shares = self.put("Softmax", [with_background], joined, axis=1)
        return self._upsampled(self._slice(shares, 1, 0, many))

    def _upsampled(self, small: str) -> str:
        """Bilinear; the last rows and columns are cut off where the factor does not divide the image's."""
        factor, many = self.recipe.factor, self.shapes[small][1]
        if factor == 1:
            return small
        height, width = (size * factor for size in self.recipe.grid(self.ends))
        scales = self.constant([1, 1, factor, factor], np.float32)
        wide: Shape = (*self.pair, many, height, width)
        found = self.put("Resize", [small, "", scales], wide, mode="linear")
        for axis, size, wanted in ((2, height, self.ends.height), (3, width, self.ends.width)):
            found = self._slice(found, axis, 0, wanted) if size != wanted else found
        return found

    def _slice(self, x: str, axis: int, start: int, end: int) -> str:
        shape = list(self.shapes[x])
        shape[axis] = end - start
        bounds = [self.constant([number]) for number in (start, end, axis)]
        return self.put("Slice", [x, *bounds], tuple(shape))

    def steps(self, x: str, axis: int) -> str:
        """Each number less the one before it."""
        size = self.shapes[x][axis] or 1
        later, earlier = self._slice(x, axis, 1, size), self._slice(x, axis, 0, size - 1)
        return self.put("Sub", [later, earlier], self.shapes[later])

    def composed(self) -> str:
        """The masks; masked images, infill + mask (image - infill), get the name of the network's input."""
        ends, masks = self.ends, self.masks()
        many, infills, pixels = self.recipe.masks, self.recipe.infills, ends.height * ends.width
        flat = (pixels, ends.channels) if ends.channels_last else (ends.channels, pixels)
        shares = self.reshaped(masks, (*self.pair, many, 1, *((pixels, 1) if ends.channels_last else (1, pixels))))
        image, infill = (self.picture(places) for places in (IMAGE, INFILLS))
        image = self.reshaped(image, (*self.pair, 1, 1, *flat))
        infill = self.reshaped(infill, (*self.pair, 1, infills, *flat))
        difference = self.put("Sub", [image, infill], (*self.pair, 1, infills, *flat))
        shown = self.put("Mul", [shares, difference], (*self.pair, many, infills, *flat))
        mixed = self.put("Add", [infill, shown], (*self.pair, many, infills, *flat))
        self.reshaped(mixed, (*self.rows, *ends.picture), ends.input)
        return masks

    def picture(self, places: str) -> str:
        """Pictures of the bank, which have no gradient."""
        return self.node("Gather", [PICTURES, places], axis=0)

    def penalties(self, masks: str) -> str:
        """tv TV + l1 |M|, averaged over disjoint masks; the masks' sum goes out."""
        each: Shape = (*self.pair, self.recipe.masks)
        plane = self.constant([2, 3])
        terms = [self.put("ReduceSum", [masks, plane], each, keepdims=0)]
        weights = [self.recipe.l1]
        for axis, size in ((2, self.ends.height), (3, self.ends.width)):
            if self.recipe.tv and size > 1:
                terms.append(self.put("ReduceSumSquare", [self.steps(masks, axis), plane], each, keepdims=0))
                weights.append(self.recipe.tv)
        weighted = [self.put("Mul", [x, self.number(w)], each) for x, w in zip(terms, weights, strict=True)]
        self.node("ReduceSum", [masks, self.constant([1])], MASK, keepdims=0)
        total = self.put("Sum", weighted, each)
        return self.put("ReduceMean", [total, self.constant([1])], self.pair, keepdims=0)

    # Behind it

    def scores(self) -> str:
        """What the network says, as [rows, numbers]."""
        return self.reshaped(self.ends.output, (*self.rows, self.ends.outputs))

    def data_loss(self, scores: str) -> str:
        """-log f(label), averaged over infills and masks."""
        many, infills, classes = self.recipe.masks, self.recipe.infills, max(self.ends.outputs, 2)
        wanted = self._is_label(classes)
        logs = self.log_probabilities(scores)
        if not self.recipe.code_loss:
            return self._picked(self.reshaped(logs, (*self.pair, many * infills, classes)), wanted)
        each: Shape = (*self.pair, many, classes)
        likely = self.reshaped(self.put("Exp", [logs], self.shapes[logs]), (*self.pair, many, infills, classes))
        average = self.put("ReduceMean", [likely, self.constant([2])], each, keepdims=0)
        return self._picked(self.put("LogSoftmax", [average], each, axis=-1), wanted)

    def _is_label(self, classes: int) -> str:
        """[M, 1, classes], 1 at the label and 0 elsewhere."""
        column = self.node("Reshape", [LABEL, self.constant([-1, 1, 1])])
        equal = self.node("Equal", [column, self.constant(np.arange(classes).reshape(1, 1, -1), np.int32)])
        return self.put("Cast", [equal], (*self.pair, 1, classes), to=TensorProto.FLOAT)

    def _picked(self, scores: str, wanted: str, sign: float = -1.0) -> str:
        """The mean over rows of [M, rows, classes] at the label, with a sign."""
        shape = self.shapes[scores]
        kept = self.put("Mul", [scores, wanted], shape)
        summed = self.put("ReduceSum", [kept, self.constant([1, 2])], self.pair, keepdims=0)
        return self.put("Mul", [summed, self.number(sign / (shape[1] or 1))], self.pair, DATA_LOSS)

    def log_probabilities(self, scores: str) -> str:
        """Logarithms of probabilities [rows, labels], from scores of any kind; one number is two labels, (1-p, p)."""
        ends = self.ends
        labels: Shape = (*self.rows, max(ends.outputs, 2))
        if ends.kind == "logits":  # of one number z, the softmax of (0, z)
            both = scores if ends.outputs > 1 else self.put("Pad", [scores, self.constant([0, 1, 0, 0])], labels)
            return self.put("LogSoftmax", [both], labels, axis=-1)
        if ends.kind == "log-probabilities" and ends.outputs > 1:
            return scores
        likely = self.put("Exp", [scores], self.shapes[scores]) if ends.kind == "log-probabilities" else scores
        if ends.outputs == 1:
            rest = self.put("Sub", [self.number(1.0), likely], self.shapes[scores])
            likely = self.put("Concat", [rest, likely], labels, axis=1)
        return self.put("Log", [self.put("Add", [likely, self.number(FLOOR)], labels)], labels)


def masks_of(weights: Array, ends: Ends, factor: int) -> Array:
    """The masks [M, H, W] of weights [M, masks, h, w], as the graph makes them; disjoint ones are added up."""
    background = np.zeros_like(weights[:, :1])
    top = np.maximum(weights.max(axis=1, keepdims=True), background)
    shares = np.exp(weights - top)
    small = shares / (shares.sum(axis=1, keepdims=True) + np.exp(background - top))
    return upsampled(small.sum(axis=1), ends, factor)


def upsampled(small: Array, ends: Ends, factor: int) -> Array:
    """Masks [M, H, W] of coarse ones [M, h, w], as the graph makes them."""
    rows, columns = (
        _bilinear(size, wide, factor) for size, wide in zip(small.shape[1:], (ends.height, ends.width), strict=True)
    )
    return np.asarray(np.clip(rows @ small @ columns.T, 0, 1), np.float32)


def _bilinear(size: int, wide: int, factor: int) -> Array:
    """The matrix [wide, size] of upsampling: each pixel lies between the centres of two others."""
    at = np.clip((np.arange(wide) + 0.5) / factor - 0.5, 0, size - 1)
    return np.asarray(np.maximum(1 - np.abs(at[:, None] - np.arange(size)), 0))


def before_squashing(graph: onnx.GraphProto, ends: Ends, shapes: Mapping[str, Shape]) -> Ends:
    """The ends with logits for scores, where a last Softmax, or the Sigmoid of one number, hides them."""
    node = edit.producers(graph).get(ends.output)
    if node is None or len(shapes.get(ends.output, ())) != 2:
        return ends
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
    softmax = node.op_type == "Softmax" and ends.outputs > 1 and axis in (1, -1)
    if not softmax and (node.op_type != "Sigmoid" or ends.outputs > 1):
        return ends
    return replace(ends, output=node.input[0], kind="logits")
