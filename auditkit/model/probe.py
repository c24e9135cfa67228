"""The first load and the first runs of a model, on noise: what it truly takes and gives.

This runs in a guarded child process (`trial`); a crash of the runtime ends the child and nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from auditkit.errors import AuditError, BadInput, OutOfMemory, RuntimeFailure
from auditkit.graph import edit
from auditkit.model.inputs import ImageInput, find_image
from auditkit.model.read import OnnxFile
from auditkit.model.session import Session, Settings
from auditkit.model.signature import (
    Kind,
    Overrides,
    Signature,
    kind_by_graph,
    kind_of,
    per_image,
    score_tensors,
    zipmap_classes,
)

Array = np.ndarray[Any, Any]

# Sizes to try, likeliest first, when the file leaves height and width open.
COMMON_SIZES = (224, 32, 299, 256, 384, 64, 28, 227, 96, 112, 128, 160, 192, 240, 260, 300, 320, 380, 448, 512)
ROWS = 4  # images in a trial batch
# Rows that differ by less than this share of the largest score differ by rounding only.
CLOSE = {"float16": 5e-3, "float32": 1e-4, "float64": 1e-9}
BOX_NAMES = ("box", "bbox", "detection", "rois", "anchors")


@dataclass(frozen=True)
class Output:
    """The tensor that holds the scores."""

    name: str
    scores: Array  # of the noise images, [rows, numbers]
    guesses: tuple[str, ...] = ()


class Trial:
    """A model at one input size, its graphs run on noise."""

    def __init__(self, file: OnnxFile, image: ImageInput, height: int, width: int) -> None:
        self.file, self.image = file, image
        self.height, self.width = height, width
        self.own = image.batch or 1
        self.noise = _noise(image, max(ROWS, self.own), height, width)

    def session(self, outputs: list[str], *, freed: bool, threads: int = 2) -> Session:
        """A session of the graph as it is, or with its batch size set free; on the CPU, which every machine has."""
        model = derived(self.file.proto, self.image.name, outputs, freed=self.own if freed else None,
                        dims=self.image.dims("N", self.height, self.width), switches=self.image.switches)  # fmt: skip
        return Session(model, Settings(device="cpu", threads=threads), self.file.weights)

    def run(self, session: Session, rows: Array, output: str | None = None) -> list[Array]:
        """All outputs for those rows, or the one named."""
        return session.run({self.image.name: rows}, [output] if output else None)


def derived(
    proto: onnx.ModelProto, input_name: str, outputs: list[str], *,
    dims: list[int | str] | None = None, freed: int | None = None, switches: tuple[str, ...] = (),
) -> onnx.ModelProto:  # fmt: skip
    """The vendor's graph cut to the wanted outputs, its switches off and, when asked, its batch axis free."""
    model = edit.with_outputs(proto, outputs)
    for name in switches:
        shape = next(v.type.tensor_type.shape.dim for v in model.graph.input if v.name == name)
        model = edit.with_constant(model, name, np.zeros(len(shape), bool) if shape else np.array(False))
    if freed is not None and dims is not None:
        model = edit.with_free_batch(edit.with_dims(model, input_name, dims), input_name, freed)
    return model


def examine(file: OnnxFile, wanted: Overrides) -> Signature:
    """The signature of a model, from its graph and from runs on noise."""
    image = find_image(file.proto, wanted)
    trial, session, outputs, arrays, guesses = _first_run(file, image, wanted)
    rows = len(trial.noise) if image.batch is None else image.batch
    chosen = _choose_output(file.proto, outputs, arrays, rows, wanted)
    kind, kind_warnings = _kind(file.proto, chosen, wanted)
    batch, independent, batch_warnings = _batch(trial, session, chosen.name)
    return Signature(
        input=image.name, layout=image.layout, dtype=image.dtype, channels=image.channels,
        height=trial.height, width=trial.width, batch=batch, rows=independent,
        output=chosen.name, kind=kind, outputs=chosen.scores.shape[1],
        free_size=image.height is None or image.width is None, shape=image.shape, fixed_inputs=image.switches,
        class_names=zipmap_classes(file.proto), guesses=image.guesses + guesses + chosen.guesses,
        warnings=kind_warnings + batch_warnings,
    )  # fmt: skip


def _noise(image: ImageInput, rows: int, height: int, width: int) -> Array:
    """Noise images; the second is far stronger, so that a row that listens to its neighbours shows it."""
    rng = np.random.default_rng(20221128)
    shape = tuple(int(size) for size in image.dims(rows, height, width))
    if image.dtype == "uint8":
        return rng.integers(0, 256, shape, dtype=np.uint8)
    noise = rng.standard_normal(shape)
    noise[1:2] *= 4
    return noise.astype(image.dtype)


