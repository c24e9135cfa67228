"""The figures of a run and what is odd about them, as results.json holds them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from auditkit.metrics.faithfulness import ROUNDING
from auditkit.metrics.values import NotAssessed, Note, require
from auditkit.records import optional

CONTROL = "control:"  # begins the name of a source that knows nothing of the model
ONE_MAP_PREFIX = f"{CONTROL}one-map:"  # and the bundle whose map of the predicted label poses for all labels
MOST_CHANGE = 2e-3  # of a figure by the runtime, on average; a precision that changes more is not good enough
Status = Literal["fail", "error", "inconclusive", "not assessed", "suppressed", "pass"]
STATUSES: tuple[Status, ...] = ("fail", "error", "inconclusive", "not assessed", "suppressed", "pass")  # worst first
Severity = Literal["info", "low", "medium", "high", "critical"]
Verdict = Literal["pass", "fail", "inconclusive", "measured"]
# Bootstrap intervals and Wilson's describe the images at the stated confidence. The interval of a test contains the
# limits that the test of a check rules out on neither side, with an error of at most 5 % on each.
IntervalKind = Literal["bootstrap", "Wilson", "test"]
FlagKind = Literal[
    "copies", "unusable-images", "images-without-label", "runtime-off", "strict-precision-used",
    "same-map-for-all-labels", "position-only", "constant", "ties", "tie-order-matters", "maps-missing",
]  # fmt: skip
_SHARE_OF_IMAGES = ("count", "total")
_SHARE_OF_MAPS = ("bundle", "count", "total")
_FLAG_NEEDS: dict[FlagKind, tuple[str, ...]] = {
    "copies": _SHARE_OF_IMAGES, "unusable-images": _SHARE_OF_IMAGES, "images-without-label": _SHARE_OF_IMAGES,
    "same-map-for-all-labels": _SHARE_OF_MAPS, "position-only": _SHARE_OF_MAPS, "constant": _SHARE_OF_MAPS,
    "ties": _SHARE_OF_MAPS, "tie-order-matters": ("bundle", "infill", "value"), "maps-missing": ("bundle", "count"),
}  # fmt: skip


def _check_interval(value: float | None, low: float | None, high: float | None, n: int) -> None:
    """ValueError where a mean, its interval and its images do not go together."""
    ends = [end for end in (low, high) if end is not None]
    if len(ends) == 1 or ends != sorted(ends):
        raise ValueError(f"has an interval from {low} to {high}.")
    if value is not None and n < 1:
        raise ValueError(f"has a value on {n} images.")


@dataclass(frozen=True)
class Flag:
    """Something odd about the images, the runtime or a bundle's maps, counted."""

    kind: FlagKind
    bundle: str | None = None  # None: it is about the images or the runtime
    count: int | None = None
    total: int | None = None
    infill: str | None = None
    value: float | None = None  # by how much insertion moves

    def __post_init__(self) -> None:
        require(self, self.kind, _FLAG_NEEDS.get(self.kind, ()))


@dataclass(frozen=True)
class MetricResult:
    """A metric of a source under an infill: its mean with an interval, or why there is none."""

    name: str
    bundle: str | None  # None: it is about the model, not about heatmaps
    labels: str
    infill: str
    eps1: float | None
    eps2: float | None
    steps: str
    range: tuple[float, float]
    value: float | None
    low: float | None
    high: float | None
    confidence: float
    n: int
    not_assessed: NotAssessed | None = None
    note: Note | None = None
    against: str | None = optional()  # the source whose figure was subtracted
    class_index: int | None = optional("class")
    protocol: str | None = optional()
    renormalised: bool | None = optional()
    interval: IntervalKind = "bootstrap"

    def __post_init__(self) -> None:
        _check_interval(self.value, self.low, self.high, self.n)

    @property
    def is_control(self) -> bool:
        """Whether it is about a control, not about a bundle."""
        return (self.bundle or "").startswith(CONTROL)


@dataclass(frozen=True)
class Agreement:
    """Whether images rank the bundles alike by a metric; or, with `against`, whether two metrics agree."""

    infill: str
    name: str
    n: int | None = optional()
    krippendorff_alpha: float | None = optional()
    inter_method: float | None = optional()
    against: str | None = optional()
    spearman: float | None = optional()


@dataclass(frozen=True)
class SamplingError:
    """How far the figures of a source may be off because its curves are known at some points only."""

    name: str | None  # the metric, of those from 0 to 1, that may be off most; None where nobody knows
    bundle: str
    infill: str
    error: float | None
    errors: Mapping[str, float]
    n: int

    def of(self, metric: str) -> float | None:
        """How far a metric may be off; None where nobody knows."""
        return self.errors.get(metric, self.error)


