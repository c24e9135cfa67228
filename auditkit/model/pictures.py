"""Pictures are decoded, turned upright, resized and cropped. Those of files are decoded in the image decoder only.

Nothing here knows models: the decoder starts in a fraction of the time that their libraries take.
"""

import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.regular_files import reason

Picture = Image.Image | Array  # arrays are uint8 [height, width] or [height, width, 1 or 3]

MOST_PIXELS = 2**26  # of a picture; a few bytes may be gigabytes once decoded, and a thin strip after a resize
MOST_SCANS = 100  # of a progressive JPEG, each of which may visit every pixel; encoders write about ten
MOST_PARTS = 100_000  # segments of a JPEG or chunks of a PNG; 2^28 bytes have 32,768 chunks of the usual size
_BITS = 8  # for each channel
# What is decoded, whatever a file's name says: other formats of Pillow's call other programs, or are hardly tested.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF", "PPM")
# Raised by Pillow on damage of one kind or another.
_DAMAGED_PICTURE = (
    OSError,
    ValueError,
    SyntaxError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    OverflowError,
    ArithmeticError,
    struct.error,
)
_DEEP_MODES = ("I", "F")  # begin the names of Pillow's modes with more than 8 bits, which are all grey
_MORE_BITS = (
    "{} bits per channel, but only 8 are read; convert it to 8 bits with a window of your choice, or give its pixels "
    "as uint8 in an .npz"
)
_ORIENTATION = 0x0112  # number of the EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by the EXIF orientation
_FILTERS = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "box": Image.Resampling.BOX,
    "nearest": Image.Resampling.NEAREST,
    "lanczos": Image.Resampling.LANCZOS,
}
_BITS_PER_SAMPLE = 258  # number of the TIFF tag
_RAW_BITS = re.compile(r";(\d+)")  # in Pillow's name of what a PNG or PPM holds, such as RGB;16B

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNK_FRAME = 12  # bytes of a chunk's length, kind and checksum
_JPEG_SIGNATURE = b"\xff\xd8\xff"
_JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")  # of a segment with a length, or the end of the image
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # segments that begin with the bits per channel


@dataclass(frozen=True)
class Geometry:
    """Which pixels of a picture a network sees."""

    size: tuple[int, int]  # height, width
    resize: int | tuple[int, int] | None  # shorter side, or both sides, or not at all
    crop: str
    interpolation: str
    channels: int  # 3 for colour, 1 for grey
    exif_orientation: bool


def decoded(content: bytes, name: str, *, deep: bool = False) -> Image.Image:
    """The picture in the content of a file, which `name` names in messages; if `deep`, grey may have more than 8 bits.

    Nobody knows which of more shades matter: Pillow would keep the upper 8 bits of some files and clip others.
    """
    try:
        _check_structure(content)
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            if not (deep and picture.mode.startswith(_DEEP_MODES)):
                _check_bits(_bits(picture))
            picture.load()
            return picture
    except UnidentifiedImageError:
        raise BadInput(f"{name} cannot be read: it is none of {', '.join(FORMATS)}, or damaged.") from None
    except Image.DecompressionBombError:
        raise BadInput(f"{name} cannot be read: it has more than {MOST_PIXELS:,} pixels; make it smaller.") from None
    except _DAMAGED_PICTURE as error:
        raise BadInput(f"{name} cannot be read: {reason(error)}.") from None


def _check_structure(content: bytes) -> None:
    """ValueError with the reason where a few bytes would take long to decode."""
    scans = 0
    for parts, part in enumerate(_parts(content), start=1):
        scans += part == _START_OF_SCAN
        if scans > MOST_SCANS:
            raise ValueError(f"it is a JPEG of more than {MOST_SCANS} scans, each of which takes time; save it anew")
        if parts > MOST_PARTS:
            raise ValueError(f"it has more than {MOST_PARTS:,} segments or chunks; save it anew")


def _parts(content: bytes) -> Iterator[int]:
    """The marker of each segment of a JPEG, and a 0 for each chunk of a PNG; other formats have no parts."""
    if content.startswith(_PNG_SIGNATURE):
        start = len(_PNG_SIGNATURE)
        while start < len(content):
            yield 0
            start += _CHUNK_FRAME + int.from_bytes(content[start : start + 4])
    elif content.startswith(_JPEG_SIGNATURE):
        start = len(_JPEG_SIGNATURE) - 1
        while (match := _JPEG_MARKER.search(content, start)) and match[0][1] != _END_OF_IMAGE:
            marker, start = match[0][1], match.end()
            if marker in _FRAMES:
                _check_bits(content[start + 2])
            yield marker
            start += int.from_bytes(content[start : start + 2])


def _bits(picture: Image.Image) -> int:
    """The bits of each channel in the file of a picture that is not decoded yet."""
    if isinstance(picture, TiffImageFile):
        return int(max(picture.tag_v2.get(_BITS_PER_SAMPLE, (1,))))
    if not isinstance(picture, PngImageFile | PpmImageFile):
        return _BITS
    arguments = picture.tile[0][3]  # the name of the raw pixels, for some PPMs with the value of white
    name, white = arguments[:2] if isinstance(arguments, tuple) else (arguments or "", 0)
    match = _RAW_BITS.search(name)
    return max(int(match[1]) if match else 1, int(white).bit_length())


def _check_bits(bits: int) -> None:
    if bits > _BITS:
        raise ValueError(_MORE_BITS.format(f"it has {bits}"))


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
    if image.mode.startswith(_DEEP_MODES):
        raise BadInput(f"{_MORE_BITS.format(f'an image has pixels of mode {image.mode}, more than 8')}.")
    try:
        return image.convert("L" if channels == 1 else "RGB")
    except ValueError as error:
        raise BadInput(f"an image has colours of the kind {image.mode}, which cannot be used: {error}.") from None


def size_of(image: Picture) -> tuple[int, int]:
    """Height and width."""
    return (image.height, image.width) if isinstance(image, Image.Image) else image.shape[:2]


def resized_size(geometry: Geometry, height: int, width: int) -> tuple[int, int]:
    """Height and width after the resize and before the crop."""
    if geometry.resize is None:
        return height, width
    if isinstance(geometry.resize, tuple):
        return geometry.resize
    short = min(height, width)
    return geometry.resize * height // short, geometry.resize * width // short


def crop_box(geometry: Geometry, height: int, width: int) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of what the network sees of a resized picture."""
    rows, columns = geometry.size
    if (height, width) != geometry.size and (geometry.crop == "none" or height < rows or width < columns):
        sizes = f"{height}x{width} pixels after the resize, but the network takes {rows}x{columns}"
        raise BadInput(f"a picture has {sizes}; set resize and crop in the card.")
    top, left = round((height - rows) / 2), round((width - columns) / 2)  # half to even, as torchvision does
    return left, top, left + columns, top + rows


def prepared(image: Picture, geometry: Geometry) -> Array:
    """What the network sees of an upright image: uint8 [height, width, channels], RGB or grey."""
    picture = as_picture(image, geometry.channels)
    height, width = resized_size(geometry, picture.height, picture.width)
    if height * width > MOST_PIXELS:
        resized = f"{height}x{width} after the card's resize, more than {MOST_PIXELS:,}"
        raise BadInput(f"a picture of {picture.height}x{picture.width} pixels would have {resized}; crop it before.")
    if (height, width) != (picture.height, picture.width):
        picture = picture.resize((width, height), _FILTERS[geometry.interpolation])
    seen = np.asarray(picture.crop(crop_box(geometry, height, width)))
    return seen[..., None] if seen.ndim == 2 else seen
