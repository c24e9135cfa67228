"""The report as a browser shows it: quiet, complete, usable by hand, readable narrow, dark and on paper."""

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from auditkit.report.html import render_html
from auditkit.report.load_run import load
from tests.report.test_html import AUDIT, CONTROLS, HOSTILE, changed, made_run, with_gallery

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync")  # fmt: skip
CARDS = 7


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    run = with_gallery(made_run(folder / "run", sources=("maps", *CONTROLS), **AUDIT), CARDS, called=f"cat {HOSTILE}")
    loaded = changed(load(run), subject={"model": {"path": "x" * 300 + HOSTILE}})
    (folder / "report.html").write_text(render_html(loaded), encoding="utf-8")
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield opened
        opened.close()


class Watched:
    """A page, and what it said and asked for while it was open."""

    def __init__(self, page: Any, report: Path) -> None:
        self.page, self.said, self.asked = page, list[str](), list[str]()
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        page.goto(report.as_uri())

    def cards(self) -> list[str]:
        """Names of the images that are shown, in their order."""
        found: list[str] = self.page.eval_on_selector_all(
            ".card", "all => all.filter(one => one.checkVisibility()).map(one => one.querySelector('b').textContent)"
        )
        return found


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Watched]:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    yield Watched(page, report)
    page.close()


def test_it_opens_without_a_word_and_without_a_request(opened: Watched, report: Path) -> None:
    opened.page.wait_for_load_state("networkidle")
    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith("data:")] == [report.as_uri()]
    assert opened.page.locator("h1").inner_text().split()[:2] == ["Audit", "of"]
    assert opened.page.evaluate("document.images.length") == CARDS * 5
    assert opened.page.evaluate("[...document.images].every(one => one.complete && one.naturalWidth > 0)")


def test_the_answers_are_on_the_first_screen(opened: Watched) -> None:
    for selector in ("h1", ".subject", ".verdict-word", ".answer", ".reasons"):
        place = opened.page.locator(selector).first.bounding_box()
        assert place is not None
        assert place["y"] + place["height"] < 800, selector


def test_six_cards_are_open_and_the_others_unfold(opened: Watched) -> None:
    assert len(opened.cards()) == 6
    opened.page.locator("#gallery ~ details > summary").click()
    assert len(opened.cards()) == CARDS


@pytest.mark.parametrize("width", [320, 390, 768, 1024])
def test_a_narrow_window_needs_no_sideways_scroll(opened: Watched, width: int) -> None:
    opened.page.set_viewport_size({"width": width, "height": 800})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    if width < 700:  # rows of tables become blocks as wide as the window
        widths = opened.page.eval_on_selector_all(".stack tbody > tr > *", "all => all.map(one => one.offsetWidth)")
        assert min(widths) > 0.7 * width


def test_dark_mode_turns_the_page_dark_and_stays_readable(opened: Watched) -> None:
    light = _colours(opened.page)
    opened.page.emulate_media(color_scheme="dark")
    dark = _colours(opened.page)
    assert _light(light["paper"]) > 0.9 > 0.2 > _light(dark["paper"])
    for mode in (light, dark):
        for part in ("ink", "verdict", "tick"):
            back = mode["box"] if part == "verdict" else mode["paper"]
            assert _contrast(mode[part], back) >= 4.5, (part, mode)


def test_paper_is_white_also_from_a_dark_screen(opened: Watched) -> None:
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert _light(_colours(opened.page)["paper"]) > 0.9
    assert len(opened.cards()) == 6


def test_it_prints_on_a_handful_of_sheets(opened: Watched) -> None:
    printed = opened.page.pdf(prefer_css_page_size=True)
    assert printed.startswith(b"%PDF")
    assert 4 <= printed.count(b"/Type /Page\n") <= 10


def test_a_script_that_was_smuggled_in_does_not_run(browser: Any, report: Path) -> None:
    """The page's policy holds even where escaping would not."""
    bad = report.with_name("bad.html")
    planted = "<img src=x onerror=alert(1)><script>alert(2)</script><img src='https://example.org/x.png'>"
    bad.write_text(report.read_text(encoding="utf-8").replace("</main>", f"{planted}</main>"), encoding="utf-8")
    page = browser.new_page()
    ran, answered = list[str](), list[str]()
    page.on("dialog", lambda dialog: (ran.append(dialog.message), dialog.dismiss()))
    page.on("response", lambda response: answered.append(response.url))
    page.route("https://example.org/**", lambda route: route.fulfill(body="reached"))
    page.goto(bad.as_uri(), wait_until="networkidle")
    assert ran == []
    assert not [url for url in answered if url.startswith("http")]
    page.close()


def test_headings_tables_and_drawings_can_be_heard(opened: Watched) -> None:
    levels = opened.page.eval_on_selector_all("h1, h2, h3", "all => all.map(one => Number(one.tagName[1]))")
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert opened.page.evaluate("[...document.querySelectorAll('table')].every(one => one.caption.textContent.trim())")
    assert opened.page.evaluate("[...document.images].every(one => one.alt)")
    assert opened.page.evaluate(
        "[...document.querySelectorAll('svg:not([aria-hidden])')].every(one => one.textContent)"
    )
    assert opened.page.locator("svg[role=img] > title").count() == opened.page.locator("svg[role=img]").count() > 10
    assert opened.page.evaluate(
        "(ids => ids.length === new Set(ids).size)([...document.querySelectorAll('[id]')].map(one => one.id))"
    )


def _colours(page: Any) -> dict[str, tuple[float, ...]]:
    told: dict[str, str] = page.evaluate(
        """() => {
            const of = (selector, key) => getComputedStyle(document.querySelector(selector))[key];
            return {paper: of("body", "backgroundColor"), ink: of("body", "color"),
                    verdict: of(".verdict-word", "color"), box: of(".answer-box", "backgroundColor"),
                    tick: of("svg .tick", "fill")};
        }"""
    )
    return {key: tuple(float(part) for part in text[4:-1].split(",")) for key, text in told.items()}


def _light(colour: tuple[float, ...]) -> float:
    """Relative luminance, as WCAG has it."""
    parts = [part / 255 for part in colour]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    low, high = sorted((_light(first), _light(second)))
    return (high + 0.05) / (low + 0.05)
