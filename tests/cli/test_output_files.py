"""Files that the user names with -o: plain files are written, and nothing is written through a link."""

from pathlib import Path

import pytest

from auditkit.runs.folder import checksums
from tests.report.test_html import made_run
from tests.support.commands import auditkit, refused

COMMANDS = {
    "report": ("report", "run", "-f", "junit", "-o", "file"),
    "page": ("report", "run", "-o", "file"),
    "compare": ("compare", "run", "run", "-o", "file"),
    "policy": ("policy", "init", "--force", "-o", "file"),
    "archive": ("archive", "run", "-o", "file"),
}  # fmt: skip


@pytest.mark.parametrize("dangling", [True, False])
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str, dangling: bool) -> None:
    checksums.write(made_run(tmp_path / "run"))
    if not dangling:
        (tmp_path / "diary").write_text("years of work")
    (tmp_path / "file").symlink_to(tmp_path / "diary")
    refused(auditkit(*COMMANDS[name], folder=tmp_path), "file")
    assert (tmp_path / "file").is_symlink()
    assert (tmp_path / "diary").exists() is not dangling
    assert dangling or (tmp_path / "diary").read_text() == "years of work"


@pytest.mark.parametrize("name", ["report", "page", "compare", "policy"])
def test_a_plain_file_is_replaced(tmp_path: Path, name: str) -> None:
    checksums.write(made_run(tmp_path / "run"))
    (tmp_path / "file").write_text("an earlier one")
    assert auditkit(*COMMANDS[name], folder=tmp_path).returncode == 0
    assert "an earlier one" not in (tmp_path / "file").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run"]
