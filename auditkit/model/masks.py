"""Probabilities of composed images: rows of integers in, one row of probabilities each out.

Hard masks show a picture's most important pixels before another picture, soft ones mix two pictures. CUDA composes both
inside the graph, over banks in its memory; on a CPU hard masks, and for a callable both, are composed outside it, far
more cheaply there. The numbers are the same.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx

from auditkit.arrays import Array
from auditkit.errors import OutOfMemory
from auditkit.graph import hard_masks, simplify, soft_masks
from auditkit.graph.hard_masks import PICTURES, PROBABILITIES, RANKS
from auditkit.graph.soft_masks import ACROSS, DOWN, GRIDS, ROWS
from auditkit.model.classifier import AnyClassifier, CallableClassifier, OnnxClassifier
from auditkit.model.composer import Composer
from auditkit.model.passes import infer
from auditkit.model.runtime import AnyFeeds
from auditkit.model.scores import checked_probabilities, checked_scores
from auditkit.model.session import FEWEST_ROWS, Session, filled, measured_batch, measured_part, on_cpu
from auditkit.model.signature import to_probabilities

Head = Callable[..., onnx.ModelProto]  # of a graph and its ends, and whether pictures are held with channels last
_MEASURED: dict[tuple[object, ...], tuple[int, int | None]] = {}  # batches of the graphs that this process has run
Banks = Any  # what `load` returns and `run` takes back; each implementation has its own


class OnnxOverBanks:
    """An ONNX classifier whose input is composed from banks and rows of integers, by a head in front of its graph."""

    def __init__(self, model: OnnxClassifier, head: Head, columns: int, *behind: str) -> None:
        """If the graph's first operator is one of `behind`, or on CUDA a cast to float16, it runs once per picture."""
        signature, graph = model.signature, model.graph
        ends = hard_masks.Ends(
            signature.input, signature.element_type, signature.layout == "NHWC", signature.height, signature.width,
            signature.channels, signature.output, signature.outputs, signature.kind,
        )  # fmt: skip
        self.signature, self.device, self._columns = signature, model.device, columns
        self._name = model.file.path.name
        self._turned = model.settings.channels_last and not ends.channels_last
        self._step: Session | None = None
        casts = (hard_masks.TO_HALF,) if model.device.casts_to_float16 else behind
        if split := hard_masks.split_behind_rounding(graph, ends, casts, infer(model.settings)):
            step, graph, ends = split
            self._step = Session(step, on_cpu(model.settings, threads=1), model.weights)
        self._input = ends.input
        graph = simplify.simplified(head(graph, ends, channels_last=self._turned))
        self.session = Session(graph, model.settings, model.weights)
        model.graphs["masked"] = self.session.sha256
        self._key = type(self).__name__, self.session.sha256, self.session.settings
        self._batch, self._at_once = model.settings.batch, signature.fixed_batch
        if signature.fixed_batch is not None:
            self._batch = signature.fixed_batch if self.device.pads_batches else None
        # Shared by all callers of `run`: the next has its batches waiting when one finishes.
        self._pool = ThreadPoolExecutor(self.device.batches_in_flight)

    def batch(self, banks: Banks) -> int:
        """Rows that are composed together: the number in the settings, or measured once in a process."""
        if self._batch is None:
            if self._key not in _MEASURED:
                _MEASURED[self._key] = self._measured(banks)
            self._batch, self._at_once = _MEASURED[self._key]
        return self._batch

    def _measured(self, banks: Banks) -> tuple[int, int | None]:
        """The fastest number of rows, and how many of them the graph sees at a time."""
        row, fixed = np.zeros((1, self._columns), np.int32), self.signature.fixed_batch

        def run(count: int, at_once: int | None = None) -> Array:
            return self._run(row.repeat(count, axis=0), banks, at_once)

        batch = max(measured_batch(run, self.device, fixed or 1), FEWEST_ROWS)
        if fixed is None and self.device.runs_parts:
            return batch, measured_part(partial(run, batch), batch)
        return batch, fixed

    def upload(self, pictures: Array) -> Banks:
        """The pictures in the device's memory, for as long as the result is referenced."""
        pictures = self._graph_input(pictures)
        return self.session.upload(pictures.transpose(0, 2, 3, 1) if self._turned else pictures)

    def _graph_input(self, pictures: Array) -> Array:
        """The pictures after the graph's first step, where that was split off."""
        pictures = pictures.astype(self.signature.dtype, copy=False)
        return pictures if self._step is None else self._step.run({self.signature.input: pictures})[0]

    def run(self, rows: Array, banks: Banks) -> Iterator[tuple[slice, Array]]:
        """Probabilities for the rows; on CUDA one batch runs while the one before is read."""
        if self.signature.rows == "dependent":
            for index in range(len(rows)):
                row = rows[index : index + 1].repeat(self.signature.fixed_batch or 1, axis=0)
                yield slice(index, index + 1), self._run(row, banks)[:1]
            return
        waiting: deque[tuple[slice, Future[Array]]] = deque()
        start = 0
        try:
            while start < len(rows) or waiting:
                while start < len(rows) and len(waiting) < self.device.batches_in_flight:
                    batch = self.batch(banks)
                    part = slice(start, min(start + batch, len(rows)))
                    count = part.stop - start
                    feeds = self._feeds(filled(rows[part], self._least(count, batch)), banks)
                    waiting.append((part, self._pool.submit(self._scored, feeds, count, self._at_once)))
                    start = part.stop
                part, future = waiting.popleft()
                try:
                    yield part, future.result()
                except OutOfMemory:
                    start = self._smaller(part, waiting, self.batch(banks))
        finally:
            for _, future in waiting:  # the reader has stopped early
                future.exception()

    def _least(self, count: int, batch: int) -> int:
        """How many rows `count` of them are filled up to."""
        if fixed := self.signature.fixed_batch:
            return math.ceil(count / fixed) * fixed
        return batch if self.device.pads_batches else min(batch, FEWEST_ROWS)

    def _smaller(self, part: slice, waiting: "deque[tuple[slice, Future[Array]]]", batch: int) -> int:
        """Halve the batch, drop the batches in flight, and return the row to resume from."""
        if batch == 1 or self.signature.fixed_batch is not None:
            raise OutOfMemory("not even one batch fits into memory; use a device with more memory.")
        self._batch = batch // 2
        if self._key in _MEASURED:  # the next classifier of the same graph starts with what fits
            _MEASURED[self._key] = self._batch, self._at_once
        while waiting:
            waiting.popleft()[1].exception()
        return int(part.start)

    def _run(self, rows: Array, banks: Banks, at_once: int | None = None) -> Array:
        return self._scored(self._feeds(rows, banks), len(rows), at_once or self._at_once)

    def _feeds(self, rows: Array, banks: Banks) -> AnyFeeds:
        """The graph's inputs for some rows."""
        raise NotImplementedError

    def _scored(self, feeds: AnyFeeds, count: int, at_once: int | None) -> Array:
        rows = count + (self._batch or 0) + (self.signature.fixed_batch or 0)  # that they may have been filled up to
        most = rows * self.signature.classes * np.dtype(np.float32).itemsize
        probabilities = self.session.run(feeds, [PROBABILITIES], at_once, most=most)[0][:count]
        probabilities = checked_scores(probabilities, count, self.signature.classes, self._name)
        return checked_probabilities(probabilities, self._name)


