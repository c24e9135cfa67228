"""iGOS++ (Khorram et al. 2021): two masks, what must go for a label to be lost and what must stay for it to be seen.

The objective (`graph.bilateral`) and its constants are those of the published code (khorrams/IGOS_pp) as it runs: 20
steps over 15 points of the path from the blurred image, masks of 28 x 28 for 224 pixels that start at 1, l1 1, tv 20,
noise, and at each step a line search down from 1000 in fifths until the loss has fallen by 1e-4 of what the slope
promises. The map is one less the product of both masks. What differs:

- the four terms are halved in the line search as they are in the gradient, there in the gradient only;
- noise is the same for a step's gradient and its line search, so that losses can be compared, there always new; it is
  drawn from a bank of pictures;
- noise and edges are in shares of the pixels' range, equal to the published ones for ImageNet's normalisation, so that
  they mean the same whatever a model normalises by; a pixel's likeness to the one below and to the one beside it are
  computed alike, there the former from the mean over colours;
- the baseline is a Gaussian blur as wide as the published one, a sigma of 50 cut off after 25 pixels;
- a line search that finds nothing takes no step, there one of less than 1e-5;
- pixels lie between the centres of the mask's cells, there its corners lie on the image's corners.
"""

from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.data.ranks import map_seed
from auditkit.errors import BadInput
from auditkit.graph import edit, igos_objective
from auditkit.graph.hard_masks import Ends
from auditkit.graph.igos_objective import TERMS, BilateralRecipe
from auditkit.graph.mask_objective import LOSS, upsampled
from auditkit.methods import option_values
from auditkit.methods.igos_search import Asked, Descent, Search
from auditkit.methods.mask.infills import over_blur
from auditkit.methods.mask.method import (
    COARSE,
    HALF_SCALE,
    differentiable,
    factor_for,
    made_once,
    most_rows,
    rounding,
    wanted_pairs,
)
from auditkit.methods.request import Found, Request
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.model.session import Session

NOISES = 64  # pictures of noise


@dataclass(frozen=True)
class IgosOptions:
    """How both masks are learned."""

    steps: int = 20
    points: int = 15  # of the path
    l1: float = 1.0
    tv: float = 20.0
    alpha: float = 1000.0  # the longest step
    factor: int | None = None  # None: 8 from 128 pixels on the shorter side, else 4
    blur: float = 14.5  # sigma in pixels, up to 224 on the shorter side
    noise: float = 0.045  # standard deviation, in ranges of a pixel
    edge: float = 0.0225  # difference of neighbours beyond which a mask may change, in ranges of a pixel
    rows: int | None = None  # images in a batch, at most; None: by device and size, and halved where they do not fit

    def __post_init__(self) -> None:
        option_values.whole(self, "steps", "points", "factor", "rows")
        option_values.not_negative(self, "l1", "tv", "noise")
        option_values.positive(self, "alpha", "edge")
        option_values.blur(self)


@dataclass(frozen=True)
class Ready:
    """A classifier made ready for the search."""

    search: Search
    ends: Ends
    surrogate: bool


def igos(request: Request, options: IgosOptions = IgosOptions()) -> Found:
    """How much of each pixel both masks take away, from 0 to 1, for every image and label."""
    ready = made_once(request.model, options, _made_ready)
    pairs, bank = wanted_pairs(request), over_blur(request, options.blur)
    asked = Asked(
        np.array(pairs, np.int32), tuple(request.ids[image] for image, _ in pairs),
        [map_seed(request.seed, request.ids[image], label) for image, label in pairs],
        np.concatenate([bank.pictures, _noise(request, options.noise)]), np.concatenate(bank.infills), NOISES,
    )  # fmt: skip
    found = ready.search.run(asked, request.tick)
    maps: tuple[dict[int, Array], ...] = tuple({} for _ in request.ids)
    for (image, label), masks in zip(pairs, found.masks, strict=True):
        maps[image][label] = 1 - upsampled(masks[:1] * masks[1:], ready.ends, ready.search.recipe.factor)[0]
    return Found(maps, found.passes, found.gradients, rounding(surrogate=ready.surrogate))


def _noise(request: Request, share: float) -> Array:
    """Pictures of noise as the network takes it, the same for every request with a seed."""
    signature = request.model.signature
    drawn = np.random.default_rng([request.seed, NOISES]).standard_normal((NOISES, *signature.array_shape(1)[1:]))
    shape = (-1, 1, 1) if signature.layout == "NCHW" else (1, 1, -1)
    return np.asarray(drawn * (share * _ranges(request.model)).reshape(shape), np.float32)


def _ranges(model: AnyClassifier) -> Array:
    """What lies between black and white, for each channel as the network takes it."""
    return np.asarray(np.ptp(model.card.table(), axis=1))


def _made_ready(model: OnnxClassifier, options: IgosOptions) -> Ready:
    network = differentiable(model)
    rows, own = options.rows or most_rows(model), model.signature.own_batch
    points = _points(options.points, rows, own)
    recipe = BilateralRecipe(
        infills=1, masks=2, factor=factor_for(model, options.factor, COARSE), tv=options.tv, l1=options.l1,
        pairs=None if own is None else own // (TERMS * points),
        scale=HALF_SCALE if model.settings.precision == "float16" else 1.0, start=1.0, points=points,
        edges=tuple(options.edge * _ranges(model)),
    )  # fmt: skip
    graph = igos_objective.gradient_graph(network.model, network.ends, recipe)
    slope, loss = (
        Session(proto, model.settings, network.weights) for proto in (graph, edit.with_outputs(graph, [LOSS]))
    )
    descent = Descent(options.steps, options.points, options.alpha)
    room = recipe.pairs or max(1, rows // recipe.rows)
    search = Search(slope, loss, recipe, recipe.grid(network.ends), descent, room)
    return Ready(search, network.ends, network.surrogate)


def _points(wanted: int, rows: int, own: int | None) -> int:
    """Points of the path in one run: as many as fit, in runs of equal size."""
    fitting = [n for n in range(1, wanted + 1) if wanted % n == 0 and (own is None or own % (TERMS * n) == 0)]
    if not fitting:
        raise BadInput(f"the model takes batches of {own} only, and igos++ needs a multiple of {TERMS}; use fong.")
    return max((n for n in fitting if TERMS * n <= rows), default=fitting[0])
