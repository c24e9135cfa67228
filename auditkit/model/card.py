"""The card beside a model: how a picture becomes the network's input, what the classes are called, what gray is.

`vendor.onnx` has its card in `vendor.toml`. Values are (x*scale - mean)/std for each channel in the stated order,
where x is a pixel in 0..255.
"""

import json
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput, unknown
from auditkit.model import external_data
from auditkit.model.pictures import Geometry
from auditkit.model.signature import Overrides, Signature
from auditkit.records import Json, to_json
from auditkit.regular_files import read_regular, reason
from auditkit.toml_tables import Table, shown

SCHEMA_VERSION = 1
INTERPOLATIONS = ("bicubic", "bilinear", "nearest", "lanczos", "box")
ORDERS = ("RGB", "BGR", "L")
CROPS = ("center", "none")
_TABLES = {
    "preprocessing": ("preset", "size", "resize", "crop", "interpolation", "channels", "scale", "mean", "std", "gray",
                      "exif_orientation"),
    "classes": ("names", "file"),
    "signature": ("input", "output", "layout", "kind"),
}  # fmt: skip
_MOST_BYTES = 1 << 20  # of a card or a list of names
_CROP_SHARE = 0.875  # the usual recipe: the network sees the middle 7/8 of the resized picture
_SMALLEST_WITH_MARGIN = 96  # smaller networks are trained on pictures of just their size
_MID_RANGE = 127.5  # of pixel values 0 to 255
_MOST_SIDE = 65536  # pixels of a side that a card may ask for

Numbers = tuple[float, ...]
Assumed = Literal["assumed", "assumed, by accuracy"]  # why a preset was taken that nobody stated


@dataclass(frozen=True)
class Assumption:
    """What nobody stated about the preprocessing, and how to state it, in words."""

    text: str
    remedy: str

    @classmethod
    def of(cls, source: str, assumed: Assumed | None, size: tuple[int, int] | None) -> "Assumption | None":
        """That a preset was assumed, or an input size that the file leaves open, or both; None where neither was."""
        things, options, taken = list[str](), list[str](), list[str]()
        if assumed is not None:
            by_accuracy = assumed == "assumed, by accuracy"
            why = ", with which the model predicts the given labels best" if by_accuracy else ""
            things.append("the preprocessing")
            options.append("--preset NAME")
            taken.append(f"{source.removesuffix(f' ({assumed})')} is assumed{why}")
        if size is not None:
            things.append("the input size")
            options.append("--size HEIGHTxWIDTH")
            taken.append(f"{'x'.join(map(str, size))} is assumed, since the file leaves it open")
        if not things:
            return None
        what = " and ".join(things)
        return cls(
            f"Nobody stated {what}: {'; '.join(taken)}. Every figure rests on this guess.",
            f"State {what} with {' '.join(options)} or --card FILE, or write a card with auditkit inspect MODEL "
            "--write-card.",
        )

    def __str__(self) -> str:
        return f"{self.text} {self.remedy}"


@dataclass(frozen=True)
class Origin:
    """Where a card comes from: a file, or a preset and why it was taken."""

    file: Path | None = None
    preset: str | None = None
    assumed: Assumed | None = None  # None: the user stated the preset, or the model takes pixels as they are
    assumed_size: tuple[int, int] | None = None  # that nobody stated, of a file that leaves it open

    def __str__(self) -> str:
        if self.preset is None:
            return str(self.file or "")
        return f"preset {self.preset} ({self.assumed})" if self.assumed else f"preset {self.preset}"

    @property
    def assumption(self) -> Assumption | None:
        """What nobody stated; None where nothing was assumed."""
        return Assumption.of(str(self), self.assumed, self.assumed_size)


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
    exif_orientation: bool = True  # rotate pictures by their EXIF orientation
    names: tuple[str, ...] = ()
    origin: Origin = Origin()
    warnings: tuple[str, ...] = ()

    def table(self) -> Array:
        """[channels, 256]: the network's value for each pixel value, in the network's channel order."""
        pixels = np.arange(256, dtype=np.float64)
        return np.stack([(pixels * self.scale - m) / s for m, s in zip(self.mean, self.std, strict=True)])

    @property
    def geometry(self) -> Geometry:
        """Which pixels of a picture the network sees."""
        return Geometry(self.size, self.resize, self.crop, self.interpolation, len(self.mean), self.exif_orientation)

    def prepares_like(self, other: "Card") -> bool:
        """Whether both cards turn a picture into the same input."""
        return replace(self, gray=other.gray, names=other.names, origin=other.origin, warnings=other.warnings) == other

    def to_json(self) -> dict[str, Json]:
        """The card as a plain object for reports."""
        separate = ("names", "origin", "warnings")  # in other forms below
        values = {key: to_json(value) for key, value in vars(self).items() if key not in separate}
        return {"source": str(self.origin), **values, "class_names": len(self.names)}


