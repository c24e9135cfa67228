"""The log of sittings: every unit is there as soon as it is computed, whatever happens afterwards."""

import json
from pathlib import Path

import pytest

import auditkit
from auditkit.demo.planted import bundled_model
from auditkit.errors import RuntimeFailure
from auditkit.model.classifier import OnnxClassifier
from auditkit.runs.folder.sittings import SITTINGS, logged


class FakeEngine:
    on_unit = None


@pytest.fixture
def model() -> OnnxClassifier:
    opened = auditkit.load(bundled_model("honest"), settings=auditkit.Settings(device="cpu"))
    assert isinstance(opened, OnnxClassifier)
    return opened


def _entries(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / SITTINGS).read_text().splitlines()]


def test_units_of_an_interrupted_sitting_are_logged(model: OnnxClassifier, tmp_path: Path) -> None:
    engine = FakeEngine()
    model.use_engine(engine)

    def interrupted() -> None:
        with logged(tmp_path, model, ("auditkit", "audit")):
            engine.on_unit("there, process 7, a processor", "rows of images 0 to 15")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert engine.on_unit is None
    with logged(tmp_path, model) as first:
        pass
    start, unit, again = _entries(tmp_path)
    assert unit == {"unit": "rows of images 0 to 15", "worker": "there, process 7, a processor"}
    assert first == start["started"]
    assert start["where"] == again["where"]
    assert (start["command"], again["command"]) == (["auditkit", "audit"], [])


def test_a_torn_line_is_removed(model: OnnxClassifier, tmp_path: Path) -> None:
    with logged(tmp_path, model):
        pass
    whole = (tmp_path / SITTINGS).read_bytes()
    (tmp_path / SITTINGS).write_bytes(whole + b'{"unit": "rows of im')
    with logged(tmp_path, model):
        pass
    assert [set(entry) for entry in _entries(tmp_path)] == [{"started", "command", "where"}] * 2


def test_a_damaged_log_is_one_sentence(model: OnnxClassifier, tmp_path: Path) -> None:
    (tmp_path / SITTINGS).write_bytes(b"[]\n")
    with pytest.raises(RuntimeFailure, match="Remove this file"), logged(tmp_path, model):
        pass
