"""No text promises more than is known, and a pass says which fakes are known to pass."""

from pathlib import Path

import pytest

from auditkit.runs.summary.wording import BY_CHANCE
from auditkit.verdict.policy_file import read_policy

ROOT = Path(__file__).parents[2]
SOURCES = [
    ROOT / "README.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "examples").glob("*.ipynb"),
    *(ROOT / "auditkit").rglob("*.py"),
    *(ROOT / "auditkit").rglob("*.html"),
    *(ROOT / "auditkit" / "verdict" / "policies").glob("*.toml"),
]
TOO_MUCH = (
    "every map that ignores the model",  # only the controls are measured
    "however disguised",  # inverses of the prediction's map are known to pass
    "would pass in at most",  # which reads as the share of fakes that pass
    "would pass with a probability",
)


@pytest.mark.parametrize("claim", TOO_MUCH)
def test_no_text_claims_more_than_is_known(claim: str) -> None:
    texts = {path: " ".join(path.read_text("utf-8").split()) for path in SOURCES}
    assert [path.name for path, text in texts.items() if claim in text] == []


@pytest.mark.parametrize("name", ["standard", "strict"])
@pytest.mark.parametrize("fake", ["recognise pictures", "hiding the predicted object", "mixture of maps"])
def test_a_pass_names_the_fakes_that_are_known_to_pass(name: str, fake: str) -> None:
    assert any(fake in sentence for sentence in read_policy(name).cannot_tell)


@pytest.mark.parametrize("page", ["policies.md", "SECURITY.md"])
def test_the_documentation_names_them_too(page: str) -> None:
    text = " ".join((ROOT / "docs" / page).read_text("utf-8").split())
    for fake in ("no whole numbers", "complement for the other labels", "7 passed"):
        assert fake in text


def test_the_error_of_a_pass_is_not_the_share_of_fakes_that_pass() -> None:
    assert "not about fakes" in BY_CHANCE["pass"]
