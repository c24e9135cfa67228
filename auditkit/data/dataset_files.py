"""What a folder of images, a CSV or an .npz lists: images, and where given, labels, boxes, masks and groups."""

import csv
import io
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from auditkit.arrays import Array
from auditkit.data.bundle_files import is_index
from auditkit.data.npy import read_npz
from auditkit.errors import BadInput
from auditkit.recorded_names import image_names
from auditkit.regular_files import read_regular, reason

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
_CORNERS = ("x0", "y0", "x1", "y1")
_NOT_GROUPS = frozenset({"image", "label", "mask", *_CORNERS, None})  # columns of a CSV; any other names groups
_MOST_GROUPS = 100  # values of a column; one with more tells images apart, as a name or a time does
_Row = dict[str, str]
_MOST_CSV_BYTES, _MOST_ROWS = 2**28, 2_000_000  # more than ImageNet has; a row takes many times its bytes
_ARCHIVE_LEFTOVERS = "__MACOSX"  # a folder that macOS puts beside the files of a zip archive
_UNWRITABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})  # control characters, bytes that are no text, and line separators


@dataclass(frozen=True)
class Listing:
    """The images of a file or folder, and what it says about each."""

    source: Path
    ids: tuple[str, ...]
    images: "Sequence[Path | Image.Image | Array] | Array"  # the file of each image, or its pixels
    labels: Array | None = None  # class index of each image
    boxes: Array | None = None  # [N, 4]: x0, y0, x1, y1 in the pixels of the image; NaN where there is none
    masks: "Sequence[Path | Array | None] | Array | None" = None  # [height, width] each, not 0 on the object
    notes: tuple[str, ...] = ()
    file: Path | None = None  # the one file that holds all images, if there is one
    # The group of each image, such as its site, by the name of the column; empty where it has none.
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def listing(path: Path, names: Sequence[str]) -> Listing:
    """The images of a folder, a CSV or an .npz; labels may be class names."""
    if not path.exists():
        raise BadInput(f"there is no {path}; give a folder of images, a CSV (image,label) or an .npz (images,labels).")
    if path.is_dir():
        table = path / "labels.csv"
        return replace(_list_csv(table, names), source=path) if table.is_file() else _list_folder(path, names)
    if path.suffix == ".npz":
        return _list_npz(path)
    if path.suffix == ".csv":
        return _list_csv(path, names)
    raise BadInput(f"{path} is neither a folder of images, nor a .csv file, nor an .npz file.")


