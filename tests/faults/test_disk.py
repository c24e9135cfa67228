"""Disks that are full, folders that cannot be written, and parts that are torn: one sentence, and nothing is lost."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from auditkit.data.atomic_write import temporary_name
from auditkit.runs.explanation.record import RECORD, Record
from auditkit.runs.folder import parquet, store
from auditkit.runs.folder.names import UNFINISHED
from tests.support.interruptions import Undisturbed


@pytest.mark.parametrize("writes", [1, 6])
@pytest.mark.parametrize("name", ["explain", "evaluate"])
def test_a_full_disk_is_one_sentence_and_nothing_is_lost(
    undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, writes: int
) -> None:
    """After so many writes nothing reaches the disk any more."""
    out, fsync, left = tmp_path / "out", os.fsync, iter(range(writes))

    def full(descriptor: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        done = undisturbed.run(name, out)
    assert done.returncode == 4, done
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "No space left on device" in done.stderr
    assert undisturbed.run(name, out).returncode == 0
    undisturbed.check_same(name, out)


@pytest.mark.parametrize("name", ["explain", "evaluate"])
@pytest.mark.parametrize("kind", ["read-only", "file"])
def test_a_folder_that_cannot_be_written_is_one_sentence(
    undisturbed: Undisturbed, tmp_path: Path, name: str, kind: str
) -> None:
    folder = tmp_path / "folder"
    if kind == "file":
        folder.write_text("a file in the place of a folder")
    else:
        folder.mkdir(mode=0o500)
        if os.access(folder, os.W_OK):
            pytest.skip("this user may write everywhere")
    done = undisturbed.run(name, folder / "out")
    assert done.returncode in (2, 4), done
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert str(folder) in done.stderr


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _torn_part(out: Path) -> None:
    _cut(next((out / "items").glob("*.parquet")))
    (out / "results.json").unlink()


def _torn_record(out: Path) -> None:
    with (out / RECORD).open("ab") as stream:
        stream.write((out / RECORD).read_bytes().splitlines()[-1][:-9])


def _torn_manifest(out: Path) -> None:
    """The maps of the last line of the record are not named, but for the beginning of a line."""
    maps = Record.of(out).parts[-1].maps
    lines = (out / "manifest.csv").read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.split(",")[0] not in maps]
    (out / "manifest.csv").write_text("".join(kept) + "7,1")


def _stale_checkpoint(out: Path) -> None:
    """As if the last run had been killed after its last map."""
    (out / UNFINISHED).write_bytes(b"")
    (out / temporary_name()).write_bytes(b"")


def _torn_checkpoint(out: Path) -> None:
    (out / UNFINISHED).write_bytes(b"PK\x03\x04 torn")
    _torn_manifest(out)


@pytest.mark.parametrize(("name", "tear"), [
    ("evaluate", _torn_part), ("explain", _torn_record), ("explain", _torn_manifest), ("explain", _torn_checkpoint),
    ("explain", _stale_checkpoint),
])  # fmt: skip
def test_what_is_torn_is_made_again(
    undisturbed: Undisturbed, tmp_path: Path, name: str, tear: Callable[[Path], None]
) -> None:
    out = Path(shutil.copytree(undisturbed.output(name), tmp_path / "out"))
    tear(out)
    assert undisturbed.run(name, out).returncode == 0
    undisturbed.check_same(name, out)


def test_a_read_only_folder_is_said(undisturbed: Undisturbed, small_disk: Path) -> None:
    subprocess.run([shutil.which("mount") or "mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = undisturbed.run("audit", small_disk / "run")
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert "Read-only file system" in line


def test_a_full_disk_loses_nothing(undisturbed: Undisturbed, small_disk: Path) -> None:
    out = small_disk / "run"
    done = undisturbed.run("audit", out)
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert "No space left" in line
    kept = sorted(path.name for path in (out / "items").glob("*.parquet"))
    subprocess.run([shutil.which("mount") or "mount", "-o", "remount,size=50m", str(small_disk)], check=True)
    assert undisturbed.run("audit", out).returncode == 0
    assert set(kept) <= {path.name for path in (out / "items").iterdir()}
    undisturbed.check_same("audit", out)


def test_a_finished_run_is_resumed_by_its_list_of_parts(
    undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures are decoded once, for the summary; if a part is damaged, all are looked at and it is made again."""
    out, decode, decoded = Path(shutil.copytree(undisturbed.output("evaluate"), tmp_path / "out")), parquet.decoded, []

    def counting(key: str, content: bytes, columns: Sequence[str] | None) -> object:
        if columns is None or "insertion" in columns:
            decoded.append(key)
        return decode(key, content, columns)

    monkeypatch.setattr(store, "decoded", counting)
    parts = sorted((out / "items").iterdir())
    assert undisturbed.run("evaluate", out).returncode == 0
    assert len(decoded) == len(parts)
    for part in parts[:2]:
        _cut(part)
    assert undisturbed.run("evaluate", out).returncode == 0
    undisturbed.check_same("evaluate", out)
