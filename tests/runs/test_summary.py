"""What an evaluation makes of its rows, computed again straight from them: means, intervals, comparisons, classes,
reliability, accuracy; and the file that holds it all."""

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.metrics.statistics import mean_interval
from auditkit.metrics.table import title
from auditkit.metrics.values import NotAssessed, Note
from auditkit.records import to_json
from auditkit.runs.folder.figures import Flag, MetricResult
from auditkit.runs.summary.summarise import Summary
from auditkit.runs.summary.wording import figure_text, source_name
from tests.metrics.test_protocols import CLASSES, SIZE, Array, small_toy
from tests.runs.test_evaluation import photographs

COUNT = 12
FAITHFUL = ("completeness", "soundness", "worst_completeness", "worst_soundness", "best_effort")
SPECIFIC = ("label_specificity", "other_label_evidence")
COMPARED = ("insertion", "deletion", "relevance_gain", "saliency_metric", *FAITHFUL, *SPECIFIC, "pointing_game", "iou")
LOWER = (
    "deletion",
    "tie_spread",
    "saliency_metric",
    "saliency_metric_tuned",
    "degenerate_boxes",
    "degenerate_boxes_tuned",
)
TRUTH = np.array([2, 0, 1, 3] * 3)  # some of which are predicted


def bundle(folder: Path, name: str, seed: int, leave_out: tuple[tuple[int, int], ...] = ()) -> Path:
    rng = np.random.default_rng(seed)
    writer = auditkit.Bundle(folder / name)
    for index in range(COUNT):
        labels = [label for label in range(CLASSES) if (index, label) not in leave_out]
        maps = rng.standard_normal((CLASSES, *SIZE)).astype(np.float32)[labels]
        if labels:
            writer.add([str(index)] * len(labels), labels, maps, layout="NHW")
    return folder / name


def image_set(labels: Array | None = TRUTH) -> Dataset:
    pictures = photographs(COUNT, SIZE)
    pictures[::2] //= 2
    boxes = np.tile([2.0, 2, 8, 9], (COUNT, 1))
    return Dataset(Path("images"), tuple(map(str, range(COUNT))), pictures, labels, boxes)


@pytest.fixture(scope="module")
def model() -> Any:
    return auditkit.load(small_toy(), size=SIZE, preset="imagenet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three bundles; the last lacks some maps of labels that are not predicted."""
    made = tmp_path_factory.mktemp("bundles")
    for seed, name in enumerate(("a", "b", "c")):
        bundle(made, name, seed)
    return made


@pytest.fixture(scope="module", params=[("expanded", 0.95), ("bca", 0.9), ("percentile", 0.5)])
def found(request: pytest.FixtureRequest, model: Any, folder: Path) -> Summary:
    method, confidence = request.param
    bundles = [folder / name for name in "abc"]
    return auditkit.evaluate(
        model, image_set(), bundles, steps=9, infill=("gray", "blur"), saliency="both", interval=method, seed=3,
        confidence=confidence,
    )  # fmt: skip


# Straight from the rows -----------------------------------------------------------------------------------------------


def rows_of(found: Summary, source: str, infill: str) -> list[dict[str, Any]]:
    if id(found) not in KNOWN:
        KNOWN[id(found)] = found, found.rows
    rows = KNOWN[id(found)][1]
    return [row for row in rows if (row["bundle"], row["infill"]) == (source, infill) and not row["error"]]


KNOWN: dict[int, tuple[Summary, list[dict[str, Any]]]] = {}  # rows take a while to make


def images_of(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["image"] for row in rows))


def margin(found: Summary, name: str, image: str, source: str, infill: str, control: str | None = None) -> float:
    """The mean over labels of what a label's own map shows more of it than others, or a control's, do."""
    maps = [[row for row in rows_of(found, of, infill) if row["image"] == image] for of in (source, control or source)]
    labels = sorted(row["label"] for row in maps[0])
    shown, other = ({row["label"]: dict(zip(labels, row["log_odds"], strict=True)) for row in rows} for rows in maps)
    predicted = maps[0][0]["prediction"]
    if name == "label_specificity":
        others = {a: np.mean([shown[b][a] for b in labels if b != a]) for a in labels}
    else:
        others = {a: other[a if control else predicted][a] for a in labels if a != predicted}
    return float(np.mean([shown[a][a] - level for a, level in others.items()]))


