"""Looks at the folder of a run or bundle, which anyone may have made, before any of its files is read or removed."""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from auditkit.data.atomic_write import LEFT_OVER
from auditkit.data.bundle_files import HEADER, MANIFEST
from auditkit.data.bundle_files import MAPS as MAP_FILES
from auditkit.errors import BadInput
from auditkit.regular_files import is_sparse, may_be_sparse, open_regular, reason
from auditkit.runs.explanation.record import RECORD
from auditkit.runs.explanation.shares import SHARES
from auditkit.runs.folder import checksums
from auditkit.runs.folder.examination import FOLDER as EXAMINATION
from auditkit.runs.folder.names import (
    COMMITMENT,
    DAMAGED,
    EXAMINATION_RECORD,
    LOCK,
    MAPS,
    POLICY,
    RANDOMISED,
    REPORT,
    RESULTS,
    RUN,
    STAMP,
    UNFINISHED,
    WAITING,
)
from auditkit.runs.folder.provenance import PROVENANCE
from auditkit.runs.folder.sittings import SITTINGS
from auditkit.runs.pictures.gallery_index import FOLDER as GALLERY
from auditkit.runs.pictures.gallery_index import INDEX

Kinds = Mapping[re.Pattern[str], int]  # the largest size of each kind of file, by the names of such files

_MIB = 2**20
_PROCESS_ID = 20  # digits of the largest
_BUNDLE = rf"({MAPS}|{RANDOMISED}/stage-[0-9]+)"
_MOST_FILES = 10**6  # a run of a million images has fewer
_MOST_FOREIGN = 256 * _MIB  # bytes of a file that no run has; its digest takes a second
_MOST_DEPTH = 6  # randomised/stage-1/waiting/000001/maps/000000.npy


def _any_of(*names: str) -> str:
    return f"({'|'.join(map(re.escape, names))})"


def _compiled(kinds: Mapping[str, int]) -> Kinds:
    return {re.compile(kind, re.DOTALL): limit for kind, limit in kinds.items()}


def _bundle(folder: str) -> dict[str, int]:
    """What a finished bundle of maps holds in a folder."""
    return {
        f"{folder}{_any_of(HEADER, MANIFEST, RECORD)}": 256 * _MIB,
        rf"{folder}{MAP_FILES}/[0-9]+\.npy": 4096 * _MIB,
    }


def _unfinished_bundle(folder: str) -> dict[str, int]:
    """What a bundle of maps that is being made may hold in a folder."""
    unit = f"{folder}({WAITING}/[0-9]+/)?"
    return {
        **_bundle(unit),
        f"{folder}{_any_of(SHARES, SITTINGS)}": 256 * _MIB,
        f"{folder}{re.escape(UNFINISHED)}": 4096 * _MIB,
        # What a killed writer has left: a file that was incomplete, or a bundle that was.
        f"{unit}({MAP_FILES}/|{WAITING}/)?{LEFT_OVER}": 4096 * _MIB,
        f"{unit}({WAITING}/)?{LEFT_OVER}/({MAP_FILES}/|{_any_of(HEADER, MANIFEST)}|{LEFT_OVER})?": _MIB,
        f"{unit}({MAP_FILES}/)?|{folder}{WAITING}/": 0,  # empty folders
    }


_PARTS, _PICTURES = r"items/[0-9a-f]{64}\.parquet", rf"({GALLERY}|{EXAMINATION})/[0-9A-Za-z_-]+\.(png|jpg)"
# What a finished run may hold; auditkit writes no other file into it.
_FINISHED = {
    _any_of(RUN, RESULTS, REPORT, SITTINGS, checksums.ATTESTATION, f"{GALLERY}/{INDEX}"): 32 * _MIB,
    _any_of(POLICY, COMMITMENT, STAMP, PROVENANCE, checksums.SIGNED_OFF, *checksums.SIGNATURES): _MIB,
    _any_of(LOCK): _PROCESS_ID,
    _any_of(checksums.SUMS): 256 * _MIB,
    f"{_PARTS}|{_PICTURES}": 256 * _MIB,
    "items/": 0,  # empty in a run none of whose maps could be used
    **_bundle(f"{_BUNDLE}/"),
}
FINISHED_RUN = _compiled(_FINISHED)
_RUN = _compiled({
    **_FINISHED,
    **_unfinished_bundle(f"{_BUNDLE}/"),
    re.escape(EXAMINATION_RECORD): 32 * _MIB,
    f"{_PARTS}{re.escape(DAMAGED)}": 256 * _MIB,
    f"(({RANDOMISED}|{GALLERY}|{EXAMINATION}|items)/)?{LEFT_OVER}": 256 * _MIB,
    f"({RANDOMISED}/)?{LEFT_OVER}/({MAP_FILES}/|{_any_of(HEADER, MANIFEST)}|{LEFT_OVER})?": _MIB,
    f"({RANDOMISED}|{GALLERY}|{EXAMINATION})/": 0,
})  # fmt: skip
# Beside the maps, which are removed where the manifest does not name them, a bundle may hold files of its owner.
_BUNDLE_NAMES = _any_of(HEADER, MANIFEST, MAP_FILES, RECORD, SHARES, SITTINGS, UNFINISHED, WAITING)
_BUNDLE_ALONE = _compiled({**_unfinished_bundle(""), rf"(?!{_BUNDLE_NAMES}(/|$)).*": 4096 * _MIB})


