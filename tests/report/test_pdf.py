"""The report on paper, where a Chromium is installed, and a sentence where none is."""

import re
import shutil
from pathlib import Path

import pytest

from auditkit.report import pdf
from tests.report.test_html import AUDIT, CONTROLS, made_run, with_gallery
from tests.support.commands import auditkit as command
from tests.support.commands import refused

MOST_PAGES = 10
has_browser = pytest.mark.skipif(not any(map(shutil.which, pdf._BROWSERS)), reason="needs chromium")


@has_browser
def test_a_usual_report_has_at_most_ten_pages(tmp_path: Path) -> None:
    run = with_gallery(made_run(tmp_path / "run", sources=("maps", *CONTROLS), **AUDIT), 24)
    done = command("report", run, "-f", "pdf")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'run.pdf'}\n"), done.stderr
    content = (tmp_path / "run.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= MOST_PAGES


def test_without_a_browser_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf.shutil, "which", lambda name: None)
    refused(command("report", made_run(tmp_path / "run"), "-f", "pdf"), "no Chromium was found", "print it")
    assert not (tmp_path / "run.pdf").exists()
