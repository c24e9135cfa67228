"""An audit in shards: several machines measure parts of it, which are merged."""

from pathlib import Path

from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.evidence.salt import random_salt
from auditkit.model.classifier import AnyClassifier
from auditkit.runs.evaluate import evaluate_shard
from auditkit.runs.executor import Progress, Shard
from auditkit.runs.folder.store import Store
from auditkit.verdict.audit import AuditRequest, about_run, refusals, settings_of_run


def require_divisible(request: AuditRequest) -> None:
    """Refuse an audit of which later work depends on all figures or on maps that it makes itself."""
    if request.explanation is not None or request.taking.in_batches:
        raise BadInput("an audit in shards uses all images and existing maps: make the maps with explain --shard, "
                       "merge them, and give --heatmaps.")  # fmt: skip


def require_salt(request: AuditRequest) -> None:
    """Refuse a shard that would draw a salt of its own, so that nothing could be merged with it."""
    if request.salt is None:
        raise BadInput("the shards of an audit must draw the same random numbers: give each of them the same salt, "
                       f"such as --salt {random_salt()}.")  # fmt: skip


def audit_shard(
    model: AnyClassifier, images: Dataset, request: AuditRequest, out: Path, shard: Shard, progress: Progress
) -> tuple[int, int]:
    """Measure a shard of an audit's units; its number of units, and that of all."""
    refused = refusals(model, request.bundles)
    usable = {name: maps for name, maps in request.bundles.items() if name not in refused}
    about = about_run(model, images, request)
    with Store.open(out, settings_of_run(about, request)) as store:
        return evaluate_shard(
            model, images, usable, request.evaluation, store, shard, progress, request.infill_pool, request.command,
            record_machine=request.record_machine,
        )  # fmt: skip