def per_image(rows: list[dict[str, Any]], column: str, take: Callable[[list[float]], float]) -> dict[Any, float]:
    images = dict.fromkeys(row["image"] for row in rows)
    return {image: take([row[column] for row in rows if row["image"] == image]) for image in images}


def values(found: Summary, name: str, source: str, infill: str) -> dict[Any, float]:
    """A metric's values by image, or by (image, label)."""
    rows = rows_of(found, source, infill)
    columns = {"completeness": "alpha", "soundness": "beta", "degenerate_boxes": "box_degenerate",
               "pointing_game": "pointing_hit"}  # fmt: skip
    if name in SPECIFIC:
        return {image: float(np.clip(margin(found, name, image, source, infill), -3, 3)) for image in images_of(rows)}
    if name == "relevance_gain":
        gained, lost = (values(found, kind, source, infill) for kind in ("insertion", "deletion"))
        return {key: value - lost[key] for key, value in gained.items() if key in lost}
    kind = name.removeprefix("worst_")
    column = columns.get(kind, kind)
    if name.startswith("worst_"):
        return per_image(rows, column, min)
    if name == "best_effort":
        others = [row for row in rows if not row["predicted"] and row["prob"] >= 0.01]
        return per_image(others, "alpha", min)
    if name.endswith("_tuned"):
        lists = "saliency_by_delta" if name.startswith("saliency") else "degenerate_by_delta"
        chief = [row for row in rows if row["predicted"]]
        tuning = np.array([row["saliency_by_delta"] for row in chief if int(row["image"]) % 2 == 0])
        best = int(tuning.mean(axis=0).argmin())
        return {(row["image"], row["label"]): row[lists][best] for row in chief if int(row["image"]) % 2}
    if name not in ("completeness", "soundness", "pointing_game", "iou"):
        rows = [row for row in rows if row["predicted"]]
    return {(row["image"], row["label"]): row[column] for row in rows if row[column] is not None}


def image_of(key: Any) -> int:
    return int(key[0] if isinstance(key, tuple) else key)


def same(metric: MetricResult, expected: dict[Any, float], found: Summary) -> None:
    """Value, count and interval of a mean over those values."""
    bounds = None if metric.name.startswith("saliency") else (-1.0 if metric.against else 0.0, 1.0)
    if metric.name in SPECIFIC:
        between = metric.against and (metric.name == SPECIFIC[0] or not metric.against.startswith("control:"))
        bounds = (-6.0, 6.0) if between else (-3.0, 3.0)
        bounds = None if metric.is_control and not any(expected.values()) else bounds
    if metric.name == "relevance_gain":
        bounds = (-1.0, 1.0)
    predicted_alone = metric.name in ("insertion", "deletion", "relevance_gain")
    if predicted_alone and metric.against == f"control:one-map:{metric.bundle}":
        bounds = None  # the very same map
    interval = mean_interval(
        list(expected.values()), [image_of(key) for key in expected], confidence=found.settings.confidence,
        method=found.settings.interval, seed=3, bounds=bounds,
    )  # fmt: skip
    assert metric.value == pytest.approx(np.mean(list(expected.values())))
    assert metric.n == len({image_of(key) for key in expected})
    assert (metric.low, metric.high) == pytest.approx((interval.low, interval.high))
    assert metric.low <= metric.value <= metric.high


def test_every_metric_is_a_mean_over_its_rows(found: Summary) -> None:
    sources = {metric.bundle for metric in found.metrics} - {None}
    assert sources == {"a", "b", "c", *(f"control:one-map:{name}" for name in "abc"), "control:random",
                       "control:centred-gaussian", "control:constant", "control:edges",
                       "control:blurred-edges", "control:noisy-gaussian", "control:noisy-edges"}  # fmt: skip
    names = {"insertion", "deletion", "relevance_gain", *FAITHFUL, *SPECIFIC, "saliency_metric",
             "saliency_metric_tuned", "degenerate_boxes", "degenerate_boxes_tuned", "pointing_game", "iou"}  # fmt: skip
    seen = set()
    for metric in (metric for metric in found.metrics if metric.bundle):
        same(metric, values(found, metric.name, metric.bundle, metric.infill), found)
        seen.add((metric.name, metric.bundle, metric.infill))
    assert seen == {(name, source, infill) for name in names for source in sources for infill in ("gray", "blur")}
    assert len(seen) == len(found.metrics) - 1  # and the accuracy


