"""The documentation names files, functions and commands that exist, and its links lead somewhere."""

import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import auditkit
from auditkit.cli.main import app
from auditkit.errors import BadInput
from auditkit.report import pipeline
from auditkit.runs.evaluation.settings import CONVENTIONS

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
GUIDE = ROOT / "docs" / "guide.md"
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


def commands(text: str) -> list[str]:
    """The auditkit commands in indented blocks and in fenced blocks of sh."""
    fenced = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return re.findall(r"^ {4}(auditkit .*)$", text, re.MULTILINE) + [
        line for block in fenced for line in block.splitlines() if line.startswith("auditkit ")
    ]


def parse(line: str) -> str:
    """The name of the command in a line, whose options are read as if it was run."""
    words = shlex.split(line, comments=True)[1:]
    verb: Any = typer.main.get_command(app)
    context = verb.context_class(verb)
    names = []
    while hasattr(verb, "commands"):
        names.append(words.pop(0))
        verb = verb.commands[names[-1]]
        is_group = hasattr(verb, "commands")
        context = verb.make_context(names[-1], words[:1] if is_group else words, parent=context)
    return " ".join(names)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the ours.toml of the guide."""
    block = GUIDE.read_text().partition("the command line wins:\n")[2].partition("\nNo config")[0]
    (tmp_path / "ours.toml").write_text(block)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_commands_in_the_documentation_exist_with_these_options(page: Path) -> None:
    for line in commands(page.read_text()):
        parse(line)


@pytest.mark.usefixtures("config")
def test_the_documentation_shows_every_command() -> None:
    shown = {parse(line) for page in [*PAGES, ROOT / "README.md"] for line in commands(page.read_text())}
    verbs: Any = typer.main.get_command(app)
    names = {
        f"{name} {inner}".strip() for name, verb in verbs.commands.items() for inner in getattr(verb, "commands", [""])
    }
    assert names - shown == {"demo"}  # shown as `make demo`


@pytest.mark.usefixtures("config")
def test_a_command_or_an_option_that_is_gone_is_noticed(tmp_path: Path) -> None:
    for line in ("auditkit gone", "auditkit policy gone"):
        with pytest.raises(KeyError):
            parse(line)
    with pytest.raises(Exception, match="No such option"):
        parse("auditkit report run --gone")
    (tmp_path / "ours.toml").write_text("[audit]\ngone = 1\n")
    with pytest.raises(BadInput, match="unknown key 'gone'"):
        parse("auditkit audit vendor.onnx images/ --config ours.toml")


def test_every_package_is_described() -> None:
    architecture = (ROOT / "docs" / "architecture.md").read_text()
    assert [name for name in sorted(PACKAGES) if f"`auditkit/{name}" not in architecture] == []
