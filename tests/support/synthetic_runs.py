"""Runs whose every row was made up, so that what can be read from them is known beforehand."""

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from auditkit.cli.main import main
from auditkit.runs.evaluation.settings import CONVENTIONS
from auditkit.runs.folder.parquet import COLUMNS
from auditkit.runs.folder.results import SCHEMA_VERSION, Results
from auditkit.runs.folder.store import Store

Row = dict[str, Any]
SETTINGS = {
    "labels": "all", "renormalise": False, "protocol": None, "infill": ["gray"], "steps": "16", "range": [0.0, 1.0],
    "eps1": 0.01, "eps2": 0.001, "ties": "random", "tie_orders": 0, "seed": 0, "draws": 4, "controls": True,
    "deletion": True, "saliency": "component", "confidence": 0.95, "interval": "expanded",
    "conventions": CONVENTIONS,
}  # fmt: skip
CARD = {"size": [8, 8], "resize": None, "crop": "none", "interpolation": "bicubic", "channels": "RGB",
        "gray": [127.5, 127.5, 127.5], "class_names": 3}  # fmt: skip
ENVIRONMENT = {"auditkit": "0.1.0", "onnxruntime": "1.31.1", "system": "x86_64", "device": "cpu", "precision": "strict"}
LABELS = (0, 1, 2)
Figure = Callable[[int, int], float]  # of an image and a label


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line, run in this process."""

    def give(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["auditkit", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code, *capsys.readouterr())  # type: ignore[arg-type]

    return give


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def rows(
    images: Iterable[int], figures: Mapping[str, Figure], *, bundle: str = "maps", infill: str = "gray",
    labels: Iterable[int] = LABELS, predicted: Callable[[int], int] = lambda image: 0, truth: int | None = 0,
    content: str = "",
) -> list[Row]:  # fmt: skip
    """A row for each image and label, with the figures asked for; `content` stands for what the images show."""
    made = []
    for image in images:
        for label in labels:
            row = {
                "image": f"{image}.png", "label": label, "bundle": bundle, "infill": infill, "prob": 0.5,
                "predicted": predicted(image) == label, "prediction": predicted(image), "truth": truth, "flags": [],
                "map_digest": digest(f"{image}{content}"),
            }  # fmt: skip
            made.append(row | {name: figure(image, label) for name, figure in figures.items()})
    return made


def edges(images: Iterable[int], content: str = "") -> list[Row]:
    """The control whose maps are drawn from the images alone."""
    return rows(images, {"insertion": lambda image, label: 0.5}, bundle="control:edges", content=content)


def check(name: str, status: str, **said: Any) -> dict[str, Any]:
    """A check of results.json."""
    return {"id": name, "title": name, "metric": "insertion", "status": status, "observed": None, "low": None,
            "high": None, "n": 0, "limit": None, "rule": "", "severity": "high", "required": True, "reason": "",
            "counts": True} | said  # fmt: skip


def policy(name: str) -> dict[str, Any]:
    """A policy of results.json."""
    return {"name": name, "description": "", "sha256": digest(name), "shipped": False, "text": "", "minimum_images": 1,
            "fail_on": "low"}  # fmt: skip


def results(made: list[Row], **said: Any) -> dict[str, Any]:
    """What an evaluation of such rows writes, as far as others read it; `said` replaces parts of parts."""
    base: dict[str, Any] = {
        "tool": {"name": "auditkit", "version": "0.1.0"},
        "run": {"rows": len(made), "bundles": {"maps": digest("maps")}, "bundle_paths": {}, "pool": None,
                "infill_images": {}, "copies": 0},
        "subject": {
            "model": {"path": "vendor/model.onnx", "sha256": digest("model"), "identity": digest("model")},
            "input": "image", "output": "logits", "kind": "logits", "classes": 3, "layout": "NCHW",
            "dtype": "float32", "card_origin": {"source": "preset imagenet", "sha256": None}, "card": dict(CARD),
            "class_names": [],
            "images": {"source": "images", "count": 0, "digest": digest("images")},
        },
        "settings": dict(SETTINGS), "environment": dict(ENVIRONMENT),
        "runtime": {"reference": "the CPU", "rows": 18, "repeated": 0.0, "largest": 1e-7, "mean": 1e-8,
                    "insertion": 0.0, "alpha": 0.0, "beta": 0.0, "note": None},
        "metrics": [], "controls": [], "comparisons": [], "classes_are": "given", "classes": [], "reliability": [],
        "points": [], "flags": [], "failed_images": [], "checks": [], "verdict": None,
        "limitations": ["Of these images alone."], "schema_version": SCHEMA_VERSION,
    }  # fmt: skip
    return merged(base, said)


def merged(base: dict[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """The object with parts of its parts replaced."""
    both = {name: merged(base[name], held) for name, held in said.items()
            if isinstance(held, dict) and isinstance(base.get(name), dict)}  # fmt: skip
    return {**base, **said, **both}


def run(folder: Path, made: list[Row], *, units: int = 2, **said: Any) -> Path:
    """A finished run with these rows in a few parts."""
    with Store.open(folder, {"made": "by hand"}) as store:
        for number, part in enumerate(np.array_split(np.arange(len(made)), units)):
            columns = {name: [made[at].get(name) for at in part] for name in COLUMNS}
            store.write(Store.key({"unit": number}), columns)
        store.finish(Results.parse(results(made, **said), folder))
    return folder