def _sizes(image: ImageInput, wanted: Overrides) -> Iterator[tuple[int, int]]:
    if wanted.size is not None:
        for declared, asked, axis in ((image.height, wanted.size[0], "height"), (image.width, wanted.size[1], "width")):
            if declared is not None and declared != asked:
                raise BadInput(f"{axis} {asked} was asked for, but the model's input is fixed at {declared}.")
        yield wanted.size
    elif image.height is not None or image.width is not None:
        yield image.height or image.width or 0, image.width or image.height or 0
    else:
        yield from ((size, size) for size in COMMON_SIZES)


def _first_run(
    file: OnnxFile, image: ImageInput, wanted: Overrides
) -> tuple[Trial, Session, dict[str, str], dict[str, Array], tuple[str, ...]]:
    """The first size that runs, its session, the tensors that may hold scores, and what they held."""
    outputs = dict(score_tensors(file.proto))
    if wanted.output is not None:
        outputs = {wanted.output: ""}
        if wanted.output not in edit.producers(file.proto.graph):
            raise BadInput(f"the model computes no tensor '{wanted.output}'; give --output one of its outputs.")
    if not outputs:
        raise BadInput("no output of the model is a tensor of scores; ask for an export that returns class scores.")
    first: AuditError | None = None
    for height, width in _sizes(image, wanted):
        trial = Trial(file, image, height, width)
        try:
            session = trial.session(list(outputs), freed=False)
            arrays = _try_batches(trial, session)
        except OutOfMemory:
            raise
        except RuntimeFailure as error:
            first = first or error
            if "cannot load" in str(error):
                break  # no other size will help
            continue
        said = () if wanted.size or image.height else (f"input size {height}x{width}: the file leaves it open",)
        return trial, session, outputs, dict(zip(outputs, arrays, strict=True)), said
    raise BadInput(f"{first}. Ask the vendor whether the file runs in their own onnxruntime.")


def _try_batches(trial: Trial, session: Session) -> list[Array]:
    """Outputs for a trial batch; a file that declares any batch may yet run only one image at a time."""
    if trial.image.batch is not None:
        return trial.run(session, trial.noise[: trial.image.batch])
    try:
        return trial.run(session, trial.noise)
    except OutOfMemory:
        raise
    except RuntimeFailure:
        alone = [trial.run(session, trial.noise[i : i + 1]) for i in range(len(trial.noise))]
        return [np.concatenate(parts) if parts[0].ndim else np.stack(parts) for parts in zip(*alone, strict=True)]


def _choose_output(
    proto: onnx.ModelProto, outputs: dict[str, str], arrays: dict[str, Array], rows: int, wanted: Overrides
) -> Output:
    fitting = {
        name: scores
        for name, array in arrays.items()
        if array.dtype.kind == "f" and (scores := per_image(array, rows)) is not None and scores.shape[1] > 0
    }
    if wanted.output is None:
        _refuse_detectors(proto, arrays)
    if not fitting:
        raise BadInput(_no_scores_sentence(arrays, rows))
    if wanted.classes is not None:
        fitting = {n: s for n, s in fitting.items() if max(s.shape[1], 2) == wanted.classes} or fitting
    kept = _without_forerunners(proto, fitting)
    name = kept[0]
    guesses: tuple[str, ...] = ()
    if outputs.get(name):
        guesses += (f"scores '{name}', the tensor behind a final {outputs[name]}",)
    elif len(arrays) > 1:
        others = ", ".join(f"'{other}'" for other in arrays if other != name)
        guesses += (f"scores '{name}' of several outputs (also {others})",)
    return Output(name, fitting[name], guesses)


def _without_forerunners(proto: onnx.ModelProto, fitting: dict[str, Array]) -> list[str]:
    """Candidates that are no mere step towards another; of logits and their own softmax, the logits stay."""
    kept = list(fitting)
    for later, its_scores in fitting.items():
        behind = edit.ancestors(proto.graph, [later]) - {later}
        for earlier, scores in fitting.items():
            if earlier in behind:
                same = kind_by_graph(proto, later) is not None and scores.shape == its_scores.shape
                loser = later if same else earlier
                if loser in kept and len(kept) > 1:
                    kept.remove(loser)
    return kept


def _refuse_detectors(proto: onnx.ModelProto, arrays: dict[str, Array]) -> None:
    suppression = any(node.op_type in ("NonMaxSuppression", "EfficientNMS_TRT") for node in proto.graph.node)
    named = [name for name in arrays if any(word in name.lower() for word in BOX_NAMES)]
    if suppression or named:
        sign = "a NonMaxSuppression node" if suppression else f"the output '{named[0]}'"
        raise BadInput(
            f"the model looks like an object detector ({sign}); auditkit audits classifiers, one label an image. "
            f"If one output does hold class scores, name it with --output."
        )