class OnnxMasked(OnnxOverBanks):
    """The masks of an ONNX classifier, composed on the device."""

    def __init__(self, model: OnnxClassifier, head: Head = hard_masks.masked, *behind: str) -> None:
        super().__init__(model, head, 4, *behind)

    def load(self, pictures: Array, ranks: Array) -> Banks:
        """Both banks in the device's memory, for as long as the result is referenced."""
        return {PICTURES: self.upload(pictures), RANKS: self.session.upload(ranks.astype(np.int32, copy=False))}

    def _feeds(self, rows: Array, banks: Banks) -> AnyFeeds:
        return {**banks, **hard_masks.row_feeds(rows.astype(np.int32, copy=False))}


class OnnxMaskedOnHost(OnnxMasked):
    """The masks of an ONNX classifier on the CPU, composed where it runs, but outside the graph."""

    def __init__(self, model: OnnxClassifier) -> None:
        super().__init__(model, lambda graph, ends, **_: hard_masks.scored(graph, ends), hard_masks.TO_INTEGERS)

    def load(self, pictures: Array, ranks: Array) -> Banks:
        """Both banks in the memory of the process that the graph runs in."""
        return self.session.composer(self._graph_input(pictures), ranks, self.signature.layout)

    def _feeds(self, rows: Array, banks: Banks) -> AnyFeeds:
        return {self._input: (banks, rows)}


