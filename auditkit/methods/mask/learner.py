"""Masks learned in batches: as many pairs of an image and a label as fit take steps together.

Between windows of steps the state is on the host, so that a pair that has settled makes room for the next one, and a
batch that did not fit into memory is repeated at half its size. The random draws of a pair do not depend on the others.
The second half prepares a classifier for the methods mask, fong and igos++: its graph and how many rows fit.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import onnx
from onnx import TensorProto

from auditkit.arrays import Array
from auditkit.data.ranks import map_seed
from auditkit.errors import BadInput, OutOfMemory, RuntimeFailure
from auditkit.graph import edit, mask_objective
from auditkit.graph.gradient import export
from auditkit.graph.hard_masks import Ends
from auditkit.graph.mask_objective import IMAGE, INFILLS, LABEL, LOSS, PICTURES, STATE, WEIGHTS, Objective, Recipe
from auditkit.methods.request import Bank, Request
from auditkit.model import gradient
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.model.session import Session, in_precision

_Tick = Callable[[int], None]
Options = TypeVar("Options")
Prepared = TypeVar("Prepared")
_PREPARED: "WeakKeyDictionary[OnnxClassifier, dict[Any, Any]]" = WeakKeyDictionary()
_HALF_SCALE = 1024.0  # for float16: gradients of -log f are at most 1 at the logits and far smaller at the pixels
_FACTORS = ((128, 4), (48, 2), (0, 1))  # (least pixels on the shorter side, pixels per cell of a mask)
_COARSE_FACTORS = ((128, 8), (0, 4))  # the same for masks of 28 x 28 at 224 pixels
_SIZES = 8  # batch sizes on CUDA, as parts of the largest: each new size is set up again, each unused row is wasted


@dataclass(frozen=True)
class Ending:
    """When a mask is done."""

    steps: int  # at most
    window: int  # steps over which losses are averaged
    settled: float  # least decrease of the loss that counts, as a share of it; below 0: masks take all steps
    patience: int  # windows without such a decrease after which a mask has settled

    def has_settled(self, averages: list[float]) -> bool:
        """Whether the last windows lowered the loss by too little."""
        if len(averages) <= self.patience:
            return False
        before, recent = min(averages[: -self.patience]), min(averages[-self.patience :])
        return recent >= before - self.settled * abs(before)


@dataclass(eq=False)
class Pair:
    """An image and a label, and the state of their mask."""

    image: int
    label: int
    name: str
    seed: int
    infills: Array  # positions in the bank
    state: dict[str, Array]  # without the axis of pairs
    losses: list[float] = field(default_factory=list)
    averages: list[float] = field(default_factory=list)
    best: Array | None = None  # weights after the window with the lowest average
    settled: bool = False

    def left(self, ending: Ending) -> int:
        """Steps to the end of the current window."""
        done = len(self.losses)
        return min(ending.window - done % ending.window, ending.steps - done)

    def draws(self, count: int, window: int) -> Array:
        """Positions [steps, count] of the infills in the rest of the current window, distinct if possible."""
        if len(self.infills) == 1:
            return np.broadcast_to(self.infills, (window, count))
        done = len(self.losses) % window
        rng = np.random.default_rng([self.seed, len(self.losses) - done])
        if len(self.infills) < count:
            return self.infills[rng.integers(0, len(self.infills), (window, count))][done:]
        chances = rng.random((window, len(self.infills)), np.float32)
        return self.infills[np.sort(np.argpartition(chances, count - 1, axis=1)[:, :count], axis=1)][done:]

    def advance(self, losses: Array, state: dict[str, Array], ending: Ending) -> bool:
        """Record the losses of some steps and the state after them; true when the mask is done."""
        self.state = state
        self.losses.extend(losses.tolist())
        done = len(self.losses)
        if done % ending.window and done < ending.steps:
            return False
        self.averages.append(float(np.mean(self.losses[(done - 1) // ending.window * ending.window :])))
        if not np.isfinite(self.averages[-1]):
            raise loss_failure(self.name, self.label, done)
        if self.averages[-1] <= min(self.averages):
            self.best = state[WEIGHTS]
        self.settled = ending.has_settled(self.averages)
        return self.settled or done >= ending.steps


def loss_failure(image: str, label: int, steps: int) -> RuntimeFailure:
    """The error of a loss that is NaN or infinite."""
    what = f"the loss of image '{image}' for label {label} is not a number after {steps} steps"
    return RuntimeFailure(f"{what}; a score is NaN, or the gradient overflows. Try --precision strict.")


@dataclass
class Learner:
    """A classifier with a session that takes steps down an objective, for as many pairs together as fit."""

    session: Session
    recipe: Recipe
    ending: Ending
    ends: Ends
    surrogate: bool  # whether the session is that of a model without its rounding
    room: int  # pairs in a batch; halved if memory runs out

    def learn(self, request: Request, bank: Bank, weights: Array | None = None) -> list[Pair]:
        """Every image and label of a request with its learned mask; weights [M, masks, h, w] to start from."""
        targets = request.pairs()
        state = mask_objective.initial_state(len(targets), self.ends, self.recipe)
        if weights is not None:
            state[WEIGHTS] = weights
        pairs = []
        for (image, label), pair_state in zip(targets, _split(state, len(targets)), strict=True):
            name = request.ids[image]
            seed = map_seed(request.seed, name, label)
            pairs.append(Pair(image, label, name, seed, bank.infills[image], pair_state))
        self._take_steps(pairs, self.session.upload(bank.pictures.astype(np.float32)), request.tick)
        return pairs

    def _take_steps(self, pairs: list[Pair], pictures: Any, tick: _Tick) -> None:
        """Take steps for all pairs until each is done."""
        waiting, active = deque(pairs), list[Pair]()
        while waiting or active:
            while waiting and len(active) < self.room:
                active.append(waiting.popleft())
            try:
                done = self._window(active, pictures, tick)
            except OutOfMemory:
                if self.room == 1 or self.recipe.pairs is not None:
                    message = "not even one mask fits into memory; use fewer distractors, or a device with more."
                    raise OutOfMemory(message) from None
                self.room //= 2
                waiting.extendleft(reversed(active[self.room :]))
                del active[self.room :]
                continue
            active = [pair for pair in active if pair not in done]

    def _window(self, pairs: list[Pair], pictures: Any, tick: _Tick) -> list[Pair]:
        """Take steps until the first window ends; returns the pairs that are done."""
        count = min(pair.left(self.ending) for pair in pairs)
        filled = pairs + pairs[-1:] * (self._width(len(pairs)) - len(pairs))
        draws = [pair.draws(self.recipe.infills, self.ending.window)[:count].astype(np.int32) for pair in filled]
        infills = np.stack(draws, axis=1)
        begin = {name: np.stack([pair.state[name] for pair in filled]) for name in STATE}
        feeds = {
            PICTURES: pictures, IMAGE: self.session.upload(np.array([pair.image for pair in filled], np.int32)),
            LABEL: self.session.upload(np.array([pair.label for pair in filled], np.int32)), INFILLS: infills[0],
        }  # fmt: skip
        stepper = self.session.stepper(STATE, begin, feeds, [LOSS])
        losses = np.empty((count, len(filled)))
        for step in range(count):
            (losses[step],) = stepper.step({INFILLS: infills[step]})
            tick(len(pairs) * self.recipe.rows)
        states = _split(stepper.state(), len(pairs))
        results = zip(pairs, states, losses.T[: len(pairs)], strict=True)
        return [pair for pair, state, column in results if pair.advance(column, state, self.ending)]

    def _width(self, pairs: int) -> int:
        """Pairs in a run: the graph's fixed number, else all pairs, padded on CUDA if they end at different steps."""
        if self.recipe.pairs is not None:
            return self.recipe.pairs
        together = self.ending.settled < 0 or not self.session.device.pads_batches
        return pairs if together else width(pairs, self.room)


