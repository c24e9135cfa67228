"""The last screen of an audit says the answers in plain words, and identifiers only on request."""

from pathlib import Path

import pytest

from auditkit.cli.last_screen import print_last_screen
from auditkit.report.load_run import load
from tests.report.test_html import AUDIT, changed, examined, made_run, one_check


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_run(tmp_path_factory.mktemp("screen") / "run", **AUDIT)


def _screen(run: Path, capsys: pytest.CaptureFixture[str], *, verbose: bool = False, **changes: object) -> str:
    print_last_screen(changed(load(run), **changes).results, run, verbose=verbose)
    return " ".join(capsys.readouterr().out.split())


def test_it_answers_both_questions_and_says_what_to_do(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = _screen(run, capsys, checks=[one_check("fail")], examination=examined())
    for said in ("FAIL Are the heatmaps faithful? No.", "worse than blurred edges, a map that ignores the model.",
                 "relies on The model relies on something in the corners",
                 "next About the model: Look at the corners", "next About “T”: Ask.",
                 f"report {run / 'report.html'}"):  # fmt: skip
        assert text.count(said) == 1, said
    assert text.count("Look at the corners") == 1
    assert "margin" not in text


def test_five_figures_stand_beside_their_best_control(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = _screen(run, capsys, checks=[])
    for name in ("accuracy", "insertion", "worst completeness", "worst soundness", "label specificity"):
        assert name in text
    assert "best control" in text
    assert "random map" in text or "centred Gaussian" in text
    assert ", bootstrap" in text
    assert "intervals bootstrap or Wilson: describes these images; test: decides a check" in text


def test_identifiers_are_shown_on_request(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "margin fail" in _screen(run, capsys, verbose=True, checks=[one_check("fail")])
