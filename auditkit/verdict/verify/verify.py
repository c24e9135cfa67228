"""All checks of a run, one after the other; what does not hold is listed, and so is what could not be checked."""

import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from auditkit.errors import AuditError, BadInput, OtherVersion
from auditkit.runs.evaluation.plan import EvaluationPlan, environment
from auditkit.runs.executor import Progress, silent
from auditkit.runs.folder import checksums
from auditkit.runs.folder.store import RESULTS, RUN
from auditkit.verdict.verify import consistency, judgement, maps, recompute, sample
from auditkit.verdict.verify.originals import Opened, Originals, opened
from auditkit.verdict.verify.run_record import Recorded

Depth = Literal["rows", "digests", "run"]
Told = tuple[str, list[str]]  # what was looked at, and what does not hold
STRANGE = (TypeError, ValueError, LookupError, AttributeError, OverflowError, OSError)  # from files that others wrote
SHARE, MAPS = 0.05, 2  # of the images: those whose rows are computed again, and those whose maps are made again


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    about: str  # what holds of it, with counts, where nothing is wrong
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """Which rows were computed anew, so that another can do the same, and how far they may be off."""

    share: float
    seed: int
    images: int  # drawn
    deciding: int  # and so many more, since they decide most
    escape: str  # what such a sample misses, in a sentence
    tolerance: float
    why: str


@dataclass
class Verification:
    """What was checked, what does not hold, and what was not checked."""

    run: str
    checks: list[Check] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    sample: Sample | None = None

    @property
    def problems(self) -> list[str]:
        """All that does not hold."""
        return [problem for check in self.checks for problem in check.problems]

    def to_json(self) -> dict[str, Any]:
        """Plain object for `verify --json`."""
        return {"schema_version": 1, "holds": not self.problems, **asdict(self)}

    def look(self, name: str, step: Callable[[], Told], *, asks: bool = False) -> bool:
        """Do one check; whether all of it holds. `asks`: what it needs and lacks, the user can give."""
        try:
            about, problems = step()
        except (*STRANGE, AuditError) as error:
            if asks and isinstance(error, BadInput) and not self.problems:
                raise
            about, problems = "", [f"the {name} cannot be made sense of ({type(error).__name__}: {error})"]
        self.checks.append(Check(name, about, tuple(problems)))
        return not problems


def verify(
    run: Path, originals: Originals | None = None, *, depth: Depth = "rows", share: float = SHARE,
    images_mapped: int = MAPS, seed: int | None = None, progress: Progress = silent,
) -> Verification:  # fmt: skip
    """Whether the run's files are unchanged, follow from each other, and come out again from the originals.

    Without a seed the sample is drawn anew each time: who changes a run cannot know where nobody will look. Of maps
    that the audit made, those of `images_mapped` images are made again.
    """
    if not 0 < share <= 1:
        raise BadInput(f"a sample of {share:g} of the images is none; give a share above 0, up to 1.")
    if images_mapped < 0:
        raise BadInput(f"maps of {images_mapped} images cannot be made again; give a number from 0 up.")
    if seed is not None and seed < 0:
        raise BadInput(f"seed {seed} is negative.")
    if not any((run / name).is_file() for name in (RUN, RESULTS, checksums.SUMS)):
        raise BadInput(f"{run} is not a run: it has no {RUN}.")
    found = Verification(str(run))
    recorded, whole = _inside(found, run)
    if recorded is None or depth == "run":
        found.not_checked += ["whether model, images and heatmaps are the run's, and its rows and maps come out again"]
        return found
    try:
        files = opened(recorded, originals or Originals())
    except BadInput as error:
        if not found.problems:
            raise
        found.not_checked.append(f"model, images, heatmaps and rows: {error}")
        return found
    except STRANGE as error:
        files = Opened(problems=[f"what the run says of them makes no sense ({type(error).__name__}: {error})"])
    found.look("originals", lambda: (f"{files.count} have the digests that are recorded", files.problems))
    if depth == "digests":
        found.not_checked.append("whether rows and maps come out again")
    elif files.work is None or not whole:
        found.not_checked.append("whether rows and maps come out again: first, originals and parts must hold")
    else:
        seed = secrets.randbelow(2**32) if seed is None else seed
        _again(found, recorded, files.work, share, seed, progress)
        _made_again(found, recorded, files.work, images_mapped, seed, (originals or Originals()).pool, progress)
    return found


