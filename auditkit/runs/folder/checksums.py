"""SHA256SUMS: every file of a run with its digest, in the form that `sha256sum -c` takes."""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from auditkit.data.atomic_write import write_errors, write_whole
from auditkit.errors import BadInput
from auditkit.runs.folder.store import LEFT_OVER, LOCK

SUMS = "SHA256SUMS"
PASSING = re.compile(rf"{LEFT_OVER}|.+\.part")  # what a writer that was killed leaves behind
ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
LINE = re.compile(r"(\\?)([0-9a-f]{64}) [ *](.+)", re.DOTALL)


def write(folder: Path) -> None:
    """List every file of a run; the last thing that is written into it."""
    with write_errors(folder / SUMS):
        lines = [_line(name, _digest(folder / name)) for name in _names(folder)]
        write_whole(folder / SUMS, b"".join(lines))


def read(folder: Path) -> dict[str, str]:
    """The digest of each file that is listed, by its path inside the run."""
    digests: dict[str, str] = {}
    for number, line in enumerate((folder / SUMS).read_bytes().split(b"\n")[:-1], start=1):
        match = LINE.fullmatch(os.fsdecode(line))
        name = "" if match is None else match[3]
        if match is not None and match[1]:
            name = _unescaped(name)
        if match is None or name in digests or name != _inside(name):
            raise BadInput(f"{folder / SUMS}, line {number}: not a digest and the name of a file of the run.")
        digests[name] = match[2]
    return digests


def check(folder: Path) -> list[str]:
    """What does not fit the list: files that are missing, were changed, or came later."""
    try:
        listed = read(folder)
    except FileNotFoundError:
        return [f"{SUMS} is missing"]
    except BadInput as error:
        return [str(error)]
    try:
        there = set(_names(folder))
    except BadInput as error:
        return [str(error)]
    return [said for name in sorted(listed.keys() | there) if (said := _problem(folder, name, listed, there))]


def _problem(folder: Path, name: str, listed: dict[str, str], there: set[str]) -> str:
    if name not in there:
        return f"{name} is missing"
    if name not in listed:
        return f"{name} is not listed in {SUMS}: it came later"
    return "" if _digest(folder / name) == listed[name] else f"{name} was changed"


def _names(folder: Path) -> list[str]:
    """The files of a run by their paths inside it, sorted; links and devices have no place there."""
    found = (path.relative_to(folder) for path in _files(folder))
    kept = (path.as_posix() for path in found if not any(PASSING.fullmatch(part) for part in path.parts))
    return sorted({*kept} - {SUMS, LOCK}, key=os.fsencode)


def _files(folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            yield from _files(Path(entry.path))
        elif stat.S_ISREG(mode):
            yield Path(entry.path)
        else:
            raise BadInput(f"{entry.path} is a link or a device; a run holds plain files and folders. Remove it.")


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _line(name: str, digest: str) -> bytes:
    escaped = re.sub(r"[\\\n\r]", lambda match: ESCAPES[match[0]], name)
    return os.fsencode(f"{'' if escaped == name else chr(92)}{digest}  {escaped}\n")


def _unescaped(name: str) -> str:
    meant = {escaped: plain for plain, escaped in ESCAPES.items()}
    return re.sub(r"\\.", lambda match: meant.get(match[0], match[0]), name)


def _inside(name: str) -> str:
    """The name as it is written for a file inside the folder; empty when it leads out of it."""
    parts = name.split("/")
    return "" if name.startswith("/") or {"", ".", ".."} & set(parts) else name
