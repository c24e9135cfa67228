"""Which output of a model holds the class scores.

The choice rests on the scores of a few noise images, and is reported as a guess where it is one.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
import onnx

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph import edit
from auditkit.model.signature import Kind, Overrides, kind_by_graph, multi_label, per_image, to_probabilities, unit_rows

_FEATURE_NAMES = ("feature", "embed", "hidden", "pooled")
_BOX_NAMES = ("box", "bbox", "detection", "rois", "anchors")


@dataclass(frozen=True)
class Output:
    """The tensor that holds the scores."""

    name: str
    scores: Array  # of the noise images, [rows, numbers]
    guesses: tuple[str, ...] = ()


def choose_output(
    proto: onnx.ModelProto, outputs: dict[str, str], arrays: dict[str, Array], rows: int, overrides: Overrides
) -> Output:
    """The tensor with one vector of class scores per image; raises BadInput with what the model returns instead."""
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
        return Output(name, fitting[name], (f"scores '{name}', the tensor behind a final {outputs[name]}",))
    rest = ", ".join(f"'{other}'" for other in arrays if other != name)
    return Output(name, fitting[name], (f"scores '{name}' of several outputs (also {rest})",) if rest else ())


def _refuse_sigmoids(proto: onnx.ModelProto, fitting: dict[str, Array]) -> None:
    """Refuse several sigmoids that nothing else is computed from, whichever scores stand beside them."""
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
    """Candidates that are no mere step towards another; of logits and their own softmax, the logits stay."""
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
        way_out = "auditkit audits classifiers. If one output does hold class scores, name it with --output."
        raise BadInput(f"the model looks like an object detector ({sign}); {way_out}")


def _no_scores_sentence(arrays: dict[str, Array], rows: int) -> str:
    outputs = ", ".join(f"'{name}' {array.dtype}{list(array.shape)}" for name, array in list(arrays.items())[:6])
    guess = "it is not a classifier"
    if any(a.ndim == 4 and a.shape[0] == rows for a in arrays.values()):
        guess = "it looks like a segmentation model or a feature extractor"
    elif any(a.ndim == 3 and a.shape[0] == rows for a in arrays.values()):
        guess = "it looks like an object detector or a sequence model"
    elif all(a.dtype.kind != "f" for a in arrays.values()):
        guess = "it returns decisions, not scores; ask the vendor for an export that returns class scores"
    return f"no output is one vector of class scores an image ({rows} images gave {outputs}): {guess}."
