"""The report's charts: what is drawn, in which words, and what was left out."""

from collections.abc import Iterable, Sequence
from itertools import chain, product
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from auditkit.arrays import Array
from auditkit.metrics.label_specificity import CLIPPED
from auditkit.metrics.table import title
from auditkit.report.chart_data import BAND, GRID, SEED, Rows, sample
from auditkit.report.formatting import DOWN, UP, count, exact, name, percent, source
from auditkit.report.svg import Axis, Panel, legend, nice_range
from auditkit.runs.folder.figures import CONTROL, ONE_MAP_PREFIX, MetricResult, RandomisationStage
from auditkit.runs.summary.source_rows import image_means
from auditkit.runs.summary.wording import CONTROLS

MOST_IMAGES, MOST_PAIRS = 400, 1500  # points of a chart
MOST_BUNDLES = 4  # that are drawn; all of them are in the tables
MOST_SHOWN = 0.95  # of the other labels, on the close-up of their probabilities; the least stand on its edge
_RANDOM = f"{CONTROL}random"
_SPREAD = {"insertion": "insertion AUC", "alpha": "α, completeness of a pair", "beta": "β, soundness of a pair"}
BUNDLE_SHAPES = ("disc", "square", "triangle", "diamond")
_CONTROL_SHAPES = ("square", "triangle", "diamond", "saltire", "wedge", "bar", "pillar", "ring")
SHAPES = dict(zip(CONTROLS, _CONTROL_SHAPES, strict=True))


class Drawn(NamedTuple):
    """A figure: its panels with their titles, its key, and what it shows."""

    panels: Sequence[tuple[str, Markup]]
    legend: Markup
    caption: str


class _Scale(NamedTuple):
    """The bins of a histogram, what it counts, and its size."""

    bins: Array
    counted: str
    size: tuple[int, int]


_SHARES = _Scale(np.linspace(0, 1, 21), "share of values", (300, 230))
_MARGINS = _Scale(np.linspace(*CLIPPED, 25), "share of images", (440, 300))


def tone_of(bundle: str, bundles: Sequence[str]) -> tuple[str, str]:
    """Tone and shape of a source, the same in every chart."""
    if bundle in bundles:
        turn, tone = divmod(bundles.index(bundle), MOST_BUNDLES)
        return f"b{tone}", BUNDLE_SHAPES[turn % len(BUNDLE_SHAPES)]
    kind = bundle.removeprefix(CONTROL).partition(":")[0]
    return f"k k-{kind if kind in SHAPES else 'other'}", SHAPES.get(kind, "square")


def _thinned(drawn: int, of: int, what: str) -> str:
    if drawn == of:
        return ""
    return f" Of {exact(of)} {what}, {exact(drawn)} are drawn, chosen at random with seed {SEED}."


def plane(metrics: Iterable[MetricResult], rows: Rows | None, infill: str) -> Drawn | None:
    """Worst completeness against worst soundness: the maps and the controls."""
    worst: dict[str, dict[str, MetricResult]] = {}
    for metric in metrics:
        if metric.infill == infill and metric.value is not None:
            worst.setdefault(metric.bundle or "", {})[metric.name] = metric
    pairs = {bundle: (by_name["worst_soundness"], by_name["worst_completeness"]) for bundle, by_name in worst.items()
             if {"worst_soundness", "worst_completeness"} <= by_name.keys()}  # fmt: skip
    if not pairs:
        return None
    bundles = [bundle for bundle in pairs if not bundle.startswith(CONTROL)]
    about = "Mean worst completeness against mean worst soundness of the maps and of every control"
    labels = f"worst soundness → {UP}", f"worst completeness ↑ {UP}"
    full = Panel("plane", f"{about}, on axes from 0 to 1", Axis(0, 1, labels[0]), Axis(0, 1, labels[1]))
    across, up = (Axis(*nice_range(chain.from_iterable(map(_extent, column))), label)
                  for column, label in zip(zip(*pairs.values(), strict=True), labels, strict=True))  # fmt: skip
    close = Panel("plane-close", f"{about}, axes narrowed to the means", across, up)
    drawn, images = _images(full, rows, bundles)
    for panel, (bundle, (sound, complete)) in product((full, close), reversed(pairs.items())):
        means = sound.value or 0.0, complete.value or 0.0
        panel.marker(*means, *tone_of(bundle, bundles), across=_interval(sound), up=_interval(complete))
    keys = [(source(bundle), *tone_of(bundle, bundles)) for bundle in pairs]
    if drawn:
        keys.append(("one image", "b0", "dots"))
    caption = "Marks are means over images, bars their intervals." + _thinned(drawn, images, "images")
    return Drawn((("Whole range", full.svg()), ("The means, closer", close.svg())), legend(keys), caption)


