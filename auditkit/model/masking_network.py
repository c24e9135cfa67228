"""A masking network in an ONNX file: an image in, or an image and a label, a mask of the image out.

It must take the pictures that the classifier takes, prepared in the same way, and is examined as guardedly (`sandbox`).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx

from auditkit.arrays import Array
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.graph import edit
from auditkit.model import sandbox
from auditkit.model.inputs import ImageInput, find_image
from auditkit.model.probe import derived
from auditkit.model.read import Limits, OnnxFile
from auditkit.model.session import Session, Settings, in_batches
from auditkit.model.signature import Layout, Overrides, Signature

_LABEL_TYPES: dict[int, str] = {onnx.TensorProto.INT64: "int64", onnx.TensorProto.INT32: "int32"}
_BATCH = 16  # rows run at once where the file takes any number
_TOLERANCE = 1e-4  # relative: a mask may differ by this alone and in a batch


@dataclass(frozen=True)
class Requirements:
    """What a masking network must fit."""

    classifier: Signature
    output: str | None = None  # the masks among several outputs


@dataclass(frozen=True)
class MaskerSignature:
    """What a masking network takes and returns."""

    input: str
    layout: Layout
    dtype: str
    output: str
    maps: int  # per image: one, or one a class
    rows: int | None  # the one batch size that it runs at, None when it takes any
    switches: tuple[str, ...] = ()
    label: str | None = None  # the input that takes labels
    label_form: Literal["none", "flat", "column", "one-hot"] = "none"
    label_dtype: str = ""


class Masker:
    """A masking network, ready to run."""

    def __init__(self, file: OnnxFile, signature: MaskerSignature, classes: int, settings: Settings) -> None:
        self.signature, self.classes = signature, classes
        model = derived(file.proto, signature.input, [signature.output], switches=signature.switches)
        self.session = Session(model, settings, file.weights)

    def masks(self, inputs: Array, layout: Layout, labels: Array) -> Array:
        """Masks [N, maps, height, width] at the network's own resolution, for inputs and a label each."""
        batch, own_layout = self.signature.rows, self.signature.layout
        if layout != own_layout:
            inputs = np.ascontiguousarray(inputs.transpose((0, 2, 3, 1) if own_layout == "NHWC" else (0, 3, 1, 2)))
        rows, positions = inputs.astype(self.signature.dtype, copy=False), np.arange(len(inputs))

        def run(part: Array) -> Array:
            return self.run(rows[part], labels[part])

        if batch is not None:
            return np.concatenate([run(positions[i : i + 1].repeat(batch))[:1] for i in positions])
        return in_batches(run, positions, _BATCH, pad=self.session.device.pads_batches)[0]

    def run(self, rows: Array, labels: Array) -> Array:
        """Masks of one batch, [N, maps, height, width] in float32; any other output is refused."""
        signature, classes = self.signature, self.classes
        feeds = {signature.input: rows}
        if signature.label is not None:
            values = np.eye(classes)[labels] if signature.label_form == "one-hot" else labels
            values = values[:, None] if signature.label_form == "column" else values
            feeds[signature.label] = values.astype(signature.label_dtype)
        try:
            output = self.session.run(feeds, [signature.output])[0]
        except RuntimeFailure as error:
            raise type(error)(f"the masking network: {error}") from None
        masks = output[:, None] if output.ndim == 3 else output
        if output.ndim == 4 and signature.layout == "NHWC":
            masks = output.transpose(0, 3, 1, 2)
        if output.ndim not in (3, 4) or len(output) != len(rows) or masks.shape[1] not in (1, classes):
            expected = f"[{len(rows)}, height, width], or one map or {classes} maps (one per class) each"
            shape = list(output.shape)
            raise BadInput(f"the masking network gives {shape} for {len(rows)} pictures; expected {expected}.")
        return masks.astype(np.float32)


def open_masker(path: Path, requirements: Requirements, settings: Settings, limits: Limits) -> Masker:
    """The masking network in an ONNX file, examined in a guarded child process first."""
    outcome = sandbox.guarded(path, "masking network", requirements, limits, MaskerSignature)
    settings = replace(settings, worker=None if settings.in_process else outcome.worker)
    return Masker(outcome.reopened(path, limits), outcome.signature, requirements.classifier.classes, settings)


