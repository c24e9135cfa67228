"""Sets of images to audit with: a folder, a CSV or an .npz becomes ids, pictures and, where given, labels."""

import csv
import hashlib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from auditkit.arrays import Array
from auditkit.data.framework_arrays import NOT_NPZ
from auditkit.errors import BadInput
from auditkit.model.preprocessing import opened

CORNERS = ("x0", "y0", "x1", "y1")
ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})


@dataclass(frozen=True)
class ImageSet:
    """Images by position; a picture is decoded when it is asked for."""

    source: Path
    ids: tuple[str, ...]
    picture: Callable[[int], "Image.Image | Array"]
    labels: Array | None = None  # class index of each image
    boxes: Array | None = None  # [N, 4]: x0, y0, x1, y1 in the picture's pixels
    mask: "Callable[[int], Array | None] | None" = None  # [height, width] of a picture, true where the object is
    notes: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()  # the files behind it, where there are some

    def digest(self) -> str:
        """One digest for the ids and the content of all images, and for what is said about them."""
        found = hashlib.sha256("\0".join(self.ids).encode("utf-8", "surrogateescape"))
        for said in (self.labels, self.boxes):
            found.update(b"none" if said is None else said.astype(np.float64).tobytes())
        for index in range(0 if self.paths else len(self)):
            held = self.picture(index), None if self.mask is None else self.mask(index)
            found.update(b"".join(b"none" if array is None else np.asarray(array).tobytes() for array in held))
        for path in self.paths:
            with path.open("rb") as stream:
                found.update(hashlib.file_digest(stream, "sha256").digest())
        return found.hexdigest()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def of_files(self) -> bool:
        """Whether each image has a file of its own."""
        return len(self.paths) >= len(self) and self.source.suffix != ".npz"

    def only(self, positions: Sequence[int]) -> "ImageSet":
        """The images at these positions, of a set in which each has a file of its own."""
        at = list(positions)
        mask, groups = self.mask, range(0, len(self.paths), len(self))
        return replace(
            self, ids=tuple(self.ids[index] for index in at), picture=lambda index: self.picture(at[index]),
            labels=None if self.labels is None else self.labels[at],
            boxes=None if self.boxes is None else self.boxes[at],
            mask=None if mask is None else lambda index: mask(at[index]),
            paths=tuple(self.paths[start + index] for start in groups for index in at),
        )  # fmt: skip

    def chunks(self, size: int) -> Iterator[tuple[slice, list["Image.Image | Array"]]]:
        """Pictures in order, some at a time."""
        for start in range(0, len(self), size):
            part = slice(start, min(start + size, len(self)))
            yield part, [self.picture(index) for index in range(part.start, part.stop)]


def open_images(path: Path, classes: int, names: Sequence[str] = ()) -> ImageSet:
    """The images of a folder, a CSV (image,label) or an .npz (images, labels); labels fit the model's classes."""
    if not path.exists():
        raise BadInput(f"there is no {path}; give a folder of images, a CSV (image,label) or an .npz (images,labels).")
    if path.is_dir():
        found = _from_csv(path / "labels.csv", names) if (path / "labels.csv").is_file() else _from_folder(path, names)
    elif path.suffix == ".npz":
        found = _from_npz(path)
    elif path.suffix == ".csv":
        found = _from_csv(path, names)
    else:
        raise BadInput(f"{path} is none of: a folder of images, a .csv file, an .npz file.")
    if not len(found):
        raise BadInput(f"{path} holds no images ({', '.join(sorted(ENDINGS))}).")
    if found.labels is not None and not np.all((found.labels >= 0) & (found.labels < classes)):
        bad = int(np.flatnonzero((found.labels < 0) | (found.labels >= classes))[0])
        raise BadInput(
            f"{path}: image '{found.ids[bad]}' has label {found.labels[bad]}, but the model has classes 0 to "
            f"{classes - 1}."
        )
    return found


def _decoder(paths: list[Path]) -> Callable[[int], Image.Image]:
    return lambda index: opened(paths[index])