def _images(panel: Panel, rows: Rows | None, bundles: Sequence[str]) -> tuple[int, int]:
    """Draw an image a point; how many are drawn, and how many there are."""
    if rows is None:
        return 0, 0
    drawn = total = 0
    for bundle in bundles[:MOST_BUNDLES]:
        means = image_means(rows.table, bundle)
        if {"worst_soundness", "worst_completeness"} <= means.keys():
            sound, complete = means["worst_soundness"], means["worst_completeness"]
            finite = np.flatnonzero(np.isfinite(sound) & np.isfinite(complete))
            chosen = sample(finite, MOST_IMAGES)
            panel.points(sound[chosen], complete[chosen], tone_of(bundle, bundles)[0])
            drawn, total = drawn + len(chosen), total + len(finite)
    return drawn, total


def _interval(figure: MetricResult | RandomisationStage) -> tuple[float, float] | None:
    return None if figure.low is None or figure.high is None else (figure.low, figure.high)


def _extent(metric: MetricResult) -> tuple[float, ...]:
    return _interval(metric) or (metric.value or 0.0,)


def curves(rows: Rows, bundle: str, key: str) -> Drawn:
    """Insertion curves of a bundle and of the controls, for predicted and for other labels."""
    panels, tone = [], tone_of(bundle, rows.bundles)[0]
    controls = [control for control in rows.controls if not control.startswith(ONE_MAP_PREFIX)]
    named = _named(rows, bundle, controls)
    for predicted, heading in ((True, "Predicted label"), (False, "Other labels")):
        curve = rows.curves.get((bundle, predicted))
        if curve is None:
            continue
        better = UP if predicted else "close to the level at 100 % is better"
        panel = Panel(
            f"{key}-{'predicted' if predicted else 'other'}",
            f"{heading}: mean probability while pixels are uncovered, most important first, {source(bundle)}",
            Axis(0, 1, "share of pixels kept", percent=True), Axis(0, 1, f"probability of the label ↑ {better}"),
        )  # fmt: skip
        control_means = {control: rows.curves[control, predicted].mean for control in controls
                         if (control, predicted) in rows.curves}  # fmt: skip
        if len(controls) > 1 and control_means:
            means = np.stack(list(control_means.values()))
            panel.band(GRID, np.fmin.reduce(means), np.fmax.reduce(means), "k")
        panel.band(GRID, curve.low, curve.high, tone)
        for control, (_, dashes) in named.items():
            if control in control_means:
                panel.line(GRID, control_means[control], dashes)
        panel.line(GRID, curve.mean, tone)
        panels.append((f"{heading}, {count(curve.n, 'curve')}", panel.svg()))
    low, high = BAND
    keys = [(f"{source(bundle)}, mean", tone, "line"), (f"middle {percent(high - low)} of its curves", tone, "band"),
            *([(f"range of {len(controls)} controls", "k", "band")] if len(controls) > 1 else []),
            *((words, dashes, "line") for words, dashes in named.values())]  # fmt: skip
    caption = (
        f"Infill {name(rows.infill)}. Curves are read at {len(GRID)} kept shares, interpolated linearly between points."
        f"{_thinned(len(rows.curve_images), len(rows.table.images), 'images')}"
    )
    if len(controls) > 1:
        caption += " Of the controls, means are drawn; the best is that of insertion in the table of figures."
    if f"{ONE_MAP_PREFIX}{bundle}" in rows.controls:
        caption += f" The control “{CONTROLS['one-map']}” is left out: for the predicted label it is the map itself."
    return Drawn(panels, legend(keys), caption)


