"""Imports maps in other formats into a bundle.

The source is a folder of `<image id>__<label>.npy` or grey `.png` files, a `manifest.csv` (image,label,heatmap) beside
its maps, or an .npz with `heatmaps` [N,H,W] or [N,K,H,W], `labels` and `images` (the ids).
"""

from pathlib import Path
from typing import BinaryIO

import numpy as np

from auditkit.arrays import Array
from auditkit.data import bundle_files as files
from auditkit.data.bundle_files import Entry
from auditkit.data.bundles import Bundle, Progress
from auditkit.data.explainer_layouts import label_array
from auditkit.data.npy import read_npz
from auditkit.errors import BadInput
from auditkit.model import decoder

_STACK = 64  # maps that go into one file of the bundle


def import_maps(source: Path, bundle: Bundle, channels: str | None, progress: Progress) -> tuple[str, ...]:
    """Add all maps of `source` to a bundle and return notes for the user."""
    if source.is_file() and source.suffix == ".npz":
        return _add_npz(source, bundle, progress)
    if not (source.is_dir() or source.is_file()):
        raise BadInput(f"there is no {source}; give a folder of maps, a manifest (.csv) or an .npz.")
    if not source.is_dir() and source.suffix != ".csv":
        raise BadInput(f"{source} is neither a folder of maps, nor a manifest (.csv), nor an .npz.")
    folder, manifest = (source, source / files.MANIFEST) if source.is_dir() else (source.parent, source)
    if (folder / files.HEADER).exists():
        raise BadInput(f"{folder} is a bundle already; check it with: auditkit bundle check.")
    if manifest.is_file():
        return _add_files(folder, files.read_manifest(folder, manifest.name)[0], bundle, channels, progress)
    entries, notes = _folder_entries(folder)
    return (*notes, *_add_files(folder, entries, bundle, channels, progress))


def _folder_entries(folder: Path) -> tuple[list[Entry], tuple[str, ...]]:
    """The maps of a folder by their file names, and a note about other files."""
    entries, other_names = [], []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.suffix.lower() not in (".npy", ".png"):
            other_names.append(name)
            continue
        image, mark, label = name[: -len(path.suffix)].rpartition("__")
        if not (mark and image and files.is_index(label)):
            remedy = f"name it like 'cat.jpg__281{path.suffix}', or write a {files.MANIFEST} beside it"
            raise BadInput(f"{path} does not state its image and label; {remedy}. Labels are never guessed.")
        entries.append(Entry(image, int(label), name))
    if not other_names:
        return entries, ()
    note = f"{len(other_names)} files are not maps (.npy, .png) and were left out, such as '{other_names[0]}'"
    return entries, (note,)


def _add_files(
    folder: Path, entries: list[Entry], bundle: Bundle, channels: str | None, progress: Progress
) -> tuple[str, ...]:
    if not entries:
        raise BadInput(f"{folder} holds no maps named like 'cat.jpg__281.npy', and no {files.MANIFEST} that lists any.")
    tick, pictures = progress(len(entries)), 0
    for start in range(0, len(entries), _STACK):
        part = entries[start : start + _STACK]
        maps = [_read(folder, entry) for entry in part]
        try:
            bundle.add([entry.image for entry in part], [entry.label for entry in part], maps, channels=channels)
        except BadInput as error:
            raise BadInput(f"{folder}, maps '{part[0].heatmap}' to '{part[-1].heatmap}': {error}") from None
        pictures += sum(Path(entry.heatmap).suffix.lower() == ".png" for entry in part)
        tick(len(part))
    note = f"{pictures} maps were grey pictures: their scores were rounded when they were saved, so many are tied"
    return (note,) if pictures else ()


def _read(folder: Path, entry: Entry) -> Array:
    """The array of one file, in any layout."""
    file, position = files.split_reference(entry.heatmap)
    with files.open_inside(folder, file) as stream:
        suffix = Path(file).suffix.lower()
        if suffix == ".png":
            return _grey(stream, folder / file)
        if suffix != ".npy":
            raise BadInput(f"{folder / file} is neither .npy nor a grey .png.")
        stored = files.map_array(stream, str(folder / file))
        if position is not None and not (stored.ndim > 2 and position < len(stored)):
            raise BadInput(f"{folder / file} holds {list(stored.shape)}; there is no map number {position}.")
        return np.array(stored if position is None else stored[position])


def _grey(stream: BinaryIO, path: Path) -> Array:
    values = decoder.scores(stream, str(path))
    if values is None:
        raise BadInput(f"{path} is {files.COLOUR_PICTURE}")
    return values


def _add_npz(source: Path, bundle: Bundle, progress: Progress) -> tuple[str, ...]:
    names = ("heatmaps", "labels", "images")
    arrays = read_npz(source, names)
    for name in names:
        if name not in arrays:
            needed = "heatmaps [N,H,W] or [N,K,H,W], labels (never guessed) and images (their ids)"
            raise BadInput(f"{source} has no array '{name}'; it needs {needed}.")
    maps, labels, ids = (arrays[name] for name in names)
    try:
        _add_arrays(maps, labels, ids, bundle, progress)
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from None
    return ()


def _add_arrays(maps: Array, labels: Array, ids: Array, bundle: Bundle, progress: Progress) -> None:
    if ids.ndim != 1 or ids.dtype.kind not in "Uiu":
        raise BadInput(f"images are {ids.dtype}{list(ids.shape)}, expected the id of each image.")
    if maps.ndim not in (3, 4) or len(maps) != len(ids):
        expected = f"[{len(ids)},H,W] or [{len(ids)},K,H,W]"
        raise BadInput(f"heatmaps are {maps.dtype}{list(maps.shape)} for {len(ids)} images, expected {expected}.")
    labels = label_array(labels)
    several = maps.shape[1:2] if maps.ndim == 4 else ()
    each = (len(maps), *several)
    if labels.shape not in (each, several or each):
        expected = f"{list(each)}" + (f" or {list(several)}, one row for all images" if several else "")
        shapes = f"labels have the shape {list(labels.shape)} for heatmaps {list(maps.shape)}"
        raise BadInput(f"{shapes}; expected {expected}.")
    if labels.shape == several == (len(maps),) and len(maps) > 1:
        raise BadInput(
            f"{len(labels)} labels for heatmaps {list(maps.shape)} may be one per image or one row for all; give them "
            f"as {list(each)}. Maps with colour channels become [N,H,W] first."
        )
    tick, layout = progress(len(ids)), "NHW" if maps.ndim == 3 else "NKHW"
    shared = layout == "NKHW" and labels.ndim == 1  # one row of labels for all images
    for start in range(0, len(ids), _STACK):
        rows = slice(start, start + _STACK)
        bundle.add(ids[rows].tolist(), labels if shared else labels[rows], maps[rows], layout=layout)
        tick(len(ids[rows]))
