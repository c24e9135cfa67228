"""Arrays of any framework become numpy arrays, by what they can do and not by what they are called."""

import zipfile
import zlib
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput

# What reading a damaged, encrypted or oddly packed .npz may raise.
NOT_NPZ = (OSError, ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)


def unwrapped(value: Any) -> Any:
    """What a framework's result object holds: SHAP's `values`, OpenVINO-XAI's `saliency_map`; else the value itself."""
    if hasattr(value, "__array__") and not hasattr(value, "base_values"):
        return value
    for name in ("values", "saliency_map"):
        held = getattr(value, name, None)
        if held is not None and not callable(held):
            return held
    return value


def as_numpy(value: Any) -> Array:
    """The numbers of a numpy, torch, tensorflow, jax or DLPack array, or of nested lists, in host memory."""
    try:
        array = _converted(value)
    except Exception as error:  # whatever a framework raises
        raise BadInput(f"a {type(value).__name__} cannot be read as an array: {error}.") from None
    if array.dtype.kind == "V" and array.dtype.names is None and "float" in array.dtype.name:
        return array.astype(np.float32)  # bfloat16 and the float8s of jax
    if array.dtype.kind not in "fiub":
        raise BadInput(f"a {type(value).__name__} holds {array.dtype}, not real numbers.")
    return array


def _converted(value: Any) -> Array:
    if hasattr(value, "detach"):
        return _detached(value)
    if callable(getattr(value, "numpy", None)):
        return np.asarray(value.numpy())
    if hasattr(value, "__array__") or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    return np.asarray(np.from_dlpack(value))


def _detached(tensor: Any) -> Array:
    held = tensor.detach().cpu()
    try:
        return np.asarray(held.numpy())
    except TypeError:  # numpy has no bfloat16
        return np.asarray(held.float().numpy())
