"""Commands that are killed at random moments, and what must be the same afterwards."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from auditkit.data.bundles import Bundle, open_bundle
from auditkit.demo.draw import draw
from auditkit.demo.planted import bundled_model
from auditkit.runs.explanation.record import Record
from tests.support import onnx_models
from tests.support.commands import SALT, Completed, auditkit

# Checkpoints many times a second, so that kills find some.
_DRIVER = "from auditkit.methods.mask import pair; pair._SAVE_SECONDS = 0.1; from auditkit.cli.main import main; main()"
_SMALL = ("--preset", "unit", "--device", "cpu")
_IMAGES = 36  # in three units
_POLICY = """
schema_version = 1
name = "small"
description = "for tests"

[evaluation]
labels = "top2"
steps = "auto"
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


@dataclass(frozen=True)
class Verb:
    """A command that can be resumed."""

    words: Callable[[Path, Path], tuple[object, ...]]  # of the folder of its inputs, and of its output
    outcome: Callable[[Path], object]  # what does not depend on the time and on interruptions


def _maps(bundle: Path) -> object:
    maps = {(heatmap.image, heatmap.label): heatmap.values.tobytes() for heatmap in open_bundle(bundle)}
    record = Record.of(bundle)
    leftovers = sorted(path.name for path in bundle.iterdir())
    return maps, record.maps, record.passes, record.gradients, record.notes, leftovers


def _run(run: Path) -> object:
    plain = json.loads((run / "results.json").read_text())
    for name in ("started", "ended", "command"):
        plain["run"].pop(name, None)
    return plain, sorted(path.name for path in (run / "items").iterdir())


def _explain(folder: Path, out: Path) -> tuple[object, ...]:
    return ("explain", folder / "model.onnx", folder / "first.npz", "--labels", "top2", "--option", "steps=300",
            "--option", "rows=80", "-o", out, *_SMALL)  # fmt: skip


def _explain_by_workers(folder: Path, out: Path) -> tuple[object, ...]:
    return ("explain", folder / "model.onnx", folder / "images.npz", "--labels", "top1", "--option", "steps=60",
            "--option", "rows=80", "--workers", "2", "-o", out, *_SMALL)  # fmt: skip


def _evaluate(folder: Path, out: Path) -> tuple[object, ...]:
    return ("evaluate", folder / "model.onnx", folder / "images.npz", "--heatmaps", folder / "maps", "--labels", "top1",
            "--steps", "8", "-o", out, *_SMALL)  # fmt: skip


def _audit(folder: Path, out: Path) -> tuple[object, ...]:
    return ("audit", bundled_model("honest"), folder / "drawn.npz", "--method", "gradient-input", "--policy",
            folder / "policy.toml", "--salt", SALT, "--fail-on", "critical", "-o", out, "--device", "cpu")  # fmt: skip


VERBS = {
    "explain": Verb(_explain, _maps), "explain by workers": Verb(_explain_by_workers, _maps),
    "evaluate": Verb(_evaluate, _run), "audit": Verb(_audit, _run),
}  # fmt: skip


def prepare(folder: Path) -> None:
    """Write the inputs of all verbs: images, maps and a policy."""
    drawn, rng = draw(3, seed=3, tags="random"), np.random.default_rng(0)
    onnx_models.save(onnx_models.convnet(size=8, classes=4), folder)
    pictures = rng.integers(0, 256, (_IMAGES, 8, 8, 3), dtype=np.uint8)
    np.savez(folder / "images.npz", images=pictures)
    np.savez(folder / "first.npz", images=pictures[:8])
    np.savez(folder / "drawn.npz", images=drawn.images, labels=drawn.labels)
    (folder / "policy.toml").write_text(_POLICY)
    bundle = Bundle(folder / "maps", model=str(folder / "model.onnx"), method="noise")
    for image in range(_IMAGES):
        bundle.add([str(image)] * 4, [0, 1, 2, 3], rng.standard_normal((4, 8, 8)).astype(np.float32))


def start(words: Sequence[object]) -> "subprocess.Popen[str]":
    """The command in a process of its own."""
    command = [sys.executable, "-c", _DRIVER, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, process: "subprocess.Popen[str]", seconds: float = 60.0) -> None:
    """Return as soon as the path is there, or the process has ended."""
    deadline = time.monotonic() + seconds
    while not path.exists() and process.poll() is None:
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.005)


class Undisturbed:
    """The inputs of all verbs, and what each of them makes of these when nobody disturbs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seconds: dict[str, float] = {}
        prepare(folder)

    def words(self, name: str, out: Path) -> tuple[object, ...]:
        """The command line of a verb."""
        return VERBS[name].words(self.folder, out)

    def run(self, name: str, out: Path) -> Completed:
        """Run a verb in this process."""
        return auditkit(*self.words(name, out))

    def output(self, name: str) -> Path:
        """The output of a verb; copy it to change it."""
        out = self.folder / name
        if name not in self._seconds:
            begin = time.monotonic()
            done = self.run(name, out)
            self._seconds[name] = time.monotonic() - begin
            assert done.returncode == 0, done
        return out

    def seconds(self, name: str) -> float:
        """How long a verb takes, without the start of its process."""
        self.output(name)
        return self._seconds[name]

    def check_same(self, name: str, out: Path) -> None:
        """Assert that an output does not differ from the undisturbed one."""
        outcome = VERBS[name].outcome
        assert outcome(out) == outcome(self.output(name))


def killed(words: Sequence[object], out: Path, seconds: float) -> bool:
    """Kill a command some time after its first output; whether it was still at work."""
    process = start(words)
    wait_for(out, process)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode != 0
