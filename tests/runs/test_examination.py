"""An examination names what a function relies on, and nothing where it relies on nothing that is exchanged."""

import io
import json
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import auditkit
from auditkit.errors import BadInput
from auditkit.metrics.exchanges import CONTROL, EXCHANGES, WINDOWS, Exchange, Side
from auditkit.report import examination as relies
from auditkit.runs.examination import findings, proposals, run
from auditkit.runs.examination.examine import FEWEST_IMAGES, MOST_IMAGES, drawn, examine, material_of, passes
from auditkit.runs.examination.material import predictor
from auditkit.runs.examination.places import ALL_CORNERS, BORDER, VARYING
from auditkit.runs.examination.rates import outcomes
from auditkit.runs.executor import silent
from auditkit.runs.explain import Explanation
from auditkit.runs.folder.examination import Examination
from auditkit.runs.folder.names import EXAMINATION_RECORD
from tests.support import relying_models as relying
from tests.support.relying_models import Given


def examined(given: Given, folder: Path, seed: int = 0) -> Examination:
    """What an examination says, by maps that show where the function looks."""
    return examine(given.model(), given.dataset(folder), given.bundle(folder), folder / "pictures", seed)


@pytest.mark.parametrize(
    ("given", "kind", "exchange", "place"),
    [
        (relying.coloured(relying.EVERYWHERE), "colour", "mean colour", ""),
        (relying.coloured(relying.CORNER), "corner", "upper left corner", "the upper left corner"),
        (relying.coloured(relying.FRAME), "border", "thin frame", BORDER),
        (relying.patterned(), "fine pattern", "fine residual", ""),
    ],
    ids=["colour", "corner", "border", "fine pattern"],
)
def test_a_cue_of_all_images_is_named(given: Given, kind: str, exchange: str, place: str, tmp_path: Path) -> None:
    examination = examined(given, tmp_path)
    (finding,) = examination.findings
    assert (finding.kind, finding.exchange, finding.place, finding.label) == (kind, exchange, place, None)
    assert finding.follows > 0.9
    assert finding.low is not None
    assert finding.low > finding.limit
    assert finding.n + examination.proposing == examination.images == 60
    assert finding.images > 50
    assert finding.severity == "high"


def test_the_images_that_carry_a_cue_are_counted_by_group(tmp_path: Path) -> None:
    given = relying.coloured(relying.CORNER)
    images = given.dataset(tmp_path)
    sites = tuple("north" if index % 3 else "" for index in range(len(images)))
    grouped = replace(images, groups={"site": sites, "light": ("day",) * 20 + ("night",) * 40})
    (finding,) = examine(given.model(), grouped, given.bundle(tmp_path), tmp_path / "pictures").findings
    assert finding.groups is not None
    assert {group: entry.n for group, entry in finding.groups["light"].items()} == {"day": 20, "night": 40}
    assert sum(entry.images for entry in finding.groups["light"].values()) == finding.images
    assert finding.groups["site"]["north"].n == 40
    counts = finding.groups["light"]
    text = f"By light: day {counts['day'].images} of 20, night {counts['night'].images} of 40."
    assert relies.by_group(finding)[0] == text
    assert examine(given.model(), images, given.bundle(tmp_path), tmp_path / "again").findings[0].groups is None


def test_a_mark_of_one_label_is_named(tmp_path: Path) -> None:
    given = relying.marked()
    examination = examined(given, tmp_path)
    (finding,) = examination.findings
    assert (finding.kind, finding.exchange, finding.place, finding.label) == ("mark", "tiny window", VARYING, 0)
    assert finding.follows == 1
    assert finding.n == 20  # confirming images of the two other labels
    assert all(example.after == 0 != example.before for example in finding.examples)


def test_a_mark_in_the_corners_is_a_corner(tmp_path: Path) -> None:
    given = relying.marked()
    images, maps = given.images.copy(), np.zeros_like(given.maps)
    for index in range(len(images)):
        images[index, (images[index] == relying.MAGENTA).all(axis=2)] = 100
        maps[index, 10:14, 10:14] = 1
    for index in range(0, 60, 6):
        corner = (slice(1, 5) if index % 4 else slice(-5, -1), slice(1, 5) if index % 3 else slice(-5, -1))
        images[index][corner], maps[index] = relying.MAGENTA, 0
        maps[index][corner] = 1
    examination = examined(replace(given, images=images, maps=maps), tmp_path)
    assert {finding.kind for finding in examination.findings} == {"corner"}
    assert examination.findings[0].place in (ALL_CORNERS, "the upper right corner", "the lower right corner")


