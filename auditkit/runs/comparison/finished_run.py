"""A finished run, read from its folder: its results and its rows."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from auditkit.errors import BadInput
from auditkit.metrics.table import compute_all
from auditkit.metrics.values import NotAssessed, Values
from auditkit.recorded_names import path_name
from auditkit.runs.folder import checksums
from auditkit.runs.folder.contents import require_readable
from auditkit.runs.folder.names import RESULTS, RUN
from auditkit.runs.folder.results import ModelFile, PolicyName, Results, RunIdentity
from auditkit.runs.folder.store import Store
from auditkit.runs.summary.row_table import RowTable


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its results, and its rows."""

    name: str
    results: Results
    digest: str  # of results.json
    table: RowTable

    def metrics(self, bundle: str, infill: str) -> dict[str, Values | NotAssessed]:
        """Each metric of a bundle before it is averaged."""
        return {metric.name: metric for metric in compute_all(self.table.metric_rows[bundle, infill])}

    def identity(self) -> RunIdentity:
        """What tells it from other runs; folders of paths do not, and another run's records must not name them."""
        results, policy = self.results, self.results.policy
        model, images = results.subject.model, results.subject.images
        if isinstance(model, ModelFile):
            model = replace(model, path=path_name(Path(model.path)))
        images = replace(images, source=path_name(Path(images.source)))
        return RunIdentity(
            self.name, model, images, results.run.bundles,
            PolicyName(None, None) if policy is None else PolicyName(policy.name, policy.sha256), results.environment,
            results.verdict, tuple(check.id for check in results.checks if check.status == "suppressed"), self.digest,
            None if results.examination is None else results.examination.images,
        )  # fmt: skip


def read_run(folder: Path) -> FinishedRun:
    """The finished run in a folder."""
    if not folder.is_dir():
        raise BadInput(f"there is no run {folder}; give the folder that audit or evaluate wrote.")
    if not (folder / RUN).exists():
        raise BadInput(f"{folder} is not a run (it has no {RUN}); give the folder that audit or evaluate wrote.")
    require_readable(folder)
    store = Store(folder)
    results, keys = store.results(), store.keys()
    if results.run.preliminary is not None:
        raise BadInput(f"{folder} is not finished; run its command again, then compare.")
    if not keys:
        raise BadInput(f"{folder} has no rows to compare; its folder 'items' is missing or empty.")
    table = RowTable(partial(store.tables, keys), named=results.settings.targets_listed_labels)
    expected = results.run.rows
    if len(table) != expected:
        raise BadInput(f"{folder / 'items'} holds {len(table)} rows, but the run made {expected}; see auditkit verify.")
    digest = checksums.digest(folder / RESULTS)
    return FinishedRun(folder.resolve().name, results, digest, table)
