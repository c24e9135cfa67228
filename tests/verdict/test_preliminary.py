"""An audit that was cut short after its first report: every form says so, and nothing passes for a verdict."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import pytest

import auditkit
from auditkit.data.bundles import Bundle, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.report.formats import FORMATS, render
from auditkit.report.load_run import load
from auditkit.runs.comparison.compare import compare
from auditkit.runs.evaluate import evaluate
from auditkit.runs.folder import checksums
from auditkit.runs.folder.figures import Taking
from auditkit.runs.folder.results import Results
from auditkit.runs.folder.store import Store
from auditkit.verdict import audit as auditing
from auditkit.verdict.audit import AuditRequest
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify import verify
from tests.support import onnx_models
from tests.support.commands import auditkit as command

FIRST, LIMIT, IMAGES = 5, 28, 32
POLICY = """
schema_version = 1
name = "small"

[evaluation]
labels = "top2"
minimum_images = 20
steps = "8"

[[check]]
id = "any"
metric = "insertion"
min = 0.001
severity = "high"
"""
UNFINISHED = "5 of 28 images were measured; the run is not finished, and nothing is decided."


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, images and maps of noise, which the policy passes."""
    folder, rng = tmp_path_factory.mktemp("preliminary"), np.random.default_rng(0)
    onnx_models.save(onnx_models.convnet(size=8, classes=4), folder)
    np.savez(folder / "images.npz", images=rng.integers(0, 256, (IMAGES, 8, 8, 3), dtype=np.uint8))
    bundle = Bundle(folder / "maps", model=str(folder / "model.onnx"), method="noise")
    for image in range(IMAGES):
        bundle.add([str(image)] * 4, [0, 1, 2, 3], rng.standard_normal((4, 8, 8)).astype(np.float32))
    return folder


def _audit(given: Path, out: Path) -> Results:
    model = auditkit.load(given / "model.onnx", preset="unit", settings=auditkit.Settings(device="cpu"))
    taking = Taking(limit=LIMIT, first_look=FIRST)
    bundles = {"maps": open_bundle(given / "maps")}
    request = AuditRequest(parse_policy(POLICY, "small.toml"), None, bundles=bundles, taking=taking)
    return auditing.audit(model, Dataset.open(given / "images.npz", 4), request, out)


@pytest.fixture(scope="module")
def cut_short(given: Path) -> Path:
    """The run of an audit that was stopped when all images were measured, before it could report them."""

    def stopping(model: Any, images: Dataset, *rest: Any, **options: Any) -> Any:
        summary = evaluate(model, images, *rest, **options)
        if len(images) > FIRST:
            raise KeyboardInterrupt
        return summary

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auditing, "evaluate", stopping)
        with pytest.raises(KeyboardInterrupt):
            _audit(given, given / "cut-short")
    return given / "cut-short"


@pytest.fixture
def run(cut_short: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(cut_short, tmp_path / "run"))


def test_the_record_says_how_far_the_run_is(cut_short: Path, given: Path) -> None:
    results = Store(cut_short).results()
    preliminary = results.run.preliminary
    assert preliminary is not None
    assert (preliminary.images, preliminary.total, results.subject.images.count) == (FIRST, LIMIT, FIRST)
    assert results.run.taken is not None
    assert results.run.taken.count == IMAGES
    assert (results.verdict, results.checks, results.run.ended) == (None, (), None)
    finished = _audit(given, given / "finished")
    assert (finished.run.preliminary, finished.verdict) == (None, "pass")


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_says_that_it_is_preliminary(cut_short: Path, form: str) -> None:
    text = render(load(cut_short), form)
    assert UNFINISHED in text
    assert "preliminary" in text.lower()
    assert not {"Run ended", "Pass", "PASS", "Inconclusive"} & {*text.replace("<", " ").replace(":", " ").split()}


def test_the_page_and_the_markdown_begin_with_it(cut_short: Path) -> None:
    page = (cut_short / "report.html").read_text()
    assert "<title>Preliminary: model.onnx" in page
    assert "Preliminary audit of <bdi>model.onnx</bdi>" in page
    assert page.index(UNFINISHED) < page.index("Are the heatmaps faithful?")
    assert "Preliminary, written <time>" in page
    assert "5 of 32 images, taken in an order fixed before the run" in page
    assert not [section for section in ("checks", "regulation", "sign-off") if f'id="{section}"' in page]
    markdown = render(load(cut_short), "md")
    assert markdown.startswith(f"# Preliminary audit of model.onnx\n\n> **Preliminary.** {UNFINISHED}")
    assert "run its command again to finish it" in markdown