def _from_folder(folder: Path, names: Sequence[str]) -> ImageSet:
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS and p.is_file())
    if strange := next((p for p in files if not _is_text(str(p.relative_to(folder)))), None):
        raise BadInput(f"the name of the image {str(strange)!a} is not UTF-8, and no result could name it; rename it.")
    ids = tuple(str(p.relative_to(folder)) for p in files)
    groups = sorted({Path(name).parts[0] for name in ids if len(Path(name).parts) > 1})
    if not groups:
        return ImageSet(folder, ids, _decoder(files), paths=tuple(files))
    if any(len(Path(name).parts) == 1 for name in ids):
        raise BadInput(f"{folder} mixes pictures and class folders; move the pictures into their class folders.")
    indices, note = _group_indices(groups, names)
    labels = np.array([indices[Path(name).parts[0]] for name in ids])
    return ImageSet(folder, ids, _decoder(files), labels, notes=(note,), paths=tuple(files))


def _group_indices(groups: list[str], names: Sequence[str]) -> tuple[dict[str, int], str]:
    """Class index of each class folder, and how it was come by."""
    if all(group.isdecimal() for group in groups):
        return {group: int(group) for group in groups}, "class folders are class indices"
    known = {name.casefold(): index for index, name in enumerate(names)}
    if all(group.casefold() in known for group in groups):
        return {group: known[group.casefold()] for group in groups}, "class folders are the card's class names"
    if names:
        strange = next(group for group in groups if group.casefold() not in known)
        raise BadInput(f"class folder '{strange}' is neither a class index nor one of the card's {len(names)} names.")
    return {group: index for index, group in enumerate(groups)}, "class folders in alphabetical order are the classes"


def _is_text(name: str) -> bool:
    """Whether a file's name can be written into results."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that none can have, such as one too long, is no error."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _from_npz(path: Path) -> ImageSet:
    if not zipfile.is_zipfile(path):  # what numpy says of such a file is how to load it unsafely
        raise BadInput(f"{path} is not an .npz file, whatever its name says.")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            images = np.asarray(arrays["images"])
            labels, boxes, masks = (
                np.asarray(arrays[key]) if key in arrays else None for key in ("labels", "boxes", "masks")
            )
    except KeyError:
        raise BadInput(f"{path} has no array 'images' (N x height x width x 3, uint8).") from None
    except NOT_NPZ as error:
        raise BadInput(f"{path} cannot be read as .npz: {error}.") from None
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise BadInput(f"{path}: images are {images.dtype}{list(images.shape)}, expected uint8 [N, height, width, 3].")
    if labels is not None and (labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]):
        raise BadInput(f"{path}: labels are {labels.dtype}{list(labels.shape)}, expected {len(images)} integers.")
    if boxes is not None and (boxes.dtype.kind not in "iuf" or boxes.shape != (len(images), 4)):
        raise BadInput(f"{path}: boxes are {boxes.dtype}{list(boxes.shape)}, expected {len(images)} x 4 numbers.")
    if masks is not None and (masks.dtype.kind not in "biu" or masks.shape != images.shape[:3]):
        raise BadInput(
            f"{path}: masks are {masks.dtype}{list(masks.shape)}, expected {list(images.shape[:3])} of 0 and 1."
        )
    ids = tuple(str(index) for index in range(len(images)))
    return ImageSet(
        path, ids, lambda index: images[index], None if labels is None else labels.astype(np.int64),
        None if boxes is None else _inside(_checked(boxes.astype(np.float64), path), images.shape[1:3], path),
        None if masks is None else lambda index: masks[index] > 0, paths=(path,),
    )  # fmt: skip


def _from_csv(path: Path, names: Sequence[str]) -> ImageSet:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = list(csv.DictReader(stream))
            columns = list(rows[0]) if rows else []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read: {error}.") from None
    if not rows:
        raise BadInput(f"{path} has no rows; its first line names the columns: image,label.")
    if "image" not in columns:
        raise BadInput(f"{path} has columns {', '.join(map(str, columns))}; expected image,label.")
    files = [path.parent / str(row["image"]) for row in rows]
    for line, file in enumerate(files, start=2):
        if not is_file(file):
            raise BadInput(f"{path}, line {line}: there is no image {file}.")
    known = {name.casefold(): index for index, name in enumerate(names)}
    labels = None
    if "label" in columns:
        labels = np.array([_label(str(row["label"]), known, path, line) for line, row in enumerate(rows, start=2)])
    boxes = _boxes(rows, columns, path)
    masks = _mask_files(rows, path) if "mask" in columns else []
    ids = tuple(str(row["image"]) for row in rows)
    mask = (lambda index: _mask(masks[index])) if masks else None
    # In the digest an image stands in for its mask where it has none, so that each mask keeps its place.
    behind = [mask or file for mask, file in zip(masks, files, strict=False)]
    return ImageSet(path, ids, _decoder(files), labels, boxes, mask, paths=(*files, *behind))


def _label(text: str, known: dict[str, int], path: Path, line: int) -> int:
    if text.strip().isdecimal() and len(text.strip()) < 10:
        return int(text)
    if text.strip().casefold() in known:
        return known[text.strip().casefold()]
    raise BadInput(f"{path}, line {line}: label '{text:.40}' is neither a class index nor a class name of the card.")


def _boxes(rows: list[dict[str, str]], columns: Sequence[str], path: Path) -> Array | None:
    """Corners of each row's box; NaN where all four are left empty."""
    if not set(CORNERS) & set(columns):
        return None
    if lacking := [key for key in CORNERS if key not in columns]:
        raise BadInput(f"{path} has no column {lacking[0]}; a box has {', '.join(CORNERS)}, in the picture's pixels.")
    try:
        found = [
            [float(row[key] or "nan") if any(row[c] for c in CORNERS) else np.nan for key in CORNERS] for row in rows
        ]
    except (TypeError, ValueError) as error:
        raise BadInput(f"{path}: a box is not four numbers ({error}).") from None
    return _checked(np.array(found), path)


