"""The report on paper, where a Chromium is installed, and a sentence where none is."""

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from auditkit.errors import RuntimeFailure
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


BROWSER = """#!/bin/sh
echo "HOME=$HOME XDG=$XDG_CACHE_HOME $*" >> {folder}/calls
case "$*" in *--no-sandbox*)
  for word in "$@"; do case $word in --print-to-pdf=*) echo %PDF > "${{word#*=}}";; esac; done; exit 0;;
esac
echo '{errors}' >&2
exit 1
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Prints with a browser that says these errors, and gives the command lines that it was started with."""

    def printed(errors: str) -> list[str]:
        browser = tmp_path / "chromium"
        browser.write_text(BROWSER.format(folder=tmp_path, errors=errors))
        browser.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        with suppress(RuntimeFailure):
            assert pdf.print_pdf("<p>", warnings.append) == b"%PDF\n"
        return (tmp_path / "calls").read_text().splitlines()

    warnings = list[str]()
    return printed


@pytest.mark.parametrize(
    "errors", ["ERROR: Running as root without --no-sandbox is not supported.", "FATAL: No usable sandbox! Update"]
)
def test_the_sandbox_is_left_out_only_where_it_cannot_start(errors: str, calls: Callable[[str], list[str]]) -> None:
    first, second = calls(errors)
    assert "--no-sandbox" not in first
    assert "--no-sandbox" in second


def test_another_failure_is_not_repeated_without_the_sandbox(calls: Callable[[str], list[str]]) -> None:
    (only,) = calls("Segmentation fault")
    assert "--no-sandbox" not in only


def test_the_browser_asks_for_no_address_and_leaves_no_files(calls: Callable[[str], list[str]]) -> None:
    (call,) = calls("Segmentation fault")
    assert "--host-resolver-rules=MAP * ~NOTFOUND --no-proxy-server" in call
    home, cache = (word.partition("=")[2] for word in call.split()[:2])
    assert home
    assert f"--user-data-dir={home}/profile" in call
    assert not Path(home).exists()
    assert cache == ""


def test_printing_without_the_sandbox_is_announced(tmp_path: Path, calls: Callable[[str], list[str]]) -> None:
    assert calls("No usable sandbox!")
    done = command("report", made_run(tmp_path / "run"), "-f", "pdf")
    assert done.returncode == 0
    assert "warning: the sandbox of" in done.stderr


def test_without_a_browser_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf.shutil, "which", lambda name: None)
    refused(command("report", made_run(tmp_path / "run"), "-f", "pdf"), "no Chromium was found", "print it")
    assert not (tmp_path / "run.pdf").exists()
