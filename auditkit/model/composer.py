"""Hard masks made outside the graph: rows of integers in, masked images out."""

from itertools import groupby
from operator import itemgetter

import numpy as np

from auditkit.arrays import Array
from auditkit.graph.hard_masks import BOTTOM, KEEP, MAP, TOP

Kind = tuple[int, int, int]  # top, bottom, map


class Composer:
    """Hard masks composed on the host, each from an image of its batch that differs in as few pixels as possible."""

    def __init__(self, pictures: Array, ranks: Array, layout: str, *, reuses_memory: bool = False) -> None:
        """`ranks` are [maps, height, width]. With `reuses_memory`, a batch overwrites the one before."""
        self._shape, self._flat = pictures.shape[1:], pictures.reshape(len(pictures), -1)
        self.ranks = ranks.reshape(len(ranks), -1)
        self._pixels, self._last = self.ranks.shape[1], layout == "NHWC"  # whether channels come last
        channels = np.arange(self._flat.shape[1] // self._pixels)
        self._offsets = channels if self._last else channels * self._pixels
        self._orders: dict[int, Array] = {}
        self._reuses_memory, self._memory = reuses_memory, self._new_memory(0)

    def __call__(self, rows: Array) -> Array:
        """The masked images of rows [N, 4]."""
        images = self._room_for(len(rows))
        kept = rows[:, KEEP].clip(0, self._pixels).tolist()
        with_kinds = zip(rows[:, (TOP, BOTTOM, MAP)].tolist(), images.reshape(len(rows), -1), kept, strict=True)
        last_images: dict[Kind, tuple[Array, int]] = {}  # by kind: an image, and what it keeps
        for (top, bottom, index), group in groupby(with_kinds, itemgetter(0)):
            kind: Kind = (top, bottom, index)
            image, keep = last_images.get(kind, (self._flat[bottom], 0))
            for _, new_image, new_keep in group:
                self._compose(new_image, new_keep, image, keep, kind)
                image, keep = new_image, new_keep
            last_images[kind] = image, keep
        return images

    def _room_for(self, count: int) -> Array:
        if not self._reuses_memory:
            return self._new_memory(count)
        if len(self._memory) < count:  # new memory for each batch would cost as much as the copying
            self._memory = self._new_memory(count)
        return self._memory[:count]

    def _new_memory(self, count: int) -> Array:
        return np.empty((count, *self._shape), self._flat.dtype)

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
