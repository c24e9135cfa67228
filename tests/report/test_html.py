"""The HTML report: all that was found, in one file that needs nothing else, and names that stay names."""

import base64
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from auditkit.errors import BadInput, IntegrityFailure
from auditkit.metrics.curves import parse_steps
from auditkit.metrics.table import METRICS, title
from auditkit.metrics.values import Note
from auditkit.records import from_json, to_json
from auditkit.report import norms, tables, wording
from auditkit.report.formats import render
from auditkit.report.formatting import exact, interval, measured, name, number, signed, source, visible
from auditkit.report.html import SECTIONS, render_html
from auditkit.report.load_run import Loaded, load
from auditkit.report.plots import MOST_IMAGES, MOST_PAIRS
from auditkit.report.sections import best_control
from auditkit.runs.evaluation.plan import RunRecord
from auditkit.runs.evaluation.runtime_check import REFERENCE
from auditkit.runs.evaluation.settings import Evaluation, resolved
from auditkit.runs.folder.figures import Runtime
from auditkit.runs.folder.parquet import COLUMNS, fitted
from auditkit.runs.folder.results import Comparison, DifferenceResult, Refusal, Results, Subject
from auditkit.runs.folder.store import Store
from auditkit.runs.summary.results import results, without_figures
from auditkit.runs.summary.summarise import summarise
from auditkit.runs.summary.wording import remark
from tests.support.synthetic_runs import merged

CONTROLS = ("control:random", "control:centred-gaussian")
HOSTILE = "</script></style><img src=x onerror=alert(1)>\"'&amp;{{7*7}}\u202egnp\x00\x1b[31m\ud800"
KEEP = list(range(0, 65, 8))  # of 64 pixels


def columns(images: range, labels: int, sources: Sequence[str], seed: int = 0) -> dict[str, list[Any]]:
    """Rows of made-up figures, those of later sources lower."""
    made: dict[str, list[Any]] = {column: [] for column in COLUMNS}
    for image in images:
        rng, odds = np.random.default_rng([seed, image]), np.random.default_rng([seed, image, 1])
        probs = rng.dirichlet(np.full(labels, 0.3))
        best = int(probs.argmax())
        for place, bundle in enumerate(sources):
            for label in range(labels):
                curve = np.sort(rng.random(len(KEEP))) * probs[label] * 0.9**place
                auc = float(curve.mean())
                row = {
                    "image": f"{image:04}.png", "label": label, "bundle": bundle, "infill": "gray",
                    "prob": float(probs[label]), "predicted": label == best, "prediction": best, "truth": best,
                    "insertion": auc, "alpha": min(max(auc, 0.01) / probs[label], 1.0),
                    "beta": min(max(probs[label], 0.001) / auc, 1.0), "tied_fraction": 0.0, "flags": [],
                    "keep_counts": KEEP, "curve": curve.tolist(), "map_digest": f"{image:08x}{label:08x}{place:016x}",
                    "log_odds": (odds.normal(size=labels) + (np.arange(labels) == label)).tolist(),
                    "log_odds_error": [0.1] * labels,
                }  # fmt: skip
                for column, held in made.items():
                    held.append(row.get(column))
    return made


def made_run(
    folder: Path, images: int = 12, labels: int = 3, sources: Sequence[str] = ("maps", *CONTROLS), **said: Any
) -> Path:
    """A finished run whose results come from its rows, as an evaluation's do; `said` replaces some of them."""
    settings = resolved(Evaluation(steps=parse_steps("8"), deletion=False, saliency="none"), labels)
    parts = [
        fitted(columns(range(start, min(start + 100, images)), labels, sources)) for start in range(0, images, 100)
    ]
    about = {
        "bundles": {bundle: "ab" * 32 for bundle in sources if not bundle.startswith("control:")}, "pool": None,
        "bundle_paths": {},
        "infill_images": {}, "settings": to_json(settings.to_record()),
        "environment": {"auditkit": "0.1.0", "device": "cpu", "precision": "strict", "onnxruntime": "1.31.1"},
        "subject": {
            "model": {"path": "vendor/model.onnx", "sha256": "cd" * 32, "identity": "cd" * 32}, "input": "image",
            "output": "logits", "kind": "logits", "classes": labels, "card": {"size": [8, 8], "class_names": labels},
            "layout": "NCHW", "dtype": "float32", "card_origin": {"source": "preset unit", "sha256": None},
            "class_names": [],
            "images": {"source": "photos/test", "count": images, "digest": "ef" * 32},
        },
    }  # fmt: skip
    runtime = Runtime(REFERENCE, 18, 0.0, largest=1.2e-7, mean=1e-9, insertion=1e-8, alpha=1e-8, beta=0.0, note=None)
    summary = summarise(lambda _=None: parts, settings, runtime, from_json(RunRecord, about, "about"))
    with Store.open(folder, {"made": "for a test"}) as store:
        for number_of, part in enumerate(parts):
            store.write(Store.key(number_of), part)
        store.finish(Results.parse({**results(summary).to_json(), **said}, folder))
    return folder


