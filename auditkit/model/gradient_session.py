"""Gradients of a label's score, a batch at a time, with respect to the image or to a layer."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import ModelFailure, NoGradient, OutOfMemory
from auditkit.graph.gradient.export import GRADIENT, SEED
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.model.gradient import differentiate
from auditkit.model.session import Session, filled
from auditkit.model.signature import to_probabilities

_LEAST_PROB = 1e-12  # a gradient is divided by the probability; this avoids a division by 0


@dataclass(frozen=True)
class Gradients:
    """Scores of some rows, and their gradients with respect to the image or a layer."""

    scores: Array  # [N, numbers]
    gradients: Array  # [N, ...]
    tensor: Array | None  # [N, ...], the layer that the gradients are with respect to; None: the image


class Slopes:
    """A classifier with its gradient, ready to run."""

    def __init__(self, model: OnnxClassifier, layer: str | None = None) -> None:
        self.signature, self.layer = model.signature, layer
        derived = differentiate(model, layer)
        self.surrogate, self.check = derived.surrogate, derived.check
        self.session = Session(derived.model, model.settings, derived.weights)
        model.graphs["gradient" if layer is None else f"gradient of {layer}"] = self.session.sha256
        self.rows = model.signature.fixed_batch or model.device.gradient_batch

    def of(self, inputs: Array, labels: Array) -> Gradients:
        """For each preprocessed row, the gradient of its label's logit, or log-probability where it has no logits."""
        parts: list[tuple[Array, ...]] = []
        start = 0
        while start < len(inputs):
            part = slice(start, start + self.rows)
            try:
                parts.append(self._run(inputs[part], labels[part]))
            except OutOfMemory:
                if self.rows == 1 or self.signature.fixed_batch is not None:
                    raise
                self.rows //= 2
                continue
            start = part.stop
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return Gradients(columns[0], columns[1], columns[2] if self.layer is not None else None)

    def _run(self, inputs: Array, labels: Array) -> tuple[Array, ...]:
        if self.signature.rows == "dependent":
            size = self.signature.fixed_batch or 1
            rows = [self._batch(inputs[[i] * size], labels[[i] * size]) for i in range(len(inputs))]
            return tuple(np.concatenate([column[:1] for column in columns]) for columns in zip(*rows, strict=True))
        columns = self._batch(filled(inputs, self.rows), filled(labels, self.rows))
        return tuple(column[: len(inputs)] for column in columns)

    def _batch(self, inputs: Array, labels: Array) -> tuple[Array, ...]:
        signature = self.signature
        seeds = np.zeros((len(inputs), signature.outputs), np.float32)
        if signature.outputs > 1:
            seeds[np.arange(len(inputs)), labels] = 1
        else:
            seeds[:, 0] = np.where(labels == 1, 1, -1)  # one number: the other label has its negative
        outputs = [signature.output, GRADIENT, *([self.layer] if self.layer is not None else [])]
        # In double precision at most; the layer's size is not known before.
        most = 8 * (seeds.size + inputs.size) if self.layer is None else None
        scores, gradients, *tensor = self.session.run({signature.input: inputs, SEED: seeds}, outputs, most=most)
        expected = inputs.shape if self.layer is None else (len(inputs), *gradients.shape[1:])
        if gradients.shape != expected or not np.isfinite(gradients).all():
            raise ModelFailure("the gradient of the model is not finite, or has another shape than its tensor.")
        if signature.kind in ("probabilities", "sigmoid"):
            # Of the log-probability: the logarithm undoes most of the softmax.
            prob = to_probabilities(scores.reshape(len(inputs), -1), signature.kind)[np.arange(len(inputs)), labels]
            gradients = gradients / np.maximum(prob, _LEAST_PROB).reshape(-1, *[1] * (gradients.ndim - 1))
        return scores, gradients.astype(np.float32), *tensor


_SLOPES: "WeakKeyDictionary[OnnxClassifier, dict[str | None, Slopes]]" = WeakKeyDictionary()


def slopes(model: AnyClassifier, layer: str | None = None) -> Slopes:
    """The classifier with its gradient, created once for each layer."""
    if not model.can_differentiate:
        raise NoGradient("a function has no gradient to follow")
    by_layer = _SLOPES.setdefault(model, {})
    if layer not in by_layer:
        by_layer[layer] = Slopes(model, layer)
    return by_layer[layer]