class Unfit(Exception):
    """A folder holds what no run has, so that it is not read."""


def scan(folder: Path, kinds: Kinds = FINISHED_RUN, *, to_write: bool = False) -> list[str]:
    """Names of files and folders that have no place there; Unfit where a file must not be read.

    If the folder is looked at `to_write` into it, hard links are Unfit too.
    """
    foreign = list[str]()
    for number, (name, status) in enumerate(_walk(folder)):
        if number == _MOST_FILES:
            raise Unfit(f"{folder} holds more than {_MOST_FILES:,} files, more than any run")
        limit = _limit(name, kinds)
        if not name.endswith("/"):
            _check_readable(folder, name, status, _MOST_FOREIGN if limit is None else limit)
            if to_write and status.st_nlink > 1:
                raise Unfit(f"{name} has a second name, a hard link, under which it would be changed too; copy it")
        if limit is None:
            foreign.append(name)
            folders = name.split("/")[:-1]
            for path in ("/".join(folders[: count + 1]) for count in range(len(folders))):
                if _limit(path, kinds) is not None:
                    raise Unfit(f"{path} is a folder, but a run has a file there")
    return sorted(foreign)


def require_readable(folder: Path) -> None:
    """Refuse a run or bundle with links, pipes, devices, or files that are larger than any that auditkit writes."""
    try:
        scan(folder, _kinds_of(folder))
    except (Unfit, OSError) as error:
        raise _refusal(folder, error) from None


def require_resumable(folder: Path) -> None:
    """Refuse, before the work, a run or bundle with anything that auditkit did not write there."""
    try:
        foreign = scan(folder, _kinds_of(folder), to_write=True) if folder.is_dir() else []
    except (Unfit, OSError) as error:
        raise _refusal(folder, error) from None
    if foreign:
        remedy = "move it elsewhere, or give a new folder"
        raise BadInput(f"{folder} holds '{foreign[0]}', which auditkit did not write; {remedy}.")


def require_unchanged(run: Path, action: str) -> None:
    """Refuse a finished run whose files are not those of its list; `action` is what would be done with it."""
    require_readable(run)
    problems = checksums.check(run)
    if problems:
        raise BadInput(f"{run} is not {action}: {problems[0]}. Give the run as it was written.")


def _refusal(folder: Path, error: Exception) -> BadInput:
    return BadInput(f"{folder} cannot be used: {reason(error)}.")


def _kinds_of(folder: Path) -> Kinds:
    return _BUNDLE_ALONE if os.path.lexists(folder / HEADER) else _RUN


def _limit(name: str, kinds: Kinds) -> int | None:
    return next((limit for kind, limit in kinds.items() if kind.fullmatch(name)), None)


def _check_readable(folder: Path, name: str, status: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Unfit(f"{name} is a link or a device; a run holds plain files and folders. Remove it")
    if status.st_size > limit:
        raise Unfit(f"{name} has {status.st_size:,} bytes, more than such a file of a run ever has")
    if may_be_sparse(status):
        with open_regular(folder / name) as stream:
            if is_sparse(stream.fileno()):
                what = "hardly any of them are on the disk"
                raise Unfit(f"{name} has {status.st_size:,} bytes, but {what}")


def _walk(folder: Path, prefix: str = "", depth: int = 1) -> Iterator[tuple[str, os.stat_result]]:
    """The files by their names in the run, and the empty folders, whose names end with a slash."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # another process, which works there, has just renamed it
                continue
            name, empty = f"{prefix}{entry.name}", True
            if not stat.S_ISDIR(status.st_mode):
                yield name, status
                continue
            if depth == _MOST_DEPTH:
                raise Unfit(f"{name} is a folder deeper inside than any of a run")
            for inner in _walk(Path(entry.path), f"{name}/", depth + 1):
                empty = False
                yield inner
            if empty:
                yield f"{name}/", status
