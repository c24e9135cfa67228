"""What is remembered of files is used as long as they are the same, and not longer."""

import os
from pathlib import Path

import pytest

from auditkit.data.file_digests import remembered


def test_a_fact_is_remembered_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("auditkit.data.file_digests._SETTLED_NS", -(10**12))  # files count as old at once
    file, facts = tmp_path / "a", iter(["first", "second", "third"])
    file.write_text("a")
    answers = [remembered("about", [file], lambda: next(facts)) for _ in range(2)]
    answers.append(remembered("something else", [file], lambda: next(facts)))
    status = file.stat()
    file.write_text("b")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    answers.append(remembered("about", [file], lambda: next(facts)))
    assert answers == ["first", "first", "second", "third"]


def test_a_file_that_may_still_change_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, facts = tmp_path / "a", iter(["first", "second", "third"])
    file.write_text("a")
    assert [remembered("about", [file], lambda: next(facts)) for _ in range(2)] == ["first", "second"]
    assert remembered("about", [tmp_path / "missing"], lambda: next(facts)) == "third"