def changed(loaded: Loaded, **said: Any) -> Loaded:
    """The run with parts of parts of its results replaced."""
    return replace(loaded, results=Results.parse(merged(loaded.results.to_json(), said), loaded.folder))


def picture(side: int, kind: str) -> bytes:
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, kind)
    return stream.getvalue()


def with_gallery(run: Path, cards: int = 3, side: int = 16, called: str = "tabby cat") -> Path:
    """The run with a gallery of noise: cards in turn worst, median and best, less complete first."""
    folder = run / "gallery"
    folder.mkdir()
    (folder / "image.jpg").write_bytes(picture(side, "JPEG"))
    (folder / "map.png").write_bytes(picture(side, "PNG"))
    entries = [
        {
            "image": f"{at:04}.png", "label": label, "label_name": called if label else "dog", "bundle": "maps",
            "role": ("worst", "median", "best")[at % 3], "prob": 0.9 - label / 2, "predicted": label == 0, "truth": 0,
            "insertion": 0.9 - at / 100, "alpha": 0.5, "beta": None, "worst_completeness": at / 100,
            "worst_soundness": 1 - at / 100, "curve": {"keep": [0, 0.5, 1], "score": [0.1, 0.8, 0.9]},
            "pictures": {"image": "image.jpg", "map": "map.png", "kept": "image.jpg"},
            **({} if label else {"matrix": {"labels": [0, 1], "log_odds": [[1.5, -2.0], [-3.25, -4.0]]}}),
        }
        for at in range(cards) for label in (0, 1)
    ]  # fmt: skip
    gallery = {"schema_version": 1, "kept": 0.3, "entries": entries}
    (folder / "gallery.json").write_text(json.dumps(gallery))
    return run


def _side(run: str, verdict: str | None, model: str, **more: Any) -> dict[str, Any]:
    """What a comparison says of a run."""
    return {"run": run, "model": {"path": "model.onnx", "sha256": model, "identity": model}, "verdict": verdict,
            "images": {"source": "photos/test", "count": 12, "digest": "ef" * 32}, "bundles": {}, "environment": {},
            "policy": {"name": "standard", "sha256": "12" * 32}, "suppressed": [], **more}  # fmt: skip


AUDIT: dict[str, Any] = {
    "policy": {"name": "standard", "description": "what we ask", "sha256": "12" * 32, "shipped": False,
               "text": "schema_version = 1\n", "minimum_images": 10, "fail_on": "low"},
    "verdict": "fail", "verdict_reason": "One check was failed.",
    "checks": [
        {"id": status.replace(" ", "-"), "title": f"Check that is {status}", "metric": "worst_completeness",
         "status": status, "observed": 0.5, "low": 0.4, "high": 0.6, "n": 12, "limit": 0.45, "rule": "min",
         "severity": "high", "required": True, "reason": f"It is {status}.",
         **({"suppression": {"reason": "Known.", "approver": "A. Person", "expires": "2031-01-01"}, "would_be": "fail"}
            if status == "suppressed" else {})}
        for status in wording.STATUSES
    ],
    "randomisation": {"method": "gradient", "images": 8, "label": "predicted", "seed": 0, "series": [
        {"stage": 1, "layers": ["fc.weight"], "share": 0.3, "spearman": 0.6, "low": 0.5, "high": 0.7, "n": 8,
         "absolute": 0.6, "constant": 0, "correlations": [0.6] * 8},
        {"stage": 2, "layers": ["fc.weight", "conv.weight"], "share": 1.0, "spearman": 0.1, "low": -0.1, "high": 0.3,
         "n": 8, "absolute": 0.1, "constant": 0, "correlations": [0.1] * 8}]},
    "failed_images": [{"image": "torn.png", "reason": "it is cut short"}],
    "flags": [{"kind": "ties", "bundle": "maps", "count": 3, "total": 36}],
    "explained": {"method": "gradient(seed=0)", "passes": 36, "gradients": 36, "notes": ["slow"],
                  "computed": ["cpu, strict"],
                  "request": {"method": "gradient", "labels": "all", "options": {}, "seed": 0, "gradient": "exact",
                              "pool": None}},
    "baseline": {"a": _side("last-year", "pass", "cd" * 32), "b": _side("run", "fail", "cd" * 32),
                 "shared_images": 11, "only_a": 2, "only_b": 1, "notes": ["another device"],
                 "checks": [{"id": "pass", "before": "fail", "after": "pass"}],
                 "differences": [{"name": "insertion", "bundle_a": "old", "bundle_b": "maps", "infill": "gray",
                                  "value_a": 0.7, "value_b": 0.5, "value": -0.2, "low": -0.3, "high": -0.1,
                                  "confidence": 0.95, "n": 11, "change": "lower", "better": False}]},
}  # fmt: skip


