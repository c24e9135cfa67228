"""Bootstrap intervals over images for means and for differences between two methods on the same images.

Images are resampled, not rows: the rows of one image (its labels) are correlated, and an interval that treated them as
independent would be too narrow. The table gives the coverage of a 95 % interval in percent, over 20,000 simulated
samples per cell and 2,000 draws (percentile / bca / expanded); tests/metrics/test_statistics.py measures part of it:

    values               10 images             30                    100                   400
    normal               90.1 / 90.0 / 94.5    93.7 / 93.6 / 95.0    94.6 / 94.5 / 95.0    94.7 / 94.6 / 94.8
    beta(0.5, 1.5)       89.0 / 91.2 / 93.1    93.3 / 94.5 / 94.7    94.5 / 94.8 / 94.8    94.6 / 94.7 / 94.8
    beta(5, 1)           88.2 / 89.5 / 92.7    92.8 / 93.5 / 94.1    94.1 / 94.3 / 94.6    95.0 / 94.9 / 95.1
    log-normal           80.9 / 83.1 / 85.9    88.2 / 89.7 / 89.8    92.0 / 92.5 / 92.4    93.5 / 93.6 / 93.6
    1, but 2 % lower     17.8 / 17.9 / 17.9    42.3 / 42.8 / 42.5    75.6 / 79.2 / 75.8    91.8 / 95.1 / 92.0

Hence "expanded" is the default. The last line is a score that saturates with rare failures: no bootstrap sees
failures that did not occur in the sample, so with few images such an interval is too narrow with every method.
Beyond 5,000 images nothing is resampled: the normal distribution gives nearly the same ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from auditkit.arrays import Array
from auditkit.errors import BadInput, unknown
from auditkit.metrics.values import Note

Method = Literal["percentile", "bca", "expanded"]
METHODS: tuple[Method, ...] = ("percentile", "bca", "expanded")
_DRAWS = 2000  # resamples; the coverage above was measured with as many
_LEAST_DRAWS = 100  # fewer do not determine the 2.5 % quantiles
FEWEST_VALUES = 5  # of images; of fewer, an interval would end at the worst and the best of them
_CHUNK = 1 << 17  # resampled images in memory at once
_MOST_KEPT = 1 << 21  # resampled images that are kept for the next metric, 8 bytes each
_MOST_RESAMPLED = 5_000  # images; of more, resampling takes minutes, and their means are nearly normal
_NEAR = 1e-12  # relative difference that rounding makes between equal means
Bounds = tuple[float, float]  # the least and the greatest possible value


@dataclass(frozen=True)
class Interval:
    """A mean and the interval that covers the true mean with the given confidence."""

    value: float
    low: float | None  # None where the data give no interval
    high: float | None
    confidence: float  # in (0, 1)
    n: int  # images
    method: str
    note: Note | None = None  # why the ends are missing or say little


def mean_interval(
    values: npt.ArrayLike, image_index: npt.ArrayLike | None = None, *, confidence: float = 0.95,
    method: Method = "expanded", draws: int = _DRAWS, seed: int = 0, bounds: Bounds | None = None,
) -> Interval:  # fmt: skip
    """The mean over values [rows] with its bootstrap interval over images; without image_index, each row is an image.

    "percentile" takes quantiles of the resampled means; "bca" corrects their bias and skew (Efron 1987); "expanded"
    widens the percentiles as Student's t widens the normal quantiles (Hesterberg 2015). If all values are equal, the
    interval has no width, unless `bounds` give the range of possible values. Fewer than five images have no interval.
    """
    _check_settings(confidence, method, draws)
    rows = finite_rows(values, "values")
    sums, counts = rows, np.ones(len(rows))
    if image_index is not None:
        _, position = grouped(image_index, len(rows))
        sums, counts = np.bincount(position, weights=rows), np.bincount(position).astype(np.float64)
    value = float(rows[0]) if np.ptp(rows) == 0 else float(rows.mean())
    if len(sums) < FEWEST_VALUES:
        return Interval(value, None, None, confidence, len(sums), method, Note("few-images"))
    image_means = sums / counts
    near = _NEAR * max(abs(value), float(np.abs(image_means).max()))
    if np.all(np.abs(image_means - value) <= near):
        return _equal_values_interval(Interval(value, value, value, confidence, len(sums), method), bounds)
    means = _resampled_means(sums, counts, draws, seed)
    positions = np.multiply(_levels(means, sums, counts, value, confidence, method), len(means) - 1)
    ends = np.interp(positions, np.arange(len(means)), np.sort(means))  # np.quantile takes five times as long
    # Resampled means stay within the range of the images, except for rounding: no share is 1.0000000000000002.
    low, high = np.clip(ends, image_means.min(), image_means.max())
    return Interval(value, float(low), float(high), confidence, len(sums), method)


def paired_difference(
    first: npt.ArrayLike, second: npt.ArrayLike, image_index: npt.ArrayLike | None = None, *, confidence: float = 0.95,
    method: Method = "expanded", draws: int = _DRAWS, seed: int = 0, bounds: Bounds | None = None,
) -> Interval:  # fmt: skip
    """The mean of first - second with its interval; row i of both [rows] is the same image and label."""
    a, b = finite_rows(first, "values"), finite_rows(second, "values")
    if a.shape != b.shape:
        raise BadInput(f"a paired difference needs the same rows on both sides, found {len(a)} and {len(b)}.")
    return mean_interval(
        a - b, image_index, confidence=confidence, method=method, draws=draws, seed=seed, bounds=bounds
    )


def share_interval(hits: int, n: int, confidence: float = 0.95) -> Interval:
    """The share of hits in n images with Wilson's interval, which has a width even if all or none are hits.

    Fewer than five images have no interval.
    """
    from scipy.special import ndtri  # noqa: PLC0415  # slow to import

    _check_settings(confidence, "percentile", _DRAWS)
    if not 0 <= hits <= n or n < 1:
        raise BadInput(f"a share needs at least one image and no more hits than images, found {hits} of {n}.")
    if n < FEWEST_VALUES:
        return Interval(hits / n, None, None, confidence, n, "wilson", Note("few-images"))
    share, z2 = hits / n, float(ndtri((1 + confidence) / 2)) ** 2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = float(np.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n)))) / (1 + z2 / n)
    low, high = (0.0 if hits == 0 else middle - half), (1.0 if hits == n else middle + half)
    return Interval(share, low, high, confidence, n, "wilson")


def _equal_values_interval(point: Interval, bounds: Bounds | None) -> Interval:
    """The interval of a value that is the same on every image.

    A bootstrap of equal values has no width, however few they are. But n equal images only show that at most a share p
    of all images differs, where (1 - p)^n is the chance of seeing none of those; they could have any value in bounds.
    """
    if bounds is None:
        return replace(point, note=Note("no-spread"))
    share = 1 - ((1 - point.confidence) / 2) ** (1 / point.n)
    low, high = point.value - share * (point.value - bounds[0]), point.value + share * (bounds[1] - point.value)
    return replace(point, low=low, high=high, note=Note("equal-values", value=share))


def _resampled_means(sums: Array, counts: Array, draws: int, seed: int) -> Array:
    """Means [draws] over resamples of the images, computed in chunks; the chunk size does not change them.

    Of very many images, quantiles of the normal distribution that these means have: the work would take minutes.
    """
    n = len(sums)
    if n > _MOST_RESAMPLED:
        from scipy.special import ndtri  # noqa: PLC0415  # slow to import

        value = sums.sum() / counts.sum()
        error = np.sqrt(((sums - value * counts) ** 2).sum()) / counts.sum()
        return np.asarray(value + error * ndtri((np.arange(draws) + 0.5) / draws))
    equal = bool(np.all(counts == counts[0]))
    resamples = _kept_resamples if n * draws <= _MOST_KEPT else _resamples
    means = [sums[chunk].sum(axis=1) / (n * counts[0] if equal else counts[chunk].sum(axis=1))
             for chunk in resamples(n, draws, seed)]  # fmt: skip
    return np.concatenate(means)


def _resamples(n: int, draws: int, seed: int) -> Iterator[Array]:
    """The images of each resample [draws, n], in chunks."""
    rng, step = np.random.default_rng(seed), max(1, _CHUNK // n)
    for start in range(0, draws, step):
        yield rng.integers(0, n, size=(min(step, draws - start), n), dtype=np.int32)


@lru_cache(maxsize=4)
def _kept_resamples(n: int, draws: int, seed: int) -> tuple[Array, ...]:
    """The same: drawing them takes longer than the means of one metric, and all metrics of a run share them."""
    return tuple(chunk.astype(np.intp) for chunk in _resamples(n, draws, seed))


def _levels(
    means: Array, sums: Array, counts: Array, value: float, confidence: float, method: Method
) -> tuple[float, float]:
    """The levels of the two quantiles of the resampled means that are the interval's ends."""
    from scipy.special import ndtr, ndtri, stdtrit  # noqa: PLC0415  # slow to import

    tail, n = (1 - confidence) / 2, len(sums)
    if method == "percentile":
        return tail, 1 - tail
    if method == "expanded":
        widened = float(ndtr(stdtrit(n - 1, tail) * np.sqrt(n / (n - 1))))
        return widened, 1 - widened
    bias, acceleration = float(ndtri(_share_below(means, value))), _acceleration(sums, counts)
    shifted = bias + ndtri(np.array([tail, 1 - tail]))
    # The correction has a pole far out; beyond it the end is the outermost draw.
    low, high = ndtr(bias + shifted / np.maximum(1 - acceleration * shifted, 1e-9))
    return float(low), float(high)


