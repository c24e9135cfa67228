"""Pictures of maps for people to look at: the image, the order of its pixels as heat, and its most important 30 %."""

import re
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from auditkit.arrays import Array
from auditkit.data.alignment import to_model_input
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.data.ranks import Order
from auditkit.model.classifier import AnyClassifier

KEPT = 0.3
LEAST_SIDE = 224  # of a panel; smaller images are enlarged by whole factors
CAPTION = 18
HEAT = ((0, (0, 0, 0)), (0.35, (128, 0, 38)), (0.65, (240, 60, 32)), (0.85, (254, 178, 76)), (1, (255, 255, 204)))


def draw(model: AnyClassifier, images: Dataset, bundle: HeatmapSet, folder: Path) -> int:
    """One picture for each map of the bundle that the images know; how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    positions, count = {name: place for place, name in enumerate(images.ids)}, 0
    for image, labels in bundle.labels.items():
        if image not in positions:
            continue
        decoded = images.decode(positions[image], model.card)
        size, seen = decoded.size, decoded.pixels
        gray = np.array(model.card.gray, np.float64).round().astype(np.uint8)
        for label in labels:
            values = to_model_input(bundle.get(image, label), bundle.header.frame, model.card, size)
            named = f" ({model.card.names[label]})" if label < len(model.card.names) else ""
            panels(seen, values, gray, f"label {label}{named}").save(folder / f"{_safe(image)}-{label}.png")
            count += 1
    return count


def panels(seen: Array, values: Array, gray: Array, caption: str) -> Image.Image:
    """Image, heat and kept pixels side by side."""
    order = Order(values)
    shown = in_colour(seen)
    parts = [_enlarged(part) for part in (shown, heat(shares(order)), kept(shown, order.ranks("first"), gray))]
    height, width = parts[0].height, parts[0].width
    sheet = Image.new("RGB", (3 * width + 8, height + CAPTION), "white")
    for place, part in enumerate(parts):
        sheet.paste(part, (place * (width + 4), CAPTION))
    text = "".join(c if c.isprintable() and ord(c) < 256 else "?" for c in caption)  # the built-in font has no more
    ImageDraw.Draw(sheet).text((2, 3), f"{text}: image, order, first {KEPT:.0%}", fill="black")
    return sheet


def in_colour(seen: Array) -> Array:
    """Pixels [height, width, 3], also of a grey picture."""
    return seen if seen.shape[2] == 3 else seen.repeat(3, axis=2)


def kept(shown: Array, ranks: Array, gray: Array) -> Array:
    """The picture with all but its most important pixels gray."""
    return np.where((ranks < KEPT * ranks.size)[..., None], shown, gray)


def shares(order: Order) -> Array:
    """1 at the most important pixel, 0 at the least, by rank; pixels of equal score have the mean of theirs."""
    sizes = np.diff(order.groups)
    middle = order.groups[:-1] + (sizes - 1) / 2
    found = np.empty(order.pixels.size)
    found[order.pixels] = 1 - np.repeat(middle, sizes) / (order.pixels.size - 1 or 1)
    return found.reshape(order.shape)


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
