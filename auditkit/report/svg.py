"""Charts as SVG text: axes, lines, bands, points. Colours are classes of the style sheet, so they follow its modes."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from auditkit.report.formatting import SUPERSCRIPTS, visible

Range = tuple[float, float]
LEFT, RIGHT, TOP, BOTTOM = 40, 14, 30, 40  # margins
TICK_TARGET = 5
MARKERS = {
    "disc": "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z", "square": "M-4 -4h8v8h-8z",
    "triangle": "M0 -5L4.8 3.6H-4.8z", "diamond": "M0 -5.4L5.4 0L0 5.4L-5.4 0z", "saltire": "M-4 -4L4 4M-4 4L4 -4",
    "wedge": "M0 5L4.8 -3.6H-4.8z", "bar": "M-5 -2h10v4h-10z", "pillar": "M-2 -5h4v10h-4z",
    "ring": "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
}  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers and what they are: shares, whole numbers, or a scale from one power of ten to another."""

    low: float
    high: float
    label: str
    percent: bool = False
    whole: bool = False
    powers: bool = False

    def along(self, value: float) -> float:
        """How far along the axis a number lies, 0 to 1; what lies outside is at an end."""
        inside = min(max(value, self.low), self.high)
        if self.powers:
            return math.log10(inside / self.low) / math.log10(self.high / self.low)
        return (inside - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round numbers on it, few enough to be read."""
        if self.powers:
            ends = round(math.log10(self.low)), round(math.log10(self.high))
            return [10.0**power for power in _steps(*ends, whole=True)]
        return _steps(self.low, self.high, whole=self.whole)

    def text(self, tick: float) -> str:
        """A tick as it is written."""
        if self.powers and tick != 1:
            return f"10{str(round(math.log10(tick))).translate(SUPERSCRIPTS)}"
        return f"{round(tick * 100, 6):g} %" if self.percent else f"{round(tick, 6):g}".replace("-", "−")


def _steps(low: float, high: float, *, whole: bool) -> list[float]:
    raw = (high - low) / TICK_TARGET
    raw = max(raw, 1.0) if whole else raw
    power = 10 ** math.floor(math.log10(raw))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(factor * power for factor in factors if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(multiple * step, 10) for multiple in range(first, last + 1)]


class Panel:
    """One chart; marks are drawn in the order in which they are added."""

    def __init__(self, key: str, about: str, x: Axis, y: Axis, size: tuple[int, int] = (440, 320)) -> None:
        """`key` is its id in the page, `about` a sentence for those who cannot see it."""
        self.key, self.about, self.x, self.y = key, about, x, y
        self.width, self.height = size
        self.marks: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies, in the units of the drawing; what lies outside is drawn on the edge."""
        wide, high = self.width - LEFT - RIGHT, self.height - TOP - BOTTOM
        return round(LEFT + self.x.along(x) * wide, 1), round(TOP + (1 - self.y.along(y)) * high, 1)

    def points(self, xs: Iterable[float], ys: Iterable[float], tone: str) -> None:
        """Many dots as one path."""
        placed = (self.at(x, y) for x, y in _finite(xs, ys))
        self.marks.append(f'<path class="dots {tone}" d="{"".join(f"M{x:g} {y:g}h0" for x, y in placed)}"/>')

    def line(self, xs: Iterable[float], ys: Iterable[float], tone: str) -> None:
        """A line through points."""
        self.marks.append(f'<path class="line {tone}" d="{self._through(_finite(xs, ys))}"/>')

    def band(self, xs: Iterable[float], lows: Iterable[float], highs: Iterable[float], tone: str) -> None:
        """The stretch between two lines."""
        lower, upper = _finite(xs, lows), _finite(xs, highs)[::-1]
        self.marks.append(f'<path class="band {tone}" d="{self._through([*lower, *upper])}z"/>')

    def marker(
        self, x: float, y: float, tone: str, shape: str, *, across: Range | None = None, up: Range | None = None
    ) -> None:
        """A mark with its intervals, where it has some."""
        if across is not None:
            self.line(across, (y, y), f"whisker {tone}")
        if up is not None:
            self.line((x, x), up, f"whisker {tone}")
        left, top = self.at(x, y)
        self.marks.append(
            f'<path class="mark {tone} {shape}" transform="translate({left:g} {top:g})" d="{MARKERS[shape]}"/>'
        )

    def bars(self, edges: Sequence[float], heights: Sequence[float], tone: str) -> None:
        """Columns between edges."""
        for low, high, height in zip(edges[:-1], edges[1:], heights, strict=True):
            (left, top), (right, bottom) = self.at(low, height), self.at(high, self.y.low)
            if bottom > top:
                box = f'x="{left + 0.5:g}" y="{top:g}" width="{right - left - 1:.4g}" height="{bottom - top:.4g}"'
                self.marks.append(f'<rect class="bar {tone}" {box}/>')

    def outline(self, edges: Sequence[float], heights: Sequence[float], tone: str) -> None:
        """The top of columns as a line."""
        xs = itertools.chain.from_iterable(itertools.pairwise(edges))
        self.line(xs, np.repeat(heights, 2), tone)

    def note(self, x: float, y: float, text: str, anchor: str = "start") -> None:
        """Words in the drawing."""
        left, top = self.at(x, y)
        self.marks.append(f'<text class="note" x="{left:g}" y="{top:g}" text-anchor="{anchor}">{_safe(text)}</text>')

    def svg(self) -> Markup:
        """The drawing."""
        head = (
            f'<svg class="chart" viewBox="0 0 {self.width} {self.height}" role="img" aria-labelledby="{self.key}-t">'
            f'<title id="{self.key}-t">{_safe(self.about)}</title>'
        )
        return Markup(head + "".join([*self._frame(), *self.marks]) + "</svg>")  # noqa: S704 - texts are escaped

    def _frame(self) -> Iterable[str]:
        right, bottom = self.width - RIGHT, self.height - BOTTOM
        for tick in self.y.ticks():
            _, top = self.at(self.x.low, tick)
            yield f'<path class="grid" d="M{LEFT} {top:g}H{right}"/>'
            yield f'<text class="tick" x="{LEFT - 6}" y="{top + 4:g}" text-anchor="end">{self.y.text(tick)}</text>'
        for tick in self.x.ticks():
            left, _ = self.at(tick, self.y.low)
            yield f'<path class="grid" d="M{left:g} {TOP}V{bottom}"/>'
            yield f'<text class="tick" x="{left:g}" y="{bottom + 16}" text-anchor="middle">{self.x.text(tick)}</text>'
        yield f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>'
        yield f'<text class="label" x="0" y="14">{_safe(self.y.label)}</text>'
        position = f'x="{right}" y="{self.height - 6}" text-anchor="end"'
        yield f'<text class="label" {position}>{_safe(self.x.label)}</text>'

    def _through(self, points: Sequence[tuple[float, float]]) -> str:
        placed = [self.at(x, y) for x, y in points]
        return "M" + "L".join(f"{x:g} {y:g}" for x, y in placed) if placed else "M0 0"


def legend(entries: Iterable[tuple[str, str, str]]) -> Markup:
    """A key to a chart: words, tone, and shape of a mark or `line`, `band`, `bars` or `dots`."""
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(_key(*entry) for entry in entries))


