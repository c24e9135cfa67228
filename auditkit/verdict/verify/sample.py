"""Which images are computed anew: some by chance, and those that decide."""

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.table import METRICS
from auditkit.runs.evaluation.settings import CONTROL
from auditkit.runs.summary.row_table import Items
from auditkit.runs.summary.source_rows import image_means
from auditkit.verdict.verify.run_record import Recorded

SEVERAL = 10  # changed images of which the chance to escape is told too


def drawn(images: int, share: float, seed: int) -> list[int]:
    """Positions of the images that chance chooses, in the order of the draw; at least one."""
    count = min(images, max(1, int(np.ceil(share * images))))
    return [int(position) for position in np.random.default_rng(seed).permutation(images)[:count]]


def escape(images: int, sampled: int, changed: int) -> float:
    """How likely none of so many changed images is drawn: C(n - k, m) / C(n, m), every draw being as likely."""
    return prod(max(images - sampled - place, 0) / (images - place) for place in range(changed))


def told(images: int, sampled: int) -> str:
    """What a sample of this size misses, in a sentence."""
    if sampled >= images:
        return "every image is computed anew"
    one = f"escapes this sample with probability {escape(images, sampled, 1):.3g}"
    several = f", {SEVERAL} of them with {escape(images, sampled, SEVERAL):.3g}" if images >= 2 * SEVERAL else ""
    return f"one changed image of {images}, none of those that decide, {one}{several}; --sample 1 computes all anew"


def deciding(recorded: Recorded) -> list[str]:
    """The images that decide most: for every bundle, infill and judged figure, the highest and the lowest.

    An image counts by how far its figure lies above the best control's on the same image, or by the figure itself
    where there is no control. Who lifts a mean by changing few images must change them by much, and then they are the
    highest; who hides an image that speaks against the maps leaves the next one as the lowest. Since this is no
    secret, it adds nothing against many small changes: those are for chance.
    """
    items = Items(recorded.store.tables(recorded.units.values()), named=recorded.settings.targets_listed_labels)
    return list(dict.fromkeys(items.images[place] for place in _extremes(items)))


def _extremes(items: Items) -> Iterator[int]:
    for infill in range(len(items.infills)):
        figures = {source: image_means(items, source, infill) for source in items.sources}
        controls = [metrics for source, metrics in figures.items() if source.startswith(CONTROL)]
        for source, metrics in figures.items():
            for name in metrics if not source.startswith(CONTROL) else ():
                if METRICS[name].key_figure and METRICS[name].curve:
                    yield from _furthest(metrics[name], [control[name] for control in controls if name in control])


def _furthest(values: Array, controls: Sequence[Array]) -> Iterator[int]:
    """The images that lie furthest above the best control, and furthest below."""
    margins = values - (np.fmax.reduce(controls) if controls else 0.0)
    if np.isfinite(margins).any():
        yield from (int(np.nanargmax(margins)), int(np.nanargmin(margins)))
