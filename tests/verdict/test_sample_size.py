"""What a policy is expected to need before any image is measured."""

import json

import pytest

from auditkit.verdict.policy_file import read_policy
from auditkit.verdict.sample_size import Expected, expected_images, expected_passes
from tests.support.commands import auditkit as command
from tests.support.commands import refused


def test_the_checks_of_standard_are_decided_by_tens_of_images() -> None:
    expected = {entry.check: entry for entry in expected_images(read_policy("standard"))}
    assert list(expected) == ["prediction-above-controls", "other-labels-above-controls", "labels-differ"]
    assert expected["labels-differ"].usual == 20  # the fewest that decide
    prediction = expected["prediction-above-controls"]
    assert prediction.median is not None
    assert 20 <= prediction.median <= 60
    assert prediction.usual is None or prediction.usual >= prediction.median


def test_the_cost_is_that_of_all_curves() -> None:
    passes = expected_passes(read_policy("standard"), 50)
    assert (passes.images, passes.labels, passes.infills, passes.points) == (50, 3, 1, 70)
    assert passes.total == 50 * (passes.insertion_curves + passes.deletion_curves) * 70
    assert expected_passes(read_policy("strict"), 50, 3).infills == 2
    assert expected_passes(read_policy("standard"), 50, 5).insertion_curves > passes.insertion_curves


def test_a_first_look_costs_less_than_half_of_standard() -> None:
    explore, standard = (expected_passes(read_policy(name), 20).total for name in ("explore", "standard"))
    assert explore < standard / 2


@pytest.mark.parametrize(("entry", "text"), [
    (Expected("a", 30, 60, 10), "about 30 images; 60 are enough in 80 % of the cases studied"),
    (Expected("a", 30, None, 10), "about 30 images; more than 200 in 20 % of the cases studied"),
    (Expected("a", None, None, 10), "more than 200 images in most cases studied"),
    (Expected("a", None, None, 0), "not known; the audit gives an estimate after 20 images"),
])  # fmt: skip
def test_numbers_in_words(entry: Expected, text: str) -> None:
    assert entry.text == text


def test_the_command_prints_numbers_and_costs() -> None:
    done = command("policy", "plan", "standard", "--images", "100")
    assert done.returncode == 0
    assert "of the cases studied" in done.stdout
    assert "about 140,000: 100 images" in done.stdout
    plain = json.loads(command("policy", "plan", "standard", "--images", "100", "--json").stdout)
    assert plain["passes"]["images"] == 100
    assert [entry["check"] for entry in plain["checks"]][-1] == "labels-differ"


def test_no_images_are_refused() -> None:
    refused(command("policy", "plan", "standard", "--images", "0"), "1 or more images")