def test_paired_differences(found: Summary) -> None:
    """Each bundle less each bundle after it and less every control, under the same infill, on what both have."""
    bundles = ["a", "b", "c"]
    controls = sorted({m.bundle for m in found.metrics if m.is_control})
    pairs = [*combinations(bundles, 2), *((own, control) for own in bundles for control in controls)]
    assert {(m.bundle, m.against) for m in found.comparisons} == set(pairs)
    assert len(found.comparisons) == len(pairs) * 2 * len(COMPARED)
    for metric in found.comparisons:
        first, second = (
            values(found, metric.name, source, metric.infill) for source in (metric.bundle, metric.against)
        )
        if "completeness" in metric.name and metric.against == f"control:one-map:{metric.bundle}":
            rows = [row for row in rows_of(found, metric.bundle, metric.infill) if not row["predicted"]]
            told = {int(row["image"]) for row in rows if row["prob"] > 0.01}
            first = {key: value for key, value in first.items() if image_of(key) in told}
        differences = {key: first[key] - second[key] for key in first if key in second}
        if metric.name == "other_label_evidence" and metric.against.startswith("control:"):
            about = metric.bundle, metric.infill, metric.against
            differences = {key: float(np.clip(margin(found, metric.name, key, *about), -3, 3)) for key in first}
        if metric.name == "relevance_gain":
            differences = {key: float(np.clip(difference, -1, 1)) for key, difference in differences.items()}
        same(metric, differences, found)
        assert to_json(metric)["against"] == metric.against


def unsure(pictures: Array) -> Array:
    """Probabilities of two classes: bright images leave no doubt."""
    first = np.where(pictures.mean(axis=(1, 2, 3)) > 0, 0.999, 0.7 + 0.1 * np.tanh(pictures[:, 0, 0, 0]))
    return np.stack([first, 1 - first], axis=1).astype(np.float32)


def evaluated(folder: Path, dark: int) -> Summary:
    """Two labels' maps of eight images, of which some are dark."""
    pictures = np.where(np.arange(8) < dark, 40, 220)[:, None, None, None] + np.random.default_rng(0).integers(
        -30, 30, (8, 8, 8, 3))  # fmt: skip
    writer = auditkit.Bundle(folder / "maps")
    for index in range(8):
        maps = np.random.default_rng(index).standard_normal((2, 8, 8)).astype(np.float32)
        writer.add([str(index)] * 2, [0, 1], maps, layout="NHW")
    model = auditkit.load(unsure, size=(8, 8), preset="imagenet")
    return auditkit.evaluate(model, pictures.astype(np.uint8), folder / "maps", steps=9)


@pytest.mark.parametrize("dark", [0, 3])
def test_one_map_is_compared_where_another_label_counts(dark: int, tmp_path: Path) -> None:
    """Where none does, one map is as complete as maps of their own, by definition: no image to compare on."""
    found = {(m.name, m.against): m for m in evaluated(tmp_path, dark).comparisons}
    for name in ("completeness", "worst_completeness"):
        one = found[name, "control:one-map:maps"]
        assert one.n == dark
        missing = NotAssessed(name, "no-second-label-above", value=0.01)
        assert one.not_assessed == (None if dark else missing)
        assert found[name, "control:random"].n == 8
    assert found["worst_soundness", "control:one-map:maps"].n == 8


def test_figures_of_each_class(found: Summary) -> None:
    expected = {(name, own, infill, group) for name in ("insertion", "worst_completeness", "worst_soundness")
                for own in "abc" for infill in ("gray", "blur") for group in range(4)}  # fmt: skip
    assert {(m.name, m.bundle, m.infill, m.class_index) for m in found.classes} == expected
    for metric in found.classes:
        whole = values(found, metric.name, metric.bundle, metric.infill)
        mine = {key: v for key, v in whole.items() if TRUTH[image_of(key)] == metric.class_index}
        assert metric.value == pytest.approx(np.mean(list(mine.values())))
        assert (metric.n, metric.low, metric.high) == (3, None, None)
        assert metric.note == Note("few-images")
        assert to_json(metric)["class"] == metric.class_index


