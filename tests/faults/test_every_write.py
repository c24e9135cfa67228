"""Every write of a small run fails in turn: the command ends with one sentence, and the same command again repairs it.

A disk error (EIO) hits one write; a full disk (ENOSPC) hits it and all that follow. The model runs in this process, so
that a run takes a fraction of a second. `make test` lets every so many writes fail, `make test-slow` each of them.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import auditkit
from auditkit.errors import AuditError
from auditkit.methods.mask import pair
from auditkit.runs.folder import provenance
from auditkit.verdict.audit import AuditRequest
from tests.support import onnx_models
from tests.support.backwards_engine import BackwardsEngine
from tests.support.failing_disk import FailingDisk, is_freeing

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
_POLICY = """
schema_version = 1
name = "small"
description = "for tests"

[evaluation]
labels = "top2"
steps = "4"
minimum_images = 3

[randomisation]
images = 2
stages = 1

[[check]]
id = "complete"
metric = "worst_completeness"
min = 0.1
severity = "high"
"""
_NOT_COMPARED = (".lock", "sittings.jsonl", "SHA256SUMS")  # process, times of sittings, and a list that has the last
_ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO}
_EVERY = {"explain": 13, "explain by workers": 13, "evaluate": 13, "audit": 97}  # which writes fail in the short test


class Material:
    """The inputs of all verbs, and what they make of these when nothing fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = onnx_models.save(onnx_models.convnet(size=8, classes=3), folder)
        self.model, self.with_workers = (
            auditkit.load(path, preset="unit", settings=auditkit.Settings(device="cpu", in_process=True))
            for _ in range(2)
        )
        assert isinstance(self.with_workers, auditkit.OnnxClassifier)
        self.with_workers.use_engine(BackwardsEngine())
        self.images = np.random.default_rng(0).integers(0, 256, (18, 8, 8, 3), dtype=np.uint8)
        (folder / "policy.toml").write_text(_POLICY)
        self._results: dict[str, tuple[list[str], dict[str, str]]] = {}
        auditkit.explain(self.model, self.images, folder / "maps", "gradient", labels="top2")

    def run(self, name: str, out: Path) -> None:
        """Run a verb at a time that stands still, with a checkpoint after every step."""
        with (
            mock.patch.object(AuditRequest, "require_enough"),  # so that audits of few images start
            mock.patch.object(provenance, "now", return_value="2026-01-01T00:00:00+00:00"),
            mock.patch.object(pair, "_SAVE_SECONDS", 0.0),
        ):
            VERBS[name](self, out)

    def undisturbed(self, name: str) -> tuple[list[str], dict[str, str]]:
        """The writes of a verb, and its files by their digests."""
        if name not in self._results:
            folder = self.folder / f"undisturbed-{name}"
            folder.mkdir()
            with FailingDisk(folder).mounted() as disk:
                self.run(name, folder / "out")
            self._results[name] = disk.writes, _digests(folder / "out")
        return self._results[name]


def _explain(material: Material, out: Path) -> None:
    auditkit.explain(material.model, material.images[:3], out, labels="top2", steps=3, infill="gray", factor=2)


def _explain_by_workers(material: Material, out: Path) -> None:
    auditkit.explain(material.with_workers, material.images, out, "gradient", labels="top1")  # two units


def _evaluate(material: Material, out: Path) -> None:
    auditkit.evaluate(material.model, material.images, material.folder / "maps", out=out, labels="top2", steps=4)


def _audit(material: Material, out: Path) -> None:
    policy = material.folder / "policy.toml"
    auditkit.audit(material.model, material.images[:4], out, method="gradient", policy=policy)


VERBS: dict[str, Callable[[Material, Path], None]] = {
    "explain": _explain, "explain by workers": _explain_by_workers, "evaluate": _evaluate, "audit": _audit,
}  # fmt: skip


def _digests(out: Path) -> dict[str, str]:
    files = [path for path in sorted(out.rglob("*")) if path.is_file() and path.name not in _NOT_COMPARED]
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return Material(tmp_path_factory.mktemp("material"))


def _check_write(material: Material, name: str, kind: str, number: int, folder: Path) -> None:
    """Let a write fail, then run the same command again."""
    error, out = _ERRORS[kind], folder / "out"
    folder.mkdir()
    with FailingDisk(folder, number, error, to_the_end=kind == "full").mounted() as disk:
        failure = _failure(material, name, out)
    where = f"write {number}, {disk.writes[number - 1]}: {failure}"
    if failure is None:  # a file that is not needed any more may stay until the next run
        assert is_freeing(disk.writes[number - 1]), where
    else:
        assert failure.exit_code in (2, 4), where
        assert len(str(failure).splitlines()) == 1, where
        assert os.strerror(error) in str(failure), where
    material.run(name, out)
    assert _digests(out) == material.undisturbed(name)[1], where
    shutil.rmtree(folder)


def _failure(material: Material, name: str, out: Path) -> AuditError | None:
    """The error that a verb ends with; any other exception would be a traceback."""
    try:
        material.run(name, out)
    except AuditError as error:
        return error
    return None


def _check_writes(material: Material, name: str, kind: str, every: int, folder: Path) -> None:
    writes, _ = material.undisturbed(name)
    count = len(writes) if kind == "broken" else len([write for write in writes if not is_freeing(write)])
    numbers = range(1 + every // 2, count + 1, every)
    for number in numbers:
        _check_write(material, name, kind, number, folder / str(number))
    print(f"{name}, {kind}: {len(numbers)} of {count} writes failed")


@pytest.mark.parametrize("kind", _ERRORS)
@pytest.mark.parametrize("name", VERBS)
def test_some_writes_fail_in_turn(material: Material, tmp_path: Path, name: str, kind: str) -> None:
    _check_writes(material, name, kind, _EVERY[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", _ERRORS)
@pytest.mark.parametrize("name", VERBS)
def test_every_write_fails_in_turn(material: Material, tmp_path: Path, name: str, kind: str) -> None:
    _check_writes(material, name, kind, 1, tmp_path)
