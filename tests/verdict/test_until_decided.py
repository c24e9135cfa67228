"""Audits that take images batch by batch until they decide."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.data.bundles import Bundle, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.model.classifier import Opening
from auditkit.report.answers import _more_images
from auditkit.runs.evaluate import evaluate
from auditkit.runs.folder import checksums
from auditkit.runs.folder.figures import Taking
from auditkit.runs.folder.results import Results
from auditkit.runs.folder.store import Store
from auditkit.verdict import audit as auditing
from auditkit.verdict.audit import AuditRequest
from auditkit.verdict.policy_file import read_policy
from auditkit.verdict.verify import Originals, verify
from tests.support import onnx_models
from tests.support.commands import auditkit as command
from tests.support.commands import refused

IMAGES = 32
POLICY = """
schema_version = 1
name = "small"
description = "for tests"

[evaluation]
labels = "top2"
infill = "random"
steps = "8"
seed = 5
minimum_images = 20

[[check]]
id = "clear"
metric = "insertion"
min = {limit}
severity = "high"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, images, maps of noise, and policies that these keep clearly or neither keep nor miss."""
    folder, rng = tmp_path_factory.mktemp("until"), np.random.default_rng(0)
    onnx_models.save(onnx_models.convnet(size=8, classes=4), folder)
    np.savez(folder / "images.npz", images=rng.integers(0, 256, (IMAGES, 8, 8, 3), dtype=np.uint8))
    bundle = Bundle(folder / "maps", model=str(folder / "model.onnx"), method="noise")
    for image in range(IMAGES):
        bundle.add([str(image)] * 4, [0, 1, 2, 3], rng.standard_normal((4, 8, 8)).astype(np.float32))
    (folder / "clear.toml").write_text(POLICY.format(limit=0.001))
    measured = auditkit.audit(_model(folder), folder / "images.npz", folder / "all", folder / "maps",
                              policy=folder / "clear.toml")  # fmt: skip
    (mean,) = [check.observed for check in measured.checks if check.id == "clear"]
    (folder / "unclear.toml").write_text(POLICY.format(limit=mean))
    return folder


def _model(folder: Path) -> Any:
    return auditkit.load(folder / "model.onnx", preset="unit", settings=auditkit.Settings(device="cpu"))


def _audit(folder: Path, out: Path, policy: str, *heatmaps: Path, **options: Any) -> Results:
    return auditkit.audit(_model(folder), folder / "images.npz", out, heatmaps, policy=folder / f"{policy}.toml",
                          until_decided=True, **options)  # fmt: skip


def _answer(folder: Path, run: Path) -> tuple[str, list[str]]:
    bundles = {} if (run / "maps").exists() else {"maps": folder / "maps"}
    originals = Originals(folder / "model.onnx", folder / "images.npz", bundles, opening=Opening(preset="unit"))
    verification = verify(run, originals)
    return verification.answer, [*verification.problems, *verification.unchecked]


def _timeless(run: Path) -> tuple[dict[str, Any], list[str]]:
    plain = json.loads((run / "results.json").read_text())
    del plain["run"]["started"], plain["run"]["ended"], plain["explained"]["passes"]
    return plain, sorted(path.name for path in (run / "items").iterdir())


def test_batches_grow_by_half() -> None:
    assert Taking(until_decided=True).ends(20, 100) == [20, 30, 45, 68, 100]
    assert Taking(until_decided=True).ends(20, 20) == [20]
    assert Taking(until_decided=True).ends(20, 7) == [7]
    assert Taking(until_decided=True, limit=50, first_look=3).ends(20, 100) == [3, 20, 30, 45, 50]
    assert Taking(limit=50).ends(20, 100) == [50]
    assert Taking(first_look=8).ends(20, 100) == [8, 100]
    assert Taking().ends(20, 100) == [100]


def test_a_limit_takes_the_first_images_of_the_same_order(folder: Path, tmp_path: Path) -> None:
    results = auditkit.audit(_model(folder), folder / "images.npz", tmp_path / "run", folder / "maps", limit=24,
                             policy=folder / "unclear.toml")  # fmt: skip
    assert results.run.taken is not None
    assert (results.subject.images.count, results.run.taken.count, results.run.taken.earlier) == (24, IMAGES, ())
    assert _more_images(results).startswith("Take more images: 8 of 32 were left out.")
    everything = replace(results, run=replace(results.run, taken=None))
    assert _more_images(everything) == "Add images."
    assert _answer(folder, tmp_path / "run") == ("holds", [])


def test_a_first_look_has_a_report_and_changes_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen when the other images are about to be measured."""
    pages = list[str]()

    def watched(model: Any, images: Dataset, *rest: Any, **options: Any) -> Any:
        page = tmp_path / "run" / "report.html"
        pages.append(page.read_text() if page.exists() else "")
        return evaluate(model, images, *rest, **options)

    monkeypatch.setattr(auditing, "evaluate", watched)
    rules = read_policy(folder / "unclear.toml")
    request = AuditRequest(rules, None, bundles={"maps": open_bundle(folder / "maps")}, taking=Taking(first_look=5))
    images = Dataset.open(folder / "images.npz", 4)
    announced: list[str] = []
    results = auditing.audit(_model(folder), images, request, tmp_path / "run", announce=announced.append)
    assert announced == [f"first report: {tmp_path / 'run' / 'report.html'} (5 of 32 images; the audit continues)"]
    assert pages[0] == ""
    assert "5 of 32 images were measured; the run is not finished, and nothing is decided." in pages[1]
    assert "not finished" not in (tmp_path / "run" / "report.html").read_text()
    assert results.run.preliminary is None
    whole = Store(folder / "all").results()
    assert [metric.value for metric in results.metrics] == pytest.approx([metric.value for metric in whole.metrics])
    assert _answer(folder, tmp_path / "run") == ("holds", [])


