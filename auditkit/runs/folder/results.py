"""What results.json holds, as types: written from them, and refused at the door where it does not fit them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from auditkit.data.dataset import FailedImage
from auditkit.errors import BadInput, OtherVersion
from auditkit.metrics.statistics import Method
from auditkit.metrics.table import METRICS
from auditkit.metrics.values import NotAssessed, Note, require
from auditkit.records import Json, from_json, json_name, optional, to_object

SCHEMA_VERSION = 2
CONTROL = "control:"  # begins the name of a source that knows nothing of the model
ONE_MAP = f"{CONTROL}one-map:"  # and the bundle whose map of the predicted label poses for all labels
Status = Literal["fail", "error", "inconclusive", "not assessed", "suppressed", "pass"]
STATUSES: tuple[Status, ...] = ("fail", "error", "inconclusive", "not assessed", "suppressed", "pass")  # worst first
Severity = Literal["info", "low", "medium", "high", "critical"]
Verdict = Literal["pass", "fail", "inconclusive", "measured"]
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
    class_index: int | None = json_name("class")
    protocol: str | None = optional()
    renormalised: bool | None = optional()

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

    name: str | None  # the metric that may be off most; None where nobody knows
    bundle: str
    infill: str
    error: float | None
    errors: Mapping[str, float]
    n: int


@dataclass(frozen=True)
class Runtime:
    """How far the runtime is from strict float32 on the CPU, on a sample of rows."""

    reference: str | None
    rows: int
    repeated: float
    largest: float | None
    mean: float | None
    insertion: float | None
    alpha: float | None
    beta: float | None
    note: str | None

    def __post_init__(self) -> None:
        if self.reference is not None:
            require(self, "compared with a reference", ("insertion", "alpha", "beta"))

    @property
    def largest_change(self) -> float | None:
        """The largest mean change of a figure; None where there is no reference."""
        changes = (self.insertion, self.alpha, self.beta)
        return None if self.reference is None else max(change or 0.0 for change in changes)


@dataclass(frozen=True)
class ModelFile:
    """The audited file."""

    path: str
    sha256: str
    identity: str  # of its content, external data included


@dataclass(frozen=True)
class CardOrigin:
    """Where the preprocessing comes from."""

    source: str
    sha256: str | None


@dataclass(frozen=True)
class Images:
    """The audited images."""

    source: str
    count: int
    digest: str


CardValue = None | bool | int | float | str | tuple[int | float, ...]


@dataclass(frozen=True)
class Subject:
    """Which model, read and prepared how, on which images."""

    model: ModelFile | Literal["callable"]
    input: str
    output: str
    kind: str
    classes: int
    layout: str
    dtype: str
    card_origin: CardOrigin
    card: Mapping[str, CardValue]
    class_names: tuple[str, ...]
    images: Images


@dataclass(frozen=True)
class Refusal:
    """A problem for which a bundle could not be used."""

    kind: str
    message: str


@dataclass(frozen=True)
class RunFacts:
    """How the run went, and what it was made from."""

    rows: int
    bundles: Mapping[str, str]  # digest of each bundle's maps
    bundle_paths: Mapping[str, str]
    pool: str | None
    infill_images: Mapping[str, str]
    copies: int
    bundle_models: Mapping[str, str | None] | None = optional()
    bundle_methods: Mapping[str, str] | None = optional()
    refused_bundles: Mapping[str, tuple[Refusal, ...]] | None = optional()
    pool_path: str | None = optional()
    started: str | None = optional()
    ended: str | None = optional()
    command: tuple[str, ...] | None = optional()
    git_commit: str | None = optional()
    fail_on: str | None = optional()


@dataclass(frozen=True)
class RecordedPolicy:
    """The policy that a run was judged by."""

    name: str
    description: str
    sha256: str
    shipped: bool
    text: str
    minimum_images: int
    fail_on: str


@dataclass(frozen=True)
class RecordedSuppression:
    """Who answers for a finding."""

    reason: str
    approver: str
    expires: str


@dataclass(frozen=True)
class CheckResult:
    """What became of one check."""

    id: str
    title: str
    metric: str
    status: Status
    observed: float | None
    low: float | None
    high: float | None
    n: int
    limit: float | None
    rule: str
    severity: Severity
    required: bool
    reason: str
    counts: bool = True
    part_of: str | None = optional()
    suppression: RecordedSuppression | None = optional()
    would_be: Status | None = optional()


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

    def __post_init__(self) -> None:
        _check_interval(self.spearman, self.low, self.high, self.n)


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


@dataclass(frozen=True)
class Tool:
    """What wrote the results."""

    name: str
    version: str


@dataclass(frozen=True)
class Settings:
    """The settings of the evaluation, resolved; all of them are part of a figure's name."""

    labels: str
    renormalise: bool
    protocol: str | None
    infill: tuple[str, ...]
    steps: str
    range: tuple[float, float]
    eps1: float | None
    eps2: float | None
    ties: str
    tie_orders: int
    seed: int
    draws: int
    controls: bool
    deletion: bool
    saliency: str
    confidence: float
    interval: Method
    conventions: Mapping[str, str]  # what the definitions leave open


