"""Images to audit a model with: listed and hashed once, decoded where they are used."""

import hashlib
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from auditkit import elsewhere
from auditkit.arrays import Array
from auditkit.cores import usable_cores
from auditkit.data.dataset_files import (
    IMAGE_SUFFIXES,
    Listing,
    box_outside,
    check_pixels,
    image_id,
    is_file,
    listing,
    unwritable,
)
from auditkit.data.file_digests import file_digests, file_version
from auditkit.errors import BadInput
from auditkit.model import decoder
from auditkit.model.card import Card
from auditkit.model.pictures import Picture, prepared, size_of, upright
from auditkit.recorded_names import image_names, with_path_name

_KEPT_BYTES = 256 * 2**20  # of decoded images kept in memory: about 1,800 images of 224 x 224 pixels
_DecodedKey = tuple[object, ...]
Members = Mapping[str, Mapping[str, Sequence[str]]]  # images by column and group


@dataclass(frozen=True)
class FailedImage:
    """An image that cannot be used, and why."""

    image: str
    reason: str
    by_model: bool = False  # whether the picture is sound and the model ended its worker on it


@dataclass(frozen=True)
class Decoded:
    """An image as a model's card prepares it."""

    size: tuple[int, int]  # height and width before preprocessing
    pixels: Array  # uint8 [height, width, channels], at the model's resolution
    mask: Array | None  # [height, width] before preprocessing, true on the object; None if the image has no mask


class _DecodedImages(dict[_DecodedKey, Decoded]):
    """Decoded images kept in memory, first come, first kept. A pickled copy starts empty."""

    free = _KEPT_BYTES

    def __reduce__(self) -> "tuple[type[_DecodedImages], tuple[()]]":
        return _DecodedImages, ()

    def add(self, key: _DecodedKey, image: Decoded) -> None:
        size = image.pixels.nbytes + (0 if image.mask is None else image.mask.nbytes)
        if size <= self.free:
            self.free -= size
            self[key] = image


