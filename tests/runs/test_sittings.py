"""The log of sittings: every unit is there as soon as it is computed, whatever happens afterwards."""

import json
from pathlib import Path

import pytest

import auditkit
from auditkit.demo.planted import bundled_model
from auditkit.errors import RuntimeFailure
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.device import Location
from auditkit.runs.folder.sittings import SITTINGS, logged

THERE = Location("there", 7, "", "a processor")


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
            engine.on_unit(2, THERE, "rows of images 0 to 15")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert engine.on_unit is None
    with logged(tmp_path, model) as first:
        pass
    start, unit, again = _entries(tmp_path)
    assert unit == {"unit": "rows of images 0 to 15", "worker": "worker 2, a processor"}
    assert first == start["started"]
    assert start["where"] == again["where"]
    assert (start["command"], again["command"]) == (["auditkit", "audit"], [])


@pytest.mark.parametrize(("record_machine", "where", "worker"), [
    (False, "main process, a processor", "worker 2, a processor"),
    (True, "here, process 5, a processor", "there, process 7, a processor"),
])  # fmt: skip
def test_machines_and_processes_are_named_on_request_only(
    model: OnnxClassifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_machine: bool,
    where: str,
    worker: str,
) -> None:
    monkeypatch.setattr("auditkit.runs.folder.sittings.location", lambda _kind: Location("here", 5, "", "a processor"))
    engine = FakeEngine()
    model.use_engine(engine)
    with logged(tmp_path, model, record_machine=record_machine):
        engine.on_unit(2, THERE, "rows of images 0 to 15")
    start, unit = _entries(tmp_path)
    assert (start["where"], unit["worker"]) == (where, worker)


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
