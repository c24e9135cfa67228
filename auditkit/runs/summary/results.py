"""The results of a run, from what an evaluation summed up."""

from collections.abc import Mapping

import numpy as np

from auditkit import __version__
from auditkit.methods.registry import METHODS
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.folder.figures import Explained, Flag
from auditkit.runs.folder.results import Results, RunFacts, Subject, Tool
from auditkit.runs.summary.groups import by_group
from auditkit.runs.summary.summarise import Summary

LIMITATIONS = (
    "Worst completeness and soundness are the least over the labels of an image, averaged over images; an attacker may "
    "find worse.",
    "Metrics apply to these images, settings and infill; figures measured with other settings are not comparable.",
    "Insertion, deletion and the saliency metric are about the predicted label, or about each of the labels that were "
    "listed; lower is better in the last two.",
    "A faithful map shows what the model relies on, not whether it should: a model that takes a shortcut can have "
    "faithful maps.",
)


def without_figures(subject: Subject, settings: Evaluation, environment: Mapping[str, str]) -> Results:
    """The results of a run whose maps could not be used."""
    return Results(
        tool=Tool("auditkit", __version__), run=RunFacts(0, {}, {}, None, {}, 0), subject=subject,
        settings=settings.to_record(), environment=environment, runtime=None, metrics=(), controls=(), comparisons=(),
        classes=(), classes_are="predicted", reliability=(), points=(), flags=(), failed_images=(),
        limitations=LIMITATIONS,
    )  # fmt: skip


def results(summary: Summary, explained: Explained | None = None) -> Results:
    """The results of a run that kept its rows; `explained` says how it made its maps, if it did."""
    record = summary.record
    if record is None:
        raise ValueError("an evaluation in memory has no results to keep")
    groups = record.subject.groups
    return Results(
        tool=Tool("auditkit", __version__),
        run=RunFacts(len(summary.table), record.bundles, record.bundle_paths, record.pool, record.infill_images,
                     summary.table.copies),
        subject=record.subject, settings=record.settings, environment=record.environment,
        runtime=summary.runtime,
        metrics=tuple(metric for metric in summary.metrics if not metric.is_control),
        controls=tuple(metric for metric in summary.metrics if metric.is_control),
        comparisons=summary.comparisons, classes=summary.classes,
        classes_are="predicted" if np.isnan(summary.table.truth).all() else "given",
        reliability=summary.reliability, points=summary.points, flags=_flags(summary, explained),
        failed_images=summary.failed_images, limitations=LIMITATIONS,
        groups=by_group(summary.samples, groups, summary.points) if groups else None,
        explained=explained,
    )  # fmt: skip


def _flags(summary: Summary, explained: Explained | None) -> tuple[Flag, ...]:
    """The flags, without those that accuse a run's own maps of being those of other images.

    Where a model looks at the same place in several images, its maps are alike. Maps that somebody supplied may
    have been copied; maps that the run made from each image were not.
    """
    if explained is None or not METHODS[explained.request.method].explains_each_image:
        return summary.flags
    return tuple(flag for flag in summary.flags if flag.kind != "position-only")
