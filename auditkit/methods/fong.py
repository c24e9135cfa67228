"""Meaningful perturbations (Fong & Vedaldi 2017): the smallest smooth part of an image that, blurred, loses a label.

The objective and its constants are those of the implementation that the audited paper took (jacobgil's
pytorch-explain-black-box): f + 0.01 mean |1 - m| + 0.2 TV, TV the means of |differences|^3 down and across, over a mask
of 28 x 28 cells for 224 pixels, and 300 steps of Adam at 0.1, clamped. The rest is as in the authors' own paper:

- the mask starts as the smallest disc that has 99 % of the effect of blurring the whole image (`start=ones` deletes
  nothing at first, as in that implementation; where f is near 1 it has no slope, and nothing is ever deleted);
- deleted pixels are replaced by a Gaussian blur, sigma 10 pixels (that implementation: a median filter);
- jitter moves the image under the mask by up to 2 pixels at 224, evenly instead of at random (that implementation adds
  noise instead).

The authors' own penalties are sums over cells, l1=0.078 and tv=7.84 here, and their mask is blurred once more. Here
pixels are interpolated between the centres of a mask's cells; in both others the corners of mask and image coincide.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput, unknown
from auditkit.graph.fong_objective import Deletion, DeletionRecipe
from auditkit.graph.hard_masks import Ends
from auditkit.graph.mask_objective import WEIGHTS, upsampling
from auditkit.methods import option_values
from auditkit.methods.mask.learner import Learner, factor_for, learner_for, loss_scale, prepare_once
from auditkit.methods.mask.pair import Pace, Pair
from auditkit.methods.notes import Note
from auditkit.methods.request import Bank, MethodResult, Request, over_blur
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.model.signature import to_probabilities

Start = Literal["circle", "ones"]
_JITTER_AT_224 = 2  # pixels, of the authors' paper
DISCS = 16  # radii tried for the first mask
_SOFT_EDGE = 10 / 224  # half the width of a disc's edge, in shorter sides
_ENOUGH = 0.99  # of the effect of blurring the whole image; the authors' paper
_LEAST_PROB = 0.01  # of a label that can lose something


@dataclass(frozen=True)
class FongOptions:
    """How the mask is learned."""

    steps: int = 300
    rate: float = 0.1
    l1: float = 0.01
    tv: float = 0.2
    beta: float = 3.0
    factor: int | None = None  # None: 8 from 128 pixels on the shorter side, else 4
    blur: float = 10.0  # sigma in pixels, up to 224 on the shorter side
    jitter: int | None = None  # pixels either way; None: 2 at 224
    start: Start = "circle"
    rows: int | None = None  # most images in a batch; None: by device and size, halved if memory runs out

    def __post_init__(self) -> None:
        if self.start not in get_args(Start):
            raise BadInput(unknown("start", self.start, get_args(Start)))
        option_values.require_whole(self, "steps", "factor", "rows")
        option_values.require_not_negative(self, "l1", "tv", "jitter")
        option_values.require_positive(self, "rate")
        option_values.require_blur(self.blur)
        option_values.require(1 <= self.beta < float("inf"), f"beta {self.beta} is not a number from 1 up.")


def fong(request: Request, options: FongOptions = FongOptions()) -> MethodResult:
    """The share of each pixel that the learned mask deletes, in [0, 1], for every image and label."""
    learner, pictures = prepare(request.model, options), over_blur(request, options.blur)
    discs = _first_discs(request, learner, pictures) if options.start == "circle" else None
    first_masks = None if discs is None else discs.weights
    return request.in_parts(
        _result(request, learner, pairs, discs) for pairs in learner.learn(request, pictures, first_masks)
    )


@dataclass(frozen=True)
class _FirstDiscs:
    """The masks that learning starts from."""

    weights: Array  # [pairs, 1, h, w]
    blur_proof: dict[tuple[int, int], bool]  # by image and label: whether blurring the whole image has little effect


def _result(request: Request, learner: Learner, pairs: list[Pair], discs: _FirstDiscs | None) -> MethodResult:
    """The maps of pairs that are done."""
    maps, notes, passes = request.empty_maps(), list[Note](), sum(pair.done for pair in pairs)
    for pair in pairs:
        maps[pair.image][pair.label] = 1 - upsampling(learner.ends, learner.recipe.factor).apply(pair.state[WEIGHTS])[0]
    first_passes = 0
    if discs is not None:
        first_passes = len({pair.image for pair in pairs}) * (DISCS + 1)
        blur_proof = sum(discs.blur_proof[pair.image, pair.label] for pair in pairs)
        notes.append(Note("blur-proof", hits=blur_proof, total=len(pairs)))
    idle = sum(not maps[pair.image][pair.label].any() for pair in pairs)  # masks that rank no pixel before another
    notes += [Note("idle", hits=idle, total=len(pairs)), *(Note("surrogate-masks"),) * learner.surrogate]
    return MethodResult(maps, first_passes + passes, passes, tuple(notes))


def prepare(model: AnyClassifier, options: FongOptions) -> Learner:
    """The learner for a classifier, prepared once."""
    return prepare_once(model, options, _prepare)


def _prepare(model: OnnxClassifier, options: FongOptions) -> Learner:
    signature = model.signature
    side = min(signature.height, signature.width)
    recipe = DeletionRecipe(
        infills=1, factor=factor_for(model, options.factor, coarse=True), tv=options.tv, l1=options.l1,
        pairs=signature.fixed_batch, scale=loss_scale(model), start=1.0, clamped=True,
        beta=options.beta, jitter=round(_JITTER_AT_224 * side / 224) if options.jitter is None else options.jitter,
    )  # fmt: skip
    return learner_for(model, recipe, Pace(options.steps, options.rate), options.rows, Deletion)


def _first_discs(request: Request, learner: Learner, pictures: Bank) -> _FirstDiscs:
    """For each pair the smallest central disc with most of a whole blur's effect."""
    discs, pairs = _discs(learner.ends, learner.recipe.factor), request.pairs()
    scores = _scores(request, pictures, upsampling(learner.ends, learner.recipe.factor).apply(discs))
    weights, blur_proof = np.empty((len(pairs), 1, *discs.shape[1:]), np.float32), {}
    for pair, (image, label) in enumerate(pairs):
        sharp, *partly, blurred = scores[image, :, label]
        enough = [score <= blurred + (1 - _ENOUGH) * (sharp - blurred) for score in partly]
        weights[pair] = discs[1:][[*enough, True].index(True)]
        blur_proof[image, label] = bool(sharp >= _LEAST_PROB and blurred > sharp / 2)
    return _FirstDiscs(weights, blur_proof)


