"""iGOS++ (Khorram et al. 2021): two masks, one whose pixels lose the label if deleted, one whose pixels suffice for it.

The objective (`graph.igos_objective`) and its constants are those of the published code (khorrams/IGOS_pp) as it runs:
20 steps over 15 points of the path from the blurred image, masks of 28 x 28 for 224 pixels that start at 1, l1 1, tv
20, noise, and at each step a line search down from 1000 in fifths until the loss has fallen by 1e-4 of what the slope
predicts. The map is 1 minus the product of both masks. Differences to the published code:

- the four terms are halved in the line search as in the gradient, there in the gradient only;
- a step's gradient and its line search share their noise, so that losses are comparable, there it is always new; it is
  drawn from a bank of pictures;
- noise and edges are shares of the pixels' range, equal to the published ones for ImageNet's normalisation, so that
  they do not depend on a model's normalisation; a pixel's similarity to its lower and to its right neighbour are
  computed in the same way, there the former from the mean over colours;
- the baseline is a Gaussian blur as wide as the published one, a sigma of 50 cut off after 25 pixels;
- a line search without success takes no step, there one of less than 1e-5;
- pixels are interpolated between the centres of the mask's cells, there the corners of mask and image coincide.
"""

from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.data.ranks import map_seed
from auditkit.errors import BadInput
from auditkit.graph import edit, igos_objective
from auditkit.graph.igos_objective import TERMS, BilateralRecipe
from auditkit.graph.mask_objective import LOSS, upsampled
from auditkit.methods import option_values
from auditkit.methods.igos_search import Search, Targets
from auditkit.methods.mask.infills import over_blur
from auditkit.methods.mask.network import differentiable, factor_for, loss_scale, most_rows, prepare_once
from auditkit.methods.notes import Note
from auditkit.methods.request import MethodResult, Request
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.model.session import Session

_NOISES = 64  # pictures of noise


@dataclass(frozen=True)
class IgosOptions:
    """How the two masks are learned."""

    steps: int = 20
    points: int = 15  # of the path
    l1: float = 1.0
    tv: float = 20.0
    alpha: float = 1000.0  # the longest step
    factor: int | None = None  # None: 8 from 128 pixels on the shorter side, else 4
    blur: float = 14.5  # sigma in pixels, up to 224 on the shorter side
    noise: float = 0.045  # standard deviation, as a share of a pixel's range
    edge: float = 0.0225  # difference of neighbours beyond which a mask may change, as a share of a pixel's range
    rows: int | None = None  # most images in a batch; None: by device and size, halved if memory runs out

    def __post_init__(self) -> None:
        option_values.require_whole(self, "steps", "points", "factor", "rows")
        option_values.require_not_negative(self, "l1", "tv", "noise")
        option_values.require_positive(self, "alpha", "edge")
        option_values.require_blur(self.blur)


def igos(request: Request, options: IgosOptions = IgosOptions()) -> MethodResult:
    """The share of each pixel that both masks remove, in [0, 1], for every image and label."""
    search, maps = prepare_once(request.model, options, _prepare), request.empty_maps()
    pairs, bank = request.pairs(), over_blur(request, options.blur)
    targets = Targets(
        np.array(pairs, np.int32), tuple(request.ids[image] for image, _ in pairs),
        [map_seed(request.seed, request.ids[image], label) for image, label in pairs],
        np.concatenate([bank.pictures, _noise(request, options.noise)]), np.concatenate(bank.infills), _NOISES,
    )  # fmt: skip
    result = search.run(targets, request.tick)
    for (image, label), masks in zip(pairs, result.masks, strict=True):
        maps[image][label] = 1 - upsampled(masks[:1] * masks[1:], search.ends, search.recipe.factor)[0]
    return MethodResult(maps, result.passes, result.gradients, (Note("surrogate-masks"),) * search.surrogate)


def _noise(request: Request, share: float) -> Array:
    """Pictures of noise as the network takes them, the same for every request with a seed."""
    signature = request.model.signature
    noise = np.random.default_rng([request.seed, _NOISES]).standard_normal((_NOISES, *signature.array_shape(1)[1:]))
    shape = (-1, 1, 1) if signature.layout == "NCHW" else (1, 1, -1)
    return np.asarray(noise * (share * _ranges(request.model)).reshape(shape), np.float32)


def _ranges(model: AnyClassifier) -> Array:
    """Difference between white and black [channels], as the network takes them."""
    return np.asarray(np.ptp(model.card.table(), axis=1))


def _prepare(model: OnnxClassifier, options: IgosOptions) -> Search:
    network = differentiable(model)
    rows, batch = options.rows or most_rows(model), model.signature.fixed_batch
    points = _points(options.points, rows, batch)
    recipe = BilateralRecipe(
        infills=1, masks=2, factor=factor_for(model, options.factor, coarse=True), tv=options.tv, l1=options.l1,
        pairs=None if batch is None else batch // (TERMS * points), scale=loss_scale(model), start=1.0, points=points,
        edges=tuple(options.edge * _ranges(model)),
    )  # fmt: skip
    graph = igos_objective.gradient_graph(network.model, network.ends, recipe)
    slope = Session(graph, model.settings, network.weights)
    loss = Session(edit.with_outputs(graph, [LOSS]), model.settings, network.weights)
    room = recipe.pairs or max(1, rows // recipe.rows)
    return Search(
        slope, loss, recipe, network.ends, network.surrogate, options.steps, options.points, options.alpha, room
    )


def _points(total: int, rows: int, batch: int | None) -> int:
    """Points of the path in one run: as many as fit, in runs of equal size."""
    fitting = [n for n in range(1, total + 1) if total % n == 0 and (batch is None or batch % (TERMS * n) == 0)]
    if not fitting:
        raise BadInput(f"the model takes batches of {batch} only, and igos++ needs a multiple of {TERMS}; use fong.")
    return max((n for n in fitting if TERMS * n <= rows), default=fitting[0])
