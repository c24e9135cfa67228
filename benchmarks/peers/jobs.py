"""Folders that workers open: the network for everybody, and files of images, labels and maps to measure."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import auditkit
from auditkit.arrays import Array
from auditkit.data.dataset import Dataset
from auditkit.model.classifier import OnnxClassifier
from benchmarks.peers import network

SEED = 2022
SIDE = 256  # of a photograph, whose middle 224 pixels the network sees


@dataclass(frozen=True)
class Case:
    """So many images with so many of their likeliest labels each, at so many points a curve."""

    images: int
    labels: int
    points: int

    @property
    def name(self) -> str:
        """How it stands in the results."""
        return f"{self.images} images, {self.labels} labels, {self.points} points"


class Bench:
    """A model and images with maps for all that any case asks for."""

    method = "gradient-input"

    def __init__(self, folder: Path, model: Path, preset: str, pictures: Array, labels: int, few: int) -> None:
        """The first `few` images get maps for `labels` labels, the others for one."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.pictures = folder, pictures
        shutil.copyfile(model, folder / "model.onnx")
        network.write(model, folder)
        opened = auditkit.load(folder / "model.onnx", preset=preset, settings=auditkit.Settings(device="cpu"))
        assert isinstance(opened, OnnxClassifier)
        self.classes, self.inputs = opened.signature.classes, opened.preprocess(pictures).astype(np.float32)
        card = opened.card
        (folder / "card.json").write_text(json.dumps(card.to_json() | {"preset": preset}))
        self.order = np.argsort(-opened.probabilities(pictures), axis=1)
        self.maps: dict[tuple[int, int], Array] = {}
        self._explain(opened, np.arange(few), labels)
        self._explain(opened, np.arange(few, len(pictures)), 1)
        border = [(side - size) // 2 for side, size in zip(pictures.shape[1:3], card.size, strict=True)]
        self.shown = pictures[:, border[0] : border[0] + card.size[0], border[1] : border[1] + card.size[1]]
        self.job("first", np.arange(1), 1)

    def _explain(self, model: OnnxClassifier, places: Array, labels: int) -> None:
        if len(places) == 0:
            return
        out = self.folder / f"maps-{places[0]}"
        found = auditkit.explain(model, self.pictures[places], out, self.method, labels=f"top{labels}")
        for number, place in enumerate(places.tolist()):
            for label in self.order[place, :labels].tolist():
                self.maps[place, label] = found.get(str(number), label)

    def job(self, name: str, images: Array, labels: int) -> Path:
        """A file of the curves of some images and their likeliest labels."""
        pairs = [(at, label) for at, place in enumerate(images) for label in self.order[place, :labels].tolist()]
        maps = np.stack([self.maps[int(images[at]), label] for at, label in pairs]).astype(np.float32)
        path = self.folder / f"{name}.npz"
        np.savez(path, pictures=self.pictures[images], shown=self.shown[images], inputs=self.inputs[images],
                 image=np.array([at for at, _ in pairs]), label=np.array([label for _, label in pairs]),
                 maps=maps)  # fmt: skip
        return path

    @property
    def pixels(self) -> int:
        """Of a map."""
        return int(self.inputs[0, 0].size)

    def asked(self, case: Case) -> dict[str, Any]:
        """What a worker is sent for a case."""
        path = self.job(f"{case.images}x{case.labels}", np.arange(case.images), case.labels)
        return {"job": str(path), "points": case.points}


class QuickBench(Bench):
    """The same with maps that cost nothing, where only time is looked at."""

    method = "random"


def cifar_pictures(assets: Path, count: int) -> Array:
    """Test images by chance."""
    with np.load(assets / "images" / "cifar10_test_1000.npz") as held:
        pictures = held["images"]
    return np.asarray(pictures[np.random.default_rng(SEED).permutation(len(pictures))[:count]])


def photographs(assets: Path, count: int) -> Array:
    """The first photographs, made square, so that all tools see the same pixels."""
    every = Dataset.open(assets / "images" / "nips17_150", 1000, ())
    return np.stack([_square(every.images[place]) for place in range(count)])


def _square(picture: Path) -> Array:
    whole = Image.open(picture)
    return np.asarray(whole.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC))
