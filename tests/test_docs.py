"""The documentation names files and functions that exist, and its links lead somewhere."""

import importlib
import re
from pathlib import Path

import pytest

import auditkit
from auditkit.report import pipeline
from auditkit.runs.evaluation.settings import CONVENTIONS

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
TOP = [path for path in (ROOT / "auditkit").iterdir() if path.suffix in ("", ".py") and path.name[0] != "_"]
PACKAGES = {path.stem for path in TOP}
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#][^)]*)\)")
PATH = re.compile(r"(?:auditkit|benchmarks|docs|models|tests)/[\w./-]*")
NAME = re.compile(r"(?:auditkit\.)?([a-z_]+(?:\.\w+)+)")
FILE = re.compile(r".*\.(?:csv|html|json|md|npz|onnx|parquet|toml|txt)")


def missing(text: str) -> list[str]:
    """The paths and dotted names in backticks that do not exist."""
    spans = [span.removesuffix("()") for span in SPAN.findall(text)]
    paths = [span for span in spans if PATH.fullmatch(span) and not (ROOT / span).exists()]
    return paths + [span for span in spans if _is_name(span) and not _resolves(span)]


def _is_name(span: str) -> bool:
    match = NAME.fullmatch(span)
    if match is None or FILE.fullmatch(span):
        return False
    return span.startswith("auditkit.") or match[1].partition(".")[0] in PACKAGES


def _resolves(span: str) -> bool:
    """Whether a name leads to a module, or to something in one."""
    value: object = auditkit
    path = "auditkit"
    for part in span.removeprefix("auditkit.").split("."):
        path = f"{path}.{part}"
        if not hasattr(value, part):
            try:
                importlib.import_module(path)
            except ModuleNotFoundError:
                return False
        value = getattr(value, part)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_the_documentation_exist(page: Path) -> None:
    assert missing(page.read_text()) == []


def leads_nowhere(link: str, folder: Path) -> bool:
    """Whether a link names no file, or a heading that the file does not have."""
    path, _, anchor = link.partition("#")
    if not (folder / path).exists():
        return True
    headings = re.findall(r"^#+ (.*)$", (folder / path).read_text(), re.MULTILINE) if anchor else []
    anchors = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
    return bool(anchor) and anchor not in anchors


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_links_in_the_documentation_lead_to_files_and_headings(page: Path) -> None:
    local = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in local if leads_nowhere(link, page.parent)] == []


def test_every_convention_that_results_record_is_written_down() -> None:
    section = (ROOT / "docs" / "metrics.md").read_text().partition("\n## Conventions\n")[2].partition("\n## ")[0]
    phrases = [phrase for text in CONVENTIONS.values() for phrase in text.removesuffix(" crop").split(", ")]
    assert [phrase for phrase in phrases if phrase not in section] == []


def test_help_of_checks_leads_to_headings() -> None:
    assert [link for link in pipeline.PAGES if leads_nowhere(link, ROOT)] == []
    assert leads_nowhere("docs/ci.md#gone", ROOT)


def test_a_name_that_is_gone_is_noticed() -> None:
    text = "`auditkit/gone.py`, `model.read.gone`, `auditkit.gone.read`, `model.read.read`, `docs/metrics.md`, `a.b`"
    assert missing(text) == ["auditkit/gone.py", "model.read.gone", "auditkit.gone.read"]


def test_every_package_is_described() -> None:
    architecture = (ROOT / "docs" / "architecture.md").read_text()
    assert [name for name in sorted(PACKAGES) if f"`auditkit/{name}" not in architecture] == []
