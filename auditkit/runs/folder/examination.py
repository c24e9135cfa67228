"""What an examination of the model found, as results.json holds it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from auditkit.records import optional
from auditkit.runs.folder.figures import Severity

FOLDER = "examination"  # of a run: its pictures
CueKind = Literal["colour", "fine pattern", "mark", "corner", "border", "place", "background"]


@dataclass(frozen=True)
class ExchangeRate:
    """How often the prediction follows the donor of a part, over all images."""

    exchange: str
    follows: float
    stays: float  # with the recipient
    chance: float  # how often the donor's label is predicted after an exchange with other images
    low: float | None
    high: float | None
    donors: int


@dataclass(frozen=True)
class ProbeRate:
    """How often the prediction stays the same when one kind of information is removed."""

    probe: str
    agrees: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Zone:
    """Where the strongest evidence lies, and where edges are strongest in the same images."""

    place: str
    label: int | None  # None: all images
    images: int
    edges: int
    n: int


@dataclass(frozen=True)
class Example:
    """A picture after an exchange, and what the model predicts before and after."""

    recipient: str
    donor: str
    before: int
    after: int
    picture: str  # file below the run's folder


@dataclass(frozen=True)
class Carried:
    """How many images of a group carry a cue."""

    images: int
    n: int  # of the group, and of the cue's label where it has one


@dataclass(frozen=True)
class Finding:
    """A cue that the model relies on, confirmed on images that did not propose it."""

    kind: CueKind
    exchange: str
    place: str
    label: int | None  # None: images of all labels
    follows: float  # on the confirming images
    low: float | None
    high: float | None
    chance: float  # how often the label is predicted after exchanges with other images
    limit: float
    n: int
    images: int  # that carry the cue, of all
    severity: Severity
    examples: tuple[Example, ...] = ()
    allowed: str = ""  # the reason why the policy allows it
    groups: Mapping[str, Mapping[str, Carried]] | None = optional()  # by column and group of the images


@dataclass(frozen=True)
class Examination:
    """What the model relies on, as far as the images tell."""

    method: str  # of the maps
    images: int
    proposing: int
    passes: int
    proposals: int
    rates: tuple[ExchangeRate, ...]
    probes: tuple[ProbeRate, ...]
    zones: tuple[Zone, ...]
    findings: tuple[Finding, ...]
