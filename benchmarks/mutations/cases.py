"""One case of mutated input: the files in a folder, and the command that reads them."""

import io
import random
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

import auditkit
from auditkit.verdict.policy import SHIPPED, shipped_text
from benchmarks.mutations import content, models, pictures

_CARD = """\
schema_version = 1

[preprocessing]
preset = "imagenet"
size = [8, 8]
resize = 8
crop = "center"
interpolation = "bicubic"
channels = "RGB"
scale = 0.00392156862745098
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
gray = [124.0, 116.0, 104.0]
exif_orientation = true

[classes]
names = ["a", "b", "c", "d", "e"]

[signature]
input = "image"
output = "logits"
layout = "NCHW"
kind = "logits"
"""
_IMAGES = ("0.png", "1.png", "2.png")
_SHAPES = ((3, 8, 8, 3), (3, 0, 8, 3), (10**9, 8, 8, 3), (3, -8, -8, 3), (576,), (), (2**62, 2**62))
_TYPES = ("|u1", "<f4", "|O", "<U3", "<i8", "|V7", "nonsense", "<M8[s]")


@dataclass(frozen=True)
class Case:
    """A command to run in a folder, and what was mutated there."""

    number: int
    kind: str
    command: tuple[str, ...]


class Originals:
    """What the cases are mutated from; made once, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = models.originals(folder)
        rng = np.random.default_rng(0)
        for name in _IMAGES:
            (folder / "images").mkdir(exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (9, 11, 3), dtype=np.uint8)).save(folder / "images" / name)
        bundle = auditkit.Bundle(folder / "maps", method="noise", frame="model-input")
        bundle.add(list(_IMAGES), [0, 1, 2], list(rng.random((3, 8, 8))))

    def case(self, number: int, seed: int, folder: Path) -> Case:
        """The case of that number, its files written to an empty folder."""
        rng = random.Random(f"{seed}/{number}")  # noqa: S311 - no secret
        (kind,) = rng.choices(list(_KINDS), [share for share, _ in _KINDS.values()])
        return Case(number, kind, _KINDS[kind][1](self, rng, folder))

    def _model(self, rng: random.Random, folder: Path) -> tuple[str, ...]:
        path = rng.choice(self.models)
        (folder / "model.onnx").write_bytes(models.edited(rng, path))
        data = self.folder / "external.data"
        (folder / data.name).write_bytes(
            data.read_bytes() if rng.random() < 0.7 else content.bytes_edited(rng, data.read_bytes())
        )
        options: tuple[tuple[str, ...], ...] = ((), (), ("--json",), ("--preset", "unit"), ("--kind", "logits"))
        return ("inspect", "model.onnx", *_CAREFUL, *rng.choice(options))

    def _card(self, rng: random.Random, folder: Path) -> tuple[str, ...]:
        shutil.copy(self.models[0], folder / "model.onnx")
        (folder / "card.toml").write_bytes(content.toml_edited(rng, _CARD))
        return ("inspect", "model.onnx", "--card", "card.toml", *_CAREFUL)

    def _policy(self, rng: random.Random, folder: Path) -> tuple[str, ...]:
        (folder / "policy.toml").write_bytes(content.toml_edited(rng, shipped_text(rng.choice(SHIPPED))))
        return ("policy", "check", "policy.toml")

    def _bundle(self, rng: random.Random, folder: Path) -> tuple[str, ...]:
        shutil.copytree(self.folder / "maps", folder / "maps")
        shutil.copytree(self.folder / "images", folder / "images")
        header, manifest = folder / "maps" / "bundle.json", folder / "maps" / "manifest.csv"
        maps = next((folder / "maps" / "maps").glob("*.npy"))
        kind = rng.randrange(6)
        if kind < 2:
            header.write_bytes(content.json_edited(rng, header.read_text()))
        elif kind < 4:
            manifest.write_bytes(content.csv_edited(rng, manifest.read_text()))
        elif kind == 4:
            maps.write_bytes(_npy_edited(rng, maps.read_bytes()))
        else:
            header.unlink()
            manifest.write_bytes(content.csv_edited(rng, manifest.read_text()))
            return ("bundle", "import", "maps", "-o", "imported", "--frame", "model-input", "--method", "m")
        return ("bundle", "check", "maps", *rng.choice(((), ("--images", "images"), ("--json",))))

    def _image(self, rng: random.Random, folder: Path) -> tuple[str, ...]:
        shutil.copy(self.models[0], folder / "model.onnx")
        names = (
            ("0", "1", "2", "3") if rng.random() < 0.9 else ("0", rng.choice(("1\n", ".git", "x", "9" * 30)), "2", "3")
        )
        for index, name in enumerate(names):
            (folder / "images" / name).mkdir(parents=True)
            shutil.copy(self.folder / "images" / _IMAGES[index % 3], folder / "images" / name / "good.png")
        suffix, picture = pictures.drawn(rng)
        odd = rng.choice(("bad", "bad", "bad", "b\nd", "b\x1b[2Jd", "b\udcffd", "é", "b" * 200, "-b", "a b"))
        (folder / "images" / names[0] / f"{odd}{suffix}").write_bytes(picture)
        options = ("--ignore-exif",) * (rng.random() < 0.2)
        return ("inspect", "model.onnx", "--images", "images", "--preset", "unit", *_CAREFUL, *options)

    def _image_set(self, rng: random.Random, folder: Path) -> tuple[str, ...]:
        shutil.copy(self.models[0], folder / "model.onnx")
        shutil.copytree(self.folder / "images", folder / "images")
        if rng.random() < 0.5:
            rows = "\n".join(f"images/{name},{index},1,1,7,7" for index, name in enumerate(_IMAGES))
            (folder / "set.csv").write_bytes(content.csv_edited(rng, f"image,label,x0,y0,x1,y1\n{rows}\n"))
            name = "set.csv"
        else:
            (folder / "set.npz").write_bytes(_npz(rng))
            name = "set.npz"
        return ("inspect", "model.onnx", "--images", name, "--preset", "unit", *_CAREFUL)


_CAREFUL = ("--device", "cpu", "--time-limit", "10")
_Write = Callable[[Originals, random.Random, Path], tuple[str, ...]]
# How often each kind is drawn, and what writes it.
_KINDS: dict[str, tuple[float, _Write]] = {
    "model": (0.4, Originals._model),
    "card": (0.15, Originals._card),
    "policy": (0.1, Originals._policy),
    "bundle": (0.15, Originals._bundle),
    "image": (0.15, Originals._image),
    "image set": (0.05, Originals._image_set),
}


def _npy_edited(rng: random.Random, original: bytes) -> bytes:
    if rng.random() < 0.5:
        return content.bytes_edited(rng, original)
    order = f"'fortran_order': {rng.choice((True, False, 7))}"
    header = f"{{'descr': '{rng.choice(_TYPES)}', {order}, 'shape': {rng.choice(_SHAPES)}, }}"
    header = rng.choice((header, header, header[:-4], "[" * 3000, header + "#" * 60_000))
    text = (header + " " * (-(len(header) + 11) % 64) + "\n").encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + original[128:]


def _npz(rng: random.Random) -> bytes:
    stream = io.BytesIO()
    shape = rng.choice(((3, 8, 8, 3), (3, 0, 8, 3), (0, 8, 8, 3), (3, 8, 8), (3, 8, 8, 1)))
    arrays = {"images": np.zeros(shape, np.uint8),
              "labels": np.array(rng.choice(([0, 1, 2], [0, 1], [0.5, 1, 2], [-1, 0, 1], [2**62, 0, 1])))}  # fmt: skip
    with zipfile.ZipFile(stream, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.save(member, array)
            data = member.getvalue()
            archive.writestr(f"{name}.npy", _npy_edited(rng, data) if rng.random() < 0.4 else data)
    return content.bytes_edited(rng, stream.getvalue()) if rng.random() < 0.4 else stream.getvalue()
