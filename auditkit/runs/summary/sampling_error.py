"""How far figures may be off because their curves are known at some points only.

An interval over images does not cover this: part of what a straight line between two points misses has the same sign
on every image, and more images do not make that part smaller.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from auditkit.metrics.faithfulness import completeness, soundness
from auditkit.metrics.per_image import MetricRows, Result
from auditkit.metrics.table import METRICS, SHARE
from auditkit.metrics.values import NotAssessed, Values
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.folder.figures import SamplingError
from auditkit.runs.summary.row_table import USUAL, RowTable, Source

# Set on 3,930 curves of five models, known at every point. Areas are off by 0.1 to 0.4 of their bounds on average, and
# up to a quarter of that has the same sign on all images. Of figures by 8 to 128 steps 98 in 100 kept to what is said,
# of those by auto 96; the figure that is off most is off by a half to an eighth of it.
COMMON = 0.25
MOST_SAMPLING_ERROR = 0.005  # a figure that may be off by more than this leaves a verdict open
_MOVED_COLUMNS = ("insertion", "deletion", "alpha", "beta", "log_odds")


def moves(metric: str) -> bool:
    """Whether a metric follows from insertion curves, so that their points decide how far it may be off."""
    return metric in METRICS and METRICS[metric].curve in _MOVED_COLUMNS


def sampling_errors(
    figures: Mapping[Source, Sequence[Values | NotAssessed]], table: RowTable, settings: Evaluation
) -> list[SamplingError]:
    """For each source under each infill, how far every figure may be off, and the one that may be off most."""
    entries = []
    for (source, infill), rows in table.metric_rows.items():
        assessed = [figure for figure in figures[source, infill] if isinstance(figure, Values) and moves(figure.name)]
        shifted = [_moved(rows, sign * USUAL, settings) for sign in (1, -1)]
        errors = {figure.name: _error(figure, [_computed(figure.name, other) for other in shifted])
                  for figure in assessed}  # fmt: skip
        if np.isnan(rows.column("insertion_error")[rows.measured]).any():
            errors = {}
        # Log-odds have another scale, and deletion has the error of insertion.
        shares = [name for name in errors if METRICS[name].bounds == SHARE and name != "deletion"]
        largest = max(shares, key=lambda name: errors[name], default=None)
        images = len(np.unique(rows.image[rows.measured]))
        error = None if largest is None else errors[largest]
        entries.append(SamplingError(largest, source, infill, error, errors, images))
    return entries


def _moved(rows: MetricRows, errors: float, settings: Evaluation) -> MetricRows:
    """The rows with their areas moved by so many errors, and what follows from the areas."""
    moves = errors * np.nan_to_num(rows.column("insertion_error"))
    areas = np.clip(rows.column("insertion") + moves, 0, 1)
    # The curves of deletion have as many points. Both areas move apart, which changes relevance gain most.
    columns = {"insertion": areas, "deletion": np.clip(rows.column("deletion") - moves, 0, 1)}
    known = np.isfinite(areas)
    for name, ratio, eps in (("alpha", completeness, settings.eps1), ("beta", soundness, settings.eps2)):
        if eps is not None:
            columns[name] = np.full(len(areas), np.nan)
            columns[name][known] = ratio(areas[known], rows.column("prob")[known], eps)
    return replace(rows, column=lambda name: columns[name] if name in columns else rows.column(name), shift=errors)


def _computed(metric: str, rows: MetricRows) -> Result:
    compute = METRICS[metric].compute
    return None if compute is None else compute(rows, metric)


def _error(figure: Values, moved: Sequence[Result]) -> float:
    """How far a mean may be off: what its values share, and twice what chance leaves of the rest over the images.

    Each value rises or falls with its areas, so that moving all of them up, then down, holds whatever their signs are.
    """
    changes = np.max([np.abs(other.values - figure.values) for other in moved if isinstance(other, Values)], axis=0)
    by_image = np.bincount(figure.images, weights=changes)
    return float(np.hypot(COMMON * changes.mean(), 2 * np.sqrt((by_image**2).sum()) / len(changes)))
