"""The report's charts: scales, what is drawn and named, and what is left out."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from auditkit.report import plots
from auditkit.report.chart_data import GRID, Curve, Rows, rows_of
from auditkit.report.load_run import load
from auditkit.report.svg import Axis, Panel, legend, sparkline
from auditkit.runs.folder.figures import RandomisationStage
from tests.report.test_html import AUDIT, made_run

SHEET = (Path(plots.__file__).parent / "templates" / "report.css").read_text(encoding="utf-8")
ONE_MAP = "control:one-map:maps"


def rows(levels: dict[str, tuple[float, float]]) -> Any:
    """Level curves by source, of the predicted label and of others."""
    curves = {(name, kind): Curve(np.full(len(GRID), level), np.zeros(len(GRID)), np.ones(len(GRID)), 4)
              for name, two in levels.items() for kind, level in zip((True, False), two, strict=True)}  # fmt: skip
    controls = [name for name in levels if name.startswith("control:")]
    blind = [name for name in controls if name != ONE_MAP]
    best = max(blind, key=lambda name: levels[name][0], default=None)
    return SimpleNamespace(bundles=["maps"], controls=controls, curves=curves, infill="gray", curve_images=["0.png"],
                           table=SimpleNamespace(images=["0.png"]), best_control=lambda bundle: best)  # fmt: skip


def pairs(prob: list[float], area: list[float], predicted: list[bool]) -> Any:
    """Pairs of one source."""
    columns = {"prob": np.array(prob), "insertion": np.array(area)}
    rows = SimpleNamespace(predicted=np.array(predicted), column=columns.__getitem__, measured=np.arange(len(prob)))
    return SimpleNamespace(bundles=["maps"], of=lambda bundle: rows)


def keys(drawn: plots.Drawn) -> list[str]:
    return re.findall(r"<span>(.*?)</span>", drawn.legend)


def height(panel: str, tone: str) -> float:
    """How high a level line lies, on the scale of the drawing."""
    found = re.search(rf'class="line {tone}" d="M[\d.]+ ([\d.]+)L', panel)
    assert found is not None
    return round(1 - (float(found[1]) - 30) / 250, 3)


def test_a_scale_of_powers_has_equal_steps_and_keeps_what_lies_outside_on_its_ends() -> None:
    axis = Axis(1e-9, 1e-3, "f", powers=True)
    assert [axis.along(value) for value in (0, 1e-12, 1e-9, 1e-3, 1)] == pytest.approx([0, 0, 0, 1, 1])
    assert axis.along(1e-6) == pytest.approx(0.5)
    assert [axis.text(tick) for tick in axis.ticks()] == ["10⁻⁸", "10⁻⁶", "10⁻⁴"]
    assert [axis.text(tick) for tick in Axis(0.1, 1, "f", powers=True).ticks()] == ["10⁻¹", "1"]


@pytest.mark.parametrize(("last", "ticks"), [(1, [0, 1]), (3, [0, 1, 2, 3]), (5, [0, 1, 2, 3, 4, 5]),
                                             (12, [0, 5, 10])])  # fmt: skip
def test_whole_numbers_have_whole_ticks(last: int, ticks: list[float]) -> None:
    assert Axis(0, last, "stage", whole=True).ticks() == ticks


def test_controls_are_a_range_with_the_random_and_the_best_named() -> None:
    made = rows({"maps": (0.5, 0.1), "control:random": (0.3, 0.6), "control:edges": (0.7, 0.2),
                 "control:constant": (0.4, 0.8)})  # fmt: skip
    drawn = plots.curves(made, "maps", "curve0")
    assert keys(drawn) == ["maps, mean", "middle 80 % of its curves", "range of 3 controls", "random map",
                           "best control: edges"]  # fmt: skip
    predicted, other = (svg for _, svg in drawn.panels)
    for panel, levels in ((predicted, (0.5, 0.3, 0.7)), (other, (0.1, 0.6, 0.2))):
        assert tuple(height(panel, tone) for tone in ("b0", "k k-random", "k k-best")) == pytest.approx(levels)
        assert panel.count('class="line k') == 2
    band = re.search(r'class="band k" d="(.*?)z"', other)
    assert band is not None
    assert {round(1 - (float(y) - 30) / 250, 2) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", band[1])} == {0.2, 0.8}


def test_the_random_map_has_one_line_where_it_is_the_best() -> None:
    drawn = plots.curves(rows({"maps": (0.5, 0.1), "control:random": (0.6, 0.1), "control:edges": (0.2, 0.1)}),
                         "maps", "curve0")  # fmt: skip
    assert keys(drawn)[2:] == ["range of 2 controls", "best control: random map"]
    assert all(svg.count('class="line k') == 1 for _, svg in drawn.panels)


def test_a_control_made_of_the_maps_is_neither_the_best_nor_in_the_range() -> None:
    """Its curve of the predicted label is that of the maps: with it the range would always hold them."""
    levels = {"maps": (0.9, 0.1), ONE_MAP: (0.9, 0.1), "control:random": (0.3, 0.2), "control:edges": (0.4, 0.2)}
    drawn = plots.curves(rows(levels), "maps", "curve0")
    assert keys(drawn)[2:] == ["range of 2 controls", "random map", "best control: edges"]
    assert "“one map for all labels” is left out" in drawn.caption


@pytest.mark.parametrize(("levels", "named"), [({}, []), ({"control:random": (0.3, 0.2)}, ["random map"])])
def test_few_controls_have_no_range(levels: dict[str, tuple[float, float]], named: list[str]) -> None:
    drawn = plots.curves(rows({"maps": (0.5, 0.1), **levels}), "maps", "curve0")
    assert keys(drawn)[2:] == named
    assert all('class="band k"' not in svg for _, svg in drawn.panels)


def test_labels_that_the_model_rejects_have_a_close_up() -> None:
    made = pairs([1.0, *10.0 ** -np.arange(3, 43)], [0.9, *np.full(40, 0.25)], [True] + [False] * 40)
    drawn = plots.areas(made, "maps", "area0")
    assert [title for title, _ in drawn.panels] == ["Whole range", "Labels that the model rejects, closer"]
    close = drawn.panels[1][1]
    assert 'id="area0-close-t"' in close
    dots = re.search(r'class="dots other" d="(.*?)"', close)
    assert dots is not None
    across = [float(x) for x in re.findall(r"M([\d.]+) ", dots[1])]
    assert len(across) == 40
    assert len(set(across)) >= 0.95 * 40
    assert "In the close-up 1 pair lies below f = 10⁻⁴¹ and on the left edge." in drawn.caption


@pytest.mark.parametrize(("prob", "predicted"), [([0.9, 0.8], [True, True]), ([0.9, 0.0], [True, False])])
def test_there_is_no_close_up_without_labels_to_draw(prob: list[float], predicted: list[bool]) -> None:
    drawn = plots.areas(pairs(prob, [0.5, 0.5], predicted), "maps", "area0")
    assert [title for title, _ in drawn.panels] == [""]


@pytest.mark.parametrize("prob", [1.0, 0.1, 1e-30, 0.37])
def test_a_close_up_of_one_label_is_drawn(prob: float) -> None:
    drawn = plots.areas(pairs([0.9, prob], [0.5, 0.4], [True, False]), "maps", "area0")
    assert len(drawn.panels) == 2
    assert "nan" not in drawn.panels[1][1]


def test_randomisation_is_drawn_by_stage_and_a_stage_without_a_figure_leaves_a_gap() -> None:
    series = [RandomisationStage(stage, (), share, 0.5, 0.4, 0.6, 8, absolute=0.5, constant=0, correlations=(0.5,) * 8)
              for stage, share in ((1, 0.0024), (2, 0.9), (4, 1.0))]  # fmt: skip
    no_figure = RandomisationStage(3, (), 0.95, None, None, None, n=0, absolute=None, constant=8, correlations=())
    series.insert(2, no_figure)
    svg = plots.randomisation(series, 0.5).panels[0][1]
    left, right = 40, 426
    places = [float(x) for x in re.findall(r'class="mark b0 disc" transform="translate\(([\d.]+) ', svg)]
    assert places == pytest.approx([left + (right - left) * stage / 4 for stage in (0, 1, 2, 4)])
    assert re.findall(r'text-anchor="middle">(.*?)<', svg) == ["0", "1", "2", "3", "4"]


def test_a_stage_of_few_images_is_drawn_without_an_interval_within_the_axes() -> None:
    few = RandomisationStage(1, (), 1.0, -0.5, None, None, n=4, absolute=0.5, constant=0, correlations=(-0.5,) * 4)
    many = RandomisationStage(1, (), 1.0, -0.5, -0.5, -0.5, n=8, absolute=0.5, constant=0, correlations=(-0.5,) * 8)
    alone, beside = (plots.randomisation([stage], None).panels[0][1] for stage in (few, many))
    assert ("whisker" in alone, "whisker" in beside) == (False, True)
    marks = [re.findall(r'class="mark b0 disc" transform="(.*?)"', svg) for svg in (alone, beside)]
    assert marks[0] == marks[1]


def test_the_key_of_a_histogram_is_drawn_as_its_bars_are(tmp_path: Path) -> None:
    made = rows_of(load(made_run(tmp_path / "run", **AUDIT)))
    assert isinstance(made, Rows)
    drawn = plots.histograms(made, "maps", "spread0")
    assert '<path class="bar b0"' in drawn.legend
    assert all('class="bar b0"' in svg for _, svg in drawn.panels)


def test_a_small_curve_names_the_ends_of_its_axes() -> None:
    drawn = sparkline([0, 1], [0, 1], 0.3, "a <curve>")
    assert re.findall(r"<text.*?>(.*?)</text>", drawn) == ["1", "0", "100 %"]
    assert "M12 106L116 6" in drawn
    assert "a &lt;curve&gt;" in drawn


def test_every_tone_and_shape_of_a_key_is_known_to_the_style_sheet() -> None:
    drawn = legend((f"{shape} & co", "other", shape) for shape in ("line", "band", "bars", "dots", "disc"))
    assert drawn.count("&amp; co") == 5
    assert set(re.findall(r'class="(line|band|bar|dots|mark) ', drawn)) == {"line", "band", "bar", "dots", "mark"}
    for tone in (".line.k-random", ".line.k-best", ".band.k", ".dots.other", ".spark .tick"):
        assert tone in SHEET


def test_on_paper_headings_and_heads_stay_with_what_follows() -> None:
    printed = SHEET.partition("@media print {")[2]
    assert re.search(r"h2, h3, .*caption, thead.* \{ break-after: avoid; \}", printed)
    assert "tbody > tr:first-child { break-before: avoid; }" in printed


def test_a_panel_keeps_names_as_text() -> None:
    panel = Panel("key", "<b>", Axis(0, 1, "<x>"), Axis(0, 1, "<y>"))
    panel.note(0.5, 0.5, "<note>")
    assert not re.search(r"<(b|x|y|note)>", panel.svg())
