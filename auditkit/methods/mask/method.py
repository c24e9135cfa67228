"""Masks learned by gradient descent: the pixels that, kept over other images, make the model see a label."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args
from weakref import WeakKeyDictionary

import onnx
from onnx import TensorProto

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph import edit, mask_step
from auditkit.graph.gradient import export
from auditkit.graph.hard_masks import Ends
from auditkit.graph.mask_objective import WEIGHTS, Objective, Recipe, before_squashing, masks_of
from auditkit.methods import option_values
from auditkit.methods.gradients import pairs_of
from auditkit.methods.mask.batch import Batch, Ending, Pair, fresh_states
from auditkit.methods.mask.infills import Bank, bank
from auditkit.methods.notes import Note, Share
from auditkit.methods.request import Found, Request
from auditkit.model import gradient
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.model.session import Session, in_precision

Infill = Literal["distractors", "gray", "blur"]
Loss = Literal["paper", "paper-code"]
Keep = Literal["last", "best"]

Asked = TypeVar("Asked")
Made = TypeVar("Made")
HALF_SCALE = 1024.0  # gradients of -log f are at most 1 at the logits and far smaller at the pixels
FACTORS = ((128, 4), (48, 2), (0, 1))  # from so many pixels on the shorter side
COARSE = ((128, 8), (0, 4))  # where masks are 28 x 28 for 224 pixels


@dataclass(frozen=True)
class MaskOptions:
    """How masks are learned. What is minimised is the paper's, unless set; how is not.

    The paper takes 2,000 steps of Adam at rate=0.05, fall=1, memory=0.999. The pace here was chosen among some twenty
    on CIFAR-10 and comes lower in half the steps: loss 0.37 against 0.45, area 0.25 against 0.31 (ResNet-20, 12 masks,
    one seed). On photographs, too, masks come out smaller, with more soundness and less completeness. On CIFAR-10 the
    loss has settled after 4,000 steps, 13 % lower (7 % with tv=0, 2 % with 0.1). With tv=0 completeness falls
    meanwhile, from 0.87 to 0.78, since such masks come to say little of the pixels that they hide.

    With `settled`, a mask stops when its loss, averaged over windows of steps, has not come below the lowest average of
    earlier windows by more than that share of it for `patience` windows; it is meant for a rate that does not fall.
    `best` keeps the mask after the window with the lowest average; a single step's loss says little, since every step
    draws other distractors. On CIFAR-10 even a window's is off by 9 %.
    """

    steps: int = 1000  # at most
    rate: float = 0.2
    fall: float = 0.1  # what is left of the rate at the last step
    memory: float = 0.9  # what Adam keeps of squared gradients at every step
    distractors: int = 10  # a step; gray and blur need one
    infill: Infill = "distractors"
    tv: float = 0.01
    l1: float | None = None  # None: 1 / pixels
    factor: int | None = None  # None: 4 from 128 pixels on the shorter side, 2 from 48, else 1
    loss: Loss = "paper"
    masks: int = 1  # disjoint ones, of which the map is the sum
    keep: Keep = "last"
    window: int = 50
    settled: float = -1.0  # 0: stop when the loss no longer falls at all; below 0: never
    patience: int = 8
    rows: int | None = None  # images in a batch, at most; None: by device and size, and halved where they do not fit

    def __post_init__(self) -> None:
        for name, kind in (("infill", Infill), ("loss", Loss), ("keep", Keep)):
            if getattr(self, name) not in get_args(kind):
                raise BadInput(f"{name} '{getattr(self, name)}' is not one of {', '.join(get_args(kind))}.")
        option_values.whole(self, "steps", "distractors", "factor", "masks", "window", "patience", "rows")
        option_values.not_negative(self, "tv", "l1")
        option_values.positive(self, "rate")
        if not 0 < self.fall <= 1:
            raise BadInput(f"fall {self.fall} is not a share above 0 and up to 1.")
        if not 0 <= self.memory < 1:
            raise BadInput(f"memory {self.memory} is not a share from 0 up and below 1.")
        if not self.settled < 1:
            raise BadInput(f"settled {self.settled} is not a share below 1.")


def mask(request: Request, options: MaskOptions = MaskOptions()) -> Found:
    """A learned mask [height, width] for every image and label: how much of a pixel is kept, from 0 to 1."""
    learner = _learner(request.model, options)
    pairs = learned(request, learner, bank(request, options.infill))
    maps: tuple[dict[int, Array], ...] = tuple({} for _ in request.ids)
    for pair in pairs:
        kept = pair.best if options.keep == "best" and pair.best is not None else pair.state[WEIGHTS]
        maps[pair.image][pair.label] = masks_of(kept[None], learner.ends, learner.recipe.factor)[0]
    passes = sum(len(pair.losses) for pair in pairs) * learner.recipe.rows
    return Found(maps, passes, passes, _notes(pairs, learner))


def learned(request: Request, learner: "Learner", pictures: Bank, weights: Array | None = None) -> list[Pair]:
    """Every image and label asked for, with what was learned about them; some methods begin with other weights."""
    wanted = wanted_pairs(request)
    states = fresh_states(len(wanted), learner.ends, learner.recipe)
    for state, own in zip(states, [] if weights is None else weights, strict=weights is not None):
        state[WEIGHTS] = own
    pairs = [Pair.new(request, pictures, *pair, state) for pair, state in zip(wanted, states, strict=True)]
    learner.batch.learn(pairs, pictures, request.tick)
    return pairs


def wanted_pairs(request: Request) -> list[tuple[int, int]]:
    """Every (position of the image, label) that wants a map; the labels exist."""
    classes, pairs = request.model.signature.classes, list(pairs_of(request))
    for _, label in pairs:
        if not 0 <= label < classes:
            raise BadInput(f"label {label} does not exist: the model has {classes} labels, from 0 to {classes - 1}.")
    return pairs


def _notes(pairs: list[Pair], learner: "Learner") -> tuple[Note, ...]:
    ending, told = learner.batch.ending, rounding(surrogate=learner.surrogate)
    if not pairs or ending.settled < 0:
        return told
    restless = sum(not pair.settled for pair in pairs)
    return (Share(f"masks had not settled after {ending.steps} steps", restless, len(pairs)), *told)


def rounding(*, surrogate: bool) -> tuple[str, ...]:
    """What a user must know of masks for a model that rounds."""
    return ("the model rounds; its masks were learned on the same model without rounding",) if surrogate else ()


@dataclass(frozen=True)
class Learner:
    """A classifier made ready to learn masks for."""

    batch: Batch
    ends: Ends
    recipe: Recipe
    surrogate: bool


_LEARNERS: "WeakKeyDictionary[OnnxClassifier, dict[Any, Any]]" = WeakKeyDictionary()


def made_once(model: AnyClassifier, options: Asked, made: Callable[[OnnxClassifier, Asked], Made]) -> Made:
    """What learns masks for a classifier with some options."""
    if not model.can_differentiate:
        raise BadInput("masks are learned by gradients, which a classifier function does not give; use another method.")
    known = _LEARNERS.setdefault(model, {})
    if options not in known:
        known[options] = made(model, options)
    found: Made = known[options]
    return found


def _learner(model: AnyClassifier, options: MaskOptions) -> Learner:
    return made_once(model, options, _made_ready)


def _made_ready(model: OnnxClassifier, options: MaskOptions) -> Learner:
    ending = Ending(options.steps, options.window, options.settled, options.patience)
    return stepping(model, recipe_for(model, options), ending, options.rows or most_rows(model))


def stepping(
    model: OnnxClassifier, recipe: Recipe, ending: Ending, rows: int, objective: type[Objective] = Objective
) -> Learner:
    """What takes steps down an objective."""
    network = differentiable(model)
    graph = mask_step.step(network.model, network.ends, recipe, objective)
    session = Session(graph, model.settings, network.weights)
    return Learner(Batch(session, recipe, ending, rows), network.ends, recipe, network.surrogate)


@dataclass(frozen=True)
class Network:
    """A classifier's graph that takes a seed and returns its gradient too, in the precision asked for."""

    model: onnx.ModelProto
    weights: Mapping[str, Array]
    ends: Ends
    surrogate: bool


