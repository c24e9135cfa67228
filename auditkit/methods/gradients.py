"""Maps from the gradient of a label's score with respect to the image, or to a late layer of the network."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.data.alignment import resized
from auditkit.data.ranks import map_seed
from auditkit.errors import BadInput
from auditkit.graph import edit
from auditkit.methods import option_values
from auditkit.methods.mask.learner import prepare_once
from auditkit.methods.notes import Note
from auditkit.methods.request import MethodResult, Request
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.model.gradient import ready
from auditkit.model.gradient_session import Slopes
from auditkit.model.gradient_session import slopes as slopes_of

_Size = tuple[int, int]
_MOST_COPIES = 1000  # of one image, all in memory
_MOST_NOISE = 10  # ranges of the image's values; nothing of the image is left
_MOST_EXTRA_TOKENS = 2  # class and distillation tokens in front of the grid's


@dataclass(frozen=True)
class Plain:
    """No options."""


@dataclass(frozen=True)
class Smooth:
    """Options of smoothgrad."""

    samples: int = 25
    noise: float = 0.15  # standard deviation, as a share of the range of the image's values

    def __post_init__(self) -> None:
        option_values.require_whole(self, "samples", most=_MOST_COPIES)
        message = f"noise {self.noise} is not a number from 0 up to {_MOST_NOISE}."
        option_values.require(0 <= self.noise < _MOST_NOISE, message)


@dataclass(frozen=True)
class Integrated:
    """Options of integrated gradients."""

    steps: int = 32

    def __post_init__(self) -> None:
        option_values.require_whole(self, "steps", most=_MOST_COPIES)


@dataclass(frozen=True)
class Cam:
    """Options of grad-cam."""

    layer: str = ""  # a tensor of the graph; empty: the last that still has a height and a width


def gradient(request: Request, _options: Plain) -> MethodResult:
    """The largest absolute gradient over the colours (Simonyan et al. 2014)."""
    return _explain(request, _strongest)


def gradient_input(request: Request, _options: Plain) -> MethodResult:
    """Gradient times input, summed over the colours (Shrikumar et al. 2016)."""
    return _explain(request, lambda slope, image: (slope * image).sum(axis=0))


def smoothgrad(request: Request, options: Smooth) -> MethodResult:
    """The mean gradient over noisy copies, then as `gradient` (Smilkov et al. 2017)."""

    def noisy(image: Array, name: str) -> Array:
        rng = np.random.default_rng(map_seed(request.seed, name, -3))  # the same copies for every label
        noise = rng.standard_normal((options.samples, *image.shape)).astype(np.float32)
        return np.asarray(image + options.noise * float(np.ptp(image)) * noise)

    return _explain(request, _strongest, noisy, options.samples)


def integrated_gradients(request: Request, options: Integrated) -> MethodResult:
    """Mean gradient on the path from gray to the image, times their difference, over colours (Sundararajan et al.)."""
    gray = request.gray[0].astype(np.float32)
    shares = (np.arange(options.steps, dtype=np.float32) + 0.5) / options.steps

    def path(image: Array, _name: str) -> Array:
        return np.asarray(gray + shares.reshape(-1, *[1] * image.ndim) * (image - gray))

    def to_map(slope: Array, image: Array) -> Array:
        return np.asarray((slope * (image - _channels_first(request, gray))).sum(axis=0))

    return _explain(request, to_map, path, options.steps)


def _strongest(slope: Array, _image: Array) -> Array:
    return np.asarray(np.abs(slope).max(axis=0))


def _channels_first(request: Request, picture: Array) -> Array:
    return picture if request.model.signature.layout == "NCHW" else np.moveaxis(picture, -1, 0)


def _explain(
    request: Request, to_map: Callable[[Array, Array], Array],
    copies: Callable[[Array, str], Array] = lambda image, _name: image[None], count: int = 1,
) -> MethodResult:  # fmt: skip
    """Maps from the mean gradient over `count` copies of an image and from the image itself, channels first."""
    slopes, pairs, maps = slopes_of(request.model), request.pairs(), request.empty_maps()
    size = max(1, slopes.rows // count)
    request.expect(count * len(pairs))
    for start in range(0, len(pairs), size):
        part = pairs[start : start + size]
        rows = np.concatenate([copies(request.inputs[i].astype(np.float32), request.ids[i]) for i, _ in part])
        labels = np.repeat([label for _, label in part], count)
        gradients = slopes.of(rows.astype(request.inputs.dtype), labels).gradients
        means = gradients.reshape(len(part), count, *gradients.shape[1:]).mean(axis=1, dtype=np.float64)
        for (position, label), mean in zip(part, means, strict=True):
            slope, image = (_channels_first(request, array) for array in (mean, request.inputs[position]))
            maps[position][label] = np.asarray(to_map(slope, image), np.float32)
        request.tick(len(labels))
    return MethodResult(maps, gradients=count * len(pairs), notes=(Note("surrogate-gradient"),) * slopes.surrogate)


def grad_cam(request: Request, options: Cam) -> MethodResult:
    """The channels of a late layer, weighted by their mean gradient and clipped at zero (Selvaraju et al. 2017)."""
    signature, slopes = request.model.signature, prepare_cam(request.model, options)
    layer, size = str(slopes.layer), (signature.height, signature.width)
    pairs, maps = request.pairs(), request.empty_maps()
    request.expect(len(pairs))
    for image, label in pairs:
        result = slopes.of(request.inputs[image : image + 1], np.array([label]))
        values, slope = (as_grid(np.asarray(array)[0], size, layer) for array in (result.tensor, result.gradients))
        weights = slope.mean(axis=(1, 2), keepdims=True)
        maps[image][label] = resized(np.maximum((weights * values).sum(axis=0), 0), size)
        request.tick(1)
    notes = (Note("layer", layer), *(Note("surrogate-gradient"),) * slopes.surrogate)
    return MethodResult(maps, gradients=len(pairs), notes=notes)


def prepare(model: AnyClassifier, _options: object) -> Slopes:
    """The classifier with the gradient of its image, prepared once."""
    return slopes_of(model)


def prepare_cam(model: AnyClassifier, options: Cam) -> Slopes:
    """The classifier with the gradient of a layer, prepared once."""
    return prepare_once(model, options, _prepare_cam)


def _prepare_cam(model: OnnxClassifier, options: Cam) -> Slopes:
    if options.layer and options.layer not in edit.producers(model.graph.graph):
        message = f"layer={options.layer} names no tensor that '{model.signature.output}' is computed from"
        raise BadInput(f"{message}; name one that a node of the graph returns, or leave the option out.")
    return slopes_of(model, options.layer or _last_spatial(model))


def _last_spatial(model: OnnxClassifier) -> str:
    """The last tensor with a height and a width; in a transformer, the tokens before its last attention."""
    # After it only the class token may matter. Attention and the sum after it both read the tokens' residual stream.
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
            if is_spatial and shape[0] == model.signature.fixed_batch and _fits(shape[1:], size):
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
    raise BadInput(f"'{layer}' has shape {list(values.shape)} per image, which has no grid of the image's proportions.")


def _in_proportion(shape: tuple[int, ...], size: _Size) -> bool:
    height, width = shape
    return 1 < height <= size[0] and 1 < width <= size[1] and abs(width * size[0] - height * size[1]) < max(size)
