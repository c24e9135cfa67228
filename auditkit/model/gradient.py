"""A model that returns a classifier's scores and their gradient, checked on noise."""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, helper

from auditkit import __version__
from auditkit.arrays import Array, Weights
from auditkit.errors import BadInput, LoadFailure, ModelFailure, NoGradient, OutOfMemory, RuntimeFailure
from auditkit.graph import canonical, dequantise, edit, float_types, fused
from auditkit.graph.gradient import Facts, export, unreached
from auditkit.model import kept_checks, passes, preprocessing
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.gradient_check import Check, check, line_error
from auditkit.model.session import Session, Settings, folded, on_cpu
from auditkit.model.worker import WorkerLost

ROWS = 4  # points of a line that are run at once; a backward pass takes memory
SCHEMA_VERSION = 1
# Relative difference of scores computed in another order, or in single precision instead of half.
_SAME_SCORES = {"float16": 5e-2, "float32": 1e-3, "float64": 1e-3}
_WITHOUT_ROUNDING = 0.5  # the same, where a quantised graph is compared without its rounding
_WHOLE = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
_MOST_NUMBERS = 4096  # no operand of shape arithmetic is larger
_REPORT = "; please report the model"


@dataclass(frozen=True)
class Ready:
    """A classifier's graph in the form that is differentiated: float32 throughout, constants folded, shapes known."""

    model: onnx.ModelProto
    weights: Weights
    facts: Facts
    surrogate: bool  # the graph rounds, so the gradient is that of the graph without rounding


@dataclass(frozen=True)
class Differentiated:
    """A model in the form of gradient files, with its record."""

    model: onnx.ModelProto
    weights: Weights
    wrt: str
    operators: dict[str, int]  # of the graph that was differentiated
    nodes_before: int
    nodes_after: int
    surrogate: bool
    vendors_own: bool
    check: Check
    scores_were: str | None  # the type of the model's scores, where the gradient file's differs

    def to_json(self) -> dict[str, object]:
        """What `differentiate --json` prints."""
        facts = {name: value for name, value in vars(self).items() if name not in ("model", "weights")}
        return facts | {"check": self.check.to_json()}


def ready(classifier: OnnxClassifier, wrt: str | None = None) -> Ready:
    """The classifier's graph in the form that is differentiated."""
    signature, graph, outputs = classifier.signature, classifier.graph.graph, [classifier.signature.output]
    if wrt is not None and wrt != signature.input:
        if wrt not in edit.producers(graph):  # of the graph that the scores need
            raise BadInput(f"'{outputs[0]}' is not computed from a tensor '{wrt}'; --wrt takes a tensor of the graph.")
        outputs.append(wrt)
    if signature.input not in edit.ancestors(graph, [signature.output]):
        unreached(signature.input, [signature.output])
    dims = [signature.fixed_batch or "N", *signature.array_shape(1)[1:]]
    model = edit.with_dims(edit.with_outputs(classifier.graph, outputs), signature.input, dims)
    sizes = [2, 3] if signature.fixed_batch is None else [signature.fixed_batch]
    feeds = [{signature.input: noise(classifier, rows, seed=rows)} for rows in sizes]
    try:
        return _ready(edit.with_input_type(model, signature.input), classifier, outputs, feeds)
    except (OutOfMemory, WorkerLost):
        raise
    # What onnx's own passes raise, and what the runtime says of a graph that we changed.
    except (RuntimeError, LoadFailure, ModelFailure) as error:
        reason = " ".join(str(error).split())[:200]
        message = f"the graph cannot be made ready for a gradient ({reason})"
        raise NoGradient(message, ", or ask the vendor for another export") from None


def _ready(
    model: onnx.ModelProto, classifier: OnnxClassifier, outputs: list[str], feeds: list[dict[str, Array]]
) -> Ready:
    (image,), settings = feeds[0], classifier.settings
    fused.refuse_machine_bound(model)
    model = passes.spelled_out(model, settings)
    if any(fused.is_fused(node, edit.opset(model)) for node in model.graph.node):
        model = fused.spelled_out(model, _ranks(classifier, feeds[0][image]))
    surrogate = dequantise.rounds(model, image)
    if dequantise.is_quantised(model):
        real = dequantise.dequantised(passes.raised(model, settings), passes.infer(settings))
        model = edit.with_outputs(real, outputs)
    model, weights = float_types.in_one_float(model, classifier.weights)
    model = passes.raised(folded(model, weights, settings), settings)
    if conditions := _conditions(model, weights, feeds, settings):
        model = folded(canonical.resolved(model, conditions), weights, settings)
    facts = measured_facts(model, weights, feeds, settings)
    return Ready(canonical.with_known(model, facts.values), weights, facts, surrogate)


