"""What the image decoder does for the main process: it turns the content of files into pixels.

It opens no file and runs no model, so it starts in a fraction of the time that a model's worker takes.
"""

from collections.abc import Callable

import numpy as np

from auditkit.arrays import Array
from auditkit.model import pictures
from auditkit.model.messages import Value
from auditkit.model.pictures import Geometry
from auditkit.model.serving import serve
from auditkit.records import from_json


def prepared(content: bytes, name: str, plain_geometry: Value) -> dict[str, Value]:
    """The size of a picture, upright, and what the network sees of it."""
    geometry = from_json(Geometry, plain_geometry, "geometry")
    picture = pictures.upright(pictures.decoded(content, name), geometry.exif_orientation)
    return {"size": pictures.size_of(picture), "pixels": pictures.prepared(picture, geometry)}


def size(content: bytes, name: str, exif_orientation: bool) -> tuple[int, int]:
    """Height and width of a picture that can be decoded."""
    return pictures.size_of(pictures.upright(pictures.decoded(content, name), exif_orientation))


def mask(content: bytes, name: str, exif_orientation: bool) -> Array:
    """True where a picture is not black."""
    picture = pictures.decoded(content, name, deep=True)
    if exif_orientation:
        picture = pictures.turned(picture)
    return np.asarray(np.asarray(picture.convert("L")) > 0)


def scores(content: bytes, name: str) -> Array | None:
    """The values of a grey picture as they are stored, even if as three equal channels; None for a colour picture."""
    picture = pictures.decoded(content, name, deep=True)
    if len(picture.getbands()) == 1 and picture.mode != "P":
        return np.asarray(picture)
    colours = np.asarray(picture.convert("RGB"))
    return colours[..., 0].copy() if (colours == colours[..., :1]).all() else None


_FUNCTIONS: dict[str, Callable[..., Value]] = {"prepared": prepared, "size": size, "mask": mask, "scores": scores}


def main() -> None:
    """Answer the calls of the main process."""
    serve(_FUNCTIONS)
