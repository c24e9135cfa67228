"""Runs all checks of a run; lists the problems, and what could not be checked."""

import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from auditkit.errors import AuditError, BadInput, OtherVersion
from auditkit.runs.evaluation.plan import EvaluationPlan, environment
from auditkit.runs.executor import Progress, silent
from auditkit.runs.folder import checksums
from auditkit.runs.folder.store import RESULTS, RUN
from auditkit.verdict.verify import consistency, judgement, maps, recompute, sample
from auditkit.verdict.verify.originals import OpenedOriginals, Originals, open_originals
from auditkit.verdict.verify.run_record import Outcome, RecordedRun

Depth = Literal["rows", "digests", "run"]
MALFORMED = (TypeError, ValueError, LookupError, AttributeError, OverflowError, OSError)  # raised by changed files
SHARE = 0.05  # of the images: their rows are recomputed
MAPS = 2  # images whose maps are recreated


@dataclass(frozen=True)
class Check:
    """One check and its problems."""

    name: str
    about: str  # what holds, with counts
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """Which rows were recomputed, so that anyone can repeat it, and the tolerance."""

    share: float
    seed: int
    images: int  # drawn at random
    deciding: int  # images added because they decide most
    escape: str  # what a sample of this size misses, in a sentence
    tolerance: float
    why: str


@dataclass
class Verification:
    """The checks with their problems, and what was not checked."""

    run: str
    checks: list[Check] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    sample: Sample | None = None

    @property
    def problems(self) -> list[str]:
        """The problems of all checks."""
        return list(chain.from_iterable(check.problems for check in self.checks))

    def to_json(self) -> dict[str, object]:
        """Plain object for `verify --json`."""
        return {"schema_version": 1, "holds": not self.problems, **asdict(self)}

    def check(self, name: str, step: Callable[[], Outcome], *, asks: bool = False) -> bool:
        """Run one check; whether it holds. `asks`: the user can supply what it lacks."""
        try:
            about, problems = step()
        except (*MALFORMED, AuditError) as error:
            if asks and isinstance(error, BadInput) and not self.problems:
                raise
            about, problems = "", [f"the {name} cannot be made sense of ({type(error).__name__}: {error})"]
        self.checks.append(Check(name, about, tuple(problems)))
        return not problems


def verify(
    run: Path, originals: Originals | None = None, *, depth: Depth = "rows", share: float = SHARE,
    images_mapped: int = MAPS, seed: int | None = None, progress: Progress = silent,
) -> Verification:  # fmt: skip
    """Check that the run's files are unchanged, agree with each other, and can be recomputed from the originals.

    Without a seed every call draws another sample, so nobody can know which images will not be recomputed. If the
    audit made the maps, those of `images_mapped` images are recreated.
    """
    if not 0 < share <= 1:
        raise BadInput(f"a sample of {share:g} of the images is none; give a share above 0, up to 1.")
    if images_mapped < 0:
        raise BadInput(f"maps of {images_mapped} images cannot be made again; give a number from 0 up.")
    if seed is not None and seed < 0:
        raise BadInput(f"seed {seed} is negative.")
    if not any((run / name).is_file() for name in (RUN, RESULTS, checksums.SUMS)):
        raise BadInput(f"{run} is not a run: it has no {RUN}.")
    result = Verification(str(run))
    recorded, units_hold = _check_folder(result, run)
    if recorded is None or depth == "run":
        result.not_checked += ["whether model, images and heatmaps are the run's, and its rows and maps come out again"]
        return result
    try:
        files = open_originals(recorded, originals or Originals())
    except BadInput as error:
        if not result.problems:
            raise
        result.not_checked.append(f"model, images, heatmaps and rows: {error}")
        return result
    except MALFORMED as error:
        problem = f"what the run says of them makes no sense ({type(error).__name__}: {error})"
        files = OpenedOriginals(problems=[problem])
    result.check("originals", lambda: (f"{files.count} have the digests that are recorded", files.problems))
    if depth == "digests":
        result.not_checked.append("whether rows and maps come out again")
    elif files.plan is None or not units_hold:
        result.not_checked.append("whether rows and maps come out again: first, originals and parts must hold")
    else:
        seed = secrets.randbelow(2**32) if seed is None else seed
        _check_rows(result, recorded, files.plan, share, seed, progress)
        _check_maps(result, recorded, files.plan, images_mapped, seed, (originals or Originals()).pool, progress)
    return result


