"""Panels of three pictures for each map: the image, the ranks of its pixels as heat, and its most important 5 %."""

import io
import re
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from auditkit.arrays import Array
from auditkit.data.alignment import to_model_input
from auditkit.data.atomic_write import write_whole
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.data.ranks import Order
from auditkit.model.card import Card
from auditkit.model.classifier import AnyClassifier

KEPT = 0.05  # share of the pixels that the third picture shows
LEAST_SIDE = 224  # of a panel; smaller images are enlarged by whole factors
CAPTION = 18  # pixels above the panels
GAP = 4  # pixels between panels
FONT_RANGE = 256  # the built-in font has no characters beyond Latin-1
HEAT = ((0, (0, 0, 0)), (0.35, (128, 0, 38)), (0.65, (240, 60, 32)), (0.85, (254, 178, 76)), (1, (255, 255, 204)))


def draw(model: AnyClassifier, images: Dataset, bundle: HeatmapSet, folder: Path) -> int:
    """Draw one picture for each map of the bundle whose image is in the dataset; returns their number."""
    folder.mkdir(parents=True, exist_ok=True)
    positions, count = {name: position for position, name in enumerate(images.ids)}, 0
    for image, labels in bundle.labels.items():
        if image not in positions:
            continue
        decoded = images.decode(positions[image], model.card)
        for label in labels:
            values = to_model_input(bundle.get(image, label), bundle.header.frame, model.card, decoded.size)
            name = f" ({model.card.names[label]})" if label < len(model.card.names) else ""
            sheet = panels(decoded.pixels, values, gray_pixel(model.card), f"label {label}{name}")
            content = io.BytesIO()
            sheet.save(content, "PNG")
            write_whole(folder / f"{_safe(image)}-{label}.png", content.getbuffer())
            count += 1
    return count


def panels(pixels: Array, values: Array, gray: Array, caption: str) -> Image.Image:
    """Image, heat and kept pixels side by side."""
    order = Order(values)
    colours = in_colour(pixels)
    parts = [_enlarged(part) for part in (colours, heat(shares(order)), kept(colours, order.ranks("first"), gray))]
    height, width = parts[0].height, parts[0].width
    sheet = Image.new("RGB", (3 * width + 2 * GAP, height + CAPTION), "white")
    for column, part in enumerate(parts):
        sheet.paste(part, (column * (width + GAP), CAPTION))
    text = "".join(c if c.isprintable() and ord(c) < FONT_RANGE else "?" for c in caption)
    ImageDraw.Draw(sheet).text((2, 3), f"{text}: image, order, first {KEPT:.0%}", fill="black")
    return sheet


def gray_pixel(card: Card) -> Array:
    """The colour of hidden pixels."""
    return np.array(card.gray, np.float64).round().clip(0, 255).astype(np.uint8)


def in_colour(pixels: Array) -> Array:
    """Pixels [height, width, 3], also of a grey picture."""
    return pixels if pixels.shape[2] == 3 else pixels.repeat(3, axis=2)


def kept(pixels: Array, ranks: Array, gray: Array) -> Array:
    """The picture with all but its most important pixels gray."""
    return np.where((ranks < KEPT * ranks.size)[..., None], pixels, gray)


def shares(order: Order) -> Array:
    """Ranks from 1 at the most important pixel to 0 at the least; tied pixels share the mean of their ranks."""
    sizes = np.diff(order.groups)
    middle = order.groups[:-1] + (sizes - 1) / 2
    share = np.empty(order.pixels.size)
    share[order.pixels] = 1 - np.repeat(middle, sizes) / (order.pixels.size - 1 or 1)
    return share.reshape(order.shape)


def heat(share: Array) -> Array:
    """Colours uint8 [height, width, 3] of numbers from 0 to 1."""
    stops = [stop for stop, _ in HEAT]
    channels = [np.interp(share, stops, [colour[channel] for _, colour in HEAT]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def _enlarged(part: Array) -> Image.Image:
    factor = max(1, -(-LEAST_SIDE // part.shape[0]))
    return Image.fromarray(np.ascontiguousarray(part.repeat(factor, axis=0).repeat(factor, axis=1)))


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip(".")[:100] or "image"
