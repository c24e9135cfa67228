from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from auditkit.data.dataset import Dataset
from auditkit.model import card as cards
from auditkit.runs import inspection

Array = np.ndarray[Any, Any]
SIGNATURE = SimpleNamespace(
    height=8,
    width=8,
    channels=3,
    dtype="float32",
    layout="NHWC",
    class_names=(),
    kind="probabilities",
)


class Inputs(NamedTuple):
    """Pictures that were prepared as a preset says."""

    preset: str
    pictures: Array


@pytest.fixture(autouse=True)
def _inputs_name_their_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "normalised", lambda card, pixels, *_form: Inputs(card.origin.preset, pixels))


class Told:
    """A model that is right on the images it was told, by preset; it counts what it is asked."""

    def __init__(self, right: dict[str, Array], own: str) -> None:
        self.right, self.asked, self.signature = right, 0, SIGNATURE
        self.card = cards.from_preset(own, SIGNATURE)  # type: ignore[arg-type]

    def scores(self, inputs: Inputs) -> Array:
        self.asked += len(inputs.pictures)
        known = self.right[inputs.preset]
        return np.array([[0.1, 0.9] if known[int(picture[0, 0, 0])] else [0.9, 0.1] for picture in inputs.pictures])


def images(count: int) -> Dataset:
    ids = tuple(map(str, range(count)))
    return Dataset(
        Path("set"), ids, [np.full((8, 8, 3), index, np.uint8) for index in range(count)], np.ones(count, int)
    )


def _accuracy(right: Array) -> inspection.Accuracy:
    return inspection.Accuracy(dict(enumerate(np.where(right, 0, 1).tolist())))


def slowly(model: Told, positions: Array) -> tuple[bool, set[str]]:
    """Whether the card is as good as the best preset, and the others that are, each tried on all images."""
    own = model.card.origin.preset
    tried = {name: _accuracy(model.right[name][positions]) for name in (own, *(set(cards.PRESETS) - {own}))}
    best = max(tried.values(), key=lambda accuracy: accuracy.correct)
    alike = {name for name, accuracy in tried.items() if not best.beats(accuracy)}
    return own in alike, alike - {own}


@pytest.mark.parametrize("count", [1, 4, 7, 64, 150])
def test_presets_as_good_as_the_best_are_found_and_others_are_given_up(count: int) -> None:
    rng, fits = np.random.default_rng(count), list[bool]()
    for _ in range(60):
        shares = dict(zip(cards.PRESETS, rng.choice([0, 0.02, 0.4, 0.9, 1], len(cards.PRESETS)), strict=True))
        draws = rng.random(count)  # a preset that is better is right on more of the same images
        right = {name: draws < share for name, share in shares.items()}
        model, ticks = Told(right, str(rng.choice(list(cards.PRESETS)))), list[int]()
        trial = inspection.try_presets(model, images(count), ticks.append)  # type: ignore[arg-type]
        assert (trial.card_fits, set(trial.presets)) == slowly(model, trial.positions)
        assert trial.accuracy.correct == right[model.card.origin.preset][trial.positions].sum()
        assert sum(ticks) == len(trial.positions) * (1 + len(cards.PRESETS))
        assert model.asked <= len(trial.positions) * len(cards.PRESETS)
        fits.append(trial.card_fits)
    assert len(set(fits)) == 2 or count < 6


def test_few_images_do_not_tell_presets_apart() -> None:
    """Seven of eight against eight of eight is chance, six of six against none is not."""
    right = {name: np.zeros(8, bool) for name in cards.PRESETS}
    right["imagenet"][:7] = right["clip"][:] = right["tf"][:6] = True
    trial = inspection.try_presets(Told(right, "imagenet"), images(8), lambda _: None)  # type: ignore[arg-type]
    assert trial.card_fits
    text = "clip (8 of 8) and tf (6 of 8) cannot be told apart from it with 8 images"
    assert trial.alike(list(trial.presets)) == text
    assert _accuracy(np.ones(6, bool)).beats(_accuracy(np.zeros(6, bool)))
    assert not _accuracy(np.ones(5, bool)).beats(_accuracy(np.zeros(5, bool)))


def test_hopeless_presets_cost_little() -> None:
    right = {name: np.full(64, name == "tf") for name in cards.PRESETS}
    model = Told(right, "tf")
    trial = inspection.try_presets(model, images(64), lambda _: None)  # type: ignore[arg-type]
    assert (trial.card_fits, trial.presets) == (True, {})
    assert model.asked == 64 + (len(cards.PRESETS) - 1) * inspection.GIVE_UP_AFTER


def test_ties_of_scores_are_no_hits_in_five() -> None:
    """A model that gives every label the same score has the right one at the place where it stands."""
    model = Told({}, "tf")
    model.scores = lambda inputs: np.full((len(inputs.pictures), 10), 0.1)  # type: ignore[method-assign]
    labelled = replace(images(10), labels=np.arange(10))
    accuracy = inspection.try_presets(model, labelled, lambda _: None).accuracy  # type: ignore[arg-type]
    assert (accuracy.top1, accuracy.top5) == (0.1, 0.5)
