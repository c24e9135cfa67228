"""The card beside a model: how a picture becomes the network's input, what the classes are called, what gray is.

`vendor.onnx` has its card in `vendor.toml`. Values are (x*scale - mean)/std for each channel in the stated order,
where x is a pixel in 0..255.
"""

import difflib
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.model import external_files
from auditkit.model.signature import Overrides, Signature

SCHEMA_VERSION = 1
INTERPOLATIONS = ("bicubic", "bilinear", "nearest", "lanczos", "box")
ORDERS = ("RGB", "BGR", "L")
CROPS = ("center", "none")
_MOST_BYTES = 1 << 20  # of a card or a list of names
_CROP_SHARE = 0.875  # the usual recipe: the network sees the middle 7/8 of the resized picture
_SMALLEST_WITH_MARGIN = 96  # smaller networks are trained on pictures of just their size

_MID_RANGE = 127.5  # of pixel values 0 to 255
_MOST_SIDE = 65536  # pixels of a side that a card may ask for

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Origin:
    """Where a card comes from: a file, or a preset and why it was taken."""

    file: Path | None = None
    preset: str | None = None
    assumed: Literal["", "assumed", "assumed, by accuracy"] = ""  # empty where the user named the preset

    def __str__(self) -> str:
        if self.preset is None:
            return str(self.file or "")
        return f"preset {self.preset} ({self.assumed})" if self.assumed else f"preset {self.preset}"


@dataclass(frozen=True)
class Card:
    """Preprocessing, class names and gray value of one model."""

    size: tuple[int, int]  # height, width
    resize: int | tuple[int, int] | None  # shorter side, or both sides, or not at all
    crop: str
    interpolation: str
    channels: str
    scale: float
    mean: Numbers
    std: Numbers
    gray: Numbers  # pixel units, RGB order
    names: tuple[str, ...] = ()
    origin: Origin = Origin()
    warnings: tuple[str, ...] = ()

    def table(self) -> Array:
        """[channels, 256]: the network's value for each pixel value, in the network's channel order."""
        pixels = np.arange(256, dtype=np.float64)
        return np.stack([(pixels * self.scale - m) / s for m, s in zip(self.mean, self.std, strict=True)])

    def prepares_like(self, other: "Card") -> bool:
        """Whether both cards turn a picture into the same input."""
        return replace(self, gray=other.gray, names=other.names, origin=other.origin, warnings=other.warnings) == other

    def to_json(self) -> dict[str, object]:
        """The card as a plain object for reports."""
        return {
            "source": str(self.origin), "size": list(self.size),
            "resize": list(self.resize) if isinstance(self.resize, tuple) else self.resize, "crop": self.crop,
            "interpolation": self.interpolation, "channels": self.channels, "scale": self.scale,
            "mean": list(self.mean), "std": list(self.std), "gray": list(self.gray), "class_names": len(self.names),
        }  # fmt: skip


@dataclass(frozen=True)
class Preset:
    """A common recipe, before it is adapted to a model."""

    about: str
    channels: str
    scale: float
    mean: Numbers
    std: Numbers
    margin: bool = True


