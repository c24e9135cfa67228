"""What an audit of the paper's size would take here: 1,000 images with ten labels each, masks and metrics.

A slice is measured: chunks of images, whose masks take few steps and then more. The difference is the price of steps,
the rest that of a mask however many it takes. How the chunks differ says how far the extrapolation may be off; a first
chunk, for which everything is set up, is left out. Nothing is kept, since what is there already takes no time.
"""

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy import stats

from auditkit.data.dataset import Dataset
from benchmarks.paper.work import Figure, Study

IMAGES, LABELS = 1000, 10
CHUNKS = 3  # after the first
STEPS = (20, 120)
CONFIDENCE = 0.95


def measured(study: Study) -> dict[str, Any]:
    """Hours of masks, of metrics and of both, with what they are made of."""
    size = len(study.images) // (CHUNKS + 1)
    if not size:
        raise SystemExit(f"{len(study.images)} images are too few for {CHUNKS + 1} chunks.")
    masks, metrics = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as name:
        for chunk in range(CHUNKS + 1):
            of_masks, of_metrics = _chunk(replace(study, out=Path(name)), chunk, size)
            if chunk:
                masks.append(of_masks)
                metrics.append(of_metrics)
    both = [first + second for first, second in zip(masks, metrics, strict=True)]
    return {"cost": [_hours("masks", masks), _hours("metrics and controls", metrics), _hours("both", both)]}


def _chunk(study: Study, number: int, size: int) -> tuple[float, float]:
    """Seconds an image of a chunk: masks for all its labels in the study's steps, and their metrics."""
    part = slice(number * size, (number + 1) * size)
    images = Dataset(study.images.source, study.images.ids[part], study.images.images[part])
    took, maps = list[float](), {}
    for steps in STEPS:
        begin = time.perf_counter()
        maps = {"ours": study.made(f"{number} {steps}", "mask", f"top{LABELS}", images, steps=steps)}
        took.append(time.perf_counter() - begin)
    slope = (took[1] - took[0]) / (STEPS[1] - STEPS[0])
    begin = time.perf_counter()
    study.scored(f"cost {number}", maps, images, labels=f"top{LABELS}", saliency="both")
    return (took[0] + slope * (study.steps - STEPS[0])) / size, (time.perf_counter() - begin) / size


def _hours(what: str, seconds: list[float]) -> Figure:
    """Hours of all images, with Student's interval over the chunks."""
    value = statistics.mean(seconds) * IMAGES / 3600
    error = statistics.stdev(seconds) / len(seconds) ** 0.5 * IMAGES / 3600
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(seconds) - 1)) * error
    return {"what": what, "value": value, "low": value - reach, "high": value + reach, "n": len(seconds)}
