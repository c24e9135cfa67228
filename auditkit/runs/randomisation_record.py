"""What a randomisation check found, or why it found nothing, as results.json has it."""

from dataclasses import dataclass
from typing import Literal, TypedDict

Cause = Literal["function", "supplied", "other-maps", "few-parameters", "no-maps", "no-stage"]
_SENTENCES: dict[Cause, str] = {
    "function": "a function has no layers that could be re-initialised",
    "supplied": "the maps were supplied, so they cannot be made again for a re-initialised model",
    "other-maps": "the maps are not those that {detail} made for this model, so that they cannot be made again for a "
    "changed one",
    "few-parameters": "{detail} parameters are weights of layers that can be re-initialised, which is too few",
    "no-maps": "{detail}",
    "no-stage": "{detail}",
}


class StageFigures(TypedDict):
    """The rank correlation of a stage's maps with the true model's, over the images."""

    spearman: float
    low: float | None
    high: float | None
    n: int
    absolute: float
    constant: int  # maps that rank no pixel before another


class StageRecord(StageFigures):
    """A stage in results.json."""

    stage: int
    layers: list[str]
    share: float  # of the parameters


class RandomisationRecord(TypedDict):
    """The entry of results.json."""

    method: str
    images: int
    label: str
    seed: int
    layers: int
    confidence: float
    series: list[StageRecord]
    notes: list[str]


@dataclass(frozen=True)
class NotAssessed:
    """Why nothing is known about the dependence on the model."""

    cause: Cause
    detail: str = ""

    def to_json(self) -> dict[str, str]:
        """The entry of results.json."""
        return {"not_assessed": _SENTENCES[self.cause].format(detail=self.detail)}


@dataclass(frozen=True)
class Randomisation:
    """How alike the maps of the true model and of re-initialised ones are, stage by stage."""

    method: str
    images: int
    seed: int
    layers: int
    confidence: float
    series: tuple[StageRecord, ...]
    notes: tuple[str, ...]

    def to_json(self) -> RandomisationRecord:
        """The entry of results.json."""
        return {
            "method": self.method,
            "images": self.images,
            "label": "predicted",
            "seed": self.seed,
            "layers": self.layers,
            "confidence": self.confidence,
            "series": list(self.series),
            "notes": list(self.notes),
        }
