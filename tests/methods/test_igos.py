"""iGOS++ against the same written plainly with numpy, its line search on a bowl, and on models solved by hand."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

import auditkit
from auditkit.errors import BadInput, OutOfMemory, RuntimeFailure
from auditkit.graph import edit, float_types, igos_objective
from auditkit.graph import mask_objective as names
from auditkit.graph.hard_masks import Ends
from auditkit.graph.igos_objective import BilateralRecipe
from auditkit.methods.fong import fong
from auditkit.methods.igos import IgosOptions, Result, Search, Targets, _points, igos
from auditkit.methods.request import Pool, Request
from auditkit.model import device
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.session import Session
from auditkit.runs.explain import Explanation
from tests.graph.test_mask_objective import Net, ends_for, probabilities, slowly_upsampled
from tests.methods.test_fong import QUICK as FONG
from tests.methods.test_fong import lit, points_at
from tests.methods.test_mask import CPU, PATCHES, SIDE, asked, opened, reader
from tests.support import onnx_models

Array = np.ndarray[Any, Any]
BASE = BilateralRecipe(infills=1, masks=2, tv=0.7, l1=0.2, start=1.0, points=3, edges=(0.8, 1.3))
RECIPES = {
    "plain": BASE,
    "upsampled": replace(BASE, factor=2),
    "by 3": replace(BASE, factor=3),
    "no tv": replace(BASE, tv=0.0),
    "one point": replace(BASE, points=1),
}
QUICK = IgosOptions(steps=4, points=6, factor=1, blur=5.0, tv=0.5)


class Case:
    """Two pairs over a bank of two images, their infills and six pictures of noise."""

    def __init__(self, recipe: BilateralRecipe, ends: Ends) -> None:
        rng = np.random.default_rng(2)
        self.net, self.recipe, self.ends = Net(ends), recipe, ends
        self.pictures = rng.standard_normal((10, *ends.picture)).astype(np.float32)
        self.labels = np.array([1, 0], np.int32)
        self.noise = rng.integers(4, 10, (2, recipe.rows)).astype(np.int32)
        self.points = ((np.arange(recipe.points) + 1) / recipe.points).astype(np.float32)
        self.weights = rng.uniform(0.05, 0.95, (2, 2, *recipe.grid(ends)))
        self.graph = igos_objective.gradient_graph(self.net.with_gradient(), ends, recipe)

    def losses(self, weights: Array) -> Array:
        return np.array([self._loss(place, *weights[place]) for place in (0, 1)])

    def _loss(self, place: int, deletion: Array, insertion: Array) -> float:
        image, infill, noise = self.pictures[place], self.pictures[place + 2], self.pictures[self.noise[place]]
        wide = [slowly_upsampled(mask, self.recipe.factor) for mask in (deletion, insertion)]
        one, other = (mask[..., None] if self.ends.channels_last else mask for mask in wide)
        rows = [s * m * image + (1 - s * m) * infill for m in (one, one * other) for s in self.points]
        rows += [s * m * infill + (1 - s * m) * image for m in (other, one * other) for s in self.points]
        f = probabilities(self.net(np.array(rows) + noise), self.ends.kind)[:, self.labels[place]]
        gone, kept = f[: len(f) // 2].sum(), f[len(f) // 2 :].sum()
        data = (gone - kept) / len(self.points) / 2
        both = deletion * insertion
        return float(data + self.recipe.l1 * np.abs(1 - both).mean() + self.recipe.tv * self._tv(place, both))

    def _tv(self, place: int, coarse: Array) -> float:
        image = self.pictures[place].astype(float)
        image = image if self.ends.channels_last else image.transpose(1, 2, 0)
        wide, total = slowly_upsampled(coarse, self.recipe.factor), 0.0
        for axis in (0, 1):
            alike = np.exp(-((np.diff(image, axis=axis) / self.recipe.edges) ** 2)).mean(axis=-1)
            total += (np.diff(coarse, axis=axis) ** 2).mean() + (alike * np.diff(wide, axis=axis) ** 2).mean()
        return total / 2

    def slopes(self) -> Array:
        found = np.empty_like(self.weights)
        for place in np.ndindex(self.weights.shape[1:]):
            nudge = np.zeros_like(self.weights)
            nudge[(slice(None), *place)] = 1e-5
            ahead, behind = (self.losses(self.weights + sign * nudge) for sign in (1, -1))
            found[(slice(None), *place)] = (ahead - behind) / 2e-5
        return found

    def feeds(self) -> dict[str, Array]:
        places = {
            names.IMAGE: [0, 1],
            names.LABEL: self.labels,
            names.INFILLS: [[2], [3]],
            igos_objective.NOISE: self.noise,
        }
        given = {names.PICTURES: self.pictures, names.WEIGHTS: self.weights.astype(np.float32),
                 igos_objective.POINTS: self.points, names.RATE: np.zeros((2, 1, 1, 1), np.float32)}  # fmt: skip
        return given | {name: np.array(numbers, np.int32) for name, numbers in places.items()}

    def exactly(self) -> dict[str, Array]:
        """All outputs of the graph in float64."""
        exact = ReferenceEvaluator(float_types.in_one_float(self.graph, {}, TensorProto.DOUBLE)[0])
        given = {n: a.astype(float) if a.dtype.kind == "f" else a for n, a in self.feeds().items()}
        given[names.WEIGHTS] = self.weights
        return dict(zip(exact.output_names, exact.run(None, given), strict=True))


def matches(case: Case) -> None:
    found = case.exactly()
    np.testing.assert_allclose(found[names.LOSS], case.losses(case.weights), rtol=1e-6)
    np.testing.assert_allclose(found[igos_objective.SLOPE], case.slopes(), atol=1e-7)


@pytest.mark.parametrize("channels_last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_loss_and_gradient(recipe: BilateralRecipe, channels_last: bool) -> None:
    matches(Case(recipe, ends_for(channels_last=channels_last)))


@pytest.mark.parametrize(("kind", "outputs"), [("probabilities", 4), ("logits", 1)])
def test_other_kinds_of_scores(kind: str, outputs: int) -> None:
    matches(Case(BASE, ends_for(kind, outputs)))


def test_a_slightly_wrong_edge_is_noticed() -> None:
    case = Case(BASE, ends_for())
    case.recipe = replace(BASE, edges=(0.8, 1.301))
    with pytest.raises(AssertionError):
        matches(case)


def test_the_graph_of_the_loss_alone() -> None:
    case = Case(replace(BASE, factor=2), ends_for())
    alone = edit.with_outputs(case.graph, [names.LOSS])
    assert len(alone.graph.node) < 0.7 * len(case.graph.graph.node)
    onnx.checker.check_model(case.graph, full_check=True)
    both, one = (Session(graph, CPU).run(case.feeds(), [names.LOSS])[0] for graph in (case.graph, alone))
    np.testing.assert_array_equal(both, one)


# The way down


class Bowl:
    """Losses that can be worked out: steep |masks - 0.8|^2, each pair with a steepness of its own."""

    def __init__(self, wanted: list[str], steep: Array) -> None:
        self.outputs, self.steep, self.asked = wanted, steep, list[int]()
        self.device = device.CPU

    def upload(self, array: Array) -> Array:
        return array

    def run(self, feeds: dict[str, Array], wanted: list[str]) -> list[Array]:
        away, steep = feeds[names.WEIGHTS] - 0.8, self.steep[feeds[names.IMAGE]].reshape(-1, 1, 1, 1)
        self.asked.append(len(away))
        found = {names.LOSS: (steep * away**2).sum(axis=(1, 2, 3)), igos_objective.SLOPE: 2 * steep * away}
        return [found[name] for name in wanted]


def searched(search: Search, targets: Targets) -> Result:
    """All pairs together."""
    results = list(search.run(targets, lambda _: None))
    return Result(*(np.concatenate([getattr(result, field.name) for result in results]) for field in fields(Result)))


def over_bowls(steep: list[float], steps: int, recipe: BilateralRecipe = BASE) -> tuple[Search, Targets]:
    slope, loss = (Bowl([names.LOSS, *more], np.array(steep)) for more in ([igos_objective.SLOPE], []))
    pairs = np.array([[place, 0] for place in range(len(steep))], np.int32)
    given = Targets(
        pairs, tuple("abcdef"[: len(steep)]), list(range(len(steep))), np.zeros(20), np.arange(len(steep)), 4
    )
    ends = Ends("x", 1, False, 2, 2, 3, "y", 3, "logits")
    return Search(slope, loss, recipe, ends, False, steps, 3, 1000.0, 8), given


def test_the_longest_step_that_keeps_its_promise_is_taken() -> None:
    """From 1 towards 0.8, of 1000, 200, 40, ... times the slope: the first that does not end too far beyond."""
    steep = [1e-3, 2e-2, 0.6]
    search, given = over_bowls(steep, 1)
    found = searched(search, given).masks
    for masks, one in zip(found, steep, strict=True):
        lengths = 1000.0 * 0.2 ** np.arange(12)
        ends = np.clip(1 - lengths * 2 * one * 0.2, 0, 1)
        losses, slope = 8 * one * (ends - 0.8) ** 2, 8 * (2 * one * 0.2) ** 2
        good = losses <= 8 * one * 0.2**2 - 1e-4 * lengths * slope
        assert good.argmax() > 0
        np.testing.assert_allclose(masks, ends[good.argmax()], atol=1e-6)


def test_pairs_that_have_their_step_are_asked_no_more() -> None:
    search, given = over_bowls([1e-3, 1.0], 1)
    found = searched(search, given)
    sizes = search.loss.asked
    assert sizes[0] == 2
    assert sizes[-1] == 1
    assert found.gradients.sum() == 2 * BASE.rows
    assert found.passes.sum() == (2 + sum(sizes)) * BASE.rows


def test_where_nothing_helps_masks_stay() -> None:
    search, given = over_bowls([-1.0], 2)  # uphill everywhere that can be reached
    np.testing.assert_array_equal(searched(search, given).masks, 1.0)


def test_a_batch_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    search, given = over_bowls([0.1, 0.2, 0.3], 2)
    expected, real, sizes = searched(search, given).masks, Bowl.run, []

    def small_memory(self: Bowl, feeds: Any, wanted: Any) -> Any:
        sizes.append(len(feeds[names.IMAGE]))
        if sizes[-1] > 1:
            raise OutOfMemory("too many")
        return real(self, feeds, wanted)

    monkeypatch.setattr(Bowl, "run", small_memory)
    search, given = over_bowls([0.1, 0.2, 0.3], 2)
    np.testing.assert_array_equal(searched(search, given).masks, expected)
    monkeypatch.setattr(Bowl, "run", lambda *_: small_memory(Bowl([], np.zeros(1)), {names.IMAGE: [0, 0]}, []))
    with pytest.raises(OutOfMemory, match="not even one pair of masks fits"):
        searched(search, given)


def test_a_loss_that_is_no_number_is_told() -> None:
    search, given = over_bowls([0.1, float("nan")], 2)
    with pytest.raises(RuntimeFailure, match="the loss of image 'b' for label 0 is not a number after 0 steps"):
        searched(search, given)


# The method


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OnnxClassifier:
    return opened(reader(), tmp_path_factory.mktemp("reader"))


def test_maps_lie_on_what_the_label_is_read_from(model: OnnxClassifier) -> None:
    for maps in igos(lit(model), QUICK).maps:
        for label, patch in zip((1, 2), PATCHES, strict=True):
            assert maps[label].dtype == np.float32
            assert maps[label].shape == (SIDE, SIDE)
            assert 0 <= maps[label].min() <= maps[label].max() <= 1
            assert points_at(maps[label], patch)


@pytest.mark.parametrize("kind", [TensorProto.UINT8, TensorProto.FLOAT16])
def test_channels_last_and_other_number_types(kind: int, tmp_path: Path) -> None:
    other = opened(reader(kind=kind, channels_last=True), tmp_path)
    assert points_at(igos(lit(other, 1), QUICK).maps[0][2], PATCHES[1])


def test_grey_images(tmp_path: Path) -> None:
    proto = reader()
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    (weight,) = (tensor for tensor in proto.graph.initializer if tensor.name == "w")
    coloured = onnx.numpy_helper.to_array(weight).reshape(3, SIDE * SIDE, 3).sum(axis=0)
    weight.CopyFrom(onnx.numpy_helper.from_array(coloured, "w"))
    grey = auditkit.load(onnx_models.save(proto, tmp_path), preset="none", settings=CPU)
    pixels = np.full((1, SIDE, SIDE, 1), 10, np.uint8)
    pixels[:, *PATCHES[0]] = 240
    shown = grey.preprocess(pixels)
    request = Request(grey, ("grey",), pixels, shown, ((1,),), shown, Pool((), shown[:0]))
    assert points_at(igos(request, QUICK).maps[0][1], PATCHES[0])
    assert points_at(fong(request, FONG).maps[0][1], PATCHES[0])


def test_alone_in_company_and_in_small_runs(model: OnnxClassifier) -> None:
    """Draws depend on the image's name, the label and the step; neither on the others nor on the room there is."""
    request = lit(model, images=3)
    together, crowded = igos(request, QUICK), igos(request, replace(QUICK, rows=8))
    alone = igos(replace(request, ids=request.ids[2:], pixels=request.pixels[2:], inputs=request.inputs[2:],
                         labels=((2,),)), QUICK)  # fmt: skip
    np.testing.assert_allclose(together.maps[2][2], alone.maps[0][2], atol=1e-4)
    for one, other in zip(together.maps, crowded.maps, strict=True):
        np.testing.assert_allclose(one[1], other[1], atol=1e-4)


