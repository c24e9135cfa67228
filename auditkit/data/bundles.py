"""Bundles of heatmaps: written in two lines from any framework's arrays, read one map at a time."""

import csv
import io
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from auditkit import __version__
from auditkit.arrays import Array
from auditkit.data import bundle_files as files
from auditkit.data.alignment import checked_frame
from auditkit.data.atomic_write import flush, sync_folder, write_whole
from auditkit.data.bundle_files import Entry, Header
from auditkit.data.explainer_layouts import maps_of
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.model.read import read

CONSTANT_NOTE = "some maps are constant: they rank no pixel before another"


@dataclass(frozen=True)
class Heatmap:
    """One map and what it explains."""

    image: str
    label: int
    values: Array  # float32 [height, width]


@dataclass(frozen=True)
class HeatmapSet:
    """The maps of a bundle by image and label; a map is read when it is asked for."""

    path: Path
    header: Header
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"HeatmapSet({self.path}, {len(self)} maps of {len(self.labels)} images, {self.header.method or '?'})"

    def __iter__(self) -> Iterator[Heatmap]:
        return (Heatmap(entry.image, entry.label, self.read(entry)) for entry in self.entries)

    @cached_property
    def labels(self) -> dict[str, tuple[int, ...]]:
        """The labels that each image has a map for, images in the manifest's order."""
        found: dict[str, list[int]] = {}
        for entry in self.entries:
            found.setdefault(entry.image, []).append(entry.label)
        return {image: tuple(labels) for image, labels in found.items()}

    @cached_property
    def _places(self) -> dict[tuple[str, int], Entry]:
        return {(entry.image, entry.label): entry for entry in self.entries}

    def get(self, image: str, label: int) -> Array:
        """The map of one image and label, float32 [height, width]."""
        if (image, label) not in self._places:
            have = f"labels {list(self.labels[image])[:10]}" if image in self.labels else "no map of that image"
            raise BadInput(f"{self.path} has no map for image '{image}', label {label}; it has {have}.")
        return self.read(self._places[image, label])

    def read(self, entry: Entry) -> Array:
        """The map of a line of the manifest; every pixel is a number."""
        return self.read_typed(entry)[0]

    def read_typed(self, entry: Entry) -> tuple[Array, str]:
        """The map, and the type that its file has."""
        values, kind = files.read_map(self.path, entry.heatmap)
        problem = files.not_finite(values)
        if problem:
            raise BadInput(f"{self.path / entry.heatmap}, image '{entry.image}', label {entry.label}: {problem}.")
        return values, kind


def open_bundle(path: "str | Path") -> HeatmapSet:
    """The bundle in a folder, its maps not yet read."""
    folder = Path(path)
    header = files.read_header(folder)
    entries, torn = files.read_manifest(folder, own=header.producer.startswith(files.OWN_PRODUCER))
    said = (f"the last line of {files.MANIFEST} is torn and was left out: {torn[:80]!r}",) if torn else ()
    return HeatmapSet(folder, header, tuple(entries), header.notes + said)