@pytest.mark.parametrize(
    "given",
    [
        relying.coloured(relying.CENTRE),
        relying.fragile(150),
        relying.fragile(120, labels=2),
        relying.fragile(120, rare=20),
    ],
    ids=["centre", "falls back", "falls back, two labels", "falls back, rare labels"],
)
def test_no_cue_is_no_finding(given: Given, tmp_path: Path) -> None:
    assert examined(given, tmp_path).findings == ()


def test_two_labels_suffice(tmp_path: Path) -> None:
    examination = examined(relying.coloured(relying.CORNER, labels=2), tmp_path)
    assert [(finding.kind, finding.label) for finding in examination.findings] == [("corner", None)]


def test_a_label_by_chance_is_told_from_the_donors(tmp_path: Path) -> None:
    rates = {rate.exchange: rate for rate in examined(relying.fragile(60), tmp_path).rates}
    frame = rates["frame"]
    assert frame.follows == pytest.approx(1 / 3, abs=0.02)
    assert frame.chance == pytest.approx(1 / 3, abs=0.02)
    assert frame.stays == pytest.approx(1 / 3, abs=0.1)


def test_one_label_for_all_images_is_refused(tmp_path: Path) -> None:
    given = replace(relying.coloured(relying.CENTRE), classify=lambda pixels: np.eye(3)[np.zeros(len(pixels), int)])
    with pytest.raises(BadInput, match="predicts one label for all images"):
        examined(given, tmp_path)


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    given = relying.coloured(relying.CENTRE, FEWEST_IMAGES - 1)
    with pytest.raises(BadInput, match=f"needs {FEWEST_IMAGES} images .*; here are {FEWEST_IMAGES - 1}"):
        examined(given, tmp_path)


def test_images_without_a_map_of_the_prediction_are_left_out(tmp_path: Path) -> None:
    given = relying.coloured(relying.CORNER)
    dataset = given.dataset(tmp_path)
    labels = np.where(np.arange(60) < 24, given.predicted, (given.predicted + 1) % 3)
    bundle = auditkit.Bundle(tmp_path / "maps")
    bundle.add(list(dataset.ids[:50]), labels[:50].tolist(), given.maps[:50])
    maps = auditkit.open_bundle(tmp_path / "maps")
    assert examine(given.model(), dataset, maps, tmp_path / "pictures").images == 24
    with pytest.raises(BadInput, match="here are 0"):
        examine(given.model(), dataset.select(range(24, 60)), maps, tmp_path / "pictures")


def test_pictures_show_recipient_donor_and_exchange(tmp_path: Path) -> None:
    (finding,) = examined(relying.coloured(relying.CORNER), tmp_path).findings
    assert len(finding.examples) == 4
    for example in finding.examples:
        with Image.open(tmp_path / "pictures" / example.picture) as picture:
            assert picture.format == "PNG"
            assert picture.size == (3 * 128 + 8, 128)
            first, second, third = (np.asarray(picture)[:, start : start + 128] for start in (0, 132, 264))
        assert np.array_equal(third[:32, :32], second[:32, :32])
        assert np.array_equal(third[35:], first[35:])  # below the frame
        assert example.before != example.after


def folder_of(given: Given, folder: Path, out: str, seed: int) -> bytes:
    """What `examine` writes as a record, by supplied maps."""
    explanation = replace(Explanation("differences"), seed=seed)
    phase = lambda _name: nullcontext(silent)  # noqa: E731
    given.bundle(folder)
    run.examine(given.model(), given.dataset(folder), explanation, folder / "maps", folder / out, phase, lambda *_: "")
    return (folder / out / EXAMINATION_RECORD).read_bytes()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_halves(tmp_path: Path) -> None:
    given = relying.coloured(relying.CORNER, 30)
    record = partial(folder_of, given, tmp_path)
    first, again, other = record("first", 0), record("again", 0), record("other", 1)
    assert first == again
    found, found_by_other = (json.loads(text)["examination"]["findings"][0]["examples"] for text in (first, other))
    assert found != found_by_other
    model, maps, dataset = given.model(), auditkit.open_bundle(tmp_path / "maps"), given.dataset(tmp_path)
    halves = [material_of(model, dataset, maps, seed).proposes.tolist() for seed in (0, 0, 1)]
    assert halves[0] == halves[1] != halves[2]