def differentiable(model: OnnxClassifier) -> Network:
    """The classifier in the form over which masks are learned."""
    if model.signature.rows == "dependent":
        raise BadInput(
            "the images of a batch change each other's scores in this model, so that masks cannot be learned together; "
            "use another method."
        )
    base = gradient.trusted(model).base  # refuses a gradient that does not tell how the scores change
    ends = before_squashing(base.model.graph, ends_of(model), base.facts.shapes)
    network = export.with_gradient(edit.with_outputs(base.model, [ends.output]), base.facts, ends.output, ends.input)
    network, weights = in_precision(network, base.weights, model.settings)
    return Network(network, weights, ends, base.surrogate)


def most_rows(model: OnnxClassifier) -> int:
    """Images in a batch, unless the options say."""
    device, signature = model.device, model.signature
    return min(device.learning_rows, device.learning_pixels // (signature.height * signature.width))


def ends_of(model: OnnxClassifier) -> Ends:
    """Where the classifier's graph begins and ends, once its input is float32."""
    s = model.signature
    return Ends(
        s.input, TensorProto.FLOAT, s.layout == "NHWC", s.height, s.width, s.channels, s.output, s.outputs, s.kind
    )


def recipe_for(model: OnnxClassifier, options: MaskOptions) -> Recipe:
    """The options with what they leave open decided for this classifier."""
    height, width, own = model.signature.height, model.signature.width, model.signature.own_batch
    infills = options.distractors if options.infill == "distractors" else 1
    if own is not None and own % (infills * options.masks):
        raise BadInput(
            f"the model takes batches of {own} only, into which {infills} distractors for each of {options.masks} "
            f"masks do not fit evenly; use {own} distractors and one mask."
        )
    return Recipe(
        infills, options.masks, factor_for(model, options.factor), options.tv,
        1 / (height * width) if options.l1 is None else options.l1, options.rate, options.fall ** (1 / options.steps),
        options.memory, options.loss == "paper-code", None if own is None else own // (infills * options.masks),
        HALF_SCALE if model.settings.precision == "float16" else 1.0,
    )  # fmt: skip


def factor_for(model: OnnxClassifier, asked: int | None, usual: tuple[tuple[int, int], ...] = FACTORS) -> int:
    """The factor asked for, or the usual one for images of this size."""
    height, width = model.signature.height, model.signature.width
    side = min(height, width)
    factor = asked or min(next(factor for least, factor in usual if side >= least), side)
    if factor > side:
        raise BadInput(f"factor {factor} is larger than the image, {height} by {width} pixels.")
    return factor
