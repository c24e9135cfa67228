"""One table of metrics: its entries are complete, and a metric that is added to it shows up wherever metrics do."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import auditkit
from auditkit.metrics.per_image import MetricRows
from auditkit.metrics.table import METRICS, Metric
from auditkit.metrics.values import NotAssessed, Values
from auditkit.report import wording
from auditkit.report.formats import FORMATS, render
from auditkit.report.load_run import load
from auditkit.runs.folder.results import Results
from tests.support import onnx_models
from tests.support.synthetic_runs import Command, command

__all__ = ["command"]  # a fixture
CPU = auditkit.Settings(device="cpu")
IMAGES, LABELS, SIZE = 20, 3, 8
POLICY = """
schema_version = 1
name = "sure"

[evaluation]
infill = "gray"
steps = 8
minimum_images = 2
controls = []

[[check]]
id = "sure"
metric = "sureness"
min = {least}
severity = "high"
"""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and its card, labelled images with objects marked, and maps of every label."""
    folder, rng = tmp_path_factory.mktemp("given"), np.random.default_rng(0)
    model = onnx_models.save(onnx_models.convnet(size=SIZE, classes=LABELS), folder)
    model.with_suffix(".toml").write_text('schema_version = 1\n[preprocessing]\npreset = "unit"\nresize = "none"\n')
    images = rng.integers(0, 256, (IMAGES, SIZE, SIZE, 3), dtype=np.uint8)
    boxes = np.tile([1.0, 1.0, 6.0, 5.0], (IMAGES, 1))
    np.savez(folder / "images.npz", images=images, labels=rng.integers(0, LABELS, IMAGES), boxes=boxes)
    bundle = auditkit.Bundle(folder / "maps", model=str(model), method="noise")
    for image in range(IMAGES):
        maps = rng.standard_normal((LABELS, SIZE, SIZE)).astype(np.float32)
        bundle.add([str(image)] * LABELS, range(LABELS), maps)
    return folder


def measured(given: Path, out: Path) -> Results:
    """An evaluation of all that can be measured on maps."""
    auditkit.evaluate(auditkit.load(given / "model.onnx", settings=CPU), given / "images.npz", given / "maps", out=out,
                      steps=8, tie_orders=2, saliency="both")  # fmt: skip
    return load(out).results


# The entries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_an_entry_says_what_its_metric_is(name: str) -> None:
    metric = METRICS[name]
    assert metric.name == name == name.lower()
    assert metric.title
    assert metric.definition.endswith(".")
    assert metric.bounds is not None or not metric.in_policies  # a test needs a range
    if metric.bounds is not None:
        least, most = metric.bounds
        assert -math.inf < least < most < math.inf
    assert (metric.compute is None) == (metric.needs in ("given labels", "nothing"))
    assert not (metric.curve and metric.compute is None)


def test_titles_and_terms_are_distinct(given: Path, tmp_path: Path) -> None:
    assert len({metric.title for metric in METRICS.values()}) == len(METRICS)
    terms = [term for term, _, _ in wording.definitions(measured(given, tmp_path / "run"))]
    assert len(set(terms)) == len(terms)


def test_every_metric_of_maps_is_measured_and_lies_within_its_bounds(given: Path, tmp_path: Path) -> None:
    results = measured(given, tmp_path / "run")
    by_name = {entry.name: entry for entry in results.metrics}
    assert set(by_name) == {metric.name for metric in METRICS.values() if metric.needs != "nothing"}
    for entry in (*results.metrics, *results.controls, *results.classes):
        bounds = METRICS[entry.name].bounds
        if entry.value is None:
            assert entry.not_assessed is not None
        elif bounds is not None:
            ends = [end for end in (entry.low, entry.high) if end is not None]
            assert all(bounds[0] <= value <= bounds[1] for value in (entry.value, *ends)), entry
    assert [name for name, entry in by_name.items() if entry.value is None] == []


# A metric of one function and one entry -------------------------------------------------------------------------------


def sureness(rows: MetricRows, name: str) -> Values | NotAssessed:
    """The probability of the predicted label."""
    return rows.finite(name, "prob", rows.target_rows) or NotAssessed(name, "no-map-for-predicted-label")


