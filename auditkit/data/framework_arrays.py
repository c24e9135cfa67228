"""Converts arrays of any framework to numpy, by their methods rather than their types."""

import zipfile
import zlib
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput

# Raised on reading a damaged, encrypted or unusually packed .npz.
NOT_NPZ = (OSError, ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)


def unwrapped(value: Any) -> Any:
    """The array in a framework's result, SHAP's `values` or OpenVINO-XAI's `saliency_map`; else the value itself."""
    if hasattr(value, "__array__") and not hasattr(value, "base_values"):
        return value
    for name in ("values", "saliency_map"):
        array = getattr(value, name, None)
        if array is not None and not callable(array):
            return array
    return value


def as_numpy(value: Any) -> Array:
    """The numbers of a numpy, torch, tensorflow, jax or DLPack array, or of nested lists, in host memory."""
    try:
        array = _converted(value)
    except Exception as error:  # a framework may raise anything
        raise BadInput(f"a {type(value).__name__} cannot be read as an array: {error}.") from None
    if array.dtype.kind == "V" and array.dtype.names is None and "float" in array.dtype.name:
        return array.astype(np.float32)  # bfloat16 and the float8s of jax
    if array.dtype.kind not in "fiub":
        raise BadInput(f"a {type(value).__name__} holds {array.dtype}, not real numbers.")
    return array


def _converted(value: Any) -> Array:
    if hasattr(value, "detach"):
        on_cpu = value.detach().cpu()
        try:
            return np.asarray(on_cpu.numpy())
        except TypeError:  # numpy has no bfloat16
            return np.asarray(on_cpu.float().numpy())
    if callable(getattr(value, "numpy", None)):
        return np.asarray(value.numpy())
    if hasattr(value, "__array__") or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    return np.asarray(np.from_dlpack(value))