@dataclass(frozen=True)
class Dataset(Listing):
    """Images by position, with what is known about each. It can be pickled and holds no open file."""

    # What was decoded; selected images share it with the dataset that they come from.
    _kept: _DecodedImages = field(default_factory=_DecodedImages, repr=False, compare=False)
    # By it another process knows a dataset that it has; each selection has its own.
    key: str = field(default_factory=lambda: uuid.uuid4().hex, init=False, repr=False, compare=False)

    @classmethod
    def open(cls, path: Path, classes: int, names: Sequence[str] = ()) -> "Dataset":
        """The images of a folder, a CSV (image,label) or an .npz (images, labels); labels fit the model's classes."""
        dataset = cls(**vars(listing(path, names)))
        if not len(dataset):
            raise BadInput(f"{path} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
        for image, label in zip(dataset.ids, () if dataset.labels is None else dataset.labels, strict=False):
            if not 0 <= label < classes:
                last = classes - 1
                raise BadInput(f"{path}: image '{image}' has label {label}, but the model has classes 0 to {last}.")
        return dataset

    @classmethod
    def from_files(cls, files: Sequence[Path]) -> "Dataset":
        """Image files, each named by its path; of absolute paths, by as much of their ends as tells them apart."""
        if not files:
            raise BadInput("the list holds no images.")
        for file, count in Counter(files).items():
            if not is_file(file):
                raise BadInput(f"there is no image {file}; a list of images names their files.")
            if count > 1:
                raise BadInput(f"the image {file} is listed {count} times; every image counts once.")
        return cls(Path("list"), tuple(map(image_id, image_names(list(map(str, files))))), tuple(files))

    @classmethod
    def from_array(cls, images: Array) -> "Dataset":
        """Images uint8 [N, height, width, 3 or 1], each named by its position."""
        check_pixels(images, "")
        return cls(Path("array"), tuple(map(str, range(len(images)))), images)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def has_files(self) -> bool:
        """Whether each image has its own file."""
        return len(self) > 0 and isinstance(self.images[0], Path)

    def _image(self, position: int) -> Path | Picture:
        """The file of an image, or its pixels."""
        image = self.images[position]
        if isinstance(image, Path) and unwritable(str(image)):  # it would break manifests, tables and reports
            name = self.ids[position]
            raise BadInput(f"the name of the image '{name}' has control characters or is not UTF-8; rename it.")
        return image

    def size(self, position: int, exif_orientation: bool = True) -> tuple[int, int]:
        """Height and width of an image before preprocessing."""
        image = self._image(position)
        if isinstance(image, Path):
            return decoder.size(image, exif_orientation)
        return size_of(upright(image, exif_orientation))

    def common_size(self, exif_orientation: bool = True) -> tuple[int, int] | None:
        """Height and width that all images share; None where two differ or one cannot be read."""
        try:
            size = self.size(0, exif_orientation)
            shared = all(self.size(position, exif_orientation) == size for position in range(1, len(self)))
            return size if shared else None
        except BadInput:
            return None

    def mask(self, position: int, exif_orientation: bool = True) -> Array | None:
        """True on the object of an image; None if the image has no mask."""
        mask = None if self.masks is None else self.masks[position]
        if mask is None:
            return None
        return decoder.mask(mask, exif_orientation) if isinstance(mask, Path) else np.asarray(mask > 0)

    def select(self, positions: Sequence[int]) -> "Dataset":
        """The images at these positions."""
        chosen = list(positions)
        return replace(
            self, ids=tuple(self.ids[index] for index in chosen), images=[self.images[index] for index in chosen],
            labels=None if self.labels is None else self.labels[chosen],
            boxes=None if self.boxes is None else self.boxes[chosen],
            masks=None if self.masks is None else [self.masks[index] for index in chosen], file=None,
            groups={name: tuple(values[index] for index in chosen) for name, values in self.groups.items()},
        )  # fmt: skip

    def order(self, seed: int) -> list[int]:
        """The positions of the images by the SHA256 of the seed and their content, whatever their names are.

        Copies of one image are numbered as they are listed, so that they do not follow each other.
        """
        keys, copies = list[bytes](), Counter[bytes]()
        for digest in self._image_digests:
            keys.append(hashlib.sha256(f"{seed} {copies[digest]} ".encode() + digest).digest())
            copies[digest] += 1
        return sorted(range(len(self)), key=keys.__getitem__)

    def sample(self, count: int, seed: int = 0) -> "Dataset":
        """The first images in that order."""
        return self.select(self.order(seed)[:count])

    def digest(self, *, fresh: bool = False) -> str:
        """SHA256 over the ids, labels, boxes and groups, and over the content of all images and masks.

        If `fresh`, their files are read, whatever is remembered of them.
        """
        digest = hashlib.sha256("\0".join(self.ids).encode("utf-8", "surrogateescape"))
        for facts in (self.labels, self.boxes):
            digest.update(b"none" if facts is None else facts.astype(np.float64).tobytes())
        for content in self._contents(fresh):
            digest.update(content)
        for name, values in self.groups.items():
            digest.update("\0".join((name, *values)).encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def ids_by_path(self) -> dict[str, str]:
        """The name of each image by the full path of its file, as it was given and without links to its folder."""
        if not self.has_files:
            return {}
        files = dict(zip(self.images, self.ids, strict=True))
        folders = {folder: folder.resolve() for folder in {file.parent for file in files}}
        resolved = {str(folders[file.parent] / file.name): image for file, image in files.items()}
        return resolved | {str(file.absolute()): image for file, image in files.items()}

    def members(self) -> dict[str, dict[str, tuple[str, ...]]] | None:
        """The images of each group of each column; None where there are no groups."""
        members: dict[str, dict[str, tuple[str, ...]]] = {}
        for name, values in sorted(self.groups.items()):
            pairs = [*zip(values, self.ids, strict=True)]
            members[name] = {group: tuple(image for value, image in pairs if value == group)
                             for group in sorted({*values} - {""})}  # fmt: skip
        return members or None

    @cached_property
    def _image_digests(self) -> list[bytes]:
        """SHA256 of each image's file, or of its pixels."""
        if self.has_files:
            return file_digests([*self.images])
        return [hashlib.sha256(np.asarray(image).tobytes()).digest() for image in self.images]

    def _contents(self, fresh: bool) -> Iterator[bytes]:
        if self.file is not None:
            yield from file_digests([self.file], fresh=fresh)
        elif self.has_files:
            files = [*self.images]
            if self.masks is not None:  # an image without a mask is hashed in its place: each mask keeps its position
                files += [mask or image for mask, image in zip(self.masks, self.images, strict=True)]
            yield from file_digests(files, fresh=fresh)
        else:
            for position in range(len(self)):
                mask = self.mask(position)
                yield np.asarray(self.images[position]).tobytes() + (b"none" if mask is None else mask.tobytes())

    def decode(self, position: int, card: Card) -> Decoded:
        """The image at a position as the card prepares it, or BadInput with the reason why it cannot be used."""
        if not self.has_files:
            return self._decode(position, card)
        if elsewhere.asker is not None:
            return elsewhere.asker(Dataset.decode, self.select([position]), 0, card)
        key = self._key(position, card)
        image = self._kept.get(key)
        if image is None:
            image = self._decode(position, card)
            self._kept.add(key, image)
        return image

    def decode_many(self, positions: Sequence[int], card: Card) -> "dict[int, Decoded | FailedImage]":
        """The images at these positions as the card prepares them, or why one cannot be used."""

        def attempt(position: int) -> "Decoded | FailedImage":
            try:
                return self.decode(position, card)
            except BadInput as error:
                return FailedImage(self.ids[position], self._without_folders(str(error), position))

        with ThreadPoolExecutor(usable_cores()) as threads:
            return dict(zip(positions, threads.map(attempt, positions), strict=True))

    def _without_folders(self, text: str, position: int) -> str:
        """A text about an image with the image's name in place of its path, and a mask's without its folder."""
        image, mask = self.images[position], None if self.masks is None else self.masks[position]
        text = with_path_name(text, mask) if isinstance(mask, Path) else text
        return text.replace(str(image), self.ids[position]) if isinstance(image, Path) else text

    def _decode(self, position: int, card: Card) -> Decoded:
        image = self._image(position)
        if isinstance(image, Path):
            size, pixels = decoder.prepared(image, card.geometry)
        else:
            image = upright(image, card.exif_orientation)
            size, pixels = size_of(image), prepared(image, card.geometry)
        if self.boxes is not None and (problem := box_outside(self.boxes[position], size)):
            raise BadInput(f"{problem}.")
        return Decoded(size, pixels, self.mask(position, card.exif_orientation))

    def _key(self, position: int, card: Card) -> _DecodedKey:
        """All that a decoded image depends on."""
        mask = None if self.masks is None else self.masks[position]
        files = [file for file in (self.images[position], mask) if isinstance(file, Path)]
        box = None if self.boxes is None else tuple(self.boxes[position].tolist())
        return *(file_version(file) for file in files), str(box), card.geometry
