"""The first load and runs of a model, on noise and in a child process (`sandbox`): what it really takes and returns."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx

from auditkit.arrays import Array
from auditkit.errors import BadInput, LoadFailure, OutOfMemory, RuntimeFailure
from auditkit.graph import canonical, edit
from auditkit.graph.gradient import export
from auditkit.model import signature as signatures
from auditkit.model.inputs import ImageInput, find_image, switched_off
from auditkit.model.read import OnnxFile
from auditkit.model.session import Session, Settings
from auditkit.model.signature import Agreement, Kind, Overrides, Signature

# Sizes to try, likeliest first, when the file leaves height and width open.
_COMMON_SIZES = (224, 32, 299, 256, 384, 64, 28, 227, 96, 112, 128, 160, 192, 240, 260, 300, 320, 380, 448, 512)
ROWS = 4  # images in a trial batch
_PERCENT_OFF = 0.1  # that scores in percent may miss a sum of 100 by
# Rows that differ by less than this share of the largest score differ by rounding only.
_CLOSE = {"float16": 5e-3, "float32": 1e-4, "float64": 1e-9}


class Trial:
    """A model at one input size, its graphs run on noise."""

    def __init__(self, file: OnnxFile, image: ImageInput, height: int, width: int) -> None:
        self.file, self.image, self.height, self.width = file, image, height, width
        self.batch = image.batch or 1
        self.noise = _noise(image, max(ROWS, self.batch), height, width)

    def session(self, outputs: list[str], *, freed: bool, threads: int = 2) -> Session:
        """A session of the graph as it is, or with its batch size set free; on the CPU, which every machine has."""
        image, dims = self.image, self.image.dims("N", self.height, self.width)
        freed_batch = self.batch if freed else None
        model = derived(self.file.proto, image.name, outputs, dims=dims, freed=freed_batch, switches=image.switches)
        # An arena grows by doubling and would run into the limit of memory at half of it.
        return Session(model, Settings(device="cpu", threads=threads, arena=False), self.file.weights)

    def scores(self, session: Session, rows: Array, output: str) -> Array:
        """One output for those rows."""
        return session.run({self.image.name: rows}, [output])[0]


def derived(
    proto: onnx.ModelProto, input_name: str, outputs: list[str], *,
    dims: list[int | str] | None = None, freed: int | None = None, switches: tuple[str, ...] = (),
    infer: edit.Infer = edit.inferred_types,
) -> onnx.ModelProto:  # fmt: skip
    """The vendor's graph cut to the wanted outputs, its switches off and, when asked, its batch axis free."""
    model = edit.without_unread(edit.with_outputs(edit.with_open_dims(proto), outputs), kept=input_name)
    for switch in [value for value in model.graph.input if value.name in switches]:
        model = edit.with_constant(model, switch.name, switched_off(switch))
    if freed is not None and dims is not None:
        model = canonical.with_free_batch(edit.with_dims(model, input_name, dims), input_name, freed, infer)
    return model


def examine(file: OnnxFile, overrides: Overrides) -> Signature:
    """The signature of a model, from its graph and from runs on noise."""
    file = replace(file, proto=export.without_gradient(file.proto, overrides.gradient_output))
    image = find_image(file.proto, overrides)
    trial, session, outputs, arrays, guesses = _first_run(file, image, overrides)
    rows = len(trial.noise) if image.batch is None else image.batch
    output, scores, score_guesses = signatures.choose_output(file.proto, outputs, arrays, rows, overrides)
    if overrides.kind is None and _is_percent(scores):
        output, scores, score_guesses = _behind_percent(file.proto, output, scores)
        session = trial.session([output], freed=False)
    kind, kind_warnings = _kind(file.proto, output, scores, overrides)
    guesses = image.guesses + guesses + score_guesses
    if scores.shape[1] == 1:
        meaning = "logit" if kind == "logits" else "probability"
        guesses += (f"'{output}' is one number per image, read as the {meaning} of the second of two classes",)
    batching = _batching(trial, session, output)
    return Signature(
        input=image.name, layout=image.layout, dtype=image.dtype, channels=image.channels, height=trial.height,
        width=trial.width, fixed_batch=batching.fixed, rows=batching.rows, freed_batch=batching.freed,
        output=output, kind=kind, outputs=scores.shape[1], free_size=image.height is None or image.width is None,
        guessed_size=overrides.size is None and None in (image.height, image.width),
        shape=image.shape, fixed_inputs=image.switches, class_names=signatures.zipmap_classes(file.proto),
        guesses=guesses, warnings=kind_warnings + batching.warnings,
    )  # fmt: skip


