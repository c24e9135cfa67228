"""Nothing leaves the machine, and no file is written but those that the user named, by any verb."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from auditkit import telemetry
from auditkit.data.atomic_write import LEFT_OVER
from auditkit.demo.draw import draw
from auditkit.report import pdf
from tests.support import no_internet

MODELS = Path(__file__).parents[1] / "models"
CACHE = "home/.cache/auditkit/cache.sqlite"  # auditkit's own; see docs/SECURITY.md
COUNT = 20
POLICY = """schema_version = 1
name = "few points"
description = "of a test"
[evaluation]
labels = "top1"
steps = 2
minimum_images = 3
"""
CPU = ("--device", "cpu", "--quiet")
Guard = Callable[[list[str]], list[str]]  # the words of a command, to be run under guard


class Verb(NamedTuple):
    """A command, and the new files that the user named."""

    words: tuple[object, ...]
    written: tuple[str, ...] = ()  # folders end in a slash
    codes: tuple[int, ...] = (0,)


# In this order: later verbs use what earlier ones wrote. Excepted are the browser, which prints PDFs, and clusters.
CHEAP = (
    Verb(("schema", "results")),
    Verb(("policy", "list")),
    Verb(("policy", "init", "standard", "-o", "mine.toml"), ("mine.toml",)),
    Verb(("policy", "check", "policy.toml")),
    Verb(("inspect", "model.onnx", "--device", "cpu")),
)
DEAR = (
    Verb(("doctor", "--device", "cpu")),
    Verb(("inspect", "model.onnx", "--images", "images.csv", "--device", "cpu")),
    Verb(("differentiate", "model.onnx", "-o", "gradient.onnx"), ("gradient.onnx",)),
    Verb(("policy", "plan", "standard")),
    Verb(
        ("explain", "model.onnx", "photos", "-o", "maps", "--method", "grad-cam", "--labels", "top2", *CPU), ("maps/",)
    ),
    Verb(("bundle", "check", "maps", "--images", "photos")),
    Verb(("bundle", "import", "saved", "-o", "imported", "--model", "model.onnx"), ("imported/",)),
    *(
        Verb(("explain", "model.onnx", "photos", "-o", out, "--method", "edges", "--shard", shard, *CPU), (f"{out}/",))
        for out, shard in (("shard-1", "1/2"), ("shard-2", "2/2"))
    ),
    Verb(("merge", "shard-1", "shard-2", "-o", "merged"), ("merged/",)),
    Verb(
        ("evaluate", "model.onnx", "photos", "--heatmaps", "maps", "-o", "evaluation", "--steps", 2, *CPU),
        ("evaluation/",),
    ),
    Verb(
        ("evaluate", "model.onnx", "photos", "-o", "two-workers", "--steps", 2, "--workers", 2, *CPU), ("two-workers/",)
    ),
    Verb(
        ("examine", "model.onnx", "photos", "-o", "examined", "--method", "gradient-input", *CPU),
        ("examined/",),
        (0, 1),
    ),
    Verb(
        ("audit", "model.onnx", "photos", "--heatmaps", "maps", "--policy", "policy.toml", "-o", "run",
         "--commit-to", "commitment.json", *CPU),
        ("run/", "commitment.json"),
    ),
    Verb(
        ("audit", "model.onnx", "photos", "--method", "grad-cam", "--policy", "policy.toml", "-o", "own-maps", *CPU),
        ("own-maps/",),
    ),
    *(
        Verb(("report", "run", "-f", form, "-o", f"report.{form}"), (f"report.{form}",))
        for form in ("html", "md", "json", "junit", "sarif", "oscal", "cyclonedx")
    ),
    Verb(("compare", "run", "own-maps")),
    Verb(("keygen", "-o", "auditor.pem", "--password-env", "PASSWORD"), ("auditor.pem", "auditor.pub")),
    Verb(("sign-off", "run", "--name", "A", "--role", "auditor", "--decision", "accepted"), ("run/signoff.json",)),
    Verb(
        ("sign", "run", "--key", "auditor.pem", "--password-env", "PASSWORD"), ("run/attestation.sigstore.json",)
    ),
    Verb(("archive", "run", "-o", "run.tar"), ("run.tar",)),
    Verb(("verify", "run.tar", "--model", "model.onnx", "--images", "photos", "--heatmaps", "maps=maps",
          "--trust", "auditor.pub", "--quiet"), (), (0, 3)),
    Verb(("demo", "-o", "demo", "--count", 20, "--answered", 10, *CPU), ("demo/",)),
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A home, a folder for temporary files, and a folder with a model and photographs."""
    for name in ("home", "tmp", "work/photos", "work/saved"):
        (tmp_path / name).mkdir(parents=True)
    work = tmp_path / "work"
    for number, pixels in enumerate(draw(COUNT, seed=5, tags="agree").images):
        Image.fromarray(pixels).save(work / "photos" / f"{number:02}.png")
        np.save(work / "saved" / f"{number:02}.png__0.npy", np.random.default_rng(number).random((64, 64), np.float32))
    for suffix in ("onnx", "toml"):
        shutil.copy(MODELS / f"shortcut.{suffix}", work / f"model.{suffix}")
    (work / "policy.toml").write_text(POLICY)
    (work / "images.csv").write_text("image,label\n" + "".join(f"photos/{n:02}.png,{n % 2}\n" for n in range(COUNT)))
    return tmp_path


