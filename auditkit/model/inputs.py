"""Which input takes the image, and in which layout, as the file declares it: often wrongly, so `probe` runs it."""

import re
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph import edit
from auditkit.model.signature import Layout, Overrides

_DTYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.DOUBLE: "float64", onnx.TensorProto.UINT8: "uint8",
}  # fmt: skip
_TYPE_NAMES = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
# Names of inputs that change what a network does in training.
_SWITCH = re.compile("(?<![a-z])(is_?)?train(ing)?(?![a-z])|learning_phase|keep_?prob|drop_?(out|rate|prob)", re.I)
_NUMBERS = {*_DTYPES, onnx.TensorProto.INT32, onnx.TensorProto.INT64}  # types of a switch beside bool
_FIRST_IR_WITH_DEFAULTS = 4  # older files list every weight among the inputs
_TEXT_DTYPES = {onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.STRING}
_WEIGHT_INPUT = {"Conv": 1, "ConvInteger": 1, "FusedConv": 1, "QLinearConv": 3}
# What stands between an image and the first convolution in files that carry their own normalisation.
_LEADING = edit.PASS_THROUGH - {"Transpose", "Reshape", "Flatten"} | {
    "Sub", "Add", "Mul", "Div", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Clip",
    "BatchNormalization", "Pad", "Gather", "Split", "Concat", "Resize",
}  # fmt: skip


@dataclass(frozen=True)
class ImageInput:
    """The input that takes images, as the file declares it; None where it leaves a dimension open."""

    name: str
    layout: Layout
    dtype: str
    channels: int
    height: int | None
    width: int | None
    batch: int | None
    shape: tuple[int | str, ...] = ()
    switches: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()

    def dims(self, batch: int | str, height: int | str, width: int | str) -> list[int | str]:
        """Dimensions in the layout's order."""
        sides = [height, width]
        return [batch, self.channels, *sides] if self.layout == "NCHW" else [batch, *sides, self.channels]


def find_image(proto: onnx.ModelProto, overrides: Overrides) -> ImageInput:
    """The image input of a model; raises BadInput with what the file takes instead."""
    inputs, unused = _used_inputs(proto.graph)
    images = [v for v in inputs if v.type.tensor_type.elem_type in _DTYPES]
    candidates = [v for v in images if (dims := _dims(v)) is None or len(dims) == 4]
    if overrides.input is not None:
        candidates = [value for value in inputs if value.name == overrides.input]
        if not candidates:
            raise BadInput(f"the model uses no input '{overrides.input}'; it uses {_listed(inputs)}.")
    if not candidates:
        raise BadInput(_no_image_sentence(inputs))
    if len(candidates) > 1:
        raise BadInput(f"several inputs could be the image: {_listed(candidates)}; name one with --input.")
    chosen = candidates[0]
    switches = [v for v in inputs if v is not chosen]
    if other := [v for v in switches if not _is_switch(v)]:
        remedy = "auditkit audits classifiers that take one image tensor."
        raise BadInput(f"besides the image '{chosen.name}' the model needs {_listed(other)}; {remedy}")
    image = _described(proto.graph, chosen, overrides)
    guesses = [f"input '{v.name}' is a switch, set to {str(switched_off(v).item()).lower()}" for v in switches]
    guesses += [f"input '{value.name}' is left out, since no output depends on it" for value in unused]
    return replace(
        image, switches=tuple(v.name for v in switches), guesses=(*image.guesses, *guesses, *_kept_defaults(proto))
    )


def _used_inputs(graph: onnx.GraphProto) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """The inputs that outputs depend on, and the others; where outputs depend on none, all count as used."""
    inputs, needed = edit.real_inputs(graph), edit.ancestors(graph, [value.name for value in graph.output])
    used = [value for value in inputs if value.name in needed]
    return used or inputs, [value for value in inputs if used and value.name not in needed]


def _is_switch(value: onnx.ValueInfoProto) -> bool:
    """Whether an input is one truth value, or one number with the name of a switch."""
    kind = value.type.tensor_type.elem_type
    named = kind in _NUMBERS and _SWITCH.search(value.name) is not None
    return _dims(value) in ([], [1]) and (kind == onnx.TensorProto.BOOL or named)


def switched_off(value: onnx.ValueInfoProto) -> Array:
    """The value of a switch outside training: 1 for a share that is kept, else 0 or false."""
    tensor = value.type.tensor_type
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return np.full([1] * len(tensor.shape.dim), "keep" in value.name.lower(), kind)