def _key(words: str, tone: str, shape: str) -> Markup:
    drawn = {
        "line": f'<path class="line {tone}" d="M0 7H24"/>',
        "band": f'<path class="band {tone}" d="M0 2H24V12H0z"/>',
        "bars": f'<path class="bar {tone}" d="M0 2H24V12H0z"/>',
        "dots": f'<path class="dots {tone}" d="M5 8h0M12 5h0M19 9h0"/>',
    }.get(shape) or f'<path class="mark {tone} {shape}" transform="translate(12 7)" d="{MARKERS[shape]}"/>'
    picture = Markup(f'<svg viewBox="0 0 24 14" width="24" height="14" aria-hidden="true">{drawn}</svg>')  # noqa: S704
    return Markup("<li>{}<span>{}</span></li>").format(picture, visible(words))


def sparkline(keep: Sequence[float], score: Sequence[float], mark: float, about: str) -> Markup:
    """A small curve over the unit square with its ends named, and a line where a share of the pixels is kept."""
    points = [(12 + 104 * x, 6 + 100 * (1 - y)) for x, y in _finite(keep, score)]
    drawn = "L".join(f"{x:.4g} {y:.4g}" for x, y in points) or "0 0"
    at = f"{12 + 104 * mark:.4g}"
    ends = "".join(f'<text class="tick" x="{x}" y="{y}" text-anchor="end">{text}</text>'
                   for x, y, text in ((9, 10, "1"), (9, 109, "0"), (118, 118, "100 %")))  # fmt: skip
    return Markup(  # noqa: S704 - texts are escaped
        f'<svg class="spark" viewBox="0 0 120 120" role="img"><title>{_safe(about)}</title>'
        f'<path class="grid" d="M12 6H116M12 56H116M{at} 6V106"/><path class="axis" d="M12 6V106H116"/>{ends}'
        f'<path class="line b0" d="M{drawn}"/></svg>'
    )


def nice_range(values: Iterable[float], margin: float = 0.06, least: float = 0.02) -> Range:
    """A stretch that holds the values with some room, within 0 to 1."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    room = max((high - low) * margin, least)
    return max(0.0, low - room), min(1.0, high + room)


def _finite(xs: Iterable[float], ys: Iterable[float]) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and math.isfinite(y)]


def _safe(text: str) -> str:
    return str(escape(visible(text)))
