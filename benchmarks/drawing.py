"""Charts side by side in one SVG file that needs nothing else: python scripts draw what they measured with it."""

from collections.abc import Sequence

from auditkit.arrays import Array
from auditkit.report.svg import MARKERS, Axis, Panel

Series = tuple[str, str, str, Array]  # words, tone, shape ("": a dashed line), and [x, y, low, high] in rows
Chart = tuple[str, Axis, Axis, Sequence[Series]]  # its title, its axes, and what is drawn; low and high along y
MARKS = (*zip(("b0", "b1", "b2", "b3", "k"), ("disc", "square", "triangle", "diamond", "disc"), strict=True),)

STYLE = """
svg text { font: 11.5px system-ui, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif; fill: #59636e }
svg .label, svg .key { font-size: 12px; fill: #1a1f24 } svg .title { font-size: 13px; font-weight: 600; fill: #1a1f24 }
.grid { stroke: #e9ecef } .axis { stroke: #59636e } .grid, .axis, .line { fill: none }
.line { stroke: var(--c); stroke-width: 2 } .line.whisker { stroke-width: 1.5 }
.line.claim { stroke-width: 1.5; stroke-dasharray: 5 4 } .mark { fill: var(--c); stroke: #fff; stroke-width: 1.25 }
.b0 { --c: #1f5fa8 } .b1 { --c: #b4530a } .b2 { --c: #14735a } .b3 { --c: #7a3f96 } .k { --c: #6b7580 }
"""
WIDE, HIGH, HEAD, KEY, GAP = 380, 320, 26, 18, 24  # a panel, its title, a line of its key, between panels
JOINED = 4  # numbers of a point on a line


def chart(place: int, title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """A panel with its key below; marks with two more numbers have an interval along x too, and are not joined."""
    panel, left, drawn = Panel(f"panel{place}", title, x, y, (WIDE, HIGH)), GAP // 2 + place * (WIDE + GAP), ""
    for line, (words, tone, shape, rows) in enumerate(series):
        of, down = tone if shape else f"claim {tone}", HEAD + HIGH + 12 + line * KEY
        joined = rows.shape[1] <= JOINED
        if joined:
            panel.line(rows[:, 0], rows[:, 1], of)
        for at, value, low, high, *across in rows if shape else ():
            panel.marker(at, value, tone, shape, up=(low, high), across=across or None)
        mark = f'<path class="mark {tone}" transform="translate(13)" d="{MARKERS[shape]}"/>' if shape else ""
        stroke = f'<path class="line {of}" d="M0 0h26"/>' if joined else ""
        drawn += f'<g transform="translate({left} {down})">{stroke}{mark}'
        drawn += f'<text class="key" x="34" y="4">{words}</text></g>'
    return (f'<text class="title" x="{left}" y="18">{title}</text>{drawn}'
            f'<svg x="{left}" y="{HEAD}" width="{WIDE}" height="{HIGH}">{panel.svg()}</svg>')  # fmt: skip


def page(charts: Sequence[Chart]) -> str:
    """All charts in a row."""
    width, height = len(charts) * (WIDE + GAP), HEAD + HIGH + 12 + KEY * max(len(series) for *_, series in charts)
    drawn = "".join(chart(place, *one) for place, one in enumerate(charts))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
    return f'{head}<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{drawn}</svg>\n'
