"""What an evaluation found odd about maps: its sentences sorted into kinds, each with a name of its own."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One kind of oddity: the word that an evaluation uses, the finding's name, and when it counts as a cheat."""

    word: str
    id: str
    title: str
    stray: float = 0.0  # share of the maps up to which it happens to honest methods; 1: it is never a cheat
    honest_id: str = ""  # name of the finding while the share is no more than that
    open_id: str = ""  # name of the finding above that share where a model with two classes leaves it open


# An honest Grad-CAM map of a label without evidence is all zero, hence constant; its and occlusion's maps are heavily
# tied. No honest method gives one map to all labels, but for dead gradients here and there and for likely labels that
# rest on one object (the two likeliest had maps alike on 7 of 100 images with Grad-CAM, on a model that looks at the
# object), or to most images, but where the model looks at the same place of them.
KINDS = (
    Kind("same-map-for-all-labels", "cheat-one-map-for-all-labels", "every label of an image has a map of its own", 0.2,
         "some-labels-share-a-map", "labels-share-a-map"),
    Kind("position-only", "cheat-position-only", "maps depend on the image", 0.5,
         "some-images-share-a-map"),
    Kind("constant", "cheat-constant", "maps tell pixels apart", 0.5, "some-constant-maps"),
    Kind("ties", "", "few of a map's pixels are tied", 1.0, "heavy-ties"),
)  # fmt: skip
CHEATS = tuple(name for kind in KINDS for name in (kind.id, kind.open_id) if name)  # and what may be one
TWO_CLASSES = (
    "with two classes an unsigned gradient is the same for both labels; signed maps, or another method, would tell "
    "them apart"
)
_OF_MAPS = re.compile(
    r"(?P<bundle>.*): (?P<word>[a-z-]+) \((?P<some>\d+) of (?P<all>\d+) maps(?: [a-z ]+)?\)", re.DOTALL
)
_OTHERS = (  # that say something of a bundle, and never that it cheats
    (
        "tie-order-matters",
        "the order in ties moves nothing",
        re.compile(r".*: the order in ties moves .*", re.DOTALL),
    ),
    ("maps-missing", "every map is there", re.compile(r".*: \d+ maps are missing", re.DOTALL)),
)
_LEFT_OUT = re.compile(r"(\d+) of \d+ images have no label in .* and are left out", re.DOTALL)


@dataclass(frozen=True)
class Oddity:
    """Sentences of one kind."""

    id: str
    title: str
    cheat: bool
    sentences: tuple[str, ...]

    @property
    def open(self) -> bool:
        """Whether it may be a cheat, and may not."""
        return any(self.id == kind.open_id for kind in KINDS)

    @property
    def reason(self) -> str:
        """What was seen and, where it is open, why."""
        return "; ".join([*self.sentences, *([TWO_CLASSES] if self.open else [])]) + "."


def is_named(finding: str) -> bool:
    """Whether it is a finding that is there only where something was found, unlike a policy's check."""
    kinds = (name for kind in KINDS for name in (kind.id, kind.honest_id, kind.open_id))
    return finding in (*kinds, *(name for name, _, _ in _OTHERS)) or finding.startswith(("not-above-", "cheat-"))


def oddities(results: Mapping[str, Any]) -> list[Oddity]:
    """The flags of results by finding, cheats first; those about the runtime or the images are no oddity of maps."""
    flags, subject = results.get("flags"), results.get("subject")
    binary = isinstance(subject, Mapping) and subject.get("classes") == 2
    found: dict[tuple[bool, str, str], list[str]] = {}
    for sentence in map(str, flags if isinstance(flags, list) else ()):
        if named := _named(sentence, binary=binary):
            found.setdefault(named, []).append(sentence)
    ordered = sorted(found.items(), key=lambda item: not item[0][0])
    return [Oddity(name, title, cheat, tuple(said)) for (cheat, name, title), said in ordered]


def left_out(flags: Iterable[str]) -> int:
    """Images that have no figure because none of their labels is in the label set."""
    return sum(int(match[1]) for sentence in flags if (match := _LEFT_OUT.fullmatch(sentence)))


def _named(sentence: str, *, binary: bool) -> tuple[bool, str, str] | None:
    """Whether it is a cheat, its name and its title."""
    for name, title, pattern in _OTHERS:
        if pattern.fullmatch(sentence):
            return False, name, title
    match = _OF_MAPS.fullmatch(sentence)
    kind = next((kind for kind in KINDS if match and kind.word == match["word"]), None)
    if match is None or kind is None:
        return None
    if int(match["some"]) <= kind.stray * int(match["all"]):
        return False, kind.honest_id, kind.title
    return (False, kind.open_id, kind.title) if binary and kind.open_id else (True, kind.id, kind.title)
