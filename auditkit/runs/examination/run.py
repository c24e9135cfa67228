"""An examination in a folder of its own: the maps, the pictures of the findings, examination.json and a page."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from auditkit import __version__
from auditkit.data import bundle_check
from auditkit.data.atomic_write import write_whole
from auditkit.data.bundles import HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.model.classifier import AnyClassifier
from auditkit.records import to_object
from auditkit.runs.evaluation.plan import bundle_digest, environment, subject, without_paths
from auditkit.runs.examination import examine as examination
from auditkit.runs.executor import Phase
from auditkit.runs.explain import Explanation, explain
from auditkit.runs.folder import checksums
from auditkit.runs.folder.examination import FOLDER
from auditkit.runs.folder.examination_run import ExaminationRun
from auditkit.runs.folder.names import EXAMINATION_RECORD, MAPS, REPORT
from auditkit.runs.folder.results import Tool
from auditkit.runs.folder.store import Store, json_bytes

MAP_PASSES, SMALL_SIDE = (256, 1000), 64  # per image, up to so many pixels a side and above


def examine(
    model: AnyClassifier, images: Dataset, explanation: Explanation, supplied: Path | None, out: Path, phase: Phase,
    render: Callable[[ExaminationRun, Path], str], *, record_machine: bool = False,
) -> ExaminationRun:  # fmt: skip
    """Examine a model by maps that are made here or supplied; the same call resumes.

    Only with `record_machine` are full paths and the names of machines and processes recorded.
    """
    explanation = few_passes(explanation, model)
    bundle = None if supplied is None else _usable(open_bundle(supplied), model, images)
    sample = images.select(examination.drawn(images, bundle, explanation.seed))
    about_model = subject(model, images, full_paths=record_machine)
    examination.require_enough(len(sample))  # before maps are made
    about = {
        "examination": 1, "subject": to_object(about_model), "environment": environment(model),
        "maps": bundle_digest(bundle) if bundle else explanation.name(), "seed": explanation.seed,
    }  # fmt: skip
    with Store.open(out, without_paths(about)):
        maps = bundle
        if maps is None:
            with phase("explaining") as progress:
                maps = explain(
                    model, sample, explanation, out / MAPS, None, progress, root=out, record_machine=record_machine
                )
        with phase("examining") as progress:
            relied_on = examination.examine(model, sample, maps, out / FOLDER, explanation.seed, progress)
        run = ExaminationRun(
            Tool("auditkit", __version__), about_model, environment(model), explanation.seed, relied_on
        )
        write_whole(out / EXAMINATION_RECORD, json_bytes(to_object(run)))
        write_whole(out / REPORT, render(run, out).encode())
        checksums.write(out)
        return run


def _usable(bundle: HeatmapSet, model: AnyClassifier, images: Dataset) -> HeatmapSet:
    """The bundle under the names of these images, if its maps are of this model."""
    for problem in bundle_check.check(bundle, None, model.identity, model.signature.classes):
        if problem.severity == "error":
            raise BadInput(problem.message)
    return bundle.named_as(images)


def few_passes(explanation: Explanation, model: AnyClassifier) -> Explanation:
    """The same for predicted labels, with fewer passes than usual, unless some are given: a square is soon found."""
    explanation = replace(explanation, labels="top1").adapted_to(model)
    if explanation.method != "differences" or "most_passes" in dict(explanation.options):
        return explanation
    large = max(model.signature.height, model.signature.width) > SMALL_SIDE
    passes = MAP_PASSES[1 if large else 0]
    return replace(explanation, options=(*explanation.options, ("most_passes", str(passes))))