class Page(HTMLParser):
    """What a browser would make of the text: tags, attributes and words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_gallery(made_run(tmp_path_factory.mktemp("audited") / "run", **AUDIT), 6)


@pytest.fixture(scope="module")
def page(audited: Path) -> str:
    return render_html(load(audited))


def test_every_section_is_there_in_order_and_can_be_linked_to(page: str) -> None:
    found = [
        attributes["id"] for tag, attributes in Page(page).tags if tag == "h2" and attributes.get("id") in SECTIONS
    ]
    assert found == [section for section in SECTIONS if section not in ("examination", "groups")]
    ids = {attributes["id"] for _, attributes in Page(page).tags if "id" in attributes}
    targets = {str(attributes["href"])[1:] for tag, attributes in Page(page).tags if tag == "a"}
    assert targets <= ids


def test_the_first_screen_answers_two_questions(page: str) -> None:
    first = Page(page[: page.index("<nav")]).text
    for said in ("Are the heatmaps faithful?", "✕", "Fail", "No. The heatmaps do not meet the policy “standard”.",
                 "Check that is fail", "It is fail.", "How sure: 12 images.",
                 "2 maps per image, made without looking at the model",
                 "What does the model rely on?", "Not known: the model was not examined", "What to do next",
                 "What was not assessed", "1 image that could not be used", "model.onnx", "12 images from test",
                 "made by this run: gradient", "last-year"):  # fmt: skip
        assert said in re.sub(r" (?=[.,:])", "", first), said


def examined(**changes: Any) -> dict[str, Any]:
    """An examination with a finding, and with what it would change."""
    example = {"recipient": "a", "donor": "b", "before": 0, "after": 1, "picture": "finding-1-1.png"}
    finding = {"kind": "corner", "exchange": "corners", "place": "the corners", "label": None, "follows": 0.9,
               "low": 0.8, "high": 0.99, "chance": 0.0, "limit": 0.3, "n": 20, "images": 40, "severity": "high",
               "examples": [example], "allowed": ""}  # fmt: skip
    return {"method": "known", "images": 40, "proposing": 20, "passes": 9, "proposals": 1, "rates": [], "probes": [],
            "zones": [], "findings": [finding | changes]}  # fmt: skip


@pytest.mark.parametrize(("changes", "word", "said"), [
    ({}, "✕ Finding, severity high", "Crop or cover them, and examine again."),
    ({"severity": "medium"}, "! Finding, severity medium", "with the framed part of the second: taken for label 1"),
    ({"allowed": "It is the task."}, "● Nothing found", "No shortcut was found beyond what the policy allows."),
])  # fmt: skip
def test_a_finding_has_its_own_box_on_the_first_screen(
    audited: Path, changes: dict[str, Any], word: str, said: str
) -> None:
    html = render_html(changed(load(audited), examination=examined(**changes)))
    first = Page(html[: html.index("<nav")]).text
    assert word in first
    assert said in first


def one_check(status: str, **changes: Any) -> dict[str, Any]:
    """A check of the prediction's map beside blurred edges."""
    return AUDIT["checks"][0] | {
        "id": "margin", "title": "T", "metric": "relevance_gain", "status": status, "observed": -0.2, "low": -0.3,
        "high": -0.1, "limit": 0.0, "rule": "margin over every control", "against": "control:blurred-edges",
        "reason": "Relevance gain of maps: -0.2. What to do: Ask.", "what_to_do": "Ask.", **changes,
    }  # fmt: skip


@pytest.mark.parametrize(("check", "said"), [
    (one_check("fail"), "The heatmaps show the prediction worse than blurred edges, a map that ignores the model."),
    (one_check("fail", observed=0.1), "The heatmaps show the prediction hardly better than blurred edges, a map that"),
    (one_check("pass"), "The heatmaps show the prediction better than each control, a map that ignores the model."),
    (one_check("inconclusive"), "It is undecided whether the heatmaps show the prediction better than blurred edges."),
    (one_check("fail", metric="label_specificity", rule="min"), "different labels show much the same evidence."),
    (one_check("not assessed", metric="iou", rule="min"), "Not assessed: T."),
])  # fmt: skip
def test_a_check_is_a_plain_sentence_with_a_true_minus(audited: Path, check: dict[str, Any], said: str) -> None:
    html = render_html(changed(load(audited), checks=[check]))
    first = Page(html[: html.index("<nav")]).text
    assert said in first
    assert "−0.2" in first
    assert "-0.2" not in first
    assert first.count("Ask.") == (check["status"] == "fail")