def _kept_defaults(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Sentences about switches that have a value in the file, which is kept."""
    if proto.ir_version < _FIRST_IR_WITH_DEFAULTS:
        return ()
    defaults, sentences = {tensor.name: tensor for tensor in proto.graph.initializer}, []
    for switch in [value for value in proto.graph.input if value.name in defaults and _is_switch(value)]:
        try:
            value = numpy_helper.to_array(defaults[switch.name]).item()
        except (ValueError, TypeError):  # a damaged tensor; its run will tell
            continue
        advice = "" if value == switched_off(switch).item() else ", a value for training: ask for an evaluation export"
        sentences.append(f"input '{switch.name}' keeps the file's value {str(value).lower()}{advice}")
    return tuple(sentences)


def _dims(value: onnx.ValueInfoProto) -> list[int | None] | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in tensor.shape.dim]


def _shown_dims(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in dims)


def _listed(values: list[onnx.ValueInfoProto]) -> str:
    names = [
        f"'{v.name}' {_TYPE_NAMES.get(v.type.tensor_type.elem_type, 'of an unknown type ')}"
        f"[{','.join(map(str, _shown_dims(v)))}]"
        for v in values[:6]
    ]
    return ", ".join(names) + (f" and {len(values) - 6} more" if len(values) > 6 else "")


def _no_image_sentence(inputs: list[onnx.ValueInfoProto]) -> str:
    if not inputs:
        return "the model takes no input at all; it is not a classifier."
    if any(v.type.tensor_type.elem_type in _TEXT_DTYPES and len(_dims(v) or []) != 4 for v in inputs):
        return f"the model takes {_listed(inputs)}: tokens or table rows; auditkit audits image classifiers."
    remedy = "Ask the vendor for an export with an image input [N,3,H,W] or [N,H,W,3]."
    images = "a batch of images (4 dimensions, float32, float16, float64 or uint8)"
    return f"no input looks like {images}: the model takes {_listed(inputs)}. {remedy}"


def _described(graph: onnx.GraphProto, value: onnx.ValueInfoProto, overrides: Overrides) -> ImageInput:
    if value.type.tensor_type.elem_type not in _DTYPES or len(_dims(value) or [0] * 4) != 4:
        raise BadInput(f"input {_listed([value])} is not a batch of images in float32, float16, float64 or uint8.")
    dims = _dims(value) or [None] * 4
    layout, channels, guesses = _layout(dims, _layout_hint(graph, value.name), overrides.layout)
    height, width = (dims[2], dims[3]) if layout == "NCHW" else (dims[1], dims[2])
    if channels not in (1, 3):
        remedy = "auditkit reads pictures of 3 or 1. If the layout is guessed wrong, give --layout NCHW or NHWC."
        raise BadInput(f"input '{value.name}' {list(_shown_dims(value))} takes {channels} channels; {remedy}")
    return ImageInput(
        name=value.name, layout=layout, dtype=_DTYPES[value.type.tensor_type.elem_type], channels=channels,
        height=height, width=width, batch=dims[0], shape=_shown_dims(value), guesses=guesses,
    )  # fmt: skip


def _layout(
    dims: list[int | None], hint: tuple[Layout, int] | None, stated: Layout | None
) -> tuple[Layout, int, tuple[str, ...]]:
    first, last = dims[1] in (1, 3), dims[3] in (1, 3)
    if stated is not None:
        declared = dims[1] if stated == "NCHW" else dims[3]
        return stated, declared or (hint[1] if hint and hint[0] == stated else 3), ()
    if first != last:
        return ("NCHW", dims[1] or 3, ()) if first else ("NHWC", dims[3] or 3, ())
    if hint is not None:
        return *hint, (f"layout {hint[0]} with {hint[1]} channels, from the first convolution",)
    if first and dims[1] == dims[2]:
        return "NHWC", dims[3] or 3, ("layout NHWC",)
    if dims[1] is not None and dims[3] is not None and not first:
        return "NCHW", dims[1], ()
    return "NCHW", dims[1] or 3, ("layout NCHW",)


def _layout_hint(graph: onnx.GraphProto, name: str) -> tuple[Layout, int] | None:
    """Layout and channels as the first convolution behind the image shows them."""
    weights = {t.name: tuple(t.dims) for t in graph.initializer}
    weights |= {n.output[0]: tuple(n.attribute[0].t.dims) for n in graph.node if edit.is_tensor_constant(n)}
    for cast in graph.node:  # weights stored in another type are cast, dequantised or constant
        if cast.op_type in ("Cast", "DequantizeLinear") and cast.input and cast.input[0] in weights:
            weights[cast.output[0]] = weights[cast.input[0]]
    layout: Layout = "NCHW"
    reached = {name}
    for node in graph.node:
        if not reached.intersection(node.input):
            continue
        if node.op_type == "Transpose":
            perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
            if perm == [0, 3, 1, 2]:
                layout = "NHWC"
            reached.update(node.output)
        elif node.op_type in _WEIGHT_INPUT and len(weights.get(node.input[_WEIGHT_INPUT[node.op_type]], ())) == 4:
            group = next((a.i for a in node.attribute if a.name == "group"), 1)
            return layout, weights[node.input[_WEIGHT_INPUT[node.op_type]]][1] * group
        elif node.op_type in _LEADING:
            reached.update(node.output)
    return None
