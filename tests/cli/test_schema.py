"""The JSON schemas that come with auditkit describe the files that it reads and writes."""

import json
import tomllib
from pathlib import Path
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest

import auditkit
from auditkit.cli.schema import read_schema
from auditkit.data.alignment import Frame
from auditkit.errors import BadInput
from auditkit.metrics.table import METRICS
from auditkit.model import card, signature
from auditkit.runs.folder.examination import CueKind
from auditkit.runs.folder.results import SHIPPED, Results
from auditkit.verdict import policy
from auditkit.verdict.policy_file import parse_policy
from tests.support import onnx_models, synthetic_runs
from tests.support.commands import auditkit as command
from tests.support.commands import refused
from tests.support.results_schema import results_schema

NAMES = ("bundle", "card", "policy", "results", "signoff")
CARDS = sorted((Path(__file__).parents[2] / "models").glob("*.toml"))
SUPPRESSION = """
[[suppression]]
check = "runtime-error"
reason = "an old GPU"
approver = "A. Auditor"
expires = 2030-12-31
"""


def _validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads(read_schema(name))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def _parsed(text: str) -> Any:
    """A TOML text as the object that the schemas describe: dates are text."""
    return json.loads(json.dumps(tomllib.loads(text), default=str))


@pytest.mark.parametrize("name", NAMES)
def test_the_verb_prints_the_schema(name: str) -> None:
    done = command("schema", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads(read_schema(name))


def test_an_unknown_name_is_one_sentence_with_the_known_ones() -> None:
    refused(command("schema", "reslts"), "unknown schema 'reslts'; did you mean 'results'?")


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.name)
def test_the_cards_of_the_models_fit(path: Path) -> None:
    _validator("card").validate(_parsed(path.read_text()))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("schema_version = 1", "schema_version = 2"),
        ('crop = "none"', 'crop = "left"'),
        ('crop = "none"', "crop_ = 3"),
        ("mean =", "median ="),
        ("size = [64, 64]", "size = [64]"),
        ('kind = "logits"', 'kind = "scores"'),
    ],
)
def test_a_card_that_auditkit_refuses_does_not_fit(old: str, new: str, tmp_path: Path) -> None:
    text = CARDS[0].read_text()
    assert old in text
    path = tmp_path / "model.toml"
    path.write_text(text.replace(old, new))
    (tmp_path / "model.onnx").write_bytes(CARDS[0].with_suffix(".onnx").read_bytes())
    with pytest.raises(BadInput):
        auditkit.load(tmp_path / "model.onnx")
    assert not _validator("card").is_valid(_parsed(path.read_text()))


def test_the_choices_of_a_card_are_those_of_the_code() -> None:
    tables = json.loads(read_schema("card"))["properties"]
    keys = tables["preprocessing"]["properties"]
    assert keys["preset"]["enum"] == list(card.PRESETS)
    assert keys["interpolation"]["enum"] == list(card.INTERPOLATIONS)
    assert keys["channels"]["enum"] == list(card.ORDERS)
    assert keys["crop"]["enum"] == list(card.CROPS)
    assert tables["signature"]["properties"]["layout"]["enum"] == list(get_args(signature.Layout))
    assert tables["signature"]["properties"]["kind"]["enum"] == list(get_args(signature.Kind))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_policies_that_come_with_auditkit_fit(name: str) -> None:
    _validator("policy").validate(_parsed(policy.shipped_text(name)))


def test_a_suppression_fits() -> None:
    text = policy.shipped_text("standard") + SUPPRESSION
    parse_policy(text, "standard.toml")
    _validator("policy").validate(_parsed(text))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("schema_version = 1", "schema_version = 2"),
        ('severity = "medium"', 'severity = "grave"'),
        ('name = "standard"', 'title = "standard"'),
        ("min = ", "least = "),
        ("min = ", "max = 0.9\nmin = "),
        ("minimum_images = ", "minimum_images = -"),
        ("2030-12-31", "3"),
    ],
)
def test_a_policy_that_auditkit_refuses_does_not_fit(old: str, new: str) -> None:
    text = policy.shipped_text("standard") + SUPPRESSION
    assert old in text
    wrong = text.replace(old, new)
    with pytest.raises(BadInput):
        parse_policy(wrong, "standard.toml")
    assert not _validator("policy").is_valid(_parsed(wrong))


