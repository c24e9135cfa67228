"""Pictures become network inputs: decode, resize, crop, normalise."""

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from auditkit import elsewhere
from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.model.card import Card
from auditkit.model.signature import Layout, Signature
from auditkit.regular_files import open_regular, reason

Picture = Image.Image | Array  # arrays are uint8 [height, width] or [height, width, 1 or 3]

_BLUR_SIGMA_AT_224 = 5.0
_SIXTEEN_BITS = ("PNG", "PPM")  # formats whose wide grey is that, and comes as 32 bits
_MOST_PIXELS = 2**26  # of a picture; a few bytes may be gigabytes once decoded, and a thin strip after a resize
_MOST_FILE_BYTES = 2**28  # of a picture; 2^26 pixels rarely fill as much
# What is decoded, whatever a file's name says: other formats of Pillow's call other programs, or are hardly tested.
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF", "PPM")
# Raised by Pillow on damage of one kind or another; warnings where the user turns them into errors.
_DAMAGED_PICTURE = (OSError, ValueError, SyntaxError, LookupError, TypeError, AttributeError, EOFError, OverflowError,
                    ArithmeticError, MemoryError, struct.error, Warning)  # fmt: skip
_ORIENTATION = 0x0112  # number of the EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by the EXIF orientation; fmt: skip
_FILTERS = {
    "bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR, "box": Image.Resampling.BOX,
    "nearest": Image.Resampling.NEAREST, "lanczos": Image.Resampling.LANCZOS,
}  # fmt: skip


def opened(path: "str | Path") -> Image.Image:
    """The decoded picture of a file, or one sentence that names the file."""
    if elsewhere.asker is not None:
        return elsewhere.asker(opened, path)
    try:
        with open_regular(Path(path)) as stream:
            if os.fstat(stream.fileno()).st_size > _MOST_FILE_BYTES:
                raise OSError(f"it has more than {_MOST_FILE_BYTES:,} bytes")
            with Image.open(stream, formats=_FORMATS) as picture:
                if picture.width * picture.height > _MOST_PIXELS:
                    raise Image.DecompressionBombError
                picture.load()
                return picture
    except UnidentifiedImageError:
        raise BadInput(f"the image {path} cannot be read: it is none of {', '.join(_FORMATS)}, or damaged.") from None
    except Image.DecompressionBombError:
        raise BadInput(
            f"the image {path} cannot be read: it has more than {_MOST_PIXELS:,} pixels; make it smaller."
        ) from None
    except _DAMAGED_PICTURE as error:
        raise BadInput(f"the image {path} cannot be read: {reason(error)}.") from None


def upright(image: Picture, exif_orientation: bool) -> Picture:
    """The image turned or mirrored as its EXIF orientation says, where that is to be applied; arrays have none."""
    return turned(image) if exif_orientation and isinstance(image, Image.Image) else image


def turned(image: Image.Image) -> Image.Image:
    """The picture turned or mirrored as its EXIF orientation says."""
    try:
        turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    except _DAMAGED_PICTURE:  # metadata that cannot be read say nothing
        return image
    if turn is None:
        return image
    result = image.transpose(turn)
    result.format, result.info = image.format, {}  # without the orientation, which must not be applied again
    return result


def as_picture(image: Picture, channels: int) -> Image.Image:
    """A picture in colour or grey; arrays must be uint8 [height, width] or [height, width, 1 or 3]."""
    if not isinstance(image, Image.Image):
        array = np.asarray(image)
        if 0 in array.shape:
            raise BadInput(f"an image is {array.dtype}{list(array.shape)} and has no pixels.")
        if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3)):
            kind = f"{array.dtype}{list(array.shape)}"
            raise BadInput(f"an image is {kind}, expected uint8 [height, width, 3] with pixels 0..255.")
        image = Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array)
    if image.mode == "F" or (image.mode == "I" and image.format not in _SIXTEEN_BITS):
        kind = "floating-point" if image.mode == "F" else "32-bit"
        raise BadInput(f"an image has {kind} pixels, so white is not defined; save it with 8 or 16 bits.")
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip instead of scaling
        image = Image.fromarray((np.asarray(image, np.uint32) >> 8).clip(0, 255).astype(np.uint8))
    try:
        return image.convert("L" if channels == 1 else "RGB")
    except ValueError as error:
        raise BadInput(f"an image has colours of the kind {image.mode}, which cannot be used: {error}.") from None


