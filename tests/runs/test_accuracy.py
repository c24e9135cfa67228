from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from auditkit.data.dataset import Dataset
from auditkit.model import card as cards
from auditkit.runs import inspection

Array = np.ndarray[Any, Any]
SIGNATURE = SimpleNamespace(height=8, width=8, channels=3, dtype="float32", class_names=(), kind="probabilities")


class Told:
    """A model that is right on the images it was told, by preset; it counts what it is asked."""

    def __init__(self, right: dict[str, Array], own: str) -> None:
        self.right, self.asked, self.signature = right, 0, SIGNATURE
        self.card = cards.from_preset(own, SIGNATURE)  # type: ignore[arg-type]

    def preprocess(self, pictures: list[Array]) -> Array:
        return np.stack(pictures)

    def scores(self, pictures: Array) -> Array:
        self.asked += len(pictures)
        known = self.right[self.card.origin.preset]
        return np.array([[0.1, 0.9] if known[int(picture[0, 0, 0])] else [0.9, 0.1] for picture in pictures])


def images(count: int) -> Dataset:
    ids = tuple(map(str, range(count)))
    return Dataset(
        Path("set"), ids, [np.full((8, 8, 3), index, np.uint8) for index in range(count)], np.ones(count, int)
    )


def slowly(model: Told, positions: Array) -> tuple[str, int] | None:
    """The best preset of all, where it is far better."""
    counts = {name: int(known[positions].sum()) for name, known in model.right.items()}
    own, n = counts[model.card.origin.preset], len(positions)
    best = max(counts, key=lambda name: counts[name])
    chance = 2 * np.sqrt(max(own / n * (1 - own / n), 1 / n) / n) if n >= 5 else 1.0
    return (best, counts[best]) if counts[best] / n > own / n + max(inspection.FAR_BETTER, chance) else None


@pytest.mark.parametrize("count", [1, 4, 5, 64, 150])
def test_the_best_preset_is_found_and_others_are_given_up(count: int) -> None:
    rng, found = np.random.default_rng(count), list[bool]()
    for _ in range(60):
        shares = dict(zip(cards.PRESETS, rng.choice([0, 0.02, 0.4, 0.5, 0.9, 1], len(cards.PRESETS)), strict=True))
        right = {name: rng.random(count) < share for name, share in shares.items()}
        model, ticks = Told(right, str(rng.choice(list(cards.PRESETS)))), list[int]()
        sample = inspection.accuracy_on_sample(model, images(count), ticks.append)  # type: ignore[arg-type]
        positions, accuracy, better_preset = sample
        better = None if better_preset is None else (better_preset[0], better_preset[1].correct)
        assert better == slowly(model, positions)
        assert accuracy.correct == right[model.card.origin.preset][positions].sum()
        assert sum(ticks) == len(positions) * (1 + len(cards.PRESETS))
        assert model.asked <= len(positions) * len(cards.PRESETS)
        found.append(better is not None)
    assert len(set(found)) == 2 or count < 5


def test_a_good_card_leaves_no_question() -> None:
    right = {name: np.full(64, name == "tf") for name in cards.PRESETS}
    model = Told(right, "tf")
    assert inspection.accuracy_on_sample(model, images(64), lambda _: None)[2] is None  # type: ignore[arg-type]
    assert model.asked == 64
    right["tf"][:6] = False
    assert inspection.accuracy_on_sample(model, images(64), lambda _: None)[2] is None  # type: ignore[arg-type]
    assert model.asked == 2 * 64 + (len(cards.PRESETS) - 1) * inspection.GIVE_UP_AFTER
