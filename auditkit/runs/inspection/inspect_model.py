"""Facts about a model file before any heatmap is made: what `auditkit inspect` shows."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.graph.gradient import Missing, missing_rules
from auditkit.model import card as cards
from auditkit.model.card import to_toml
from auditkit.model.classifier import OnnxClassifier, Opening, open_file
from auditkit.model.session import Settings
from auditkit.runs.inspection.accuracy import SAMPLE, Accuracy, accuracy_on_sample, accuracy_with_card

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Inspection:
    """A model and facts about it."""

    model: OnnxClassifier
    accuracy: Accuracy | None
    missing: tuple[Missing, ...]  # operators that no gradient rule is known for
    guesses: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The object that `inspect --json` prints."""
        file, signature = self.model.file, self.model.signature
        settings = self.model.settings
        accuracy = {} if self.accuracy is None else {"accuracy": self.accuracy.to_json()}
        return {
            "schema_version": SCHEMA_VERSION,
            "model": {
                "path": str(file.path), "sha256": file.sha256, "opset": file.opset,
                "ir_version": file.proto.ir_version, "bytes": file.bytes, "producer": file.producer,
                "external": dict(file.external),
            },
            "input": {
                "name": signature.input, "layout": signature.layout, "dtype": signature.dtype,
                "shape": list(signature.shape), "size": [signature.height, signature.width],
                "channels": signature.channels, "batch": signature.batch, "rows": signature.rows,
            },
            "output": {"name": signature.output, "kind": signature.kind, "classes": signature.classes},
            "card": self.model.card.to_json(),
            "device": {
                "device": settings.device, "precision": settings.precision, "threads": settings.threads,
                "batch": settings.batch or "measured", "arena": settings.arena, "memory_bytes": settings.memory_bytes,
            },
            "gradient": {"supported": not self.missing, "missing": [asdict(entry) for entry in self.missing]},
            **accuracy,
            "guesses": list(self.guesses),
            "warnings": list(self.warnings),
        }  # fmt: skip


def inspect(
    path: Path, opening: Opening, settings: Settings, images: Path | None = None,
    progress: Callable[[int], Callable[[int], None]] = lambda _total: lambda _done: None,
) -> Inspection:  # fmt: skip
    """What a model file is; with labelled images, also how accurate it is and whether its card can be right."""
    model = open_file(path, opening, settings)
    guesses = model.signature.guesses
    warnings = model.signature.warnings
    accuracy = None
    if images is not None:
        labelled = Dataset.open(images, model.signature.classes, model.card.names)
        guesses += labelled.notes
        accuracy, notices = _accuracy(model, labelled, progress, assumed=bool(model.card.origin.assumed))
        warnings += notices
    missing = tuple(missing_rules(model.file.proto, model.signature.input, model.signature.output))
    return Inspection(model, accuracy, missing, guesses, (*warnings, *model.card.warnings))


def _accuracy(
    model: OnnxClassifier, images: Dataset, progress: Callable[[int], Callable[[int], None]], *, assumed: bool
) -> tuple[Accuracy, tuple[str, ...]]:
    tick = progress(len(images) + min(SAMPLE, len(images)) * len(cards.PRESETS))
    sample = accuracy_on_sample(model, images, tick)
    accuracy, warnings = sample.accuracy, tuple[str, ...]()
    if sample.better_preset is not None:
        name, better = sample.better_preset
        figures = f"{better.correct} of {better.n} right with preset '{name}', {accuracy.correct} with"
        if assumed:
            card = cards.from_preset(name, model.signature)
            origin = cards.Origin(preset=name, assumed="assumed, by accuracy")
            model.card, accuracy = replace(card, origin=origin), better
            warnings = (
                f"preset '{name}' was chosen by accuracy ({figures} the usual one); write a card to settle it.",
            )
        else:
            warnings = (f"the card is probably wrong: {figures} {model.card.origin}.",)
    rest = np.setdiff1d(np.arange(len(images)), sample.positions)
    return accuracy + accuracy_with_card(model, model.card, images, rest, tick), warnings


def write_card(inspection: Inspection, target: Path, *, force: bool) -> None:
    """Write the card in use beside the model, unless there is one already."""
    model = inspection.model
    text = to_toml(model.card, model.signature, model.file.path.name)
    if target.is_symlink():  # --force would write to whatever it points at
        raise BadInput(f"{target} is a symbolic link; name another place with --card.")
    try:
        with target.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise BadInput(f"{target} exists already; edit it, or overwrite it with --force.") from None
    except OSError as error:
        raise BadInput(f"the card {target} cannot be written: {error.strerror}.") from None