def _share_below(means: Array, value: float) -> float:
    """Share of the resampled means below the sample's, counting equal ones half; in (0, 1), ends excluded."""
    near = _NEAR * float(np.abs(means).max())
    share = (means < value - near).mean() / 2 + (means <= value + near).mean() / 2
    return float(np.clip(share, 0.5 / len(means), 1 - 0.5 / len(means)))


def _acceleration(sums: Array, counts: Array) -> float:
    """BCa's acceleration by the jackknife over images."""
    without = (sums.sum() - sums) / (counts.sum() - counts)
    gap = without.mean() - without
    gap /= np.abs(gap).max() or 1.0  # cubes of small numbers underflow
    square = float((gap**2).sum())
    return float((gap**3).sum() / (6 * square**1.5)) if square else 0.0


def _check_settings(confidence: float, method: str, draws: int) -> None:
    if not 0 < confidence < 1:
        raise BadInput(f"confidence must be between 0 and 1, as in 0.95; found {confidence:g}.")
    if method not in METHODS:
        raise BadInput(unknown("interval", method, METHODS))
    if draws < _LEAST_DRAWS:
        raise BadInput(f"an interval needs at least {_LEAST_DRAWS} draws, found {draws}.")


def finite(values: npt.ArrayLike, what: str) -> Array:
    """The values in any shape, if none of them is NaN or infinite."""
    array = np.asarray(values, dtype=np.float64)
    bad = int(np.count_nonzero(~np.isfinite(array)))
    if bad:
        raise BadInput(f"{bad} of {array.size} {what} are NaN or infinite; leave out the failed rows and count them.")
    return array


def finite_rows(values: npt.ArrayLike, what: str) -> Array:
    """The values [rows], at least one and all of them finite."""
    rows = finite(values, what)
    if rows.ndim != 1 or not rows.size:
        raise BadInput(f"{what} need one entry per row and at least one row, found shape {rows.shape}.")
    return rows


def grouped(image_index: npt.ArrayLike, rows: int) -> tuple[Array, Array]:
    """The distinct images [images] in ascending order, and the position [rows] of each row's image among them."""
    index = np.asarray(image_index)
    if index.shape != (rows,):
        raise BadInput(f"image_index needs one entry for each of the {rows} rows, found shape {index.shape}.")
    images, position = np.unique(index, return_inverse=True)
    return images, position