def _check_folder(result: Verification, run: Path) -> tuple[RecordedRun | None, bool]:
    """Check the run's folder: its record, None if it cannot be read; and whether its units hold."""
    if not any((run / name).exists() for name in (RESULTS, checksums.SUMS)):
        raise BadInput(f"{run} is not finished; give its command again, then verify.")
    try:
        recorded = RecordedRun.of(run)
    except BadInput as error:
        if result.check("files", lambda: _files(run)) and isinstance(error, OtherVersion):
            raise  # an older run is not a changed one
        result.checks.append(Check("settings", "", (str(error),)))
        return None, False
    result.check("files", lambda: _files(run))
    result.check("settings", lambda: consistency.check_settings(recorded))
    units_hold = result.check("parts", lambda: consistency.check_units(recorded))
    if units_hold:
        with np.errstate(all="ignore"):
            result.check("rows", lambda: consistency.check_rows(recorded))
            result.check("results", lambda: consistency.check_summary(recorded))
    if recorded.results.policy is not None:
        _check_audit(result, recorded)
    return recorded, units_hold


def _check_audit(result: Verification, recorded: RecordedRun) -> None:
    """Check what an audit adds to an evaluation."""
    result.check("verdict", lambda: judgement.check_verdict(recorded))
    if judgement.stages(recorded):
        result.check("stages", lambda: judgement.check_stages(recorded))
    obstacle = judgement.rendering_obstacle(recorded)
    if obstacle:
        result.not_checked.append(f"whether the report shows these results: {obstacle}")
    else:
        result.check("report", lambda: judgement.check_report(recorded))
    result.not_checked += judgement.unchecked(recorded)


def _files(run: Path) -> Outcome:
    problems = checksums.check(run)
    return f"{0 if problems else len(checksums.read(run))} are as listed in {checksums.SUMS}", problems


def _check_rows(
    result: Verification, recorded: RecordedRun, plan: EvaluationPlan, share: float, seed: int, progress: Progress
) -> None:  # fmt: skip
    """Recompute a sample of the rows from the originals, and the runtime's error."""
    runtime = recorded.runtime
    if runtime is None:
        result.not_checked.append("rows: no map could be used, so there are none")
        return
    count, tolerance = len(plan.images), recompute.Tolerance.of(recorded, runtime, plan)
    drawn = sample.drawn(count, share, seed)
    most = [position for position in _deciding(recorded, plan) if position not in drawn]
    result.sample = Sample(share, seed, len(drawn), len(most), sample.escape_text(count, len(drawn)), tolerance.value,
                          tolerance.why)  # fmt: skip

    def step() -> Outcome:
        rows, problems = recompute.compare_rows(recorded, plan, sorted([*drawn, *most]), tolerance, progress)
        images = f"{len(drawn)} images, drawn with seed {seed}, and {len(most)} that decide most"
        return f"{rows:,} rows of {images} come out again", problems

    result.check("sample", step)
    if tolerance.same:
        result.check("runtime", lambda: recompute.check_runtime(runtime, plan))
    else:
        result.not_checked.append(f"the runtime's error: it was another ({tolerance.why})")


def _deciding(recorded: RecordedRun, plan: EvaluationPlan) -> list[int]:
    """Positions of the images that decide most; none if the rows are malformed, which the results check reports."""
    places = {image: position for position, image in enumerate(plan.images.ids)}
    try:
        with np.errstate(all="ignore"):
            return [places[image] for image in sample.deciding(recorded) if image in places]
    except (*MALFORMED, AuditError):
        return []


def _check_maps(
    result: Verification, recorded: RecordedRun, plan: EvaluationPlan, wanted: int, seed: int, pool: Path | None,
    progress: Progress,
) -> None:  # fmt: skip
    """Recreate the maps of the first images of the sample, if the audit made them."""
    method = maps.method_name(recorded)
    if not method:
        result.not_checked += [maps.SUPPLIED] if plan.bundles else []
        return
    if not wanted:
        result.not_checked.append(f"whether the maps are those that {method} makes")
        return
    order = sample.drawn(len(plan.images), 1.0, seed)

    def step() -> Outcome:
        same = recorded.run["environment"] == environment(plan.model)
        made = maps.recreate_maps(recorded, plan, order, wanted, pool, same, progress)
        about = f"{made.maps} maps of {made.images} of {len(order)} images, made again by {method}, rank pixels alike"
        return f"{about} (least rank correlation {made.least:.4f}; {maps.ALIKE} is asked for)", made.problems

    result.check("maps", step, asks=True)
