"""Splits what an explainer of any framework returned into single maps, each with its image and label.

A layout names the axes in order: N images, K labels, C channels, H height, W width. Labels come from the caller, or
from the keys of a dictionary, and are never guessed. If two layouts fit the same array, the caller names one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.bundle_files import COLOUR_PICTURE
from auditkit.data.dataset_files import unwritable
from auditkit.errors import BadInput

_AXES = "NKCHW"
_GUESSES = {2: ("HW",), 3: ("NHW", "KHW", "CHW", "HWC"), 4: ("NCHW", "NHWC", "NKHW"), 5: ("NCHWK", "NHWCK")}
_PER_CLASS = ("KNCHW", "KNHWC")  # a list with one array per class
_COLOURS = 3
_REDUCTIONS = {
    "sum": lambda maps: maps.sum(axis=2),
    "mean": lambda maps: maps.mean(axis=2),
    "abs-sum": lambda maps: np.abs(maps).sum(axis=2),
    "max-abs": lambda maps: np.abs(maps).max(axis=2),
}
_DEFAULT = "sum"  # attributions add up over inputs, so a pixel's is the sum over its channels


@dataclass(frozen=True)
class SingleMaps:
    """One map, float32 [height, width], for each pair of image and label."""

    pairs: list[tuple[str, int]]
    maps: list[Array]
    layout: str
    channels: str  # how channels were reduced to one, or "none" if there was only one
    notes: frozenset[str] = frozenset()


def single_maps(ids: Any, labels: Any, array: Any, layout: str | None, channels: str | None) -> SingleMaps:
    """The single maps in what an explainer returned for the images `ids`."""
    if channels is not None and channels not in _REDUCTIONS:
        raise BadInput(f"channels='{channels}' is none of {', '.join(_REDUCTIONS)}.")
    if isinstance(labels, Mapping) and array is None:
        labels, array = None, labels
    _refuse_swapped(ids, labels, array)
    names, values = _id_list(ids), _unwrapped(array)
    if isinstance(values, Mapping):
        return _from_mapping(names, labels, values, layout, channels)
    if isinstance(values, list | tuple):
        if len(values) == 0:
            raise BadInput("the array of maps is an empty list.")
        if isinstance(values[0], Mapping):
            if len(values) != len(names):
                raise BadInput(f"there are {len(names)} image ids and {len(values)} dictionaries of maps.")
            rows = zip(names, values, strict=True)
            return _joined([_from_mapping([name], labels, row, layout, channels) for name, row in rows])
        parts = [_as_numpy(_unwrapped(part)) for part in values]
        if parts[0].ndim == 4 and len(parts[0]) == len(names):  # one array per class, as older versions of SHAP return
            shapes = sorted({part.shape for part in parts})
            if len(shapes) > 1:
                text = ", ".join(str(list(shape)) for shape in shapes)
                raise BadInput(f"the arrays of the classes differ in shape: {text}.")
            return _from_array(names, label_array(labels), np.stack(parts), layout, channels, _PER_CLASS)
        if parts[0].ndim >= 2:
            return _from_rows(names, label_array(labels), parts, layout, channels)
    return _from_array(names, label_array(labels), _as_numpy(values), layout, channels)


def _refuse_swapped(ids: object, labels: object, array: object) -> None:
    """Refuse arguments that lie in each other's places."""
    order = "the order is add(ids, labels, array) or add(ids, {label: maps})"
    if array is None:
        raise BadInput(f"the maps are missing: {order}.")
    for name, value in (("labels", labels), ("array", array)):
        if _holds_texts(value) and not _holds_texts(ids):
            raise BadInput(f"ids and {name} seem swapped, since {name} holds texts: {order}, labels are class indices.")
    if getattr(labels, "ndim", 0) > 2 and getattr(array, "ndim", 0) <= 2:
        raise BadInput(f"labels and array seem swapped, since labels holds maps: {order}.")