@dataclass(frozen=True)
class Preset:
    """A common recipe, before it is adapted to a model."""

    about: str
    channels: str = "RGB"
    scale: float = 1 / 255
    mean: Numbers = (0.0, 0.0, 0.0)
    std: Numbers = (1.0, 1.0, 1.0)
    margin: bool = True


PRESETS: dict[str, Preset] = {
    "imagenet": Preset("torchvision and timm ImageNet models", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    "caffe": Preset("Keras ResNet and VGG, Caffe: BGR minus the mean", "BGR", 1.0, (103.939, 116.779, 123.68)),
    "tf": Preset("TensorFlow and Keras MobileNet, Inception, Xception: [-1, 1]", "RGB", 1 / 127.5, (1.0, 1.0, 1.0)),
    "unit": Preset("pixels divided by 255: [0, 1]"),
    "clip": Preset("CLIP image towers", mean=(0.48145466, 0.4578275, 0.40821073),
                   std=(0.26862954, 0.26130258, 0.27577711)),
    "cifar": Preset("CIFAR models with CIFAR's own mean and deviation", mean=(0.4914, 0.4822, 0.4465),
                    std=(0.2470, 0.2435, 0.2616), margin=False),
    "none": Preset("raw pixels 0..255: the network normalises them itself", scale=1.0),
}  # fmt: skip


def from_preset(name: str, signature: Signature) -> Card:
    """The card of a preset for a model with that signature."""
    if name not in PRESETS:
        raise BadInput(unknown("preset", name, PRESETS))
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
    warning = "the card subtracts no mean, so gray is mid-range (127.5); set 'gray' before you compare figures."
    return replace(card, gray=(_MID_RANGE,) * len(card.mean), warnings=(*card.warnings, warning))


@dataclass(frozen=True)
class CardFile:
    """A card as a file has it, its keys checked."""

    path: Path
    preprocessing: Table
    signature: Table
    names: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "CardFile":
        """The card in a TOML file."""
        try:
            data = tomllib.loads(read_regular(path, _MOST_BYTES).decode("utf-8"))
        except FileNotFoundError:
            remedy = f"write one with: auditkit inspect MODEL --write-card --card {path}"
            raise BadInput(f"there is no card {path}; {remedy}") from None
        except (OSError, ValueError, RecursionError) as error:  # also an integer of more digits than Python reads
            raise BadInput(f"the card {path} cannot be read: {reason(error)}.") from None
        version = data.get("schema_version")
        if type(version) is not int or version != SCHEMA_VERSION:
            raise BadInput(f"{path}: schema_version is {shown(version)}, expected {SCHEMA_VERSION}.")
        Table(data, path.name, ("schema_version", *_TABLES))
        tables = {name: Table(data.get(name, {}), f"{path.name} [{name}]", keys) for name, keys in _TABLES.items()}
        return cls(path, tables["preprocessing"], tables["signature"], _names(tables["classes"], path))

    def overrides(self) -> Overrides:
        """The facts that the card states about the model's inputs and outputs."""
        texts: dict[str, Any] = {key: self.signature.text(key) for key in self.signature.data}
        size = _size(self.preprocessing, "size") if "size" in self.preprocessing else None
        try:
            return Overrides(**texts, size=size, classes=len(self.names) or None)
        except BadInput as error:
            raise BadInput(f"{self.path.name}: {error}") from None

    def card(self, signature: Signature) -> Card:
        """The card, checked against the model's signature."""
        table, where = self.preprocessing, self.path.name
        missing = [key for key in ("channels", "scale", "mean", "std") if key not in table]
        if missing and "preset" not in table:
            raise BadInput(f"{where} [preprocessing] is missing {', '.join(missing)}; state them, or a preset.")
        base = from_preset(table.text("preset", "none"), signature)
        card = replace(
            base,
            size=_size(table, "size") if "size" in table else base.size,
            resize=_resize(table) if "resize" in table else base.resize,
            crop=table.choice("crop", CROPS, base.crop),
            interpolation=table.choice("interpolation", INTERPOLATIONS, base.interpolation),
            channels=table.choice("channels", ORDERS, base.channels),
            scale=_numbers(table, "scale", (base.scale,))[0],
            mean=_numbers(table, "mean", base.mean),
            std=_numbers(table, "std", base.std),
            exif_orientation=table.truth("exif_orientation", base.exif_orientation),
            names=self.names or signature.class_names,
            origin=Origin(self.path),
            warnings=(),
        )
        if card.scale == 0 or 0 in card.std:
            raise BadInput(f"{where}: scale and std must not be 0.")
        card = _with_gray(card, _numbers(table, "gray", ()) if "gray" in table else None)
        check_fits(card, signature, where)
        return card


def _size(table: Table, key: str) -> tuple[int, int]:
    value = table.data[key]
    pair = [value, value] if isinstance(value, int) else value
    if isinstance(pair, list) and len(pair) == 2 and all(type(v) is int and 0 < v <= _MOST_SIDE for v in pair):
        return pair[0], pair[1]
    raise table.refuse(key, "[height, width] in pixels")


def _resize(table: Table) -> int | tuple[int, int] | None:
    value = table.data["resize"]
    if value == "none":
        return None
    if type(value) is int and 0 < value <= _MOST_SIDE:
        return value
    if isinstance(value, list):
        return _size(table, "resize")
    raise table.refuse("resize", 'the shorter side, [height, width] or "none"')


def _numbers(table: Table, key: str, default: Numbers) -> Numbers:
    value = table.data.get(key, default)
    numbers: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    if not numbers or not all(type(v) in (int, float) and abs(v) < 1e30 for v in numbers):
        raise table.refuse(key, "a number for each channel")
    return tuple(float(v) for v in numbers)


def _names(table: Table, path: Path) -> tuple[str, ...]:
    if "file" in table:
        file = table.text("file")
        try:
            # A vendor's card may name any file of the reader's machine, just as a tensor may.
            with external_data.opened(path.parent, file, f"the list of class names of {path.name}") as descriptor:
                size = min(os.fstat(descriptor).st_size, _MOST_BYTES)
                text = external_data.read_range(descriptor, 0, size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(f"{path.name}: the class names file {file} cannot be read: {error}.") from None
        return tuple(line.strip() for line in text.splitlines() if line.strip())
    names = table.data.get("names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise table.refuse("names", "a list of texts")
    return tuple(names)


def check_fits(card: Card, signature: Signature, where: str) -> None:
    """Raise BadInput with both values if a card and a model contradict each other."""
    size, expected = (f"{height}x{width}" for height, width in (card.size, (signature.height, signature.width)))
    if not signature.free_size and size != expected:
        raise BadInput(f"{where} says size {size}, but the model's input is {expected}; correct the card.")
    count = 1 if card.channels == "L" else 3
    if count != signature.channels:
        raise BadInput(f"{where} says channels {card.channels}, but the model's input has {signature.channels}.")
    for key, values in (("mean", card.mean), ("std", card.std), ("gray", card.gray)):
        if len(values) != count:
            raise BadInput(f"{where} gives {len(values)} value(s) for {key}, but the model has {count} channels.")
    if not all(0 <= value <= 255 for value in card.gray):
        raise BadInput(f"{where} says gray {list(card.gray)}, expected pixel values from 0 to 255.")
    if card.names and len(card.names) != signature.classes:
        advice = "correct the card, or choose another output."
        raise BadInput(f"{where} names {len(card.names)} classes, but the model has {signature.classes}; {advice}")
    pixels = card.table()
    if signature.dtype == "uint8" and not np.array_equal(pixels, np.round(pixels).clip(0, 255)):
        formula = f"scale {card.scale:g}, mean {list(card.mean)}, std {list(card.std)}"
        raise BadInput(f'{where} says {formula}, but the model takes uint8 pixels as they are; use preset = "none".')


def to_toml(card: Card, signature: Signature, about: str) -> str:
    """The card as TOML to start from, with a comment on every line that a vendor should confirm."""
    names = f"names = [{', '.join(_quoted(name) for name in card.names)}]"
    if not card.names:
        names = f"names = []   # {signature.classes} names in the order of the scores, or: file = 'classes.txt'"
    resize = '"none"' if card.resize is None else to_json(card.resize)
    return f"""\
# How pictures reach {_one_line(about)}, and what its classes are called.
# value = (x * scale - mean) / std for each channel in the stated order, x a pixel in 0..255.
# Started from {_one_line(str(card.origin))}: confirm every line with the vendor.
schema_version = {SCHEMA_VERSION}

[preprocessing]
size = {list(card.size)}   # height, width of the network's input
resize = {resize}   # shorter side before the crop, or [height, width], or "none"
crop = "{card.crop}"   # {", ".join(CROPS)}
interpolation = "{card.interpolation}"   # {", ".join(INTERPOLATIONS)}
channels = "{card.channels}"   # {", ".join(ORDERS)}
scale = {card.scale!r}
mean = {list(card.mean)}
std = {list(card.std)}
gray = {list(card.gray)}   # infill, pixel units, RGB
exif_orientation = {str(card.exif_orientation).lower()}   # rotate pictures by their EXIF orientation

[classes]
{names}

[signature]   # as found; change what was guessed wrong
input = {_quoted(signature.input)}
output = {_quoted(signature.output)}
layout = "{signature.layout}"
kind = "{signature.kind}"
"""


def _one_line(text: str) -> str:
    """A name that cannot end the comment that contains it."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _quoted(text: str) -> str:
    """A TOML string, which is written as in JSON but for the character 127."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