class HostOverBanks:
    """A plain callable whose input is composed on the host: its banks are a function from rows to images."""

    def __init__(self, model: CallableClassifier) -> None:
        self.model, self.batch = model, model.batch

    def run(self, rows: Array, banks: Banks) -> Iterator[tuple[slice, Array]]:
        """Probabilities for the rows."""
        for start in range(0, len(rows), self.batch):
            part = rows[start : start + self.batch]
            scores = self.model.scores(banks(part), self.batch)
            probabilities = to_probabilities(scores, self.model.signature.kind).astype(np.float32)
            yield slice(start, start + len(part)), probabilities


class HostMasked(HostOverBanks):
    """The masks of a plain callable."""

    def load(self, pictures: Array, ranks: Array) -> Banks:
        """Both banks in main memory."""
        return Composer(pictures, ranks, self.model.signature.layout)


class OnnxMixed(OnnxOverBanks):
    """The mixtures of an ONNX classifier, composed on the device."""

    def __init__(self, model: OnnxClassifier) -> None:
        super().__init__(model, soft_masks.mixed, len(soft_masks.COLUMNS))

    def load(self, pictures: Banks, grids: Array, down: Array, across: Array) -> Banks:
        """All banks in the device's memory, for as long as the result is referenced."""
        masks = {GRIDS: grids, DOWN: down, ACROSS: across}
        uploaded = {name: self.session.upload(bank.astype(np.float32, copy=False)) for name, bank in masks.items()}
        return {PICTURES: pictures, **uploaded}

    def _feeds(self, rows: Array, banks: Banks) -> AnyFeeds:
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


Masked = OnnxMasked | HostMasked
Mixed = OnnxMixed | HostMixed
_MASKED: "WeakKeyDictionary[AnyClassifier, Masked]" = WeakKeyDictionary()
_MIXED: "WeakKeyDictionary[AnyClassifier, Mixed]" = WeakKeyDictionary()


def masked(model: AnyClassifier) -> Masked:
    """The classifier over banks, created once. It holds a copy, so that the classifier itself can be freed.

    `load(pictures, ranks)` returns banks of pictures, as the network takes them, and of ranks [maps, height, width];
    `run(rows, banks)` yields probabilities [n, classes] for int32 rows [N, 4] (top, bottom, map, keep), in order.
    """
    if model not in _MASKED:
        _MASKED[model] = _over_banks(model)
    return _MASKED[model]


def _over_banks(model: AnyClassifier) -> Masked:
    if model.file is None:
        return HostMasked(copy(model))
    return OnnxMasked(model) if model.device.masks_in_graph else OnnxMaskedOnHost(model)


def mixed(model: AnyClassifier) -> Mixed:
    """The classifier over mixtures, created once. It holds a copy, so that the classifier itself can be freed.

    `load` takes uploaded pictures, and masks in the form that graph.soft_masks describes; `run` yields probabilities
    [n, classes] for int32 rows [N, 5] (top, bottom, grid, down, across), in order.
    """
    if model not in _MIXED:
        _MIXED[model] = HostMixed(copy(model)) if model.file is None else OnnxMixed(model)
    return _MIXED[model]