def test_pipelines_get_an_error_and_no_exit_code(cut_short: Path) -> None:
    suite = Xml.fromstring(render(load(cut_short), "junit"))[0]  # noqa: S314 - our own file
    assert suite.attrib["name"] == "auditkit small, preliminary"
    assert (suite.attrib["tests"], suite.attrib["errors"]) == ("1", "1")
    (invocation,) = json.loads(render(load(cut_short), "sarif"))["runs"][0]["invocations"]
    assert (invocation["executionSuccessful"], "exitCode" in invocation) == (False, False)
    oscal = json.loads(render(load(cut_short), "oscal"))["assessment-results"]
    assert oscal["metadata"]["title"] == "Preliminary audit of model.onnx"
    assert "end" not in oscal["results"][0]
    assert oscal["results"][0]["props"][0]["value"] == "preliminary"


def test_its_charts_are_those_of_its_images(cut_short: Path) -> None:
    """Though rows of others have been measured since."""
    loaded = load(cut_short)
    assert len(Store(cut_short).keys()) > 1
    assert loaded.table is not None
    assert len(loaded.table.images) == FIRST


def test_it_is_not_compared_and_not_a_baseline(cut_short: Path) -> None:
    with pytest.raises(BadInput, match=r"cut-short is not finished; run its command again, then compare\."):
        compare(cut_short, cut_short)


# Verification ---------------------------------------------------------------------------------------------------------


def test_verify_says_that_it_is_not_finished(cut_short: Path) -> None:
    done = command("verify", cut_short)
    assert done.returncode == 3
    sentence = "the run is not finished: its results are of 5 of 28 images. Run its command again to finish it"
    assert done.stderr == f"auditkit: {cut_short} could not be checked in full (1 gap): {sentence}.\n"
    assert "DOES NOT HOLD" not in done.stdout


def test_a_run_without_results_is_not_finished_either(run: Path) -> None:
    (run / "results.json").unlink()
    verification = verify(run)
    assert (verification.answer, verification.problems) == ("could not be checked", [])
    assert verification.unchecked == [
        "the run is not finished: it has no results yet. Run its command again to finish it."
    ]


def _shift_a_figure(run: Path) -> None:
    plain = json.loads((run / "results.json").read_text())
    plain["metrics"][0]["value"] += 0.01
    (run / "results.json").write_text(json.dumps(plain, sort_keys=True, indent=2) + "\n")


def _claim_a_pass(run: Path) -> None:
    plain = json.loads((run / "results.json").read_text())
    plain["verdict"] = "pass"
    (run / "results.json").write_text(json.dumps(plain, sort_keys=True, indent=2) + "\n")


def _remove_parts(run: Path) -> None:
    for path in (run / "items").iterdir():
        path.unlink()


def _change_the_page(run: Path) -> None:
    page = run / "report.html"
    page.write_text(page.read_text().replace("Preliminary", "Final"))


def _change_the_policy(run: Path) -> None:
    (run / "policy.toml").write_text(POLICY.replace("0.001", "0.9"))


@pytest.mark.parametrize(
    "change", [_shift_a_figure, _claim_a_pass, _remove_parts, _change_the_page, _change_the_policy]
)
def test_an_unfinished_run_that_was_changed_does_not_hold(run: Path, change: Callable[[Path], None]) -> None:
    change(run)
    assert verify(run).answer == "does not hold"


def test_a_sealed_run_cannot_be_preliminary(given: Path, run: Path, tmp_path: Path) -> None:
    """A finished run is not made to look unfinished, which would hide its verdict."""
    if not (given / "finished").exists():
        _audit(given, given / "finished")
    copy = Path(shutil.copytree(given / "finished", tmp_path / "copy"))
    shutil.copy(run / "results.json", copy / "results.json")
    assert verify(copy).answer == "does not hold"


def test_a_run_cannot_be_sealed_before_it_is_finished(run: Path) -> None:
    checksums.write(run)
    assert verify(run).problems == ["results.json: the run is sealed, but not finished"]
