"""A classifier to be audited: an ONNX file with its signature and card, or a plain callable."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from auditkit.arrays import Array
from auditkit.cores import usable_cores
from auditkit.errors import AuditError, BadInput, RuntimeFailure
from auditkit.model import card as cards
from auditkit.model import passes, preprocessing, sandbox
from auditkit.model.card import Card, CardFile
from auditkit.model.device import CPU, DeviceProfile
from auditkit.model.gradient_check import Check
from auditkit.model.probe import derived
from auditkit.model.read import Limits, OnnxFile, file_size
from auditkit.model.scores import checked_probabilities, checked_scores
from auditkit.model.session import (
    FEWEST_ROWS,
    Engine,
    Session,
    Settings,
    filled,
    in_batches,
    measured_batch,
    on_cpu,
)
from auditkit.model.signature import Overrides, Signature, kind_by_values, to_probabilities

Images = Sequence["Image.Image | Array | str | Path"] | Array
Classify = Callable[[Array], ArrayLike]  # preprocessed images in, one row of scores for each out
_WIDEST = 8  # bytes of a score in double precision
_AT_ONCE = 64  # images that are run without measuring the batch size first
_ROUNDING = 1e-5  # a probability may lie outside 0 to 1 by this much
_MESSAGE_CHARACTERS = 300  # quoted of an exception that a classifier function raised


class _WithCard:
    """What both kinds of classifier share: pictures in, probabilities out."""

    signature: Signature
    card: Card
    device: DeviceProfile

    def _takes_and_gives(self) -> str:
        signature = self.signature
        return f"input {signature.height}x{signature.width}x{signature.channels}, {signature.classes} classes"

    def preprocess(self, images: Images) -> Array:
        """The network's input for pictures: files, Pillow images or uint8 arrays [height, width, 3]."""
        images = [images] if isinstance(images, str | Path | Image.Image) else images
        pixels = [preprocessing.pixels(self.card, image) for image in images]
        if not pixels:
            return np.zeros(self.signature.array_shape(0), self.signature.dtype)
        return preprocessing.normalised(self.card, np.stack(pixels), self.signature.layout, self.signature.dtype)

    def _input(self, images: Images) -> Array:
        """Float arrays unchanged, as they count as preprocessed; anything else preprocessed."""
        if isinstance(images, np.ndarray) and images.dtype.kind == "f":
            expected = self.signature.array_shape(len(images))
            if images.shape != expected:
                shapes = f"{list(expected)}, not {list(images.shape)}; give pictures as uint8 [N, height, width, 3]."
                raise BadInput(f"a float array counts as preprocessed input and must have shape {shapes}")
            with np.errstate(invalid="ignore"):
                rows = images.astype(self.signature.dtype, copy=False)
            if rows.dtype == np.uint8 and not np.array_equal(rows, images):
                raise BadInput("the model takes whole pixels 0..255, but the float array given holds other numbers.")
            return rows
        if isinstance(images, np.ndarray) and images.ndim != 4:
            raise BadInput(f"images have shape {list(images.shape)}, expected uint8 [N, height, width, 3].")
        return self.preprocess(images)

    def scores(self, rows: Array, batch: int | None = None, *, steady: bool = False) -> Array:
        """The classifier's own scores [N, numbers] for rows as the network takes them.

        They are `steady` if they must not depend on the number of threads by a last digit.
        """
        raise NotImplementedError

    def predict(self, images: Images, batch: int | None = None) -> Array:
        """The classifier's own scores [N, numbers], just as onnxruntime or the function gives them."""
        rows = self._input(images)
        return self.scores(rows, batch) if len(rows) else np.zeros((0, self.signature.outputs), np.float32)

    def probabilities(self, images: Images, batch: int | None = None) -> Array:
        """Probability of every label, one row an image, in float64."""
        return to_probabilities(self.predict(images, batch), self.signature.kind)


