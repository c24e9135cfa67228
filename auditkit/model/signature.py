"""What a classifier takes and gives: which of its outputs holds the scores, and how these are to be read."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np
import onnx

from auditkit.arrays import Array
from auditkit.errors import BadInput, unknown
from auditkit.graph import edit

Layout = Literal["NCHW", "NHWC"]
Kind = Literal["logits", "probabilities", "log-probabilities", "sigmoid"]
Agreement = Literal["bitwise", "close", "dependent"]

_POST_PROCESSING = ("ZipMap", "ArgMax", "TopK")
_QUANTISATION = frozenset({"QuantizeLinear", "DequantizeLinear"})
_KIND_OF_LAST = {
    "Softmax": "probabilities", "QLinearSoftmax": "probabilities", "LogSoftmax": "log-probabilities",
    "Sigmoid": "sigmoid", "QLinearSigmoid": "sigmoid",
}  # fmt: skip
_LAST_STEPS = {"probabilities": "softmax", "log-probabilities": "log-softmax", "sigmoid": "sigmoid"}  # by kind
# What these give is not confined to [0, 1], even where on a few noise images it happens to lie there; nor is it after
# averages, a bias or a temperature.
_UNBOUNDED = frozenset({
    "Gemm", "MatMul", "Conv", "FusedGemm", "FusedMatMul", "FusedConv", "MatMulInteger", "ConvInteger", "QGemm",
    "QLinearMatMul", "QLinearConv", "Relu",
})  # fmt: skip
_LINEAR = frozenset({"GlobalAveragePool", "AveragePool", "ReduceMean", "Add", "Sub", "Mul", "Div"})
_PLANE_AXES = 3  # axes of an output that may yet be a vector an image, or the rows of a detector or of a sequence model
_FEATURE_NAMES = ("feature", "embed", "hidden", "pooled")
_BOX_NAMES = ("box", "bbox", "detection", "rois", "anchors")


@dataclass(frozen=True)
class Overrides:
    """Facts that the auditor states; they replace guesses."""

    input: str | None = None
    output: str | None = None
    layout: Layout | None = None
    kind: Kind | None = None
    size: tuple[int, int] | None = None  # height, width
    classes: int | None = None
    gradient_output: str | None = None  # of a file that contains its gradient under another name

    def __post_init__(self) -> None:
        for name, value, allowed in (("layout", self.layout, get_args(Layout)), ("kind", self.kind, get_args(Kind))):
            if value is not None and value not in allowed:
                raise BadInput(unknown(name, value, allowed))


@dataclass(frozen=True)
class Signature:
    """What a classifier takes and returns, and which of these facts were guessed."""

    input: str
    layout: Layout
    dtype: str
    channels: int
    height: int
    width: int
    fixed_batch: int | None  # the one batch size that the graph runs at; None: any
    rows: Agreement  # how a row compares with the same row alone
    output: str
    kind: Kind
    outputs: int  # numbers per image; one sigmoid is one number and two classes
    freed_batch: int | None = None  # the batch size that the file declares, where its graph can be freed from it
    free_size: bool = False
    guessed_size: bool = False  # nobody stated the size that the file leaves open
    shape: tuple[int | str, ...] = ()  # as the file declares it
    fixed_inputs: tuple[str, ...] = ()  # switches turned off
    class_names: tuple[str, ...] = ()  # where the file itself carries them
    guesses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        """Number of labels."""
        return max(self.outputs, 2)

    @property
    def batch(self) -> str:
        """The batch sizes that the graph runs at, in the words of reports."""
        if self.fixed_batch is not None:
            return f"fixed:{self.fixed_batch}"
        return "dynamic" if self.freed_batch is None else "made-dynamic"

    @property
    def element_type(self) -> int:
        """The input's type, by ONNX's number."""
        return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype)))

    def array_shape(self, rows: int) -> tuple[int, int, int, int]:
        """Shape of an input array for that many images."""
        if self.layout == "NCHW":
            return rows, self.channels, self.height, self.width
        return rows, self.height, self.width, self.channels


def score_tensors(proto: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    """Tensors that may hold the scores: outputs, and inputs of a final ZipMap or ArgMax, whose name comes second."""
    made_by = edit.producers(proto.graph)
    seen: set[str] = set()
    for value in proto.graph.output:
        name, via = value.name, ""
        node = made_by.get(name)
        for _ in proto.graph.node:  # not `while`: a damaged graph may run in a circle
            if node is None or node.op_type not in (*_POST_PROCESSING, *edit.PASS_THROUGH):
                break
            if node.op_type in _POST_PROCESSING and node.input:
                name, via = node.input[0], node.op_type
            node = made_by.get(node.input[0]) if node.input else None
        # Tensors of text crash the runtime's bindings (1.31), and hold no scores anyway.
        is_tensor = value.type.WhichOneof("value") in ("tensor_type", None)
        is_tensor = is_tensor and value.type.tensor_type.elem_type != onnx.TensorProto.STRING
        if (via or is_tensor) and name not in seen:
            seen.add(name)
            yield name, via


def zipmap_classes(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Class names that a ZipMap in the file carries."""
    attributes = itertools.chain.from_iterable(node.attribute for node in proto.graph.node if node.op_type == "ZipMap")
    labels = next((attribute.strings for attribute in attributes if attribute.name == "classlabels_strings"), ())
    return tuple(text.decode(errors="replace") for text in labels)


