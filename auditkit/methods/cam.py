"""grad-cam: maps from a late layer of the network, by the gradient of a label's score."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.data.alignment import resized
from auditkit.errors import BadInput
from auditkit.graph import edit
from auditkit.methods.notes import Note
from auditkit.methods.request import MethodResult, Request
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.gradient import ready
from auditkit.model.gradient_session import slopes as slopes_of

_Size = tuple[int, int]
_MOST_EXTRA_TOKENS = 2  # class and distillation tokens in front of the grid's


@dataclass(frozen=True)
class Cam:
    """Options of grad-cam."""

    layer: str = ""  # a tensor of the graph; empty: the last that still has a height and a width


def grad_cam(request: Request, options: Cam) -> MethodResult:
    """The channels of a late layer, weighted by their mean gradient and clipped at zero (Selvaraju et al. 2017)."""
    model = request.model
    if not model.can_differentiate:
        raise BadInput("grad-cam needs a layer of the network, and a function has none; use differences or rise.")
    if options.layer and options.layer not in edit.producers(model.graph.graph):
        raise BadInput(
            f"layer={options.layer} names no tensor that '{model.signature.output}' is computed from; name one that a "
            f"node of the graph returns, or leave the option out."
        )
    layer, size = options.layer or _last_spatial(model), (model.signature.height, model.signature.width)
    slopes, pairs, maps = slopes_of(model, layer), request.pairs(), request.empty_maps()
    for image, label in pairs:
        result = slopes.of(request.inputs[image : image + 1], np.array([label]))
        values, slope = (as_grid(np.asarray(array)[0], size, layer) for array in (result.tensor, result.gradients))
        weights = slope.mean(axis=(1, 2), keepdims=True)
        maps[image][label] = resized(np.maximum((weights * values).sum(axis=0), 0), size)
        request.tick(1)
    notes = (Note("layer", layer), *(Note("surrogate-gradient"),) * slopes.surrogate)
    return MethodResult(maps, gradients=len(pairs), notes=notes)


def _last_spatial(model: OnnxClassifier) -> str:
    """The last tensor with a height and a width; in a transformer, the tokens before its last attention.

    After that attention only the class token may matter. The tokens' residual stream is read by the attention and by
    the sum after it, so tensors with a single reader are skipped.
    """
    base, size = ready(model), (model.signature.height, model.signature.width)
    nodes, shapes = list(base.model.graph.node), base.facts.shapes
    softmax_shapes = {i: shapes.get(node.output[0], ()) for i, node in enumerate(nodes) if node.op_type == "Softmax"}
    attention = [i for i, shape in softmax_shapes.items() if len(shape) >= 3 and shape[-1] == shape[-2]]
    readers: Counter[str] = Counter()
    for node in nodes:
        readers.update(set(node.input))
    for node in reversed(nodes[: attention[-1]] if attention else nodes):
        for name in node.output:
            shape = shapes.get(name, ())
            is_spatial = len(shape) == 3 and readers[name] > 1 if attention else len(shape) == 4
            if is_spatial and shape[0] is None and _fits(shape[1:], size):
                return str(name)
    raise BadInput("no tensor of the graph has a height and a width; name one with layer=NAME, or use another method.")


def _fits(shape: tuple[int | None, ...], size: _Size) -> bool:
    if None in shape:
        return False
    try:
        as_grid(np.empty([side or 0 for side in shape], np.bool_), size, "")
    except BadInput:
        return False
    return True


def as_grid(values: Array, size: _Size, layer: str) -> Array:
    """A layer as [channels, height, width], from channels first, channels last, or tokens [count, channels]."""
    if values.ndim == 3 and _in_proportion(values.shape[1:], size):
        return values
    if values.ndim == 3 and _in_proportion(values.shape[:2], size):
        return np.moveaxis(values, -1, 0)
    if values.ndim == 2:
        for extra in range(min(_MOST_EXTRA_TOKENS + 1, len(values))):
            count = len(values) - extra
            height = max(round((count * size[0] / size[1]) ** 0.5), 1)
            if count % height == 0 and _in_proportion((height, count // height), size):
                return np.asarray(values[extra:].T.reshape(-1, height, count // height))
    raise BadInput(
        f"'{layer}' has shape {list(values.shape)} for one image, which contains no grid of the image's proportions."
    )


def _in_proportion(shape: tuple[int, ...], size: _Size) -> bool:
    height, width = shape
    return 1 < height <= size[0] and 1 < width <= size[1] and abs(width * size[0] - height * size[1]) < max(size)