def _files(root: Path) -> dict[str, tuple[int, int]]:
    """Every file below the root, with what changes when it is written."""
    files = [path for path in root.rglob("*") if not path.is_dir()]
    return {str(path.relative_to(root)): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in files}


def _run(root: Path, verb: Verb, guard: Guard, temporary: Path | None = None) -> list[str]:
    """Run a verb as a user does, under guard; the files that it wrote."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    for name in telemetry.SWITCHES:
        environment.pop(name, None)
    environment |= {"HOME": str(root / "home"), "TMPDIR": str(temporary or root / "tmp"), "PASSWORD": "a long password"}
    environment["PYTHONPATH"] = str(MODELS.parent)  # for the guard
    before = _files(root)
    command = guard([sys.executable, "-m", "auditkit", *map(str, verb.words)])
    done = subprocess.run(command, cwd=root / "work", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in verb.codes, (verb.words, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return [name for name, state in _files(root).items() if before.get(name) != state]


def _stray(verb: Verb, written: list[str]) -> list[str]:
    """Files that were written and that the user did not name."""
    named = [f"work/{name}" for name in verb.written]

    def is_named(name: str) -> bool:
        return any(name.startswith(each) if each.endswith("/") else name == each for each in named)

    return [name for name in written if not is_named(name) and name != CACHE]


def _check(root: Path, verbs: tuple[Verb, ...], guard: Guard) -> None:
    stray = {}
    for verb in verbs:
        written = _run(root, verb, guard)
        stray[verb.words] = _stray(verb, written)
        for name in verb.written:
            assert any(f"work/{name}" in path for path in written), f"{verb.words} did not write {name}"
    assert {words: names for words, names in stray.items() if names} == {}


def _without_internet(command: list[str]) -> list[str]:
    return [sys.executable, "-m", "tests.support.no_internet", *command]


without_internet = pytest.mark.skipif(no_internet.reason() is not None, reason=str(no_internet.reason()))


@without_internet
@pytest.mark.parametrize("verb", CHEAP, ids=lambda verb: " ".join(verb.words[:2]))
def test_a_verb_writes_no_stray_file_and_opens_no_internet_socket(root: Path, verb: Verb) -> None:
    _check(root, (verb,), _without_internet)


@without_internet
@pytest.mark.slow
def test_no_verb_does(root: Path) -> None:
    _check(root, (*CHEAP, *DEAR), _without_internet)


def _strace(log: Path) -> Guard:
    calls = "socket,connect,open,openat,creat,mkdir,mkdirat"
    options = ["-f", "-q", "-y", "-e", f"trace={calls}", "-e", "signal=none", "-o", str(log)]
    return lambda command: ["strace", *options, *command]


def _traced_writes(root: Path, log: str) -> list[str]:
    """Files and folders that a traced command wrote, but for devices, shared memory and compiled Python."""
    place = (
        r'(?:[^"<]*<([^>]*)>, )?"([^"]+)"'  # the folder that a name is relative to, where there is one, and the name
    )
    opened = re.findall(rf"open(?:at)?\({place}, [A-Z_|]*(?:O_WRONLY|O_RDWR|O_CREAT)[^)]*\) = [0-9]", log)
    created = re.findall(rf"(?:creat|mkdir(?:at)?)\({place}.*\) = [0-9]", log)
    paths = [Path(os.path.normpath(root / "work" / folder / name)) for folder, name in (*opened, *created)]
    files = [path for path in paths if not {"__pycache__", "dev", "proc"} & {*path.parts}]
    return [str(path.relative_to(root) if path.is_relative_to(root) else path) for path in files]


def _check_traced(root: Path, verbs: tuple[Verb, ...], log: Path) -> None:
    """Check what the system was asked for; files that were removed again count, but for those in TMPDIR."""
    for verb in verbs:
        _run(root, verb, _strace(log))
        text = log.read_text(errors="replace")
        assert re.findall("AF_INET.*", text) == [], verb.words
        written = _traced_writes(root, text)
        named = [f"work/{name}".removesuffix("/") for name in verb.written]
        own = (*named, "tmp", str(Path(CACHE).parent))
        stray = [name for name in written if name != "home/.cache" and not name.startswith(own)]
        # An output, file or folder, has such a name until it is complete.
        temporary = re.compile(rf"(.*/)?{LEFT_OVER}(/.*)?")
        assert [name for name in stray if not temporary.fullmatch(name)] == [], verb.words


def _can_trace() -> bool:
    command = ["strace", "-o", os.devnull, sys.executable, "-S", "-c", ""]
    return shutil.which("strace") is not None and subprocess.run(command, check=False).returncode == 0


with_strace = pytest.mark.skipif(not _can_trace(), reason="needs strace and the right to trace")


@with_strace
def test_the_system_calls_of_opening_a_model_show_neither(root: Path, tmp_path: Path) -> None:
    _check_traced(root, CHEAP[-1:], tmp_path / "trace")


@with_strace
@pytest.mark.slow
def test_the_system_calls_of_no_verb_do(root: Path, tmp_path: Path) -> None:
    _check_traced(root, (*CHEAP, *DEAR), tmp_path / "trace")


@with_strace
@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, pdf._BROWSERS)), reason="needs chromium")
def test_printing_asks_for_no_address_and_writes_no_stray_file(root: Path, tmp_path: Path) -> None:
    words = ("evaluate", "model.onnx", "photos", "-o", "run", "--labels", "top1", "--steps", 2, *CPU)
    _run(root, Verb(words), _strace(tmp_path / "trace"))
    report = Verb(("report", "run", "-f", "pdf", "-o", "report.pdf"), ("report.pdf",))
    with tempfile.TemporaryDirectory() as folder:  # Chromium makes a socket in it, whose name cannot be long
        written = _run(root, report, _strace(tmp_path / "trace"), Path(folder))
        assert list(Path(folder).iterdir()) == []
    assert _stray(report, [name for name in written if name != "trace"]) == []
    trace = (tmp_path / "trace").read_text(errors="replace")
    assert re.findall(r"htons\(53\)", trace) == []


@without_internet
@pytest.mark.parametrize(("family", "code"), [("AF_INET", -31), ("AF_INET6", -31), ("AF_UNIX", 0), ("AF_NETLINK", 0)])
def test_the_filter_kills_whoever_opens_an_internet_socket(family: str, code: int) -> None:
    code_line = f"import socket; socket.socket(socket.{family}, socket.SOCK_DGRAM)"
    done = subprocess.run(_without_internet([sys.executable, "-c", code_line]), check=False, cwd=MODELS.parent)
    assert done.returncode == code
