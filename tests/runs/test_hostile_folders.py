"""Folders of runs and bundles that were made to reach what lies outside them, or to hang whoever opens them.

Every verb that reads or resumes a folder ends soon and in one sentence, and leaves everything outside as it was.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.support import onnx_models
from tests.support.commands import Completed
from tests.support.commands import auditkit as command

SECONDS = 2  # of processor time, which a refusal takes without the start of its process
DEADLINE = 20  # after which a command is taken to hang
SPARSE = 60 * 10**9
MODEL = ("model.onnx", "images.npz", "--preset", "unit", "--device", "cpu", "--quiet")
AUDIT = ("audit", *MODEL, "--policy", "explore", "--method", "random", "--budget", "none", "--exit-zero")
EVALUATE = ("evaluate", *MODEL, "--heatmaps", "bundle", "--steps", "2")
EXPLAIN = ("explain", *MODEL, "--method", "gradient")
BY = ("--name", "A. Auditor", "--role", "lead auditor", "--decision", "accepted")

Verbs = dict[str, tuple[str, ...]]
READING: Verbs = {
    "verify": ("verify", "hostile"),
    "report as JSON": ("report", "hostile", "-f", "json"),
    "report as a page": ("report", "hostile", "-o", "page.html"),
    "compare A": ("compare", "hostile", "audit"),
    "compare B": ("compare", "audit", "hostile"),
    "merge": ("merge", "hostile", "-o", "merged"),
    "sign-off": ("sign-off", "hostile", *BY),
    "sign": ("sign", "hostile", "--key", "key.pem"),
    "archive": ("archive", "hostile", "-o", "run.tar"),
    "baseline": (*AUDIT, "-o", "later", "--baseline", "hostile"),
}
VERBS: dict[str, Verbs] = {
    "audit": READING | {"audit": (*AUDIT, "-o", "hostile")},
    "unfinished": {"audit": (*AUDIT, "-o", "hostile"), "report": READING["report as JSON"]},
    "evaluate": {"evaluate": (*EVALUATE, "-o", "hostile"), "report": READING["report as JSON"]},
    "bundle": {
        "explain": (*EXPLAIN, "-o", "hostile"),
        "bundle check": ("bundle", "check", "hostile"),
        "bundle import": ("bundle", "import", "maps", "-o", "hostile"),
        "merge": ("merge", "hostile", "-o", "merged"),
        "evaluate": ("evaluate", *MODEL, "--heatmaps", "hostile", "--steps", "2", "-o", "run"),
    },
}  # fmt: skip
# What does no harm where it is only read, or not needed.
HARMLESS = ("a hard link", "a file for a folder")
# Where a bundle is only read, these files of it are not.
NOT_READ = ("explained.jsonl", "waiting", "unfinished.npz")


def _emptied(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _link(path: Path, canaries: Path) -> None:
    path.symlink_to(canaries / "diary.txt")


def _link_to_folder(path: Path, canaries: Path) -> None:
    path.symlink_to(canaries / "photos")


def _endless(path: Path, canaries: Path) -> None:
    path.symlink_to("/dev/zero")


def _pipe(path: Path, canaries: Path) -> None:
    os.mkfifo(path)


def _sparse(path: Path, canaries: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(SPARSE)


def _hard_link(path: Path, canaries: Path) -> None:
    os.link(canaries / "diary.txt", path)


def _folder(path: Path, canaries: Path) -> None:
    path.mkdir()


def _file(path: Path, canaries: Path) -> None:
    path.write_text("")


Plant = Callable[[Path, Path], None]
FOR_FILES: dict[str, Plant] = {
    "a link": _link, "a link to /dev/zero": _endless, "a pipe": _pipe, "a sparse file": _sparse,
    "a hard link": _hard_link, "a folder": _folder,
}  # fmt: skip
FOR_FOLDERS: dict[str, Plant] = {"a link to a folder": _link_to_folder, "a pipe": _pipe, "a file for a folder": _file}
NEW: dict[str, Plant] = {"a link": _link, "a pipe": _pipe}
LEFT_OVER = ".0123456789abcdef.part"
PLACES: dict[str, tuple[tuple[str, dict[str, Plant]], ...]] = {
    "audit": (
        ("run.json", FOR_FILES), ("results.json", FOR_FILES), ("SHA256SUMS", FOR_FILES), ("report.html", FOR_FILES),
        ("sittings.jsonl", FOR_FILES), ("items/*.parquet", FOR_FILES), ("gallery/gallery.json", FOR_FILES),
        ("maps/manifest.csv", FOR_FILES), ("gallery", FOR_FOLDERS), ("items", FOR_FOLDERS), ("maps", FOR_FOLDERS),
        ("maps/maps", FOR_FOLDERS), (".lock", NEW), ("signoff.json", NEW), ("signoff.json.part", NEW),
        ("attestation.sigstore.json", NEW), (LEFT_OVER, NEW), ("randomised", {"a link to a folder": _link_to_folder}),
    ),
    "unfinished": (
        ("run.json", {"a pipe": _pipe}), ("gallery", FOR_FOLDERS), ("maps/explained.jsonl", FOR_FILES),
        ("maps/unfinished.npz", FOR_FILES), ("maps/waiting", FOR_FOLDERS), ("items/*.parquet", {"a link": _link}),
    ),
    "evaluate": (("results.json", FOR_FILES), ("items", FOR_FOLDERS), ("items/*.parquet", FOR_FILES)),
    "bundle": (
        ("bundle.json", FOR_FILES), ("manifest.csv", FOR_FILES), ("explained.jsonl", FOR_FILES), ("maps", FOR_FOLDERS),
        ("maps/000000.npy", FOR_FILES), ("waiting", FOR_FOLDERS), ("unfinished.npz", FOR_FILES),
    ),
}  # fmt: skip
HOSTILE = {
    f"{kind}: {way} for {name}": (kind, name, way, plant)
    for kind, places in PLACES.items() for name, ways in places for way, plant in ways.items()
}  # fmt: skip


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished audit, an unfinished one, an evaluation and a bundle of maps, with all that made them."""
    folder = tmp_path_factory.mktemp("honest")
    onnx_models.save(onnx_models.convnet(size=8, classes=3), folder)
    rng = np.random.default_rng(0)
    np.savez(folder / "images.npz", images=rng.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8))
    (folder / "maps").mkdir()
    np.save(folder / "maps" / "0__1.npy", rng.random((8, 8)))
    for words in (
        (*EXPLAIN, "-o", "bundle"), (*EVALUATE, "-o", "evaluate"), (*AUDIT, "-o", "audit"),
        ("keygen", "-o", "key.pem", "--no-password"),
    ):  # fmt: skip
        done = command(*words, folder=folder)
        assert done.returncode == 0, done
    unfinished = Path(shutil.copytree(folder / "audit", folder / "unfinished"))
    for name in ("results.json", "SHA256SUMS", "report.html"):
        (unfinished / name).unlink()
    return folder