def test_accuracy_has_wilsons_interval(found: Summary, model: Any) -> None:
    pictures = [image_set().images[index] for index in range(COUNT)]
    hits = int((model.probabilities(pictures).argmax(axis=1) == TRUTH).sum())
    (metric,) = (metric for metric in found.metrics if metric.name == "accuracy")
    low, high = stats.binomtest(hits, COUNT).proportion_ci(found.settings.confidence, method="wilson")
    assert (metric.value, metric.low, metric.high) == pytest.approx((hits / COUNT, low, high))
    assert (metric.n, metric.bundle) == (COUNT, None)
    assert 0 < hits < COUNT


# Reliability ----------------------------------------------------------------------------------------------------------


def krippendorff(ranks: Array) -> float:
    """Ordinal alpha of [raters, units] without gaps, by its definition over pairs of ratings."""
    pooled = ranks.ravel()

    def distance(one: float, other: float) -> float:
        low, high = sorted((one, other))
        between = ((pooled >= low) & (pooled <= high)).sum()
        return float(between - ((pooled == low).sum() + (pooled == high).sum()) / 2) ** 2 if low < high else 0.0

    def disagreement(ratings: Array) -> float:
        return float(np.mean([distance(one, other) for one, other in combinations(ratings, 2)]))

    return 1 - float(np.mean([disagreement(unit) for unit in ranks.T])) / disagreement(pooled)


def image_means(found: Summary, name: str, source: str, infill: str) -> dict[int, float]:
    held: dict[int, list[float]] = {}
    for key, value in values(found, name, source, infill).items():
        held.setdefault(image_of(key), []).append(value)
    return {image: float(np.mean(listed)) for image, listed in held.items()}


def table(found: Summary, name: str, infill: str) -> Array:
    """[images, bundles], those images that all have."""
    columns = [image_means(found, name, source, infill) for source in "abc"]
    images = sorted(set.intersection(*(set(column) for column in columns)))
    return np.array([[column[image] for column in columns] for image in images])


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_reliability_of_three_bundles(found: Summary) -> None:
    for entry in found.reliability:
        if entry.against:
            continue
        scores = table(found, entry.name, entry.infill)
        ranks = np.array([stats.rankdata(row) for row in scores])
        assert entry.n == len(scores)
        if np.ptp(ranks):
            assert entry.krippendorff_alpha == pytest.approx(krippendorff(ranks))
        between = [stats.spearmanr(scores[:, i], scores[:, j])[0] for i, j in combinations(range(3), 2)]
        assert entry.inter_method == pytest.approx(np.mean(between), nan_ok=True)
    names = {entry.name for entry in found.reliability}
    assert {"insertion", "deletion", "soundness", "saliency_metric", "pointing_game"} <= names


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_metrics_agree_or_not(found: Summary) -> None:
    """Spearman over images, the mean over the bundles; a metric in which less is better is turned round."""
    entries = [entry for entry in found.reliability if entry.against]
    assert entries
    for entry in entries:
        signs = [-1 if getattr(entry, key) in LOWER else 1 for key in ("name", "against")]
        agreed = []
        for source in "abc":
            one, other = (image_means(found, getattr(entry, key), source, entry.infill) for key in ("name", "against"))
            both = sorted(set(one) & set(other))
            if len(both) > 1:
                first, second = ([sign * held[i] for i in both] for sign, held in zip(signs, (one, other), strict=True))
                agreed.append(stats.spearmanr(first, second)[0])
        known = [value for value in agreed if np.isfinite(value)]
        assert entry.spearman == pytest.approx(np.mean(known) if known else np.nan, nan_ok=True)


def test_two_bundles_have_no_reliability(model: Any, folder: Path) -> None:
    found = auditkit.evaluate(model, image_set(), [folder / "a", folder / "b"], steps=2, saliency="none")
    assert found.reliability == ()


# What is not there ----------------------------------------------------------------------------------------------------