def _holds_texts(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "US"
    return isinstance(value, str) or (isinstance(value, list | tuple) and any(isinstance(one, str) for one in value))


def _id_list(ids: Any) -> list[str]:
    """Image ids as texts; a single id becomes a list of one."""
    single = isinstance(ids, str) or not hasattr(ids, "__iter__")
    names = [str(name) for name in ([ids] if single else ids)]
    for name in names:
        if not name or unwritable(name):
            raise BadInput(f"{name!r} cannot be an image id: it is empty or has control characters.")
    if not names:
        raise BadInput("there are no image ids.")
    return names


def label_array(labels: Any) -> Array:
    """Class indices as integers: one, one per map, or [images, labels]."""
    if labels is None:
        raise BadInput("labels are missing: give the class index that each map explains; they are never guessed.")
    try:
        array = _as_numpy(labels)
    except BadInput as error:
        raise BadInput(f"labels are not class indices, integers from 0: {error}") from None
    if array.dtype.kind not in "iu" or array.ndim > 2 or array.size == 0:
        raise BadInput(f"labels are {array.dtype}{list(array.shape)}; expected class indices, integers from 0.")
    if array.min() < 0:
        raise BadInput(f"label {array.min()} is negative; labels are class indices from 0.")
    return array.astype(np.int64)


def _from_mapping(
    names: list[str], labels: Any, maps: Mapping[Any, object], layout: str | None, channels: str | None
) -> SingleMaps:
    """{label: maps of all images}; the keys are the labels."""
    keys = list(maps)
    wrong = [key for key in keys if not isinstance(key, int | np.integer) or isinstance(key, bool)]
    if wrong:
        raise BadInput(f"image '{names[0]}': {wrong[0]!r} is not a class index, as the keys of the maps must be.")
    if labels is not None and sorted(label_array(labels).ravel().tolist()) != sorted(map(int, keys)):
        raise BadInput(f"image '{names[0]}': labels {labels} differ from the maps' own keys {keys}; leave labels None.")
    return _joined([single_maps(names, int(key), maps[key], layout, channels) for key in keys])


def _from_rows(
    names: list[str], labels: Array, parts: list[Array], layout: str | None, channels: str | None
) -> SingleMaps:
    """One array per image; their sizes may differ."""
    if len(parts) != len(names):
        raise BadInput(f"there are {len(names)} image ids and {len(parts)} arrays.")
    if labels.ndim and len(labels) != len(names):
        raise BadInput(f"there are {len(names)} image ids and labels of shape {list(labels.shape)}; give one each.")
    maps = []
    for index, (name, part) in enumerate(zip(names, parts, strict=True)):
        part_layout = layout.replace("N", "") if layout and part.ndim == len(layout) - 1 else layout
        maps.append(_from_array([name], labels[index] if labels.ndim else labels, part, part_layout, channels))
    return _joined(maps)


def _joined(parts: list[SingleMaps]) -> SingleMaps:
    for part in parts:
        if part.channels != parts[0].channels:
            image, channels = part.pairs[0][0], f"'{part.channels}', those before them '{parts[0].channels}'"
            raise BadInput(f"the maps of '{image}' have channels {channels}; add them to two separate bundles.")
    if not parts:
        raise BadInput("there are no maps.")
    return SingleMaps(
        list(chain.from_iterable(part.pairs for part in parts)), list(chain.from_iterable(part.maps for part in parts)),
        parts[0].layout, parts[0].channels, frozenset().union(*(part.notes for part in parts)),
    )  # fmt: skip


def _from_array(
    names: list[str], labels: Array, array: Array, layout: str | None, channels: str | None,
    guesses: tuple[str, ...] | None = None,
) -> SingleMaps:  # fmt: skip
    axes = _layout(array, layout, len(names), labels.shape, guesses or _GUESSES.get(array.ndim, ()))
    present = array.transpose([axes.index(axis) for axis in _AXES if axis in axes])
    ordered = present[tuple(slice(None) if axis in axes else None for axis in _AXES)]  # absent axes have length 1
    count, classes, colours = ordered.shape[:3]
    if colours == _COLOURS and array.dtype.kind in "iu":
        raise BadInput(f"{array.dtype}{list(array.shape)} for image '{names[0]}' is {COLOUR_PICTURE}")
    if not _labels_fit(labels.shape, count, classes) or count != len(names):
        raise BadInput(
            f"an array {list(array.shape)} in layout {axes} holds {count} images with {classes} labels each, but there "
            f"are {len(names)} image ids and labels of shape {list(labels.shape)}."
        )
    reduction = "none" if colours == 1 else channels or _DEFAULT
    with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused with its position
        single = ordered.astype(np.float32)
    maps = single[:, :, 0] if colours == 1 else _REDUCTIONS[reduction](single)
    table = np.broadcast_to(labels[:, None] if labels.shape == (count,) and classes == 1 else labels, (count, classes))
    return SingleMaps(
        list(zip(np.repeat(names, classes).tolist(), table.ravel().tolist(), strict=True)),
        list(maps.reshape(-1, *maps.shape[2:])), axes, reduction, _notes(array, colours, channels),
    )  # fmt: skip


def _notes(array: Array, colours: int, channels: str | None) -> frozenset[str]:
    notes = set()
    if colours > 1 and channels is None:
        notes.add(f"{colours} channels became one by '{_DEFAULT}', the default; set channels= for another way")
    if array.dtype.kind == "f" and array.dtype.itemsize > 4:
        notes.add(f"{array.dtype.newbyteorder('=')} values were stored as float32")
    if array.dtype.itemsize == 1 and array.dtype.kind in "iu":
        notes.add("some maps had 8 bits a pixel: at most 256 different scores, so many ties")
    return frozenset(notes)


def _labels_fit(shape: tuple[int, ...], count: int, classes: int) -> bool:
    """Whether labels are one for all images, one per image, one row for all, or one row per image."""
    if len(shape) == 2:
        return shape == (count, classes)
    return shape in ((count,), ()) if classes == 1 else shape == (classes,)


def _fits(axes: str, shape: tuple[int, ...], count: int, labels: tuple[int, ...]) -> bool:
    size = {axis: shape[axes.index(axis)] if axis in axes else 1 for axis in _AXES}
    if size["N"] != count or size["C"] not in (1, _COLOURS) or min(size["H"], size["W"]) < 2:
        return False
    if len(axes) < 5 and ((axes.startswith("C") and size["C"] == 1) or ("K" in axes and size["K"] == 1)):
        return False  # the same as a layout without that axis
    if axes == "NKHW" and count > 1 and len(labels) < 2:
        return False  # with three images and three labels, colours would pass for labels
    return _labels_fit(labels, count, size["K"])


def _layout(array: Array, layout: str | None, count: int, labels: tuple[int, ...], guesses: tuple[str, ...]) -> str:
    """The layout that the caller names, or the only one that fits."""
    shape = list(array.shape)
    if layout is not None:
        if len(layout) != array.ndim or set(layout) - set(_AXES) or len(set(layout)) != len(layout):
            raise BadInput(f"layout='{layout}' does not name the {array.ndim} axes of {shape}; use N, K, C, H, W once.")
        if not {"H", "W"} <= set(layout):
            raise BadInput(f"layout='{layout}' lacks H or W.")
        return layout
    if array.dtype.kind in "iu" and array.ndim in (3, 4) and array.shape[-1] == _COLOURS + 1:
        raise BadInput(f"{array.dtype}{shape} is {COLOUR_PICTURE}")
    fitting = [axes for axes in guesses if _fits(axes, array.shape, count, labels)]
    if not fitting:
        raise BadInput(
            f"an array of shape {shape} fits {count} image ids and labels of shape {list(labels)} in none of the "
            f"layouts {', '.join(guesses) or 'known'}; check both, or set layout= with the letters {', '.join(_AXES)}."
        )
    if len(fitting) > 1:
        raise BadInput(f"an array of shape {shape} can be read as {' or '.join(fitting)}; name one with layout=.")
    return fitting[0]


def _unwrapped(value: Any) -> Any:
    """The array in a framework's result, SHAP's `values` or OpenVINO-XAI's `saliency_map`; else the value itself."""
    if hasattr(value, "__array__") and not hasattr(value, "base_values"):
        return value
    for name in ("values", "saliency_map"):
        array = getattr(value, name, None)
        if array is not None and not callable(array):
            return array
    return value


def _as_numpy(value: Any) -> Array:
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
