"""OSCAL and CycloneDX: they fit the published schemas, are the same for the same run, and name what is not known."""

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

from auditkit.errors import BadInput
from auditkit.report.formats import render
from auditkit.report.load_run import load
from tests.report.test_formats import AUDIT, HOSTILE, PUBLISHED, check, examination, finding, hostile, made

__all__ = ["made"]  # a fixture
GROUPS = {
    "fewest": 8, "tests": 2, "too_small": {"site": {"east": 2}}, "without_group": {},
    "figures": [{"column": "site", "group": group, "name": "accuracy", "bundle": None, "infill": "", "value": value,
                 "low": 0.1, "high": 1.0, "n": 100} for group, value in (("north", 0.9), ("west", 0.2))],
    "gaps": [{"column": "site", "name": "accuracy", "bundle": None, "infill": "", "lower": "west", "higher": "north",
              "difference": 0.7, "at_least": 0.4}],
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "audit": AUDIT, "hostile": hostile(), "grouped": AUDIT | {"groups": GROUPS},
    "examined": AUDIT | {"examination": examination(finding(), finding(1, kind="mark", allowed=HOSTILE))},
    "gated": AUDIT | {"finding_gate": {"fail_on": "high", "status": "pass"}},
    "odd names": AUDIT | {"checks": [check("pass", id="3d"), check("fail", id="a.b_c", title="")]},
}  # fmt: skip
_OSCAL = "oscal_assessment-results_schema.json"
NO_OSCAL = pytest.mark.skipif(
    PUBLISHED is None or not (PUBLISHED / _OSCAL).is_file(), reason=f"AUDITKIT_SCHEMAS names no folder with {_OSCAL}"
)


def _oscal(folder: Path) -> Any:
    return json.loads(render(load(folder), "oscal"))


def _cyclonedx(folder: Path) -> Any:
    return json.loads(render(load(folder), "cyclonedx"))


def _oscal_schema() -> jsonschema.Draft7Validator:
    """The published schema; Python's patterns know no classes of letters, and ours are of ASCII."""
    assert PUBLISHED is not None
    text = (PUBLISHED / _OSCAL).read_text().replace(r"\\p{L}", "[A-Za-z]").replace(r"\\p{N}", "[0-9]")
    return jsonschema.Draft7Validator(json.loads(text), format_checker=jsonschema.FormatChecker())


def _cyclonedx_schema() -> jsonschema.Draft7Validator:
    package = pytest.importorskip("cyclonedx.schema._res", reason="cyclonedx-python-lib has the published schema")
    folder = resources.files(package)
    read = {name: json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text())
            for name in ("bom-1.6", "spdx", "jsf-0.82")}  # fmt: skip
    known = [(f"http://cyclonedx.org/schema/{name}.schema.json", Resource.from_contents(schema))
             for name, schema in read.items()]  # fmt: skip
    registry: Registry[Any] = Registry().with_resources(known)
    return jsonschema.Draft7Validator(read["bom-1.6"], registry=registry, format_checker=jsonschema.FormatChecker())


@NO_OSCAL
@pytest.mark.parametrize("kind", KINDS)
def test_oscal_fits_its_schema(made: Callable[..., Path], kind: str) -> None:
    _oscal_schema().validate(_oscal(made(**KINDS[kind])))


@NO_OSCAL
def test_the_schema_of_oscal_sees_mistakes(made: Callable[..., Path]) -> None:
    for key, wrong in (("target", {"type": "objective-id", "target-id": "a b", "status": {"state": "satisfied"}}),
                       ("target", {"type": "objective-id", "target-id": "a", "status": {"state": "unknown"}}),
                       ("uuid", "1"), ("status", "pass")):  # fmt: skip
        results = _oscal(made(**AUDIT))
        results["assessment-results"]["results"][0]["findings"][0][key] = wrong
        with pytest.raises(jsonschema.ValidationError):
            _oscal_schema().validate(results)


@pytest.mark.parametrize("kind", [*KINDS, "evaluation"])
def test_cyclonedx_fits_its_schema(made: Callable[..., Path], kind: str) -> None:
    _cyclonedx_schema().validate(_cyclonedx(made(**KINDS.get(kind, {}))))


def test_the_schema_of_cyclonedx_sees_mistakes(made: Callable[..., Path]) -> None:
    schema = _cyclonedx_schema()
    for key, wrong in (("type", "model"), ("hashes", [{"alg": "SHA-256", "content": "x"}]), ("card", {})):
        bom = _cyclonedx(made(**AUDIT))
        bom["components"][0][key] = wrong
        with pytest.raises(jsonschema.ValidationError):
            schema.validate(bom)


def test_the_model_card_has_figures_with_intervals_by_group(made: Callable[..., Path]) -> None:
    model, images = _cyclonedx(made(**KINDS["grouped"]))["components"]
    figures = model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    slices = {(figure["type"], figure["slice"]): (figure["value"], figure["confidenceInterval"]) for figure in figures}
    assert slices["accuracy", "site west, 100 images, test interval"] == (
        "0.2",
        {"lowerBound": "0.1", "upperBound": "1"},
    )
    assert ("insertion", "40 images, heatmaps maps, infill gray, bootstrap interval") in slices
    considerations = model["modelCard"]["considerations"]
    assert [entry["groupAtRisk"] for entry in considerations["fairnessAssessments"]] == ["site west"]
    assert any(text.startswith("Not assessed: Best effort") for text in considerations["technicalLimitations"])
    assert (model["type"], images["type"]) == ("machine-learning-model", "data")


def test_oscal_states_what_is_decided_and_says_what_is_not(made: Callable[..., Path]) -> None:
    (result,) = _oscal(made(**AUDIT))["assessment-results"]["results"]
    states = {entry["target"]["target-id"]: entry["target"]["status"] for entry in result["findings"]}
    assert states.pop("auditkit-verdict")["state"] == "not-satisfied"
    assert {name: (status["state"], status["reason"]) for name, status in states.items()} == {
        "pass": ("satisfied", "pass"), "fail": ("not-satisfied", "fail"),
        "inconclusive": ("not-satisfied", "other"), "error": ("not-satisfied", "other"),
        "not-assessed": ("not-satisfied", "other"),
    }  # fmt: skip
    assert states["not-assessed"]["remarks"] == "Not assessed: it is not known to hold."
    observed = {entry["title"]: entry for entry in result["observations"]}
    assert "Accepted. reason: accepted until the next release." in observed["A check: suppressed"]["remarks"]
    assert "Best effort" in result["remarks"]


def test_identifiers_are_those_of_the_run(made: Callable[..., Path]) -> None:
    first, second = made(**AUDIT), made(**AUDIT)
    other = made(**AUDIT | {"verdict_reason": "Otherwise."})
    for form in ("oscal", "cyclonedx"):
        assert render(load(first), form) == render(load(second), form) != render(load(other), form)
    (result,) = _oscal(first)["assessment-results"]["results"]
    names = [entry["uuid"] for entry in (*result["observations"], *result["findings"])]
    assert len(set(names)) == len(names)


def test_a_run_without_times_is_no_assessment(made: Callable[..., Path]) -> None:
    with pytest.raises(BadInput, match="has no times, which OSCAL needs; give a run of audit, not of evaluate"):
        render(load(made()), "oscal")
