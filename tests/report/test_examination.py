"""Every finding of an examination is a sentence that a reader can use, and names stay names."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from auditkit.metrics.exchanges import CONTROL, CORNERS, EXCHANGES, Exchange
from auditkit.metrics.probes import PROBES
from auditkit.records import from_json
from auditkit.report import examination as words
from auditkit.report.examination_page import render_page
from auditkit.runs.examination.places import ALL_CORNERS, BORDER, VARYING
from auditkit.runs.folder.examination import (
    CueKind,
    Examination,
    Example,
    ExchangeRate,
    Finding,
    ProbeRate,
    Zone,
)
from auditkit.runs.folder.examination_run import ExaminationRun
from auditkit.runs.folder.results import Subject, Tool
from tests.support import synthetic_runs

NAMES = ("<b>cat</b>", "dog & {{7*7}}")
CUES = [exchange for exchange in EXCHANGES if exchange.kind != CONTROL]
PLACES = {"corner": ALL_CORNERS, "border": BORDER, "place": "the left side", "mark": VARYING}


def finding(exchange: Exchange, label: int | None = None, **changes: object) -> Finding:
    """A finding by an exchange."""
    place = f"the {exchange.name}" if exchange.name in CORNERS else PLACES.get(exchange.kind, "")
    example = Example("a", "b", 0, 1, "finding-1-1.png")
    made = Finding(exchange.kind, exchange.name, place, label, 0.93, 0.8, 0.99, 0.02, 0.3, 60, 12, "high", (example,))  # type: ignore[arg-type]
    return replace(made, **changes)  # type: ignore[arg-type]


def examination(*found: Finding, shuffled: float = 0.3) -> Examination:
    """An examination with these findings."""
    rates = (ExchangeRate("frame", 0.93, 0.05, 0.02, None, None, 120),)
    probes = (ProbeRate("patches shuffled, 8 x 8", shuffled, 0.2, 0.9, 120),)
    zones = (Zone("the centre", None, 3, 4, 120),)
    return Examination("known", 120, 60, 9000, len(found), rates, probes, zones, found)


def plain(text: str) -> None:
    """Assert that a text is made of whole sentences."""
    assert not re.search(r"[{}]|None|\bnan\b", text), text
    assert text[0].isupper() or text[0].isdigit()
    assert "  " not in text
    assert " ," not in text


@pytest.mark.parametrize("label", [None, 1, 7])
@pytest.mark.parametrize("exchange", CUES, ids=lambda exchange: exchange.name)
def test_every_exchange_gives_sentences(exchange: Exchange, label: int | None) -> None:
    for found in (finding(exchange, label), finding(exchange, label, low=None, high=None, n=1, images=1)):
        plain(words.title(found, ("cat", "dog")))
        for text in (words.seen(found, ("cat", "dog")), words.how_many(found, examination()), words.to_do(found)):
            plain(text)
            assert text.endswith(".")
    named = {None: "", 1: "“dog”", 7: "label 7"}[label]
    assert named in words.title(finding(exchange, label), ("cat", "dog"))


def test_every_kind_has_an_exchange() -> None:
    assert {exchange.kind for exchange in CUES} == set(get_args(CueKind))


@pytest.mark.parametrize("place", [VARYING, BORDER, ALL_CORNERS, "the lower side"])
def test_a_mark_says_where_it_is(place: str) -> None:
    mark = next(exchange for exchange in CUES if exchange.kind == "mark")
    text = words.title(finding(mark, place=place), ())
    plain(text)
    assert (place in text) == (place != VARYING)


def test_the_summary_does_not_claim_too_much() -> None:
    assert words.summary(examination(), ()).endswith("This does not show that there is none.")
    allowed = finding(CUES[0], allowed="the vendor says so")
    assert words.summary(examination(allowed), ()) == words.summary(examination(), ())
    assert words.summary(examination(finding(CUES[0])), ()).startswith("The model relies on the colour")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_how_it_went(count: int) -> None:
    plain(words.how(examination(*[finding(CUES[0])] * count)))


def test_evidence_that_is_everywhere_is_said_to_be() -> None:
    assert words.everywhere(examination()) == ""
    assert "85 %" in words.everywhere(examination(shuffled=0.85))


@pytest.mark.parametrize("allowed", ["", "the <i>vendor</i> says so"])
def test_the_page_shows_all_and_escapes_names(allowed: str, tmp_path: Path) -> None:
    found = [finding(exchange, label, allowed=allowed) for exchange in CUES for label in (None, 0, 1)]
    subject = from_json(Subject, synthetic_runs.results([])["subject"] | {"class_names": list(NAMES)}, "subject")
    run = ExaminationRun(Tool("auditkit", "1"), subject, {"device": "cpu"}, 0, examination(*found, shuffled=0.9))
    text = render_page(run, tmp_path)
    body = text[text.index("<body>") :]
    assert "<b>cat" not in body
    assert "&lt;b&gt;cat&lt;/b&gt;" in body
    assert "{{7*7}}" in body
    assert "<i>" not in body
    assert not re.search(r"\bNone\b", body)
    assert body.count('<span class="pill') == len(found)
    assert "picture missing" in body
    assert "The evidence is everywhere" in body


def test_the_place_of_a_label_is_told_beside_that_of_others() -> None:
    of_all, of_label = Zone("the centre", None, 40, 30, 100), Zone("the centre", 1, 10, 3, 12)
    text = words.placed(of_label, replace(examination(), zones=(of_all, of_label)), ("cat", "dog"))
    assert text == ("In 10 of 12 images of “dog” the strongest evidence lies in the centre (other images: 34 %); the "
                    "strongest edges lie there in 3.")  # fmt: skip


def test_a_rate_ranks_among_those_of_other_models() -> None:
    assert words.usual("exchanges", "mean colour", 0.95).endswith("above 16 of 16")
    assert words.usual("exchanges", "unheard of", 0.5) == "–"
    known = json.loads((Path(words.__file__).parent / "usual_rates.json").read_text())
    assert set(known["exchanges"]) == {exchange.name for exchange in EXCHANGES}
    assert set(known["probes"]) == set(PROBES)