def _checked(boxes: Array, path: Path) -> Array:
    for index, (x0, y0, x1, y1) in enumerate(boxes):
        corners = np.array([x0, y0, x1, y1])
        if not (np.isnan(corners).all() or (np.isfinite(corners).all() and x0 < x1 and y0 < y1)):
            raise BadInput(
                f"{path}: box {index + 1} ({x0:g}, {y0:g}, {x1:g}, {y1:g}) needs four numbers, x0 < x1 and y0 < y1."
            )
        if min(x0, y0) >= 0 and max(x1, y1) <= 1:
            raise BadInput(
                f"{path}: box {index + 1} ({x0:g}, {y0:g}, {x1:g}, {y1:g}) seems to be in shares of the picture; give "
                "its pixels."
            )
    return boxes


def _inside(boxes: Array, size: tuple[int, int], path: Path) -> Array:
    """Boxes of pictures of one size, refused where one lies outside."""
    for index, box in enumerate(boxes):
        if said := box_outside(box, size):
            raise BadInput(f"{path}, image '{index}': {said}.")
    return boxes


def size_of(picture: "Image.Image | Array") -> tuple[int, int]:
    """Height and width."""
    return (picture.height, picture.width) if isinstance(picture, Image.Image) else picture.shape[:2]


def box_outside(box: Array, size: tuple[int, int]) -> str:
    """What is wrong with a box that has no pixel of a picture of this height and width; empty where it has some."""
    x0, y0, x1, y1 = box
    if not np.isfinite(box).all() or (x0 < size[1] and y0 < size[0] and min(x1, y1) > 0):
        return ""
    return f"the box ({x0:g}, {y0:g}, {x1:g}, {y1:g}) lies outside the picture, which has {size[0]}x{size[1]} pixels"


def _mask_files(rows: list[dict[str, str]], path: Path) -> list[Path | None]:
    """The mask of each row; None where it is left empty."""
    files = [path.parent / row["mask"] if row["mask"] else None for row in rows]
    for line, file in enumerate(files, start=2):
        if file is not None and not is_file(file):
            raise BadInput(f"{path}, line {line}: there is no mask {file}.")
    return files


def _mask(file: Path | None) -> Array | None:
    """True where the picture of a mask is not black."""
    return None if file is None else np.asarray(np.asarray(opened(file).convert("L")) > 0)