@dataclass(frozen=True)
class Runtime:
    """How far the runtime is from itself and from strict float32 on the CPU, on a sample of rows."""

    reference: str | None  # None: there is no file that could run on the CPU
    rows: int
    repeated: float  # largest difference of a probability when a batch is run again
    largest: float | None  # and when it is run on the reference
    mean: float | None
    insertion: float | None  # mean absolute change of a figure
    alpha: float | None
    beta: float | None
    note: str | None  # why another precision is used than was planned
    log_odds: float | None = optional()  # mean absolute change of an area of log-odds

    def __post_init__(self) -> None:
        if self.reference is not None:
            require(self, "compared with a reference", ("insertion", "alpha", "beta"))

    @property
    def changes(self) -> dict[str, float]:
        """The mean absolute change of each figure; 0 where there is no reference."""
        return {"insertion": self.insertion or 0.0, "alpha": self.alpha or 0.0, "beta": self.beta or 0.0}

    @property
    def largest_change(self) -> float | None:
        """The largest mean change of a figure; None where there is no reference."""
        return None if self.reference is None else max(self.changes.values())

    @property
    def matters(self) -> bool:
        """Whether a figure changes by more than is acceptable."""
        return max(self.changes.values()) > MOST_CHANGE


@dataclass(frozen=True)
class RandomisationStage:
    """How alike the maps are once some layers are re-initialised."""

    stage: int
    layers: tuple[str, ...]
    share: float
    spearman: float | None
    low: float | None
    high: float | None
    n: int
    absolute: float | None
    constant: int
    correlations: tuple[float, ...]  # of each image, whose mean is `spearman`

    def __post_init__(self) -> None:
        _check_interval(self.spearman, self.low, self.high, self.n)
        if len(self.correlations) != self.n:
            raise ValueError(f"has {len(self.correlations)} correlations on {self.n} images.")
        if any(abs(correlation) > 1 + ROUNDING for correlation in self.correlations):
            raise ValueError("has a correlation that is not between -1 and 1.")


@dataclass(frozen=True)
class NotRandomised:
    """Why nothing is known about the dependence on the model; runs.summary.wording has the sentence."""

    cause: Literal["function", "supplied", "other-maps", "few-parameters", "no-maps", "no-stage"]
    detail: str = ""


@dataclass(frozen=True)
class Randomisation:
    """Whether maps depend on what the model has learned; or why that was not assessed."""

    not_assessed: NotRandomised | None = optional()
    method: str | None = optional()
    images: int | None = optional()
    label: str | None = optional()
    seed: int | None = optional()
    layers: int | None = optional()
    confidence: float | None = optional()
    series: tuple[RandomisationStage, ...] | None = optional()
    notes: tuple[str, ...] | None = optional()


@dataclass(frozen=True)
class Evidence:
    """The e-values of a check that is tested; 20 or more decides (see metrics.betting)."""

    holds: float  # the least of its tests, for a limit that is kept
    fails: float  # the mean of its tests, for a limit that is missed; 0 where a test lacks images
    tests: int  # one for every bundle, infill and control


@dataclass(frozen=True)
class MoreImages:
    """How many images would decide an open check, if all are like those that were measured."""

    total: int | None  # None: more than can be estimated, metrics.betting.MOST_TIMES times as many
    each_group: bool = False  # of each group


@dataclass(frozen=True)
class Hint:
    """A change to the maps of a bundle after which they fit the model clearly better."""

    bundle: str
    change: str  # such as "flipped left to right"
    before: float  # relevance gain of the maps as they are
    after: float
    n: int  # images

    @property
    def text(self) -> str:
        """The hint in a sentence."""
        return (f"The maps of {self.bundle} fit the model better when {self.change}: relevance gain {self.after:.2f} "
                f"instead of {self.before:.2f} on {self.n} images.")  # fmt: skip


Obstacle = Literal["no-method", "unknown-method", "options", "file", "no-gradient", "other-inputs", "no-maps",
                   "unsteady", "too-costly", "failed"]  # fmt: skip
_OBSTACLES: dict[Obstacle, str] = {
    "no-method": "the bundle names no method",
    "unknown-method": "auditkit has no such method",
    "options": "the bundle does not state all options and the seed, as auditkit explain does",
    "file": "the method reads a file",
    "no-gradient": "the model has no gradient here",
    "other-inputs": "the maps were made from other inputs",
    "no-maps": "no image of this audit has a map",
    "unsteady": "the maps of the method change too much with rounding",
    "too-costly": "it would take too many passes",
    "failed": "making them failed",
}


