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

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.ranks import map_seed
from auditkit.errors import BadInput, OutOfMemory
from auditkit.graph import edit, igos_objective
from auditkit.graph.hard_masks import Ends
from auditkit.graph.igos_objective import NOISE, POINTS, SLOPE, TERMS, BilateralRecipe
from auditkit.graph.mask_objective import IMAGE, INFILLS, LABEL, LOSS, PICTURES, WEIGHTS, upsampling
from auditkit.methods import option_values
from auditkit.methods.mask.learner import differentiable, factor_for, loss_scale, most_rows, prepare_once
from auditkit.methods.mask.pair import loss_failure
from auditkit.methods.notes import Note
from auditkit.methods.request import MethodResult, Request, over_blur
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.model.session import Session

_NOISES = 64  # pictures of noise
_Tick = Callable[[int], None]
_SHORTER, _SHORTEST = 0.2, 1e-5  # the factor between two tried step lengths, and the shortest one
_EVALUATIONS = 6  # of a step, about: its gradient, and the lengths that are tried
_SUFFICIENT = 1e-4  # share of the decrease predicted by the slope that a step must reach


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


@dataclass(frozen=True)
class Targets:
    """Pairs of an image and a label, and the pictures that they need."""

    pairs: Array  # [M, 2], image and label
    names: tuple[str, ...]
    seeds: list[int]
    pictures: Array  # the images, their infills, and last the noise
    infills: Array  # for each image, the position of its infill
    noises: int

    def part(self, chosen: slice) -> "Targets":
        """Some of the pairs, with the same pictures."""
        return replace(self, pairs=self.pairs[chosen], names=self.names[chosen], seeds=self.seeds[chosen])


@dataclass(frozen=True)
class Result:
    """Pairs with their masks, and the cost of the search."""

    pairs: Array  # [M, 2], image and label
    masks: Array  # [M, 2, h, w]
    passes: Array  # [M]
    gradients: Array  # [M]


@dataclass
class Search:
    """A classifier's two graphs, and the descent over them."""

    slope: Session
    loss: Session
    recipe: BilateralRecipe
    ends: Ends
    surrogate: bool  # whether the graphs are those of a model without its rounding
    steps: int
    points: int  # of the path
    longest_step: float
    room: int  # pairs in a batch; halved if memory runs out

    def run(self, targets: Targets, tick: _Tick) -> Iterator[Result]:
        """Both masks of every pair, some pairs at a time."""
        uploaded = self.slope.upload(targets.pictures)
        start = 0
        while start < len(targets.pairs):
            try:
                result = _Batch(self, targets.part(slice(start, start + self.room)), uploaded, tick).descend()
            except OutOfMemory:
                if self.room == 1 or self.recipe.pairs is not None:
                    raise OutOfMemory("not even one pair of masks fits into memory; use the option rows=4.") from None
                self.room //= 2
                continue
            yield result
            start += self.room


class _Batch:
    """Pairs that descend together."""

    def __init__(self, search: Search, targets: Targets, uploaded: Any, tick: _Tick) -> None:
        self.search, self.targets, self.uploaded, self.tick = search, targets, uploaded, tick
        self.points = (np.arange(search.points, dtype=np.float32) + 1) / search.points
        self.passes, self.gradients = np.zeros((2, len(targets.pairs)), np.int64)

    def descend(self) -> Result:
        """The masks after all steps."""
        targets = self.targets
        masks = np.ones((len(targets.pairs), 2, *self.search.recipe.grid(self.search.ends)))
        everyone = np.arange(len(masks))
        for step in range(self.search.steps):
            noise = np.stack([self._noise(seed, step) for seed in targets.seeds])
            losses, slopes = self._evaluate(self.search.slope, masks, everyone, noise)
            bad = np.flatnonzero(~np.isfinite(losses))
            if len(bad):
                raise loss_failure(targets.names[bad[0]], targets.pairs[bad[0], 1], step)
            masks = self._line_search(masks, losses, slopes, noise)
        return Result(targets.pairs, masks, self.passes, self.gradients)

    def _noise(self, seed: int, step: int) -> Array:
        """Positions [TERMS, points] of a step's pictures of noise."""
        last, shape = len(self.targets.pictures), (TERMS, len(self.points))
        return np.random.default_rng([seed, step]).integers(last - self.targets.noises, last, shape)

    def _line_search(self, masks: Array, losses: Array, slopes: Array, noise: Array) -> Array:
        """Each pair's masks after the longest step with a sufficient decrease; the same masks if there is none."""
        sufficient = _SUFFICIENT * (slopes**2).sum(axis=(1, 2, 3))
        new, left, length = masks.copy(), np.arange(len(masks)), self.search.longest_step
        while len(left) and length >= _SHORTEST:
            candidates = np.clip(masks[left] - length * slopes[left], 0, 1)
            (candidate_losses,) = self._evaluate(self.search.loss, candidates, left, noise)
            accepted = candidate_losses <= losses[left] - length * sufficient[left]
            new[left[accepted]] = candidates[accepted]
            left, length = left[~accepted], length * _SHORTER
        return new

    def _evaluate(self, session: Session, masks: Array, members: Array, noise: Array) -> list[Array]:
        """Losses of some pairs, and slopes if the session has them, as means over the runs that cover the path."""
        search, targets, points = self.search, self.targets, self.search.recipe.points
        # On CUDA a run of another size costs more than is saved by leaving out the pairs that are done.
        pairs = len(targets.pairs) if session.device.pads_batches else len(members)
        filled = np.resize(members, search.recipe.pairs or pairs)
        image, label = targets.pairs[filled].T
        feeds = {
            PICTURES: self.uploaded, WEIGHTS: masks[np.resize(np.arange(len(members)), len(filled))].astype(np.float32),
            IMAGE: image, LABEL: label, INFILLS: targets.infills[image][:, None].astype(np.int32),
        }  # fmt: skip
        outputs, runs = [name for name in (LOSS, SLOPE) if name in session.outputs], range(0, len(self.points), points)
        totals = [np.zeros(1)] * len(outputs)
        for start in runs:
            part = slice(start, start + points)
            positions = noise[filled][:, :, part].reshape(len(filled), -1).astype(np.int32)
            arrays = session.run({**feeds, NOISE: positions, POINTS: self.points[part]}, outputs)
            arrays = [array[: len(members)].astype(np.float64) for array in arrays]
            totals = [total + array for total, array in zip(totals, arrays, strict=True)]
            self.passes[members] += search.recipe.rows
            self.gradients[members] += search.recipe.rows * (SLOPE in outputs)
            self.tick(len(members) * search.recipe.rows)
        return [total / len(runs) for total in totals]