def resized_size(card: Card, height: int, width: int) -> tuple[int, int]:
    """Height and width after the resize and before the crop."""
    if card.resize is None:
        return height, width
    if isinstance(card.resize, tuple):
        return card.resize
    short = min(height, width)
    return card.resize * height // short, card.resize * width // short


def crop_box(card: Card, height: int, width: int) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of what the network sees of a resized picture."""
    rows, columns = card.size
    if (height, width) != card.size and (card.crop == "none" or height < rows or width < columns):
        sizes = f"{height}x{width} pixels after the resize, but the network takes {rows}x{columns}"
        raise BadInput(f"a picture has {sizes}; set resize and crop in the card.")
    top, left = round((height - rows) / 2), round((width - columns) / 2)  # half to even, as torchvision does
    return left, top, left + columns, top + rows


def pixels(card: Card, image: Picture) -> Array:
    """What the network sees of one image: uint8 [height, width, channels], RGB or grey."""
    picture = as_picture(upright(image, card.exif_orientation), len(card.mean))
    height, width = resized_size(card, picture.height, picture.width)
    if height * width > _MOST_PIXELS:
        resized = f"{height}x{width} after the card's resize, more than {_MOST_PIXELS:,}"
        raise BadInput(f"a picture of {picture.height}x{picture.width} pixels would have {resized}; crop it before.")
    if (height, width) != (picture.height, picture.width):
        picture = picture.resize((width, height), _FILTERS[card.interpolation])
    seen = np.asarray(picture.crop(crop_box(card, height, width)))
    return seen[..., None] if seen.ndim == 2 else seen


def normalised(card: Card, seen: Array, layout: Layout, dtype: str) -> Array:
    """Network input for pixels [N, height, width, channels]; exact, since there are only 256 pixel values."""
    ordered = seen[..., ::-1] if card.channels == "BGR" else seen
    table = card.table().astype(dtype)
    values = np.empty((len(seen), len(card.mean), *seen.shape[1:3]), dtype)
    for channel, of_channel in enumerate(table):
        np.take(of_channel, ordered[..., channel], out=values[:, channel], mode="clip")
    return values if layout == "NCHW" else np.ascontiguousarray(values.transpose(0, 2, 3, 1))


def flat_picture(card: Card, signature: Signature, colour: Sequence[float]) -> Array:
    """One picture [1, ...] of one colour (pixel values, RGB or grey), as the network takes it."""
    ordered = np.array(colour[::-1] if card.channels == "BGR" else colour, np.float64)
    values = (ordered * card.scale - np.array(card.mean)) / np.array(card.std)
    if signature.dtype == "uint8":
        values = np.round(values)
    shape = (-1, 1, 1) if signature.layout == "NCHW" else (1, 1, -1)
    return np.broadcast_to(values.reshape(shape), signature.array_shape(1)).astype(signature.dtype)


def blurred(inputs: Array, signature: Signature, sigma: float | None = None) -> Array:
    """Gaussian blur of network inputs; sigma, unless given, in proportion to the shorter side."""
    sigma = _BLUR_SIGMA_AT_224 * min(signature.height, signature.width) / 224 if sigma is None else sigma
    smooth = gaussian_blur(inputs, signature, sigma)
    return np.asarray(np.round(smooth) if signature.dtype == "uint8" else smooth).astype(signature.dtype)


def gaussian_blur(inputs: Array, signature: Signature, sigma: float) -> Array:
    """Gaussian blur of network inputs in float64, not rounded; sigma is in pixels."""
    from scipy import ndimage  # noqa: PLC0415 - slow to import

    axes = (2, 3) if signature.layout == "NCHW" else (1, 2)
    return np.asarray(ndimage.gaussian_filter(inputs.astype(np.float64), sigma, axes=axes, mode="reflect"))