@dataclass(frozen=True)
class Reproduction:
    """How well some maps of a bundle agree with those that the method it names makes anew; or why none were made."""

    bundle: str
    method: str  # as the bundle names it
    obstacle: Obstacle | None = None
    detail: str = ""  # of the obstacle
    maps: int = 0  # made anew
    median: float | None = None  # of their rank correlations
    least: float | None = None
    limit: float | None = None
    decides: Literal["least", "median"] = "least"  # which of the two must reach the limit

    def __post_init__(self) -> None:
        if self.obstacle is None:
            require(self, "made anew", ("median", "least", "limit"))

    @property
    def reproduced(self) -> bool | None:
        """Whether the maps that were made anew are like the bundle's; None if none could be made."""
        value = self.least if self.decides == "least" else self.median
        return None if value is None or self.limit is None else value >= self.limit

    @property
    def text(self) -> str:
        """The result in a sentence."""
        if self.obstacle is not None:
            detail = f": {self.detail.removesuffix('.')}" if self.detail else ""
            return f"The maps of {self.bundle} cannot be reproduced here: {_OBSTACLES[self.obstacle]}{detail}."
        answer = "are" if self.reproduced else "are not"
        return (f"The maps of {self.bundle} {answer} those of this model and {self.method}: {self.maps} "
                f"recomputed maps have a median rank correlation of {self.median:.3f} with them, the least is "
                f"{self.least:.3f}; the {self.decides} must reach {self.limit:g}.")  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """The images that had been taken when a run looked whether they decide, and the maps that there were."""

    images: int
    digest: str
    bundles: Mapping[str, str]


@dataclass(frozen=True)
class Taking:
    """How many images an audit takes, and when it looks at them."""

    until_decided: bool = False  # stop when every check that counts is decided
    limit: int | None = None  # images at most
    first_look: int | None = None  # images before a first report

    @property
    def in_batches(self) -> bool:
        """Whether images are taken in an order of their own, and not all at once."""
        return self != Taking()

    def ends(self, needed: int, images: int) -> list[int]:
        """How many of the images have been taken after each batch.

        Until it is decided, these are as many as a verdict needs, then half as many again.
        """
        most = min(self.limit or images, images)
        ends = [] if self.first_look is None else [self.first_look]
        while self.until_decided and needed < most:
            ends.append(needed)
            needed += (needed + 1) // 2
        return [*sorted({end for end in ends if end < most}), most]


@dataclass(frozen=True)
class Shortened:
    """What a plan left out to keep within a time, by how fast the machine was when it was planned."""

    seconds: float  # to keep within
    method: str | None = None  # that makes the maps
    instead_of: str | None = None  # the method that was asked for
    images: int | None = None  # that are taken at most; None: all
    total: int = 0  # images at hand
    until_decided: bool = False  # images are taken until every check that counts is decided

    def __post_init__(self) -> None:
        if (self.method is None) != (self.instead_of is None):
            raise ValueError("has a method without the one that it replaces, or the other way round.")

    @property
    def options(self) -> tuple[str, ...]:
        """The same as options of the command line."""
        method = f"--method {self.method}" if self.method else ""
        until_decided = "--until-decided" if self.until_decided else ""
        limit = "" if self.images is None else f"--limit {self.images}"
        return tuple(filter(None, (method, until_decided, limit)))

    @property
    def text(self) -> str:
        """What was left out, and how to choose otherwise, in two sentences."""
        changes = [f"{self.method} makes the maps instead of {self.instead_of}"] if self.method else []
        if self.images is not None or self.until_decided:
            number = f"the {self.total}" if self.images is None else f"at most {self.images} of {self.total}"
            changes.append(f"{number} images are taken{', until every check is decided' * self.until_decided}")
        return (
            f"To keep within {self.seconds / 60:.3g} min at the speed that this machine had at the start, "
            f"{' and '.join(changes)}; a faster or less busy machine would leave out less. "
            f"For the same on any machine, give {' '.join(self.options)}; for everything, --budget none."
        )


@dataclass(frozen=True)
class Taken:
    """The images that a run had to take from; it took them by the SHA256 of the seed and their content."""

    count: int
    digest: str
    earlier: tuple[Batch, ...]  # all but the last, which is the run's
    taking: Taking


@dataclass(frozen=True)
class ExplanationRequest:
    """What a method was asked for."""

    method: str
    labels: str | None
    options: Mapping[str, str]
    seed: int
    gradient: str
    pool: str | None


@dataclass(frozen=True)
class Explained:
    """Maps that the audit made itself."""

    method: str
    request: ExplanationRequest
    passes: int
    gradients: int
    computed: tuple[str, ...]
    notes: tuple[str, ...]
