"""Masks of real models: at the first step, where every mask is one half, the loss is that of half-and-half pictures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.methods.mask.method import MaskOptions, mask
from auditkit.methods.request import Pool, Request
from auditkit.model import gradient
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.runtime import LocalStepper
from auditkit.model.session import Settings
from auditkit.model.signature import to_probabilities
from tests.test_acceptance import KNOWN, _file

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.assets
LARGE = "resnet50.onnx"  # its gradient is checked in tests/graph, too


@pytest.mark.parametrize(
    "name", [*(name for name in KNOWN if name != LARGE), pytest.param(LARGE, marks=pytest.mark.slow)]
)
def test_first_loss_and_the_way_down(assets: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = auditkit.load(_file(assets, name), preset=KNOWN[name][0], settings=Settings(device="cpu"))
    assert isinstance(model, OnnxClassifier)
    seen: list[Array] = []
    real = LocalStepper.step
    monkeypatch.setattr(LocalStepper, "step", lambda self, feeds: seen.append(real(self, feeds)[0]) or [seen[-1]])
    signature = model.signature
    noise = gradient.noise(model, 2, seed=1).round().astype(signature.dtype) // 2 * 2
    pixels = np.zeros((1, signature.height, signature.width, signature.channels), np.uint8)
    label = int(model.probabilities(noise[:1]).argmax())
    request = Request(model, ("a",), pixels, noise[:1], ((label,),), noise[1:], Pool((), noise[:0]))
    found = mask(request, MaskOptions(infill="gray", steps=6, factor=4, tv=0.0, l1=0.0))
    assert found.maps[0][label].shape == (signature.height, signature.width)
    halfway = (noise[:1] / 2 + noise[1:] / 2).astype(signature.dtype)
    expected = -np.log(to_probabilities(model.scores(halfway), signature.kind)[0, label])
    rounds = "_int8" in name
    assert seen[0][0] == pytest.approx(expected, rel=0.3 if rounds else 5e-3, abs=0.1 if rounds else 5e-3)
    assert seen[-1][0] < seen[0][0]
    assert any(note.kind == "surrogate-masks" for note in found.notes) == rounds
