"""Runs all checks of a run: it holds, it does not hold, or some of it could not be checked."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from auditkit.errors import AuditError, BadInput, OtherVersion, RuntimeFailure
from auditkit.evidence import archive
from auditkit.methods.registry import METHODS
from auditkit.records import Json, to_json, to_object
from auditkit.report.load_run import load
from auditkit.runs.comparison.compare import compare
from auditkit.runs.evaluation.measure import Row
from auditkit.runs.evaluation.plan import EvaluationPlan
from auditkit.runs.executor import Progress, silent
from auditkit.runs.folder import checksums, contents
from auditkit.runs.folder.names import COMMITMENT, RESULTS, RUN
from auditkit.runs.summary.summarise import Summary
from auditkit.verdict.verify import (
    consistency,
    evidence,
    examination,
    maps,
    moved,
    pictures,
    recompute,
    run_files,
    sample,
    stored_rows,
)
from auditkit.verdict.verify.evidence import Trust
from auditkit.verdict.verify.originals import OpenedOriginals, Originals, open_originals
from auditkit.verdict.verify.run_record import Outcome, RecordedRun, differences

Answer = Literal["holds", "does not hold", "could not be checked"]
EXIT_CODES: dict[Answer, int] = {"holds": 0, "could not be checked": 3, "does not hold": 5}
LEAST_IMAGES = 32  # whose rows are recomputed by default, or SHARE of a larger set
SHARE = 0.05
MOST_SHOWN = 50  # problems of a check, or gaps; more tell a reader nothing
COSTLY_MAPS = 2  # images whose maps are recreated by default if each takes many passes; LEAST_IMAGES of others
NOT_PROVEN = (
    "times, command and the severities that it sets (--fail-on, --fail-on-finding), whether a budget "
    "chose the method or the number of images, commit, versions, names of machines, folders of files, "
    "counts of passes, that the salt was drawn only once, whether the preprocessing was stated or "
    "assumed, and how supplied maps were made that the run did not make anew: only a signature "
    "vouches for them"
)


@dataclass(frozen=True)
class Check:
    """One check, its problems, and what of it could not be checked."""

    name: str
    about: str  # what holds, with counts
    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """Which rows were recomputed, so that anyone can repeat it, and the tolerance."""

    seed: int
    images: int  # drawn at random
    deciding: int  # images added because they decide most
    escape: str  # what a sample of this size misses, in a sentence
    tolerance: float
    why: str


@dataclass(frozen=True)
class Sampling:
    """How much is recomputed; None stands for the default."""

    share: float | None = None  # of the images, for rows
    images_mapped: int | None = None  # images whose maps are recreated
    seed: int | None = None  # None: every call draws another sample, so nobody knows which images are left out

    def __post_init__(self) -> None:
        if self.share is not None and not 0 < self.share <= 1:
            raise BadInput(f"a sample of {self.share:g} of the images is not possible; give a share above 0, up to 1.")
        if self.images_mapped is not None and self.images_mapped < 0:
            raise BadInput(f"the maps of {self.images_mapped} images cannot be made again; give 0 or more.")
        if self.seed is not None and self.seed < 0:
            raise BadInput(f"seed {self.seed} is negative.")


def shown(texts: Sequence[str]) -> tuple[str, ...]:
    """As many texts as one reads, and how many more there are."""
    more = len(texts) - MOST_SHOWN
    return (*texts[:MOST_SHOWN], f"and {more:,} more") if more > 0 else tuple(texts)


@dataclass
class Verification:
    """The checks, and what they say together."""

    run: str
    checks: list[Check] = field(default_factory=list)
    sample: Sample | None = None

    @property
    def problems(self) -> list[str]:
        """The problems of all checks."""
        return list(chain.from_iterable(check.problems for check in self.checks))

    @property
    def unchecked(self) -> list[str]:
        """What could not be checked, why, and the way out."""
        return list(chain.from_iterable(check.unchecked for check in self.checks))

    @property
    def answer(self) -> Answer:
        """A run holds only if all of it was checked."""
        if self.problems:
            return "does not hold"
        return "could not be checked" if self.unchecked else "holds"

    def to_json(self) -> dict[str, Json]:
        """Plain object for `verify --json`."""
        checks = [replace(check, problems=shown(check.problems), unchecked=shown(check.unchecked))
                  for check in self.checks]  # fmt: skip
        return {
            "schema_version": 2, "answer": self.answer, "problems": to_json(shown(self.problems)),
            "unchecked": to_json(shown(self.unchecked)), "not_proven": [NOT_PROVEN],
            **to_object(replace(self, checks=checks)),
        }  # fmt: skip

    def check(self, name: str, step: Callable[[], Outcome]) -> bool:
        """Run one check; whether nothing is wrong. A stranger's file may raise anything."""
        try:
            outcome = step()
        except RuntimeFailure as error:
            outcome = Outcome("", (), [f"the {name}: {error}"])
        except Exception as error:
            reason = str(error) if isinstance(error, AuditError) else f"{type(error).__name__}: {error}"
            outcome = Outcome("", [f"the {name} cannot be read ({reason.removesuffix('.')})"])
        self.checks.append(Check(name, outcome.about, tuple(outcome.problems), tuple(outcome.unchecked)))
        return not outcome.problems


