"""Small pictures of all formats, and edits of their files, drawn at random."""

import io
import random
import struct
import zlib

import numpy as np
from PIL import Image

from benchmarks.mutations.content import bytes_edited

_BY_FORMAT = {
    "PNG": ("RGB", "L", "P", "RGBA", "1", "LA", "I;16"), "JPEG": ("RGB", "L", "CMYK"), "GIF": ("P", "L"),
    "TIFF": ("RGB", "L", "P", "RGBA", "1", "I;16", "CMYK", "F", "I"), "BMP": ("RGB", "L", "P", "1"),
    "WEBP": ("RGB", "RGBA"), "PPM": ("RGB", "L", "1", "I;16"),
}  # fmt: skip
_SIDES = (0, 1, 8, 65535, 65536, 2**24, 2**31 - 1, 2**32 - 1)
_CHUNKS = (b"eXIf", b"iCCP", b"tRNS", b"PLTE", b"gAMA", b"zTXt", b"iTXt", b"acTL", b"fcTL", b"IDAT", b"IEND", b"xxxx")


def drawn(rng: random.Random) -> tuple[str, bytes]:
    """Suffix and content of a picture after edits of its structure, its metadata or its bytes."""
    kind = rng.choice(list(_BY_FORMAT))
    content = _picture(rng, kind)
    if kind == "PNG" and rng.random() < 0.6:
        content = _png_edited(rng, content)
    elif rng.random() < 0.8:
        content = bytes_edited(rng, content)
    other = rng.random() < 0.1  # a name that says another format
    return f".{rng.choice(list(_BY_FORMAT)) if other else kind}".lower(), content


def _picture(rng: random.Random, kind: str) -> bytes:
    mode = rng.choice(_BY_FORMAT[kind])
    width, height = rng.choice(((8, 8), (9, 13), (1, 1), (1, 500), (64, 48)))
    picture = _noise(rng, mode, width, height)
    options: dict[str, object] = {}
    if rng.random() < 0.5 and kind in ("PNG", "JPEG", "WEBP", "TIFF"):
        options["exif"] = _exif(rng)
    if rng.random() < 0.2 and kind in ("GIF", "TIFF", "PNG", "WEBP"):
        frames = [_noise(rng, mode, *rng.choice(((width, height), (1, 1), (300, 2)))) for _ in range(3)]
        options |= {"save_all": True, "append_images": frames}
    if kind == "TIFF":
        options["compression"] = rng.choice((None, "tiff_lzw", "tiff_adobe_deflate", "packbits"))
    stream = io.BytesIO()
    try:
        picture.save(stream, kind, **options)
    except Exception:  # not all options go together
        stream = io.BytesIO()
        _noise(rng, _BY_FORMAT[kind][0], width, height).save(stream, kind)
    return stream.getvalue()


def _noise(rng: random.Random, mode: str, width: int, height: int) -> Image.Image:
    values = np.frombuffer(rng.randbytes(width * height * 3), np.uint8).reshape(height, width, 3)
    if mode == "I;16":
        return Image.fromarray(values[..., 0].astype(np.uint16) * 257)
    if mode == "F":
        return Image.fromarray(values[..., 0].astype(np.float32))
    return Image.fromarray(values).convert(mode)


def _exif(rng: random.Random) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 65535))
    exif[0x010E] = rng.choice(("", "a picture", "x" * 1000))
    content = exif.tobytes()
    return bytes_edited(rng, content) if rng.random() < 0.4 else content


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png_edited(rng: random.Random, content: bytes) -> bytes:
    """A PNG whose header or chunks say something else, with checksums that fit."""
    kind = rng.randrange(4)
    if kind == 0:  # another size, depth, colour type or packing
        fields = list(struct.unpack(">IIBBBBB", content[16:29]))
        fields[rng.randrange(7)] = rng.choice((0, 1, 2, 3, 4, 6, 8, 16, 255))
        for side in range(2):
            if rng.random() < 0.5:
                fields[side] = rng.choice(_SIDES)
        return content[:8] + _chunk(b"IHDR", struct.pack(">IIBBBBB", *fields)) + content[33:]
    data = rng.choice(
        (b"", rng.randbytes(40), b"x\0\0" + zlib.compress(bytes(10**7)), b"x\0" + zlib.compress(bytes(10**7)))
    )
    extra = _chunk(rng.choice(_CHUNKS), data)
    if kind == 1:
        return content[:33] + extra * rng.choice((1, 3, 100)) + content[33:]
    if kind == 2:
        return content[:33] + _chunk(b"IDAT", zlib.compress(bytes(rng.choice((0, 10, 10**7))))) + _chunk(b"IEND", b"")
    return content[:33] + struct.pack(">I", rng.choice((2**31, 2**32 - 1, 10**6))) + content[37:]
