"""Runs that were made to hang their reader, to fill its memory or to write on its terminal: one sentence, soon."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.runs.explain import Explanation
from auditkit.runs.folder import checksums, parquet
from auditkit.verdict.audit import AuditRequest, audit
from auditkit.verdict.policy import shipped_text
from auditkit.verdict.policy_file import parse_policy
from tests.support import onnx_models

DEEP = b"[" * 200_000
SPARSE = 60 * 10**9
SECONDS, MEGABYTES = 20, 1000  # of any of these runs
# Forks a process for every run that it is told of, since importing auditkit takes longer than most of them.
FORKS = """
import os, runpy, sys
import auditkit.cli.main, auditkit.cli.verify, auditkit.verdict.verify.verify, pyarrow.parquet
for line in sys.stdin:
    run = line.rstrip("\\n")
    child = os.fork()
    if not child:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(f"{run}.{name}", os.O_WRONLY | os.O_CREAT), number)
        sys.argv = ["auditkit", "verify", run]
        runpy.run_module("auditkit", run_name="__main__")
    _, status, usage = os.wait4(child, 0)
    print(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, flush=True)
"""


def _write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes(content)


def _replaced(name: str, make: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make(path)

    return change


def _sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(SPARSE)


def _results(change: Callable[[dict[str, dict[str, dict[str, object]]]], None]) -> Callable[[Path], None]:
    def write(run: Path) -> None:
        plain = json.loads((run / "results.json").read_text())
        change(plain)
        (run / "results.json").write_text(json.dumps(plain))

    return write


def _deep_folders(run: Path) -> None:
    (run / "/".join(["d"] * 500)).mkdir(parents=True)


def _part(columns: Callable[[pa.Field], pa.Array], failed: bytes = b"[]") -> Callable[[Path], None]:
    """A part, sealed with its own key, of columns that are tiny on the disk."""

    def write(run: Path) -> None:
        path = next((run / "items").iterdir())
        table = pa.Table.from_arrays(list(map(columns, parquet.schema())), schema=parquet.schema())
        path.write_bytes(parquet.encoded(path.stem, table.replace_schema_metadata({parquet.FAILED: failed})))

    return write


def _lines_of_digests(run: Path) -> None:
    with (run / checksums.SUMS).open("a") as stream:
        stream.writelines(f"{'0' * 64}  f{number}\n" for number in range(100_000))


def _one_long_list(field: pa.Field) -> pa.Array:
    if field.name != "curve":
        return pa.nulls(1, field.type)
    zeros = pa.array(np.zeros(60_000_000, np.float32))
    return pa.ListArray.from_arrays(pa.array([0, len(zeros)], pa.int32()), zeros).cast(field.type)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a device as the model": _results(lambda plain: plain["subject"]["model"].update(path="/dev/zero")),
    "results that are a device": _replaced("results.json", lambda path: path.symlink_to("/dev/zero")),
    "a pipe": _replaced("run.json", os.mkfifo),
    "a folder that is a link": _replaced("items", lambda path: path.symlink_to("/")),
    "a sparse report": _replaced("report.html", _sparse),
    "sparse maps": lambda run: _sparse(run / "maps" / "maps" / "000009.npy"),
    "deep results": _write("results.json", DEEP),
    "a deep gallery": _write("gallery/gallery.json", DEEP),
    "a deep record": _write("maps/explained.jsonl", DEEP + b"\n"),
    "deep failed images": _part(lambda field: pa.nulls(1, field.type), DEEP),
    "a list of 60 million": _part(_one_long_list),
    "5 million rows": _part(lambda field: pa.nulls(5_000_000, field.type)),
    "10 million entries": _write("results.json", b"[" + b"{}," * 10_000_000 + b"0]"),
    "as many images as stars": _results(lambda plain: plain["subject"]["images"].update(count=10**15)),
    "folders in folders": _deep_folders,
    "100 thousand lines of digests": _lines_of_digests,
    "names with markup": lambda run: (run / "<script>alert(1)<").write_bytes(b""),
    "names with escapes": lambda run: (run / "a\x1b]0;owned\x07\nb\r\u202e").write_bytes(b""),
}  # fmt: skip


NOT_LISTED = ("a sparse report", "sparse maps", "100 thousand lines of digests")  # the list stays as it is


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    model = onnx_models.save(onnx_models.convnet(size=8, classes=3), folder)
    np.savez(folder / "images.npz", images=np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8))
    opened = auditkit.load(model, preset="unit", settings=auditkit.Settings(device="cpu"))
    request = AuditRequest(parse_policy(shipped_text("explore"), "explore.toml"), Explanation("random"))
    audit(opened, Dataset.open(folder / "images.npz", 3), request, folder / "honest")
    return folder / "honest"


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_run_ends_in_one_sentence(
    honest: Path, forks: subprocess.Popen[str], tmp_path: Path, name: str
) -> None:
    """Processor time is measured, not that of the clock, which depends on what else the machine does."""
    run = Path(shutil.copytree(honest, tmp_path / "run"))
    HOSTILE[name](run)
    with suppress(BadInput):  # a list cannot be made of links and devices
        if name not in NOT_LISTED:
            checksums.write(run)
    assert forks.stdin is not None
    assert forks.stdout is not None
    print(run, file=forks.stdin, flush=True)
    code, seconds, megabytes = map(float, forks.stdout.readline().split())
    printed, (line,) = Path(f"{run}.stdout").read_text(), Path(f"{run}.stderr").read_text().splitlines()
    assert line.startswith("auditkit: ")
    assert code == 5, line
    assert seconds < SECONDS
    assert megabytes < MEGABYTES
    assert all(character.isprintable() or character == "\n" for character in printed + line)