def test_bundles_are_compared_on_what_both_have(model: Any, folder: Path, tmp_path: Path) -> None:
    """No map at all for images 3 and 7: neither counts, and soundness of the second is not assessed."""
    out = tuple((image, label) for image in (3, 7) for label in range(CLASSES))
    some = bundle(tmp_path, "some", 5, out)
    found = auditkit.evaluate(model, image_set(), [folder / "a", some], steps=4, controls=False, saliency="none")
    metric, *others = found.comparisons
    assert [other.name for other in others] == ["deletion", "relevance_gain", "pointing_game", "iou"]
    assert (metric.name, metric.bundle, metric.against, metric.n) == ("insertion", "a", "some", COUNT - 2)
    first, second = (values(found, "insertion", source, "gray") for source in ("a", "some"))
    assert metric.value == pytest.approx(np.mean([first[key] - second[key] for key in second]))
    assert found.value("soundness", "some") is None
    assert Flag("maps-missing", "some", 10) in found.flags


def test_without_given_labels_classes_are_the_predicted_ones(model: Any, folder: Path, tmp_path: Path) -> None:
    for labels in ("all", "0,1"):  # also where the predicted label is not among those measured
        out = tmp_path / labels
        found = auditkit.evaluate(model, image_set(None), folder / "a", steps=2, controls=False, labels=labels, out=out)
        pictures = [image_set().images[index] for index in range(COUNT)]
        predicted = model.probabilities(pictures).argmax(axis=1)
        groups = {metric.class_index: metric.n for metric in found.classes if metric.name == "worst_soundness"}
        assert groups == {int(label): int((predicted == label).sum()) for label in set(predicted)}
        assert not [metric for metric in found.metrics if metric.name == "accuracy"]
        assert json.loads((out / "results.json").read_text())["classes_are"] == "predicted"


@pytest.mark.parametrize("labels", ["all", "top1", "0,1", "f>=0.9"])
def test_accuracy_does_not_depend_on_the_labels_that_are_measured(model: Any, folder: Path, labels: str) -> None:
    found = auditkit.evaluate(model, image_set(), folder / "a", steps=1, controls=False, labels=labels)
    pictures = [image_set().images[index] for index in range(COUNT)]
    hits = (model.probabilities(pictures).argmax(axis=1) == TRUTH).mean()
    assert found.value("accuracy") == pytest.approx(hits)


def test_accuracy_among_the_labels_that_are_renormalised_over(model: Any, folder: Path) -> None:
    found = auditkit.evaluate(model, image_set(), folder / "a", steps=1, controls=False, labels="0,1", renormalise=True)
    pictures = [image_set().images[index] for index in range(COUNT)]
    hits = (model.probabilities(pictures)[:, :2].argmax(axis=1) == TRUTH).mean()
    assert found.value("accuracy") == pytest.approx(hits)


@pytest.mark.parametrize("count", [1, 4])
def test_few_images_have_figures_without_intervals(model: Any, folder: Path, count: int) -> None:
    every = image_set()
    few = Dataset(every.source, every.ids[:count], every.images[:count], TRUTH[:count])
    found = auditkit.evaluate(model, few, folder / "a", steps=2, out=None)
    assert {"accuracy", "insertion"} <= {metric.name for metric in found.metrics if metric.n == count}
    assert found.comparisons
    for metric in (*found.metrics, *found.comparisons):
        if metric.value is not None:
            assert (metric.low, metric.high) == (None, None)
            assert metric.note
    assert "insertion" in str(found)


# The file -------------------------------------------------------------------------------------------------------------

ENTRY = {"name", "bundle", "labels", "infill", "eps1", "eps2", "steps", "range", "value", "low", "high", "confidence",
         "n", "not_assessed", "note", "interval"}  # fmt: skip


