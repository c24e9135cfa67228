"""Masks learned by gradient descent: the pixels that, kept over other images, make the model see a label."""

from dataclasses import dataclass
from typing import Literal, get_args

from auditkit.errors import BadInput, NoGradient, unknown
from auditkit.graph.mask_objective import WEIGHTS, Recipe, coarse_masks, upsampling
from auditkit.methods import option_values
from auditkit.methods.mask.learner import Learner, factor_for, learner_for, loss_scale, prepare_once
from auditkit.methods.mask.pair import Pace, Pair
from auditkit.methods.notes import Note
from auditkit.methods.request import Coarse, MethodResult, Request, bank
from auditkit.model.classifier import AnyClassifier, OnnxClassifier

Infill = Literal["distractors", "gray", "blur"]
Loss = Literal["paper", "paper-code"]


@dataclass(frozen=True)
class MaskOptions:
    """How masks are learned. The default objective is the paper's, the default optimiser is not; see QUALITIES."""

    steps: int = 700
    rate: float = 0.3
    fall: float = 0.1  # the rate at the last step, as a share of the first
    memory: float = 0.9  # Adam's decay of squared gradients (beta2)
    distractors: int = 2  # per step; gray and blur need one
    infill: Infill = "distractors"
    tv: float = 0.01
    l1: float | None = None  # None: 1 / pixels
    factor: int | None = None  # None: 4 from 128 pixels on the shorter side, 2 from 48, else 1
    loss: Loss = "paper"
    masks: int = 1  # disjoint ones; the map is their sum
    rows: int | None = None  # most images in a batch; None: by device and size, halved if memory runs out

    def __post_init__(self) -> None:
        for name, kind in (("infill", Infill), ("loss", Loss)):
            if getattr(self, name) not in get_args(kind):
                raise BadInput(unknown(name, getattr(self, name), get_args(kind)))
        option_values.require_whole(self, "steps", "distractors", "factor", "masks", "rows")
        option_values.require_not_negative(self, "tv", "l1")
        option_values.require_positive(self, "rate")
        option_values.require(0 < self.fall <= 1, f"fall {self.fall} is not a share above 0 and up to 1.")
        option_values.require(0 <= self.memory < 1, f"memory {self.memory} is not a share from 0 up and below 1.")


@dataclass(frozen=True)
class Quality:
    """Options by one name, and what they cost and give in words."""

    options: MaskOptions
    about: str


QUALITIES = {
    "fast": Quality(
        MaskOptions(),
        "1,400 images for each mask; completeness, soundness and insertion differ from those of quality full by up to "
        "0.02 on average",
    ),
    "full": Quality(MaskOptions(steps=1000, distractors=10, rate=0.2), "10,000 images for each mask"),
    "paper": Quality(
        MaskOptions(steps=2000, distractors=10, rate=0.05, fall=1.0, memory=0.999),
        "20,000 images for each mask, by the paper's optimiser",
    ),
}


def mask(request: Request, options: MaskOptions = MaskOptions()) -> MethodResult:
    """A learned mask [height, width] for every image and label: the share of each pixel that is kept, in [0, 1]."""
    learner = prepare(request.model, options)
    notes = tuple(Note("quality", f"{name}: {quality.about}")
                  for name, quality in QUALITIES.items() if quality.options == options)  # fmt: skip
    notes += (Note("surrogate-masks"),) * learner.surrogate
    return request.in_parts(
        _result(request, learner, pairs, notes) for pairs in learner.learn(request, bank(request, options.infill))
    )


def _result(request: Request, learner: Learner, pairs: list[Pair], notes: tuple[Note, ...]) -> MethodResult:
    """The maps of pairs that are done."""
    maps, coarse = request.empty_maps(), request.empty_maps()
    enlarged = upsampling(learner.ends, learner.recipe.factor)
    for pair in pairs:
        small = coarse_masks(pair.state[WEIGHTS][None])
        maps[pair.image][pair.label], coarse[pair.image][pair.label] = enlarged.apply(small)[0], small[0]
    passes = sum(pair.done for pair in pairs) * learner.recipe.rows
    return MethodResult(maps, passes, passes, notes, Coarse(enlarged, coarse) if learner.recipe.factor > 1 else None)


def prepare(model: AnyClassifier, options: MaskOptions) -> Learner:
    """The learner for a classifier, prepared once."""
    return prepare_once(model, options, _prepare)


def _prepare(model: OnnxClassifier, options: MaskOptions) -> Learner:
    signature, batch = model.signature, model.signature.fixed_batch
    infills = options.distractors if options.infill == "distractors" else 1
    if batch is not None and signature.rows != "dependent" and batch % (infills * options.masks):
        rows = f"{infills} distractors x {options.masks} masks"
        remedy = f", or learn with --option distractors={batch} --option masks=1"
        raise NoGradient(f"the model only takes batches of {batch}, not a multiple of {rows}", remedy)
    recipe = Recipe(
        infills, options.masks, factor_for(model, options.factor), options.tv,
        1 / (signature.height * signature.width) if options.l1 is None else options.l1,
        options.memory, options.loss == "paper-code",
        None if batch is None else batch // (infills * options.masks), loss_scale(model),
    )  # fmt: skip
    return learner_for(model, recipe, Pace(options.steps, options.rate, options.fall), options.rows)