def _ranks(classifier: OnnxClassifier, images: Array) -> dict[str, int]:
    """Numbers of axes of all tensors of the vendor's graph, which takes images in a type of its own."""
    feeds = [{classifier.signature.input: images.astype(classifier.signature.dtype)}]
    shapes = measured_facts(classifier.graph, classifier.weights, feeds, classifier.settings).shapes
    return {name: len(shape) for name, shape in shapes.items()}


def measured_facts(
    model: onnx.ModelProto, weights: Weights, feeds: list[dict[str, Array]], settings: Settings
) -> Facts:
    """Shapes and types of all tensors, measured by running: what a file says of them is often missing or wrong.

    `feeds` are two batches of different size, or one where that is fixed. A dimension that changes follows the batch;
    whole numbers that do not depend on the image, as in the arithmetic of shapes, are kept where both runs agree.
    """
    kinds, lists = _kinds(passes.with_types(model, settings))
    tensors = [name for name in _computed(model.graph) if name not in lists]
    scales = {name for node in model.graph.node if node.op_type == "Resize" for name in node.input[1:]}
    steady = _independent(model.graph, set(feeds[0])) & ({n for n in tensors if kinds.get(n) in _WHOLE} | scales)
    # Shapes in place of tensors, so that no tensor is held longer than it is needed.
    fresh = edit.copy(model)
    builder = edit.Builder(fresh.graph)
    shape_of = {name: builder.node("Shape", [name]) for name in tensors}
    builder.into(fresh.graph)
    del fresh.graph.output[:]
    fresh.graph.output.extend(onnx.ValueInfoProto(name=name) for name in [*shape_of.values(), *sorted(steady)])
    session = Session(fresh, on_cpu(settings, arena=False), weights)
    runs = [dict(zip(session.outputs, session.run(feed), strict=True)) for feed in feeds]
    by_run = {name: [tuple(run[shape].tolist()) for run in runs] for name, shape in shape_of.items()}
    by_run |= {name: [feed[name].shape for feed in feeds] for name in feeds[0]}
    shapes = {name: _merged_shape(name, several) for name, several in by_run.items()}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    return Facts(shapes, kinds, _agreed([{name: run[name] for name in steady} for run in runs]))


def _conditions(
    model: onnx.ModelProto, weights: Weights, feeds: list[dict[str, Array]], settings: Settings
) -> dict[str, bool]:
    """Those conditions of the graph's If nodes that come out the same whatever is fed, and how."""
    names = {node.input[0] for node in model.graph.node if node.op_type == "If"}
    steady = sorted(_independent(model.graph, set(feeds[0])) & names)
    if not steady:
        return {}
    session = Session(edit.with_outputs(model, steady), on_cpu(settings, arena=False), weights)
    runs = [session.run({name: feed[name] for name in session.inputs}) for feed in feeds]
    agreed = _agreed([dict(zip(steady, run, strict=True)) for run in runs])
    return {name: bool(value) for name, value in agreed.items()}


def _kinds(model: onnx.ModelProto) -> tuple[dict[str, int], set[str]]:
    """Element types of all tensors; and what is not a tensor but a list of some, which has no shape."""
    graph = model.graph
    values = (*graph.value_info, *graph.input, *graph.output)
    kinds = {value.name: value.type.tensor_type.elem_type for value in values if value.type.tensor_type.elem_type}
    lists = {value.name for value in values if value.type.WhichOneof("value") not in (None, "tensor_type")}
    return kinds | {tensor.name: tensor.data_type for tensor in graph.initializer}, lists


def _independent(graph: onnx.GraphProto, fed: set[str]) -> set[str]:
    """Tensors that do not depend on what is fed, but for its shape."""
    nodes = (node for node in graph.node if node.op_type not in ("Shape", "Size"))
    return set(_computed(graph)) - edit.descendants(nodes, fed)


def _computed(graph: onnx.GraphProto) -> list[str]:
    return [name for name in itertools.chain.from_iterable(node.output for node in graph.node) if name]


def _merged_shape(name: str, shapes: list[tuple[int, ...]]) -> tuple[int | None, ...]:
    if len({len(shape) for shape in shapes}) > 1:
        raise NoGradient(f"the number of axes of '{name}' changes with the batch size, which gradients cannot follow")
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))


def _agreed(runs: list[dict[str, Array]]) -> dict[str, Array]:
    small = {name: value for name, value in runs[0].items() if value.size <= _MOST_NUMBERS}
    return {name: value for name, value in small.items() if all(np.array_equal(value, run[name]) for run in runs)}


