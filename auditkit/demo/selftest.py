"""A two-second test of this installation: it opens a bundled model and counts correct answers."""

import time
from dataclasses import dataclass

import numpy as np

from auditkit.demo.draw import draw
from auditkit.demo.planted import bundled_model
from auditkit.errors import AuditError
from auditkit.model.classifier import Opening, open_file
from auditkit.model.session import Settings

_IMAGES = 100
_MIN_CORRECT = 90  # the model is right on 97 or more


@dataclass(frozen=True)
class SelfTest:
    """Whether the bundled model opened, ran and was right."""

    passed: bool
    device: str
    correct: int
    seconds: float
    reason: str = ""

    def to_json(self) -> dict[str, object]:
        """Plain object for `doctor --json`."""
        return vars(self) | {"n": _IMAGES, "seconds": round(self.seconds, 3)}

    def sentence(self) -> str:
        """The result in words."""
        if self.reason:
            return f"FAILED: {self.reason}"
        verdict = "passed" if self.passed else "FAILED"
        return f"{verdict} on {self.device}: {self.correct} of {_IMAGES} drawn images right, {self.seconds:.1f} s"


def run(settings: Settings) -> SelfTest:
    """Open the bundled honest model as any vendor's file, and count its correct answers on drawn images."""
    start = time.perf_counter()
    try:
        model = open_file(bundled_model("honest"), Opening(), settings)
        planted = draw(_IMAGES, seed=11, tags="random")
        correct = int(np.sum(model.predict(planted.images).argmax(axis=1) == planted.labels))
    except AuditError as error:
        return SelfTest(False, settings.device, 0, time.perf_counter() - start, str(error))
    return SelfTest(correct >= _MIN_CORRECT, model.settings.device, correct, time.perf_counter() - start)
