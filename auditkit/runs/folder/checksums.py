"""SHA256SUMS: every file of a run with its digest, in the form that `sha256sum -c` takes."""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from auditkit.data.atomic_write import LEFT_OVER, remove, remove_folder, write_errors, write_whole
from auditkit.errors import BadInput
from auditkit.regular_files import open_regular, read_regular, reason
from auditkit.runs.folder.names import DAMAGED, LOCK

SUMS = "SHA256SUMS"
SIGNED_OFF = "signoff.json"  # written after the list, and not listed
ATTESTATION = "attestation.sigstore.json"  # signed, so written after the list too
# Beside the list: our own signature, and those of other tools.
SIGNATURES = (ATTESTATION, *(f"{SUMS}{suffix}" for suffix in (".sig", ".asc", ".minisig", ".sigstore.json")))
# What a killed writer leaves behind, and parts that were set aside: a finished run has better ones.
_LEFT_OVER = re.compile(LEFT_OVER)
_UNFINISHED = re.compile(rf"{LEFT_OVER}|[0-9a-f]{{64}}\.parquet\{DAMAGED}")
_MOST_BYTES = 2**28  # of the list
ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
UNESCAPES = {escaped: plain for plain, escaped in ESCAPES.items()}
LINE = re.compile(r"(\\?)([0-9a-f]{64}) [ *](.+)", re.DOTALL)


def write(folder: Path) -> None:
    """List every file of a run and remove what no finished run has; the last thing that is written into it."""
    with write_errors(folder / SUMS):
        _remove_unfinished(folder)
        lines = [_line(name, digest(folder / name)) for name in _names(folder)]
        write_whole(folder / SUMS, b"".join(lines))


def read(folder: Path) -> dict[str, str]:
    """The digest of each file that is listed, by its path inside the run."""
    digests: dict[str, str] = {}
    *lines, rest = read_regular(folder / SUMS, _MOST_BYTES).split(b"\n")
    if rest:
        raise BadInput(f"{folder / SUMS}: its last line is cut short, or does not belong there.")
    for number, line in enumerate(lines, start=1):
        match = LINE.fullmatch(os.fsdecode(line))
        backslash, digest, name = match.groups() if match else ("", "", "")
        if backslash:
            name = re.sub(r"\\.", lambda escape: UNESCAPES.get(escape[0], escape[0]), name)
        if name in digests or {"", ".", ".."} & set(name.split("/")):  # an absolute name has an empty first part
            raise BadInput(f"{folder / SUMS}, line {number}: not a digest and the name of a file of the run.")
        digests[name] = digest
    return digests


def check(folder: Path) -> list[str]:
    """What does not fit the list: files that are missing, were changed, or came later."""
    try:
        digests = read(folder)
        names = set(_names(folder))
    except FileNotFoundError:
        return [f"{SUMS} is missing"]
    except BadInput as error:
        return [str(error)]
    except OSError as error:
        return [f"{SUMS} cannot be read ({reason(error)})"]
    problems = []
    for name in sorted(digests.keys() | names):
        if name not in names:
            problems.append(f"{name} is missing")
        elif name not in digests:
            problems.append(f"{name} is not listed in {SUMS}")
        elif digest(folder / name) != digests[name]:
            problems.append(f"{name} was changed")
    return problems


def all_names(folder: Path) -> list[str]:
    """The files of a run by their paths inside it, sorted; links and devices have no place there."""
    return sorted({path.relative_to(folder).as_posix() for path in _files(folder)} - {LOCK}, key=os.fsencode)


def _names(folder: Path) -> list[str]:
    """Those that are listed."""
    return [name for name in all_names(folder) if name not in (SUMS, SIGNED_OFF, *SIGNATURES)]


def _remove_unfinished(folder: Path) -> None:
    for path, folders, names in os.walk(folder):
        for name in filter(_LEFT_OVER.fullmatch, tuple(folders)):
            remove_folder(Path(path, name), root=folder)
            folders.remove(name)
        for name in filter(_UNFINISHED.fullmatch, names):
            remove(Path(path, name), root=folder)


def _files(folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            yield from _files(Path(entry.path))
        elif stat.S_ISREG(mode):
            yield Path(entry.path)
        else:
            raise BadInput(f"{entry.path} is a link or a device; a run holds plain files and folders. Remove it.")


def digest(path: Path) -> str:
    """sha256 of a file."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _line(name: str, digest: str) -> bytes:
    escaped = re.sub(r"[\\\n\r]", lambda match: ESCAPES[match[0]], name)
    return os.fsencode(f"{'' if escaped == name else chr(92)}{digest}  {escaped}\n")