def test_results_json_holds_it_all(model: Any, folder: Path, tmp_path: Path) -> None:
    bundles = [folder / name for name in "abc"]
    asked: dict[str, Any] = {"steps": 5, "labels": "top3", "eps1": 0.02, "eps2": 0.03, "range": (0.1, 0.9)}
    found = auditkit.evaluate(model, image_set(), bundles, out=tmp_path / "run", saliency="both", **asked)

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    results = json.loads((tmp_path / "run" / "results.json").read_text(), parse_constant=refuse)
    assert set(results) == {
        "schema_version", "tool", "run", "subject", "settings", "environment", "runtime", "metrics", "controls",
        "comparisons", "classes", "classes_are", "reliability", "points", "flags", "failed_images", "checks", "verdict",
        "verdict_reason", "policy", "software", "explained", "randomisation", "baseline", "limitations",
        "hints", "reproductions", "examination", "not_examined",
    }  # fmt: skip
    assert {entry["bundle"] for entry in results["metrics"]} == {None, "a", "b", "c"}
    assert all(entry["bundle"].startswith("control:") for entry in results["controls"])
    assert len(results["metrics"]) + len(results["controls"]) == len(found.metrics)
    named = {"labels": "top3", "eps1": 0.02, "eps2": 0.03, "steps": "5", "range": [0.1, 0.9], "confidence": 0.95}
    for entry in results["metrics"] + results["controls"]:
        assert set(entry) == ENTRY
        assert {key: entry[key] for key in named} == named
        if entry["value"] is not None:
            assert entry["n"] > 0
            assert entry["low"] <= entry["value"] <= entry["high"]
        else:
            assert entry["not_assessed"]["cause"]
    for entry in results["comparisons"]:
        assert set(entry) == ENTRY | {"against"}
    for entry in results["classes"]:
        assert set(entry) == ENTRY | {"class"}
    assert results["classes_are"] == "given"
    assert len(results["reliability"]) == len(found.reliability) > 0
    assert results["runtime"]["repeated"] == 0
    for metric in found.metrics:
        assert to_json(metric) in results["controls" if metric.is_control else "metrics"]
    again = auditkit.evaluate(model, image_set(), bundles, out=tmp_path / "run", saliency="both", **asked)
    assert str(again) == str(found)


def test_tables_show_every_source_and_metric(found: Summary) -> None:
    head, rows = found.grid()
    assert head[:2] == ["maps", "infill"]
    assert len(rows) == 2 * 13
    assert all(cell for row in rows for cell in row)
    text, page = str(found), found._repr_html_()
    for source in {metric.bundle for metric in found.metrics if metric.bundle}:
        assert source_name(source) in text
        assert source_name(source) in page


def test_what_a_table_has_no_room_for_is_said_below(model: Any, folder: Path, tmp_path: Path) -> None:
    """How it was measured, and why a figure is not there."""
    some = bundle(tmp_path, "some", 5, ((3, 0), (3, 1)))
    asked: dict[str, Any] = {"steps": 2, "controls": False, "saliency": "none"}
    text = str(auditkit.evaluate(model, image_set(), some, labels="all", eps1=0.02, range=(0.2, 0.6), **asked))
    assert "labels all; infill gray; steps 2; range 0.2 to 0.6; eps 0.02 and 0.001; ties random; 12 images" in text
    names = ", ".join(map(title, (*FAITHFUL, *SPECIFIC)))
    assert f"not assessed: some, {names}: 2 of 60 maps are missing: add one for every label with " in text
    assert "Bundle.add(ids, {label: maps}), or name the labels you have with --labels" in text
    text = str(auditkit.evaluate(model, image_set(), some, protocol="paper-code", labels="0,1", **asked))
    assert "protocol paper-code; labels 0,1 renormalised; infill zero; steps 2; eps 0.1 and 0.1; ties last" in text
    text = str(auditkit.evaluate(model, image_set(), folder / "a", labels="top1", **asked))
    assert "the label set has no label other than the predicted one" in text


def test_a_notebook_sees_the_same_and_no_markup_of_others(model: Any, folder: Path, tmp_path: Path) -> None:
    some = bundle(tmp_path, "<b>some", 5, ((3, 0),))
    found = auditkit.evaluate(model, image_set(), some, steps=1, controls=False, saliency="none")
    page = found._repr_html_()
    assert "<b>" not in page
    for line in ("&lt;b&gt;some: 1 maps are missing", "labels all; infill gray", "not assessed: &lt;b&gt;some"):
        assert f"<p>{line}" in page


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.5, 0.25, 0.75, "0.500 (.250-.750)"), (-0.5, -0.75, 0.25, "-0.500 (-.750 to .250)"),
        (-0.7, -0.8, -0.6, "-0.700 (-.800 to -.600)"), (10.5, 10.25, 10.75, "10.500 (10.250-10.750)"),
        (1.0, 1.0, 1.0, "1.000 (1.000-1.000)"), (0.5, None, None, "0.500"),
    ],
)  # fmt: skip
def test_a_figure_in_a_table(value: float, low: float | None, high: float | None, text: str) -> None:
    figure = MetricResult("insertion", "a", "all", "gray", 0.01, 0.001, "5", (0, 1), value, low, high, 0.95, 9)
    assert figure_text(figure) == text
