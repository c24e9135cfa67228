"""Archives: one form of a run, whose bytes anyone can make again, and nothing else is unpacked."""

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from auditkit.errors import BadInput
from auditkit.evidence import archive
from auditkit.verdict.verify import verify
from tests.support.commands import auditkit, refused

Members = dict[str, bytes]


@pytest.fixture(scope="module")
def packed(audited: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "run.tar"
    archive.write(audited / "run", path)
    return path


def _files(folder: Path) -> Members:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_the_same_run_gives_the_same_bytes_and_comes_out_again(audited: Path, packed: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(audited / "run", tmp_path / "another name"))
    (copy / "SHA256SUMS").touch()
    assert auditkit("archive", copy, "-o", tmp_path / "b.tar").stdout == f"{tmp_path / 'b.tar'}\n"
    assert (tmp_path / "b.tar").read_bytes() == packed.read_bytes()
    with archive.unpacked(packed) as folder:
        assert _files(folder) == _files(audited / "run")
    assert not folder.exists()


def test_tar_reads_it(audited: Path, packed: Path) -> None:
    with tarfile.open(packed) as tar:
        names = tar.getnames()
        report = tar.extractfile("report.html")
        assert report is not None
        assert report.read() == (audited / "run" / "report.html").read_bytes()
    assert names == sorted(_files(audited / "run"))


def test_it_verifies_like_the_folder(audited: Path, packed: Path) -> None:
    originals = ("--model", audited / "model.onnx", "--images", audited / "images.npz", "--maps", 1)
    done = auditkit("verify", packed, *originals)
    assert done.returncode == 0
    assert f"{packed} holds" in " ".join(done.stdout.split())
    assert auditkit("verify", packed).returncode == 3


def _tar(change: Callable[[list[tarfile.TarInfo], Members], None]) -> Callable[[Path, Members], bytes]:
    """An archive that another program writes, with changed entries."""

    def write(_path: Path, files: Members) -> bytes:
        entries = []
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size = len(files[name])
            entries.append(entry)
        change(entries, files)
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for entry in entries:
                tar.addfile(entry, io.BytesIO(files.get(entry.name, b"")[: entry.size]))
        return stream.getvalue()

    return write


def _added(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = ""
) -> Callable[[list[tarfile.TarInfo], Members], None]:
    def change(entries: list[tarfile.TarInfo], _files: Members) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, link
        entries.append(entry)

    return change


def _in_padding(path: Path, files: Members) -> bytes:
    content, (first, *_) = bytearray(path.read_bytes()), sorted(files)
    assert len(files[first]) % 512
    content[512 + len(files[first])] = 1
    return bytes(content)


HOSTILE: dict[str, Callable[[Path, Members], bytes]] = {
    "a path out of the folder": _tar(_added("../zz")),
    "an absolute path": _tar(_added("/zz")),
    "a link": _tar(_added("zz", tarfile.SYMTYPE, "/etc/passwd")),
    "a hard link": _tar(_added("zz", tarfile.LNKTYPE, "run.json")),
    "a device": _tar(_added("zz", tarfile.CHRTYPE)),
    "a folder": _tar(_added("zz", tarfile.DIRTYPE)),
    "a name twice": _tar(_added("run.json")),
    "a name with a control character": _tar(_added("z\x1b[31m")),
    "another order": _tar(lambda entries, _files: entries.reverse()),
    "an owner": _tar(lambda entries, _files: setattr(entries[0], "uid", 1000)),
    "a time": _tar(lambda entries, _files: setattr(entries[0], "mtime", 1)),
    "torn": lambda path, _files: path.read_bytes()[:-2000],
    "torn in a file": lambda path, _files: path.read_bytes()[:700],
    "more after its end": lambda path, _files: path.read_bytes() + b"hidden",
    "blocks after its end": lambda path, _files: path.read_bytes() + bytes(512),
    "two archives": lambda path, _files: path.read_bytes() * 2,
    "a file of eight gigabytes": lambda _path, _files: archive._header("zz", 8**11 - 1) + bytes(1024),
    "a negative size": lambda _path, _files: archive._header("zz", -1) + bytes(1024),
    "hidden in the padding": _in_padding,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_else_is_unpacked(audited: Path, packed: Path, tmp_path: Path, name: str) -> None:
    hostile = tmp_path / "hostile.tar"
    hostile.write_bytes(HOSTILE[name](packed, _files(audited / "run")))
    found = verify(hostile)
    assert found.answer == "does not hold"
    (problem,) = found.problems
    assert problem.startswith(f"{hostile} is not an archive as auditkit writes it: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hostile.tar"]


def test_a_changed_file_in_an_archive_does_not_hold(packed: Path, tmp_path: Path) -> None:
    content = packed.read_bytes()
    position = content.index(b"<!doctype html>") if b"<!doctype html>" in content else content.index(b"<html")
    changed = tmp_path / "changed.tar"
    changed.write_bytes(content[: position + 2] + b"X" + content[position + 3 :])
    assert "report.html was changed" in verify(changed).problems


def test_a_sparse_archive_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse.tar").open("wb") as stream:
        stream.write(archive._header("a", 8 * 2**30 - 1024))
        stream.truncate(8 * 2**30)
    (problem,) = verify(tmp_path / "sparse.tar").problems
    assert "hardly any of its bytes are on the disk" in problem


def test_what_cannot_be_archived_is_refused_in_a_sentence(run: Path, packed: Path, tmp_path: Path) -> None:
    refused(auditkit("archive", run, "-o", packed), "will not be overwritten")
    (run / "report.html").write_text("changed")
    refused(auditkit("archive", run, "-o", tmp_path / "a.tar"), "report.html was changed")
    (run / "SHA256SUMS").unlink()
    refused(auditkit("archive", run, "-o", tmp_path / "a.tar"), "it is not finished")
    (tmp_path / "text").write_text("no archive")
    refused(auditkit("verify", tmp_path / "text"), "neither the folder of a run nor its archive")
    with archive.unpacked(packed) as folder, pytest.raises(BadInput, match="cannot be written"):
        archive.write(folder, tmp_path / "none" / "a.tar")
