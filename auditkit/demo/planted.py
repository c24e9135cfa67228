"""The planted-truth demo: two models that look alike, on images whose truth is known because they were drawn here."""

import importlib.resources
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from auditkit.demo.draw import CLASSES, Planted, draw
from auditkit.errors import BadInput
from auditkit.model.classifier import OnnxClassifier, Opening, open_file
from auditkit.model.session import Settings

Array = np.ndarray[Any, Any]
MODELS = ("honest", "shortcut")
CHUNK = 64
SHOWN = 6  # example images of each kind in the picture
ZOOM, GAP, LINE = 3, 14, 17


def bundled(name: str) -> Path:
    """Path of a model that comes with auditkit; beside the package in an installation, in models/ in a checkout."""
    package = Path(str(importlib.resources.files("auditkit")))
    for folder in (package / "models", package.parent / "models"):
        if (folder / f"{name}.onnx").is_file():
            return folder / f"{name}.onnx"
    raise BadInput(f"the bundled model '{name}' is missing from this installation; install auditkit again.")


@dataclass(frozen=True)
class Answers:
    """How one model did on images whose tags agree with the shape, and on images whose tags disagree."""

    model: str
    correct_when_agree: float
    correct_when_disagree: float
    followed_tag: float  # share of the disagreeing images on which the answer is what the tag says

    def sentence(self) -> str:
        """The three shares in words."""
        return (
            f"{self.correct_when_agree:.1%} right when the tag tells the truth, {self.correct_when_disagree:.1%} when "
            f"it lies ({self.followed_tag:.1%} follow the tag)"
        )


@dataclass(frozen=True)
class Demo:
    """What the demo found and where its picture lies."""

    answers: tuple[Answers, ...]
    count: int
    seed: int
    picture: Path

    def to_json(self) -> dict[str, Any]:
        """Plain object for --json."""
        return {
            "schema_version": 1, "count": self.count, "seed": self.seed, "picture": str(self.picture),
            "models": [asdict(answer) for answer in self.answers],
        }  # fmt: skip

    def rows(self) -> list[tuple[str, str]]:
        """The same as lines of a table."""
        cheats = [answer.model for answer in self.answers if answer.followed_tag > 0.5]
        return [
            ("images", f"{self.count} with true tags and {self.count} with false ones, seed {self.seed}"),
            *((answer.model, answer.sentence()) for answer in self.answers),
            ("so", f"{', '.join(cheats) or 'neither model'} reads the tag instead of the shape"),
            ("picture", str(self.picture)),
        ]


def run(out: Path, count: int, seed: int, settings: Settings, progress: Callable[[int], Callable[[int], None]]) -> Demo:
    """Ask both bundled models about images with true and with false tags, and paint examples."""
    tick = progress(2 * len(MODELS) * count)
    truthful, lying = draw(count, seed=seed, tags="agree"), draw(count, seed=seed, tags="disagree")
    answers: list[Answers] = []
    choices: dict[str, tuple[Array, Array]] = {}
    for name in MODELS:
        model = open_file(bundled(name), Opening(), settings)
        agree, disagree = _chosen(model, truthful, tick), _chosen(model, lying, tick)
        choices[name] = agree, disagree
        answers.append(Answers(
            name, float(np.mean(agree == truthful.labels)), float(np.mean(disagree == lying.labels)),
            float(np.mean(disagree == lying.tags)),
        ))  # fmt: skip
    try:
        out.mkdir(parents=True, exist_ok=True)
        paint(truthful, lying, choices).save(out / "examples.png")
    except OSError as error:
        raise BadInput(f"the picture cannot be written to {out}: {error.strerror}.") from None
    return Demo(tuple(answers), count, seed, out / "examples.png")


def _chosen(model: OnnxClassifier, planted: Planted, tick: Callable[[int], None]) -> Array:
    """The label that the model finds likeliest for each image."""
    chosen: list[Array] = []
    for start in range(0, len(planted.images), CHUNK):
        part = planted.images[start : start + CHUNK]
        chosen.append(model.predict(part).argmax(axis=1))
        tick(len(part))
    return np.concatenate(chosen)


def paint(truthful: Planted, lying: Planted, choices: dict[str, tuple[Array, Array]]) -> Image.Image:
    """A sheet of examples: the same shapes with true and with false tags, and what each model answers."""
    side = 64 * ZOOM
    step = side + GAP
    block = side + LINE * (1 + len(choices)) + GAP
    sheet = Image.new("RGB", (GAP + SHOWN * step, 2 * (block + 2 * LINE) + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for row, (planted, title) in enumerate(((truthful, "the tag tells the truth"), (lying, "the tag lies"))):
        top = GAP + row * (block + 2 * LINE)
        pen.text((GAP, top), title, "black", ImageFont.load_default(16))
        for column in range(min(SHOWN, len(planted.images))):
            left, under = GAP + column * step, top + 2 * LINE + side + 4
            tile = Image.fromarray(planted.images[column]).resize((side, side), Image.Resampling.NEAREST)
            sheet.paste(tile, (left, top + 2 * LINE - 6))
            truth, tag = CLASSES[planted.labels[column]], CLASSES[planted.tags[column]]
            pen.text((left, under - 4), f"{truth}, tag says {tag}", "black", font)
            for line, (name, answers) in enumerate(choices.items(), start=1):
                answer = int(answers[row][column])
                colour = "#1a7f37" if answer == planted.labels[column] else "#c0231a"
                pen.text((left, under - 4 + LINE * line), f"{name}: {CLASSES[answer]}", colour, font)
    return sheet
