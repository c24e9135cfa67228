"""Masks learned in batches: as many pairs of an image and a label as fit take steps together.

Between windows of steps the state is on the host, so that a batch that did not fit into memory is repeated at half its
size. The random draws of a pair do not depend on the others.
Every minute the states go into the request's checkpoint; a learner that continues from it takes the same steps in the
same batches.
The second half prepares a classifier for the methods mask, fong and igos++: its graph and how many rows fit.
"""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import onnx
from onnx import TensorProto

from auditkit.arrays import Array
from auditkit.data.ranks import map_seed
from auditkit.errors import BadInput, NoGradient, OutOfMemory
from auditkit.graph import edit, mask_objective
from auditkit.graph.gradient import export
from auditkit.graph.hard_masks import Ends
from auditkit.graph.mask_objective import IMAGE, INFILLS, LABEL, LOSS, PICTURES, RATE, STATE, WEIGHTS, Objective, Recipe
from auditkit.methods.mask.pair import WINDOW, Pace, Pair, SavedStates
from auditkit.methods.request import Bank, Request
from auditkit.model import gradient
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.model.passes import in_precision
from auditkit.model.session import Session

_Tick = Callable[[int], None]
Options = TypeVar("Options")
Prepared = TypeVar("Prepared")
_PREPARED: "WeakKeyDictionary[OnnxClassifier, dict[Any, Any]]" = WeakKeyDictionary()
_MOST_PREPARED = 4  # of a classifier: each holds a session, with memory of the device
_HALF_SCALE = 1024.0  # for float16: gradients of -log f are at most 1 at the logits and far smaller at the pixels
_FACTORS = ((128, 4), (48, 2), (0, 1))  # (least pixels on the shorter side, pixels per cell of a mask)
_COARSE_FACTORS = ((128, 8), (0, 4))  # the same for masks of 28 x 28 at 224 pixels


@dataclass
class Learner:
    """A classifier with a session that takes steps down an objective, for as many pairs together as fit."""

    session: Session
    recipe: Recipe
    pace: Pace
    ends: Ends
    surrogate: bool  # whether the session is that of a model without its rounding
    room: int  # pairs in a batch; halved if memory runs out

    def learn(self, request: Request, bank: Bank, weights: Array | None = None) -> Iterator[list[Pair]]:
        """The pairs of a request with their learned masks: all pairs of an image as soon as they are done.

        Weights [M, masks, h, w] are what to start from.
        """
        pairs = self._pairs(request, bank, weights)
        saved = SavedStates(request.checkpoint, self._keys(request, bank, pairs))
        saved.load()
        request.expect(sum(self.pace.steps - pair.done for pair in pairs) * self.recipe.rows)
        unfinished: dict[int, list[Pair]] = {}
        for pair in pairs:
            unfinished.setdefault(pair.image, []).append(pair)
        pictures = self.session.upload(bank.pictures.astype(np.float32))
        for _window in self._take_steps(pairs, pictures, request.tick, saved.is_due):
            done = [image for image in unfinished if all(map(self._is_done, unfinished[image]))]
            if done:
                yield list(chain.from_iterable(unfinished.pop(image) for image in done))
            if saved.is_due():
                saved.save(chain.from_iterable(unfinished.values()))

    def _is_done(self, pair: Pair) -> bool:
        return pair.done >= self.pace.steps

    def _pairs(self, request: Request, bank: Bank, weights: Array | None) -> list[Pair]:
        """Every image and label of a request before the first step."""
        targets = request.pairs()
        state = mask_objective.initial_state(len(targets), self.ends, self.recipe)
        if weights is not None:
            state[WEIGHTS] = weights
        pairs = []
        for (image, label), pair_state in zip(targets, _split(state, len(targets)), strict=True):
            name = request.ids[image]
            seed = map_seed(request.seed, name, label)
            pairs.append(Pair(image, label, name, seed, bank.infills[image], pair_state))
        return pairs

    def _keys(self, request: Request, bank: Bank, pairs: list[Pair]) -> dict[Pair, str]:
        """For each pair, a digest of all that can change its mask."""
        settings, keys = self.session.settings, {}
        pictures = [hashlib.sha256(np.ascontiguousarray(picture).data).hexdigest() for picture in bank.pictures]
        shared = [request.model.identity, settings.device, settings.precision, repr(self.recipe), repr(self.pace)]
        for pair in pairs:
            infills = [pictures[position] for position in pair.infills.tolist()]
            facts = [*shared, pair.name, pair.label, pair.seed, pictures[pair.image], infills]
            keys[pair] = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        return keys

    def _take_steps(
        self, pairs: list[Pair], pictures: Any, tick: _Tick, must_pause: Callable[[], bool]
    ) -> Iterator[None]:
        """Take steps for all pairs until each is done; yields whenever the states are on the host."""
        waiting, active = deque(pair for pair in pairs if not self._is_done(pair)), list[Pair]()
        yield  # some may have been done in the checkpoint
        while waiting or active:
            while waiting and len(active) < self.room:
                active.append(waiting.popleft())
            try:
                self._window(active, pictures, tick, must_pause)
            except OutOfMemory:
                if self.room == 1 or self.recipe.pairs is not None:
                    message = "not even one mask fits into memory; use fewer distractors, or a device with more memory."
                    raise OutOfMemory(message) from None
                self.room //= 2
                waiting.extendleft(reversed(active[self.room :]))
                del active[self.room :]
                continue
            active = [pair for pair in active if not self._is_done(pair)]
            yield

    def _window(self, pairs: list[Pair], pictures: Any, tick: _Tick, must_pause: Callable[[], bool]) -> None:
        """Take steps until the first window ends, or until a pause is due."""
        count = min(min(WINDOW - pair.done % WINDOW, self.pace.steps - pair.done) for pair in pairs)
        filled = pairs + pairs[-1:] * ((self.recipe.pairs or len(pairs)) - len(pairs))
        draws = [pair.draws(self.recipe.infills)[:count].astype(np.int32) for pair in filled]
        infills = np.stack(draws, axis=1)
        rates = np.stack([self.pace.rates(pair.done, count) for pair in filled], axis=1)[..., None, None, None]
        begin = {name: np.stack([pair.state[name] for pair in filled]) for name in STATE}
        feeds = {
            PICTURES: pictures, IMAGE: self.session.upload(np.array([pair.image for pair in filled], np.int32)),
            LABEL: self.session.upload(np.array([pair.label for pair in filled], np.int32)), INFILLS: infills[0],
            RATE: rates[0],
        }  # fmt: skip
        stepper = self.session.stepper(STATE, begin, feeds, [LOSS])
        losses: list[Array] = []
        for step_infills, step_rates in zip(infills, rates, strict=True):
            losses += stepper.step({INFILLS: step_infills, RATE: step_rates})
            tick(len(pairs) * self.recipe.rows)
            if must_pause():
                break
        states = _split(stepper.state(), len(pairs))
        for pair, state, column in zip(pairs, states, np.array(losses).T[: len(pairs)], strict=True):
            pair.advance(column, state)


