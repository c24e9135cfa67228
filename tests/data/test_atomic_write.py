"""Writes: a file has its old content or its new one, and nothing outside its folder is touched."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from auditkit.data import atomic_write
from auditkit.data.atomic_write import (
    append,
    create,
    make_folder,
    open_to_append,
    remove,
    remove_folder,
    remove_left_overs,
    replace_file,
    temporary_name,
    write_whole,
)
from auditkit.errors import BadInput

WRITES: dict[str, Callable[[Path, Path], object]] = {
    "replace": lambda path, root: replace_file(path, b"new", root=root),
    "create": lambda path, root: create(path, b"new", root=root),
    "append": lambda path, root: append(path, b"new", root=root),
    "make a folder": lambda path, root: make_folder(path, root=root),
    "remove": lambda path, root: remove(path, root=root),
    "remove a folder": lambda path, root: remove_folder(path, root=root),
}


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    """A file of the user, in a folder of its own."""
    (tmp_path / "outside").mkdir()
    path = tmp_path / "outside" / "diary.txt"
    path.write_text("years of work")
    return path


@pytest.mark.parametrize("descriptors", [True, False], ids=["from the folder", "by path"])
@pytest.mark.parametrize("name", WRITES)
def test_no_link_inside_the_named_folder_is_followed(
    tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch, name: str, descriptors: bool
) -> None:
    monkeypatch.setattr(atomic_write, "_BENEATH", descriptors)
    root = tmp_path / "run"
    root.mkdir()
    (root / "gallery").symlink_to(diary.parent)
    for inner in ("diary.txt", "photos"):
        with pytest.raises(OSError, match="gallery is a link"):
            WRITES[name](root / "gallery" / inner, root)
    assert [path.name for path in diary.parent.iterdir()] == [diary.name]
    assert diary.read_text() == "years of work"


@pytest.mark.parametrize("descriptors", [True, False], ids=["from the folder", "by path"])
@pytest.mark.parametrize("name", WRITES)
def test_no_path_leads_up_out_of_the_named_folder(
    tmp_path: Path,
    diary: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    descriptors: bool,
) -> None:
    monkeypatch.setattr(atomic_write, "_BENEATH", descriptors)
    root = tmp_path / "run"
    root.mkdir()
    for inner in ("diary.txt", "photos/2024"):
        with pytest.raises(OSError, match="it is not named by its place in"):
            WRITES[name](root / ".." / "outside" / inner, root)
    assert [path.name for path in diary.parent.iterdir()] == [diary.name]
    assert diary.read_text() == "years of work"


def test_the_named_folder_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    replace_file(tmp_path / "run" / "gallery" / "a.png", b"new", root=tmp_path / "run")
    assert (tmp_path / "disk" / "gallery" / "a.png").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["replace", "create", "append"])
@pytest.mark.parametrize("dangling", [True, False])
def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path, diary: Path, name: str, dangling: bool) -> None:
    target = tmp_path / "nothing" if dangling else diary
    (tmp_path / "file").symlink_to(target)
    with pytest.raises(OSError, match=r"it is a link|File exists"):
        WRITES[name](tmp_path / "file", tmp_path)
    assert diary.read_text() == "years of work"
    assert not (tmp_path / "nothing").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "outside"]


@pytest.mark.parametrize("name", ["replace", "append"])
def test_a_pipe_in_place_of_the_file_does_not_block(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "file")
    with pytest.raises(OSError, match="a pipe, not a regular file"):
        WRITES[name](tmp_path / "file", tmp_path)


def test_nothing_is_added_to_a_file_with_a_second_name(tmp_path: Path, diary: Path) -> None:
    os.link(diary, tmp_path / "log")
    with pytest.raises(OSError, match="a hard link"):
        append(tmp_path / "log", b"new")
    replace_file(tmp_path / "log", b"new")
    assert diary.read_text() == "years of work"


def test_a_planted_name_is_not_the_one_that_is_written_first(
    tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if somebody guesses it, what is there already is refused."""
    monkeypatch.setattr(atomic_write, "temporary_name", lambda: ".guessed.part")
    (tmp_path / ".guessed.part").symlink_to(diary)
    with pytest.raises(BadInput, match="file cannot be written: File exists"):
        write_whole(tmp_path / "file", b"new", BadInput)
    assert diary.read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".guessed.part", "outside"]


def test_only_files_that_a_killed_writer_left_are_removed(tmp_path: Path) -> None:
    kept = {"notes.tmp", ".notes.part", f"{temporary_name()}.bak"}
    for name in (*kept, temporary_name()):
        (tmp_path / name).write_text("x")
    remove_left_overs(tmp_path, root=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, diary: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"new"
        raise OSError(28, "No space left on device")

    for write in (replace_file, create):
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path / "file", chunks())
    with pytest.raises(OSError, match="No space left"):
        replace_file(diary, chunks())
    assert diary.read_text() == "years of work"
    assert [path.name for path in tmp_path.rglob("*")] == ["outside", "diary.txt"]


def test_a_file_is_opened_at_its_end(tmp_path: Path) -> None:
    assert append(tmp_path / "log", b"one\n") == 4
    assert append(tmp_path / "log", b"two\n") == 8
    with open_to_append(tmp_path / "log") as stream:
        stream.truncate(4)
    assert (tmp_path / "log").read_bytes() == b"one\n"