def _noise(image: ImageInput, rows: int, height: int, width: int) -> Array:
    """Noise images. The second is far stronger (in bytes: weaker), which shows rows that depend on their neighbours."""
    rng = np.random.default_rng(20221128)
    shape = tuple(int(size) for size in image.dims(rows, height, width))
    if image.dtype == "uint8":
        pixels = rng.integers(0, 256, shape, dtype=np.uint8)
        pixels[1:2] //= 4
        return pixels
    noise = rng.standard_normal(shape)
    noise[1:2] *= 4
    return noise.astype(image.dtype)


def _sizes(image: ImageInput, overrides: Overrides) -> Iterator[tuple[int, int]]:
    if overrides.size is not None:
        for axis, declared, side in zip(("height", "width"), (image.height, image.width), overrides.size, strict=True):
            if declared is not None and declared != side:
                raise BadInput(f"{axis} {side} was asked for, but the model's input is fixed at {declared}.")
        yield overrides.size
    elif image.height is not None or image.width is not None:
        yield image.height or image.width or 0, image.width or image.height or 0
    else:
        yield from ((size, size) for size in _COMMON_SIZES)


def _first_run(
    file: OnnxFile, image: ImageInput, overrides: Overrides
) -> tuple[Trial, Session, dict[str, str], dict[str, Array], tuple[str, ...]]:
    """The first size that runs, its session, the tensors that may hold scores, and what they held."""
    outputs = dict(signatures.score_tensors(file.proto))
    if overrides.output is not None:
        outputs = {overrides.output: ""}
        if overrides.output not in edit.producers(file.proto.graph):
            raise BadInput(f"the model computes no tensor '{overrides.output}'; give --output one of its outputs.")
    if not outputs:
        raise BadInput("no output of the model is a tensor of scores; ask for an export that returns class scores.")
    first: RuntimeFailure | None = None
    for height, width in _sizes(image, overrides):
        if first is None:
            dims = image.dims(image.batch or ROWS, height, width)
            signatures.refuse_pictures(file.proto, list(outputs), image.name, dims)
        trial = Trial(file, image, height, width)
        try:
            session = trial.session(list(outputs), freed=False)
            arrays = _try_batches(trial, session)
        except OutOfMemory:
            raise
        except RuntimeFailure as error:
            first = first or error
            if isinstance(error, LoadFailure):
                break  # no other size will help
            continue
        open_size = f"input size {height}x{width}: the file leaves it open; --size sets another"
        guess = (open_size,) if overrides.size is None and None in (image.height, image.width) else ()
        return trial, session, outputs, dict(zip(outputs, arrays, strict=True)), guess
    if overrides.size is None and image.height is None and image.width is None and not isinstance(first, LoadFailure):
        reason = f"leaves its input size open and runs at none of {len(_COMMON_SIZES)} common ones"
        raise BadInput(f"the file {reason}; give it with --size. At {_COMMON_SIZES[0]}x{_COMMON_SIZES[0]}: {first}.")
    raise BadInput(f"{first}. Ask the vendor whether the file runs in their own onnxruntime.")


def _try_batches(trial: Trial, session: Session) -> list[Array]:
    """Outputs for a trial batch; a file that declares any batch may yet run only one image at a time."""
    if trial.image.batch is not None:
        return session.run({trial.image.name: trial.noise[: trial.image.batch]})
    try:
        return session.run({trial.image.name: trial.noise})
    except OutOfMemory:
        raise
    except RuntimeFailure:
        alone = [session.run({trial.image.name: row[None]}) for row in trial.noise]
        return [np.concatenate(parts) if parts[0].ndim else np.stack(parts) for parts in zip(*alone, strict=True)]


def _kind(proto: onnx.ModelProto, output: str, scores: Array, overrides: Overrides) -> tuple[Kind, tuple[str, ...]]:
    if not np.all(np.isfinite(scores)):
        raise BadInput(f"the scores '{output}' are NaN or infinite on noise images; the file is damaged.")
    by_graph = signatures.kind_by_graph(proto, output)
    if overrides.kind is not None:
        signatures.check_kind(overrides.kind, by_graph, output, scores)
        return overrides.kind, ()
    if by_graph == "probabilities" and np.all(scores == 1):
        raise BadInput(_always_sure(output))
    return signatures.kind_of(by_graph, scores)


def _is_percent(scores: Array) -> bool:
    """Whether each row is a distribution in percent."""
    return bool(scores.shape[1] > 1 and scores.min() >= 0 and np.all(np.abs(scores.sum(axis=1) - 100) <= _PERCENT_OFF))


