"""Where in the image something lies, in words."""

from collections.abc import Sequence

import numpy as np

from auditkit.metrics.exchanges import Window

_THIRDS = (1 / 3, 2 / 3)
_ROWS, _COLUMNS = ("upper", "middle", "lower"), ("left", "middle", "right")
MOST = 0.7  # of the windows in one place make it the place
_TIGHT = 1 / 10  # of the side: windows whose centres scatter less lie at one place
ALL_CORNERS, BORDER, VARYING = "the corners", "along the border", "varying places"


def centre(window: Window, shape: tuple[int, ...]) -> tuple[float, float]:
    """The centre of a window, from 0 to 1 down and across."""
    down, across = ((part.start + part.stop) / 2 / size for part, size in zip(window, shape[:2], strict=True))
    return down, across


def zone(down: float, across: float) -> str:
    """The ninth of the image that a point lies in."""
    row, column = _ROWS[int(np.digitize(down, _THIRDS))], _COLUMNS[int(np.digitize(across, _THIRDS))]
    if row == column == "middle":
        return "the centre"
    if "middle" not in (row, column):
        return f"the {row} {column} corner"
    return f"the {column} side" if row == "middle" else f"the {row} side"


def place(centres: Sequence[tuple[float, float]]) -> str:
    """Where most of the points lie."""
    points = np.array(centres).reshape(-1, 2)
    if len(points) == 0:
        return VARYING
    zones = [zone(*point) for point in points.tolist()]
    commonest = max(sorted(set(zones)), key=zones.count)
    scatter = np.median(np.abs(points - np.median(points, axis=0)).max(axis=1))
    if zones.count(commonest) >= MOST * len(zones) or scatter < _TIGHT:
        return commonest
    if sum("corner" in name for name in zones) >= MOST * len(zones):
        return ALL_CORNERS
    outside = np.abs(points - 0.5).max(axis=1) > 0.5 - 1 / 8
    return BORDER if outside.mean() >= MOST else VARYING