def _no_scores_sentence(arrays: dict[str, Array], rows: int) -> str:
    shown = ", ".join(f"'{name}' {array.dtype}{list(array.shape)}" for name, array in list(arrays.items())[:6])
    guess = "it is not a classifier"
    if any(a.ndim == 4 and a.shape[0] == rows for a in arrays.values()):
        guess = "it looks like a segmentation model or a feature extractor"
    elif any(a.ndim == 3 and a.shape[0] == rows for a in arrays.values()):
        guess = "it looks like an object detector or a sequence model"
    elif all(a.dtype.kind != "f" for a in arrays.values()):
        guess = "it returns decisions, not scores; ask the vendor for an export that returns class scores"
    return f"no output is one vector of class scores an image ({rows} images gave {shown}): {guess}."


def _kind(proto: onnx.ModelProto, chosen: Output, wanted: Overrides) -> tuple[Kind, tuple[str, ...]]:
    if not np.all(np.isfinite(chosen.scores)):
        raise BadInput(f"the scores '{chosen.name}' are NaN or infinite on noise images; the file is damaged.")
    if wanted.kind is not None:
        return wanted.kind, ()
    return kind_of(kind_by_graph(proto, chosen.name), chosen.scores)


def _batch(trial: Trial, plain: Session, output: str) -> tuple[str, str, tuple[str, ...]]:
    """Which batch sizes the graph may run at, how rows compare with rows alone, and what to warn of."""
    batch, rows, warnings = _batch_with(trial, plain, output)
    if rows == "dependent":
        # Threads split a batch at other places than an image, and where a split changes the last bit of a sum, an
        # eight-bit graph amplifies it to a whole step. One thread has no splits: what is left is true dependence.
        again = _batch_with(trial, trial.session([output], freed=False, threads=1), output, threads=1)
        if again[1] != "dependent":
            return again[0], "close", again[2]
    return batch, rows, warnings


def _batch_with(trial: Trial, plain: Session, output: str, threads: int = 2) -> tuple[str, str, tuple[str, ...]]:
    declared = trial.image.batch
    alone, steady = _reference(trial, plain, output)
    if declared is None:
        agreement = _agreement(trial, plain, output, alone)
        if agreement in ("bitwise", "close"):
            return "dynamic", agreement, ()
        if agreement == "dependent":
            said = "the result for an image depends on the others in its batch; each is run alone."
            return "fixed:1", agreement, (said,)
    elif not steady:
        said = f"the result for an image depends on the others in its batch of {declared}; each fills a batch alone."
        return f"fixed:{declared}", "dependent", (said,)
    try:
        freed = trial.session([output], freed=True, threads=threads)
    except RuntimeFailure:
        agreement = "fails"
    else:
        agreement = _agreement(trial, freed, output, alone)
    if agreement in ("bitwise", "close"):
        return "made-dynamic", agreement, ()
    said = f"the graph runs just {trial.own} image(s) at a time, which is slow; ask for a dynamic batch axis."
    return f"fixed:{trial.own}", "bitwise", (said,)


def _reference(trial: Trial, session: Session, output: str) -> tuple[Array, bool]:
    """Scores of each noise image filling a whole batch by itself, and whether neighbours leave them as they are."""
    own = trial.own
    alone = np.stack([
        trial.run(session, trial.noise[i : i + 1].repeat(own, axis=0), output)[0].reshape(own, -1)[0]
        for i in range(ROWS)
    ])  # fmt: skip
    if own == 1:
        return alone, True
    mixed = trial.run(session, trial.noise[:own], output)[0].reshape(own, -1)
    shared = min(own, ROWS)
    return alone, _compared(mixed[:shared], alone[:shared]) != "dependent"


def _agreement(trial: Trial, session: Session, output: str, alone: Array) -> str:
    try:
        together = trial.run(session, trial.noise[:ROWS], output)[0]
    except OutOfMemory:
        raise
    except RuntimeFailure:
        return "fails"
    if together.size != alone.size:
        return "fails"
    return _compared(together.reshape(alone.shape), alone)


def _compared(rows: Array, alone: Array) -> str:
    if np.array_equal(rows, alone):
        return "bitwise"
    scale = max(float(np.abs(alone.astype(np.float64)).max()), 1e-6)
    difference = float(np.abs(rows.astype(np.float64) - alone.astype(np.float64)).max())
    return "close" if difference <= CLOSE[str(alone.dtype)] * scale else "dependent"