def per_image(scores: Array, rows: int) -> Array | None:
    """The scores as [rows, numbers] when they are one vector (or one number) an image, else None."""
    if rows == 1 and scores.ndim == 1:
        return scores.reshape(1, -1)
    if scores.ndim == 0 or scores.shape[0] != rows or sum(size != 1 for size in scores.shape[1:]) > 1:
        return None
    return scores.reshape(rows, -1)


def kind_by_graph(proto: onnx.ModelProto, output: str) -> str | None:
    """The kind of scores that the last operator implies; None when it implies none."""
    made_by = edit.producers(proto.graph)
    node = made_by.get(output)
    for _ in proto.graph.node:  # a damaged graph may run in a circle
        if node is None or not node.input or node.op_type not in edit.PASS_THROUGH | _QUANTISATION:
            break
        node = made_by.get(node.input[0])
    if node is None:
        return None
    before = made_by.get(node.input[0]) if node.input else None
    if node.op_type == "Log" and before is not None and before.op_type == "Softmax":
        return "log-probabilities"
    return _KIND_OF_LAST.get(node.op_type, "logits" if _unbounded(made_by, node) else None)


def _unbounded(made_by: dict[str, onnx.NodeProto], last: onnx.NodeProto) -> bool:
    """Whether a matrix product reaches a node through linear steps only."""
    waiting, seen = [last], set[str]()
    while waiting:
        node = waiting.pop()
        if node.op_type in _UNBOUNDED:
            return True
        if node.op_type not in _LINEAR | edit.PASS_THROUGH | _QUANTISATION:
            continue
        for name in node.input[: 2 if node.op_type in ("Add", "Sub", "Mul") else 1]:
            if name in made_by and name not in seen:
                seen.add(name)
                waiting.append(made_by[name])
    return False


def kind_by_values(scores: Array, tolerance: float = 1e-3) -> Kind:
    """The kind of scores that the values for a few noise images, [rows, numbers], imply."""
    values = scores.astype(np.float64)
    if values.shape[1] == 1:
        return "sigmoid" if values.min() >= 0 and values.max() <= 1 else "logits"
    if values.min() >= -1e-6 and np.all(np.abs(values.sum(axis=1) - 1) <= tolerance):
        return "probabilities"
    if values.max() <= 1e-6 and np.all(np.abs(np.exp(values).sum(axis=1) - 1) <= tolerance):
        return "log-probabilities"
    return "logits"


def kind_of(by_graph: str | None, scores: Array) -> tuple[Kind, tuple[str, ...]]:
    """The kind of the scores, and a warning when graph and numbers disagree."""
    by_values = kind_by_values(scores)
    if by_graph == by_values:
        return by_values, ()
    if by_graph == "logits":
        return "logits" if scores.shape[1] == 1 else by_values, ()
    if by_graph == "sigmoid" and by_values != "probabilities":
        raise multi_label(f"ends in {scores.shape[1]} independent sigmoids")
    if by_graph in (None, "sigmoid"):
        if unit_rows(scores):
            remedy = "ask for an export with the classifying head, or give --kind logits if they are class scores."
            raise BadInput(f"each image gives {scores.shape[1]} numbers of length 1, like an embedding; {remedy}")
        if by_values == "logits" and scores.min() >= 0 and scores.max() <= 1:
            raise multi_label(f"gives {scores.shape[1]} numbers in 0..1 that are not a distribution, like sigmoids")
        return by_values, ()
    # Eight-bit or half-precision probabilities miss a sum of 1 by more than float32 ones do.
    if kind_by_values(scores, tolerance=0.1) == by_graph:
        return kind_by_values(scores, tolerance=0.1), ()
    warning = f"the graph ends like {by_graph}, but on noise the scores look like {by_values}, which is assumed."
    return by_values, (warning,)


