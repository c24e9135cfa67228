"""Hard masks made outside the graph: rows of integers in, masked images out."""

from itertools import groupby
from operator import itemgetter

import numpy as np

from auditkit.arrays import Array
from auditkit.graph.hard_masks import BOTTOM, KEEP, MAP, TOP

Kind = tuple[int, int, int]  # top, bottom, map
_REMEMBERED = 2  # batches whose images are at hand, where their memory is not used again


class Composer:
    """Hard masks composed on the host, each from an image at hand that differs in as few pixels as possible."""

    def __init__(self, pictures: Array, ranks: Array, layout: str, turns: int = 0) -> None:
        """`ranks` are [maps, height, width]; the memory of a batch is used again after `turns` batches (0: never)."""
        self._shape, self._flat = pictures.shape[1:], pictures.reshape(len(pictures), -1)
        self.ranks = ranks.reshape(len(ranks), -1)
        self._pixels, self._last = self.ranks.shape[1], layout == "NHWC"  # whether channels come last
        channels = np.arange(self._flat.shape[1] // self._pixels)
        self._offsets = channels if self._last else channels * self._pixels
        self._orders: dict[int, Array] = {}
        self._buffers: list[Array | None] = [None] * turns  # new ones would cost as much as the copying
        self._turn = 0
        self._last_images: dict[Kind, tuple[int, Array, int]] = {}  # by kind: its turn, the image, and what it keeps

    def __call__(self, rows: Array) -> Array:
        """The masked images of rows [N, 4]."""
        images = self._buffer(len(rows))
        kept = rows[:, KEEP].clip(0, self._pixels).tolist()
        with_kinds = zip(rows[:, (TOP, BOTTOM, MAP)].tolist(), images.reshape(len(rows), -1), kept, strict=True)
        for (top, bottom, index), group in groupby(with_kinds, itemgetter(0)):
            kind: Kind = (top, bottom, index)
            _, image, keep = self._last_images.get(kind, (0, self._flat[bottom], 0))
            for _, new_image, new_keep in group:
                self._compose(new_image, new_keep, image, keep, kind)
                image, keep = new_image, new_keep
            self._last_images[kind] = (self._turn, image, keep)
        self._turn += 1
        return images

    def _buffer(self, count: int) -> Array:
        """Memory for `count` images that holds no remembered one."""
        shape = (count, *self._shape)
        oldest = self._turn - (len(self._buffers) or _REMEMBERED)
        self._last_images = {kind: last for kind, last in self._last_images.items() if last[0] > oldest}
        if not self._buffers:
            return np.empty(shape, self._flat.dtype)
        position = self._turn % len(self._buffers)
        buffer = self._buffers[position]
        if buffer is None or len(buffer) < count:
            buffer = self._buffers[position] = np.empty(shape, self._flat.dtype)
        return buffer[:count]

    def _compose(self, image: Array, keep: int, before: Array, kept: int, kind: Kind) -> None:
        """Write an image, from the nearest of the one `before`, which shows `kept` pixels, the bottom and the top."""
        top, bottom, index = kind
        distance = abs(keep - kept)
        if keep < distance:
            before, kept = self._flat[bottom], 0
        elif self._pixels - keep < distance:
            before, kept = self._flat[top], self._pixels
        image[:] = before
        if keep > kept:
            positions = self._positions(index, kept, keep)
            image[positions] = self._flat[top][positions]
        elif keep < kept:
            positions = self._positions(index, keep, kept)
            image[positions] = self._flat[bottom][positions]

    def _positions(self, index: int, first: int, last: int) -> Array:
        """Where all channels of some pixels of a map lie, from the first to the last in its order."""
        pixels = self._order(index)[first:last]
        return np.add.outer(pixels, self._offsets) if self._last else np.add.outer(self._offsets, pixels)

    def _order(self, index: int) -> Array:
        """Where the first channel of each pixel of a map lies, the most important pixel first."""
        if index not in self._orders:
            order = np.full(self._pixels, -1)
            order[self.ranks[index]] = np.arange(self._pixels)
            if order.min() < 0:
                raise ValueError(f"the ranks of map {index} put several pixels at one place")
            self._orders[index] = order * len(self._offsets) if self._last else order
        return self._orders[index]
