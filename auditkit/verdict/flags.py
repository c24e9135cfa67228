"""Turns the flags of an evaluation into findings: cheats, harmless ones, and undecided cases."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

from auditkit.runs.folder.figures import Flag, FlagKind
from auditkit.runs.summary.wording import flag_text


@dataclass(frozen=True)
class Kind:
    """One kind of flag about maps: the id of its finding, and when it counts as a cheat."""

    flag: FlagKind
    id: str
    title: str
    stray: float = 0.0  # share of flagged maps that honest methods may reach; 1: it is never a cheat
    honest_id: str = ""  # the finding's id up to that share
    open_id: str = ""  # the finding's id above that share on a model with two classes, where it may be honest


# Honest Grad-CAM maps of labels without evidence are all zero, hence constant; those of Grad-CAM and occlusion have
# many ties. Honest methods rarely give all labels one map: where a gradient is dead, or where the likely labels rest on
# one object (with Grad-CAM the two likeliest had equal maps on 7 of 100 images, on a model that looks at the object).
# They give most images one map only if the model looks at the same place in all of them.
KINDS = (
    Kind("same-map-for-all-labels", "cheat-one-map-for-all-labels", "every label of an image has a map of its own", 0.2,
         "some-labels-share-a-map", "labels-share-a-map"),
    Kind("position-only", "cheat-position-only", "maps depend on the image", 0.5,
         "some-images-share-a-map"),
    Kind("constant", "cheat-constant", "maps tell pixels apart", 0.5, "some-constant-maps"),
    Kind("ties", "", "few of a map's pixels are tied", 1.0, "heavy-ties"),
    Kind("tie-order-matters", "", "the order of tied pixels does not matter", 1.0, "tie-order-matters"),
    Kind("maps-missing", "", "no map is missing", 1.0, "maps-missing"),
)  # fmt: skip
CHEATS = tuple(filter(None, chain.from_iterable((kind.id, kind.open_id) for kind in KINDS)))  # and possible ones
_TWO_CLASSES = (
    "with two classes an unsigned gradient is the same for both labels; signed maps, or another method, would tell "
    "them apart"
)


@dataclass(frozen=True)
class FlagFinding:
    """The flags of one finding."""

    id: str
    title: str
    cheat: bool
    open: bool  # it may or may not be a cheat
    flags: tuple[Flag, ...]

    @property
    def reason(self) -> str:
        """The flags in words and, where it is open, why."""
        return "; ".join([*map(flag_text, self.flags), *([_TWO_CLASSES] if self.open else [])]) + "."


def is_named(finding: str) -> bool:
    """Whether a finding exists only if something was flagged, unlike a policy's check."""
    names = chain.from_iterable((kind.id, kind.honest_id, kind.open_id) for kind in KINDS)
    return finding in names or finding.startswith(("not-above-", "not-reproduced", "cheat-"))


def flag_findings(flags: Iterable[Flag], classes: int) -> list[FlagFinding]:
    """Flags about maps by finding, cheats first; flags about the runtime or the images are left out."""
    by_finding: dict[str, FlagFinding] = {}
    kinds = {kind.flag: kind for kind in KINDS}
    for flag in flags:
        if flag.kind in kinds:
            finding = _finding(flag, kinds[flag.kind], two_classes=classes == 2)
            earlier = by_finding.get(finding.id, replace(finding, flags=()))
            by_finding[finding.id] = replace(finding, flags=(*earlier.flags, flag))
    return sorted(by_finding.values(), key=lambda finding: not finding.cheat)


def _finding(flag: Flag, kind: Kind, *, two_classes: bool) -> FlagFinding:
    if kind.stray == 1 or (flag.count or 0) <= kind.stray * (flag.total or 0):
        return FlagFinding(kind.honest_id, kind.title, False, False, (flag,))
    possible = two_classes and bool(kind.open_id)
    return FlagFinding(kind.open_id if possible else kind.id, kind.title, not possible, possible, (flag,))
