"""A classifier prepared for learning masks: its differentiable graph, its sessions, and how many rows fit.

Shared by the methods mask, fong and igos++.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import onnx
from onnx import TensorProto

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph import edit, mask_step
from auditkit.graph.gradient import export
from auditkit.graph.hard_masks import Ends
from auditkit.graph.mask_objective import Objective, Recipe, before_squashing
from auditkit.methods.mask.learner import Ending, Learner
from auditkit.model import gradient
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.model.session import Session, in_precision

Options = TypeVar("Options")
Prepared = TypeVar("Prepared")
_HALF_SCALE = 1024.0  # for float16: gradients of -log f are at most 1 at the logits and far smaller at the pixels
_FACTORS = ((128, 4), (48, 2), (0, 1))  # (least pixels on the shorter side, pixels per cell of a mask)
_COARSE_FACTORS = ((128, 8), (0, 4))  # the same for masks of 28 x 28 at 224 pixels


_PREPARED: "WeakKeyDictionary[OnnxClassifier, dict[Any, Any]]" = WeakKeyDictionary()


def prepare_once(
    model: AnyClassifier, options: Options, prepare: Callable[[OnnxClassifier, Options], Prepared]
) -> Prepared:
    """The result of `prepare`, computed once for a classifier and its options."""
    if not model.can_differentiate:
        raise BadInput("masks are learned by gradients, which a classifier function does not give; use another method.")
    cache = _PREPARED.setdefault(model, {})
    if options not in cache:
        cache[options] = prepare(model, options)
    prepared: Prepared = cache[options]
    return prepared


def learner_for(
    model: OnnxClassifier, recipe: Recipe, ending: Ending, rows: int, objective: type[Objective] = Objective
) -> Learner:
    """A learner that takes steps down an objective."""
    network = differentiable(model)
    graph = mask_step.step(network.model, network.ends, recipe, objective)
    session = Session(graph, model.settings, network.weights)
    room = recipe.pairs or max(1, rows // recipe.rows)
    return Learner(session, recipe, ending, network.ends, network.surrogate, room)


@dataclass(frozen=True)
class Network:
    """A classifier's graph that also takes a seed and returns its gradient, in the precision of the settings."""

    model: onnx.ModelProto
    weights: Mapping[str, Array]
    ends: Ends
    surrogate: bool


def differentiable(model: OnnxClassifier) -> Network:
    """The classifier as a graph that masks can be learned over."""
    if model.signature.rows == "dependent":
        raise BadInput(
            "the images of a batch change each other's scores in this model, so masks cannot be learned in batches; "
            "use another method."
        )
    base, _, _ = gradient.trusted(model)  # refuses a gradient that does not predict how the scores change
    s = model.signature
    declared = Ends(
        s.input, TensorProto.FLOAT, s.layout == "NHWC", s.height, s.width, s.channels, s.output, s.outputs, s.kind
    )
    ends = before_squashing(base.model.graph, declared, base.facts.shapes)
    network = export.with_gradient(edit.with_outputs(base.model, [ends.output]), base.facts, ends.output, ends.input)
    network, weights = in_precision(network, base.weights, model.settings)
    return Network(network, weights, ends, base.surrogate)


def most_rows(model: OnnxClassifier) -> int:
    """Images in a batch, unless the options set it."""
    device, signature = model.device, model.signature
    return min(device.learning_rows, device.learning_pixels // (signature.height * signature.width))


def factor_for(model: OnnxClassifier, option: int | None, *, coarse: bool = False) -> int:
    """Pixels per cell of a mask: the option, or the default for images of this size."""
    height, width = model.signature.height, model.signature.width
    side, defaults = min(height, width), _COARSE_FACTORS if coarse else _FACTORS
    factor = option or min(next(factor for least, factor in defaults if side >= least), side)
    if factor > side:
        raise BadInput(f"factor {factor} is larger than the image, {height} by {width} pixels.")
    return factor


def loss_scale(model: OnnxClassifier) -> float:
    """Factor of the loss that keeps small gradients above the least float16."""
    return _HALF_SCALE if model.settings.precision == "float16" else 1.0
