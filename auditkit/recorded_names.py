"""How records name files: without the folders of absolute paths, which are private and mean nothing elsewhere."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePath

# Where an absolute path begins in a word of a command line, as in /a/b, ~a/b, --out=/a/b, -o/a/b,
# image:/a/b, x,/a/b, "x /a/b" or C:\a\b.
_ABSOLUTE = re.compile(
    r"(?:^|(?<=[=:,\s])|(?<=^-[A-Za-z]))(?:(?:~[^/\\]*)?[/\\]|[A-Za-z]:[\\/]).*",
    re.DOTALL,
)
_CLUSTER = re.compile(r"(?<=^ray:).+|(?<=^--engine=ray:).+")


def path_name(path: Path, *, full: bool = False) -> str:
    """The path as records have it: an absolute one by its last component alone, unless the `full` path is wanted."""
    return path.name if path.is_absolute() and path.name and not full else str(path)


def with_path_name(text: str, path: Path, *, full: bool = False) -> str:
    """A text that names a path, with the path as records have it."""
    return text.replace(str(path), path_name(path, full=full))


def command_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line without the folders of absolute paths, and without the address of a cluster."""
    return ("auditkit", *(_CLUSTER.sub("...", _ABSOLUTE.sub(_last_component, word)) for word in words[1:]))


def _last_component(match: re.Match[str]) -> str:
    path = match[0].rstrip("/\\")
    return re.split(r"[/\\]", path)[-1] or match[0]


def image_names(names: Sequence[str]) -> list[str]:
    """Names of images; of absolute paths, as many of the last components as tell all of them apart, if any do."""
    parts = {name: PurePath(name).parts[1:] for name in names if PurePath(name).is_absolute()}
    others = {name for name in names if name not in parts}
    short: dict[str, str] = {}
    for depth in range(1, max(map(len, parts.values()), default=0) + 1):
        short = {name: "/".join(components[-depth:]) for name, components in parts.items()}
        if len({*short.values()}) == len(short) and not others & {*short.values()}:
            break
    else:
        short = {}
    return [short.get(name, name) for name in names]
