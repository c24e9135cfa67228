"""Ridge regression of responses on masks, with a smooth prior over the pixels.

The features of a mask are its cosine coefficients, a few hundred numbers for any image size. A Gaussian (RBF) kernel of
length l between pixels, mirrored at the edges, is diagonal in them: the coefficient of frequency k has variance
exp(-(pi k l)^2 / 2), with l in sides of the image. So the prior is a factor for each feature, one eigendecomposition
per length serves all noise levels and all labels, and leave-one-out errors have a closed form.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.methods.differences.grids import Grids, Spread

NOISES = tuple(10 ** (step / 2) for step in range(-2, 7))  # variance of the noise over that of the signal
_SPLITS = 4  # into halves, over which the agreement is averaged
_LEAST_SHARE = 1e-3  # of the largest variance that a feature gives the answers; features with less are left out
_BLOCK_ROWS = 64  # so small a product stays on one thread; more threads beside a busy runtime are 100 times slower


@dataclass(frozen=True)
class Cosines:
    """Orthonormal cosines over the pixels of one side each."""

    rows: Array  # [frequencies, height]
    columns: Array  # [frequencies, width]

    @classmethod
    def of(cls, height: int, width: int, count: int) -> "Cosines":
        """The first `count` cosines down and across."""
        return cls(_cosines(height, min(count, height)), _cosines(width, min(count, width)))

    @property
    def count(self) -> tuple[int, int]:
        """Number of frequencies down and across."""
        return len(self.rows), len(self.columns)

    def features(self, grids: Grids, spread: Spread) -> Array:
        """Coefficients [grids, rows * columns] of the masks minus one half."""
        down, across = self.rows @ spread.down, spread.across @ self.columns.T
        coefficients = down[grids.down] @ (grids.values - np.float64(0.5)) @ across[grids.across]
        return np.asarray(coefficients).reshape(len(grids), -1)

    def variances(self, length: float) -> Array:
        """Prior variance [rows * columns] of every coefficient."""
        down, across = (np.exp(-((np.pi * length * np.arange(count)) ** 2) / 2) for count in self.count)
        return np.outer(down, across).ravel()

    def field(self, coefficients: Array) -> Array:
        """Pixels [..., height, width] from coefficients [..., rows * columns]."""
        shaped = coefficients.reshape(*coefficients.shape[:-1], len(self.rows), len(self.columns))
        return np.asarray(self.rows.T @ shaped @ self.columns)


def _cosines(side: int, count: int) -> Array:
    waves = np.cos(np.pi * np.arange(count)[:, None] * (np.arange(side) + 0.5) / side)
    return np.asarray(waves / np.linalg.norm(waves, axis=1, keepdims=True))


@dataclass(frozen=True)
class Prior:
    """A length and a noise level, and their error of prediction."""

    length: float
    noise: float
    error: float  # mean square of the leave-one-out errors


def best_priors(features: Array, responses: Array, cosines: Cosines, lengths: Sequence[float]) -> list[Prior]:
    """For each label of the responses [masks, 2, labels], the prior with the least leave-one-out error."""
    best = [Prior(0.0, 0.0, float("inf"))] * responses.shape[2]
    for length in lengths:
        kept, factors = scales(features, cosines, length)
        for noise, errors in left_out_errors(features[:, kept] * factors, responses, NOISES).items():
            for label, error in enumerate(np.mean(errors**2, axis=(0, 1)).tolist()):
                if error < best[label].error:
                    best[label] = Prior(length, noise, error)
    return best


def scales(features: Array, cosines: Cosines, length: float) -> tuple[Array, Array]:
    """Indices of the features that count, and their prior deviations, scaled so that a mask's mean square is one."""
    # Some dozens of a few hundred are kept: the masks have little of the high frequencies, and the prior less.
    variances = cosines.variances(length)
    effect = np.mean(features**2, axis=0) * variances
    kept = np.flatnonzero(effect >= _LEAST_SHARE * effect.max())
    return kept, np.sqrt(variances[kept] / max(float(effect[kept].sum()), 1e-24))


