"""A run as a CycloneDX 1.6 bill of materials: the model with its model card, and the images it was audited on."""

import json
from collections.abc import Iterator

from auditkit.metrics.table import title
from auditkit.report import answers, groups, pipeline, sections, wording
from auditkit.report.formatting import source
from auditkit.report.identifiers import identifier, line
from auditkit.report.load_run import Loaded
from auditkit.report.notices import notices
from auditkit.runs.folder.figures import MetricResult
from auditkit.runs.folder.groups import GroupFigure
from auditkit.runs.folder.results import ModelFile, Results

SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
_IMAGES = "images"  # the reference to their component

_Object = dict[str, object]  # of JSON


def render_cyclonedx(loaded: Loaded) -> str:
    """The bill of materials."""
    results = loaded.results
    tool = {"type": "application", "name": "auditkit", "version": results.tool.version}
    metadata: _Object = {
        "tools": {"components": [tool]},
        "properties": [
            _property("results.json:sha256", loaded.digest),
            *_statuses(results),
            *(_property("finding_gate", text) for text in answers.gate(results)),
        ],
    }
    if results.run.written:
        metadata["timestamp"] = results.run.written
    bom: _Object = {
        "$schema": SCHEMA, "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": f"urn:uuid:{identifier(loaded, 'cyclonedx')}", "metadata": metadata,
        "components": [_model(results), _images(results)],
    }  # fmt: skip
    return json.dumps(bom, indent=2, allow_nan=False) + "\n"


def _statuses(results: Results) -> list[_Object]:
    """The status of the verdict, of each check and of each finding about the model."""
    return [_property(f"status:{entry.id}", entry.status) for entry in pipeline.entries(results)]


def _model(results: Results) -> _Object:
    model, subject = results.subject.model, results.subject
    component: _Object = {
        "type": "machine-learning-model", "bom-ref": "model", "name": line(sections.subject_name(results)),
        "modelCard": {
            "modelParameters": {
                "task": "image classification", "datasets": [{"ref": _IMAGES}],
                "inputs": [{"format": line(f"{subject.layout} {subject.dtype}")}],
                "outputs": [{"format": line(f"{subject.kind} of {subject.classes} classes")}],
            },
            "quantitativeAnalysis": {"performanceMetrics": [*_figures(results)]},
            "considerations": _considerations(results),
        },
    }  # fmt: skip
    if isinstance(model, ModelFile):
        component["hashes"] = [{"alg": "SHA-256", "content": model.sha256}]
        component["properties"] = [_property("identity", model.identity)]
    return component


def _images(results: Results) -> _Object:
    images = results.subject.images
    return {"type": "data", "bom-ref": _IMAGES, "name": line(images.source) or "images",
            "data": [{"type": "dataset", "name": f"{images.count} images"}],
            "properties": [_property("digest", images.digest)]}  # fmt: skip


def _figures(results: Results) -> Iterator[_Object]:
    """The figures of the model and its maps, and those by group; controls and classes stay in results.json."""
    for metric in results.metrics:
        if metric.value is not None:
            yield _figure(metric, "")
    for figure in results.groups.figures if results.groups else ():
        yield _figure(figure, f"{figure.column} {figure.group}")


def _figure(figure: MetricResult | GroupFigure, group: str) -> _Object:
    maps = f"heatmaps {source(figure.bundle)}" if figure.bundle else ""
    infill = f"infill {figure.infill}" if figure.infill else ""
    entry: _Object = {"type": title(figure.name), "value": f"{figure.value:.6g}"}
    kind = "" if figure.low is None else f"{figure.interval} interval"
    entry["slice"] = line(", ".join(filter(None, (group, f"{figure.n} images", maps, infill, kind))))
    if figure.low is not None and figure.high is not None:
        entry["confidenceInterval"] = {"lowerBound": f"{figure.low:.6g}", "upperBound": f"{figure.high:.6g}"}
    return entry


def _considerations(results: Results) -> _Object:
    """What the figures may not be used to claim, what was not assessed, and gaps between groups."""
    missing = [f"Not assessed: {text}" for text in answers.not_assessed(results)]
    texts = (*map(str, notices(results)), *wording.limits(results), *missing)
    limits: _Object = {"technicalLimitations": [line(text) for text in texts]}
    gaps = [gap for gap in results.groups.gaps if gap.at_least] if results.groups else []
    if gaps:
        pairs = zip(gaps, groups.shown_gaps(results), strict=True)
        limits["fairnessAssessments"] = [{"groupAtRisk": line(f"{gap.column} {gap.lower}"), "harms": line(text)}
                                         for gap, text in pairs]  # fmt: skip
    return limits


def _property(name: str, value: str) -> _Object:
    return {"name": line(f"auditkit:{name}"), "value": line(value)}
