"""The report's charts: what is drawn, in which words, and what was left out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from auditkit.report.charts import Axis, Panel, legend, nice_range
from auditkit.report.rows import BAND, GRID, SEED, Rows, some
from auditkit.report.text import CONTROLS, DOWN, UP, count, exact, name, source
from auditkit.runs.plan import CONTROL

Array = np.ndarray[Any, Any]
MOST_IMAGES, MOST_PAIRS = 400, 1500  # points of a chart
MOST_BUNDLES = 4  # that are drawn; all of them are in the tables
BINS = np.linspace(0, 1, 21)
BUNDLE_SHAPES = ("disc", "square", "triangle", "diamond")
SHAPES = dict(
    zip(CONTROLS, ("square", "triangle", "diamond", "saltire", "wedge", "bar", "pillar", "ring"), strict=True)
)
Metric = Mapping[str, Any]


class Drawn(NamedTuple):
    """A figure: its panels with their titles, its key, and what it shows."""

    panels: Sequence[tuple[str, Markup]]
    legend: Markup
    caption: str


def tone_of(bundle: str, bundles: Sequence[str]) -> tuple[str, str]:
    """Tone and shape of a source, the same in every chart."""
    if bundle in bundles:
        turn, place = divmod(bundles.index(bundle), MOST_BUNDLES)
        return f"b{place}", BUNDLE_SHAPES[turn % len(BUNDLE_SHAPES)]
    kind = bundle.removeprefix(CONTROL).partition(":")[0]
    return f"k k-{kind if kind in SHAPES else 'other'}", SHAPES.get(kind, "square")


def _thinned(drawn: int, of: int, what: str) -> str:
    if drawn == of:
        return ""
    return f" Of {exact(of)} {what}, {exact(drawn)} are drawn, chosen at random with seed {SEED}."


def plane(metrics: Iterable[Metric], rows: Rows | None, infill: str) -> Drawn | None:
    """Worst completeness against worst soundness: the maps and the controls."""
    found: dict[str, dict[str, Metric]] = {}
    for one in metrics:
        if one["infill"] == infill and one["name"] in ("worst_completeness", "worst_soundness"):
            found.setdefault(one["bundle"], {})[one["name"]] = one
    pairs = {bundle: (two["worst_soundness"], two["worst_completeness"]) for bundle, two in found.items()
             if len(two) == 2 and all(one["value"] is not None for one in two.values())}  # fmt: skip
    if not pairs:
        return None
    bundles = [bundle for bundle in pairs if not bundle.startswith(CONTROL)]
    said = "Mean worst completeness against mean worst soundness of the maps and of every control"
    labels = f"worst soundness → {UP}", f"worst completeness ↑ {UP}"
    whole = Panel("plane", f"{said}, on axes from 0 to 1", Axis(0, 1, labels[0]), Axis(0, 1, labels[1]))
    near = [Axis(*nice_range([end for pair in pairs.values() for end in _ends(pair[place])]), labels[place])
            for place in (0, 1)]  # fmt: skip
    close = Panel("plane-close", f"{said}, axes narrowed to the means", near[0], near[1])
    drawn, images = _images(whole, rows, bundles)
    for panel in (whole, close):
        for bundle, (sound, complete) in reversed(pairs.items()):
            tone, shape = tone_of(bundle, bundles)
            panel.marker(sound["value"], complete["value"], tone, shape, across=_ends(sound), up=_ends(complete))
    keys = [(source(bundle), *tone_of(bundle, bundles)) for bundle in pairs]
    if drawn:
        keys.append(("one image", "b0", "dots"))
    caption = "Marks are means over images, bars their intervals." + _thinned(drawn, images, "images")
    return Drawn((("Whole range", whole.svg()), ("The means, closer", close.svg())), legend(keys), caption)


def _images(panel: Panel, rows: Rows | None, bundles: Sequence[str]) -> tuple[int, int]:
    """Draw an image a point; how many are drawn, and how many there are."""
    drawn = every = 0
    for bundle in bundles[:MOST_BUNDLES] if rows is not None else ():
        values = rows.per_image(bundle) if rows is not None else {}
        sound, complete = values.get("worst_soundness"), values.get("worst_completeness")
        if sound is not None and complete is not None:
            known = np.flatnonzero(np.isfinite(sound) & np.isfinite(complete))
            chosen = some(known, MOST_IMAGES)
            panel.points(sound[chosen], complete[chosen], tone_of(bundle, bundles)[0])
            drawn, every = drawn + len(chosen), every + len(known)
    return drawn, every


def _ends(metric: Metric) -> tuple[float, float]:
    value = metric["value"]
    return (value if metric["low"] is None else metric["low"], value if metric["high"] is None else metric["high"])


def curves(rows: Rows, bundle: str, key: str) -> Drawn:
    """Insertion curves of a bundle and of the controls, for predicted and for other labels."""
    panels, bundles = [], rows.bundles
    tone = tone_of(bundle, bundles)[0]
    shown = [name for name in rows.controls if not name.startswith(f"{CONTROL}one-map:") or name.endswith(f":{bundle}")]
    for predicted, title in ((True, "Predicted label"), (False, "Other labels")):
        mine = rows.curves.get((bundle, predicted))
        if mine is None:
            continue
        better = UP if predicted else "close to the level at 100 % is better"
        panel = Panel(
            f"{key}-{'predicted' if predicted else 'other'}",
            f"{title}: mean probability while pixels are uncovered, most important first, {source(bundle)}",
            Axis(0, 1, "share of pixels kept", percent=True), Axis(0, 1, f"probability of the label ↑ {better}"),
        )  # fmt: skip
        panel.band(GRID, mine.low, mine.high, tone)
        for control in shown:
            if (control, predicted) in rows.curves:
                panel.line(GRID, rows.curves[control, predicted].mean, tone_of(control, bundles)[0])
        panel.line(GRID, mine.mean, tone)
        panels.append((f"{title}, {count(mine.n, 'curve')}", panel.svg()))
    low, high = BAND
    keys = [(f"{source(bundle)}, mean", tone, "line"), (f"middle {high - low:.0%} of its curves", tone, "band"),
            *((source(control), tone_of(control, bundles)[0], "line") for control in shown)]  # fmt: skip
    caption = (
        f"Infill {name(rows.infill)}. Curves are read at {len(GRID)} kept shares, straight between the measured points."
    )
    return Drawn(panels, legend(keys), caption)


def histograms(rows: Rows, bundle: str, key: str) -> Drawn:
    """How insertion, alpha and beta are spread, beside the random control."""
    tone, control = tone_of(bundle, rows.bundles)[0], f"{CONTROL}random"
    panels = []
    for column, label, chief in (("insertion", "insertion AUC", True), ("alpha", "α, completeness of a pair", False),
                                 ("beta", "β, soundness of a pair", False)):  # fmt: skip
        shares = _shares(rows, bundle, column, chief)
        if shares is None:
            continue
        other = _shares(rows, control, column, chief) if control in rows.controls else None
        top = max([*shares, *(other if other is not None else ())])
        panel = Panel(f"{key}-{column}", f"Histogram of {label}, {source(bundle)}", Axis(0, 1, f"{label} → {UP}"),
                      Axis(0, max(0.05, float(np.ceil(top * 20) / 20)), "share of values", percent=True),
                      (300, 230))  # fmt: skip
        panel.bars(BINS.tolist(), shares.tolist(), tone)
        if other is not None:
            panel.outline(BINS.tolist(), other.tolist(), tone_of(control, rows.bundles)[0])
        panels.append((label, panel.svg()))
    keys = [(source(bundle), tone, "band")] + ([(source(control), "k k-random", "line")] if control in rows.controls
                                               else [])  # fmt: skip
    caption = "Insertion of predicted labels; α and β of every pair of an image and a label."
    return Drawn(panels, legend(keys), caption)


def _shares(rows: Rows, source_name: str, column: str, chief: bool) -> Array | None:
    at = rows.good(source_name)
    at = at[rows.items.predicted[at]] if chief and not rows.items.named else at
    values = rows.items.column(column)[at]
    values = values[np.isfinite(values)]
    return np.histogram(values.clip(0, 1), BINS)[0] / len(values) if len(values) else None


def areas(rows: Rows, bundle: str, key: str) -> Drawn:
    """Insertion AUC of every pair against the probability that the whole image gives its label."""
    panel = Panel(key, f"Insertion AUC against the probability of the label, a point a pair, {source(bundle)}",
                  Axis(0, 1, "f, probability of the label on the whole image"), Axis(0, 1, "insertion AUC"),
                  (440, 330))  # fmt: skip
    panel.line((0, 1), (0, 1), "guide")
    panel.note(0.52, 0.47, "AUC = f")
    panel.note(0.16, 0.86, "above: the map makes evidence up (β < 1)")
    panel.note(0.35, 0.1, "below: the map hides evidence (α < 1)")
    at = rows.good(bundle)
    chosen = some(at, MOST_PAIRS)
    predicted = rows.items.predicted[chosen]
    probability, area = rows.items.column("prob"), rows.items.column("insertion")
    for mine, tone in ((chosen[~predicted], "other"), (chosen[predicted], f"{tone_of(bundle, rows.bundles)[0]} firm")):
        panel.points(probability[mine], area[mine], tone)
    keys = [("predicted label", f"{tone_of(bundle, rows.bundles)[0]} firm", "dots"), ("other labels", "other", "dots")]
    caption = "A perfect map lies on the line." + _thinned(len(chosen), len(at), "pairs")
    return Drawn((("", panel.svg()),), legend(keys), caption)


def randomisation(series: Sequence[Metric], limit: float | None) -> Drawn:
    """Rank correlation with the original maps while more and more of the model is re-initialised."""
    low = min([0.0, *(one["low"] for one in series if one.get("low") is not None)])
    said = "Spearman correlation of maps with the original maps by share of re-initialised parameters"
    shares = Axis(0, 1, "share of parameters re-initialised", percent=True)
    panel = Panel("series", said, shares, Axis(float(np.floor(low * 5) / 5), 1, f"Spearman, {DOWN}"), (440, 280))
    if limit is not None:
        panel.line((0, 1), (limit, limit), "guide")
        panel.note(0.99, limit + 0.03, f"limit {exact(limit)}", "end")
    panel.line([0.0, *(one["share"] for one in series)], [1.0, *(one["spearman"] for one in series)], "b0")
    for one in series:
        ends = {"value": one["spearman"], "low": one.get("low"), "high": one.get("high")}
        panel.marker(one["share"], one["spearman"], "b0", "disc", up=_ends(ends))
    return Drawn((("", panel.svg()),), Markup(""), "At share 0 the maps are the originals and the correlation is 1.")