def noise(classifier: OnnxClassifier, rows: int, seed: int) -> Array:
    """Pictures of noise as the network takes them, in float32."""
    card, signature = classifier.card, classifier.signature
    size = (rows, signature.height, signature.width, signature.channels)
    drawn = np.random.default_rng([20221128, seed]).integers(0, 256, size, dtype=np.uint8)
    return preprocessing.normalised(card, drawn, signature.layout, signature.dtype).astype(np.float32)


def differentiate(
    classifier: OnnxClassifier, wrt: str | None = None, gradient_output: str | None = None
) -> Differentiated:
    """The classifier with its gradient: the one that the file brings along, or else one that is made; checked."""
    image = classifier.signature.input
    target, tensors = wrt or image, export.gradient_names(classifier.file.proto, gradient_output)
    # The gradient in a file that rounds is not used: scores that move in steps cannot tell whether it is right.
    if tensors is not None and target == image and not dequantise.rounds(classifier.graph, image):
        return _vendors_own(classifier, tensors)
    base, joined, checked = trusted(classifier, wrt)
    weights, model = dict(base.weights), export.taking(joined, image, classifier.signature.element_type)
    if base.surrogate and target == image:
        model = export.beside(passes.raised(classifier.graph, classifier.settings), model, image)
        weights = {export.STAND_IN + name: array for name, array in weights.items()} | dict(classifier.weights)
    return _recorded(classifier, model, weights, base, target, checked)


def trusted(classifier: OnnxClassifier, wrt: str | None = None) -> tuple[Ready, onnx.ModelProto, Check]:
    """The graph ready to be differentiated, the same graph with its gradient, and the check of that."""
    target, checks = wrt or classifier.signature.input, classifier.gradient_checks
    base = ready(classifier, wrt)
    output, adds_in_order = classifier.signature.output, classifier.device.adds_in_order
    joined = export.with_gradient(base.model, base.facts, output, target, adds_in_order=adds_in_order)
    # A check is about rules and how they are put together: graphs with the same nodes share one, whatever the weights.
    parts = [(node.op_type, list(node.input), list(node.output)) for node in joined.graph.node]
    nodes = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    if nodes not in checks:
        key = kept_checks.check_key(classifier, joined)
        kept = kept_checks.load(key)
        checks[nodes] = kept or _checked(classifier, base, joined, target)
        if kept is None:
            kept_checks.save(key, checks[nodes])
    return base, joined, checks[nodes]


def _vendors_own(classifier: OnnxClassifier, names: tuple[str, str]) -> Differentiated:
    signature = classifier.signature
    model = export.with_standard_names(classifier.file.proto, signature.output, names)
    joined, weights = float_types.in_one_float(edit.with_input_type(model, signature.input), classifier.file.weights)
    facts = Facts({signature.input: (signature.fixed_batch, *signature.array_shape(1)[1:])}, {})
    base = Ready(classifier.graph, weights, facts, surrogate=False)
    checked = _checked(classifier, base, joined, signature.input, "the file's own gradient")
    return _recorded(classifier, model, classifier.file.weights, base, signature.input, checked, vendors_own=True)


def _checked(
    classifier: OnnxClassifier, base: Ready, joined: onnx.ModelProto, wrt: str, what: str = "the gradient"
) -> Check:
    """The check of a gradient, which has passed; raises NoGradient otherwise."""
    settings = replace(classifier.settings, precision="strict")  # TF32 is not fine enough
    session = Session(export.nudged(joined, base.facts, wrt), settings, base.weights)
    try:
        _compare_scores(classifier, session, base, wrt)
        result = check(_line_error(classifier, session, base.facts, wrt, line) for line in itertools.count())
    except (OutOfMemory, WorkerLost) as error:  # on another machine, or another time, it may do
        reason = f"{what} cannot be checked: {str(error).rstrip('.')}"
        raise RuntimeFailure(f"{reason}. Run the command again, or use --gradient differences.") from None
    except ModelFailure as error:  # not the fault of the image that is explained
        raise NoGradient(f"{what} cannot be checked on noise images: {str(error).rstrip('.')}") from None
    if not result.passed:
        raise NoGradient(
            f"{what} differs from the change of scores by {100 * result.error:.2g} % on noise images, give or take "
            f"{100 * result.doubt:.2g} %, and is not used", _REPORT
        )  # fmt: skip
    return result


