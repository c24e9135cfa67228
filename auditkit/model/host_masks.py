"""Masked images composed on the host, each from the one before it where the two differ in a few pixels alone.

On a CPU this is far cheaper than masks inside the graph, which read and write every pixel of every image several times.
Memory of batches that are no longer needed is used again, which saves as much as the copying costs.
"""

import numpy as np

from auditkit.arrays import Array
from auditkit.graph.hard_masks import BOTTOM, KEEP, MAP, TOP

Row = tuple[int, int, int]  # top, bottom, map
_FEW = 8  # one pixel in so many: where more change, all are looked at
_REMEMBERED = 2  # batches whose images are at hand, where their memory is not used again


class Composer:
    """Pictures as the network takes them, and for each map how many pixels come before each pixel."""

    def __init__(self, pictures: Array, ranks: Array, layout: str, turns: int = 0) -> None:
        """`ranks` are [maps, height, width]; the memory of a batch is used again after `turns` batches (0: never)."""
        self.pictures, self.ranks = pictures, ranks.reshape(len(ranks), -1)
        self._pixels, self._last = self.ranks.shape[1], layout == "NHWC"  # whether channels come last
        self._orders: dict[int, Array] = {}
        self._buffers: list[Array | None] = [None] * turns
        self._turn = 0
        self._last_images: dict[Row, tuple[int, Array, int]] = {}  # by kind: its turn, the image, and what it keeps

    def __call__(self, rows: Array) -> Array:
        """The masked images of rows [N, 4]."""
        images = self._buffer(len(rows))
        for image, row in zip(images, rows.tolist(), strict=True):
            kind: Row = (row[TOP], row[BOTTOM], row[MAP])
            keep = min(max(row[KEEP], 0), self._pixels)
            self._compose(image, kind, keep)
            self._last_images[kind] = (self._turn, image, keep)
        self._turn += 1
        return images

    def _buffer(self, count: int) -> Array:
        """Memory for `count` images that holds no remembered one."""
        shape = (count, *self.pictures.shape[1:])
        oldest = self._turn - (len(self._buffers) or _REMEMBERED)
        self._last_images = {kind: last for kind, last in self._last_images.items() if last[0] > oldest}
        if not self._buffers:
            return np.empty(shape, self.pictures.dtype)
        position = self._turn % len(self._buffers)
        buffer = self._buffers[position]
        if buffer is None or len(buffer) < count:
            buffer = self._buffers[position] = np.empty(shape, self.pictures.dtype)
        return buffer[:count]

    def _compose(self, image: Array, kind: Row, keep: int) -> None:
        top, bottom, index = kind
        _, before, kept = self._last_images.get(kind, (0, self.pictures[bottom], 0))
        if abs(keep - kept) * _FEW > self._pixels:
            mask = (self.ranks[index] < keep).reshape(image.shape[:2] if self._last else image.shape[1:])
            image[...] = self.pictures[bottom]
            np.copyto(image, self.pictures[top], where=mask[..., None] if self._last else mask)
            return
        image[...] = before
        changed = self._order(index)[min(kept, keep) : max(kept, keep)]
        source = self.pictures[top if keep > kept else bottom]
        if self._last:
            self._flat(image)[changed] = self._flat(source)[changed]
        else:
            self._flat(image)[:, changed] = self._flat(source)[:, changed]

    def _flat(self, image: Array) -> Array:
        return image.reshape((self._pixels, -1) if self._last else (-1, self._pixels))

    def _order(self, index: int) -> Array:
        """The pixels of a map, the most important first."""
        if index not in self._orders:
            order = np.full(self._pixels, -1)
            order[self.ranks[index]] = np.arange(self._pixels)
            if order.min() < 0:
                raise ValueError(f"the ranks of map {index} put several pixels at one place")
            self._orders[index] = order
        return self._orders[index]