def test_a_figure_that_was_tested_has_one_interval_everywhere(audited: Path) -> None:
    loaded = load(audited)
    pair = next(one for one in loaded.results.comparisons if one.name == "insertion" and one.against == CONTROLS[0])
    check = one_check("fail", metric="insertion", observed=pair.value, low=-0.987, high=0.123, n=pair.n,
                   against=pair.against, rule="margin over every control")  # fmt: skip
    key_table = render_html(changed(loaded, checks=[check]))
    key_table = key_table[key_table.index('class="key') : key_table.index("Every figure of the heatmaps")]
    assert interval(pair.low, pair.high) not in key_table
    assert "−0.987 to 0.123, test" in key_table


@pytest.mark.parametrize("form", ["html", "md"])
def test_every_interval_of_a_figure_says_of_which_kind_it_is(audited: Path, form: str) -> None:
    """In one table, the interval of a test stands beside bootstrap intervals, which are narrower."""
    loaded = load(audited)
    pair = next(
        metric for metric in loaded.results.comparisons if metric.name == "insertion" and metric.against == CONTROLS[0]
    )
    check = one_check("inconclusive", metric="insertion", observed=pair.value, low=-0.987, high=0.123, n=pair.n,
                      against=pair.against, reason="")  # fmt: skip
    text = Page(render(changed(loaded, checks=[check]), form)).text
    text = text[: text.rindex("Rank correlation (Spearman)")]  # whose caption says it for the whole table
    kinds = set(re.findall(r"\d to −?\d\.\d+, (\w+)", text))
    assert {"bootstrap", "test"} <= kinds <= {"bootstrap", "Wilson", "test"}
    unmarked = re.findall(r"(?:0|1)\.\d{3} to (?:0|1)\.\d{3}(?!\d|, )[^.]{0,40}", text)
    assert unmarked == []


def test_results_say_of_which_kind_an_interval_is(audited: Path) -> None:
    results = load(audited).results
    assert {metric.interval for metric in results.metrics if metric.bundle} == {"bootstrap"}
    assert {check.interval for check in results.checks} == {"test"}


def test_the_best_control_is_the_same_wherever_it_is_named(audited: Path) -> None:
    """By the paired differences in the results, also where the rows that curves are drawn from have another order."""
    loaded, other = load(audited), dict(zip(CONTROLS, CONTROLS[::-1], strict=True))
    assert "best control: random map" in render_html(loaded)
    pairs = tuple(
        replace(pair, against=other.get(str(pair.against), pair.against)) for pair in loaded.results.comparisons
    )
    html = render_html(replace(loaded, results=replace(loaded.results, comparisons=pairs)))
    row = html[html.index('<th scope="row">insertion<', html.index('class="key')) :]
    assert '<span class="small">centred Gaussian</span>' in row[: row.index("</tr>")]
    assert "best control: centred Gaussian" in html
    assert "best control: random map" not in html


def test_the_control_that_a_check_names_stands_beside_the_figure_too(audited: Path) -> None:
    loaded = load(audited)
    pairs = [pair for pair in loaded.results.comparisons if pair.name == "insertion" and pair.against in CONTROLS]
    best = best_control(next(one for one in loaded.results.metrics if one.name == "insertion"), loaded.results)[1]
    pair = next(one for one in pairs if one != best)
    check = one_check("fail", metric="insertion", observed=pair.value, low=-1.0, high=1.0, n=pair.n,
                      against=pair.against)  # fmt: skip
    results = changed(loaded, checks=[check]).results
    metric = next(one for one in results.metrics if (one.name, one.infill) == ("insertion", pair.infill))
    assert best_control(metric, results)[1] == pair


def test_nothing_is_red_without_a_check(audited: Path) -> None:
    text = render_html(changed(load(audited), checks=[]))
    key_table = text[text.index('class="key') : text.index("Every figure of the heatmaps")]
    assert 'class="shows none"' in key_table
    assert 'class="shows fail"' not in key_table


def test_every_check_is_listed_with_a_word_and_a_symbol_for_its_status(page: str) -> None:
    listed = Page(page[page.index('id="checks"') : page.index('id="gallery"')]).text
    for status, word in wording.STATUSES.items():
        assert f"It is {status}." in listed
        assert f"{word.symbol} {word.word}" in re.sub(r"\s+", " ", listed)
    assert "would be fail" in listed
    assert "A. Person" in listed
    assert "2031-01-01" in listed