def is_file(path: Path) -> bool:
    """Whether the path is a file; an impossible name, such as one that is too long, is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def unwritable(name: str) -> bool:
    """Whether a name cannot be part of a line of text: it has control characters, or bytes that are not UTF-8."""
    return any(unicodedata.category(character) in _UNWRITABLE for character in name)


def image_id(name: str) -> str:
    """The name of an image as records show it, escaped if it cannot stand there as it is."""
    return ascii(name)[1:-1] if unwritable(name) else name


def _hidden(parts: Sequence[str]) -> bool:
    return any(part.startswith(".") or part == _ARCHIVE_LEFTOVERS for part in parts)


def _list_folder(folder: Path, names: Sequence[str]) -> Listing:
    """The images of a folder; hidden files and folders, such as .ipynb_checkpoints, are none of it."""
    candidates = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    files = [path for path in candidates if not _hidden(path.relative_to(folder).parts) and path.is_file()]
    parts = [file.relative_to(folder).parts for file in files]
    ids = tuple(image_id(str(Path(*part))) for part in parts)
    groups = sorted({part[0] for part in parts if len(part) > 1})
    if not groups:
        return Listing(folder, ids, tuple(files))
    if any(len(part) == 1 for part in parts):
        raise BadInput(f"{folder} mixes pictures and class folders; move the pictures into their class folders.")
    indices, note = _class_indices(groups, names, folder)
    return Listing(folder, ids, tuple(files), np.array([indices[part[0]] for part in parts]), notes=(note,))


def _class_indices(groups: list[str], names: Sequence[str], folder: Path) -> tuple[dict[str, int], str]:
    """The class index of each class folder, and what it follows from."""
    numbers = [group for group in groups if is_index(group)]
    if len(numbers) == len(groups):
        return {group: int(group) for group in groups}, "class folders are class indices"
    indices = {name.casefold(): index for index, name in enumerate(names)}
    unknown = [group for group in groups if group.casefold() not in indices]
    if not unknown:
        return {group: indices[group.casefold()] for group in groups}, "class folders are the card's class names"
    if numbers:  # in alphabetical order 10 comes before 2, and a stray folder would shift the labels
        words = [group for group in groups if group not in numbers]
        mixed = f"numbers ({_some(numbers)}) and names ({_some(words)})"
        raise BadInput(f"the class folders of {folder} are {mixed}; name all by class index or all by class name.")
    if names:
        raise BadInput(
            f"class folder '{unknown[0]}' is neither a class index nor one of the card's {len(names)} names."
        )
    return {group: index for index, group in enumerate(groups)}, "class folders in alphabetical order are the classes"


def _some(groups: Sequence[str]) -> str:
    """A few names for a sentence."""
    shown = ", ".join(f"'{image_id(group)}'" for group in groups[:3])
    return shown if len(groups) <= 3 else f"{shown}, ..."


def _list_npz(path: Path) -> Listing:
    arrays = read_npz(path, ("images", "labels", "boxes", "masks"))
    if "images" not in arrays:
        raise BadInput(f"{path} has no array 'images' (N x height x width x 3, uint8).")
    images = arrays["images"]
    labels, boxes, masks = (arrays.get(name) for name in ("labels", "boxes", "masks"))
    check_pixels(images, f"{path}: ")
    if labels is not None and (labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]):
        raise BadInput(f"{path}: labels are {labels.dtype}{list(labels.shape)}, expected {len(images)} integers.")
    if boxes is not None and (boxes.dtype.kind not in "iuf" or boxes.shape != (len(images), 4)):
        raise BadInput(f"{path}: boxes are {boxes.dtype}{list(boxes.shape)}, expected {len(images)} x 4 numbers.")
    if masks is not None and (masks.dtype.kind not in "biu" or masks.shape != images.shape[:3]):
        expected = f"{list(images.shape[:3])} of 0 and 1"
        raise BadInput(f"{path}: masks are {masks.dtype}{list(masks.shape)}, expected {expected}.")
    if boxes is not None:
        boxes = boxes.astype(np.float64)
        _check_boxes(boxes, path)
        for index, box in enumerate(boxes):
            if problem := box_outside(box, images.shape[1:3]):
                raise BadInput(f"{path}, image '{index}': {problem}.")
    ids = tuple(map(str, range(len(images))))
    return Listing(path, ids, images, None if labels is None else labels.astype(np.int64), boxes, masks, file=path)


def check_pixels(images: Array, where: str) -> None:
    """Refuse an array that is not uint8 [N, height, width, 3 or 1], or whose images have no pixels."""
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        single = "; for one picture give images[None]" if images.ndim == 3 and images.shape[2] in (1, 3) else ""
        expected = f"uint8 [N, height, width, 3 or 1] with pixels 0..255{single}"
        raise BadInput(f"{where}images are {images.dtype}{list(images.shape)}, expected {expected}.")
    if len(images) and 0 in images.shape:
        raise BadInput(f"{where}images are {images.shape[1]}x{images.shape[2]} pixels; an image needs at least one.")


def _list_csv(path: Path, names: Sequence[str]) -> Listing:
    try:
        text = read_regular(path, _MOST_CSV_BYTES).decode("utf-8-sig")
        rows = list(islice(csv.DictReader(io.StringIO(text, newline="")), _MOST_ROWS + 1))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read: {reason(error)}.") from None
    if not rows:
        raise BadInput(f"{path} has no rows; its first line names the columns: image,label.")
    if len(rows) > _MOST_ROWS:
        raise BadInput(f"{path} lists more than {_MOST_ROWS:,} images; split it.")
    columns = list(rows[0])
    if "image" not in columns:
        raise BadInput(f"{path} has columns {', '.join(map(str, columns))}; expected image,label.")
    files = [path.parent / str(row["image"]) for row in rows]
    for line, file in enumerate(files, start=2):
        if not is_file(file):
            raise BadInput(f"{path}, line {line}: there is no image {file}.")
    indices = {name.casefold(): index for index, name in enumerate(names)}
    labels = None
    if "label" in columns:
        labels = np.array([_label(str(row["label"]), indices, path, line) for line, row in enumerate(rows, start=2)])
    masks = _mask_files(rows, path) if "mask" in columns else None
    ids = tuple(map(image_id, image_names([str(row["image"]) for row in rows])))
    return Listing(path, ids, files, labels, _boxes(rows, columns, path), masks, groups=_groups(rows, columns))


def _groups(rows: list[_Row], columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The group of each row, in each column that tells two to a hundred groups apart."""
    groups = {}
    for column in columns:
        if column in _NOT_GROUPS or not column.strip():
            continue
        values = tuple(image_id((row[column] or "").strip()) for row in rows)
        if 2 <= len({*values} - {""}) <= _MOST_GROUPS:
            groups[image_id(column.strip())] = values
    return groups


