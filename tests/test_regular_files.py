"""Files that others made are known for what they are before they are read."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from auditkit import regular_files
from auditkit.regular_files import is_sparse

SIZE = 2**26


def _file(path: Path, data: int, size: int = SIZE) -> Path:
    """A file of that size, with data in its middle alone."""
    with path.open("wb") as stream:
        stream.truncate(size)
        stream.seek(size // 2)
        stream.write(b"a" * data)
    return path


@pytest.mark.parametrize(
    ("data", "size", "sparse"),
    [(0, SIZE, True), (2**16, SIZE, True), (2**21, SIZE, False), (0, 2**20, False)],
    ids=["a hole", "little data", "enough data", "a small hole"],
)
def test_a_sparse_file_is_large_and_has_hardly_any_data(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    data: int,
    size: int,
    sparse: bool,
) -> None:
    """Even where the system counts no blocks yet; reading goes on where it stood."""
    path, fstat = _file(tmp_path / "a", data, size), os.fstat

    def without_blocks(descriptor: int) -> SimpleNamespace:
        return SimpleNamespace(st_size=fstat(descriptor).st_size, st_blocks=1)

    with path.open("rb", buffering=0) as stream:
        stream.seek(5)
        assert is_sparse(stream.fileno()) == sparse
        monkeypatch.setattr(regular_files.os, "fstat", without_blocks)
        assert is_sparse(stream.fileno()) == sparse
        assert stream.tell() == 5
