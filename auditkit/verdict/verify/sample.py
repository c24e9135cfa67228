"""Which images are recomputed: some at random, and those that decide most."""

from collections.abc import Iterator
from functools import partial
from math import prod

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.table import METRICS
from auditkit.runs.folder.figures import CONTROL
from auditkit.runs.summary.row_table import RowTable
from auditkit.runs.summary.source_rows import image_means
from auditkit.verdict.verify.run_record import RecordedRun

SEVERAL = 10  # changed images whose chance to escape is reported too


def drawn(images: int, count: int, seed: int) -> list[int]:
    """Positions of randomly drawn images, in the order of the draw."""
    return [int(position) for position in np.random.default_rng(seed).permutation(images)[:count]]


def escape(images: int, sampled: int, changed: int) -> float:
    """Probability that a sample holds none of `changed` images: C(n - k, m) / C(n, m)."""
    return prod(max(images - sampled - position, 0) / (images - position) for position in range(changed))


def escape_text(images: int, sampled: int) -> str:
    """What a sample of this size misses, in a sentence."""
    if sampled >= images:
        return "every image is recomputed"
    one = f"is missed by this sample with probability {escape(images, sampled, 1):.3g}"
    several = f", {SEVERAL} of them with {escape(images, sampled, SEVERAL):.3g}" if images >= 2 * SEVERAL else ""
    return f"one changed image of {images}, if not one that decides, {one}{several}; --sample 1 recomputes all"


def deciding(recorded: RecordedRun) -> list[str]:
    """The images that decide most: for every bundle, infill and judged figure, the highest and the lowest.

    Images are ordered by their figure minus the best control's on the same image, or by the figure if there is no
    control. To lift a mean by few images, a forger must change them by much, and they become the highest. Many small
    changes are left to the random sample.
    """
    tables = partial(recorded.store.tables, recorded.units.values())
    table = RowTable(tables, named=recorded.settings.targets_listed_labels)
    return list(dict.fromkeys(table.images[position] for position in _extremes(table)))


def _extremes(table: RowTable) -> Iterator[int]:
    for infill in range(len(table.infills)):
        figures = {source: image_means(table, source, infill) for source in table.sources}
        controls = [metrics for source, metrics in figures.items() if source.startswith(CONTROL)]
        for source, metrics in figures.items():
            for name in metrics if not source.startswith(CONTROL) else ():
                if METRICS[name].key_figure and METRICS[name].curve:
                    best = np.fmin if METRICS[name].lower_is_better else np.fmax
                    control_means = [control[name] for control in controls if name in control]
                    yield from _furthest(metrics[name], best.reduce(control_means) if control_means else 0.0)


def _furthest(values: Array, best_control: Array | float) -> Iterator[int]:
    """The images that lie furthest above the best control, and furthest below."""
    margins = values - best_control
    if np.isfinite(margins).any():
        yield from (int(np.nanargmax(margins)), int(np.nanargmin(margins)))
