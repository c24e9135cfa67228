"""Bundles of heatmaps: written from any framework's arrays, read one map at a time."""

import csv
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from auditkit import __version__, elsewhere
from auditkit.arrays import Array
from auditkit.data import bundle_files as files
from auditkit.data.atomic_write import (
    LEFT_OVER,
    append,
    create,
    make_folder,
    remove_left_overs,
    rename,
    temporary_name,
    write_errors,
    write_whole,
)
from auditkit.data.bundle_files import Entry, Header
from auditkit.data.dataset import Dataset
from auditkit.data.explainer_layouts import single_maps
from auditkit.errors import BadInput
from auditkit.graph.upsampling import Upsampling
from auditkit.model.read import read
from auditkit.recorded_names import image_names
from auditkit.records import from_json, to_json

CONSTANT_NOTE = "some maps are constant: they rank no pixel before another"
_NO_ENTRIES = (",".join(files.COLUMNS) + "\n").encode()  # a manifest of no maps
_SHOWN_LABELS = 10  # in an error message
_Pair = tuple[str, int]  # image and label
Progress = Callable[[int], Callable[[int], None]]  # takes the total, returns a counter of what is done


@dataclass(frozen=True)
class Heatmap:
    """A map, and the image and label that it explains."""

    image: str
    label: int
    values: Array  # float32 [height, width]