def _compare_scores(classifier: OnnxClassifier, session: Session, base: Ready, wrt: str) -> None:
    """Refuse a graph whose scores differ from the vendor's; without rounding they may differ by more."""
    signature = classifier.signature
    rows = signature.fixed_batch or ROWS
    image = noise(classifier, rows, seed=0)
    nudge = np.zeros((rows, *(size or 1 for size in base.facts.shapes[wrt][1:])), np.float32)
    feeds = {signature.input: image, export.NUDGE: nudge, export.SEED: np.zeros((rows, signature.outputs), np.float32)}
    scores = session.run(feeds, [signature.output])[0].reshape(rows, -1)
    half = classifier.settings.precision == "float16"  # its graph has other weights than the reference's
    expected = (classifier if half else classifier.reference()).scores(image.astype(signature.dtype))
    same = _SAME_SCORES["float16" if half else str(expected.dtype)]
    difference = float(np.linalg.norm(scores - expected) / max(float(np.linalg.norm(expected)), 1e-6))
    if not difference <= (_WITHOUT_ROUNDING if base.surrogate else same):
        change = f"by {100 * difference:.2g} %"
        raise NoGradient(f"the graph for the gradient gives other scores than the model, {change}", _REPORT)


def _line_error(classifier: OnnxClassifier, session: Session, facts: Facts, wrt: str, line: int) -> float | None:
    """One line through one noise image; its points are the rows of batches, of the graph's own size if it has one."""
    signature = classifier.signature
    rng = np.random.default_rng([20221128, line])
    image = noise(classifier, 1, seed=line)
    seed = rng.standard_normal((1, signature.outputs)).astype(np.float32)
    shape = tuple(size or 1 for size in facts.shapes[wrt][1:])

    def run(moves: Array, outputs: list[str]) -> list[Array]:
        rows = signature.fixed_batch or len(moves)
        nudge, seeds = np.zeros((rows, *shape), np.float32), np.zeros((rows, signature.outputs), np.float32)
        nudge[: len(moves)], seeds[: len(moves)] = moves, seed
        feeds = {signature.input: image.repeat(rows, axis=0), export.SEED: seeds, export.NUDGE: nudge}
        return [array[: len(moves)] for array in session.run(feeds, outputs)]

    def at(moves: Array) -> tuple[Array, Array]:
        # Rows that depend on each other are moved singly, in a batch of rows that stay.
        portion = 1 if signature.rows == "dependent" else signature.fixed_batch or ROWS
        outputs, starts = [signature.output, export.GRADIENT], range(0, len(moves), portion)
        parts = [run(moves[start : start + portion], outputs) for start in starts]
        scores, gradients = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return scores.reshape(len(moves), -1), gradients

    start = image if wrt == signature.input else run(np.zeros((1, *shape)), [wrt])[0]
    return line_error(at, shape, float(np.linalg.norm(start)), seed, rng)


def _recorded(
    classifier: OnnxClassifier, model: onnx.ModelProto, weights: Weights, base: Ready, wrt: str,
    checked: Check, *, vendors_own: bool = False,
) -> Differentiated:  # fmt: skip
    """The model with its record, which is stored in the file's metadata."""
    signature = classifier.signature
    record = {
        "schema_version": SCHEMA_VERSION, "tool": f"auditkit {__version__}", "model_sha256": classifier.file.identity,
        "output": signature.output, "wrt": wrt, "surrogate": base.surrogate, "vendors_own": vendors_own,
        "scores": "surrogate" if base.surrogate and wrt != signature.input else "model", "check": checked.to_json(),
    }  # fmt: skip
    fresh = edit.copy(model)
    helper.set_model_props(fresh, {export.METADATA: json.dumps(record)})
    operators = dict(Counter(node.op_type for node in base.model.graph.node).most_common())
    counts = len(classifier.graph.graph.node), len(fresh.graph.node)
    before, after = (_score_type(graph, signature.output) for graph in (classifier.graph, fresh))
    changed = None if before == after else before
    return Differentiated(fresh, weights, wrt, operators, *counts, base.surrogate, vendors_own, checked, changed)


def _score_type(model: onnx.ModelProto, output: str) -> str | None:
    kind = next(value.type.tensor_type.elem_type for value in model.graph.output if value.name == output)
    return str(helper.tensor_dtype_to_np_dtype(kind)) if kind else None


def encoded(derived: Differentiated, name: str) -> dict[str, Iterable[bytes]]:
    """The content of a file of this name that any onnxruntime runs, and of the one beside it with large weights."""
    model, beside, stored, end = onnx.ModelProto(), f"{name}.data", list[Array](), 0
    model.CopyFrom(derived.model)
    for tensor in model.graph.initializer:
        values = derived.weights.get(tensor.name)
        if values is None:
            continue
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        tensor.CopyFrom(TensorProto(name=tensor.name, dims=values.shape, data_type=kind, raw_data=b""))
        external_data_helper.set_external_data(tensor, beside, end, values.nbytes)
        tensor.ClearField("raw_data")
        stored.append(values)
        end += values.nbytes
    files: dict[str, Iterable[bytes]] = {}
    if stored:
        files[beside] = (values.tobytes() for values in stored)
    return files | {name: [model.SerializeToString()]}