def test_figures_are_those_of_the_results_with_interval_and_n(audited: Path, page: str) -> None:
    said = Page(page).text
    found = load(audited).results
    for one in (*found.metrics, *found.controls):
        if one.value is not None:
            assert number(one.value) in said
            assert interval(one.low, one.high) in said
        else:
            assert remark(one)
            assert remark(one) in said


def test_a_card_shows_the_matrix_of_its_labels(page: str) -> None:
    """Own maps are marked, and so is the highest of each row, also for those who cannot see it."""
    matrix = re.search(r'<table class="matrix">.*?</table>', page, re.DOTALL)
    assert matrix is not None
    cells = re.findall(r'<td class="([a-z ]*)">([^<]*)', matrix[0])
    assert cells == [("own highest", "1.5"), ("", "−2.0"), ("highest", "−3.2"), ("own", "−4.0")]
    assert matrix[0].count("(highest)") == 2


def test_margins_are_drawn_and_stand_beside_every_control(page: str) -> None:
    section = page[page.index('id="effort"') : page.index('id="classes"')]
    assert "Histogram of label specificity" in section
    assert "Histogram of other-label evidence" in section
    assert section.count('data-label="over"') == len(CONTROLS)


def test_with_one_label_the_report_says_why_there_is_no_label_specificity(tmp_path: Path) -> None:
    page = render_html(load(made_run(tmp_path / "run", labels=1)))
    assert "in log-odds): no image has a second label in the label set" in page
    assert 'id="effort"' not in page


@pytest.mark.parametrize(("verdict", "word"), [("pass", "Pass"), ("inconclusive", "Inconclusive"),
                                               ("measured", "Measured"), (None, "No verdict")])  # fmt: skip
def test_each_verdict_has_its_word(audited: Path, verdict: str | None, word: str) -> None:
    assert Page(render_html(changed(load(audited), verdict=verdict))).text.count(f"Verdict: {word}") == 1


def test_a_verdict_that_is_not_known_never_looks_like_a_pass(audited: Path) -> None:
    loaded = load(audited)
    with pytest.raises(BadInput, match="verdict is 'fine', expected one of pass, fail, inconclusive, measured"):
        changed(loaded, verdict="fine")
    text = render_html(replace(loaded, results=replace(loaded.results, verdict="fine")))  # type: ignore[arg-type]
    assert 'class="answer-box fail"' in text
    assert 'class="answer-box pass"' not in text


def test_sections_without_content_do_not_appear(tmp_path: Path) -> None:
    html = render_html(load(made_run(tmp_path / "run")))
    ids = [attributes["id"] for tag, attributes in Page(html).tags if tag == "h2" and attributes.get("id") in SECTIONS]
    assert ids == ["figures", "curves", "effort", "classes", "definitions", "limits", "identity", "regulation",
                   "sign-off"]  # fmt: skip
    assert "No policy was applied" in Page(html).text


@pytest.mark.parametrize(("first", "open_cards"), [(6, 6), (24, 8)])
def test_six_images_of_the_gallery_are_open_and_more_on_request(tmp_path: Path, first: int, open_cards: int) -> None:
    html = render_html(load(with_gallery(made_run(tmp_path / "run"), 8)), first)
    gallery = html[html.index('id="gallery"') : html.index('id="definitions"')]
    assert gallery.split("more images</summary>")[0].count('<li class="card') == open_cards
    assert gallery.count('<li class="card') == 8


def test_a_run_whose_maps_were_all_refused_renders(tmp_path: Path) -> None:
    """No figure, no row: the page says so and draws nothing."""
    subject: Any = {
        "model": "callable", "input": "image", "output": "logits", "kind": "logits", "classes": 3, "layout": "NCHW",
        "dtype": "float32", "card_origin": {"source": "preset unit", "sha256": None}, "card": {}, "class_names": [],
        "images": {"source": "x", "count": 3, "digest": "00"},
    }  # fmt: skip
    told = without_figures(from_json(Subject, subject, "subject"), resolved(Evaluation(), 3), {"auditkit": "0.1.0"})
    refused = {"vendor": (Refusal("another-model", "made for another model"),)}
    told = replace(told, verdict="fail", verdict_reason="The maps are of another model.",
                   run=replace(told.run, refused_bundles=refused))  # fmt: skip
    with Store.open(tmp_path / "run", {}) as store:
        store.finish(told)
    said = Page(render_html(load(tmp_path / "run"))).text
    assert "made for another model" in said
    assert "No figures were measured in this run." in said


def _changed(loaded: Loaded, before: dict[str, Any], after: dict[str, Any], **said: Any) -> str:
    """The page of a run with that baseline."""
    comparison = from_json(Comparison, AUDIT["baseline"] | {"a": before, "b": after, **said}, "baseline")
    return render_html(replace(loaded, results=replace(loaded.results, baseline=comparison)))


