"""A step of mask learning against the same written plainly with numpy, in float64, gradients by differences."""

from dataclasses import replace
from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph import float_types
from auditkit.graph import mask_objective as names
from auditkit.graph.gradient import export
from auditkit.graph.hard_masks import Ends
from auditkit.graph.mask_objective import Recipe, before_squashing, coarse_masks
from auditkit.model.gradient import measured_facts
from auditkit.model.session import Session, Settings
from tests.support import onnx_models

CPU = Settings(device="cpu")
HEIGHT, WIDTH, CHANNELS = 5, 7, 2
BASE = Recipe(infills=3, tv=0.3, l1=0.02)
KINDS = [("logits", 4), ("probabilities", 4), ("log-probabilities", 4), ("sigmoid", 4), ("logits", 1), ("sigmoid", 1),
         ("probabilities", 1), ("log-probabilities", 1)]  # fmt: skip


def ends_for(kind: str = "logits", outputs: int = 4, channels_last: bool = False) -> Ends:
    return Ends("x", TensorProto.FLOAT, channels_last, HEIGHT, WIDTH, CHANNELS, "y", outputs, kind)


class Net:
    """tanh(x A) B, and what makes scores of the kind asked for of it."""

    def __init__(self, ends: Ends, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.ends, size = ends, HEIGHT * WIDTH * CHANNELS
        self.weights = {
            "A": rng.standard_normal((size, 6)).astype(np.float32) / 4,
            "B": rng.standard_normal((6, ends.outputs)).astype(np.float32),
        }

    def __call__(self, rows: Array) -> Array:
        z = np.tanh(rows.reshape(len(rows), -1) @ self.weights["A"].astype(float)) @ self.weights["B"].astype(float)
        return {"logits": lambda: z, "sigmoid": lambda: sigmoid(z)}.get(self.ends.kind, lambda: self._squashed(z))()

    def _squashed(self, z: Array) -> Array:
        p = sigmoid(z) if z.shape[1] == 1 else softmax(z)
        return np.log(p) if self.ends.kind == "log-probabilities" else p

    def model(self) -> onnx.ModelProto:
        last = {
            "logits": ["Identity"], "sigmoid": ["Sigmoid"], "probabilities": ["Softmax", "Sigmoid"],
            "log-probabilities": ["LogSoftmax", "Sigmoid"],
        }[self.ends.kind][-1 if self.ends.outputs == 1 else 0]  # fmt: skip
        nodes = [
            helper.make_node("Flatten", ["x"], ["f"]),
            helper.make_node("MatMul", ["f", "A"], ["h"]),
            helper.make_node("Tanh", ["h"], ["t"]),
            helper.make_node("MatMul", ["t", "B"], ["z"]),
        ]
        if self.ends.kind == "log-probabilities" and self.ends.outputs == 1:
            nodes += [helper.make_node("Sigmoid", ["z"], ["p"]), helper.make_node("Log", ["p"], ["y"])]
        else:
            nodes.append(helper.make_node(last, ["z"], ["y"]))
        x = onnx_models.value("x", ["N", *self.ends.picture])
        return onnx_models.model(nodes, [x], [onnx_models.value("y", ["N", self.ends.outputs])], self.weights, opset=18)

    def with_gradient(self) -> onnx.ModelProto:
        model = self.model()
        feeds = [{"x": np.ones((n, *self.ends.picture), np.float32)} for n in (2, 3)]
        return export.with_gradient(model, measured_facts(model, {}, feeds, Settings(device="cpu")), "y", "x")


def sigmoid(z: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-z)))


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def slowly_upsampled(small: Array, factor: int) -> Array:
    """Bilinear, pixel by pixel: a pixel's centre lies among the centres of four others."""
    height, width = small.shape
    wide = np.empty((HEIGHT, WIDTH))
    for row, column in product(range(HEIGHT), range(WIDTH)):
        y, x = (row + 0.5) / factor - 0.5, (column + 0.5) / factor - 0.5
        top, left = int(np.floor(y)), int(np.floor(x))
        wide[row, column] = sum(
            small[min(max(i, 0), height - 1), min(max(j, 0), width - 1)] * (1 - abs(y - i)) * (1 - abs(x - j))
            for i, j in product((top, top + 1), (left, left + 1))
        )
    return wide