def igos(request: Request, options: IgosOptions = IgosOptions()) -> MethodResult:
    """The share of each pixel that both masks remove, in [0, 1], for every image and label."""
    search = prepare(request.model, options)
    pairs, bank = request.pairs(), over_blur(request, options.blur)
    targets = Targets(
        np.array(pairs, np.int32), tuple(request.ids[image] for image, _ in pairs),
        [map_seed(request.seed, request.ids[image], label) for image, label in pairs],
        np.concatenate([bank.pictures, _noise(request, options.noise)]), np.concatenate(bank.infills), _NOISES,
    )  # fmt: skip
    runs = -(-search.points // search.recipe.points)
    request.expect(len(pairs) * search.steps * _EVALUATIONS * runs * search.recipe.rows)
    return request.in_parts(_whole_images(request, search, search.run(targets, request.tick)))


def _whole_images(request: Request, search: Search, results: Iterable[Result]) -> Iterator[MethodResult]:
    """The maps of each image as soon as all of its labels have one."""
    maps, passes, gradients = request.empty_maps(), [0] * len(request.ids), [0] * len(request.ids)
    notes = (Note("surrogate-masks"),) * search.surrogate
    for result in results:
        for pair, (image, label) in enumerate(result.pairs.tolist()):
            both = result.masks[pair, :1] * result.masks[pair, 1:]
            maps[image][label] = 1 - upsampling(search.ends, search.recipe.factor).apply(both)[0]
            passes[image] += int(result.passes[pair])
            gradients[image] += int(result.gradients[pair])
            if len(maps[image]) == len(request.labels[image]):
                done = request.empty_maps()
                done[image].update(maps[image])
                yield MethodResult(done, passes[image], gradients[image], notes)


def _noise(request: Request, share: float) -> Array:
    """Pictures of noise as the network takes them, the same for every request with a seed."""
    signature = request.model.signature
    noise = np.random.default_rng([request.seed, _NOISES]).standard_normal((_NOISES, *signature.array_shape(1)[1:]))
    shape = (-1, 1, 1) if signature.layout == "NCHW" else (1, 1, -1)
    return np.asarray(noise * (share * _ranges(request.model)).reshape(shape), np.float32)


def _ranges(model: AnyClassifier) -> Array:
    """Difference between white and black [channels], as the network takes them."""
    return np.asarray(np.ptp(model.card.table(), axis=1))


def prepare(model: AnyClassifier, options: IgosOptions) -> Search:
    """The search for a classifier, prepared once."""
    return prepare_once(model, options, _prepare)


def _prepare(model: OnnxClassifier, options: IgosOptions) -> Search:
    network, weights, ends, surrogate = differentiable(model)
    rows, batch = options.rows or most_rows(model), model.signature.fixed_batch
    points = _points(options.points, rows, batch)
    recipe = BilateralRecipe(
        infills=1, masks=2, factor=factor_for(model, options.factor, coarse=True), tv=options.tv, l1=options.l1,
        pairs=None if batch is None else batch // (TERMS * points), scale=loss_scale(model), start=1.0, points=points,
        edges=tuple(options.edge * _ranges(model)),
    )  # fmt: skip
    graph = igos_objective.gradient_graph(network, ends, recipe)
    slope = Session(graph, model.settings, weights)
    loss = Session(edit.with_outputs(graph, [LOSS]), model.settings, weights)
    room = recipe.pairs or max(1, rows // recipe.rows)
    return Search(slope, loss, recipe, ends, surrogate, options.steps, options.points, options.alpha, room)


def _points(total: int, rows: int, batch: int | None) -> int:
    """Points of the path in one run: as many as fit, in runs of equal size."""
    fitting = [n for n in range(1, total + 1) if total % n == 0 and (batch is None or batch % (TERMS * n) == 0)]
    if not fitting:
        raise BadInput(f"the model takes batches of {batch} only, and igos++ needs a multiple of {TERMS}; use fong.")
    return max((n for n in fitting if TERMS * n <= rows), default=fitting[0])
