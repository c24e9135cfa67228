"""Where a result comes from: the software, the device, the commit of the folder, the time. Nothing here is executed."""

import platform
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from auditkit.model import doctor
from auditkit.model.classifier import AnyClassifier
from auditkit.model.device import device_name

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
MOST_BYTES = 1 << 24  # of a file in .git; packed-refs of large repositories are some megabytes
MOST_LINKS = 5  # references that name references


def facts(model: AnyClassifier) -> dict[str, Any]:
    """The software, and where a model runs (a function's device is its own business); the same on the same machine."""
    if model.settings is None:
        return software() | dict.fromkeys(("device", "device_name", "provider", "precision"))
    return software() | {
        "device": model.device.name, "device_name": device_name(model.device.name),
        "provider": model.device.provider, "precision": model.settings.precision,
    }  # fmt: skip


def software() -> dict[str, str]:
    """Versions of all that computes, and the system that it runs on."""
    return doctor.versions() | {"platform": f"{platform.system()} {platform.release()} {platform.machine()}"}


def now() -> str:
    """The time in UTC, to the second, as ISO 8601 has it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def commit(folder: Path) -> str | None:
    """The commit that is checked out around a folder, read without git; None outside a repository."""
    with suppress(OSError, ValueError):
        for parent in (folder.resolve(), *folder.resolve().parents):
            path = parent / ".git"
            if path.is_file():  # of a work tree or a submodule: it names the folder
                return _head(parent / _text(path).removeprefix("gitdir:").strip())
            if path.exists():
                return _head(path)
    return None


def _head(git: Path) -> str | None:
    """What HEAD names, by way of branches, which a work tree shares with its repository."""
    common = git / "commondir"
    shared = git / _text(common).strip() if common.is_file() else git
    target = _text(git / "HEAD").strip()
    for _ in range(MOST_LINKS):
        if COMMIT.fullmatch(target):
            return target
        if not target.startswith("ref: refs/") or ".." in target:
            return None
        target = _reference(shared, target.removeprefix("ref: "))
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
