"""Runs all checks of a run; lists the problems, and what could not be checked."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from auditkit.errors import AuditError, BadInput, OtherVersion
from auditkit.runs.evaluation.plan import EvaluationPlan
from auditkit.runs.executor import Progress, silent
from auditkit.runs.folder import checksums
from auditkit.runs.folder.store import RESULTS, RUN
from auditkit.verdict.verify import consistency, maps, recompute, sample
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
            about, problems = "", [f"the {name} cannot be checked ({type(error).__name__}: {error})"]
        self.checks.append(Check(name, about, tuple(problems)))
        return not problems


def verify(
    run: Path, originals: Originals = Originals(), *, depth: Depth = "rows", share: float = SHARE,
    images_mapped: int = MAPS, seed: int | None = None, progress: Progress = silent,
) -> Verification:  # fmt: skip
    """Check that the run's files are unchanged, agree with each other, and can be recomputed from the originals.

    Without a seed every call draws another sample, so nobody can know which images will not be recomputed. If the
    audit made the maps, those of `images_mapped` images are recreated.
    """
    if not 0 < share <= 1:
        raise BadInput(f"a sample of {share:g} of the images is not possible; give a share above 0, up to 1.")
    if images_mapped < 0:
        raise BadInput(f"the maps of {images_mapped} images cannot be made again; give 0 or more.")
    if seed is not None and seed < 0:
        raise BadInput(f"seed {seed} is negative.")
    if not any((run / name).is_file() for name in (RUN, RESULTS, checksums.SUMS)):
        raise BadInput(f"{run} is not a run: it has no {RUN}.")
    result = Verification(str(run))
    recorded, units_hold = _check_folder(result, run)
    if recorded is None or depth == "run":
        result.not_checked.append("whether model, images and heatmaps are the run's, and rows and maps come out again")
        return result
    try:
        files = open_originals(recorded, originals)
    except BadInput as error:
        if not result.problems:
            raise
        result.not_checked.append(f"model, images, heatmaps and rows: {error}")
        return result
    except MALFORMED as error:
        files = OpenedOriginals(problems=[f"the run describes them wrongly ({type(error).__name__}: {error})"])
    result.check("originals", lambda: (f"{files.count} have the digests that are recorded", files.problems))
    if depth == "digests":
        result.not_checked.append("whether rows and maps come out again")
    elif files.plan is None or not units_hold:
        result.not_checked.append("whether rows and maps come out again: originals and parts must hold first")
    else:
        seed = secrets.randbelow(2**32) if seed is None else seed
        _check_rows(result, recorded, files.plan, share, seed, progress)
        mapped = set[str]().union(*(bundle.labels for bundle in files.plan.bundles.values()))
        order = sample.drawn(len(files.plan.images), 1.0, seed)
        positions = [position for position in order if files.plan.images.ids[position] in mapped][:images_mapped]
        _check_maps(result, recorded, files.plan, positions, originals.pool, progress)
    return result


def _check_folder(result: Verification, run: Path) -> tuple[RecordedRun | None, bool]:
    """Check the run's folder: its record, None if it cannot be read; and whether its units hold."""
    if not any((run / name).exists() for name in (RESULTS, checksums.SUMS)):
        raise BadInput(f"{run} is not finished; run its command again, then verify.")
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
        result.check("verdict", lambda: consistency.check_verdict(recorded))
        if consistency.stages(recorded):
            result.check("stages", lambda: consistency.check_stages(recorded))
        obstacle = consistency.rendering_obstacle(recorded)
        if obstacle:
            result.not_checked.append(f"whether the report shows these results: {obstacle}")
        else:
            result.check("report", lambda: consistency.check_report(recorded))
        result.not_checked += consistency.unchecked(recorded)
    return recorded, units_hold


def _files(run: Path) -> Outcome:
    problems = checksums.check(run)
    return f"{0 if problems else len(checksums.read(run))} are as listed in {checksums.SUMS}", problems


def _check_rows(
    result: Verification, recorded: RecordedRun, plan: EvaluationPlan, share: float, seed: int, progress: Progress
) -> None:  # fmt: skip
    """Recompute a sample of the rows from the originals, and the runtime's error."""
    runtime = recorded.results.runtime
    if runtime is None:
        result.not_checked.append("rows: no map could be used, so there are none")
        return
    count, tolerance = len(plan.images), recompute.Tolerance.of(recorded, runtime, plan)
    drawn = sample.drawn(count, share, seed)
    added = [position for position in _deciding(recorded, plan) if position not in drawn]
    result.sample = Sample(share, seed, len(drawn), len(added), sample.escape_text(count, len(drawn)), tolerance.value,
                           tolerance.why)  # fmt: skip

    def compare() -> Outcome:
        rows, problems = recompute.compare_rows(recorded, plan, sorted([*drawn, *added]), tolerance, progress)
        images = f"{len(drawn)} images, drawn with seed {seed}, and {len(added)} that decide most"
        return f"{rows:,} rows of {images} come out again", problems

    result.check("sample", compare)
    if tolerance.same:
        result.check("runtime", lambda: recompute.check_runtime(runtime, plan))
    else:
        result.not_checked.append(f"the runtime's error: the environment differs ({tolerance.why})")


def _deciding(recorded: RecordedRun, plan: EvaluationPlan) -> list[int]:
    """Positions of the images that decide most; none if the rows are malformed, which the results check reports."""
    positions = {image: position for position, image in enumerate(plan.images.ids)}
    try:
        with np.errstate(all="ignore"):
            return [positions[image] for image in sample.deciding(recorded) if image in positions]
    except (*MALFORMED, AuditError):
        return []


def _check_maps(
    result: Verification, recorded: RecordedRun, plan: EvaluationPlan, positions: Sequence[int], pool: Path | None,
    progress: Progress,
) -> None:  # fmt: skip
    """Recreate the maps of these images, if the audit made them."""
    explained = recorded.results.explained
    if explained is None:
        result.not_checked += [maps.SUPPLIED] if plan.bundles else []
    elif not positions:
        result.not_checked.append(f"whether the maps are those that {explained.method} makes")
    else:
        result.check("maps", lambda: maps.check_maps(recorded, plan, positions, pool, progress), asks=True)