def _split(state: dict[str, Array], count: int) -> list[dict[str, Array]]:
    """The states of the first pairs, without the axis of pairs."""
    return [{name: array[pair] for name, array in state.items()} for pair in range(count)]


def prepare_once(
    model: AnyClassifier, options: Options, prepare: Callable[[OnnxClassifier, Options], Prepared]
) -> Prepared:
    """The result of `prepare`, computed once for a classifier and its options; the last few are kept."""
    if not model.can_differentiate:
        raise NoGradient("a function has no gradient to follow")
    cache = _PREPARED.setdefault(model, {})
    prepared: Prepared = cache.pop(options) if options in cache else prepare(model, options)
    cache[options] = prepared
    if len(cache) > _MOST_PREPARED:
        del cache[next(iter(cache))]
    return prepared


def learner_for(
    model: OnnxClassifier, recipe: Recipe, pace: Pace, rows: int | None, objective: type[Objective] = Objective
) -> Learner:
    """A learner that takes steps down an objective, on at most `rows` images at once."""
    network, weights, ends, surrogate = differentiable(model)
    session = Session(mask_objective.step(network, ends, recipe, objective), model.settings, weights)
    room = recipe.pairs or max(1, (rows or most_rows(model)) // recipe.rows)
    return Learner(session, recipe, pace, ends, surrogate, room)


def differentiable(model: OnnxClassifier) -> tuple[onnx.ModelProto, Mapping[str, Array], Ends, bool]:
    """A graph that also takes a seed and returns its gradient, its weights and ends, and whether it omits rounding."""
    if model.signature.rows == "dependent":
        raise NoGradient("images of a batch change each other's scores, so masks cannot be learned by gradients")
    base, _, _ = gradient.trusted(model)  # refuses a gradient that does not predict how the scores change
    s = model.signature
    declared = Ends(
        s.input, TensorProto.FLOAT, s.layout == "NHWC", s.height, s.width, s.channels, s.output, s.outputs, s.kind
    )
    ends = mask_objective.before_squashing(base.model.graph, declared, base.facts.shapes)
    headless, adds_in_order = edit.with_outputs(base.model, [ends.output]), model.device.adds_in_order
    network = export.with_gradient(headless, base.facts, ends.output, ends.input, adds_in_order=adds_in_order)
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
