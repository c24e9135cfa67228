"""Deleting masks against the same written plainly with numpy, on models solved by hand, and on the planted truth."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

import auditkit
from auditkit.data.ranks import ranks
from auditkit.demo.draw import draw
from auditkit.demo.planted import bundled_model
from auditkit.errors import BadInput
from auditkit.graph import float_types
from auditkit.graph import mask_objective as names
from auditkit.graph.fong_objective import EVENLY, Deletion, DeletionRecipe
from auditkit.graph.hard_masks import Ends
from auditkit.methods.fong import DISCS, FongOptions, _discs, fong
from auditkit.methods.notes import Note, sentences
from auditkit.methods.request import Pool, Request
from auditkit.metrics.localisation import share_inside
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.session import Session
from auditkit.records import from_json, to_json
from auditkit.runs.explain import Explanation
from tests.graph.test_mask_objective import HEIGHT, WIDTH, Net, ends_for, probabilities, slowly_upsampled
from tests.methods.test_mask import CPU, PATCHES, SIDE, asked, opened, reader

Array = np.ndarray[Any, Any]
BASE = DeletionRecipe(infills=1, tv=0.3, l1=0.05, start=1.0, clamped=True)
RECIPES = {
    "plain": BASE,
    "upsampled": replace(BASE, factor=2),
    "squares": replace(BASE, beta=2.0),
    "no tv": replace(BASE, tv=0.0),
    "jitter": replace(BASE, jitter=2),
    "jitter, upsampled": replace(BASE, jitter=1, factor=3),
}
QUICK = FongOptions(steps=40, factor=1, blur=5.0, jitter=0, l1=0.05, tv=0.05)


def moved(picture: Array, recipe: DeletionRecipe, step: int, ends: Ends) -> Array:
    """A picture with its pixels moved, one by one."""
    shifts = [int(share * step % 1 * (2 * recipe.jitter + 1)) - recipe.jitter for share in EVENLY]
    rows, columns = (np.clip(np.arange(n) + by, 0, n - 1) for n, by in zip((HEIGHT, WIDTH), shifts, strict=True))
    return picture[rows][:, columns] if ends.channels_last else picture[:, rows][:, :, columns]


class Case:
    """Two pairs over a bank of pictures."""

    def __init__(self, recipe: DeletionRecipe, ends: Ends) -> None:
        rng = np.random.default_rng(3)
        self.net, self.recipe, self.ends = Net(ends), recipe, ends
        self.pictures = rng.standard_normal((4, *ends.picture)).astype(np.float32)
        self.labels = np.array([1, 0], np.int32)
        self.weights = rng.uniform(0.05, 0.95, (2, 1, *recipe.grid(ends)))
        self.graph = names.step(self.net.with_gradient(), ends, recipe, Deletion)

    def losses(self, weights: Array, step: int) -> Array:
        """The data term and all, for each pair: [2, 2]."""
        found = []
        for place, label in enumerate(self.labels):
            (coarse,) = weights[place]
            mask = slowly_upsampled(coarse, self.recipe.factor)
            kept = mask[..., None] if self.ends.channels_last else mask
            image, infill = (moved(self.pictures[at], self.recipe, step, self.ends) for at in (place, place + 2))
            data = probabilities(self.net((kept * image + (1 - kept) * infill)[None]), self.ends.kind)[0, label]
            tv = sum((np.abs(np.diff(coarse, axis=axis)) ** self.recipe.beta).mean() for axis in (0, 1))
            found.append([data, data + self.recipe.l1 * np.abs(1 - coarse).mean() + self.recipe.tv * tv])
        return np.array(found)

    def slopes(self, weights: Array, step: int) -> Array:
        found = np.empty_like(weights)
        for place in np.ndindex(weights.shape[1:]):
            nudge = np.zeros_like(weights)
            nudge[(slice(None), *place)] = 1e-5
            ahead, behind = (self.losses(weights + sign * nudge, step)[:, 1] for sign in (1, -1))
            found[(slice(None), *place)] = (ahead - behind) / 2e-5
        return found

    def feeds(self, step: int = 0) -> dict[str, Array]:
        state = names.initial_state(2, self.ends, self.recipe)
        state |= {names.WEIGHTS: self.weights.astype(np.float32), names.COUNT: np.full((2, 1, 1, 1), float(step))}
        places = {names.IMAGE: [0, 1], names.LABEL: self.labels, names.INFILLS: [[2], [3]]}
        state |= {names.PICTURES: self.pictures, names.RATE: np.full((2, 1, 1, 1), 0.1, np.float32)}
        return state | {n: np.array(p, np.int32) for n, p in places.items()}

    def exactly(self, step: int) -> dict[str, Array]:
        """All outputs of the graph in float64."""
        exact = ReferenceEvaluator(float_types.in_one_float(self.graph, {}, TensorProto.DOUBLE)[0])
        given = {n: a.astype(float) if a.dtype.kind == "f" else a for n, a in self.feeds(step).items()}
        given[names.WEIGHTS] = self.weights
        return dict(zip(exact.output_names, exact.run(None, given), strict=True))


def matches(case: Case, step: int) -> None:
    found, losses = case.exactly(step), case.losses(case.weights, step)
    np.testing.assert_allclose(np.stack([found[names.DATA_LOSS], found[names.LOSS]], axis=1), losses, rtol=1e-6)
    slope = found[names.STATE[names.FIRST]] / (1 - names.MEMORY)
    np.testing.assert_allclose(slope, case.slopes(case.weights, step), atol=1e-7)


@pytest.mark.parametrize("channels_last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_loss_and_gradient(recipe: DeletionRecipe, channels_last: bool) -> None:
    case = Case(recipe, ends_for(channels_last=channels_last))
    for step in (0, 7):
        matches(case, step)


@pytest.mark.parametrize(("kind", "outputs"), [("probabilities", 4), ("log-probabilities", 4), ("logits", 1)])
def test_other_kinds_of_scores(kind: str, outputs: int) -> None:
    matches(Case(BASE, ends_for(kind, outputs)), 0)


def test_a_slightly_wrong_penalty_is_noticed() -> None:
    case = Case(BASE, ends_for())
    case.recipe = replace(BASE, beta=3.003)
    with pytest.raises(AssertionError):
        matches(case, 0)


def test_the_image_is_moved_evenly() -> None:
    """Each of the 25 places of two pixels either way comes up about equally often in 300 steps."""
    shifts = [tuple(int(share * step % 1 * 5) for share in EVENLY) for step in range(300)]
    counts = [shifts.count(place) for place in np.ndindex(5, 5)]
    assert min(counts) >= 10
    assert max(counts) <= 14


def test_steps_stay_between_0_and_1() -> None:
    """Adam from a mask of ones, in float32 by the runtime, against numpy in float64."""
    case = Case(replace(BASE, l1=0.0, jitter=1), ends_for())
    case.weights = np.ones_like(case.weights)
    session, given = Session(case.graph, CPU), case.feeds()
    start = {name: given.pop(name) for name in names.STATE}
    stepper = session.stepper(names.STATE, start, given, [names.LOSS])
    weights, first, second = case.weights.copy(), 0.0, 0.0
    for count in range(1, 7):
        (loss,) = stepper.step({})
        np.testing.assert_allclose(loss, case.losses(weights, count - 1)[:, 1], rtol=2e-5)
        slope = case.slopes(weights, count - 1)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        weights = weights - 0.1 * (first / (1 - 0.9**count)) / (np.sqrt(second / (1 - 0.999**count)) + 1e-8)
        weights = weights.clip(0, 1)
    np.testing.assert_allclose(stepper.state()[names.WEIGHTS], weights, atol=2e-4)
    assert weights.min() < 0.6
    assert weights.max() == 1.0


def test_the_graph_is_sound() -> None:
    onnx.checker.check_model(Case(replace(BASE, jitter=1, factor=2), ends_for()).graph, full_check=True)


# The method


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OnnxClassifier:
    return opened(reader(), tmp_path_factory.mktemp("reader"))


def lit(model: Any, images: int = 2, labels: tuple[int, ...] = (1, 2), seed: int = 0) -> Request:
    """Dark images with a bright patch for each of the labels 1 and 2, which a wide blur takes away."""
    request = asked(model, images, labels, seed)
    pixels = np.random.default_rng(1).integers(0, 30, request.pixels.shape, dtype=np.uint8)
    for patch in PATCHES:
        pixels[:, *patch] += 220
    return replace(request, pixels=pixels, inputs=model.preprocess(pixels))


def points_at(found: Array, patch: tuple[slice, slice]) -> bool:
    """Whether the patch has the nine highest numbers."""
    inside = np.zeros((SIDE, SIDE), bool)
    inside[patch] = True
    return bool(found[inside].min() > found[~inside].max())


@pytest.mark.parametrize("start", ["circle", "ones"])
def test_maps_lie_on_what_the_label_is_read_from(model: OnnxClassifier, start: Any) -> None:
    for maps in fong(lit(model), replace(QUICK, start=start)).maps:
        for label, patch in zip((1, 2), PATCHES, strict=True):
            assert maps[label].dtype == np.float32
            assert maps[label].shape == (SIDE, SIDE)
            assert 0 <= maps[label].min() <= maps[label].max() <= 1
            assert points_at(maps[label], patch)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.UINT8, TensorProto.FLOAT16])
def test_channels_last_and_other_number_types(kind: int, tmp_path: Path) -> None:
    other = opened(reader(kind=kind, channels_last=True), tmp_path)
    assert points_at(fong(lit(other), QUICK).maps[1][2], PATCHES[1])


def test_a_model_with_batches_of_its_own_size(model: OnnxClassifier, tmp_path: Path) -> None:
    fixed = opened(reader(batch=3), tmp_path)
    for one, other in zip(fong(lit(fixed), QUICK).maps, fong(lit(model), QUICK).maps, strict=True):
        np.testing.assert_allclose(one[2], other[2], atol=1e-4)


def test_alone_and_in_company(model: OnnxClassifier) -> None:
    request, options = lit(model, images=3), replace(QUICK, jitter=1)
    together, crowded = fong(request, options), fong(request, replace(options, rows=2))
    alone = fong(replace(request, ids=request.ids[2:], pixels=request.pixels[2:], inputs=request.inputs[2:],
                         labels=((2,),)), options)  # fmt: skip
    np.testing.assert_allclose(together.maps[2][2], alone.maps[0][2], atol=1e-4)
    np.testing.assert_allclose(together.maps[2][2], crowded.maps[2][2], atol=1e-4)


def test_what_it_took_is_counted_and_told(model: OnnxClassifier) -> None:
    """Label 0 has next to no probability while both patches shine, and the whole while they do not."""
    ticks: list[int] = []
    request = replace(lit(model, labels=(0, 1, 2)), tick=ticks.append)
    found = fong(request, replace(QUICK, start="ones"))
    assert found.passes == found.gradients == sum(ticks) == 2 * 3 * 40
    assert sentences(found.notes) == (
        "2 of 6 masks delete nothing: blurring lowers the probability of their labels too little",
    )
    assert not found.maps[0][0].any()
    ticks.clear()
    found = fong(request, QUICK)
    assert found.gradients == 2 * 3 * 40
    assert found.passes == sum(ticks) == 2 * 3 * 40 + 2 * (DISCS + 1)
    blurred = fong(request, replace(QUICK, blur=0.01, steps=1)).notes
    said, *_ = sentences(from_json(Note, json.loads(json.dumps(to_json(note))), "note") for note in blurred)
    assert said.startswith("6 of 6 labels keep more than half their probability when the whole image is blurred")


def test_a_label_that_is_certain_is_lost_from_a_disc_but_not_from_nothing(tmp_path: Path) -> None:
    """Where the logit is 70 the probability has no slope in float32."""
    proto = reader()
    proto.graph.node[-1].attribute[0].f *= 10
    certain = opened(proto, tmp_path)
    request = lit(certain, 1, (1,))
    request.pixels[:, *PATCHES[1]] = 0
    request = replace(request, inputs=certain.preprocess(request.pixels))
    for start, lost in (("ones", False), ("circle", True)):
        found = fong(request, replace(QUICK, start=start)).maps[0][1]
        assert bool(found.any()) == lost


def test_discs_grow_from_nothing_to_all() -> None:
    discs = _discs(replace(ends_for(), height=224, width=200), 8)
    assert discs.shape == (DISCS + 1, 28, 25)
    assert discs[0].min() == 1.0
    assert discs[-1].max() < 1e-6
    assert (np.diff(discs, axis=0) <= 0).all()
    np.testing.assert_allclose(discs, discs[:, ::-1, ::-1])


def test_penalties_and_blur_do_what_they_are_for(model: OnnxClassifier) -> None:
    request = lit(model, 1, (1,))
    plain, smooth, small, sharp = (
        fong(request, options).maps[0][1]
        for options in (QUICK, replace(QUICK, tv=5.0), replace(QUICK, l1=0.5), replace(QUICK, blur=0.01, l1=1.0))
    )
    assert np.abs(np.diff(smooth)).max() < 0.8 * np.abs(np.diff(plain)).max()
    assert small.sum() < plain.sum()
    assert not sharp.any()  # over itself nothing of the image can be deleted


def test_coarse_masks_by_the_images_size(model: OnnxClassifier) -> None:
    """Of 8 pixels a side, cells of 4; the map is upsampled."""
    found = fong(lit(model, 1, (1,)), replace(QUICK, factor=None)).maps[0][1]
    np.testing.assert_array_equal(found, fong(lit(model, 1, (1,)), replace(QUICK, factor=4)).maps[0][1])
    assert found.shape == (SIDE, SIDE)
    assert np.abs(np.diff(found)).max() <= 0.5


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"steps": 0}, "steps 0 is not a whole number from 1 to 1,000,000."),
        ({"factor": 1.5}, "factor 1.5 is not a whole number from 1 to 1,000,000."),
        ({"tv": -1.0}, "tv -1.0 is not a number from 0 up."),
        ({"jitter": -1}, "jitter -1 is not a number from 0 up."),
        ({"blur": 0.0}, "blur 0.0 is not a number above 0."),
        ({"beta": 0.5}, "beta 0.5 is not a number from 1 up."),
        ({"start": "square"}, "unknown start 'square'; choose from circle, ones."),
    ],
)
def test_options_are_refused_with_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput) as error:
        FongOptions(**wrong)
    assert str(error.value) == sentence


def test_it_is_a_method_by_name() -> None:
    method, options = Explanation("fong", options=(("steps", "7"), ("jitter", "1"), ("tv", "0.5"))).resolved()
    assert method.run is fong
    assert options == FongOptions(steps=7, jitter=1, tv=0.5)
    function = auditkit.load(lambda rows: np.zeros((len(rows), 3)), size=(SIDE, SIDE))
    with pytest.raises(BadInput, match="a function has no gradient"):
        fong(asked(function), QUICK)


def test_maps_point_at_the_planted_object() -> None:
    model = auditkit.load(bundled_model("honest"), settings=CPU)
    drawn = draw(6, seed=3, tags="agree")
    shown = model.preprocess(drawn.images)
    labels = tuple((int(label),) for label in model.probabilities(shown).argmax(axis=1))
    request = Request(model, tuple("abcdef"), drawn.images, shown, labels, shown[:1], Pool((), shown[:0]))
    found = fong(request, FongOptions(steps=60, blur=20.0))
    shares = [share_inside(ranks(next(iter(maps.values()))), region, region.size // 50)
              for maps, region in zip(found.maps, drawn.objects, strict=True)]  # fmt: skip
    assert np.mean(np.array(shares) > 0.5) >= 5 / 6
