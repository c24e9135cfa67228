"""What learned masks minimise, measured of the masks themselves: how far learning had come down when it ended."""

import numpy as np
from scipy.special import log_softmax

from auditkit.data.bundles import HeatmapSet
from benchmarks.paper.work import Array, Study

PARTS = ("loss", "area")


def losses(study: Study, maps: HeatmapSet, like: HeatmapSet, tv: float) -> dict[str, list[float]]:
    """Of every image, averaged over the labels that `like` has: the loss over the whole pool, and the share kept."""
    others = study.model.preprocess([study.pool.images[place] for place in range(len(study.pool))])
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    for place, name in enumerate(study.images.ids):
        picture = study.model.preprocess([study.images.images[place]])
        masks = [(label, maps.get(name, label)) for label in like.labels[name]]
        areas = [float(mask.mean()) for _, mask in masks]
        rest = [_data(study, picture, mask, others, label) + tv * _variation(mask) for label, mask in masks]
        found["loss"].append(float(np.mean(np.add(rest, areas))))
        found["area"].append(float(np.mean(areas)))
    return found


def _data(study: Study, picture: Array, mask: Array, others: Array, label: int) -> float:
    """-log f(label) where the mask hides the picture behind others."""
    logits = study.model.reference().scores(others + mask * (picture - others))
    return -float(log_softmax(logits, axis=1)[:, label].mean())


def _variation(mask: Array) -> float:
    return float(sum((np.diff(mask, axis=axis) ** 2).sum() for axis in (0, 1)))
