"""What a policy says: the settings of an evaluation, the checks on its results, and who answers for exceptions."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from importlib import resources

from auditkit.errors import BadInput, unknown
from auditkit.methods.controls import CONTROLS as DRAWN
from auditkit.metrics.betting import FEWEST_IMAGES
from auditkit.metrics.table import title
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.folder.figures import CONTROL, Severity
from auditkit.runs.folder.results import PREPROCESSING, SHIPPED, RecordedPolicy, RecordedSuppression
from auditkit.runs.summary.wording import source_text

SEVERITIES: tuple[Severity, ...] = ("info", "low", "medium", "high", "critical")
FAIL_ON = SEVERITIES[1:]  # what is for information never fails
ONE_MAP_CONTROL = "one-map"  # the bundle's own map of the predicted label, posing for all labels
CONTROLS = (*DRAWN, ONE_MAP_CONTROL)

RULES = ("min", "max", "min_margin_over")
NOT_REPRODUCED = "not-reproduced"  # the finding that supplied maps are not those of the method that they name
BUILT_IN = ("record", "settings", PREPROCESSING, "images", "labels", "controls", "identity", "maps-usable")


@dataclass(frozen=True)
class Check:
    """One thing that must hold of every bundle under every infill."""

    id: str
    metric: str
    rule: str  # one of RULES
    limit: float
    severity: Severity
    title: str = ""
    required: bool = True  # False: when it cannot be assessed, that does not hold the verdict up
    over: tuple[str, ...] = ()  # controls that a margin is taken over: it must hold over each of them
    what_to_do: str = ""  # where it fails
    every_group: bool = False  # whether it must hold in every group of images by itself

    @property
    def rule_text(self) -> str:
        """The rule as results.json writes it."""
        return self.rule if self.rule != "min_margin_over" else f"margin over {self._control or 'every control'}"

    @property
    def requirement(self) -> str:
        """The check in words."""
        return f"{self._requirement}{' in every group' if self.every_group else ''}"

    @property
    def _requirement(self) -> str:
        about = title(self.metric)
        if self.rule != "min_margin_over":
            return f"{about} {'at least' if self.rule == 'min' else 'at most'} {self.limit:g}"
        over = f"that of {source_text(self._control)}" if self._control else "every control"
        if self.limit < 0:
            return f"{about} less than {-self.limit:g} below {over}"
        return f"{about} above {over}" + (f" by more than {self.limit:g}" if self.limit else "")

    @property
    def _control(self) -> str:
        return f"{CONTROL}{self.over[0]}" if len(self.over) == 1 else ""


@dataclass(frozen=True)
class Suppression:
    """A finding that somebody answers for, up to and including a day."""

    check: str
    reason: str
    approver: str
    expires: date

    def to_record(self) -> RecordedSuppression:
        """The entry of results.json."""
        return RecordedSuppression(self.reason, self.approver, self.expires.isoformat())


@dataclass(frozen=True)
class Randomisation:
    """The randomisation check: how many images, in how many stages layers are re-initialised from the last one on."""

    images: int = 32
    stages: int = 4


@dataclass(frozen=True)
class ExaminationRules:
    """What the model may rely on, and how severe it is if it relies on anything else."""

    severity: Severity | None = None  # of every finding; None: by how often the prediction follows
    allowed: Mapping[str, str] = field(default_factory=dict)  # reasons by kind of cue


@dataclass(frozen=True)
class Policy:
    """Settings of an evaluation, and what must hold of its results."""

    name: str
    description: str
    evaluation: Evaluation  # what is None depends on the model
    minimum_images: int
    max_failed_images: float  # share of the images that may have no figure
    controls: tuple[str, ...]  # that must have been measured
    randomisation: Randomisation | None
    fail_on: Severity
    checks: tuple[Check, ...]
    suppressions: tuple[Suppression, ...]
    text: str  # as it was given
    pass_means: str = ""  # in a sentence
    cannot_tell: tuple[str, ...] = ()  # sentences about maps that it cannot tell from good ones
    hints: bool = False  # whether to look for a mistake where supplied maps do not pass
    examination: ExaminationRules | None = None  # None: the model is not examined
    reproduce: bool = False  # whether to recompute some of the supplied maps, by the method that they name
    fail_on_finding: Severity | None = None  # the least severity of a finding about the model that fails an audit

    @property
    def images_needed(self) -> int:
        """Images without which nothing is decided."""
        return max(self.minimum_images, FEWEST_IMAGES)

    @property
    def sha256(self) -> str:
        """Digest of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def shipped(self) -> bool:
        """Whether it is a policy of this auditkit, word for word, and not just called like one."""
        return self.name in SHIPPED and self.text == shipped_text(self.name)

    def to_record(self) -> RecordedPolicy:
        """The entry of results.json."""
        return RecordedPolicy(self.name, self.description, self.sha256, self.shipped, self.text, self.minimum_images,
                              self.fail_on, self.cannot_tell, self.fail_on_finding)  # fmt: skip


def deciding(severity: str) -> Severity:
    """The severity, if a verdict can fail on it."""
    for known in FAIL_ON:
        if severity == known:
            return known
    raise BadInput(unknown("severity", severity, FAIL_ON))


def at_least(severity: Severity, least: Severity) -> bool:
    """Whether a severity is so high, or higher."""
    return SEVERITIES.index(severity) >= SEVERITIES.index(least)


def shipped_text(name: str) -> str:
    """The text of a policy that comes with auditkit."""
    return (resources.files("auditkit.verdict") / "policies" / f"{name}.toml").read_text("utf-8")
