"""What an evaluation is to do: its settings, and the units it is cut into."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from auditkit.data.ranks import TIES
from auditkit.errors import BadInput
from auditkit.metrics.curves import Steps
from auditkit.metrics.faithfulness import EPS1, EPS2, parse_labels

INFILLS = ("gray", "blur", "random")
NO_MAP = "no map for this label"
NO_LABEL = "no label of the image is in the label set"
UNIT_IMAGES = 16  # what is lost at most when a run is cut; also what must be prepared before the first pass


@dataclass(frozen=True)
class Evaluation:
    """Settings that can change a figure; all of them are part of its name."""

    labels: str | None = None  # all | topK | f>=p | list; None: all up to 20 classes, else top10
    infill: str = "gray"
    steps: Steps = field(default_factory=lambda: Steps("auto", tolerance=5e-3))
    eps1: float = EPS1
    eps2: float = EPS2
    ties: str = "random"
    seed: int = 0
    draws: int = 4  # of random infill images a point
    controls: bool = True
    deletion: bool = True
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if self.labels is not None:
            parse_labels(self.labels)
        if self.infill not in INFILLS:
            raise BadInput(f"infill '{self.infill}' is not one of {', '.join(INFILLS)}.")
        if not 0 <= self.eps1 < 1 or not 0 <= self.eps2 < 1:
            raise BadInput(f"eps1 {self.eps1} and eps2 {self.eps2} must lie in [0, 1).")
        if self.ties not in TIES:
            raise BadInput(f"ties '{self.ties}' is not one of {', '.join(TIES)}.")
        if self.seed < 0:
            raise BadInput(f"seed {self.seed} is negative.")
        if self.draws < 1:
            raise BadInput(f"draws {self.draws} is not a positive number.")
        if not 0.5 <= self.confidence < 1:
            raise BadInput(f"confidence {self.confidence} must lie in [0.5, 1).")

    def to_json(self) -> dict[str, Any]:
        """Plain object for results and digests."""
        return {
            "labels": self.labels, "infill": self.infill, "steps": str(self.steps),
            "eps1": self.eps1, "eps2": self.eps2, "ties": self.ties, "seed": self.seed, "draws": self.draws,
            "controls": self.controls, "deletion": self.deletion, "confidence": self.confidence,
        }  # fmt: skip


def units(images: int, size: int = UNIT_IMAGES) -> Iterator[range]:
    """Positions of the images of each unit."""
    for start in range(0, images, size):
        yield range(start, min(start + size, images))