def _discs(ends: Ends, factor: int) -> Array:
    """Coarse masks [DISCS + 1, h, w] that delete discs with soft edges, from nothing to everything."""
    height, width = ends.height, ends.width
    soft = _SOFT_EDGE * min(height, width)
    down, across = ((np.arange(-(-side // factor)) + 0.5) * factor - side / 2 for side in (height, width))
    distance = np.hypot(down[:, None], across)
    radii = np.linspace(-soft, distance.max() + soft, DISCS + 1)
    return np.asarray(np.clip((distance - radii[:, None, None]) / (2 * soft) + 0.5, 0, 1), np.float32)


def _scores(request: Request, pictures: Bank, masks: Array) -> Array:
    """Probabilities [images, masks, labels] of every image over its infill."""
    signature, scores = request.model.signature, []
    kept = masks[:, None] if signature.layout == "NCHW" else masks[..., None]
    for image, (infill,) in enumerate(pictures.infills):
        rows = pictures.pictures[infill] + kept * (pictures.pictures[image] - pictures.pictures[infill])
        rows = np.round(rows) if signature.dtype == "uint8" else rows
        scores.append(to_probabilities(request.model.scores(rows.astype(signature.dtype)), signature.kind))
        request.tick(len(rows))
    return np.stack(scores)