def verify(
    run: Path, originals: Originals = Originals(), sampling: Sampling = Sampling(), progress: Progress = silent,
    trust: Trust = Trust(),
) -> Verification:  # fmt: skip
    """Check that the run's files are unchanged, agree with each other, and can be recomputed from the originals.

    If there are trusted keys, one of them must have signed the run. An archive is unpacked and checked as its folder.
    """
    if run.is_file():
        try:
            with archive.unpacked(run) as folder:
                return replace(verify(folder, originals, sampling, progress, trust), run=str(run))
        except archive.Damaged as error:
            return Verification(str(run), [Check("archive", "", (str(error),))])
    if not any((run / name).is_file() for name in (RUN, RESULTS, checksums.SUMS)):
        raise BadInput(f"{run} is not a run: it has no {RUN}.")
    result = Verification(str(run))
    if not any((run / name).exists() for name in (RESULTS, checksums.SUMS)):
        result.checks.append(_not_finished("it has no results yet"))
        return result
    try:
        foreign = contents.scan(run)
    except (contents.Unfit, OSError) as error:
        result.checks.append(Check("files", "", (str(error),)))
        return result
    with run_files.memory_limit(run), np.errstate(all="ignore"):
        unfinished = _preliminary_run(run)
        if unfinished is not None:
            _check_preliminary(result, unfinished)
            return result
        result.check("files", lambda: run_files.check_files(run, foreign))
        for name, step in evidence.checks_of(run, trust).items():
            result.check(name, step)
        recorded = _recorded(result, run)
        if recorded is not None and (run / COMMITMENT).exists():
            result.check("commitment", lambda: evidence.check_commitment(run, recorded.results, trust))
        rows_hold = recorded is not None and _check_folder(result, recorded)
    if recorded is not None:
        _check_originals(result, recorded, originals, sampling, progress, rows_hold=rows_hold)
    return result


def _not_finished(how_far: str) -> Check:
    return Check("end", "", (), (f"the run is not finished: {how_far}. Run its command again to finish it.",))


def _preliminary_run(run: Path) -> RecordedRun | None:
    """A run that says that it is not finished, and is not sealed; None for any other, also if it cannot be read."""
    if (run / checksums.SUMS).exists():
        return None
    try:
        recorded = RecordedRun.of(run)
    except Exception:  # a stranger's file may raise anything, and `_recorded` notes what
        return None
    return recorded if recorded.results.run.preliminary is not None else None


def _check_preliminary(result: Verification, recorded: RecordedRun) -> None:
    """Check what there is of a run that is not finished: its settings, rows, preliminary results and report."""
    preliminary = recorded.results.run.preliminary
    if preliminary is None:
        raise ValueError("the run is finished")
    result.check("settings", lambda: consistency.check_settings(recorded))
    if result.check("parts", lambda: stored_rows.check_units(recorded)):
        result.check("rows", lambda: stored_rows.check_rows(recorded))
        result.check("results", lambda: consistency.check_summary(recorded, consistency.summed_up(recorded)))
        result.check("verdict", lambda: consistency.check_verdict(recorded, None))
        result.check("report", lambda: consistency.check_report(recorded, load(recorded.store.folder)))
    result.checks.append(_not_finished(f"its results are of {preliminary.images} of {preliminary.total} images"))


