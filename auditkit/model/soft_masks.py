"""Probabilities of soft mixtures of two pictures: rows of five integers in, one row of probabilities each out.

For an ONNX file the mixtures are composed inside the graph, over banks in the device's memory; for a plain callable
they are composed on the host. The numbers are the same.
"""

from copy import copy
from weakref import WeakKeyDictionary

import numpy as np

from auditkit.arrays import Array
from auditkit.graph import soft_masks
from auditkit.graph.hard_masks import PICTURES
from auditkit.graph.soft_masks import ACROSS, DOWN, GRIDS, ROWS
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.model.hard_masks import Banks, HostOverBanks, OnnxOverBanks
from auditkit.model.session import Feeds


class OnnxMixed(OnnxOverBanks):
    """The mixtures of an ONNX classifier, composed on the device."""

    def __init__(self, model: OnnxClassifier) -> None:
        super().__init__(model, soft_masks.mixed, len(soft_masks.COLUMNS))

    def load(self, pictures: Banks, grids: Array, down: Array, across: Array) -> Banks:
        """All banks in the device's memory, for as long as the result is referenced."""
        masks = {GRIDS: grids, DOWN: down, ACROSS: across}
        uploaded = {name: self.session.upload(bank.astype(np.float32, copy=False)) for name, bank in masks.items()}
        return {PICTURES: pictures, **uploaded}

    def _feeds(self, rows: Array, banks: Banks) -> Feeds:
        return {**banks, ROWS: rows.astype(np.int32, copy=False)}


class HostMixed(HostOverBanks):
    """The mixtures of a plain callable."""

    def upload(self, pictures: Array) -> Banks:
        """The pictures as they are."""
        return pictures

    def load(self, pictures: Banks, grids: Array, down: Array, across: Array) -> Banks:
        """All banks in main memory, the masks in float32."""
        grids, down, across = (bank.astype(np.float32, copy=False) for bank in (grids, down, across))
        return lambda rows: composed(rows, pictures, grids, down, across, self.model.signature.layout)


def composed(rows: Array, pictures: Array, grids: Array, down: Array, across: Array, layout: str) -> Array:
    """The mixtures of some rows, made with numpy."""
    top, bottom, grid, vertical, horizontal = rows.T
    masks = np.expand_dims(down[vertical] @ grids[grid] @ across[horizontal], 1 if layout == "NCHW" else -1)
    inside = np.float32 if pictures.dtype == np.uint8 else pictures.dtype
    share, rest = masks.astype(inside), (np.float32(1) - masks).astype(inside)
    mixture = share * pictures[top].astype(inside) + rest * pictures[bottom].astype(inside)
    return np.asarray(np.floor(mixture + np.float32(0.5)).astype(np.uint8) if inside != pictures.dtype else mixture)


Mixed = OnnxMixed | HostMixed
_MIXED: "WeakKeyDictionary[AnyClassifier, Mixed]" = WeakKeyDictionary()


def mixed(model: AnyClassifier) -> Mixed:
    """The classifier over mixtures, created once. It holds a copy, so that the classifier itself can be freed.

    `load` takes uploaded pictures, and masks in the form that graph.soft_masks describes; `run` yields probabilities
    [n, classes] for int32 rows [N, 5] (top, bottom, grid, down, across), in order.
    """
    if model not in _MIXED:
        _MIXED[model] = HostMixed(copy(model)) if model.file is None else OnnxMixed(model)
    return _MIXED[model]