class OnnxClassifier(_WithCard):
    """An ONNX file that has passed its trial, ready to run."""

    can_differentiate: Literal[True] = True

    def __init__(
        self, file: OnnxFile, signature: Signature, card: Card, settings: Settings,
        gradient_checks: dict[str, Check] | None = None,
    ) -> None:  # fmt: skip
        """`gradient_checks` are those of a classifier with the same nodes and other weights, shared with it."""
        self.file, self.identity, self.signature, self.card = file, file.identity, signature, card
        self.gradient_checks = {} if gradient_checks is None else gradient_checks  # by nodes, kept by model.gradient
        self.requested = settings  # with each `auto` not yet decided
        model = derived(
            file.proto, signature.input, [signature.output], switches=signature.fixed_inputs,
            dims=["N", *signature.array_shape(1)[1:]], freed=signature.freed_batch, infer=passes.infer(settings),
        )  # fmt: skip
        self.graph, self.weights = passes.in_precision(model, file.weights, settings)
        self.session = Session(self.graph, settings, self.weights)
        self.graphs = {"model": self.session.sha256}  # digests of the graphs that were derived from the file, and ran
        self.settings, self.device = self.session.settings, self.session.device
        self._batch = self.settings.batch
        self._reference: OnnxClassifier | None = None

    def __repr__(self) -> str:
        how = f"{self.settings.device}, {self.settings.precision}"
        return f"OnnxClassifier({self.file.path.name}, {self._takes_and_gives()}, {how})"

    @property
    def engine(self) -> Engine | None:
        """The engine that runs units of work with this model, if it is not this process alone."""
        return self.settings.engine

    def use_engine(self, engine: Engine) -> None:
        """Let units of work run in the processes of an engine."""
        self.settings, self.requested = replace(self.settings, engine=engine), replace(self.requested, engine=engine)

    def reference(self) -> "OnnxClassifier":
        """The same file on the CPU in strict float32, to compare with; the classifier itself if it already runs so."""
        if self.device is CPU and self.settings.precision == "strict":
            return self
        if self._reference is None:
            # Half the cores: the others feed the device meanwhile.
            plain = on_cpu(self.settings, threads=max(1, usable_cores() // 2))
            self._reference = OnnxClassifier(self.file, self.signature, self.card, plain)
        return self._reference

    @property
    def batch(self) -> int:
        """Images run at once: as set, or measured at the first use."""
        if self._batch is None:
            blank = np.zeros(self.signature.array_shape(1), self.signature.dtype)
            self._batch = measured_batch(lambda rows: self._run(blank.repeat(rows, axis=0)), self.device)
        return self._batch

    def scores(self, rows: Array, batch: int | None = None, *, steady: bool = False) -> Array:
        """The vendor's own scores [N, numbers] for rows as the network takes them; a steady row never runs alone."""
        fixed = self.signature.fixed_batch
        if fixed is not None and self.signature.rows == "dependent":
            return np.concatenate([self._run(row[None].repeat(fixed, axis=0))[:1] for row in rows])
        if fixed is not None:
            parts = [filled(rows[start : start + fixed], fixed) for start in range(0, len(rows), fixed)]
            return np.concatenate([self._run(part) for part in parts])[: len(rows)]
        few = min(self.settings.batch or _AT_ONCE, self.device.first_batch or len(rows))
        size = batch or (few if len(rows) <= _AT_ONCE else self.batch)
        run = self._run_steadily if steady and self.device is CPU and self.signature.rows != "dependent" else self._run
        scores, worked = in_batches(run, rows, size, pad=self.device.pads_batches)
        if worked < size:
            self._batch = worked
        return scores

    def _run_steadily(self, rows: Array) -> Array:
        return self._run(filled(rows, FEWEST_ROWS))[: len(rows)]

    def _run(self, rows: Array) -> Array:
        most = len(rows) * self.signature.outputs * _WIDEST
        output = self.session.run({self.signature.input: rows}, most=most)[0]
        # A model that tells pictures from noise may give another shape than in its trial.
        expected = output.size == len(rows) * self.signature.outputs and len(rows) in (1, *output.shape[:1])
        scores = output.reshape(len(rows), -1) if expected else output
        scores = checked_scores(scores, len(rows), self.signature.outputs, self.file.path.name)
        if self.signature.kind != "logits":
            checked_probabilities(to_probabilities(scores, self.signature.kind), self.file.path.name)
        return scores


class CallableClassifier(_WithCard):
    """A plain function in the model's place: preprocessed images in, scores out (a remote endpoint, say)."""

    can_differentiate: Literal[False] = False
    file: None = None
    identity: None = None
    settings: None = None
    engine: None = None
    requested = Settings()
    device = CPU  # where the function computes is its own business; masks and units are those of a CPU

    def __init__(self, function: Classify, signature: Signature, card: Card, batch: int = 32) -> None:
        self.function, self.signature, self.card, self.batch = function, signature, card, batch
        self.graphs: dict[str, str] = {}

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return f"CallableClassifier({name}, {self._takes_and_gives()})"

    def scores(self, rows: Array, batch: int | None = None, *, steady: bool = False) -> Array:  # noqa: ARG002
        """What the function returns, [N, numbers]."""
        return in_batches(self._call, rows, batch or self.batch)[0]

    def _call(self, rows: Array) -> Array:
        scores, kind = _function_scores(self.function, rows, self.signature.outputs), self.signature.kind
        outside = (scores < -_ROUNDING) | (scores > 1 + _ROUNDING)
        if kind in ("probabilities", "sigmoid") and outside.any():
            reason = f"its scores were taken for probabilities (kind {kind}), which lie between 0 and 1"
            remedy = "auditkit.load(function, overrides=auditkit.Overrides(kind='logits'), ...)."
            gave = f"the classifier function gave {scores[outside][0]:g}"
            raise RuntimeFailure(f"{gave}, but {reason}; if they are logits, open it with {remedy}")
        return scores


AnyClassifier = OnnxClassifier | CallableClassifier


def _function_scores(function: Classify, rows: Array, numbers: int | None) -> Array:
    """The function's scores [N, numbers] for preprocessed images; None accepts any number of classes."""
    try:
        result = function(rows.copy())  # it may change them
    except AuditError:
        raise
    except Exception as error:
        shape = f"{rows.dtype}{list(rows.shape)}"
        raise RuntimeFailure(f"the classifier function failed on {shape} with {_summary(error)}.") from error
    try:
        scores = np.asarray(result)
    except Exception as error:  # rows of several lengths, say, or a tensor that lies on a GPU
        reason = f"{type(result).__name__} that makes no array ({_summary(error)})"
        raise RuntimeFailure(f"the classifier function gave {reason}; expected an array of scores.") from error
    return checked_scores(scores, len(rows), numbers, "the classifier function", type(result).__name__)


def _summary(error: Exception) -> str:
    text = " ".join(str(error)[:_MESSAGE_CHARACTERS].split()).removesuffix(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@dataclass(frozen=True)
class Opening:
    """How to open a file: its card or preset, stated facts, and limits."""

    card: Path | None = None  # None: the one beside the model, if there is one
    preset: str | None = None
    overrides: Overrides = Overrides()
    limits: Limits = Limits()
    ignore_exif: bool = False  # pictures stay as they are stored, whatever the card says

    def at(self, size: tuple[int, int]) -> "Opening":
        """The same at a stated height and width."""
        return replace(self, overrides=replace(self.overrides, size=size))


def load(
    model: "str | Path | Classify", *, card: "str | Path | None" = None, preset: str | None = None,
    settings: Settings | None = None, overrides: Overrides | None = None, limits: Limits | None = None,
    size: tuple[int, int] | None = None,
) -> AnyClassifier:  # fmt: skip
    """The classifier in an ONNX file, or behind a function that takes preprocessed [N, 3, height, width] float32.

    `size` is the height and width of the pictures, where the file leaves them open or a function takes them.
    """
    overrides = overrides or Overrides()
    if size is not None:
        sides = list(size) if isinstance(size, tuple | list | np.ndarray) else []
        if len(sides) != 2 or not all(isinstance(side, int | np.integer) and side > 0 for side in sides):
            raise BadInput(f"size {size!r} is not a height and a width in whole pixels, such as (224, 224).")
        overrides = replace(overrides, size=(int(sides[0]), int(sides[1])))
    opening = Opening(Path(card) if card else None, preset, overrides, limits or Limits())
    if callable(model):
        return _from_callable(model, opening, settings or Settings())
    if not isinstance(model, str | os.PathLike):
        raise BadInput(f"the model is {type(model).__name__}; give an ONNX file or a function.")
    return open_file(Path(model), opening, settings or Settings())


def open_file(path: Path, opening: Opening, settings: Settings) -> OnnxClassifier:
    """The classifier in an ONNX file, tried in a guarded child process first."""
    file_size(path, opening.limits)  # a folder or a missing file is an error before its card is
    card_file = _card_file(path, opening)
    outcome = sandbox.attempt(path, _merged(opening.overrides, card_file), opening.limits)
    file = outcome.reopened(path, opening.limits)
    if not settings.in_process:
        settings = replace(settings, worker=outcome.worker)
    return OnnxClassifier(file, outcome.signature, _card(card_file, opening, outcome.signature), settings)


def _card_file(path: Path, opening: Opening) -> CardFile | None:
    """The card that the caller names, or the one beside the model unless a preset is named."""
    if opening.card is not None:
        return CardFile.read(opening.card)
    beside = path.with_suffix(".toml")
    return CardFile.read(beside) if opening.preset is None and os.access(beside, os.F_OK) else None


def _merged(overrides: Overrides, card_file: CardFile | None) -> Overrides:
    """The caller's overrides; the card supplies what they leave open."""
    stated = {key: value for key, value in vars(overrides).items() if value}
    return overrides if card_file is None else replace(card_file.overrides(), **stated)


def _card(card_file: CardFile | None, opening: Opening, signature: Signature) -> Card:
    card = _stated_card(card_file, opening, signature)
    if signature.guessed_size:
        card = replace(card, origin=replace(card.origin, assumed_size=card.size))
    return replace(card, exif_orientation=False) if opening.ignore_exif else card


def _stated_card(card_file: CardFile | None, opening: Opening, signature: Signature) -> Card:
    """The card of the file or the preset; without either, the one that is usual.

    A model of whole pixels takes them as they are, so that nothing is assumed.
    """
    if card_file is not None:
        return card_file.card(signature)
    if opening.preset is not None:
        card = cards.from_preset(opening.preset, signature)
        cards.check_fits(card, signature, f"preset {opening.preset}")
        return card
    if signature.dtype == "uint8":
        return cards.from_preset("none", signature)
    usual = "imagenet" if signature.channels == 3 else "unit"
    return replace(cards.from_preset(usual, signature), origin=cards.Origin(preset=usual, assumed="assumed"))


def _from_callable(function: Classify, opening: Opening, settings: Settings) -> CallableClassifier:
    card_file = CardFile.read(opening.card) if opening.card else None
    overrides = _merged(opening.overrides, card_file)
    if overrides.size is None:
        raise BadInput("a classifier function needs the size of its pictures: give size=(height, width).")
    layout = overrides.layout or "NCHW"
    blank = Signature("input", layout, "float32", 3, *overrides.size, None, "close", "scores", "logits", 0)
    noise = np.random.default_rng(20221128).standard_normal(blank.array_shape(2)).astype(np.float32)
    scores = _function_scores(function, noise, None)
    signature = replace(blank, outputs=scores.shape[1], kind=overrides.kind or kind_by_values(scores))
    return CallableClassifier(function, signature, _card(card_file, opening, signature), settings.batch or 32)