def test_a_model_with_batches_of_its_own_size(model: OnnxClassifier, tmp_path: Path) -> None:
    fixed = opened(reader(batch=8), tmp_path)
    np.testing.assert_allclose(igos(lit(fixed), QUICK).maps[1][2], igos(lit(model), QUICK).maps[1][2], atol=1e-4)


@pytest.mark.parametrize(
    ("wanted", "rows", "own", "points"),
    [(15, 160, None, 15), (15, 40, None, 5), (15, 20, None, 5), (15, 3, None, 1), (15, 160, 60, 15), (15, 160, 8, 1)],
)
def test_points_of_a_run(wanted: int, rows: int, own: int | None, points: int) -> None:
    assert _points(wanted, rows, own) == points


def test_seeds(model: OnnxClassifier) -> None:
    noisy = replace(QUICK, noise=0.3, tv=20.0)
    first, again, other = (igos(lit(model, 1, (1,), seed), noisy).maps[0][1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-4


def test_what_it_took_is_counted(model: OnnxClassifier) -> None:
    ticks: list[int] = []
    found = igos(replace(lit(model), tick=ticks.append), QUICK)
    assert found.gradients == 4 * 4 * 6 * 4  # pairs, terms, points, steps
    assert found.passes == sum(ticks)
    assert found.passes > 2 * found.gradients
    assert found.notes == ()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"steps": 0}, "steps 0 is not a whole number from 1 to 1,000,000."),
        ({"points": 2.5}, "points 2.5 is not a whole number from 1 to 1,000,000."),
        ({"noise": -1.0}, "noise -1.0 is not a number from 0 up."),
        ({"alpha": 0.0}, "alpha 0.0 is not a number above 0."),
        ({"edge": float("nan")}, "edge nan is not a number above 0."),
    ],
)
def test_options_are_refused_with_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput) as told:
        IgosOptions(**wrong)
    assert str(told.value) == sentence


def test_requests_are_refused_with_one_sentence(model: OnnxClassifier) -> None:
    with pytest.raises(BadInput, match="takes batches of 6 only, and igos\\+\\+ needs a multiple of 4"):
        _points(15, 100, 6)
    with pytest.raises(BadInput, match="label 3 does not exist"):
        igos(lit(model, 1, (3,)), QUICK)
    function = auditkit.load(lambda rows: np.zeros((len(rows), 3)), size=(SIDE, SIDE))
    with pytest.raises(BadInput, match="a function has no gradient"):
        igos(asked(function), QUICK)


def test_it_is_a_method_by_name() -> None:
    method, options = Explanation("igos++", options=(("steps", "7"), ("alpha", "10"))).resolved()
    assert method.run is igos
    assert options == IgosOptions(steps=7, alpha=10.0)