def examine(file: OnnxFile, requirements: Requirements) -> MaskerSignature:
    """The signature of a masking network, from its graph and from runs on noise."""
    label, classifier = _label_input(file.proto), requirements.classifier
    image = _image_input(file.proto, label, classifier)
    signature = MaskerSignature(
        image.name, image.layout, image.dtype, _output(file.proto, requirements.output), 1, image.batch, image.switches,
        *(label or (None, "none", "")),
    )  # fmt: skip
    network = Masker(file, signature, classifier.classes, Settings(device="cpu", threads=2, arena=False))
    count = image.batch or 2
    shape = tuple(int(size) for size in image.dims(count, classifier.height, classifier.width))
    noise = np.random.default_rng(20221128).standard_normal(shape)
    rows = (np.abs(noise * 16) if image.dtype == "uint8" else noise).astype(image.dtype)
    labels = np.arange(count) % classifier.classes
    masks = network.run(rows, labels)
    if not np.isfinite(masks).all():
        raise BadInput(f"the masks '{signature.output}' are NaN or infinite on noise images; the file is damaged.")
    signature = replace(signature, maps=masks.shape[1])
    if image.batch is not None:
        return signature
    alone = network.run(rows[:1], labels[:1])
    depends = np.abs(alone - masks[:1]).max() > _TOLERANCE * max(float(np.abs(alone).max()), 1e-6)
    return replace(signature, rows=1) if depends else signature


def _label_input(proto: onnx.ModelProto) -> tuple[str, str, str] | None:
    """Name, form and type of the input that takes a label, if there is one."""
    for value in edit.real_inputs(proto.graph):
        kind = value.type.tensor_type.elem_type
        axes = len(value.type.tensor_type.shape.dim)
        if kind in _LABEL_TYPES and axes in (1, 2):
            return value.name, "flat" if axes == 1 else "column", _LABEL_TYPES[kind]
        if kind == onnx.TensorProto.FLOAT and axes == 2:
            return value.name, "one-hot", "float32"
    return None


def _image_input(proto: onnx.ModelProto, label: tuple[str, str, str] | None, classifier: Signature) -> ImageInput:
    """The input that takes the image, checked against the classifier's."""
    without_label = edit.copy(proto)
    inputs = [value for value in proto.graph.input if label is None or value.name != label[0]]
    del without_label.graph.input[:]
    without_label.graph.input.extend(inputs)
    image = find_image(without_label, Overrides())
    height, width = classifier.height, classifier.width
    for what, expected, actual in (
        ("pixels", f"{image.height or height}x{image.width or width}", f"{height}x{width}"),
        ("channels", image.channels, classifier.channels),
    ):
        if expected != actual:
            reason = f"pictures of {expected} {what}, but the classifier's have {actual}"
            raise BadInput(f"the masking network takes {reason}; it must take what the classifier takes.")
    if (image.dtype == "uint8") != (classifier.dtype == "uint8"):
        reason = f"{image.dtype} and the classifier {classifier.dtype}, so one of them normalises pixels by itself"
        raise BadInput(f"the masking network takes {reason}; ask for one that takes what the classifier takes.")
    return image


def _output(proto: onnx.ModelProto, chosen: str | None) -> str:
    names = [str(value.name) for value in proto.graph.output]
    if chosen is not None:
        if chosen not in names:
            raise BadInput(f"the masking network has no output '{chosen}'; it has {', '.join(names[:6])}.")
        return chosen
    shaped = [str(v.name) for v in proto.graph.output if len(v.type.tensor_type.shape.dim) in (0, 3, 4)]
    if len(shaped) > 1 and len(masks := [name for name in shaped if "mask" in name.lower()]) == 1:
        return masks[0]
    if len(shaped) != 1:
        shapes = "[N, height, width] or [N, maps, height, width]"
        reason = f"{len(shaped)} outputs that could be masks {shapes} among {', '.join(names[:6])}"
        raise BadInput(f"the masking network has {reason}; name the one that is.")
    return shaped[0]
