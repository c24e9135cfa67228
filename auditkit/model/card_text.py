"""A card written out as TOML, for its owner to check and change."""

from auditkit.model.card import CROPS, INTERPOLATIONS, ORDERS, SCHEMA_VERSION, Card
from auditkit.model.signature import Signature


def to_toml(card: Card, signature: Signature, about: str) -> str:
    """The card as TOML to start from, with a comment on every line that a vendor should confirm."""
    names = f"names = [{', '.join(_quoted(name) for name in card.names)}]"
    if not card.names:
        names = f"names = []   # {signature.classes} names in the order of the scores, or: file = 'classes.txt'"
    resize = '"none"' if card.resize is None else str(card.resize)
    if isinstance(card.resize, tuple):
        resize = str(list(card.resize))
    return f"""\
# How pictures reach {_one_line(about)}, and what its classes are called.
# value = (x * scale - mean) / std for each channel in the stated order, x a pixel in 0..255.
# Started from {_one_line(str(card.origin))}: confirm every line with the vendor.
schema_version = {SCHEMA_VERSION}

[preprocessing]
size = {list(card.size)}   # height, width of the network's input
resize = {resize}   # shorter side before the crop, or [height, width], or "none"
crop = "{card.crop}"   # {", ".join(CROPS)}
interpolation = "{card.interpolation}"   # {", ".join(INTERPOLATIONS)}
channels = "{card.channels}"   # {", ".join(ORDERS)}
scale = {card.scale!r}
mean = {list(card.mean)}
std = {list(card.std)}
gray = {[round(value, 3) for value in card.gray]}   # infill, pixel units, RGB

[classes]
{names}

[signature]   # as found; change what was guessed wrong
input = {_quoted(signature.input)}
output = {_quoted(signature.output)}
layout = "{signature.layout}"
kind = "{signature.kind}"
"""


def _one_line(text: str) -> str:
    """A name that cannot end the comment it stands in."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _quoted(text: str) -> str:
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(sign: str) -> str:
    """A character as a TOML string has it."""
    if ord(sign) < 32 or ord(sign) == 127:
        return f"\\u{ord(sign):04x}"
    return f"\\{sign}" if sign in '"\\' else sign