def test_an_audit_that_is_cut_short_after_its_first_look_resumes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(model: Any, images: Dataset, *rest: Any, **options: Any) -> Any:
        results = evaluate(model, images, *rest, **options)
        if len(images) > 5:
            raise KeyboardInterrupt
        return results

    rules, images = read_policy(folder / "unclear.toml"), Dataset.open(folder / "images.npz", 4)
    request = AuditRequest(rules, None, bundles={"maps": open_bundle(folder / "maps")}, taking=Taking(first_look=5))
    monkeypatch.setattr(auditing, "evaluate", cut_short)
    with pytest.raises(KeyboardInterrupt):
        auditing.audit(_model(folder), images, request, tmp_path / "run")
    monkeypatch.undo()
    auditing.audit(_model(folder), images, request, tmp_path / "run")
    assert _answer(folder, tmp_path / "run") == ("holds", [])


def test_other_settings_than_the_policys_never_pass(folder: Path, tmp_path: Path) -> None:
    rules, images = read_policy(folder / "clear.toml"), Dataset.open(folder / "images.npz", 4)
    request = AuditRequest(rules, None, bundles={"maps": open_bundle(folder / "maps")}, labels="top3")
    results = auditing.audit(_model(folder), images, request, tmp_path / "run")
    (check,) = [check for check in results.checks if check.id == "settings"]
    assert results.verdict == "inconclusive"
    assert check.reason.startswith("Measured with labels top3 instead of top2;")
    assert _answer(folder, tmp_path / "run") == ("holds", [])


def test_clear_data_stop_early(folder: Path, tmp_path: Path) -> None:
    results = _audit(folder, tmp_path / "run", "clear", folder / "maps")
    taken = results.run.taken
    assert results.verdict == "pass"
    assert taken is not None
    assert (results.subject.images.count, taken.count, taken.earlier) == (20, IMAGES, ())
    assert taken.digest == Dataset.open(folder / "images.npz", 4).digest()
    assert _answer(folder, tmp_path / "run") == ("holds", [])
    assert "20 of 32 images, taken in an order fixed before the run" in (tmp_path / "run" / "report.html").read_text()


def test_unclear_data_take_all_images(folder: Path, tmp_path: Path) -> None:
    results = _audit(folder, tmp_path / "run", "unclear", folder / "maps")
    taken = results.run.taken
    assert results.verdict == "inconclusive"
    assert taken is not None
    assert [batch.images for batch in taken.earlier] == [20, 30]
    assert results.subject.images.count == IMAGES
    assert _answer(folder, tmp_path / "run") == ("holds", [])
    (check,) = [check for check in results.checks if check.id == "clear"]
    whole = Store(folder / "all").results()
    assert "images like these would" in check.reason
    (same,) = [check for check in whole.checks if check.id == "clear"]
    assert check.observed == pytest.approx(same.observed)  # the order does not matter


def test_a_killed_run_is_resumed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"method": "gradient-input"}
    _audit(folder, tmp_path / "undisturbed", "unclear", **options)
    calls, run = list[int](), tmp_path / "killed"

    def killed(model: Any, images: Dataset, *rest: Any, **options: Any) -> Any:
        calls.append(len(images))
        if len(images) == 30 and calls.count(30) == 1:  # its maps are made, its rows are not
            raise KeyboardInterrupt
        return evaluate(model, images, *rest, **options)

    monkeypatch.setattr(auditing, "evaluate", killed)
    with pytest.raises(KeyboardInterrupt):
        _audit(folder, run, "unclear", **options)
    before = {path.name: path.stat().st_mtime_ns for path in (run / "items").iterdir()}
    assert before
    _audit(folder, run, "unclear", **options)
    assert calls[:3] == [20, 30, 20]
    assert {path.name: path.stat().st_mtime_ns for path in (run / "items").iterdir()}.items() >= before.items()
    assert _timeless(run) == _timeless(tmp_path / "undisturbed")
    assert _answer(folder, run) == ("holds", [])


def test_images_of_choice_are_found(folder: Path, tmp_path: Path) -> None:
    """Other images than the first ones of all, and a set that is said to have been smaller."""
    run = tmp_path / "run"
    _audit(folder, run, "clear", folder / "maps")
    with np.load(folder / "images.npz") as arrays:
        np.savez(tmp_path / "images.npz", images=arrays["images"][::-1])
    others = Originals(images=tmp_path / "images.npz")
    assert any("the set of images" in problem for problem in verify(run, others).problems)
    path = run / "results.json"
    plain = json.loads(path.read_text())
    plain["run"]["taken"]["count"] = 20
    path.write_text(json.dumps(plain, sort_keys=True, indent=2) + "\n")
    checksums.write(run)
    assert any("run.json: subject.images.count is 32" in problem for problem in verify(run).problems)


def test_a_policy_without_limits_decides_nothing(folder: Path, tmp_path: Path) -> None:
    done = command("audit", folder / "model.onnx", folder / "images.npz", "-o", tmp_path / "run", "--until-decided",
                   "--policy", "explore", "--preset", "unit")  # fmt: skip
    refused(done, "nothing to decide")


def test_the_command_says_how_many_were_taken(folder: Path, tmp_path: Path) -> None:
    done = command("audit", folder / "model.onnx", folder / "images.npz", "-o", tmp_path / "run", "--until-decided",
                   "--policy", folder / "clear.toml", "--heatmaps", folder / "maps", "--preset", "unit")  # fmt: skip
    assert done.returncode == 0
    assert "20 of 32 images" in done.stdout