def plain_masks(weights: Array, recipe: Recipe) -> Array:
    """Masks [masks, H, W] of one pair's weights."""
    shares = softmax(np.concatenate([weights, 0 * weights[:1]]).transpose(1, 2, 0)).transpose(2, 0, 1)[:-1]
    return np.stack([slowly_upsampled(share, recipe.factor) for share in shares])


def probabilities(scores: Array, kind: str) -> Array:
    if kind == "logits":
        scores = sigmoid(scores) if scores.shape[1] == 1 else softmax(scores)
    if kind == "log-probabilities":
        scores = np.exp(scores)
    return np.concatenate([1 - scores, scores], axis=1) if scores.shape[1] == 1 else scores


def plain_losses(net: Net, weights: Array, image: Array, infills: Array, label: int, recipe: Recipe) -> Array:
    """Data term and all, for one pair."""
    data, penalty = [], []
    for m in plain_masks(weights, recipe):
        kept = m[..., None] if net.ends.channels_last else m
        f = probabilities(net(kept * image + (1 - kept) * infills), net.ends.kind)
        data.append(-np.log(softmax(f.mean(axis=0))[label]) if recipe.code_loss else -np.log(f[:, label]).mean())
        tv = ((m[1:] - m[:-1]) ** 2).sum() + ((m[:, 1:] - m[:, :-1]) ** 2).sum()
        penalty.append(recipe.tv * tv + recipe.l1 * np.abs(m).sum())
    return np.array([np.mean(data), np.mean(data) + np.mean(penalty)])


class Case:
    """Some pairs over a bank of pictures."""

    def __init__(self, net: Net, recipe: Recipe, pairs: int = 2) -> None:
        rng = np.random.default_rng(7)
        self.net, self.recipe = net, recipe
        self.pictures = rng.standard_normal((9, *net.ends.picture)).astype(np.float32)
        self.images = np.arange(pairs, dtype=np.int32)
        self.labels = np.arange(pairs, dtype=np.int32)[::-1] % max(2, net.ends.outputs)
        self.weights = rng.standard_normal((pairs, recipe.masks, *recipe.grid(net.ends)))
        self.rng = rng
        self.graph = names.step(net.with_gradient(), net.ends, recipe)

    def draws(self) -> Array:
        return self.rng.integers(3, 9, (len(self.images), self.recipe.infills)).astype(np.int32)

    def feeds(self, infills: Array) -> dict[str, Array]:
        state = names.initial_state(len(self.images), self.net.ends, self.recipe)
        state[names.WEIGHTS] = self.weights.astype(np.float32)
        return {
            **state, names.PICTURES: self.pictures, names.IMAGE: self.images, names.LABEL: self.labels,
            names.INFILLS: infills, names.RATE: self.rates(0),
        }  # fmt: skip

    def rates(self, step: int) -> Array:
        """Others for each pair and step."""
        return np.asarray(0.05 * (1 + np.arange(len(self.images))) * 0.7**step, np.float32)[:, None, None, None]

    def losses(self, weights: Array, infills: Array) -> Array:
        """[pairs, 2]."""
        return np.stack([
            plain_losses(self.net, weights[i], self.pictures[image], self.pictures[infills[i]], label, self.recipe)
            for i, (image, label) in enumerate(zip(self.images, self.labels, strict=True))
        ])  # fmt: skip

    def slopes(self, weights: Array, infills: Array) -> Array:
        """The gradient of each pair's loss by differences; pairs do not heed each other, so all are moved at once."""
        found = np.empty_like(weights)
        for place in np.ndindex(weights.shape[1:]):
            moved = np.zeros_like(weights)
            moved[(slice(None), *place)] = 1e-5
            ahead, behind = (self.losses(weights + sign * moved, infills)[:, 1] for sign in (1, -1))
            found[(slice(None), *place)] = (ahead - behind) / 2e-5
        return found

    def exactly(self, infills: Array) -> dict[str, Array]:
        """All outputs of the graph in float64."""
        exact = ReferenceEvaluator(float_types.in_one_float(self.graph, {}, TensorProto.DOUBLE)[0])
        given = {n: a.astype(float) if a.dtype.kind == "f" else a for n, a in self.feeds(infills).items()}
        given[names.WEIGHTS] = self.weights
        return dict(zip(exact.output_names, exact.run(None, given), strict=True))


