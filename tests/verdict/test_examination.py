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
from auditkit.runs.folder.results import CardOrigin, FindingGate, Results
from auditkit.verdict.examination import finding_gate, judged
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify import Originals, Sampling, Verification, verify
from tests.support.commands import auditkit as command
from tests.support.commands import refused
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


def _audited(folder: Path, count: int, out: str, fail_on_finding: str | None = None, text: str = POLICY) -> Results:
    (folder / "policy.toml").write_text(text)
    drawn = draw(count, seed=3, tags="agree")
    np.savez(folder / "images.npz", images=drawn.images, labels=drawn.labels)
    for suffix in ("onnx", "toml"):
        shutil.copy(bundled_model("shortcut").with_suffix(f".{suffix}"), folder / f"model.{suffix}")
    model = auditkit.load(folder / "model.onnx", settings=auditkit.Settings(device="cpu"))
    return auditkit.audit(model, folder / "images.npz", folder / out, method="occlusion",
                          policy=folder / "policy.toml", fail_on_finding=fail_on_finding)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the audit of a model that reads the tag; a finding of severity high fails it."""
    folder = tmp_path_factory.mktemp("examined")
    _audited(folder, 24, "run", fail_on_finding="high")
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


def test_a_finding_fails_an_audit_whose_maps_pass(made: Path) -> None:
    results = Results.parse(json.loads((made / "run" / "results.json").read_text()), made)
    assert results.verdict == "pass"
    assert results.run.fail_on_finding == "high"
    assert results.finding_gate == FindingGate("high", "fail")
    assert results.exit_code == 1


def test_the_command_ends_with_the_code_of_the_finding(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "run", tmp_path / "run")  # which is finished, so nothing is measured again
    words = ("audit", made / "model.onnx", made / "images.npz", "--method", "occlusion", "--policy",
             made / "policy.toml", "--fail-on-finding", "high", "--device", "cpu", "-o", tmp_path / "run")  # fmt: skip
    done = command(*words)
    assert done.returncode == 1, done.stderr
    screen = " ".join(done.stdout.split())
    assert "PASS Are the heatmaps faithful? Yes." in screen
    assert "exit code A finding of severity high or above about the model fails the audit" in screen


@pytest.mark.parametrize(
    ("severity", "allowed", "examined", "expected"),
    [
        ("high", False, True, FindingGate("high", "fail")),
        ("low", False, True, FindingGate("low", "fail")),
        ("critical", False, True, FindingGate("critical", "pass")),
        ("high", True, True, FindingGate("high", "pass")),
        ("high", False, False, FindingGate("high", "not assessed")),
        (None, False, True, None),
    ],
)
def test_findings_fail_from_a_severity_on(
    made: Path, severity: str | None, allowed: bool, examined: bool, expected: FindingGate | None
) -> None:
    results = Results.parse(json.loads((made / "run" / "results.json").read_text()), made)
    key = "" if severity is None else f'fail_on_finding = "{severity}"\n'
    text = POLICY.replace("[examination]", f"{key}[examination]")
    policy = parse_policy(text + ALLOWED if allowed else text, "policy")
    assert results.examination is not None
    examination = judged(results.examination, policy) if examined else None
    of_policy = replace(results, run=replace(results.run, fail_on_finding=None), examination=examination)
    assert finding_gate(policy, of_policy) == expected


@pytest.mark.parametrize(
    ("verdict", "status", "code"),
    [("pass", "fail", 1), ("fail", "pass", 1), ("inconclusive", "fail", 1), ("pass", "not assessed", 3),
     ("inconclusive", "pass", 3), ("measured", "pass", 0), ("measured", "fail", 1)],
)  # fmt: skip
def test_the_exit_code_is_that_of_the_worse(made: Path, verdict: Any, status: Any, code: int) -> None:
    results = Results.parse(json.loads((made / "run" / "results.json").read_text()), made)
    assert replace(results, verdict=verdict, finding_gate=FindingGate("high", status)).exit_code == code


def test_a_policy_without_an_examination_cannot_fail_on_a_finding(made: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.replace("[examination]\n", ""))
    words = ("audit", made / "model.onnx", made / "images.npz", "-o", tmp_path / "run", "--policy", policy)
    refused(command(*words, "--fail-on-finding", "high"), "does not examine the model", "such as standard")
    refused(command(*words, "--fail-on-finding", "grave"), "unknown severity 'grave'", "low, medium, high, critical")
    assert not (tmp_path / "run").exists()


def test_no_finding_decides_where_the_preprocessing_is_a_guess(made: Path) -> None:
    results = Results.parse(json.loads((made / "run" / "results.json").read_text()), made)
    origin = CardOrigin("preset unit (assumed)", None, "assumed")
    guessed = replace(results, subject=replace(results.subject, card_origin=origin))
    assert results.examination is not None
    for findings in (results.examination.findings, ()):
        examined = replace(guessed, examination=replace(results.examination, findings=findings))
        assert finding_gate(parse_policy(POLICY, "policy"), examined) == FindingGate("high", "not assessed")


def _gate_open(plain: dict[str, Any]) -> None:
    plain["finding_gate"]["status"] = "pass"


def _gate_removed(plain: dict[str, Any]) -> None:
    del plain["finding_gate"], plain["run"]["fail_on_finding"]


@pytest.mark.parametrize("change", [_gate_open, _gate_removed])
def test_a_finding_that_no_longer_fails_is_seen_without_the_originals(
    change: Callable[[dict[str, Any]], None], made: Path, tmp_path: Path
) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    Forger(tmp_path / "run", made).results(change)
    # An audit from Python has no command, which would show a severity that is missing in run.json too.
    shutil.copy(made / "run" / "run.json", tmp_path / "run")
    Forger(tmp_path / "run", made).finish()
    assert verify(tmp_path / "run").answer == "does not hold"


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
    without_limits = POLICY.replace('severity = "high"', 'severity = "info"')  # so that few images may start
    results = _audited(tmp_path, 6, "run", text=without_limits)
    assert results.examination is None
    assert results.not_examined.startswith("an examination needs 20 images")
    assert (
        "Not known: the model was not examined: an examination needs 20 images"
        in (tmp_path / "run" / "report.html").read_text()
    )
    assert _verified(tmp_path, tmp_path / "run").answer == "holds"
