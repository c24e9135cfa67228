"""What is remembered of files is used as long as they are the same, and not longer."""

import hashlib
import os
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import numpy as np
import pytest
from PIL import Image

from auditkit.data import file_digests
from auditkit.data.dataset import Dataset
from auditkit.data.file_digests import remembered
from tests.support import mounts, onnx_models
from tests.support.commands import auditkit as command


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file on a local disk whose digest another process has kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(file_digests, "_SETTLED_NS", -(10**12))  # files count as old at once
    mounts.pretend(monkeypatch, tmp_path)
    file = tmp_path / "a.png"
    file.write_bytes(b"one content")
    assert file_digests.file_digests([file]) == [_digest(file)]
    monkeypatch.setattr(file_digests, "_digests", {})
    return file


@pytest.mark.parametrize("what", ["st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns"])
def test_another_file_with_the_same_path_and_times_has_its_own_digest(
    cached: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As after another disk was mounted there, whose author chose sizes and times."""
    status, stat = cached.stat(), Path.stat
    facts = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
    facts[what] += 1
    cached.write_bytes(b"two content")
    monkeypatch.setattr(
        Path, "stat", lambda path, **options: SimpleNamespace(**facts) if path == cached else stat(path, **options)
    )
    assert file_digests.file_digests([cached]) == [_digest(cached)]


@pytest.mark.parametrize(
    ("kind", "options", "used"),
    [
        ("ext4", "rw", True),
        ("xfs", "rw,noquota", True),
        ("tmpfs", "rw", True),
        ("ext4", "ro", False),
        ("squashfs", "ro", False),
        ("overlay", "rw", False),
        ("nfs4", "rw", False),
        ("cifs", "rw", False),
        ("9p", "rw", False),
        ("fuse.sshfs", "rw", False),
    ],
)
def test_digests_are_kept_for_local_disks_only(
    cached: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: str, used: bool
) -> None:
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: hashlib.sha256(b"read"))
    mounts.pretend(monkeypatch, cached.parent, kind, options)
    read = hashlib.sha256(b"read").digest()
    assert file_digests.file_digests([cached]) == [_digest(cached) if used else read]
    facts = iter(["first", "second"])
    answers = [remembered("about", [cached], lambda: next(facts)) for _ in range(2)]
    assert answers == (["first", "first"] if used else ["first", "second"])


def test_nothing_is_kept_where_mounts_are_unknown_or_loop_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_digests, "_MOUNTS", tmp_path / "mountinfo")
    assert file_digests.local_devices() == frozenset()
    (tmp_path / "mountinfo").write_text(
        "29 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 29 7:0 / /data rw - ext4 /dev/loop0 rw\n"
        "31 29 0:50 / /proc rw - proc proc rw\n"
    )
    assert file_digests.local_devices() == {os.makedev(8, 1)}


@pytest.mark.parametrize("odd", ["\x0b", "\x0c", "\r", "\x1c", "\x85", "\u2028", "\udcff"])
def test_a_mount_of_any_name_hides_no_other(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    odd: str,
) -> None:
    lines = [
        f"29 1 8:1 / /a{odd}b rw - ext4 {odd}dev{odd}a rw",
        f"30 1 8:2 / /x{odd}y rw shared:1 - ext4 - ro",
        "31 1 8:3 / / rw - xfs  rw",
        "what a later system may say",
    ]
    (tmp_path / "mountinfo").write_bytes(os.fsencode("\n".join([*lines, ""])))
    monkeypatch.setattr(file_digests, "_MOUNTS", tmp_path / "mountinfo")
    assert file_digests.local_devices() == {os.makedev(8, 1), os.makedev(8, 3)}


def test_no_digest_is_remembered_of_a_file_that_changes_while_it_is_read(
    cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.file_digest

    def changing(stream: BinaryIO, name: str) -> "hashlib._Hash":
        value = digest(stream, name)
        cached.write_bytes(b"much more content")
        return value

    monkeypatch.setattr(hashlib, "file_digest", changing)
    file_digests.file_digests([cached], fresh=True)
    assert file_digests._digests == {}


def test_a_file_that_is_exchanged_before_it_is_opened_is_remembered_as_itself(
    cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link leads elsewhere for the moment of reading, and back."""
    folders = [cached.parent / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        (folder / "b.png").write_text(folder.name)
    link, opened = cached.parent / "link", file_digests.open_regular

    def elsewhere(path: Path) -> BinaryIO:
        link.unlink()
        link.symlink_to(folders[1])
        stream = opened(path)
        link.unlink()
        link.symlink_to(folders[0])
        return stream

    link.symlink_to(folders[0])
    with monkeypatch.context() as patch:
        patch.setattr(file_digests, "open_regular", elsewhere)
        assert file_digests.file_digests([link / "b.png"]) == [_digest(folders[1] / "b.png")]
    monkeypatch.setattr(file_digests, "_digests", {})
    assert file_digests.file_digests([link / "b.png"]) == [_digest(folders[0] / "b.png")]


def test_a_digest_is_kept_only_if_the_file_was_settled_before_it_was_read(
    cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading may take longer than a file takes to count as old."""
    monkeypatch.setattr(file_digests, "_SETTLED_NS", 0)
    file, digest = cached.with_name("b.png"), hashlib.file_digest
    file.write_text("b")
    begin = file.stat().st_mtime_ns - 1
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: begin)

        def slow(stream: BinaryIO, name: str) -> "hashlib._Hash":
            patch.setattr(time, "time_ns", lambda: begin + 10**12)
            return digest(stream, name)

        patch.setattr(hashlib, "file_digest", slow)
        file_digests.file_digests([file])
    version = file_digests.file_version(file)
    assert version is not None
    assert file_digests._load([version]) == {}


def test_a_cache_of_an_earlier_version_is_not_used(cached: Path) -> None:
    status = cached.stat()
    version = str((status.st_size, status.st_mtime_ns, status.st_ctime_ns))  # without device and inode
    with sqlite3.connect(cached.parent / "cache" / "auditkit" / "cache.sqlite") as database:
        row = (os.fsencode(cached), version, hashlib.sha256(b"other").digest())
        database.execute("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", row)
    database.close()
    assert file_digests.file_digests([cached]) == [_digest(cached)]


def _forge(file: Path, digest: bytes) -> None:
    """Let the cache, and this process, remember that digest of a file."""
    version = file_digests.file_version(file)
    assert version is not None
    forged = {version: digest}
    file_digests._save(forged, time.time_ns())
    file_digests._digests.update(forged)


def test_a_fresh_digest_reads_the_file_and_corrects_the_cache(cached: Path) -> None:
    _forge(cached, hashlib.sha256(b"other").digest())
    dataset = Dataset.from_files([cached])
    forged = dataset.digest()
    assert dataset.digest(fresh=True) != forged
    assert dataset.digest() == dataset.digest(fresh=True)
    assert file_digests.file_digests([cached]) == [_digest(cached)]
    assert file_digests._load([*file_digests._digests]) == file_digests._digests


def test_a_fresh_fact_is_found_out_again(cached: Path) -> None:
    facts = iter(["first", "second"])
    assert remembered("about", [cached], lambda: next(facts)) == "first"
    assert remembered("about", [cached], lambda: next(facts), fresh=True) == "second"
    assert remembered("about", [cached], lambda: next(facts)) == "second"


def test_verify_reads_every_file_whatever_is_remembered(cached: Path) -> None:
    """The cache says of an exchanged image, and of all others, that they are those of the run."""
    folder, model = cached.parent, onnx_models.save(onnx_models.convnet(size=8, classes=4), cached.parent)
    images, run = folder / "images", folder / "run"
    images.mkdir()
    for shade in range(3):
        Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(images / f"{shade}.png")
    words = ("evaluate", model, images, "-o", run, "--preset", "unit", "--steps", "4")
    assert command(*words).returncode == 0
    recorded = _digest(images / "0.png")
    Image.fromarray(np.full((8, 8, 3), 9, np.uint8)).save(images / "0.png")
    _forge(images / "0.png", recorded)
    done = command("verify", run, "--model", model, "--images", images)
    assert done.returncode == 5, done
    assert "the digests differ" in " ".join(done.stdout.split())


def test_a_fact_is_remembered_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("auditkit.data.file_digests._SETTLED_NS", -(10**12))  # files count as old at once
    mounts.pretend(monkeypatch, tmp_path)
    file, facts = tmp_path / "a", iter(["first", "second", "third"])
    file.write_text("a")
    answers = [remembered("about", [file], lambda: next(facts)) for _ in range(2)]
    answers.append(remembered("something else", [file], lambda: next(facts)))
    status = file.stat()
    file.write_text("b")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    answers.append(remembered("about", [file], lambda: next(facts)))
    assert answers == ["first", "first", "second", "third"]


def test_no_fact_is_remembered_of_a_file_that_is_exchanged_meanwhile(cached: Path) -> None:
    """A link leads elsewhere while the fact is found out, and later back."""
    link, other = cached.with_name("link"), cached.with_name("b.png")
    other.write_text("b")

    def lead_to(file: Path) -> str:
        link.unlink(missing_ok=True)
        link.symlink_to(file)
        return f"of {link.resolve().name}"

    lead_to(cached)
    assert remembered("about", [link], lambda: lead_to(other)) == "of b.png"
    lead_to(cached)
    assert remembered("about", [link], lambda: "of a.png") == "of a.png"


def test_a_file_that_may_still_change_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, facts = tmp_path / "a", iter(["first", "second", "third"])
    file.write_text("a")
    assert [remembered("about", [file], lambda: next(facts)) for _ in range(2)] == ["first", "second"]
    assert remembered("about", [tmp_path / "missing"], lambda: next(facts)) == "third"