def test_the_baseline_says_what_was_compared_and_marks_what_differs(audited: Path) -> None:
    before = _side("last-year", "pass", "aa" * 32, suppressed=["ties"], bundles={"old_maps": "ee" * 32})
    page = _changed(load(audited), before, _side("run", "fail", "bb" * 32))
    first = Page(page[: page.index("<nav")])
    assert "Since the baseline : run last-year ✓ Pass · 1 check of it suppressed; 1 check changed" in first.text
    assert "#baseline" in [attributes.get("href") for _, attributes in first.tags]
    table = page[page.index("What was compared") : page.index("Checks before and after")]
    rows = {Page(row).text.split("changed")[0].strip(): row for row in re.findall(r"<tr.*?</tr>", table)[1:]}
    assert [what for what, row in rows.items() if 'class="changed"' in row] == [
        line for line in rows if line.startswith(("verdict", "suppressed checks", "model sha256", "heatmaps old_maps"))
    ]
    assert len(rows) == 10  # the model's identity is its digest once more
    for value in ("aa" * 32, "bb" * 32, "ee" * 32, "12" * 32):
        assert f'<code class="break">{value}</code>' in table
    for words in ("Pass", "Fail", "ties", "none"):
        assert words in Page(table).text


def test_values_that_look_alike_when_cut_are_still_said_to_differ(audited: Path) -> None:
    sides = [_side("x", "pass", "aa" * 32) for _ in "ab"]
    for side, part in zip(sides, "ab", strict=True):
        side["images"] |= {"source": f"{'x' * 200}{part}{'x' * 200}"}
    page = _changed(load(audited), *sides)
    table = page[page.index("What was compared") : page.index("Checks before and after")]
    assert table.count('class="changed"') == 1


def test_a_baseline_that_says_little_of_itself_renders(audited: Path) -> None:
    side = _side("", None, "") | {"model": "callable", "policy": {"name": None, "sha256": None}}
    page = _changed(load(audited), side, side, checks=[], differences=[])
    assert Page(page).text.count("Since the baseline : an earlier run") == 1


@pytest.mark.parametrize("side", [None, {}, 5, "x", {"verdict": None}, {"model": "a function"}, {"policy": None}])
def test_a_baseline_of_another_form_is_refused(audited: Path, side: Any) -> None:
    whole = _side("x", "pass", "aa" * 32)
    wrong = whole | side if side and isinstance(side, dict) and "verdict" not in side else side
    for both in ((wrong, whole), (whole, wrong)):
        with pytest.raises(BadInput, match=r"baseline\.[ab]"):
            _changed(load(audited), *both)


def test_what_no_infill_changes_stands_once(audited: Path) -> None:
    """The saliency metric replaces no pixel: under a second infill it would look measured twice."""
    loaded = load(audited)
    without_infill = [metric.name for metric in METRICS.values() if metric.compute and not metric.depends_on_infill]
    assert {"saliency_metric", "degenerate_boxes", "pointing_game", "iou"} <= set(without_infill)
    some = next(one for one in loaded.results.metrics if one.name == "insertion")
    more = [replace(some, name=metric, infill=infill, value=0.625, low=0.5, high=0.75) for infill in ("gray", "blur")
            for metric in ("insertion", *without_infill)]  # fmt: skip
    loaded = replace(loaded, results=replace(loaded.results, metrics=(*loaded.results.metrics, *more)))
    shown = {table.caption: [words for words, *_ in table.rows] for table in tables.figures(loaded.results)}
    assert set(map(title, without_infill)) < set(shown["Means over images, infill gray"])
    assert "insertion" in shown["Means over images, infill blur"]
    assert not set(map(title, without_infill)) & set(shown["Means over images, infill blur"])
    assert "lower is better, the same under each infill" in render_html(loaded)
    changes = [
        DifferenceResult(metric, "old", bundle, infill, 0.0, 0.625, 0.625, 0.5, 0.75, 0.95, 12, "higher", better=True)
        for infill in ("gray", "blur") for bundle in ("maps", "more") for metric in ("insertion", "iou")
    ]  # fmt: skip
    comparison = replace(from_json(Comparison, AUDIT["baseline"], "baseline"), differences=tuple(changes))
    loaded = replace(loaded, results=replace(loaded.results, baseline=comparison))
    distinct = tables.distinct(comparison.differences)
    assert [(pair.name, pair.bundle_b, tables.difference_infill(pair)) for pair in distinct] == [
        ("insertion", "maps", "gray"), ("iou", "maps", "–"), ("insertion", "more", "gray"),
        ("iou", "more", "–"), ("insertion", "maps", "blur"), ("insertion", "more", "blur"),
    ]  # fmt: skip
    assert "what is the same under each infill is listed once" in render_html(loaded)