@dataclass(frozen=True)
class HeatmapSet:
    """The maps of a bundle by image and label, each read on demand."""

    path: Path
    header: Header
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"HeatmapSet({self.path}, {len(self)} maps of {len(self.labels)} images, {self.header.method or '?'})"

    def __iter__(self) -> Iterator[Heatmap]:
        read = self.reader()
        return (Heatmap(entry.image, entry.label, read(entry)[0]) for entry in self.entries)

    @cached_property
    def labels(self) -> dict[str, tuple[int, ...]]:
        """The labels of each image's maps; images are in the order of the manifest."""
        labels: dict[str, list[int]] = {}
        for entry in self.entries:
            labels.setdefault(entry.image, []).append(entry.label)
        return {image: tuple(indices) for image, indices in labels.items()}

    @cached_property
    def _entries(self) -> dict[_Pair, Entry]:
        return {(entry.image, entry.label): entry for entry in self.entries}

    def of_images(self, images: Collection[str]) -> "HeatmapSet":
        """The maps of these images alone."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.image in images))

    def named_as(self, images: Dataset) -> "HeatmapSet":
        """The same maps under the names that the dataset has for the files of its images.

        A map of a full path is one of that file alone, even where another file's name ends in the same way.
        """
        listed = dict.fromkeys(entry.full_path for entry in self.entries if entry.full_path)
        if not listed:
            return self
        known = images.ids_by_path()
        names = {path: known[path] for path in listed if path in known}
        others = [path for path in listed if path not in known]
        taken = {*images.ids, *(entry.image for entry in self.entries if not entry.full_path)}
        names |= zip(others, image_names([*others, *taken]), strict=False)
        entries = tuple(replace(entry, image=names.get(entry.full_path, entry.image)) for entry in self.entries)
        if len({(entry.image, entry.label) for entry in entries}) < len(entries):
            raise BadInput(
                f"{self.path / files.MANIFEST} has two names of one image with a map for the same label; "
                "give each image one name."
            )
        return replace(self, entries=entries)

    def entries_digest(self) -> str:
        """Digest of what is said of the maps, without reading them."""
        lines = "\n".join(f"{entry.listed}\0{entry.label}\0{entry.heatmap}" for entry in self.entries)
        return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()

    def files(self) -> list[Path]:
        """The files of the maps, each once."""
        return [self.path / name for name in dict.fromkeys(files.split_reference(entry.heatmap)[0]
                                                           for entry in self.entries)]  # fmt: skip

    def unnamed_files(self) -> list[Path]:
        """Files of maps that the manifest does not name: a writer was killed before it could add their names."""
        named = {files.split_reference(entry.heatmap)[0] for entry in self.entries}
        return [path for path in sorted((self.path / files.MAPS).glob("*")) if f"{files.MAPS}/{path.name}" not in named]

    def get(self, image: str, label: int) -> Array:
        """The map of one image and label, float32 [height, width]."""
        if (image, label) not in self._entries:
            labels = self.labels.get(image, ())[:_SHOWN_LABELS]
            others = f"labels {list(labels)}" if labels else "no map of that image"
            raise BadInput(f"{self.path} has no map for image '{image}', label {label}; it has {others}.")
        return self.read(self._entries[image, label])

    def read(self, entry: Entry) -> Array:
        """The map of an entry; every pixel is a finite number."""
        return self.read_typed(entry)[0]

    def read_typed(self, entry: Entry) -> tuple[Array, str]:
        """The map of an entry, and the type of its file."""
        if elsewhere.asker is not None:
            return elsewhere.asker(HeatmapSet.read_typed, replace(self, entries=()), entry)
        return self.reader()(entry)

    def reader(self) -> Callable[[Entry], tuple[Array, str]]:
        """Reads the maps of entries, quickly in the order of the manifest: the map, and the type of its file."""
        stored, upsampling = self.stored_reader(), self.header.upsampling
        if upsampling is None:
            return stored

        def read(entry: Entry) -> tuple[Array, str]:
            values, kind = stored(entry)
            if values.shape != upsampling.grid:
                expected = f"its {files.HEADER} has {upsampling.grid} cells"
                raise BadInput(f"{self.path / entry.heatmap} holds a map of {values.shape}, but {expected}.")
            return upsampling.apply(values[None])[0], kind

        return read

    def stored_reader(self) -> Callable[[Entry], tuple[Array, str]]:
        """The same for maps as they are stored, which may be smaller."""
        maps = files.MapReader(self.path)

        def read(entry: Entry) -> tuple[Array, str]:
            values, kind = maps.read(entry.heatmap)
            problem = files.not_finite(values)
            if problem:
                raise BadInput(f"{self.path / entry.heatmap}, image '{entry.image}', label {entry.label}: {problem}.")
            return values, kind

        return read


def open_bundle(path: "str | Path") -> HeatmapSet:
    """The bundle in a folder; its maps are read later."""
    folder = Path(path)
    header = files.read_header(folder)
    entries, torn = files.read_manifest(folder, own=header.producer.startswith(files.OWN_PRODUCER))
    entries = _with_short_names(entries)
    torn_note = (f"the last line of {files.MANIFEST} is incomplete and was left out: {torn[:80]!r}",) if torn else ()
    return HeatmapSet(folder, header, tuple(entries), header.notes + torn_note)


def _with_short_names(entries: list[Entry]) -> list[Entry]:
    """Entries that name images without the folders of full paths, which are kept beside the names."""
    names = list(dict.fromkeys(entry.image for entry in entries))
    pairs = zip(names, image_names(names), strict=True)
    short = {name: new for name, new in pairs if PurePath(name).is_absolute()}
    if not short:
        return entries
    return [
        replace(entry, image=short[entry.image], full_path=entry.image) if entry.image in short else entry
        for entry in entries
    ]


def _model_digest(model: object) -> str | None:
    """Digest of a classifier, of the ONNX file at a path, or the digest itself; None for no model."""
    if model is None:
        return None
    identity = getattr(getattr(model, "file", None), "identity", None)
    if isinstance(identity, str):
        return identity
    if isinstance(model, str) and re.fullmatch(r"[0-9a-fA-F]{64}", model):
        return model.lower()
    if isinstance(model, str | Path):
        return read(Path(model)).identity
    raise BadInput(f"model is a {type(model).__name__} without a digest; give a classifier, an ONNX file or a sha256.")


class Bundle:
    """A folder of heatmaps that grows: `Bundle(path, model).add(ids, labels, array)`.

    The folder is created with the first maps. Maps are on the disk before the manifest names them: a killed writer
    leaves a bundle with the maps of all calls that returned. Opening an existing bundle continues it.
    """

    def __init__(
        self, path: "str | Path", model: object = None, method: str = "", frame: str = "model-input", *,
        root: Path | None = None,
    ) -> None:  # fmt: skip
        """`root` is the folder that the user named, if the bundle is inside it (see `data.atomic_write`)."""
        self.path = Path(path)
        self.root = root or self.path
        self.constant = 0  # constant maps added by this writer
        self._number = 0
        self._exists = False
        self._size = 0  # of the manifest, as this writer knows it
        self._references: dict[_Pair, str] = {}  # the file and position of each map
        settings = {"frame": frame, "method": method, "model": _model_digest(model)}
        producer = f"{files.OWN_PRODUCER}{__version__}"
        self.header = from_json(Header, {**settings, "producer": producer}, "the bundle's header")
        if (self.path / files.HEADER).exists():
            self._continue()
        else:
            self._require_vacant()

    def __len__(self) -> int:
        return len(self._references)

    def __repr__(self) -> str:
        return f"Bundle({self.path}, {len(self)} maps)"

    def add(
        self, ids: Any, labels: Any, array: Any = None, *, layout: str | None = None, channels: str | None = None,
        upsampling: Upsampling | None = None,
    ) -> int:  # fmt: skip
        """Add maps and return how many are new; either all are added or, with an error, none.

        `ids` names images as the dataset does. `labels` gives class indices: one for all maps, one for each, or
        [images, labels]; for an array with an axis of labels, one row of labels serves all images. `array` is what
        Captum, SHAP, Xplique, OpenVINO-XAI or pytorch-grad-cam return. {label: maps of these images} in place of both
        is what a loop over labels collects. `layout` names the array's axes with the letters N, K (labels), C, H, W if
        its shape is ambiguous. `channels` says how three channels become one score per pixel: sum (the default, since
        attributions add up), mean, abs-sum or max-abs; the bundle records it. `upsampling` makes maps of all pixels
        from those that are added, whenever they are read; it is the same for all maps of a bundle.
        """
        manifest = self.path / files.MANIFEST
        known = self._exists and manifest.exists() and manifest.stat().st_size == self._size
        if (self.path / files.HEADER).exists() and not known:
            self._continue()  # another writer has added maps
        maps = single_maps(ids, labels, array, layout, channels)
        if self.header.channels is not None:
            self._same("channels", self.header.channels, maps.channels)
        if self._references:
            self._same("upsampling", self.header.upsampling, upsampling)
        new: dict[_Pair, Array] = {}
        for pair, values in zip(maps.pairs, maps.maps, strict=True):
            if self._is_new(pair, values, new):
                new[pair] = values
        if new:
            constant = sum(bool((values == values[0, 0]).all()) for values in new.values())
            signed = self.header.sign == "signed" or any(bool((values < 0).any()) for values in new.values())
            notes = sorted(maps.notes | ({CONSTANT_NOTE} if constant else set()))
            header = replace(
                self.header, channels=maps.channels, sign="signed" if signed else "unsigned", upsampling=upsampling,
                layout=tuple(dict.fromkeys((*self.header.layout, maps.layout))),
                notes=tuple(dict.fromkeys((*self.header.notes, *notes))),
            )  # fmt: skip
            with write_errors(self.path):
                self._write(new, header)
            self.constant += constant
        return len(new)

    def _continue(self) -> None:
        header = files.read_header(self.path)
        if not header.producer.startswith(files.OWN_PRODUCER):
            raise BadInput(f"{self.path} was written by '{header.producer}'; make a new bundle in another folder.")
        entries, _ = files.read_manifest(self.path, own=True)
        for setting in ("model", "method", "frame"):
            self._same(setting, getattr(header, setting), getattr(self.header, setting))
        self.header, self._exists = header, True
        self._references = {(entry.image, entry.label): entry.heatmap for entry in entries}
        maps, manifest = self.path / files.MAPS, self.path / files.MANIFEST
        if maps.is_symlink() or not maps.is_dir():
            raise BadInput(f"{maps} is not a folder; make a new bundle in another folder.")
        text = files.read_content(self.path, files.MANIFEST)
        complete = text[: text.rfind(b"\n") + 1]
        if complete != text:
            write_whole(manifest, complete, root=self.root)  # an incomplete last line names no map
        self._size = len(complete)

    def _same(self, setting: str, old: object, new: object) -> None:
        if old != new:
            raise BadInput(f"{self.path} has {setting} {old!r}, but {new!r} is to be added; use another bundle.")

    def _is_new(self, pair: _Pair, values: Array, new: dict[_Pair, Array]) -> bool:
        image, label = pair
        problem = files.not_finite(values)
        if problem:
            raise BadInput(f"the map of image '{image}', label {label} has {problem}; every pixel needs a number.")
        if not 0 < values.size <= files.MAX_PIXELS:
            raise BadInput(f"the map of image '{image}', label {label} has {list(values.shape)} pixels.")
        existing = new.get(pair)
        if existing is None and pair in self._references:
            existing = files.MapReader(self.path).read(self._references[pair])[0]
        if existing is not None and not np.array_equal(existing, values):
            raise BadInput(f"{self.path} has another map for image '{image}', label {label} already.")
        return existing is None

    def create(self) -> None:
        """Create the bundle before there are maps, for other files; a new folder atomically."""
        if self._exists:
            return
        self._require_vacant()
        with write_errors(self.path):
            if self.path.exists():  # and may be a mount, or a link to a folder
                remove_left_overs(self.path, root=self.root)
                self._fill(self.path, self.root)
            else:
                self._create_folder()
        self._exists, self._size = True, len(_NO_ENTRIES)

    def _create_folder(self) -> None:
        temporary = self.path.with_name(temporary_name())
        root = self.path.parent if self.root == self.path else self.root
        if not root.exists():
            root.mkdir(parents=True, exist_ok=True)
        try:
            self._fill(temporary, root)
            rename(temporary, self.path.name, root=root)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _fill(self, folder: Path, root: Path) -> None:
        """Write what every bundle has, the header last, since it marks a bundle."""
        make_folder(folder / files.MAPS, root=root)
        write_whole(folder / files.MANIFEST, _NO_ENTRIES, root=root)
        write_whole(folder / files.HEADER, _json(self.header), root=root)

    def _require_vacant(self) -> None:
        """Refuse a folder with anything but what `_fill` leaves there if it is killed."""
        if not self.path.exists():
            return
        vacant = self.path.is_dir() and not any((self.path / files.MAPS).glob("*"))
        for name in [path.name for path in self.path.iterdir()] if vacant else []:
            if name == files.MANIFEST:
                vacant &= files.read_content(self.path, name) == _NO_ENTRIES
            else:
                vacant &= name == files.MAPS or bool(re.fullmatch(LEFT_OVER, name))
        if not vacant:
            raise BadInput(f"{self.path} exists and is not a bundle; give a new folder.")

    def _write(self, new: dict[_Pair, Array], header: Header) -> None:
        self.create()
        if header != self.header:
            write_whole(self.path / files.HEADER, _json(header), root=self.root)
        self.header = header
        references: dict[_Pair, str] = {}
        for _, run in groupby(new.items(), key=lambda item: item[1].shape):
            pairs, maps = zip(*run, strict=True)
            file = self._write_stack(np.stack(maps))
            references |= {pair: f"{file}#{position}" for position, pair in enumerate(pairs)}
        lines = _lines((*pair, reference) for pair, reference in references.items())
        self._size = append(self.path / files.MANIFEST, lines, root=self.root)
        self._references |= references

    def _write_stack(self, stack: Array) -> str:
        """Write a stack to the next free file and return its name; no file is ever overwritten."""
        content = io.BytesIO()
        np.lib.format.write_array(content, np.ascontiguousarray(stack, "<f4"), allow_pickle=False)
        while True:
            name = f"{files.MAPS}/{self._number:06d}.npy"
            self._number += 1
            try:
                create(self.path / name, content.getbuffer(), root=self.root)
            except FileExistsError:
                continue
            return name


def _json(header: Header) -> bytes:
    return (json.dumps(to_json(header), indent=2) + "\n").encode()


def _lines(rows: Iterable[Sequence[str | int]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
