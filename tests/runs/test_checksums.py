"""SHA256SUMS lists a run whole, and other people's tools read it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from auditkit.data.atomic_write import temporary_name
from auditkit.errors import BadInput
from auditkit.runs.folder import checksums

SHA256SUM = shutil.which("sha256sum")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    for name in ("run.json", "results.json", "items/a.parquet", "items/b.parquet", "maps/deep/0.npy"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_every_file_is_listed_but_the_lock_and_what_a_killed_writer_left(run: Path) -> None:
    for name in (".lock", temporary_name(), f"items/{temporary_name()}", f"items/{'0' * 64}.parquet.damaged"):
        (run / name).write_text("x")
    aside = run / temporary_name()
    aside.mkdir()
    (aside / "bundle.json").write_text("{}")
    checksums.write(run)
    assert list(checksums.read(run)) == [
        "items/a.parquet",
        "items/b.parquet",
        "maps/deep/0.npy",
        "results.json",
        "run.json",
    ]
    assert checksums.check(run) == []


def test_equal_runs_have_equal_lists(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for path in sorted((p for p in run.rglob("*") if p.is_file()), reverse=True):
        (other / path.relative_to(run)).parent.mkdir(parents=True, exist_ok=True)
        (other / path.relative_to(run)).write_bytes(path.read_bytes())
    checksums.write(run)
    checksums.write(other)
    assert (run / checksums.SUMS).read_bytes() == (other / checksums.SUMS).read_bytes()


def test_written_twice_it_does_not_list_itself(run: Path) -> None:
    checksums.write(run)
    before = (run / checksums.SUMS).read_bytes()
    checksums.write(run)
    assert (run / checksums.SUMS).read_bytes() == before


@pytest.mark.skipif(SHA256SUM is None, reason="needs sha256sum")
def test_sha256sum_reads_it_whatever_the_names(run: Path) -> None:
    for name in (b"back\\slash", b"new\nline", b"\\n", b" two  words ", b"*star", b"gr\xfc\xdfe", "größe".encode()):
        Path(os.fsdecode(os.path.join(os.fsencode(run), name))).write_bytes(name)
    checksums.write(run)
    assert checksums.check(run) == []
    done = subprocess.run([str(SHA256SUM), "--strict", "-c", checksums.SUMS], cwd=run, capture_output=True, check=False)
    assert done.returncode == 0, done
    assert done.stdout.count(b": OK") == len(checksums.read(run)) == 12


@pytest.mark.skipif(SHA256SUM is None, reason="needs sha256sum")
def test_it_is_what_sha256sum_writes(run: Path) -> None:
    (run / "new\nline").write_text("x")
    checksums.write(run)
    names = list(checksums.read(run))
    done = subprocess.run([str(SHA256SUM), "--", *names], cwd=run, capture_output=True, check=True)
    assert done.stdout == (run / checksums.SUMS).read_bytes()


def test_what_was_changed_removed_or_added_is_named_all_at_once(run: Path) -> None:
    checksums.write(run)
    (run / "items" / "a.parquet").write_text("other")
    (run / "results.json").unlink()
    (run / "report.html").write_text("a finer one")
    assert checksums.check(run) == [
        "items/a.parquet was changed",
        "report.html is not listed in SHA256SUMS",
        "results.json is missing",
    ]


def test_a_missing_list_is_a_problem(run: Path) -> None:
    assert checksums.check(run) == ["SHA256SUMS is missing"]


@pytest.mark.parametrize(
    "line",
    ["", "no digest", "0" * 63 + "  run.json", "0" * 64 + "  ../run.json", "0" * 64 + "  /etc/passwd",
     "0" * 64 + "  ./run.json", "0" * 64 + "  "],
)  # fmt: skip
def test_a_damaged_list_says_where(run: Path, line: str) -> None:
    checksums.write(run)
    with (run / checksums.SUMS).open("a") as stream:
        stream.write(line + "\n")
    (problem,) = checksums.check(run)
    assert "line 6" in problem


def test_a_file_listed_twice_is_refused(run: Path) -> None:
    checksums.write(run)
    content = (run / checksums.SUMS).read_bytes()
    (run / checksums.SUMS).write_bytes(content + content.splitlines(keepends=True)[-1])
    assert "line 6" in checksums.check(run)[0]


def test_a_torn_last_line_is_found(run: Path) -> None:
    checksums.write(run)
    content = (run / checksums.SUMS).read_bytes()
    (run / checksums.SUMS).write_bytes(content[:-1])
    assert checksums.check(run)


def test_links_are_neither_followed_nor_passed_over(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("x")
    (run / "items" / "c.parquet").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match=r"c\.parquet is a link"):
        checksums.write(run)
    (run / "items" / "c.parquet").unlink()
    checksums.write(run)
    (run / "run.json").unlink()
    (run / "run.json").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in checksums.check(run)[0]


def test_a_folder_that_is_a_link_is_found(run: Path, tmp_path: Path) -> None:
    checksums.write(run)
    (run / "maps").rename(tmp_path / "maps")
    (run / "maps").symlink_to(tmp_path / "maps")
    assert "is a link" in checksums.check(run)[0]