def check_kind(kind: Kind, by_graph: str | None, output: str, scores: Array) -> None:
    """Refuse scores that are said to be logits where the graph ends in a sigmoid or a softmax, and they look it."""
    looks_it = by_graph == "sigmoid" or kind_by_values(scores, tolerance=0.1) == by_graph
    if kind == "logits" and by_graph in _LAST_STEPS and looks_it:
        reason = f"kind 'logits' was given, but the scores '{output}' come out of a {_LAST_STEPS[by_graph]}"
        raise BadInput(f"{reason}; leave the kind out, or name the tensor before it with --output.")


def multi_label(sign: str) -> BadInput:
    """The refusal of a model whose labels do not exclude each other."""
    reason = "a multi-label model, for which soundness is not defined. auditkit audits models that choose one label"
    return BadInput(f"the model {sign}: {reason}; --kind overrides a wrong guess, --output names other scores.")


def unit_rows(scores: Array) -> bool:
    """Whether each row has length 1, as embeddings have; a softmax that is sure of itself has that too."""
    lengths = np.linalg.norm(scores.astype(np.float64), axis=1)
    return bool(scores.shape[1] > 1 and np.all(np.abs(lengths - 1) <= 1e-3)) and kind_by_values(scores) == "logits"


def to_probabilities(scores: Array, kind: Kind) -> Array:
    """Probabilities [rows, classes] in float64; one number an image becomes two labels, (1-p, p)."""
    values = scores.astype(np.float64)
    if values.shape[1] == 1:
        positive = values
        if kind == "logits":
            positive = np.exp(-np.logaddexp(0, -values))  # the logistic function, without overflow
        elif kind == "log-probabilities":
            positive = np.exp(values)
        return np.concatenate([1 - positive, positive], axis=1)
    if kind == "logits":
        values = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(values / values.sum(axis=1, keepdims=True))
    return np.exp(values) if kind == "log-probabilities" else values


def choose_output(
    proto: onnx.ModelProto, outputs: dict[str, str], arrays: dict[str, Array], rows: int, overrides: Overrides
) -> tuple[str, Array, tuple[str, ...]]:
    """The tensor with one vector of scores per image, these scores [rows, numbers], and what was guessed."""
    fitting = {
        name: scores
        for name, array in arrays.items()
        if array.dtype.kind == "f" and (scores := per_image(array, rows)) is not None and scores.shape[1] > 0
    }
    if overrides.output is None:
        _refuse_detectors(proto, [name for name in arrays if name not in fitting])
    if not fitting:
        raise BadInput(_no_scores_sentence(arrays, rows))
    if overrides.classes is not None:
        fitting = {n: s for n, s in fitting.items() if max(s.shape[1], 2) == overrides.classes} or fitting
    if overrides.kind is None:
        _refuse_sigmoids(proto, fitting)
    name = _last_of(proto, fitting, _without_forerunners(proto, fitting))
    if outputs.get(name):
        return name, fitting[name], (f"scores '{name}', the tensor behind a final {outputs[name]}",)
    rest = ", ".join(f"'{other}'" for other in arrays if other != name)
    return name, fitting[name], (f"scores '{name}' of several outputs (also {rest})",) if rest else ()


def _refuse_sigmoids(proto: onnx.ModelProto, fitting: dict[str, Array]) -> None:
    """Refuse several sigmoids that nothing else is computed from, whichever scores accompany them."""
    behind = {name: edit.ancestors(proto.graph, [name]) - {name} for name in fitting}
    for name, scores in fitting.items():
        final = not any(name in ancestors for ancestors in behind.values())
        if final and scores.shape[1] > 1 and len(fitting) > 1 and kind_by_graph(proto, name) == "sigmoid":
            raise multi_label(f"gives {scores.shape[1]} independent sigmoids ('{name}')")


