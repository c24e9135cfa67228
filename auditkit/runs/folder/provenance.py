"""Where a result comes from: the software, the device, the commit of the folder, the time. Nothing here is executed."""

import json
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from auditkit.data.atomic_write import write_whole
from auditkit.errors import BadInput
from auditkit.model import doctor
from auditkit.model.classifier import AnyClassifier
from auditkit.model.device import device_name
from auditkit.records import from_json, parse_object, to_object
from auditkit.regular_files import read_regular

PROVENANCE = "provenance.json"
_PACKAGE = re.compile(r"[A-Za-z0-9._-]{1,100} [A-Za-z0-9.!+_-]{1,100}")
_GRAPH = re.compile(r"[^\n]{1,200} [0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
MOST_BYTES = 1 << 24  # of a file in .git; packed-refs of large repositories are some megabytes
MOST_LINKS = 5  # references that name references


@dataclass(frozen=True)
class Provenance:
    """What a run was computed with, for those who recompute it years later; nothing follows from it."""

    packages: Mapping[str, str]  # versions of all that was installed
    graphs: Mapping[str, str]  # sha256 of each graph that was derived from the model, as it ran
    schema_version: int = 1

    def encoded(self) -> bytes:
        """The content of the file."""
        return f"{json.dumps(to_object(self), indent=2, sort_keys=True)}\n".encode()


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


def write(folder: Path, graphs: Mapping[str, str]) -> None:
    """Write down every installed package, and the digests of the graphs that ran, now and in earlier sittings."""
    path, packages = folder / PROVENANCE, dict[str, str]()
    for package in metadata.distributions():
        packages.setdefault(package.metadata["Name"], package.version)  # the first is the one that is imported
    with suppress(OSError, BadInput):
        graphs = {**read(folder).graphs, **graphs}
    write_whole(path, Provenance(packages, graphs).encoded())


def read(folder: Path) -> Provenance:
    """What `write` wrote; BadInput where that is not how it writes."""
    content = read_regular(folder / PROVENANCE, MOST_BYTES)
    provenance = from_json(Provenance, parse_object(content, PROVENANCE), PROVENANCE)
    texts = [f"{name} {version}" for name, version in provenance.packages.items()]
    if content != provenance.encoded() or not all(map(_PACKAGE.fullmatch, texts)):
        raise BadInput(f"{PROVENANCE} is not written as auditkit writes it.")
    if not all(_GRAPH.fullmatch(f"{name} {sha256}") for name, sha256 in provenance.graphs.items()):
        raise BadInput(f"{PROVENANCE} does not list the digests of graphs.")
    return provenance


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