def test_a_class_of_too_few_images_says_so_where_its_interval_would_be(audited: Path) -> None:
    loaded = load(audited)
    classes = tuple(replace(one, low=None, high=None, note=Note("few-images")) for one in loaded.results.classes)
    assert classes
    loaded = replace(loaded, results=replace(loaded.results, classes=classes))
    page = render_html(loaded)
    part = page[page.index('id="classes"') : page.index('id="gallery"')]
    assert part.count(f'<span class="inline">{tables.TOO_FEW}</span>') == len(classes)
    assert '<span class="inline"></span>' not in part


def test_fewer_than_five_images_have_neither_an_interval_nor_a_direction(tmp_path: Path) -> None:
    for images, few in ((4, True), (5, False)):
        loaded = load(made_run(tmp_path / str(images), images=images))
        html, text = render_html(loaded), render(loaded, "md")
        key_figures = Page(html[html.index('class="key') : html.index("Every figure of the heatmaps")]).text
        assert ("? too few images" in key_figures, bool(re.search("[▲▼≈]", key_figures))) == (few, not few)
        drawn = [attributes.get("class") or "" for tag, attributes in Page(html).tags if tag == "path"]
        assert any("whisker" in look or look == "span" for look in drawn) is not few
        assert any(re.search(r"\.\d{3} to ", part) for part in (key_figures, text)) is not few


