"""Names and numbers as people read them, safe to show and always in the same form."""

import math
import re
import unicodedata
from typing import TypeGuard

from auditkit.runs.folder.figures import MetricResult
from auditkit.runs.folder.groups import GroupFigure
from auditkit.runs.folder.results import CheckResult, DifferenceResult
from auditkit.runs.summary.wording import source_name

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # controls, bidi and other format characters, broken Unicode
LONGEST_NAME = 120
DECIMALS = 3
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_HYPHEN_MINUS = re.compile(r"(?<![\w.,:;/\\-])-(?=\d)")
UP, DOWN = "higher is better", "lower is better"


def visible(text: str) -> str:
    """The text with every character that hides, reorders or breaks others written as its code, ‹U+202E›."""
    if text.isprintable():  # as nearly all are, and a picture's many characters
        return text
    return "".join(
        f"‹U+{ord(sign):04X}›" if sign not in "\n\t" and unicodedata.category(sign) in HIDDEN else sign for sign in text
    )


def name(text: object, most: int = LONGEST_NAME) -> str:
    """A file's or class's name on one line, its middle left out where it is very long."""
    one_line = visible(str(text).replace("\n", "‹U+000A›").replace("\t", "‹U+0009›"))
    if len(one_line) <= most:
        return one_line
    return f"{one_line[: most // 2]}…{one_line[-(most // 2 - 1) :]}"


def source(bundle: str | None) -> str:
    """Who a figure is about, in words."""
    return name(source_name(bundle))


def number(value: float | None, decimals: int = DECIMALS) -> str:
    """A figure with a true minus; a dash where there is none."""
    if not _finite(value):
        return "–"
    text = f"{value:.{decimals}f}"
    return (text.replace("-", "−") if float(text) else text.removeprefix("-")) or "–"


def measured(value: float | int | None) -> str:
    """A figure that may be tiny, such as an error."""
    if isinstance(value, int):
        return exact(value)
    return exact(value) if _finite(value) and 0 < abs(value) < 10**-DECIMALS else number(value)


def signed(value: float | None, decimals: int = DECIMALS) -> str:
    """A difference, its sign always written."""
    text = number(value, decimals)
    return f"+{text}" if _finite(value) and float(f"{value:.{decimals}f}") > 0 else text


def interval(low: float | None, high: float | None, decimals: int = DECIMALS) -> str:
    """Two ends, or nothing."""
    return f"{number(low, decimals)} to {number(high, decimals)}" if _finite(low) and _finite(high) else ""


def marked_interval(figure: MetricResult | DifferenceResult | GroupFigure | CheckResult) -> str:
    """The interval of a figure and its kind, or nothing."""
    ends = interval(figure.low, figure.high)
    return f"{ends}, {figure.interval}" if ends else ""


def exact(value: object) -> str:
    """A setting or an error as short as it can be written, small ones as powers of ten."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not _finite(value):
        return "–" if value is None or isinstance(value, float) else str(value)
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6) and not isinstance(value, int):
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{digits.replace('-', '−')} × 10{str(int(power)).translate(SUPERSCRIPTS)}"
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else f"{value:g}".replace("-", "−")


def percent(value: float) -> str:
    """A share in whole per cent, or with the decimals that it needs."""
    return f"{value * 100:.4g} %"


def last(path: str) -> str:
    """The name at the end of a path of any system."""
    return name(re.split(r"[\\/]", str(path).rstrip("/\\"))[-1] or path)


def count(number_of: int, noun: str) -> str:
    """So many of them."""
    return f"{exact(number_of)} {noun}{'' if number_of == 1 else 's'}"


def prose(text: str) -> str:
    """A text whose numbers have a true minus."""
    return _HYPHEN_MINUS.sub("−", text)


def sentence(text: str) -> str:
    """A text that begins and ends as a sentence does."""
    return prose(f"{text[:1].upper()}{text[1:]}".removesuffix(".") + ".")


def _finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