@dataclass(frozen=True)
class PolicyName:
    """A policy by name and digest."""

    name: str | None
    sha256: str | None


@dataclass(frozen=True)
class RunIdentity:
    """What tells a run from others."""

    run: str
    model: ModelFile | Literal["callable"]
    images: Images
    bundles: Mapping[str, str]
    policy: PolicyName
    environment: Mapping[str, str]
    verdict: Verdict | None
    suppressed: tuple[str, ...]
    results: str | None = optional()  # digest of results.json


@dataclass(frozen=True)
class DifferenceResult:
    """A metric of the second run less that of the first, over what both have."""

    name: str
    bundle_a: str | None
    bundle_b: str | None
    infill: str
    value_a: float
    value_b: float
    value: float
    low: float | None
    high: float | None
    confidence: float
    n: int
    better: bool | None
    note: Note | None = None


@dataclass(frozen=True)
class CheckChange:
    """A check whose status differs between two runs; None where a run does not have it."""

    id: str
    before: Status | None
    after: Status | None


@dataclass(frozen=True)
class Comparison:
    """What two runs have in common, and where they differ; differences are b less a."""

    a: RunIdentity
    b: RunIdentity
    shared_images: int
    only_a: int
    only_b: int
    differences: tuple[DifferenceResult, ...]
    checks: tuple[CheckChange, ...]
    notes: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Results:
    """All that results.json holds."""

    tool: Tool
    run: RunFacts
    subject: Subject
    settings: Settings
    environment: Mapping[str, str]
    runtime: Runtime | None
    metrics: tuple[MetricResult, ...]
    controls: tuple[MetricResult, ...]
    comparisons: tuple[MetricResult, ...]
    classes: tuple[MetricResult, ...]
    classes_are: Literal["given", "predicted"]
    reliability: tuple[Agreement, ...]
    points: tuple[SamplingError, ...]
    flags: tuple[Flag, ...]
    failed_images: tuple[FailedImage, ...]
    limitations: tuple[str, ...]
    checks: tuple[CheckResult, ...] = ()
    verdict: Verdict | None = None
    verdict_reason: str = ""
    policy: RecordedPolicy | None = None
    software: Mapping[str, str | None] | None = None
    explained: Explained | None = None
    randomisation: Randomisation | None = None
    baseline: Comparison | None = None
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def parse(cls, plain: Json, where: Path) -> "Results":
        """The results that a file holds; BadInput names the first key that does not fit."""
        version = plain.get("schema_version") if isinstance(plain, dict) else None
        if version != SCHEMA_VERSION:
            raise OtherVersion(
                f"{where} has schema_version {version!r}, but this auditkit reads {SCHEMA_VERSION}; run the command "
                "again in a new folder."
            )
        results = from_json(cls, plain, str(where))
        unknown = [name for name in results.metric_names if name not in METRICS]
        if unknown:
            raise BadInput(f"{where} has a metric '{unknown[0]:.60}' that this auditkit does not know.")
        return results

    def to_json(self) -> dict[str, Json]:
        """The object of results.json."""
        return to_object(self)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics that it has figures or differences of."""
        names = [entry.name for entry in (*self.metrics, *self.controls, *self.comparisons, *self.classes)]
        differences = self.baseline.differences if self.baseline else ()
        return tuple(dict.fromkeys([*names, *(difference.name for difference in differences)]))

    @property
    def bundles(self) -> tuple[str, ...]:
        """Bundles that the run names or has figures of, without the controls."""
        measured = (entry.bundle for entry in self.metrics if entry.bundle)
        return tuple(dict.fromkeys([*self.run.bundles, *measured]))

    @property
    def infills(self) -> tuple[str, ...]:
        """The infills that were asked for or have figures."""
        measured = (entry.infill for entry in self.metrics if entry.infill)
        return tuple(dict.fromkeys([*self.settings.infill, *measured]))
