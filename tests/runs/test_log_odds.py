"""The cross-label matrix of whole evaluations: computed again from masked images, and at no cost in rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.data.ranks import ranks
from auditkit.metrics.curves import area
from auditkit.model.signature import Overrides
from auditkit.runs.evaluation import batch
from auditkit.runs.summary.summarise import Summary
from tests.runs.test_evaluation import Array, bundle, image_set, loaded, noise_maps, photographs

COUNT, CLASSES, SIDE = 2, 4, 8
RNG = np.random.default_rng(1)
WEIGHTS = RNG.normal(0, 0.3, (CLASSES, 3, SIDE, SIDE))
PLAIN: dict[str, Any] = {"saliency": "none", "ties": "first"}


class Counting:
    """A linear classifier that counts the images it is given."""

    def __init__(self, scale: float = 1.0) -> None:
        self.rows, self.scale = 0, scale

    def __call__(self, images: Array) -> Array:
        self.rows += len(images)
        return np.asarray(self.scale * np.einsum("nchw,kchw->nk", images.astype(np.float64), WEIGHTS))


def odds_of(images: Array, labels: Array, scale: float, among: Array | None = None) -> Array:
    """Log-odds [rows, labels] of a label against all others, or against the others among some."""
    scores = Counting(scale)(images).astype(np.float32).astype(np.float64)
    others = np.arange(CLASSES) if among is None else among
    rest = [np.logaddexp.reduce(scores[:, [other for other in others if other != label]], axis=1) for label in labels]
    return np.asarray(scores[:, labels] - np.stack(rest, axis=1))


def evaluated(
    folder: Path, function: Counting, maps: dict[int, Array] | None = None, **settings: Any
) -> tuple[Summary, dict[int, Array]]:
    maps = maps or {label: noise_maps(COUNT, label, (SIDE, SIDE)) for label in range(CLASSES)}
    folder.mkdir(parents=True, exist_ok=True)
    model = loaded(function, folder, size=(SIDE, SIDE), overrides=Overrides(kind="logits"))
    images = image_set(photographs(COUNT, (SIDE, SIDE)))
    summary = auditkit.evaluate(model, images, bundle(folder, maps, COUNT), **PLAIN | settings)
    return summary, maps


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"steps": "exact"}, 1.0),
        ({"steps": 7}, 1.0),
        ({"steps": "auto"}, 1.0),
        ({"steps": "exact"}, 20.0),  # probabilities that are 1 in float32
        ({"steps": 9, "range": (0.25, 0.75)}, 1.0),
        ({"steps": "auto", "range": (0.1, 0.9)}, 1.0),
        ({"steps": "exact", "labels": "top2"}, 1.0),
        ({"steps": "exact", "labels": "0,3", "renormalise": True}, 1.0),
    ],
)
def test_the_matrix_is_that_of_the_masked_images(tmp_path: Path, settings: dict[str, Any], scale: float) -> None:
    found, maps = evaluated(tmp_path, Counting(scale), controls=False, deletion=False, **settings)
    pixels = photographs(COUNT, (SIDE, SIDE)).transpose(0, 3, 1, 2) / 255
    rows = [row for row in found.rows if row["bundle"] == "maps"]
    for row in rows:
        labels = np.array(sorted(other["label"] for other in rows if other["image"] == row["image"]))
        image = int(row["image"].removeprefix("image-"))
        rank, counts = ranks(maps[row["label"]][image], "first"), np.array(row["keep_counts"])
        shown = np.where(rank[None, None] < counts[:, None, None, None], pixels[image], 0.0)
        among = labels if settings.get("renormalise") else None
        odds = np.clip(odds_of(shown, labels, scale, among), np.log(1e-12), -np.log(1e-12))
        np.testing.assert_allclose(row["log_odds"], area(counts - counts[0], odds.T), atol=2e-4)
        assert len(row["log_odds_error"]) == len(labels) > 1
        assert (np.array(row["log_odds_error"]) > 0).all() == (settings["steps"] != "exact")


@pytest.mark.parametrize("settings", [{"steps": "auto"}, {"steps": 6, "infill": ("gray", "random"), "draws": 1}])
def test_not_one_row_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    """The model sees as many images with the matrix as without it, and all other figures are the same."""
    counted, rows = [], []
    for name, most in (("with", batch.MOST_LABELS), ("without", 0)):
        monkeypatch.setattr(batch, "MOST_LABELS", most)
        function = Counting()
        found, _ = evaluated(tmp_path / name, function, **settings)
        counted.append(function.rows)
        rows.append(found.rows)
    assert counted[0] == counted[1] > 0
    for first, second in zip(*rows, strict=True):
        assert first.pop("log_odds") is not None
        assert second.pop("log_odds") is None
        assert len(first.pop("log_odds_error")) == CLASSES
        del second["log_odds_error"]
        assert first == second


def test_a_point_of_several_infills_has_the_odds_of_their_mean(tmp_path: Path) -> None:
    pool = photographs(3, (SIDE, SIDE), seed=5)
    found, maps = evaluated(tmp_path, Counting(), controls=False, infill="random", draws=3, steps=6, pool=pool)
    pixels, infills = (pictures.transpose(0, 3, 1, 2) / 255 for pictures in (photographs(COUNT, (SIDE, SIDE)), pool))
    for row in found.rows:
        image, counts = int(row["image"].removeprefix("image-")), np.array(row["keep_counts"])
        kept = ranks(maps[row["label"]][image], "first") < counts[:, None, None, None]
        prob = np.mean([softmax(np.where(kept, pixels[image], infill)) for infill in infills], axis=0)
        np.testing.assert_allclose(row["log_odds"], area(counts, np.log(prob / (1 - prob)).T), atol=2e-4)


def softmax(images: Array) -> Array:
    scores = Counting()(images)
    return np.asarray(np.exp(scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)))


def honest() -> dict[int, Array]:
    """What a linear model adds up for each label, above the mean of the labels."""
    pictures = photographs(COUNT, (SIDE, SIDE)).transpose(0, 3, 1, 2) / 255
    shares = np.einsum("nchw,kchw->knhw", pictures, WEIGHTS)
    return dict(enumerate((shares - shares.mean(axis=0)).astype(np.float32)))


def test_honest_maps_are_above_zero_and_shuffled_ones_below(tmp_path: Path) -> None:
    values = {}
    for name, turn in (("honest", 0), ("shuffled", 1)):
        maps = {label: honest()[(label + turn) % CLASSES] for label in range(CLASSES)}
        found, _ = evaluated(tmp_path / name, Counting(), maps, steps="exact")
        values[name] = [found.value(metric, "maps") for metric in ("label_specificity", "other_label_evidence")]
        assert found.value("label_specificity", "control:one-map:maps") == 0
        over = [pair for pair in found.comparisons if (pair.name, pair.bundle) == ("other_label_evidence", "maps")]
        assert len(over) == 8
        (one_map,) = (pair for pair in over if pair.against == "control:one-map:maps")
        assert one_map.value == pytest.approx(values[name][1])
    assert min(values["honest"]) > 0.5
    assert max(values["shuffled"]) < -0.5


def test_with_one_label_a_sentence_says_why(tmp_path: Path) -> None:
    found, _ = evaluated(tmp_path, Counting(), labels="top1", steps=4)
    assert found.value("label_specificity", "maps") is None
    assert all(row["log_odds"] is None for row in found.rows)
    assert "label specificity, other-label evidence: no image has a second label in the label set" in str(found)
