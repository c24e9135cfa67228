"""Checks of arguments that several metrics share; each returns the checked array in float64."""

import numpy as np
import numpy.typing as npt

from auditkit.arrays import Array
from auditkit.errors import BadInput


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
