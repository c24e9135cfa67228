"""Compares a report with the one that its run gives: every character, but for how coordinates of drawings round."""

import re

# Where versions of numpy may round a drawn point to either side of half a tenth.
_GEOMETRY = re.compile(r' (?:d|x|y|width|height|transform)="[^"]*"')
_NUMBER = re.compile(r"(?P<arc>[aA][^A-Za-z]*)|-?[0-9]+(?:\.[0-9])?")  # as they are written; arcs do not move
_ROUNDING = 0.11  # pixels of a drawing; coordinates are written in tenths
_CONTEXT = 40  # characters of a page before and after a difference


def difference(page: str, expected: str) -> str:
    """Where a page first reads differently from the expected one; empty if a reader sees the same."""
    if page == expected:
        return ""
    (outline, numbers), (expected_outline, expected_numbers) = _outline(page), _outline(expected)
    if outline != expected_outline:
        return _first_difference(outline, expected_outline)
    moved = [(number, other) for number, other in zip(numbers, expected_numbers, strict=True)
             if not abs(number - other) <= _ROUNDING]  # fmt: skip
    return f"a drawing has {moved[0][0]:g} where {moved[0][1]:g} is expected" if moved else ""


def _outline(page: str) -> tuple[str, list[float]]:
    """The page without the coordinates of its drawings, and these."""
    numbers = list[float]()
    for attribute in _GEOMETRY.findall(page):
        numbers += [float(match[0]) for match in _NUMBER.finditer(attribute) if match["arc"] is None]
    return _GEOMETRY.sub(lambda match: _NUMBER.sub(lambda number: number["arc"] or "0", match[0]), page), numbers


def _first_difference(text: str, expected: str) -> str:
    """The place in words; halving finds it at once in pages of megabytes."""
    low, high = 0, min(len(text), len(expected))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text[:middle] == expected[:middle] else (low, middle - 1)
    start, line = max(0, low - _CONTEXT), text.count("\n", 0, low) + 1
    shown, other = (" ".join(page[start : low + _CONTEXT].split()) for page in (text, expected))
    return f"line {line} reads '{shown}', expected '{other}'"
