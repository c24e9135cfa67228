"""An audit examines the model beside its maps; a run that says otherwise than the model does not hold."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.demo.draw import draw
from auditkit.demo.planted import bundled_model
from auditkit.errors import BadInput
from auditkit.runs.folder import checksums
from auditkit.runs.folder.results import Results
from auditkit.verdict.examination import judged
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify import Originals, Sampling, Verification, verify
from tests.support.forgeries import Forger

POLICY = """schema_version = 1
name = "examining"
[examination]
[evaluation]
steps = 4
labels = "top2"
controls = ["edges"]
minimum_images = 4
[[check]]
id = "insertion"
metric = "insertion"
min = 0.001
severity = "high"
"""
ALLOWED = '\n[[allowed]]\nkind = "corner"\nreason = "The tag is part of the task."\n'


def _audited(folder: Path, count: int, out: str, text: str = POLICY) -> Results:
    (folder / "policy.toml").write_text(text)
    drawn = draw(count, seed=3, tags="agree")
    np.savez(folder / "images.npz", images=drawn.images, labels=drawn.labels)
    for suffix in ("onnx", "toml"):
        shutil.copy(bundled_model("shortcut").with_suffix(f".{suffix}"), folder / f"model.{suffix}")
    model = auditkit.load(folder / "model.onnx", settings=auditkit.Settings(device="cpu"))
    return auditkit.audit(model, folder / "images.npz", folder / out, method="occlusion", policy=folder / "policy.toml")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the audit of a model that reads the tag."""
    folder = tmp_path_factory.mktemp("examined")
    _audited(folder, 24, "run")
    return folder


def _verified(folder: Path, run: Path) -> Verification:
    return verify(run, Originals(folder / "model.onnx", folder / "images.npz", device="cpu"), Sampling(seed=0))


def test_an_audit_says_what_the_model_relies_on(made: Path) -> None:
    results = Results.parse(json.loads((made / "run" / "results.json").read_text()), made)
    assert results.examination is not None
    (finding,) = results.examination.findings
    assert (finding.kind, finding.severity, finding.allowed) == ("corner", "high", "")
    assert results.verdict == "pass"  # of the maps: the finding is about the model
    page = (made / "run" / "report.html").read_text()
    assert "The model relies on something in the corners, such as a tag or a stamp" in page
    assert page.count("with the framed part of the second") - 1 == len(finding.examples) == 4  # one is on top, too
    found = _verified(made, made / "run")
    assert found.answer == "holds", (found.problems, found.unchecked)


def _milder(plain: dict[str, Any]) -> None:
    plain["examination"]["findings"][0]["severity"] = "low"


def _none(plain: dict[str, Any]) -> None:
    plain["examination"]["findings"] = []


def _elsewhere(plain: dict[str, Any]) -> None:
    plain["examination"]["findings"][0]["place"] = "the centre"


def _other_rates(plain: dict[str, Any]) -> None:
    for rate in plain["examination"]["rates"]:
        rate["follows"] = (rate["follows"] + 0.5) % 1


def _not_examined(plain: dict[str, Any]) -> None:
    plain["examination"], plain["not_examined"] = None, "there was no time"


@pytest.mark.parametrize("change", [_milder, _none, _elsewhere, _other_rates, _not_examined])
def test_a_changed_examination_does_not_hold(
    change: Callable[[dict[str, Any]], None], made: Path, tmp_path: Path
) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    Forger(tmp_path / "run", made).results(change)
    assert _verified(made, tmp_path / "run").answer == "does not hold"


def test_another_picture_of_an_exchange_does_not_hold(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    first, second = sorted((tmp_path / "run" / "examination").iterdir())[:2]
    first.write_bytes(second.read_bytes())
    Forger(tmp_path / "run", made).results(lambda plain: None)
    checksums.write(tmp_path / "run")
    found = _verified(made, tmp_path / "run")
    assert found.answer == "does not hold"
    assert any("does not show the exchange" in problem for problem in found.problems)


def test_a_policy_allows_a_cue(made: Path) -> None:
    results = Results.parse(json.loads((made / "run" / "results.json").read_text()), made)
    assert results.examination is not None
    (finding,) = judged(results.examination, parse_policy(POLICY + ALLOWED, "policy")).findings
    assert finding.allowed == "The tag is part of the task."
    stated = POLICY.replace("[examination]", '[examination]\nseverity = "critical"')
    (finding,) = judged(results.examination, parse_policy(stated, "policy")).findings
    assert finding.severity == "critical"
    assert judged(results.examination, parse_policy(POLICY.replace("[examination]\n", ""), "policy")) == replace(
        results.examination
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (POLICY.replace("[examination]\n", "") + ALLOWED, "add a table [examination]"),
        (POLICY + ALLOWED + ALLOWED, "'corner' is allowed twice"),
        (POLICY + ALLOWED.replace("corner", "corners"), "kind"),
        (POLICY.replace("[examination]", '[examination]\nseverity = "grave"'), "severity"),
        (POLICY.replace("[examination]", "[examination]\nimages = 3"), "images"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=r"^policy") as error:
        parse_policy(text, "policy")
    assert words in str(error.value)


def test_with_few_images_the_report_says_why_the_model_was_not_examined(tmp_path: Path) -> None:
    results = _audited(tmp_path, 6, "run")
    assert results.examination is None
    assert results.not_examined.startswith("an examination needs 20 images")
    assert (
        "Not known: the model was not examined: an examination needs 20 images"
        in (tmp_path / "run" / "report.html").read_text()
    )
    assert _verified(tmp_path, tmp_path / "run").answer == "holds"