def _recorded(result: Verification, run: Path) -> RecordedRun | None:
    """The run as its files describe it; None, and noted, if they cannot be read."""
    try:
        return RecordedRun.of(run)
    except OtherVersion as error:  # an older run is not a changed one
        result.checks.append(Check("settings", "", (), (f"all but the files' digests: {error}",)))
    except Exception as error:  # a stranger's file may raise anything
        reason = str(error) if isinstance(error, AuditError) else f"{type(error).__name__}: {error}"
        result.checks.append(Check("settings", "", (f"the run cannot be read: {reason}",)))
    return None


def _check_folder(result: Verification, recorded: RecordedRun) -> bool:
    """Check that the run's files agree with each other; whether its rows do."""
    result.check("settings", lambda: consistency.check_settings(recorded))
    explained, policy = recorded.results.explained, recorded.results.policy
    if explained is not None:
        result.check("own maps", lambda: consistency.check_own_maps(recorded))
    if not result.check("parts", lambda: stored_rows.check_units(recorded)):
        return False
    rows_hold = result.check("rows", lambda: stored_rows.check_rows(recorded))
    try:
        summary = consistency.summed_up(recorded)
    except Exception as error:  # rows that auditkit wrote can be summed up
        result.checks.append(Check("results", "", (f"the rows cannot be summed up ({type(error).__name__}: {error})",)))
        return False
    result.check("results", lambda: consistency.check_summary(recorded, summary))
    if policy is not None:
        result.check("verdict", lambda: consistency.check_verdict(recorded, summary))
        if consistency.stages(recorded):
            result.check("stages", lambda: consistency.check_stages(recorded))
        result.check("report", lambda: _check_shown(result, recorded, summary))
    return rows_hold


def _check_shown(result: Verification, recorded: RecordedRun, summary: Summary | None) -> Outcome:
    """Check the gallery and the report, which are read together."""
    loaded = load(recorded.store.folder, recorded.results)
    result.check("gallery", lambda: consistency.check_gallery(recorded, summary, loaded.gallery))
    return consistency.check_report(recorded, loaded)


def _check_originals(
    result: Verification, recorded: RecordedRun, locations: Originals, sampling: Sampling, progress: Progress, *,
    rows_hold: bool,
) -> None:  # fmt: skip
    """Compare the originals, and recompute from them what they give."""
    opened = list[OpenedOriginals]()

    def compare_digests() -> Outcome:
        opened.append(open_originals(recorded, locations))
        return Outcome(f"{opened[0].count} have the digests that are recorded", opened[0].problems, opened[0].unchecked)

    result.check("originals", compare_digests)
    if recorded.results.baseline is not None:
        result.check("baseline", lambda: _check_baseline(recorded, locations.baseline))
    if recorded.results.runtime is None:
        return  # no map could be used, so there are no rows
    plan = opened[0].plan if opened else None
    if plan is None or not rows_hold:
        missing = opened[0].missing if opened else []
        reason = f"that takes {', '.join(missing)}" if missing else "originals and parts must hold first"
        result.checks.append(Check("sample", "", (), (f"whether rows and maps come out again: {reason}",)))
        return
    sampling = replace(sampling, seed=secrets.randbelow(2**32) if sampling.seed is None else sampling.seed)
    locations.start_workers(plan)
    _recompute(result, recorded, plan, sampling, opened[0], progress)


def _check_baseline(recorded: RecordedRun, baseline: Path | None) -> Outcome:
    """Whether the changes since the baseline are those that the two runs show."""
    then = recorded.results.baseline
    if baseline is None or then is None:
        return Outcome("", (), ["what has changed since the baseline: give --baseline RUN"])
    now, unchecked = compare(baseline, recorded.store.folder), list[str]()
    if now.a.run != then.a.run:
        unchecked.append(f"the name of the baseline: the run calls it '{then.a.run}'; give --baseline under that name")
    expected = replace(now, a=replace(now.a, run=then.a.run), b=replace(now.b, run=then.b.run, results=None))
    problems = [f"{RESULTS}: {text}" for text in differences(to_json(then), to_json(expected), "baseline")]
    return Outcome(f"{len(now.differences)} differences are those of the two runs", problems, unchecked)


