"""Meaningful perturbations (Fong & Vedaldi 2017): the smallest smooth part of an image that, blurred, loses a label.

The objective and its constants are those of the implementation that the audited paper took (jacobgil's
pytorch-explain-black-box): f + 0.01 mean |1 - m| + 0.2 TV, TV the means of |differences|^3 down and across, over a mask
of 28 x 28 cells for 224 pixels, and 300 steps of Adam at 0.1, clamped. The rest is as in the authors' own paper:

- the mask starts as the smallest disc that takes 99 % of what a blur of the whole image takes (`start=ones` deletes
  nothing at first, as that implementation; where f is near 1 it has no slope there, and nothing is ever deleted);
- what is deleted is a Gaussian blur, sigma 10 pixels (that implementation: a median filter);
- jitter moves the image under the mask, by up to 2 pixels at 224, evenly instead of at random (that implementation adds
  noise instead).

The authors' own penalties are sums over cells, l1=0.078 and tv=7.84 here, and their mask is blurred once more. Pixels
lie between the centres of a mask's cells, in both others its corners lie on the image's.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph.fong_objective import Deletion, DeletionRecipe
from auditkit.graph.hard_masks import Ends
from auditkit.graph.mask_objective import WEIGHTS, upsampled
from auditkit.methods import option_values
from auditkit.methods.mask.batch import Ending
from auditkit.methods.mask.infills import Bank, over_blur
from auditkit.methods.mask.method import (
    COARSE,
    HALF_SCALE,
    Learner,
    factor_for,
    learned,
    made_once,
    most_rows,
    rounding,
    stepping,
    wanted_pairs,
)
from auditkit.methods.notes import Note, Share
from auditkit.methods.request import Found, Request
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.signature import to_probabilities

Start = Literal["circle", "ones"]
JITTER_AT_224 = 2
DISCS = 16  # sizes tried
SOFT_EDGE = 10 / 224  # of a disc, either way, in shorter sides
TAKEN = 0.99
LEAST_PROB = 0.01  # of a label that has something to lose


@dataclass(frozen=True)
class FongOptions:
    """How the deleting mask is learned."""

    steps: int = 300
    rate: float = 0.1
    l1: float = 0.01
    tv: float = 0.2
    beta: float = 3.0
    factor: int | None = None  # None: 8 from 128 pixels on the shorter side, else 4
    blur: float = 10.0  # sigma in pixels, up to 224 on the shorter side
    jitter: int | None = None  # pixels either way; None: 2 at 224
    start: Start = "circle"
    rows: int | None = None  # images in a batch, at most; None: by device and size, and halved where they do not fit

    def __post_init__(self) -> None:
        if self.start not in get_args(Start):
            raise BadInput(f"start '{self.start}' is not one of {', '.join(get_args(Start))}.")
        option_values.whole(self, "steps", "factor", "rows")
        option_values.not_negative(self, "l1", "tv", "jitter")
        option_values.positive(self, "rate")
        option_values.blur(self)
        if not 1 <= self.beta < float("inf"):
            raise BadInput(f"beta {self.beta} is not a number from 1 up.")


def fong(request: Request, options: FongOptions = FongOptions()) -> Found:
    """How much of each pixel the learned mask deletes, from 0 to 1, for every image and label."""
    learner = made_once(request.model, options, _made_ready)
    pictures = over_blur(request, options.blur)
    begin = _circles(request, learner, pictures) if options.start == "circle" else Begin()
    pairs = learned(request, learner, pictures, begin.weights)
    maps: tuple[dict[int, Array], ...] = tuple({} for _ in request.ids)
    for pair in pairs:
        maps[pair.image][pair.label] = 1 - upsampled(pair.state[WEIGHTS], learner.ends, learner.recipe.factor)[0]
    steps = len(pairs) * options.steps
    notes: tuple[Note, ...] = (*begin.notes, _idle(maps, len(pairs)), *rounding(surrogate=learner.surrogate))
    return Found(maps, begin.passes + steps, steps, notes)


def _idle(maps: tuple[dict[int, Array], ...], count: int) -> Share:
    """What must be said of masks that rank no pixel before another."""
    idle = sum(not found.any() for own in maps for found in own.values())
    return Share("masks delete nothing: blur takes nothing that is worth it from their labels", idle, count)


def _made_ready(model: OnnxClassifier, options: FongOptions) -> Learner:
    signature = model.signature
    side = min(signature.height, signature.width)
    recipe = DeletionRecipe(
        infills=1, factor=factor_for(model, options.factor, COARSE), tv=options.tv, l1=options.l1, rate=options.rate,
        pairs=signature.own_batch, scale=HALF_SCALE if model.settings.precision == "float16" else 1.0, start=1.0,
        clamped=True, beta=options.beta,
        jitter=round(JITTER_AT_224 * side / 224) if options.jitter is None else options.jitter,
    )  # fmt: skip
    all_steps = Ending(options.steps, window=options.steps, settled=-1.0, patience=1)
    return stepping(model, recipe, all_steps, options.rows or most_rows(model), Deletion)


@dataclass(frozen=True)
class Begin:
    """What pairs begin with, and what it took to find it."""

    weights: Array | None = None  # [M, 1, h, w]; None: nothing is deleted
    passes: int = 0
    notes: tuple[Share, ...] = ()


def _circles(request: Request, learner: Learner, pictures: Bank) -> Begin:
    """For each pair the smallest disc in the middle that takes most of what a blur of the whole image takes."""
    discs, pairs = _discs(learner.ends, learner.recipe.factor), wanted_pairs(request)
    scores = _scores(request, pictures, upsampled(discs, learner.ends, learner.recipe.factor))
    weights, unhidden = np.empty((len(pairs), 1, *discs.shape[1:]), np.float32), 0
    for place, (image, label) in enumerate(pairs):
        whole, *tried, nothing = scores[image, :, label]
        enough = [score <= nothing + (1 - TAKEN) * (whole - nothing) for score in tried]
        weights[place] = discs[1:][[*enough, True].index(True)]
        unhidden += bool(whole >= LEAST_PROB and nothing > whole / 2)
    return Begin(weights, scores.shape[0] * scores.shape[1], (_unhidden(unhidden, len(pairs)),))


def _unhidden(count: int, pairs: int) -> Share:
    """What must be said of labels that a blur does not hide."""
    said = "labels keep more than half their probability when the whole image is blurred"
    return Share(f"{said}, so that little can be deleted from them; try a larger blur", count, pairs)


def _discs(ends: Ends, factor: int) -> Array:
    """Coarse masks [DISCS + 1, h, w] that delete discs with soft edges, from nothing to all."""
    height, width = ends.height, ends.width
    soft = SOFT_EDGE * min(height, width)
    down, across = ((np.arange(-(-side // factor)) + 0.5) * factor - side / 2 for side in (height, width))
    distance = np.hypot(down[:, None], across)
    radii = np.linspace(-soft, distance.max() + soft, DISCS + 1)
    return np.asarray(np.clip((distance - radii[:, None, None]) / (2 * soft) + 0.5, 0, 1), np.float32)


def _scores(request: Request, pictures: Bank, masks: Array) -> Array:
    """Probabilities [images, masks, labels] of every image over its infill."""
    signature, found = request.model.signature, []
    kept = masks[:, None] if signature.layout == "NCHW" else masks[..., None]
    for image, (infill,) in enumerate(pictures.infills):
        rows = pictures.pictures[infill] + kept * (pictures.pictures[image] - pictures.pictures[infill])
        rows = np.round(rows) if signature.dtype == "uint8" else rows
        found.append(to_probabilities(request.model.scores(rows.astype(signature.dtype)), signature.kind))
        request.tick(len(rows))
    return np.stack(found)