@pytest.mark.parametrize("given", [relying.coloured(relying.CORNER), relying.marked()], ids=["all images", "one label"])
def test_proposals_never_see_the_confirming_half(given: Given, tmp_path: Path) -> None:
    model, dataset = given.model(), given.dataset(tmp_path)
    material = material_of(model, dataset, given.bundle(tmp_path), 0)
    pixels = material.pixels.copy()
    pixels[~material.proposes] = np.random.default_rng(3).integers(256, size=pixels[~material.proposes].shape)
    maps = np.where(material.proposes[:, None, None], material.maps, 1)
    changed = replace(material, pixels=pixels, maps=maps)
    predict = predictor(model)
    found = [proposals.proposals(outcomes(one, model)) for one in (material, changed)]
    first, second = ([(one.outcome.exchange.name, one.label, one.gain, one.donor) for one in each] for each in found)
    assert first == second != []
    if found[0][0].donor is None:
        confirmed = [proposals.tested(each[0], predict).values.mean() for each in found]
        assert confirmed[0] > confirmed[1]


def test_pairs_stay_within_their_half_and_have_different_labels(tmp_path: Path) -> None:
    given = relying.coloured(relying.CENTRE, 41)
    material = material_of(given.model(), given.dataset(tmp_path), given.bundle(tmp_path), 5)
    recipients, donors = material.pairs.T
    assert (material.proposes[recipients] == material.proposes[donors]).all()
    assert material.differ.all()
    assert (np.bincount(donors) == 3).all()
    shares = [material.proposes[material.predicted == label].mean() for label in range(3)]
    assert shares == pytest.approx([0.5] * 3, abs=0.04)


def test_passes_are_no_more_than_announced(tmp_path: Path) -> None:
    given, rows = relying.marked(30), []

    def classify(pixels: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        rows.append(len(pixels))
        return given.classify(pixels)

    model, dataset, maps = replace(given, classify=classify).model(), given.dataset(tmp_path), given.bundle(tmp_path)
    rows.clear()
    examination = examine(model, dataset, maps, tmp_path / "pictures")
    assert sum(rows) <= passes(30) == examination.passes


def test_a_seeded_sample_is_taken_of_many_images(tmp_path: Path) -> None:
    dataset = relying.coloured(relying.CORNER, MOST_IMAGES + 50).dataset(tmp_path)
    taken = [drawn(dataset, None, seed) for seed in (0, 0, 1)]
    assert len(set(taken[0])) == MOST_IMAGES
    assert taken[0] == taken[1] != taken[2]


@pytest.mark.parametrize(
    "exchange", [entry for entry in EXCHANGES if entry.kind != CONTROL], ids=lambda entry: entry.name
)
def test_what_comes_from_the_donor_is_framed(exchange: Exchange) -> None:
    """The frame lies around the part, which stays as it is; an exchange without a place has no frame."""
    rng, windows = np.random.default_rng(0), {name: (slice(8, 16), slice(20, 28)) for name in WINDOWS}
    pictures = [rng.integers(0, 256, (64, 64, 3), dtype=np.uint8) for _ in "ab"]
    sides = [Side(pixels, windows, windows["small"], np.arange(64)) for pixels in pictures]
    part, mixed = findings._part(exchange, *sides), exchange.mix(*sides)
    assert part.any() == (exchange.kind not in ("colour", "fine pattern"))
    assert (mixed[part] == pictures[1][part]).all()
    strip = np.asarray(Image.open(io.BytesIO(findings._strip([*pictures, mixed], part))))
    left, middle, right = (strip[:, start : start + 128] for start in (0, 132, 264))
    frame, inside = findings._FRAME[-1][0], part.repeat(2, axis=0).repeat(2, axis=1)
    assert not (left == frame).all(axis=-1).any()
    for picture in (middle, right):
        assert (picture == frame).all(axis=-1).any() == part.any()
        assert (picture[inside] == mixed.repeat(2, axis=0).repeat(2, axis=1)[inside]).all()
