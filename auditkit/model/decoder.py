"""Pictures in files that others made are decoded in a guarded process of their own, each under a deadline.

A file is opened here, and the process gets its content. If it crashes, hangs or takes too much memory, the picture that
it was busy with cannot be read; pictures that were decoded at the same time are decoded once more.
"""

from pathlib import Path
from typing import BinaryIO

import numpy as np

from auditkit import elsewhere
from auditkit.arrays import Array
from auditkit.cores import usable_cores
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.model.messages import Value
from auditkit.model.pictures import MOST_PIXELS, Geometry
from auditkit.model.worker import Worker, WorkerLost
from auditkit.records import to_json
from auditkit.regular_files import open_regular, read_stream, reason

_MOST_FILE_BYTES = 2**28  # of a picture; 2^26 pixels rarely fill as much
_SECONDS = 20.0  # for a picture; of 2^26 pixels, the slowest formats take three where nothing else runs
_BYTES_PER_SECOND = 2**24  # for which a file gets more time; decoders read several times as fast
_MEMORY_BYTES = 2**31  # for a picture; of 2^26 pixels, the hungriest formats take 1.3 GiB


def _decoder(pictures_at_once: int) -> Worker:
    return Worker("the image decoder", pictures_at_once * _MEMORY_BYTES, "auditkit.model.decoder_main")


_shared = _decoder(usable_cores())


def start_for(images: Path) -> None:
    """Start the process while a model is opened, unless the images lie in an array: it takes a fifth of a second."""
    if images.suffix != ".npz":
        _ = _shared.process


def prepared(path: Path, geometry: Geometry) -> tuple[tuple[int, int], Array]:
    """Height and width of a picture, upright, and what the network sees of it."""
    result = _read(path, "prepared", to_json(geometry))
    pixels = result["pixels"]
    if pixels.shape != (*geometry.size, geometry.channels):
        raise RuntimeFailure(f"the image decoder gave {list(pixels.shape)} values for a picture.")
    height, width = result["size"]
    return (height, width), pixels


def size(path: Path, exif_orientation: bool) -> tuple[int, int]:
    """Height and width of a picture that can be decoded."""
    height, width = _read(path, "size", exif_orientation)
    return height, width


def mask(path: Path, exif_orientation: bool) -> Array:
    """True where a picture is not black: bool [height, width]."""
    pixels: Array = _read(path, "mask", exif_orientation)
    return pixels


def scores(stream: BinaryIO, name: str) -> Array | None:
    """The values [height, width] of a grey picture in an open file as they are stored; None for a colour picture."""
    values: Array | None = _call("scores", _content(stream, name), name)
    return values


def _read(path: Path, function: str, *arguments: Value) -> Value:
    """What a function of decoder_main returns for the picture in a file."""
    if elsewhere.asker is not None:
        return elsewhere.asker(_read, path, function, *arguments)
    name = f"the image {path}"
    try:
        stream = open_regular(path)
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {reason(error)}.") from None
    with stream:
        content = _content(stream, name)
    return _call(function, content, name, *arguments)


def _content(stream: BinaryIO, name: str) -> bytes:
    try:
        return read_stream(stream, _MOST_FILE_BYTES)
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {reason(error)}.") from None


def _call(function: str, content: bytes, name: str, *arguments: Value) -> Value:
    """What a function of decoder_main returns for the content of a file."""
    seconds = _SECONDS + len(content) / _BYTES_PER_SECOND
    try:
        result = _shared.call(function, content, name, *arguments, seconds=seconds)
        return _checked(function, result)
    except WorkerLost:  # perhaps because of another picture
        alone = _decoder(1)
    try:
        result = alone.call(function, content, name, *arguments, seconds=seconds)
        return _checked(function, result)
    except WorkerLost as error:
        limits = {
            "time": f"decoding it takes more than {seconds:.0f} s",
            "memory": f"decoding it takes more than {_MEMORY_BYTES / 2**30:g} GiB of memory",
        }
        raise BadInput(f"{name} cannot be read: {limits.get(error.cause, error)}.") from None
    finally:
        alone.close()


def _checked(function: str, result: Value) -> Value:
    """The result of a function of decoder_main; RuntimeFailure if it is of another kind."""
    match function, result:
        case "scores", None:
            return None
        case (
            ("prepared", {"size": [int(height), int(width)], "pixels": np.ndarray(dtype=np.uint8)})
            | ("size", [int(height), int(width)])
            | ("mask", np.ndarray(dtype=np.bool_, shape=(height, width)))
            | ("scores", np.ndarray(shape=(height, width)))
        ) if min(height, width) > 0 and height * width <= MOST_PIXELS:
            return result
    raise RuntimeFailure("the image decoder gave a reply that is no picture.")
