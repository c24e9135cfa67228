"""Turns the flags of an evaluation into findings: cheats, honest oddities, and undecided cases."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from auditkit.runs.folder.figures import Flag, FlagKind
from auditkit.runs.summary.wording import flag_text


@dataclass(frozen=True)
class Kind:
    """One kind of flag about maps: its finding's name, and when it counts as a cheat."""

    flag: FlagKind
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
    Kind("tie-order-matters", "", "the order in ties moves nothing", 1.0, "tie-order-matters"),
    Kind("maps-missing", "", "every map is there", 1.0, "maps-missing"),
)  # fmt: skip
CHEATS = tuple(filter(None, chain.from_iterable((kind.id, kind.open_id) for kind in KINDS)))  # and possible ones
_TWO_CLASSES = (
    "with two classes an unsigned gradient is the same for both labels; signed maps, or another method, would tell "
    "them apart"
)


@dataclass(frozen=True)
class Oddity:
    """The flags of one finding."""

    id: str
    title: str
    cheat: bool
    open: bool  # it may be a cheat, and may not
    flags: tuple[Flag, ...]

    @property
    def reason(self) -> str:
        """What was seen and, where it is open, why."""
        sentences = [flag_text(flag) for flag in self.flags]
        return "; ".join([*sentences, *([_TWO_CLASSES] if self.open else [])]) + "."


def is_named(finding: str) -> bool:
    """Whether it is a finding that exists only where something was flagged, unlike a policy's check."""
    names = chain.from_iterable((kind.id, kind.honest_id, kind.open_id) for kind in KINDS)
    return finding in names or finding.startswith(("not-above-", "cheat-"))


def oddities(flags: Iterable[Flag], classes: int) -> list[Oddity]:
    """Flags about maps by finding, cheats first; those about the runtime or the images are not about maps."""
    by_finding: dict[str, Oddity] = {}
    kinds = {kind.flag: kind for kind in KINDS}
    for flag in flags:
        if flag.kind in kinds:
            oddity = _oddity(flag, kinds[flag.kind], two_classes=classes == 2)
            before = by_finding.get(oddity.id)
            together = oddity.flags if before is None else (*before.flags, *oddity.flags)
            by_finding[oddity.id] = Oddity(oddity.id, oddity.title, oddity.cheat, oddity.open, together)
    return sorted(by_finding.values(), key=lambda oddity: not oddity.cheat)


def _oddity(flag: Flag, kind: Kind, *, two_classes: bool) -> Oddity:
    if kind.stray == 1 or (flag.count or 0) <= kind.stray * (flag.total or 0):
        return Oddity(kind.honest_id, kind.title, False, False, (flag,))
    if two_classes and kind.open_id:
        return Oddity(kind.open_id, kind.title, False, True, (flag,))
    return Oddity(kind.id, kind.title, True, False, (flag,))