def _label(text: str, indices: dict[str, int], path: Path, line: int) -> int:
    label = text.strip()
    if is_index(label):
        return int(label)
    if label.casefold() in indices:
        return indices[label.casefold()]
    raise BadInput(f"{path}, line {line}: label '{text:.40}' is neither a class index nor a class name of the card.")


def _boxes(rows: list[_Row], columns: Sequence[str], path: Path) -> Array | None:
    """The corners of each row's box; NaN where all four are empty."""
    if not set(_CORNERS) & set(columns):
        return None
    for corner in _CORNERS:
        if corner not in columns:
            raise BadInput(f"{path} has no column {corner}; a box has {', '.join(_CORNERS)}, in the picture's pixels.")
    try:
        boxes = np.array([_box(row) for row in rows])
    except (TypeError, ValueError) as error:
        raise BadInput(f"{path}: a box is not four numbers ({error}).") from None
    _check_boxes(boxes, path)
    return boxes


def _box(row: _Row) -> list[float]:
    return [float(row[corner] or "nan") for corner in _CORNERS]


def _check_boxes(boxes: Array, path: Path) -> None:
    """Refuse boxes with a corner missing, out of order, or given as shares of the image."""
    for number, box in enumerate(boxes, start=1):
        (x0, y0, x1, y1), name = box, f"{path}: box {number} {_corners(box)}"
        if not (np.isnan(box).all() or (np.isfinite(box).all() and x0 < x1 and y0 < y1)):
            raise BadInput(f"{name} needs four numbers, x0 < x1 and y0 < y1.")
        if min(x0, y0) >= 0 and max(x1, y1) <= 1:
            raise BadInput(f"{name} seems to be in fractions of the picture; give pixels.")


def _corners(box: Array) -> str:
    return f"({', '.join(f'{corner:g}' for corner in box)})"


def box_outside(box: Array, size: tuple[int, int]) -> str:
    """What is wrong with a box that covers no pixel of an image of this height and width; empty if it covers some."""
    x0, y0, x1, y1 = box
    if not np.isfinite(box).all() or (x0 < size[1] and y0 < size[0] and min(x1, y1) > 0):
        return ""
    return f"the box {_corners(box)} lies outside the picture, which has {size[0]}x{size[1]} pixels"


def _mask_files(rows: list[_Row], path: Path) -> list[Path | None]:
    """The mask of each row; None where the cell is empty."""
    files = [path.parent / row["mask"] if row["mask"] else None for row in rows]
    for line, file in enumerate(files, start=2):
        if file is not None and not is_file(file):
            raise BadInput(f"{path}, line {line}: there is no mask {file}.")
    return files