def left_out_errors(scaled: Array, responses: Array, noises: Sequence[float]) -> dict[float, Array]:
    """For each noise level, the errors [masks, 2, labels] of predicting each response from all the others.

    The second response of a mask is to its complement, whose features are the negative ones, so half of the rows are
    enough. Mask and complement are left out separately: what they share, the evidence in the other picture, then counts
    as noise. If they are left out together, the chosen noise is too small, which costs 0.03 in completeness.
    """
    centred = responses - responses.mean(axis=(0, 1))
    values, vectors = np.linalg.eigh(2 * _gram(scaled))
    rotated = _product(scaled, vectors)
    projected = rotated.T @ (centred[:, 0] - centred[:, 1])
    shrinkage = 1 / (np.maximum(values, 0)[:, None] + np.array(noises))
    leverages = _product(rotated**2, shrinkage)
    errors = {}
    for noise, factors, leverage in zip(noises, shrinkage.T, leverages.T, strict=True):
        predicted = _product(rotated, factors[:, None] * projected)
        residuals = centred - np.stack([predicted, -predicted], axis=1)
        errors[noise] = residuals / np.maximum(1 - leverage, 1e-9)[:, None, None]
    return errors


def _blocks(rows: Array) -> list[Array]:
    return np.array_split(rows, -(-len(rows) // _BLOCK_ROWS))


def _gram(rows: Array) -> Array:
    return np.asarray(sum(block.T @ block for block in _blocks(rows)))


def _product(rows: Array, matrix: Array) -> Array:
    return np.concatenate([block @ matrix for block in _blocks(rows)])


def fitted(
    features: Array, responses: Array, cosines: Cosines, priors: Sequence[Prior], subsets: Sequence[Array]
) -> Array:
    """Coefficients [subsets, labels, rows * columns] of the most likely pixel weights under each label's prior."""
    coefficients = np.zeros((len(subsets), len(priors), features.shape[1]))
    differences = responses[:, 0] - responses[:, 1]
    settings = np.array([(prior.length, prior.noise) for prior in priors])
    for length in {prior.length for prior in priors}:
        kept, factors = scales(features, cosines, length)
        scaled = features[:, kept] * factors
        for target, subset in zip(coefficients, subsets, strict=True):
            product, projected = 2 * _gram(scaled[subset]), scaled[subset].T @ differences[subset]
            for noise in {prior.noise for prior in priors if prior.length == length}:
                labels = np.flatnonzero((settings == (length, noise)).all(axis=1))
                weights = np.linalg.solve(product + noise * np.eye(len(kept)), projected[:, labels])
                target[np.ix_(labels, kept)] = (factors[:, None] * weights).T
    return coefficients


def split_half_agreement(features: Array, responses: Array, cosines: Cosines, priors: Sequence[Prior]) -> Array:
    """For each label, the agreement [labels] in [-1, 1] of the pixels' ranks with those from as many new masks.

    It is Spearman's correlation between the maps of two halves of the masks, averaged over a few splits, and
    extrapolated from half of the masks to all of them by the Spearman-Brown formula.
    """
    halves: list[Array] = []
    for split in range(_SPLITS):
        order = np.random.default_rng(split).permutation(len(features))
        halves += [order[::2], order[1::2]]
    ranks = _ranked(cosines.field(fitted(features, responses, cosines, priors, halves)))
    half = np.mean(ranks[::2] * ranks[1::2], axis=(0, 2))
    return np.asarray(2 * half / np.maximum(1 + half, 1e-12)).clip(-1, 1)


def _ranked(fields: Array) -> Array:
    """Ranks [..., pixels] of each field's pixels, standardised to mean 0 and mean square 1."""
    ranks = np.argsort(np.argsort(fields.reshape(*fields.shape[:-2], -1), axis=-1), axis=-1).astype(np.float64)
    return np.asarray((ranks - ranks.mean(axis=-1, keepdims=True)) / ranks.std(axis=-1, keepdims=True))