def _named(rows: Rows, bundle: str, controls: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The controls that have a line of their own, with words and tone: the random map and the best of all."""
    named = {_RANDOM: (source(_RANDOM), "k k-random")} if _RANDOM in controls else {}
    best = rows.best_control(bundle) if len(controls) > 1 else None
    if best is not None:
        named[best] = (f"best control: {source(best)}", "k k-random" if best == _RANDOM else "k k-best")
    return named


def histograms(rows: Rows, bundle: str, key: str) -> Drawn:
    """How insertion, alpha and beta are spread, beside the random control."""
    values = {column: (_finite_values(rows, bundle, column), _finite_values(rows, _RANDOM, column))
              for column in _SPREAD}  # fmt: skip
    panels = [_histogram(f"{key}-{column}", label, _SHARES, rows, bundle, values[column])
              for column, label in _SPREAD.items() if len(values[column][0])]  # fmt: skip
    caption = "Insertion of predicted labels; α and β of every pair of an image and a label."
    return Drawn(panels, _histogram_legend(rows, bundle), caption)


def specificity(rows: Rows, bundle: str, key: str) -> Drawn:
    """How the margins of images are spread, beside the random control; no panel where there are none."""
    sources = image_means(rows.table, bundle), image_means(rows.table, _RANDOM)
    panels = []
    for metric in ("label_specificity", "other_label_evidence"):
        values, other = (means.get(metric, np.zeros(0)) for means in sources)
        finite = values[np.isfinite(values)], other[np.isfinite(other)]
        if len(finite[0]):
            panels.append(_histogram(f"{key}-{metric}", f"{title(metric)}, log-odds", _MARGINS, rows, bundle, finite))
    caption = "Margins of images, clipped at ±3. One map used for all labels has a margin of 0 on every image."
    return Drawn(panels, _histogram_legend(rows, bundle), caption)


def _histogram(
    key: str, label: str, scale: _Scale, rows: Rows, bundle: str, values: tuple[Array, Array]
) -> tuple[str, Markup]:
    """A panel with its title: a bundle's values as bars, and those of the random control, if any, as an outline."""
    bins = scale.bins
    shares, other = (np.histogram(part.clip(bins[0], bins[-1]), bins)[0] / max(len(part), 1) for part in values)
    high = max(0.05, float(np.ceil(max(*shares, *other) * 20) / 20))
    panel = Panel(key, f"Histogram of {label}, {source(bundle)}",
                  Axis(float(bins[0]), float(bins[-1]), f"{label} → {UP}"),
                  Axis(0, high, scale.counted, percent=True), scale.size)  # fmt: skip
    panel.bars(bins.tolist(), shares.tolist(), tone_of(bundle, rows.bundles)[0])
    if len(values[1]):
        panel.outline(bins.tolist(), other.tolist(), tone_of(_RANDOM, rows.bundles)[0])
    return label, panel.svg()


def _histogram_legend(rows: Rows, bundle: str) -> Markup:
    control = [(source(_RANDOM), "k k-random", "line")] if _RANDOM in rows.controls else []
    return legend([(source(bundle), tone_of(bundle, rows.bundles)[0], "bars"), *control])


def _finite_values(rows: Rows, source_name: str, column: str) -> Array:
    if source_name not in rows.table.sources:
        return np.zeros(0)
    source_rows = rows.of(source_name)
    positions = source_rows.target_rows if column == "insertion" else source_rows.measured
    values = source_rows.column(column)[positions]
    return np.asarray(values[np.isfinite(values)])


def areas(rows: Rows, bundle: str, key: str) -> Drawn:
    """Insertion AUC of every pair against the probability that the whole image gives its label."""
    panel = Panel(key, f"Insertion AUC against the probability of the label, a point per pair, {source(bundle)}",
                  Axis(0, 1, "f, probability of the label on the whole image"), Axis(0, 1, "insertion AUC"),
                  (440, 330))  # fmt: skip
    panel.line((0, 1), (0, 1), "guide")
    panel.note(0.52, 0.47, "AUC = f")
    panel.note(0.16, 0.86, "above: the map makes evidence up (β < 1)")
    panel.note(0.35, 0.1, "below: the map hides evidence (α < 1)")
    of_bundle = rows.of(bundle)
    chosen = sample(of_bundle.measured, MOST_PAIRS)
    predicted = of_bundle.predicted[chosen]
    probability, area = of_bundle.column("prob")[chosen], of_bundle.column("insertion")[chosen]
    tone = f"{tone_of(bundle, rows.bundles)[0]} firm"
    for mask, colour in ((~predicted, "other"), (predicted, tone)):
        panel.points(probability[mask], area[mask], colour)
    close = _rejected(f"{key}-close", probability[~predicted], area[~predicted], bundle)
    panels = [("Whole range" if close else "", panel.svg())]
    caption = "A perfect map lies on the line." + _thinned(len(chosen), len(of_bundle.measured), "pairs")
    if close:
        panels.append(("Labels that the model rejects, closer", close.svg()))
        caption += _below(probability[~predicted], close.x)
    keys = [("predicted label", tone, "dots"), ("other labels", "other", "dots")]
    return Drawn(panels, legend(keys), caption)


def _rejected(key: str, probability: Array, area: Array, bundle: str) -> Panel | None:
    """Labels other than the predicted one, f in powers of ten: a sure model's lie on one spot of any other scale."""
    drawable = np.isfinite(area) & (probability > 0)
    if not drawable.any():
        return None
    few, most = np.quantile(probability[drawable], [1 - MOST_SHOWN, 1])
    high = min(0, int(np.ceil(np.log10(most))))
    low = min(int(np.floor(np.log10(few))), high - 1)
    x = Axis(10.0**low, 10.0**high, "f, probability of the label, in powers of ten", powers=True)
    y = Axis(0, nice_range([0, *area[drawable]])[1], "insertion AUC")
    panel = Panel(key, f"Insertion AUC against the probability of labels that are not predicted, {source(bundle)}",
                  x, y, (440, 330))  # fmt: skip
    end = min(x.high, y.high)
    line = np.geomspace(x.low, end, 80)
    panel.line(line, line, "guide")
    panel.note(end * (x.low / x.high) ** 0.02, max(end - 0.06 * y.high, 0.04 * y.high), "AUC = f", "end")
    panel.points(probability, area, "other")
    return panel


def _below(probability: Array, axis: Axis) -> str:
    """How many pairs lie below the axis."""
    below = int(np.sum(probability < axis.low))
    verb = "lies" if below == 1 else "lie"
    where = f"{verb} below f = {axis.text(axis.low)} and on the left edge"
    return f" In the close-up {count(below, 'pair')} {where}." if below else ""


def randomisation(series: Sequence[RandomisationStage], limit: float | None) -> Drawn:
    """Rank correlation with the original maps while more and more of the model is re-initialised."""
    measured = [(stage, stage.spearman) for stage in series if stage.spearman is not None]
    low = min([0.0, *(value if stage.low is None else stage.low for stage, value in measured)])
    about = "Spearman correlation of maps with the original maps by stage of re-initialisation"
    last = max(stage.stage for stage in series)
    stages = Axis(0, last, "stage of re-initialisation", whole=True)
    panel = Panel("series", about, stages, Axis(float(np.floor(low * 5) / 5), 1, f"Spearman, {DOWN}"), (440, 280))
    if limit is not None:
        panel.line((0, last), (limit, limit), "guide")
        panel.note(0.99 * last, limit + 0.03, f"limit {exact(limit)}", "end")
    panel.line([0, *(stage.stage for stage, _ in measured)], [1.0, *(value for _, value in measured)], "b0")
    panel.marker(0, 1, "b0", "disc")
    for stage, value in measured:
        panel.marker(stage.stage, value, "b0", "disc", up=_interval(stage))
    caption = ("At stage 0 the maps are the originals and the correlation is 1. The table says what each stage"
               " re-initialises; the stages differ in size.")  # fmt: skip
    return Drawn((("", panel.svg()),), Markup(""), caption)