RECIPES = {
    "plain": BASE,
    "upsampled": replace(BASE, factor=2),  # neither 5 nor 7 pixels are a multiple
    "by 3": replace(BASE, factor=3),
    "the paper's code": replace(BASE, code_loss=True, factor=2),
    "three masks": replace(BASE, masks=3, factor=2),
    "two masks, the paper's code": replace(BASE, masks=2, code_loss=True),
    "no tv": replace(BASE, tv=0.0),
    "no penalty": replace(BASE, tv=0.0, l1=0.0, infills=1),
    "a short memory": replace(BASE, memory=0.9),
}


def matches(case: Case) -> None:
    infills = case.draws()
    found = case.exactly(infills)
    losses = case.losses(case.weights, infills)
    np.testing.assert_allclose(found[names.DATA_LOSS], losses[:, 0], rtol=1e-6)
    np.testing.assert_allclose(found[names.LOSS], losses[:, 1], rtol=1e-6)
    slopes = case.slopes(case.weights, infills)
    gradient = found[names.STATE[names.FIRST]] / (1 - names.MEMORY)
    assert np.abs(gradient - slopes).max() < 1e-6 * max(1, np.abs(slopes).max())


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("channels_last", [False, True], ids=["NCHW", "NHWC"])
def test_loss_and_gradient(recipe: Recipe, channels_last: bool) -> None:
    matches(Case(Net(ends_for(channels_last=channels_last)), recipe))


@pytest.mark.parametrize(("kind", "outputs"), KINDS)
@pytest.mark.parametrize("code_loss", [False, True], ids=["paper", "paper-code"])
def test_every_kind_of_scores(kind: str, outputs: int, code_loss: bool) -> None:
    matches(Case(Net(ends_for(kind, outputs)), replace(BASE, code_loss=code_loss)))


def test_a_slightly_wrong_penalty_is_noticed() -> None:
    case = Case(Net(ends_for()), BASE)
    case.recipe = replace(BASE, tv=BASE.tv * 1.001)
    with pytest.raises(AssertionError):
        matches(case)


