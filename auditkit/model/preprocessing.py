"""Pictures become network inputs: decoded, resized, cropped and normalised."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from auditkit.arrays import Array
from auditkit.model import decoder, pictures
from auditkit.model.card import Card
from auditkit.model.pictures import Picture
from auditkit.model.signature import Layout, Signature

_BLUR_SIGMA_AT_224 = 5.0


def pixels(card: Card, image: "Picture | str | Path") -> Array:
    """What the network sees of an image or an image file: uint8 [height, width, channels], RGB or grey."""
    if isinstance(image, str | Path):
        return decoder.prepared(Path(image), card.geometry)[1]
    return pictures.prepared(pictures.upright(image, card.exif_orientation), card.geometry)


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