def test_randomisation_that_was_not_assessed_says_why(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", randomisation={"not_assessed": {"cause": "supplied"}})
    assert (
        "re-initialised: the maps were supplied, so they cannot be made again for a re-initialised model."
        in Page(render_html(load(run))).text
    )


def test_the_same_run_gives_the_same_bytes(audited: Path, page: str) -> None:
    assert render_html(load(audited)) == page


def test_nothing_outside_the_page_is_asked_for(page: str) -> None:
    for tag, attributes in Page(page).tags:
        for key in ("src", "href", "xlink:href", "srcset", "action"):
            value = attributes.get(key) or ""
            assert value.startswith(("data:image/", "#")) or not value, (tag, value[:80])
        assert not any(key.startswith("on") or key == "style" for key in attributes), (tag, attributes)
    assert "@import" not in page
    assert "url(" not in page
    csp = next(a["content"] or "" for t, a in Page(page).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert csp.startswith("default-src 'none'")
    assert "unsafe" not in csp


def test_hostile_names_stay_names(tmp_path: Path) -> None:
    loaded = load(with_gallery(made_run(tmp_path / "run", sources=(HOSTILE.replace("\ud800", ""), *CONTROLS)),
                               called=HOSTILE))  # fmt: skip
    planted = {key: _planted(AUDIT[key]) for key in AUDIT if key != "verdict"}
    loaded = changed(loaded, **planted | {
        "subject": {"model": {"path": f"dir/{HOSTILE}"}, "class_names": [HOSTILE] * 3}, "limitations": [HOSTILE],
    })  # fmt: skip
    assert loaded.gallery is not None
    entries = tuple(replace(entry, image=HOSTILE, bundle=HOSTILE, role=HOSTILE) for entry in loaded.gallery.entries)
    loaded = replace(loaded, gallery=replace(loaded.gallery, entries=entries))
    text = render_html(loaded)
    page = Page(text)
    assert not [attributes for tag, attributes in page.tags if tag == "img" and "onerror" in attributes]
    assert not [tag for tag, _ in page.tags if tag == "script"]
    assert page.text.count("<img src=x onerror=alert(1)>") > 20  # shown as what it is
    assert "{{7*7}}" in page.text
    for hidden in "\u202e\x00\x1b\ud800":
        assert hidden not in text
    assert "‹U+202E›" in text
    text.encode()


def _planted(value: Any) -> Any:
    """The value with every text in it hostile, but for those that the code looks up."""
    looked_up = ("status", "would_be", "name", "rule", "metric", "infill", "before", "after", "severity", "kind",
                 "verdict", "change")  # fmt: skip
    if isinstance(value, dict):
        return {key: held if key in looked_up else _planted(held) for key, held in value.items()}
    if isinstance(value, list):
        return [_planted(held) for held in value]
    return HOSTILE if isinstance(value, str) else value


def test_a_picture_is_taken_from_the_gallery_alone_and_only_when_it_is_one(audited: Path) -> None:
    loaded = load(audited)
    (audited / "secret.png").write_bytes(picture(4, "PNG"))
    (audited / "gallery" / "page.png").write_bytes(b"<svg onload=alert(1)>")
    for outside in ("../secret.png", "/etc/passwd", "page.png", "gallery.json", "absent.png", "map.svg"):
        assert loaded.picture(outside) == ""
    kept = loaded.picture("map.png")
    assert base64.b64decode(kept.partition(",")[2]) == (audited / "gallery" / "map.png").read_bytes()


def test_a_thousand_images_of_ten_labels_stay_below_five_megabytes(tmp_path: Path) -> None:
    run = with_gallery(made_run(tmp_path / "run", 1000, 10, ("maps", "control:random")), cards=90, side=160)
    text = render_html(load(run))
    assert len(text.encode()) < 5_000_000
    said = Page(text).text
    assert f"Of 1 000 images, {MOST_IMAGES} are drawn, chosen at random with seed 0." in said
    assert f"Of 10 000 pairs, {exact(MOST_PAIRS)} are drawn, chosen at random with seed 0." in said
    assert "more are in the run’s folder" in said
    assert set(re.findall(r'class="role">(\w+)<', text)) == {"worst", "median", "best"}


def test_rows_that_are_missing_are_not_passed_over(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", 120)
    next((run / "items").iterdir()).unlink()
    with pytest.raises(IntegrityFailure, match="rows"):
        render_html(load(run))


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(BadInput):
            load(folder)


def test_a_gallery_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    run = with_gallery(made_run(tmp_path / "run"))
    (run / "gallery" / "gallery.json").write_text("{")
    with pytest.raises(BadInput, match="without a gallery"):
        load(run)


def test_the_map_to_regulation_never_says_compliant() -> None:
    items = [item for _, _, listed in norms.TABLES for item in listed]
    texts = [[item.about, *item.missing, *(part for part, _ in item.evidence)] for item in items]
    said = " ".join(chain.from_iterable(texts)).casefold()
    assert "compli" not in said
    assert "conform" not in said
    anchors = {anchor for item in items for anchor, _ in item.sections}
    assert anchors <= set(SECTIONS)


def test_nothing_is_named_as_evidence_that_a_run_does_not_hold() -> None:
    bare = {item.where: item for item in norms.evidence((*norms.ANNEX_IV, *norms.NIST), {"figures", "insertion"})}
    assert bare["6"].evidence == (("none in this report", ""),)
    assert bare["6"].sections == ()
    said = [part for item in bare.values() for part, _ in item.evidence]
    assert not {"randomisation", "best effort", "figures by class", "worst images", "runtime error"} & set(said)
    assert [part for part, _ in bare["MEASURE 2.9"].evidence] == ["insertion"]
    whole = norms.evidence(norms.NIST, {"figures", "randomisation", "best_effort", "runtime", "controls"})
    assert "randomisation" in [anchor for item in whole for anchor, _ in item.sections]


def test_what_a_run_does_not_hold_is_named_as_missing() -> None:
    """A part is evidence or missing, never both; what no such report holds is missing from each."""
    for _, _, items in norms.TABLES:
        for available in (set[str](), {"accuracy", "groups", "figures"}):
            for given, item in zip(items, norms.evidence(items, available), strict=True):
                held = {words for words, _ in item.evidence} - {norms.NO_EVIDENCE}
                assert held | set(item.missing) == {words for words, _ in given.evidence} | set(given.missing)
                assert not held & set(item.missing)
    (groups,) = (item for item in norms.evidence(norms.ARTICLES, {"groups"}) if item.where == "13 (3)(b)(v)")
    assert (groups.evidence, groups.missing) == ((("figures and gaps by group", "groups"),), ("figures by class",))
    assert groups.sections == (norms.GROUPS,)


@pytest.mark.parametrize(("made", "expected"), [
    (number(0.96394), "0.964"), (number(-0.25), "−0.250"), (number(-1e-9), "0.000"), (number(None), "–"),
    (number(float("nan")), "–"), (signed(0.25), "+0.250"), (signed(-0.25), "−0.250"), (signed(0.0), "0.000"),
    (measured(1.5e-8), "1.5 × 10⁻⁸"), (measured(0.5), "0.500"), (measured(40), "40"), (exact(0.001), "0.001"),
    (exact(2400), "2 400"), (interval(0.1, None), ""), (interval(-0.1, 0.1), "−0.100 to 0.100"),
    (source("control:one-map:a"), "one map for all labels (a)"), (source(None), "the model"),
    (visible("a\u200bb\r"), "a‹U+200B›b‹U+000D›"), (name("a\nb"), "a‹U+000A›b"), (len(name("x" * 999)), 120),
])  # fmt: skip
def test_numbers_and_names_have_one_form(made: str, expected: str) -> None:
    assert made == expected