def _inside(found: Verification, run: Path) -> tuple[Recorded | None, bool]:
    """The run looked at by itself: what it says, None where it is no run any more; and whether its parts hold."""
    if not any((run / name).exists() for name in (RESULTS, checksums.SUMS)):
        raise BadInput(f"{run} is not finished; give its command again, then verify.")
    try:
        recorded = Recorded.of(run)
    except BadInput as error:
        if found.look("files", lambda: _files(run)) and isinstance(error, OtherVersion):
            raise  # an older run is not a changed one
        found.checks.append(Check("settings", "", (str(error),)))
        return None, False
    found.look("files", lambda: _files(run))
    found.look("settings", lambda: ("say the same in run.json and results.json", consistency.settings(recorded)))
    about = f"{len(recorded.units)} units, each sealed with its key"
    if whole := found.look("parts", lambda: (about, consistency.parts(recorded))):
        with np.errstate(all="ignore"):
            found.look("rows", lambda: _told("{:,} fit their curves and formulas", consistency.rows(recorded)))
            found.look("results", lambda: _told("{:,} figures follow from the rows", consistency.summed_up(recorded)))
    if recorded.results.policy is not None:
        _judged(found, recorded)
    return recorded, whole


def _judged(found: Verification, recorded: Recorded) -> None:
    """What an audit adds to an evaluation."""
    found.look("verdict", lambda: _told("follows from results and policy, {} checks", judgement.verdict(recorded)))
    if stages := judgement.stages(recorded):
        about = f"{len(stages)} follow from the maps of re-initialised models"
        found.look("stages", lambda: (about, judgement.series(recorded)))
    if why_not := judgement.cannot_render(recorded):
        found.not_checked.append(f"whether the report shows these results: {why_not}")
    else:
        found.look("report", lambda: ("shows these results, byte for byte", judgement.report(recorded)))
    found.not_checked += judgement.beyond(recorded)


def _files(run: Path) -> Told:
    problems = checksums.check(run)
    return f"{0 if problems else len(checksums.read(run))} are as listed in {checksums.SUMS}", problems


def _told(text: str, counted: tuple[int, list[str]]) -> Told:
    return text.format(counted[0]), counted[1]


def _again(
    found: Verification, recorded: Recorded, work: EvaluationPlan, share: float, seed: int, progress: Progress
) -> None:  # fmt: skip
    """A sample of the rows from the originals, and the runtime's own error."""
    runtime = recorded.runtime
    if runtime is None:
        found.not_checked.append("rows: no map could be used, so there are none")
        return
    count, tolerance = len(work.images), recompute.Tolerance.of(recorded, runtime, work)
    drawn = sample.drawn(count, share, seed)
    most = [place for place in _deciding(recorded, work) if place not in drawn]
    found.sample = Sample(share, seed, len(drawn), len(most), sample.told(count, len(drawn)), tolerance.value,
                          tolerance.why)  # fmt: skip
    text = (
        f"{{:,}} rows of {len(drawn)} images, drawn with seed {seed}, and {len(most)} that decide most come out again"
    )
    positions = sorted([*drawn, *most])
    found.look("sample", lambda: _told(text, recompute.compared(recorded, work, positions, tolerance, progress)))
    if tolerance.same:
        found.look("runtime", lambda: ("has the error that is recorded", recompute.runtime(runtime, work)))
    else:
        found.not_checked.append(f"the runtime's error: it was another ({tolerance.why})")


def _deciding(recorded: Recorded, work: EvaluationPlan) -> list[int]:
    """Positions of the images that decide most; rows that make no sense are a problem of the results already."""
    places = {image: place for place, image in enumerate(work.images.ids)}
    try:
        with np.errstate(all="ignore"):
            return [places[image] for image in sample.deciding(recorded) if image in places]
    except (*STRANGE, AuditError):
        return []


def _made_again(
    found: Verification, recorded: Recorded, work: EvaluationPlan, wanted: int, seed: int, pool: Path | None,
    progress: Progress,
) -> None:  # fmt: skip
    """Maps of a few images, where the audit made them: the first ones of the sample."""
    if not (method := maps.made_by(recorded)):
        found.not_checked += [maps.SUPPLIED] if work.bundles else []
        return
    if not wanted:
        found.not_checked.append(f"whether the maps are those that {method} makes")
        return
    order = sample.drawn(len(work.images), 1.0, seed)

    def step() -> Told:
        same = recorded.run["environment"] == environment(work.model)
        made = maps.again(recorded, work, order, wanted, pool, same, progress)
        about = f"{made.maps} maps of {made.images} of {len(order)} images, made again by {method}, rank pixels alike"
        return f"{about} (least rank correlation {made.least:.4f}; {maps.ALIKE} is asked for)", made.problems

    found.look("maps", step, asks=True)