PRESETS: dict[str, Preset] = {
    "imagenet": Preset("torchvision and timm ImageNet models", "RGB", 1 / 255, (0.485, 0.456, 0.406),
                       (0.229, 0.224, 0.225)),
    "caffe": Preset("Keras ResNet and VGG, Caffe: BGR minus the mean", "BGR", 1.0, (103.939, 116.779, 123.68),
                    (1.0, 1.0, 1.0)),
    "tf": Preset("TensorFlow and Keras MobileNet, Inception, Xception: [-1, 1]", "RGB", 1 / 127.5, (1.0, 1.0, 1.0),
                 (1.0, 1.0, 1.0)),
    "unit": Preset("pixels divided by 255: [0, 1]", "RGB", 1 / 255, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "clip": Preset("CLIP image towers", "RGB", 1 / 255, (0.48145466, 0.4578275, 0.40821073),
                   (0.26862954, 0.26130258, 0.27577711)),
    "cifar": Preset("CIFAR models with CIFAR's own mean and deviation", "RGB", 1 / 255, (0.4914, 0.4822, 0.4465),
                    (0.2470, 0.2435, 0.2616), margin=False),
    "none": Preset("raw pixels 0..255: the network normalises them itself", "RGB", 1.0, (0.0, 0.0, 0.0),
                   (1.0, 1.0, 1.0)),
}  # fmt: skip


def from_preset(name: str, signature: Signature) -> Card:
    """The card of a preset for a model with that signature."""
    if name not in PRESETS:
        raise BadInput(f"there is no preset '{name}'; the presets are {', '.join(PRESETS)}.")
    preset = PRESETS[name]
    size = (signature.height, signature.width)
    margin = preset.margin and min(size) >= _SMALLEST_WITH_MARGIN
    grey = signature.channels == 1
    # A network with one channel takes the preset's average over colours.
    mean, std = ((float(np.mean(preset.mean)),), (float(np.mean(preset.std)),)) if grey else (preset.mean, preset.std)
    card = Card(
        size=size, resize=round(min(size) / _CROP_SHARE) if margin else min(size), crop="center",
        interpolation="bicubic", channels="L" if grey else preset.channels, scale=preset.scale, mean=mean, std=std,
        gray=(), names=signature.class_names, origin=Origin(preset=name),
    )  # fmt: skip
    return _with_gray(card, None)


def _with_gray(card: Card, gray: Numbers | None) -> Card:
    """The card with that gray; without one, with the mean it subtracts, else mid-range and a warning."""
    if gray is not None:
        return replace(card, gray=gray)
    if any(card.mean):
        gray = tuple(m / card.scale for m in card.mean)
        return replace(card, gray=gray[::-1] if card.channels == "BGR" else gray)
    warning = (
        "the card subtracts no mean, so gray is mid-range (127.5); name 'gray' before comparing figures with others."
    )
    return replace(card, gray=(_MID_RANGE,) * len(card.mean), warnings=(*card.warnings, warning))


def path_beside(model: Path) -> Path:
    """Where a model's card lies: the same name, ending in .toml."""
    return model.with_suffix(".toml")


def parse(path: Path) -> Mapping[str, object]:
    """The tables of a card file, their keys checked."""
    try:
        data = tomllib.loads(_text(path))
    except FileNotFoundError:
        way_out = f"write one with: auditkit inspect MODEL --write-card --card {path}"
        raise BadInput(f"there is no card {path}; {way_out}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"the card {path} cannot be read: {error}.") from None
    if data.get("schema_version") != SCHEMA_VERSION:
        raise BadInput(f"{path}: schema_version is {data.get('schema_version')!r}, expected {SCHEMA_VERSION}.")
    _check_keys(data, {"schema_version", "preprocessing", "classes", "signature"}, path.name)
    keys = {"preset", "size", "resize", "crop", "interpolation", "channels", "scale", "mean", "std", "gray"}
    _check_keys(_table(data, "preprocessing", path.name), keys, f"{path.name} [preprocessing]")
    _check_keys(_table(data, "classes", path.name), {"names", "file"}, f"{path.name} [classes]")
    _check_keys(_table(data, "signature", path.name), {"input", "output", "layout", "kind"}, f"{path.name} [signature]")
    return data


def _text(path: Path) -> str:
    """Text of a card. It may come from a vendor, so pipes and huge files are refused."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
        raise OSError(f"it is no regular file of at most {_MOST_BYTES:,} bytes")
    return path.read_text("utf-8")


def _table(data: Mapping[str, object], key: str, where: str) -> dict[str, object]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise BadInput(f"{where}: '{key}' must be a table, written as [{key}].")
    return value


def _check_keys(table: Mapping[str, object], keys: set[str], where: str) -> None:
    for key in table:
        if key not in keys:
            close = difflib.get_close_matches(key, keys, 1)
            hint = f"did you mean '{close[0]}'?" if close else f"known keys: {', '.join(sorted(keys))}."
            raise BadInput(f"{where}: unknown key '{key}'; {hint}")


def overrides_in(data: Mapping[str, object], path: Path) -> Overrides:
    """The facts that a card states about the model's inputs and outputs."""
    where = path.name
    signature = _table(data, "signature", where)
    names = _names(_table(data, "classes", where), path)
    size = _table(data, "preprocessing", where).get("size")
    try:
        texts: dict[str, Any] = {key: str(value) for key, value in signature.items()}
        return Overrides(**texts, size=None if size is None else _size(size, where), classes=len(names) or None)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None


def from_data(data: Mapping[str, object], path: Path, signature: Signature) -> Card:
    """The card of a parsed file, checked against the model's signature."""
    table, where = _table(data, "preprocessing", path.name), path.name
    if "preset" in table:
        base = replace(from_preset(str(table["preset"]), signature), warnings=())
    else:
        missing = [key for key in ("channels", "scale", "mean", "std") if key not in table]
        if missing:
            raise BadInput(f"{where} [preprocessing] lacks {', '.join(missing)}; state them, or a preset.")
        base = from_preset("none", signature)
    card = replace(
        base,
        size=_size(table.get("size", list(base.size)), where),
        resize=_resize(table.get("resize", base.resize), where),
        crop=_choice(table.get("crop", base.crop), CROPS, "crop", where),
        interpolation=_choice(table.get("interpolation", base.interpolation), INTERPOLATIONS, "interpolation", where),
        channels=_choice(table.get("channels", base.channels), ORDERS, "channels", where),
        scale=_numbers(table.get("scale", base.scale), "scale", where)[0],
        mean=_numbers(table.get("mean", base.mean), "mean", where),
        std=_numbers(table.get("std", base.std), "std", where),
        names=_names(_table(data, "classes", where), path) or signature.class_names,
        origin=Origin(path),
        warnings=(),
    )
    if card.scale == 0 or 0 in card.std:
        raise BadInput(f"{where}: scale and std must not be 0.")
    card = _with_gray(card, _numbers(table["gray"], "gray", where) if "gray" in table else None)
    check_fits(card, signature, where)
    return card


def _size(value: object, where: str) -> tuple[int, int]:
    pair = [value, value] if isinstance(value, int) else value
    if isinstance(pair, list) and len(pair) == 2 and all(type(v) is int and 0 < v <= _MOST_SIDE for v in pair):
        return pair[0], pair[1]
    raise BadInput(f"{where}: size is {value!r}, expected [height, width] in pixels.")


def _resize(value: object, where: str) -> int | tuple[int, int] | None:
    if value is None or value == "none":
        return None
    if type(value) is int and 0 < value <= _MOST_SIDE:
        return value
    if isinstance(value, list):
        return _size(value, where)
    raise BadInput(f'{where}: resize is {value!r}, expected the shorter side, [height, width] or "none".')


def _choice(value: object, allowed: tuple[str, ...], key: str, where: str) -> str:
    if value not in allowed:
        raise BadInput(f"{where}: {key} is {value!r}, expected one of {', '.join(allowed)}.")
    return str(value)


def _numbers(value: object, key: str, where: str) -> Numbers:
    numbers: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    if not numbers or not all(type(v) in (int, float) and abs(v) < 1e30 for v in numbers):
        raise BadInput(f"{where}: {key} is {value!r}, expected a number for each channel.")
    return tuple(float(v) for v in numbers)


def _names(table: Mapping[str, object], path: Path) -> tuple[str, ...]:
    if "file" in table:
        file = str(table["file"])
        try:
            # A vendor's card may name any file of the reader's machine, just as a tensor may.
            with external_files.opened(path.parent, file, f"the list of class names of {path.name}") as data:
                text = data.read(0, min(data.size, _MOST_BYTES)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(f"{path.name}: the class names file {file} cannot be read: {error}.") from None
        return tuple(line.strip() for line in text.splitlines() if line.strip())
    names = table.get("names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"{path.name}: class names must be a list of texts.")
    return tuple(names)


def check_fits(card: Card, signature: Signature, where: str) -> None:
    """Raise with both values when a card and a model contradict each other."""
    if not signature.free_size and card.size != (signature.height, signature.width):
        raise BadInput(
            f"{where} says size {card.size[0]}x{card.size[1]}, but the model's input is "
            f"{signature.height}x{signature.width}; correct the card."
        )
    count = 1 if card.channels == "L" else 3
    if count != signature.channels:
        raise BadInput(f"{where} says channels {card.channels}, but the model's input has {signature.channels}.")
    for key, values in (("mean", card.mean), ("std", card.std), ("gray", card.gray)):
        if len(values) != count:
            raise BadInput(f"{where} gives {len(values)} value(s) for {key}, but the model has {count} channels.")
    if not all(0 <= value <= 255 for value in card.gray):
        raise BadInput(f"{where} says gray {list(card.gray)}, expected pixel values from 0 to 255.")
    if card.names and len(card.names) != signature.classes:
        raise BadInput(
            f"{where} names {len(card.names)} classes, but the model has {signature.classes}; correct the card, or "
            f"choose another output."
        )
    if signature.dtype == "uint8" and not _whole_pixels(card):
        raise BadInput(
            f"{where} says scale {card.scale:g}, mean {list(card.mean)}, std {list(card.std)}, but the model takes "
            f'uint8 pixels as they are; use preset = "none".'
        )


def _whole_pixels(card: Card) -> bool:
    table = card.table()
    return bool(np.all(table == np.round(table)) and table.min() >= 0 and table.max() <= 255)