def test_the_choices_of_a_policy_are_those_of_the_code() -> None:
    keys = json.loads(read_schema("policy"))["properties"]
    check = keys["check"]["items"]["properties"]
    assert check["metric"]["enum"] == [name for name, metric in METRICS.items() if metric.in_policies]
    assert check["severity"]["enum"] == list(policy.SEVERITIES)
    assert keys["fail_on"]["enum"] == keys["fail_on_finding"]["enum"] == list(policy.FAIL_ON)
    assert keys["examination"]["properties"]["severity"]["enum"] == list(policy.SEVERITIES)
    assert keys["allowed"]["items"]["properties"]["kind"]["enum"] == list(get_args(CueKind))
    assert keys["evaluation"]["properties"]["controls"]["anyOf"][1]["items"]["enum"] == list(policy.CONTROLS)
    assert {"min", "max", "min_margin_over"} == set(policy.RULES) <= set(check)


def test_a_bundle_written_by_auditkit_fits(tmp_path: Path) -> None:
    bundle = auditkit.Bundle(tmp_path / "maps", method="mine")
    bundle.add(["0", "1"], [3, 3], np.arange(32.0).reshape(2, 4, 4))
    header = json.loads((tmp_path / "maps" / "bundle.json").read_text())
    validator = _validator("bundle")
    validator.validate(header)
    learned = {"upsampling"}  # of masks that are stored at their own resolution
    assert set(header) | learned == set(json.loads(read_schema("bundle"))["properties"])
    for wrong in ({"frame": "photograph"}, {"schema_version": 2}, {"sign": "both"}, {"notes": [3]}, {"method": 3}):
        (tmp_path / "maps" / "bundle.json").write_text(json.dumps(header | wrong))
        with pytest.raises(BadInput):
            auditkit.open_bundle(tmp_path / "maps")
        assert not validator.is_valid(header | wrong)
    assert json.loads(read_schema("bundle"))["properties"]["frame"]["enum"] == list(get_args(Frame))


def test_the_schema_of_results_is_that_of_the_types() -> None:
    """To write the file anew: python -m tests.support.results_schema > auditkit/schemas/results.schema.json"""
    assert read_schema("results") == results_schema()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """results.json of an evaluation of supplied maps, of an audit with maps of its own, and of a made-up run."""
    folder, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    path = onnx_models.save(onnx_models.convnet(size=8, classes=3), folder)
    model = auditkit.load(path, preset="unit", settings=auditkit.Settings(device="cpu"))
    np.savez(folder / "images.npz", images=rng.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8), labels=[0, 1, 2] * 2)
    bundle = auditkit.Bundle(folder / "maps", method="noise")
    bundle.add(list("012345"), [0] * 6, rng.standard_normal((6, 8, 8)))
    auditkit.evaluate(model, folder / "images.npz", folder / "maps", out=folder / "evaluation", steps=4)
    for out, options in (("first", {}), ("audit", {"baseline": folder / "first"})):
        auditkit.audit(model, folder / "images.npz", folder / out, method="gradient-input", policy="explore", **options)
    rows = synthetic_runs.rows(range(4), {"insertion": lambda image, label: 0.5})
    synthetic_runs.run(folder / "synthetic", rows)
    return {name: json.loads((folder / name / "results.json").read_text())
            for name in ("evaluation", "audit", "synthetic")}  # fmt: skip


@pytest.mark.parametrize("name", ["evaluation", "audit", "synthetic"])
def test_the_results_of_a_run_fit(runs: dict[str, Any], name: str) -> None:
    _validator("results").validate(runs[name])


def test_the_runs_have_all_parts_between_them(runs: dict[str, Any]) -> None:
    names = set(json.loads(read_schema("results"))["properties"])
    assert {name for name in names if not any(run.get(name) for run in runs.values())} == {
        # Of bad images, of maps that fail, of several bundles, of maps that were supplied, and of policies that ask.
        "failed_images", "hints", "reliability", "reproductions", "examination", "randomisation",
        "finding_gate",  # of --fail-on-finding: tests/verdict/test_examination.py
        "groups",  # of a CSV with a further column: tests/verdict/test_groups.py
    }  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"schema_version": 1},
        {"verdict": "fine"},
        {"metrics": [{"name": "insertion"}]},
        {"flags": ["ties"]},
        {"flags": [{"kind": "odd"}]},
        {"limitations": None},
        {"surplus": 1},
        {"policy": "explore"},
        {"environment": {"device": 3}},
    ],
)
def test_results_that_auditkit_refuses_do_not_fit(runs: dict[str, Any], wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Results.parse(runs["audit"] | wrong, Path("results.json"))
    assert not _validator("results").is_valid(runs["audit"] | wrong)