def _recompute(
    result: Verification, recorded: RecordedRun, plan: EvaluationPlan, sampling: Sampling, opened: OpenedOriginals,
    progress: Progress,
) -> None:  # fmt: skip
    """Recompute rows, the runtime's error, maps and pictures."""
    deciding, tolerance = _deciding(recorded, plan), recompute.Tolerance.of(recorded, plan)
    _check_rows(result, recorded, plan, deciding, sampling, tolerance, progress)
    if recorded.results.policy is not None:
        result.check("pictures", lambda: pictures.check_pictures(recorded, plan))
        result.check("hints", lambda: maps.check_hints(recorded, plan))
        result.check("examination", lambda: examination.check_examination(recorded, plan, progress))
        result.check("reproductions", lambda: maps.check_reproductions(recorded, plan, opened.pool))
    explained = recorded.results.explained
    if explained is None:
        return
    if "path" in explained.request.options:
        remedy = "the method reads a file that the run names, which verify does not open"
        result.checks.append(Check("maps", "", (), (f"how the maps were made: {remedy}",)))
        return
    images_mapped = sampling.images_mapped
    if images_mapped is None:
        images_mapped = LEAST_IMAGES if _is_cheap(explained.request.method) else COSTLY_MAPS
    if images_mapped == 0:
        result.checks.append(Check("maps", "", (), ("how the maps were made: give --maps 1 or more",)))
        return
    mapped = set[str]().union(*(bundle.labels for bundle in plan.bundles.values()))
    without = {*plan.images.ids} - mapped - {entry.image for entry in recorded.results.failed_images}
    order = sample.drawn(len(plan.images), len(plan.images), sampling.seed or 0)
    drawn = [position for position in order if plan.images.ids[position] in mapped][:images_mapped]
    unmapped = [position for position in order if plan.images.ids[position] in without][:images_mapped]
    also = [position for position in deciding if plan.images.ids[position] in mapped][:images_mapped]
    positions = list(dict.fromkeys([*drawn, *also]))
    result.check("maps", lambda: maps.check_maps(recorded, plan, positions, opened.pool, 2 * tolerance.value, progress))
    if unmapped:
        result.check("unmapped", lambda: maps.check_unmapped(recorded, plan, unmapped, opened.pool))
    if recorded.results.randomisation is not None:
        result.check(
            "randomised", lambda: maps.check_randomisation(recorded, plan, images_mapped, opened.pool, progress)
        )


def _is_cheap(method: str) -> bool:
    return not METHODS[method].learns and METHODS[method].needs != "passes"


def _check_rows(
    result: Verification, recorded: RecordedRun, plan: EvaluationPlan, deciding: Sequence[int], sampling: Sampling,
    tolerance: recompute.Tolerance, progress: Progress,
) -> None:  # fmt: skip
    """Recompute a sample of the rows from the originals, and the runtime's error."""
    runtime, count = recorded.results.runtime, len(plan.images)
    if runtime is None:
        raise ValueError("the run has no rows")
    wanted = max(LEAST_IMAGES, int(np.ceil(SHARE * count)))
    if sampling.share is not None:
        wanted = max(1, int(np.ceil(sampling.share * count)))
    drawn = sample.drawn(count, wanted, sampling.seed or 0)
    added = [position for position in deciding if position not in drawn]
    result.sample = Sample(sampling.seed or 0, len(drawn), len(added), sample.escape_text(count, len(drawn)),
                           tolerance.value, tolerance.why)  # fmt: skip

    tables, all_drawn = moved.Tables(), len(drawn) == count

    def take(key: str, rows: list[Row]) -> None:
        if all_drawn:
            tables[key] = moved.table(recorded, key, rows)

    def compare_rows() -> Outcome:
        positions = sorted([*drawn, *added])
        rows, problems, unchecked = recompute.compare_rows(recorded, plan, positions, tolerance, progress, take)
        images = f"{len(drawn)} images, drawn with seed {sampling.seed}, and {len(added)} that decide most"
        return Outcome(f"{rows:,} rows of {images} come out again", problems, unchecked)

    if recorded.failed_by_model:
        result.check("failed", lambda: recompute.check_failed(recorded, plan))
    result.check("sample", compare_rows)
    if tables.keys() == set(recorded.units.values()):
        result.check("figures", lambda: moved.check_figures(recorded, runtime, tables, plan.model.graphs))
    result.check("runtime", lambda: recompute.check_runtime(recorded, runtime, plan))


def _deciding(recorded: RecordedRun, plan: EvaluationPlan) -> list[int]:
    """Positions of the images that decide most."""
    positions = {image: position for position, image in enumerate(plan.images.ids)}
    with np.errstate(all="ignore"):
        return [positions[image] for image in sample.deciding(recorded) if image in positions]