def _last_of(proto: onnx.ModelProto, fitting: dict[str, Array], kept: list[str]) -> str:
    """The candidate computed last: an auxiliary head sits lower. Of different numbers of classes none is chosen."""
    kept = [name for name in kept if not unit_rows(fitting[name])] or kept
    kept = [name for name in kept if not any(word in name.lower() for word in _FEATURE_NAMES)] or kept
    if len({fitting[name].shape[1] for name in kept}) > 1:
        candidates = ", ".join(f"'{name}' [{len(fitting[name])}, {fitting[name].shape[1]}]" for name in kept[:6])
        raise BadInput(f"several outputs could be the class scores: {candidates}; name one with --output.")
    return max(kept, key=lambda name: len(edit.ancestors(proto.graph, [name])))


def _without_forerunners(proto: onnx.ModelProto, fitting: dict[str, Array]) -> list[str]:
    """Candidates that are not just a step towards another; of logits and their own softmax, the logits stay."""
    kept = list(fitting)
    for later, its_scores in fitting.items():
        behind = edit.ancestors(proto.graph, [later]) - {later}
        for earlier, scores in fitting.items():
            if earlier in behind:
                loser = later if _only_softmax_between(scores, its_scores, kind_by_graph(proto, later)) else earlier
                if loser in kept and len(kept) > 1:
                    kept.remove(loser)
    return kept


def _only_softmax_between(scores: Array, its_scores: Array, kind: str | None) -> bool:
    """Whether the later scores say just what the earlier say; with a temperature between them they do not."""
    if kind in (None, "logits") or scores.shape != its_scores.shape:
        return False
    later = to_probabilities(its_scores, cast(Kind, kind))
    return bool(np.allclose(to_probabilities(scores, "logits"), later, atol=1e-2))


def _refuse_detectors(proto: onnx.ModelProto, outputs: list[str]) -> None:
    suppression = any(node.op_type in ("NonMaxSuppression", "EfficientNMS_TRT") for node in proto.graph.node)
    named = [name for name in outputs if any(word in name.lower() for word in _BOX_NAMES)]
    if suppression or named:
        sign = "a NonMaxSuppression node" if suppression else f"the output '{named[0]}'"
        remedy = "auditkit audits classifiers. If one output does hold class scores, name it with --output."
        raise BadInput(f"the model looks like an object detector ({sign}); {remedy}")


def refuse_pictures(proto: onnx.ModelProto, outputs: list[str], input_name: str, dims: list[int | str]) -> None:
    """Refuse a model whose outputs are all pictures by their shapes, which may take long to run."""
    declared = {value.name: edit.shape(value.type.tensor_type) for value in proto.graph.output}
    shapes = [declared.get(name) for name in outputs]
    if any(shape is not None and len(shape) <= _PLANE_AXES for shape in shapes):
        return
    if not all(map(_is_picture, shapes)):
        try:
            sized = edit.with_dims(edit.with_outputs(edit.with_open_dims(proto), outputs), input_name, dims)
            types = edit.inferred_types(sized)
        except (ValueError, RuntimeError, LookupError, TypeError):  # a damaged graph; its run will tell
            return
        shapes = [edit.shape(types[name]) if name in types else None for name in outputs]
    if all(map(_is_picture, shapes)):
        sizes = ", ".join(f"'{name}' {list(shape or ())}" for name, shape in zip(outputs, shapes, strict=True))
        guess = "it looks like a segmentation model or a feature extractor"
        raise BadInput(f"no output is one vector of class scores per image ({sizes[:200]}): {guess}.")


def _is_picture(shape: Sequence[int | None] | None) -> bool:
    """Whether an output holds more than one vector of numbers an image, whatever its open dimensions are."""
    return shape is not None and len(shape) > _PLANE_AXES and sum(size not in (1, None) for size in shape[1:]) > 1


def _no_scores_sentence(arrays: dict[str, Array], rows: int) -> str:
    outputs = ", ".join(f"'{name}' {array.dtype}{list(array.shape)}" for name, array in list(arrays.items())[:6])
    guess = "it is not a classifier"
    if any(a.ndim == 4 and a.shape[0] == rows for a in arrays.values()):
        guess = "it looks like a segmentation model or a feature extractor"
    elif any(a.ndim == 3 and a.shape[0] == rows for a in arrays.values()):
        guess = "it looks like an object detector or a sequence model"
    elif all(a.dtype.kind != "f" for a in arrays.values()):
        guess = "it returns decisions, not scores; ask the vendor for an export that returns class scores"
    return f"no output is one vector of class scores per image ({rows} images gave {outputs}): {guess}."
