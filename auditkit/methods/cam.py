"""grad-cam: where a late layer's channels speak for a label."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx

from auditkit.arrays import Array
from auditkit.data.alignment import resized
from auditkit.errors import BadInput
from auditkit.graph import edit
from auditkit.graph.gradient import Facts
from auditkit.methods.gradients import notes, pairs_of
from auditkit.methods.request import Found, Request
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.gradient import ready
from auditkit.model.gradient_session import slopes

Size = tuple[int, int]
MOST_EXTRA_TOKENS = 2  # class tokens in front of the grid's


@dataclass(frozen=True)
class Cam:
    """Options of grad-cam."""

    layer: str = ""  # a tensor of the graph; empty: the last that still has a height and a width


def grad_cam(request: Request, options: Cam) -> Found:
    """The channels of a late layer, weighted by their mean gradient, cut off below zero (Selvaraju et al. 2017)."""
    model = request.model
    if not model.can_differentiate:
        raise BadInput("grad-cam looks into the network, and a function shows nothing of it; use differences or rise.")
    if options.layer and options.layer not in edit.producers(model.graph.graph):
        raise BadInput(
            f"layer={options.layer} names no tensor that '{model.signature.output}' is computed from; name one that a "
            f"node of the graph returns, or leave the option out."
        )
    layer, size = options.layer or last_spatial(model), (model.signature.height, model.signature.width)
    follow = slopes(model, layer)
    maps: list[dict[int, Array]] = [{} for _ in request.ids]
    for image, label in pairs_of(request):
        found = follow.of(request.shown[image : image + 1], np.array([label]))
        values, change = (as_grid(np.asarray(array)[0], size, layer) for array in (found.tensor, found.gradients))
        weights = change.mean(axis=(1, 2), keepdims=True)
        maps[image][label] = resized(np.maximum((weights * values).sum(axis=0), 0), size)
        request.tick(1)
    count = sum(map(len, request.labels))
    return Found(tuple(maps), gradients=count, notes=(f"grad-cam at '{layer}'", *notes(follow)))


def last_spatial(model: OnnxClassifier) -> str:
    """The last tensor that still has a height and a width; of a transformer, the tokens before its last attention.

    Behind that attention only the class token may count. The tokens' main stream is read by the attention and by the
    sum behind it, so tensors with one reader are passed by.
    """
    base = ready(model)
    size, nodes, facts = (model.signature.height, model.signature.width), list(base.model.graph.node), base.facts
    attention = [place for place, node in enumerate(nodes) if node.op_type == "Softmax" and _square(facts, node)]
    readers = Counter(name for node in nodes for name in set(node.input))
    for node in reversed(nodes[: attention[-1]] if attention else nodes):
        for name in node.output:
            shape = facts.shapes.get(name, ())
            wanted = len(shape) == 3 and readers[name] > 1 if attention else len(shape) == 4
            if wanted and shape[0] is None and _fits(shape[1:], size):
                return str(name)
    raise BadInput("no tensor of the graph has a height and a width; name one with layer=NAME, or use another method.")


def _square(facts: Facts, node: onnx.NodeProto) -> bool:
    shape = facts.shapes.get(node.output[0], ())
    return len(shape) >= 3 and shape[-1] == shape[-2]


def _fits(shape: tuple[int | None, ...], size: Size) -> bool:
    if None in shape:
        return False
    try:
        as_grid(np.empty([side or 0 for side in shape], np.bool_), size, "")
    except BadInput:
        return False
    return True


def as_grid(values: Array, size: Size, layer: str) -> Array:
    """A layer as [channels, height, width], whether it is so, has channels last, or is tokens [count, channels]."""
    if values.ndim == 3 and _in_proportion(values.shape[1:], size):
        return values
    if values.ndim == 3 and _in_proportion(values.shape[:2], size):
        return np.moveaxis(values, -1, 0)
    if values.ndim == 2:
        for extra in range(MOST_EXTRA_TOKENS + 1):
            grid = _grid_of(len(values) - extra, size)
            if grid is not None:
                return np.asarray(values[extra:].T.reshape(-1, *grid))
    raise BadInput(
        f"'{layer}' has shape {list(values.shape)} for an image, in which there is no grid in its proportions."
    )


def _in_proportion(shape: tuple[int, ...], size: Size) -> bool:
    height, width = shape
    return 1 < height <= size[0] and 1 < width <= size[1] and abs(width * size[0] - height * size[1]) < max(size)


def _grid_of(count: int, size: Size) -> Size | None:
    height = round((count * size[0] / size[1]) ** 0.5)
    if height < 2 or count % height:
        return None
    return (height, count // height) if _in_proportion((height, count // height), size) else None
