"""What results.json holds, as types: written from them, and refused when it is read where it does not fit them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from auditkit.data.dataset import FailedImage
from auditkit.errors import BadInput, OtherVersion
from auditkit.metrics.faithfulness import parse_labels
from auditkit.metrics.statistics import Method
from auditkit.metrics.table import METRICS
from auditkit.metrics.values import Note
from auditkit.model.card import Assumed, Assumption
from auditkit.records import Json, from_json, optional, to_object
from auditkit.runs.folder import figures
from auditkit.runs.folder.examination import Examination, Finding
from auditkit.runs.folder.figures import (
    Evidence,
    IntervalKind,
    MetricResult,
    Severity,
    Shortened,
    Status,
    Taken,
    Verdict,
)
from auditkit.runs.folder.groups import Gap, GroupFigure, Groups

SCHEMA_VERSION = 2
PREPROCESSING = "preprocessing-stated"  # the check that it is not a guess
EXIT_CODES: dict[Verdict | None, int] = {"pass": 0, "measured": 0, "fail": 1, "inconclusive": 3, None: 3}
GATE_EXIT_CODES = {"pass": 0, "fail": 1, "not assessed": 3}


@dataclass(frozen=True)
class ModelFile:
    """The audited file."""

    path: str
    sha256: str
    identity: str  # of its content, external data included
    external: Mapping[str, str] | None = optional()  # digest of each file of external data


@dataclass(frozen=True)
class CardOrigin:
    """Where the preprocessing comes from."""

    source: str
    sha256: str | None
    assumed: Assumed | None = optional()  # None: somebody stated it, or the model takes pixels as they are
    assumed_size: tuple[int, int] | None = optional()  # that nobody stated, of a file that leaves it open

    def __post_init__(self) -> None:
        says_so = next((why for why in get_args(Assumed) if self.source.endswith(f" ({why})")), None)
        if self.sha256 is None and says_so != self.assumed:
            raise ValueError(f"has the source '{self.source:.60}', but is {self.assumed or 'not assumed'}.")

    @property
    def assumption(self) -> Assumption | None:
        """What nobody stated about the preprocessing; None where nothing was assumed."""
        return Assumption.of(self.source, self.assumed, self.assumed_size)


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
    groups: Mapping[str, Mapping[str, tuple[str, ...]]] | None = optional()  # images by column and group


@dataclass(frozen=True)
class Refusal:
    """A problem for which a bundle could not be used."""

    kind: str
    message: str


@dataclass(frozen=True)
class Preliminary:
    """A run that is not finished: its results are those of its first images."""

    images: int
    total: int  # that it takes
    written: str  # when
    units: tuple[str, ...]  # whose rows the results follow from; others may have been measured since

    @property
    def text(self) -> str:
        """How far the run is, in a sentence."""
        return f"{self.images} of {self.total} images were measured; the run is not finished, and nothing is decided."


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
    salt: str | None = optional()  # of an audit, whose seed follows from it
    fail_on_finding: str | None = optional()  # in place of the policy's
    taken: Taken | None = optional()  # None: all images were given at once
    preliminary: Preliminary | None = optional()  # None: the run is finished
    shortened: Shortened | None = optional()  # None: nothing was left out to keep within a time

    @property
    def written(self) -> str | None:
        """When the results were written; None for an evaluation."""
        return self.ended if self.preliminary is None else self.preliminary.written


SHIPPED = ("explore", "standard", "strict")  # policies that come with auditkit


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
    cannot_tell: tuple[str, ...] = ()  # sentences about maps that it cannot tell from good ones
    fail_on_finding: Severity | None = optional()  # None: no finding about the model fails an audit

    @property
    def origin(self) -> str:
        """What a reader must know beside its name; empty for one that comes with auditkit."""
        if self.shipped:
            return ""
        return f"calls itself {self.name} and is not" if self.name in SHIPPED else "not one that auditkit ships"


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
    evidence: Evidence | None = optional()  # None: chance does not affect it
    part_of: str | None = optional()
    against: str | None = optional()  # the control that it was compared with
    what_to_do: str | None = optional()
    suppression: RecordedSuppression | None = optional()
    would_be: Status | None = optional()
    group: str | None = optional()  # that decides a check of every group
    of: str | None = optional()  # whose figure it is, in words
    more_images: figures.MoreImages | None = optional()  # that would decide it
    interval: IntervalKind = "test"


@dataclass(frozen=True)
class FindingGate:
    """Whether findings about the model fail an audit; the verdict about the maps does not count them."""

    fail_on: Severity  # the least severity of a finding that fails
    status: Literal["pass", "fail", "not assessed"]


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

    @property
    def targets_listed_labels(self) -> bool:
        """See Evaluation."""
        return parse_labels(self.labels).labels is not None and not self.renormalise


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
    examined: int | None = optional()  # images of the examination; None: the model was not examined


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
    change: Literal["higher", "lower"] | None  # None: the interval includes 0, or the runtimes may be the cause
    better: bool | None  # of the second run; None also where models or their preparation differ
    note: Note | None = None
    interval: IntervalKind = "bootstrap"


@dataclass(frozen=True)
class CheckChange:
    """A check whose status differs between two runs; None where a run does not have it."""

    id: str
    before: Status | None
    after: Status | None


@dataclass(frozen=True)
class FindingChange:
    """A finding about the model, without its examples; None where a run does not have it."""

    before: Finding | None
    after: Finding | None
    label_name: str | None = optional()


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
    findings: tuple[FindingChange, ...] = ()
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Results:
    """All that results.json holds."""

    tool: Tool
    run: RunFacts
    subject: Subject
    settings: Settings
    environment: Mapping[str, str]
    runtime: figures.Runtime | None
    metrics: tuple[MetricResult, ...]
    controls: tuple[MetricResult, ...]
    comparisons: tuple[MetricResult, ...]
    classes: tuple[MetricResult, ...]
    classes_are: Literal["given", "predicted"]
    reliability: tuple[figures.Agreement, ...]
    points: tuple[figures.SamplingError, ...]
    flags: tuple[figures.Flag, ...]
    failed_images: tuple[FailedImage, ...]
    limitations: tuple[str, ...]
    checks: tuple[CheckResult, ...] = ()
    verdict: Verdict | None = None
    verdict_reason: str = ""
    policy: RecordedPolicy | None = None
    software: Mapping[str, str | None] | None = None
    explained: figures.Explained | None = None
    randomisation: figures.Randomisation | None = None
    baseline: Comparison | None = None
    hints: tuple[figures.Hint, ...] = ()
    reproductions: tuple[figures.Reproduction, ...] = ()
    examination: Examination | None = None
    not_examined: str = ""  # why the model was not examined, where the policy asks for it
    groups: Groups | None = optional()  # None: the images have none
    finding_gate: FindingGate | None = optional()  # None: no finding about the model fails the audit
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def parse(cls, plain: Json, where: Path) -> "Results":
        """The results that a file holds; BadInput names the first key that does not fit."""
        version = plain.get("schema_version") if isinstance(plain, dict) else None
        if version != SCHEMA_VERSION:
            versions = f"schema_version {version!r}, but this auditkit reads {SCHEMA_VERSION}"
            raise OtherVersion(f"{where} has {versions}; run the command again in a new folder.")
        results = from_json(cls, plain, str(where))
        figures = [*results.metrics, *results.controls, *results.comparisons, *results.classes]
        named: list[MetricResult | DifferenceResult | GroupFigure | Gap] = [*figures]
        named += results.baseline.differences if results.baseline else ()
        named += [*results.groups.figures, *results.groups.gaps] if results.groups else ()
        for name in (entry.name for entry in named):
            if name not in METRICS:
                raise BadInput(f"{where} has a metric '{name:.60}' that this auditkit does not know.")
        return results

    def to_json(self) -> dict[str, Json]:
        """The object of results.json."""
        return to_object(self)

    @property
    def exit_code(self) -> int:
        """What an audit ends with: 1 if the maps or the model fail, else 3 if either is undecided, else 0."""
        codes = {EXIT_CODES[self.verdict]}
        if self.finding_gate is not None:
            codes.add(GATE_EXIT_CODES[self.finding_gate.status])
        return 1 if 1 in codes else max(codes)

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