def _behind_percent(proto: onnx.ModelProto, output: str, scores: Array) -> tuple[str, Array, tuple[str, ...]]:
    """The tensor of probabilities that scores in percent are computed from, these, and what was guessed."""
    node = edit.producers(proto.graph).get(output)
    for name in node.input if node is not None else ():
        if signatures.kind_by_graph(proto, name) == "probabilities":
            return name, scores / 100, (f"scores '{name}', the probabilities behind the percent in '{output}'",)
    remedy = "give --output the probabilities or logits before them, or --kind logits if they are not probabilities."
    raise BadInput(f"the scores '{output}' of each image sum to 100, like percent; {remedy}")


def _always_sure(name: str) -> str:
    remedy = "ask for an export that returns class scores, or say what they are with --kind."
    return f"'{name}' is 1 for every class of every noise image, as a softmax over the wrong axis is; {remedy}"


@dataclass(frozen=True)
class Batching:
    """Which batch sizes a graph runs at, and how its rows compare with rows alone."""

    fixed: int | None  # the only batch size; None: any
    rows: Agreement
    freed: int | None = None  # the declared batch size that the graph was freed from
    warnings: tuple[str, ...] = ()


def _batching(trial: Trial, plain: Session, output: str) -> Batching:
    """The batch sizes of a graph, tried with one thread too where rows seem to depend on each other."""
    batching = _batching_with(trial, plain, output)
    if batching.rows == "dependent":
        # Threads split a batch at other places than an image, and where a split changes the last bit of a sum, an
        # eight-bit graph amplifies it to a whole step. One thread has no splits: what is left is true dependence.
        again = _batching_with(trial, trial.session([output], freed=False, threads=1), output, threads=1)
        if again.rows != "dependent":
            return replace(again, rows="close")
    return batching


def _batching_with(trial: Trial, plain: Session, output: str, threads: int = 2) -> Batching:
    declared = trial.image.batch
    alone = _alone(trial, plain, output)
    # Every noise image is run again: with few features, dropout may give the same scores twice by chance.
    if _compared(_alone(trial, plain, output), alone) == "dependent":
        raise BadInput(
            "the same image gives different scores in every run: the file draws random numbers or was exported in "
            "training mode (Dropout, BatchNormalization). Ask for an export in evaluation mode."
        )
    if declared is None:
        agreement = _agreement(trial, plain, output, alone)
        if agreement in ("bitwise", "close"):
            return Batching(None, agreement)
        if agreement == "dependent":
            if np.all(alone == 1):
                raise BadInput(_always_sure(output))
            warning = "the result for an image depends on the others in its batch; each is run alone."
            return Batching(1, agreement, warnings=(warning,))
    elif declared > 1:
        mixed = trial.scores(plain, trial.noise[:declared], output).reshape(declared, -1)
        if _compared(mixed[:ROWS], alone[:declared]) == "dependent":
            reason = f"the result for an image depends on the others in its batch of {declared}"
            return Batching(declared, "dependent", warnings=(f"{reason}; each fills a batch alone.",))
    try:
        freed = trial.session([output], freed=True, threads=threads)
    except RuntimeFailure:
        agreement = None
    else:
        agreement = _agreement(trial, freed, output, alone)
    if agreement in ("bitwise", "close"):
        return Batching(None, agreement, freed=trial.batch)
    warning = f"the graph runs just {trial.batch} image(s) at a time, which is slow; ask for a dynamic batch axis."
    return Batching(trial.batch, "bitwise", warnings=(warning,))


def _alone(trial: Trial, session: Session, output: str) -> Array:
    """The scores of each noise image, filling a whole batch by itself."""
    batches = [image[None].repeat(trial.batch, axis=0) for image in trial.noise[:ROWS]]
    return np.stack([trial.scores(session, batch, output).reshape(trial.batch, -1)[0] for batch in batches])


def _agreement(trial: Trial, session: Session, output: str, alone: Array) -> Agreement | None:
    """How the noise images run together compare with each alone; None where they do not run together."""
    rows = ROWS - 1 if trial.batch == ROWS else ROWS  # at the batch size that it declares, any graph runs
    alone = alone[:rows]
    try:
        together = trial.scores(session, trial.noise[:rows], output)
    except OutOfMemory:
        raise
    except RuntimeFailure:
        return None
    if together.size != alone.size:
        return None
    return _compared(together.reshape(alone.shape), alone)


def _compared(rows: Array, alone: Array) -> Agreement:
    if np.array_equal(rows, alone):
        return "bitwise"
    scale = max(float(np.abs(alone.astype(np.float64)).max()), 1e-6)
    difference = float(np.abs(rows.astype(np.float64) - alone.astype(np.float64)).max())
    return "close" if difference <= _CLOSE[str(alone.dtype)] * scale else "dependent"