@pytest.fixture
def _with_sureness(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = Metric("sureness", "how sure", "The mean probability of the predicted label.", sureness, "mean of f",
                    by_class=True, key_figure=True)  # fmt: skip
    monkeypatch.setitem(METRICS, metric.name, metric)


@pytest.mark.usefixtures("_with_sureness")
def test_a_new_metric_is_measured_and_reported(given: Path, tmp_path: Path, command: Command) -> None:
    results = measured(given, tmp_path / "run")
    (entry,) = (entry for entry in results.metrics if entry.name == "sureness")
    table = load(tmp_path / "run").table
    assert table is not None
    rows = table.metric_rows["maps", table.infills[0]]
    assert entry.value == pytest.approx(rows.column("prob")[rows.predicted].mean())
    assert entry.n == IMAGES
    for entries in (results.controls, results.comparisons, results.classes):
        assert "sureness" in {entry.name for entry in entries}
    pages = {form: render(load(tmp_path / "run"), form) for form in FORMATS if form != "oscal"}  # which needs times
    assert "| how sure (higher is better) |" in pages["md"]
    for words in ("how sure", f"{entry.value:.3f}", "The mean probability of the predicted label. Higher is better.",
                  "How sure", "mean of f"):  # fmt: skip
        assert words in pages["html"]
    figures = pages["html"].partition("Figures compared with the best control</h2>")[2].partition("<h2")[0]
    assert "how sure" in figures
    done = command("evaluate", given / "model.onnx", given / "images.npz", "--heatmaps", given / "maps", "--steps", 8,
                   "--device", "cpu", "-o", tmp_path / "printed")  # fmt: skip
    assert done.code == 0
    assert "how sure" in done.out


@pytest.mark.usefixtures("_with_sureness")
def test_a_new_metric_is_compared(given: Path, tmp_path: Path, command: Command) -> None:
    for name in ("before", "after"):
        measured(given, tmp_path / name)
    done = command("compare", tmp_path / "before", tmp_path / "after", "--json")
    assert (done.code, done.err) == (0, "")
    (difference,) = (one for one in json.loads(done.out)["differences"] if one["name"] == "sureness")
    assert (difference["value"], difference["n"]) == (0, IMAGES)
    assert "how sure" in command("compare", tmp_path / "before", tmp_path / "after").out


@pytest.mark.usefixtures("_with_sureness")
@pytest.mark.parametrize(("least", "status", "verdict"), [(0.05, "pass", "pass"), (1.0, "fail", "fail")])
def test_a_new_metric_is_judged_and_the_run_verified(
    given: Path, tmp_path: Path, command: Command, least: float, status: str, verdict: str
) -> None:
    (tmp_path / "policy.toml").write_text(POLICY.format(least=least))
    run = tmp_path / "run"
    results = auditkit.audit(auditkit.load(given / "model.onnx", settings=CPU), given / "images.npz", run,
                             given / "maps", policy=tmp_path / "policy.toml")  # fmt: skip
    (check,) = (check for check in results.checks if check.id == "sure")
    (entry,) = (entry for entry in results.metrics if entry.name == "sureness")
    assert (check.status, check.observed, check.n) == (status, entry.value, IMAGES)
    assert results.verdict == verdict
    originals = (
        "--model",
        given / "model.onnx",
        "--images",
        given / "images.npz",
        "--heatmaps",
        f"maps={given / 'maps'}",
    )
    done = command("verify", run, *originals, "--device", "cpu")
    assert (done.code, done.err) == (0, ""), done.out


def test_without_its_entry_a_metric_is_refused(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(METRICS, "sureness", Metric("sureness", "how sure", "How sure it is.", sureness))
        measured(given, tmp_path / "run")
    with pytest.raises(auditkit.BadInput, match="has a metric 'sureness' that this auditkit does not know"):
        load(tmp_path / "run")
    (tmp_path / "policy.toml").write_text(POLICY.format(least=0.5))
    with pytest.raises(auditkit.BadInput, match="sureness"):
        auditkit.audit(auditkit.load(given / "model.onnx", settings=CPU), given / "images.npz", tmp_path / "audit",
                       given / "maps", policy=tmp_path / "policy.toml")  # fmt: skip
