"""Ridge regression of responses on masks, with a smooth prior over the pixels.

Masks are described by their cosine coefficients, a few hundred numbers whatever the picture's size. A Gaussian (RBF)
kernel of length l between pixels, mirrored at the edges, is diagonal there: the coefficient of frequency k has variance
exp(-(pi k l)^2 / 2), with l in sides of the picture. So the prior is a factor for each feature, one eigen-decomposition
a length serves all noise levels and all labels, and leave-one-out errors come in closed form.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.methods.differences.grids import Grids, Spread

NOISES = tuple(10 ** (step / 2) for step in range(-2, 7))  # variance of the noise over that of the signal
WAYS_TO_HALVE = 4
LEAST_SHARE = 1e-3  # of the largest: features that can move an answer by less (in variance) are left out
ROWS_AT_ONCE = 64  # so small a product stays on one thread; beside a busy runtime more of them are slower a hundredfold


@dataclass(frozen=True)
class Cosines:
    """Orthonormal cosines over the pixels of one side each."""

    rows: Array  # [frequencies, height]
    columns: Array  # [frequencies, width]

    @classmethod
    def of(cls, height: int, width: int, count: int) -> "Cosines":
        """The first few of them."""
        return cls(_cosines(height, min(count, height)), _cosines(width, min(count, width)))

    @property
    def count(self) -> tuple[int, int]:
        """Frequencies down and across."""
        return len(self.rows), len(self.columns)

    def features(self, grids: Grids, spread: Spread) -> Array:
        """Coefficients [grids, rows * columns] of the masks less one half."""
        down, across = self.rows @ spread.down, spread.across @ self.columns.T
        found = down[grids.down] @ (grids.values - np.float64(0.5)) @ across[grids.across]
        return np.asarray(found).reshape(len(grids), -1)

    def variances(self, length: float) -> Array:
        """Prior variance of every coefficient, [rows * columns]."""
        down, across = (np.exp(-((np.pi * length * np.arange(len(own))) ** 2) / 2) for own in (self.rows, self.columns))
        return np.outer(down, across).ravel()

    def field(self, coefficients: Array) -> Array:
        """The pixels [..., height, width] of coefficients [..., rows * columns]."""
        shaped = coefficients.reshape(*coefficients.shape[:-1], len(self.rows), len(self.columns))
        return np.asarray(self.rows.T @ shaped @ self.columns)


def _cosines(side: int, count: int) -> Array:
    found = np.cos(np.pi * np.arange(count)[:, None] * (np.arange(side) + 0.5) / side)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))


@dataclass(frozen=True)
class Prior:
    """A length and a noise level, and how badly they predict what was left out."""

    length: float
    noise: float
    error: float  # mean square of the leave-one-out errors


def chosen(features: Array, responses: Array, cosines: Cosines, lengths: Sequence[float]) -> list[Prior]:
    """For each label of the responses [masks, 2, labels], the prior that best predicts an answer left out."""
    best: list[Prior | None] = [None] * responses.shape[2]
    for length in lengths:
        kept, factors = scales(features, cosines, length)
        for noise, errors in left_out(features[:, kept] * factors, responses, NOISES).items():
            for label, error in enumerate(np.mean(errors**2, axis=(0, 1)).tolist()):
                known = best[label]
                if known is None or error < known.error:
                    best[label] = Prior(length, noise, error)
    return [prior for prior in best if prior is not None]


def scales(features: Array, cosines: Cosines, length: float) -> tuple[Array, Array]:
    """Which features count, and the factor of each: prior deviations, such that a mask's mean square is one.

    Of a few hundred features some dozens are left: the masks have little of the high frequencies, and the prior less.
    """
    variances = cosines.variances(length)
    moved = np.mean(features**2, axis=0) * variances
    kept = np.flatnonzero(moved >= LEAST_SHARE * moved.max())
    return kept, np.sqrt(variances[kept] / max(float(moved[kept].sum()), 1e-24))


def left_out(scaled: Array, responses: Array, noises: Sequence[float]) -> dict[float, Array]:
    """For each noise level, how far each of the responses [masks, 2, labels] is from its prediction by all others.

    The second response of a mask is to its complement, whose features are the first's with the other sign, so that all
    is told by half the rows. Mask and complement are left out one at a time: what they share, the other picture's own
    evidence, then counts as the noise that it is. Without it too little noise was chosen, at a cost of 0.03 in
    completeness.
    """
    centred = responses - responses.mean(axis=(0, 1))
    values, vectors = np.linalg.eigh(2 * _gram(scaled))
    turned = _product(scaled, vectors)
    reached = turned.T @ (centred[:, 0] - centred[:, 1])
    shrinking = 1 / (np.maximum(values, 0)[:, None] + np.array(noises))
    leverages = _product(turned**2, shrinking)
    found = {}
    for noise, factors, leverage in zip(noises, shrinking.T, leverages.T, strict=True):
        told = _product(turned, factors[:, None] * reached)
        misses = centred - np.stack([told, -told], axis=1)
        found[noise] = misses / np.maximum(1 - leverage, 1e-9)[:, None, None]
    return found


def _parts(rows: Array) -> list[Array]:
    return np.array_split(rows, -(-len(rows) // ROWS_AT_ONCE))


def _gram(rows: Array) -> Array:
    return np.asarray(sum(part.T @ part for part in _parts(rows)))


def _product(rows: Array, matrix: Array) -> Array:
    return np.concatenate([part @ matrix for part in _parts(rows)])


def fitted(features: Array, responses: Array, cosines: Cosines, priors: Sequence[Prior]) -> Array:
    """Coefficients [labels, rows * columns] of the most likely pixel weights, each label under its prior."""
    return np.asarray(_fitted(features, responses, cosines, priors, [np.arange(len(features))])[0])


def _fitted(
    features: Array, responses: Array, cosines: Cosines, priors: Sequence[Prior], subsets: Sequence[Array]
) -> Array:
    """The same from each of some subsets of the masks, [subsets, labels, rows * columns]."""
    found = np.zeros((len(subsets), len(priors), features.shape[1]))
    differences = responses[:, 0] - responses[:, 1]
    for length in {prior.length for prior in priors}:
        kept, factors = scales(features, cosines, length)
        scaled = features[:, kept] * factors
        for target, subset in zip(found, subsets, strict=True):
            product, reached = 2 * _gram(scaled[subset]), scaled[subset].T @ differences[subset]
            for noise in {prior.noise for prior in priors if prior.length == length}:
                alike = np.array([at for at, own in enumerate(priors) if (own.length, own.noise) == (length, noise)])
                weights = np.linalg.solve(product + noise * np.eye(len(kept)), reached[:, alike])
                target[np.ix_(alike, kept)] = (factors[:, None] * weights).T
    return found


def split_half_agreement(features: Array, responses: Array, cosines: Cosines, priors: Sequence[Prior]) -> Array:
    """For each label, how well the pixels' ranks would agree with those from as many masks again.

    Spearman's correlation between the maps of either half of the masks, averaged over a few ways to halve them, and
    raised from half to whole by Spearman and Brown's formula.
    """
    orders = [np.random.default_rng(way).permutation(len(features)) for way in range(WAYS_TO_HALVE)]
    halves = [half for order in orders for half in (order[::2], order[1::2])]
    ranks = _ranked(cosines.field(_fitted(features, responses, cosines, priors, halves)))
    half = np.mean(ranks[::2] * ranks[1::2], axis=(0, 2))
    return np.asarray(2 * half / np.maximum(1 + half, 1e-12)).clip(-1, 1)


def _ranked(fields: Array) -> Array:
    """Ranks of each field's pixels, [..., pixels], with mean 0 and mean square 1."""
    ranks = np.argsort(np.argsort(fields.reshape(*fields.shape[:-2], -1), axis=-1), axis=-1).astype(np.float64)
    return np.asarray((ranks - ranks.mean(axis=-1, keepdims=True)) / ranks.std(axis=-1, keepdims=True))