def _snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Content, mode and time of the last change of all that a folder holds."""
    files: dict[str, tuple[int, int, bytes]] = {}
    for path in [folder, *folder.rglob("*")]:
        status, content = path.stat(), path.read_bytes() if path.is_file() else b""
        files[str(path.relative_to(folder))] = status.st_mode, status.st_mtime_ns, content
    return files


def _canaries(folder: Path) -> Path:
    """What belongs to the user and must stay as it is."""
    (folder / "photos").mkdir(parents=True)
    (folder / "diary.txt").write_text("years of work\n")
    for name in ("holiday.jpg", "0001-image.png", "000000.npy", ".0123456789abcdef.part"):
        (folder / "photos" / name).write_text(name)
    return folder


@contextmanager
def _deadline() -> Iterator[None]:
    def hangs(*_: object) -> None:
        raise TimeoutError(f"the command goes on after {DEADLINE} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(DEADLINE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _check(honest: Path, folder: Path, hostile: str, verb: str) -> float:
    """Run a verb on a hostile folder; the seconds of processor time that its refusal took."""
    kind, name, way, plant = HOSTILE[hostile]
    work, canaries = Path(shutil.copytree(honest, folder / "work")), _canaries(folder / "canaries")
    run = Path(shutil.copytree(work / kind, work / "hostile"))
    path = next(run.glob(name), run / name)
    _emptied(path)
    plant(path, canaries)
    before, names = _snapshot(canaries), sorted(work.iterdir())
    begin = time.process_time()
    with _deadline():
        done = command(*VERBS[kind][verb], folder=work)
    seconds = time.process_time() - begin
    assert _snapshot(canaries) == before
    if way in HARMLESS or (verb in ("bundle check", "evaluate") and name in NOT_READ):
        assert "Traceback" not in done.stderr, done
        seconds = 0  # since it may do its work
    else:
        assert sorted(work.iterdir()) == names
        _assert_refused(done)
    shutil.rmtree(folder)
    return seconds


def _assert_refused(done: Completed) -> None:
    assert done.returncode in (2, 5), done
    if "bundle check" in " ".join(done.args) and not done.stderr:
        assert "error" in done.stdout  # the problems of a bundle are listed
        return
    (line,) = done.stderr.splitlines()
    assert line.startswith("auditkit: ")


def _sample() -> list[tuple[str, str]]:
    """Every hostile folder once, with verbs in turn."""
    verbs = {kind: list(verbs) for kind, verbs in VERBS.items()}
    return [(hostile, verbs[kind][number % len(verbs[kind])]) for number, (hostile, (kind, *_)) in
            enumerate(HOSTILE.items())]  # fmt: skip


@pytest.mark.parametrize(("hostile", "verb"), _sample())
def test_a_hostile_folder_is_refused_and_nothing_outside_changes(
    honest: Path, tmp_path: Path, hostile: str, verb: str
) -> None:
    _check(honest, tmp_path / "one", hostile, verb)


@pytest.mark.slow
@pytest.mark.parametrize("hostile", HOSTILE)
def test_every_verb_refuses_a_hostile_folder_soon(honest: Path, tmp_path: Path, hostile: str) -> None:
    kind = HOSTILE[hostile][0]
    seconds = {verb: _check(honest, tmp_path / str(number), hostile, verb) for number, verb in enumerate(VERBS[kind])}
    print(f"{hostile}: {len(seconds)} verbs, {max(seconds.values()):.2f} s at most")
    assert max(seconds.values()) < SECONDS, seconds
