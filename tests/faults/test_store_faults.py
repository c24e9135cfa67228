"""A store whose writer is killed, or whose disk is full."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from auditkit.errors import RuntimeFailure
from auditkit.runs.folder.store import Store
from tests.runs.test_store import SETTINGS, child, content, key, names, results, unit

LIMITED = """
import resource, sys
from auditkit.errors import RuntimeFailure
from auditkit.runs.folder.store import Store
sys.path.insert(0, sys.argv[2])
from tests.runs.test_store import key, unit
with Store.open(sys.argv[1], {}) as store:
    store.write(key(0), unit(0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
    try:
        store.write(key(1), unit(1))
    except RuntimeFailure as error:
        print(error)
    print(store.has(key(0)), store.has(key(1)))
"""


def test_a_file_over_the_limit(tmp_path: Path) -> None:
    done = child(LIMITED, str(tmp_path / "run"), str(Path(__file__).parents[2]))
    out, err = done.communicate(timeout=30)
    said, sound = out.splitlines()
    assert "cannot be written (File too large); what was finished before is kept." in said, err
    assert sound == "True False"
    assert names(tmp_path / "run" / "items") == [f"{key(0)}.parquet"]


def test_a_disk_that_fills(small_disk: Path) -> None:
    """What was finished stays, the rest is written when there is room."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(64 * 1024))
    with pytest.raises(RuntimeFailure, match="No space left on device"), Store.open(small_disk / "run", {}) as store:
        write_all(store, 100)
    written = len(store.keys())
    assert 0 < written < 99
    ballast.unlink()
    with Store.open(small_disk / "run", {}) as store:
        assert [store.has(key(number)) for number in range(written + 1)] == [True] * written + [False]
        store.write(key(written), unit(written))
        assert not store.notes


UNITS, OPENED = 12, 255


def write_all(store: Store, units: int, report: int | None = None) -> None:
    for number in range(units):
        if not store.has(key(number)):
            store.write(key(number), unit(number))
            if report is not None:
                os.write(report, bytes([number]))


def _write_and_exit(folder: Path, report: int) -> None:
    try:
        with Store.open(folder, SETTINGS) as store:
            os.write(report, bytes([OPENED]))
            write_all(store, UNITS, report)
        os._exit(0)
    finally:
        os._exit(1)


def _killed(folder: Path, delay: float, reports: int) -> set[int]:
    """Units that a writer said were finished before it was killed, some time after so many reports."""
    out, report = os.pipe()
    pid = os.fork()
    if not pid:
        _write_and_exit(folder, report)
    os.close(report)
    with os.fdopen(out, "rb", buffering=0) as stream:
        said = b"".join(stream.read(1) for _ in range(reports))
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
        return set(said + stream.read()) - {OPENED}


def kill_often(folder: Path, rounds: int) -> tuple[int, int]:
    """Kill writers at random moments: how many kills left some units and not all, and how many damaged parts."""
    chance = random.Random(5)  # noqa: S311
    held = set[int]()
    struck = 0
    for turn in range(rounds):
        reports = chance.randrange(1, UNITS // 2) if turn % 3 else 0  # the first is that the folder is open
        said = _killed(folder, chance.uniform(0.0, 0.05), reports)
        store = Store(folder)
        before, held = held, {number for number in range(UNITS) if store.has(key(number))}
        if store.notes:
            return struck, len(store.notes)
        assert before | said <= held
        assert len(held - before - said) <= 1  # renamed, but killed before it could say so
        for number in held:
            assert store.read(key(number))["image"].to_pylist() == [f"{number}.png"] * 3
        struck += 0 < len(held) < UNITS
        for number in chance.sample(sorted(held), len(held) // 2):  # so that there is work left to be killed in
            (folder / "items" / f"{key(number)}.parquet").unlink()
            held.discard(number)
    return struck, 0


KILLS = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.faults import test_store_faults as test_store
from auditkit.runs.folder import parquet
from auditkit.runs.folder import store as stores
def torn(self, path, content):
    with path.open("wb", buffering=0) as stream:
        stream.write(content[:900])
        time.sleep(0.02)
        stream.write(content[900:])
if sys.argv[3] == "planted":
    stores.Store._write_file = torn
parquet.encoded(test_store.key(0), parquet.fitted(test_store.unit(0)))  # the first takes long
print(*test_store.kill_often(Path(sys.argv[1]), 40))
"""


@pytest.mark.parametrize("writer", ["real", "planted"])
def test_kill_at_any_moment(tmp_path: Path, writer: str) -> None:
    """No kill leaves a wrong row or loses what was finished; a writer that does not rename is found out."""
    run = tmp_path / "run"
    done = child(KILLS, str(run), str(Path(__file__).parents[2]), writer)
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    struck, torn = map(int, out.split())
    if writer == "planted":
        assert torn
        return
    assert struck > 10
    assert not torn
    for folder in (run, tmp_path / "uninterrupted"):
        with Store.open(folder, SETTINGS) as store:
            write_all(store, UNITS)
            rows = sum(table.num_rows for table in store.tables(store.keys()))
            store.finish(results(run={"rows": rows}))
    assert content(run) == content(tmp_path / "uninterrupted")
    assert store.results().run.rows == 3 * UNITS