def test_penalties_are_sums_over_the_upsampled_mask() -> None:
    """A mask of one column of ones beside zeros has one step a row, and counts its pixels."""
    case = Case(Net(ends_for()), Recipe(infills=1, tv=2.0, l1=0.5), pairs=1)
    case.weights = np.full((1, 1, HEIGHT, WIDTH), -50.0)
    case.weights[..., 0] = 50.0
    found = case.exactly(case.draws())
    assert found[names.LOSS] - found[names.DATA_LOSS] == pytest.approx(2.0 * HEIGHT + 0.5 * HEIGHT)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_adam_for_several_steps(recipe: Recipe) -> None:
    """In float32 by the runtime, state kept on its side, against numpy in float64 with gradients by differences."""
    case = Case(Net(ends_for()), recipe)
    draws = [case.draws() for _ in range(4)]
    session = Session(case.graph, CPU)
    given = case.feeds(draws[0])
    start = {name: given.pop(name) for name in names.STATE}
    fixed = {name: session.upload(given[name]) for name in (names.PICTURES, names.IMAGE, names.LABEL)}
    fed = {names.INFILLS: draws[0], names.RATE: case.rates(0)}
    stepper = session.stepper(names.STATE, start, {**fixed, **fed}, [names.LOSS, names.DATA_LOSS])
    weights, first, second = start[names.WEIGHTS].astype(float), 0.0, 0.0
    before = weights.copy()
    for count, infills in enumerate(draws, start=1):
        total, data = stepper.step({names.INFILLS: infills, names.RATE: case.rates(count - 1)})
        np.testing.assert_allclose(np.stack([data, total], axis=1), case.losses(weights, infills), rtol=2e-5)
        slope = case.slopes(weights, infills)
        keep, rate = recipe.memory, case.rates(count - 1)
        first, second = 0.9 * first + 0.1 * slope, keep * second + (1 - keep) * slope**2
        weights = weights - rate * (first / (1 - 0.9**count)) / (np.sqrt(second / (1 - keep**count)) + 1e-8)
    state = stepper.state()
    np.testing.assert_allclose(state[names.WEIGHTS], weights, atol=2e-4)
    assert state[names.COUNT].ravel().tolist() == [4.0, 4.0]
    np.testing.assert_array_equal(start[names.WEIGHTS], before.astype(np.float32), "the caller's arrays are not used")


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_masks_are_those_of_the_formula(recipe: Recipe) -> None:
    case = Case(Net(ends_for()), recipe)
    expected = [plain_masks(own, recipe).sum(axis=0) for own in case.weights]
    found = Session(case.graph, CPU).run(case.feeds(case.draws()), [names.MASK])[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    by_numpy = names.upsampling(case.net.ends, recipe.factor).apply(coarse_masks(case.weights))
    assert by_numpy.dtype == np.float32
    np.testing.assert_allclose(by_numpy, expected, atol=1e-6)


def test_extreme_weights_are_no_trouble() -> None:
    weights = np.array([[[[-2000.0, 2000.0]]]], np.float32)
    np.testing.assert_array_equal(coarse_masks(weights), [[[0.0, 1.0]]])


def test_pairs_do_not_heed_each_other() -> None:
    case = Case(Net(ends_for()), replace(BASE, factor=2, masks=2), pairs=3)
    session, given = Session(case.graph, CPU), case.feeds(case.draws())
    together = session.run(given)
    for place in range(3):
        alone = session.run(
            {n: array if n == names.PICTURES else array[place : place + 1] for n, array in given.items()}
        )
        for one, many in zip(alone, together, strict=True):
            np.testing.assert_allclose(one[0], many[place], rtol=1e-5, atol=1e-6)


def test_a_graph_of_one_size() -> None:
    """Pairs x masks x infills are the batch that the network was exported with."""
    ends, recipe = ends_for(), replace(BASE, masks=2, pairs=2)
    net = Net(ends)
    model = net.model()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2 * recipe.rows
    feed = {"x": np.ones((2 * recipe.rows, *ends.picture), np.float32)}
    fixed = export.with_gradient(model, measured_facts(model, {}, [feed], Settings(device="cpu")), "y", "x")
    case = Case(net, recipe)
    given = case.feeds(case.draws())
    free = Session(case.graph, CPU).run(given)
    bound = Session(names.step(fixed, ends, recipe), CPU).run(given)
    for one, other in zip(free, bound, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_gradients_scaled_inside_the_network_come_out_the_same() -> None:
    case = Case(Net(ends_for()), BASE)
    infills = case.draws()
    plain = case.exactly(infills)
    case.graph = names.step(case.net.with_gradient(), case.net.ends, replace(BASE, scale=1024.0))
    scaled = case.exactly(infills)
    for name, array in plain.items():
        np.testing.assert_allclose(scaled[name], array, rtol=1e-9)


def test_the_graph_is_sound() -> None:
    onnx.checker.check_model(Case(Net(ends_for()), replace(BASE, factor=2, masks=2)).graph, full_check=True)


def test_a_name_that_is_taken_is_told() -> None:
    network = Net(ends_for()).with_gradient()
    for node in network.graph.node:
        node.output[:] = [names.MASK if name == "h" else name for name in node.output]
        node.input[:] = [names.MASK if name == "h" else name for name in node.input]
    with pytest.raises(BadInput, match="already has a tensor named 'auditkit_mask'"):
        names.step(network, ends_for(), BASE)


@pytest.mark.parametrize(
    ("kind", "outputs", "found"),
    [("probabilities", 4, "z"), ("sigmoid", 1, "z"), ("sigmoid", 4, "y"), ("logits", 4, "y"),
     ("log-probabilities", 4, "y")],
)  # fmt: skip
def test_logits_are_looked_for_before_the_last_softmax(kind: str, outputs: int, found: str) -> None:
    """A probability that rounds to 1 or 0 has no slope left; its logit has."""
    ends = ends_for(kind, outputs)
    seen = before_squashing(Net(ends).model().graph, ends, {"y": (None, outputs)})
    assert (seen.output, seen.kind) == (found, "logits" if found == "z" else kind)
