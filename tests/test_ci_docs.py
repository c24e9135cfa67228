"""The workflow and the job of docs/ci.md fit the published schemas, and their commands exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML

from auditkit.cli.main import app
from auditkit.report.formats import FORMATS
from auditkit.runs.folder.results import EXIT_CODES
from auditkit.verdict.policy_file import read_policy

PAGE = (Path(__file__).parents[1] / "docs" / "ci.md").read_text()
WORKFLOW, JOB = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
SCHEMAS = {"vendor.github-workflows": WORKFLOW, "vendor.gitlab-ci": JOB}  # that check-jsonschema brings along


def fits(text: str, schema: str, folder: Path) -> bool:
    (folder / "file.yml").write_text(text)
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(folder / "file.yml")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(("schema", "good", "bad"), [
    ("vendor.github-workflows", "runs-on:", "run-on:"), ("vendor.gitlab-ci", "junit:", "junit-xml:"),
])  # fmt: skip
def test_the_examples_fit_the_published_schemas(schema: str, good: str, bad: str, tmp_path: Path) -> None:
    assert fits(SCHEMAS[schema], schema, tmp_path)
    assert not fits(SCHEMAS[schema].replace(good, bad), schema, tmp_path)


def commands(node: Any) -> list[list[str]]:
    """The auditkit commands in what was read from YAML."""
    if isinstance(node, str):
        return [shlex.split(line.partition(">>")[0])[1:] for line in node.splitlines() if line.startswith("auditkit ")]
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [command for part in parts for command in commands(part)]


@pytest.mark.parametrize("text", [WORKFLOW, JOB], ids=["github", "gitlab"])
def test_the_commands_exist_with_these_options(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "classifier.onnx").touch()
    for folder in ("audit-images", "run"):
        (tmp_path / folder).mkdir()
    verbs: Any = typer.main.get_command(app)
    forms = []
    for verb, *words in commands(YAML(typ="safe").load(text)):
        given = verbs.commands[verb].make_context(verb, list(words)).params
        if verb == "audit":
            read_policy(given["policy"])
        else:
            forms.append(given["form"])
    assert set(forms) >= {"junit", "sarif"}
    assert set(forms) <= set(FORMATS)


def test_the_page_explains_every_exit_code_of_an_audit() -> None:
    explained = set(re.findall(r"^\| (\d) \|", PAGE, re.MULTILINE))
    assert explained == {*map(str, EXIT_CODES.values()), "2", "4"}
