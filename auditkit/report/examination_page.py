"""The page of an examination without an audit."""

from pathlib import Path

from auditkit.report.formatting import last
from auditkit.report.html import page
from auditkit.report.load_run import picture
from auditkit.report.sections import Fact
from auditkit.runs.folder.examination import FOLDER
from auditkit.runs.folder.examination_run import ExaminationRun
from auditkit.runs.folder.results import ModelFile


def render_page(run: ExaminationRun, folder: Path) -> str:
    """The examination in a run's folder as one HTML page."""
    subject, model = run.subject, run.subject.model
    file: list[Fact] = [("sha256", model.sha256, True)] if isinstance(model, ModelFile) else []
    origin: list[tuple[str, list[Fact]]] = [
        ("Model and images", [*file, ("images", subject.images.source, True), ("digest", subject.images.digest, True)]),
        ("Examination", [("maps", run.examination.method, True), ("seed", str(run.seed), False),
                         ("forward passes, at most", f"{run.examination.passes:,}", False)]),
        ("Device", [(key.replace("_", " "), value, False) for key, value in run.environment.items()]),
    ]  # fmt: skip
    return page("examination_page.html", {
        "run": run, "version": run.tool.version, "origin": origin,
        "picture": lambda name: picture(folder / FOLDER, name),
        "model": last(model.path) if isinstance(model, ModelFile) else "a function",
    })  # fmt: skip