def width(pairs: int, room: int) -> int:
    """Pairs in a run on CUDA, rounded up to one of a few sizes: eighths of the room, or halves of the first eighth."""
    size = max(1, room // _SIZES)
    if pairs > size:
        return min(-(-pairs // size) * size, room)
    while size // 2 >= pairs:
        size //= 2
    return size


def _split(state: dict[str, Array], count: int) -> list[dict[str, Array]]:
    """The states of the first pairs, without the axis of pairs."""
    return [{name: array[pair] for name, array in state.items()} for pair in range(count)]


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
    model: OnnxClassifier, recipe: Recipe, ending: Ending, rows: int | None, objective: type[Objective] = Objective
) -> Learner:
    """A learner that takes steps down an objective, on at most `rows` images at once."""
    network, weights, ends, surrogate = differentiable(model)
    session = Session(mask_objective.step(network, ends, recipe, objective), model.settings, weights)
    room = recipe.pairs or max(1, (rows or most_rows(model)) // recipe.rows)
    return Learner(session, recipe, ending, ends, surrogate, room)


def differentiable(model: OnnxClassifier) -> tuple[onnx.ModelProto, Mapping[str, Array], Ends, bool]:
    """A graph that also takes a seed and returns its gradient, its weights and ends, and whether it omits rounding."""
    if model.signature.rows == "dependent":
        raise BadInput("images of a batch change each other's scores, so masks cannot be learned; use another method.")
    base, _, _ = gradient.trusted(model)  # refuses a gradient that does not predict how the scores change
    s = model.signature
    declared = Ends(
        s.input, TensorProto.FLOAT, s.layout == "NHWC", s.height, s.width, s.channels, s.output, s.outputs, s.kind
    )
    ends = mask_objective.before_squashing(base.model.graph, declared, base.facts.shapes)
    network = export.with_gradient(edit.with_outputs(base.model, [ends.output]), base.facts, ends.output, ends.input)
    network, weights = in_precision(network, base.weights, model.settings)
    return network, weights, ends, base.surrogate


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
