"""Where a result comes from: the software, the device, the commit of the folder, the time. Nothing here is executed."""

import platform
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from auditkit.model import cuda, doctor
from auditkit.model.classifier import AnyClassifier
from auditkit.model.device import CUDA

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
MOST_BYTES = 1 << 24  # of a file in .git; packed-refs of large repositories are some megabytes
MOST_LINKS = 5  # references that name references


def facts(model: AnyClassifier) -> dict[str, Any]:
    """The software, and the device that a model runs on; the same every time on the same machine."""
    return software() | device(model)


def software() -> dict[str, str]:
    """Versions of all that computes, and the system that it runs on."""
    return doctor.versions() | {"platform": f"{platform.system()} {platform.release()} {platform.machine()}"}


def device(model: AnyClassifier) -> dict[str, Any]:
    """Where a model runs: the provider, the device's name and the precision; a function's are its own business."""
    if model.settings is None:
        return {"device": None, "device_name": None, "provider": None, "precision": None}
    on_gpu = model.device is CUDA
    return {
        "device": model.device.name, "device_name": cuda.device_names()[0] if on_gpu else _processor(),
        "provider": model.device.provider, "precision": model.settings.precision,
    }  # fmt: skip


def _processor() -> str:
    """The processor as the system names it."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            named = next((line for line in lines if line.startswith("model name")), "")
    except OSError:
        named = ""
    return named.partition(":")[2].strip() or platform.processor() or platform.machine()


def now() -> str:
    """The time in UTC, to the second, as ISO 8601 has it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def commit(folder: Path) -> str | None:
    """The commit that is checked out around a folder, None outside a repository; read from its files, git is not run.

    Whether files were changed since is not known by this.
    """
    try:
        whole = folder.resolve()
        for place in (whole, *whole.parents):
            if (place / ".git").exists():
                return _head(_git_folder(place / ".git"))
    except (OSError, ValueError):
        pass
    return None


def _git_folder(path: Path) -> Path:
    """The folder that holds HEAD: in a work tree or a submodule, .git is a file that names it."""
    if path.is_dir():
        return path
    return path.parent / _text(path).removeprefix("gitdir:").strip()


def _head(git: Path) -> str | None:
    """What HEAD names, by way of branches, which a work tree shares with its repository."""
    common = git / "commondir"
    shared = git / _text(common).strip() if common.is_file() else git
    said = _text(git / "HEAD").strip()
    for _ in range(MOST_LINKS):
        if COMMIT.fullmatch(said):
            return said
        if not said.startswith("ref: refs/") or ".." in said:
            return None
        said = _reference(shared, said.removeprefix("ref: "))
    return None


def _reference(git: Path, name: str) -> str:
    """A branch's commit, from its own file or from the list of all."""
    if (git / name).is_file():
        return _text(git / name).strip()
    packed = _text(git / "packed-refs") if (git / "packed-refs").is_file() else ""
    return next((line.partition(" ")[0] for line in packed.splitlines() if line.partition(" ")[2] == name), "")


def _text(path: Path) -> str:
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} is too large for a file of git")
    return path.read_text("utf-8")