def model_digest(model: Any) -> str | None:
    """Digest of a model given as a classifier, as the path of an ONNX file, as the digest itself, or not at all."""
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

    The folder appears with the first maps. Maps are on the disk before the manifest names them, so that a writer that
    is killed leaves a bundle with all maps of the calls that returned. A bundle that exists is continued.
    """

    def __init__(self, path: "str | Path", model: Any = None, method: str = "", frame: str = "model-input") -> None:
        self.path = Path(path)
        self.constant = 0  # constant maps added by this writer
        self._number = 0
        self._exists = False
        self._size = 0  # of the manifest, as this writer knows it
        self._places: dict[tuple[str, int], str] = {}
        producer = f"{files.OWN_PRODUCER}{__version__}"
        self.header = Header(checked_frame(frame), method, model_digest(model), producer)
        if (self.path / files.HEADER).exists():
            self._continue()
        elif self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise BadInput(f"{self.path} exists and is not a bundle; give a new folder.")

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"Bundle({self.path}, {len(self)} maps)"

    def add(self, ids: Any, labels: Any, array: Any, *, layout: str | None = None, channels: str | None = None) -> int:
        """Add maps and return how many are new; either all are added or, with an error, none.

        `ids` names images as the image set does. `labels` gives class indices: one for all maps, one a map, or
        [images, labels] (for an array with an axis of labels, one row of labels serves all images). `array` is what
        Captum, SHAP, Xplique, OpenVINO-XAI or pytorch-grad-cam return. `layout` names its axes with the letters N, K
        (labels), C, H, W where its shape leaves a doubt. `channels` says how three channels become one score a pixel:
        sum (the default, since attributions add up), mean, abs-sum or max-abs; it is recorded in the bundle.
        """
        self._catch_up()
        given = maps_of(ids, labels, array, layout, channels)
        if self.header.channels is not None:
            self._same("channels", self.header.channels, given.channels)
        new: dict[tuple[str, int], Array] = {}
        for pair, values in zip(given.pairs, given.maps, strict=True):
            if self._is_new(pair, values, new):
                new[pair] = values
        if new:
            constant = sum(bool((values == values[0, 0]).all()) for values in new.values())
            signed = self.header.sign == "signed" or any(bool((values < 0).any()) for values in new.values())
            said = sorted(given.notes | ({CONSTANT_NOTE} if constant else set()))
            self._stored(new, replace(
                self.header, channels=given.channels, sign="signed" if signed else "unsigned",
                layout=tuple(dict.fromkeys((*self.header.layout, given.layout))),
                notes=tuple(dict.fromkeys((*self.header.notes, *said))),
            ))  # fmt: skip
            self.constant += constant
        return len(new)

    def _catch_up(self) -> None:
        """Take in what other writers have added meanwhile."""
        manifest = self.path / files.MANIFEST
        if manifest.exists() and not (self._exists and manifest.stat().st_size == self._size):
            self._continue()

    def _continue(self) -> None:
        found = open_bundle(self.path)
        if not found.header.producer.startswith(files.OWN_PRODUCER):
            raise BadInput(f"{self.path} was written by '{found.header.producer}'; make a new bundle, beside it.")
        for setting in ("model", "method", "frame"):
            self._same(setting, getattr(found.header, setting), getattr(self.header, setting))
        self.header, self._exists = found.header, True
        self._places = {(entry.image, entry.label): entry.heatmap for entry in found.entries}
        maps, manifest = self.path / files.MAPS, self.path / files.MANIFEST
        if maps.is_symlink() or not maps.is_dir():
            raise BadInput(f"{maps} is not a folder; make a new bundle, beside {self.path}.")
        text = manifest.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.truncate(manifest, whole)  # a torn last line names nothing
        self._size = whole

    def _same(self, setting: str, old: Any, new: Any) -> None:
        if old != new:
            raise BadInput(f"{self.path} has {setting} {old!r}, but {new!r} is to be added; use another bundle.")

    def _is_new(self, pair: tuple[str, int], values: Array, new: dict[tuple[str, int], Array]) -> bool:
        image, label = pair
        problem = files.not_finite(values)
        if problem:
            raise BadInput(f"the map of image '{image}', label {label} has {problem}; every pixel needs a number.")
        if not 0 < values.size <= files.MOST_PIXELS:
            raise BadInput(f"the map of image '{image}', label {label} has {list(values.shape)} pixels.")
        before = new.get(pair)
        if before is None and pair in self._places:
            before = files.read_map(self.path, self._places[pair])[0]
        if before is not None and not np.array_equal(before, values):
            raise BadInput(f"{self.path} has another map for image '{image}', label {label} already.")
        return before is None

    def _stored(self, new: dict[tuple[str, int], Array], header: Header) -> None:
        try:
            self._write(new, header)
        except OSError as error:
            raise RuntimeFailure(f"{self.path} cannot be written: {error}.") from None

    def create(self) -> None:
        """Make the folder before there are maps, for what is to lie beside them."""
        if not self._exists:
            try:
                _create(self.path, self.header)
            except OSError as error:
                raise RuntimeFailure(f"{self.path} cannot be written: {error}.") from None
            self._exists, self._size = True, (self.path / files.MANIFEST).stat().st_size

    def _write(self, new: dict[tuple[str, int], Array], header: Header) -> None:
        self.create()
        if header != self.header:
            write_whole(self.path / files.HEADER, _json(header))
        self.header = header
        places: dict[tuple[str, int], str] = {}
        for _, run in groupby(new.items(), key=lambda item: item[1].shape):
            pairs, maps = zip(*run, strict=True)
            file = self._store(np.stack(maps))
            places |= {pair: f"{file}#{position}" for position, pair in enumerate(pairs)}
        self._size = _append(self.path / files.MANIFEST, _lines((*pair, place) for pair, place in places.items()))
        self._places |= places

    def _store(self, stack: Array) -> str:
        """Write a stack to the next free file and return its name; nothing else is ever overwritten."""
        while True:
            name = f"{files.MAPS}/{self._number:06d}.npy"
            self._number += 1
            try:
                stream = (self.path / name).open("xb")
            except FileExistsError:
                continue
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(stack, "<f4"), allow_pickle=False)
            try:
                with stream:
                    stream.write(content.getbuffer())
                    flush(stream)
            except OSError:
                (self.path / name).unlink()
                raise
            sync_folder(self.path / files.MAPS)
            return name


def _json(header: Header) -> bytes:
    return (json.dumps(header.to_json(), indent=2) + "\n").encode()


def _lines(rows: Any) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _create(path: Path, header: Header) -> None:
    """An empty bundle, made aside and then named, so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        (aside / files.MAPS).mkdir(parents=True)
        write_whole(aside / files.HEADER, _json(header))
        write_whole(aside / files.MANIFEST, _lines([files.COLUMNS]))
        if path.exists():
            path.rmdir()
        aside.rename(path)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync_folder(path.parent)


def _append(path: Path, lines: bytes) -> int:
    """Add whole lines, or none when the disk is full; returns the size of the file then."""
    with path.open("ab") as stream:
        before = stream.tell()
        try:
            stream.write(lines)
            flush(stream)
        except OSError:
            os.truncate(path, before)
            raise
    return before + len(lines)
