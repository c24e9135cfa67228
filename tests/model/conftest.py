import pytest


@pytest.fixture(autouse=True)
def _batches_are_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the batches of earlier tests: one that runs out of memory leaves a smaller batch to those after it."""
    monkeypatch.setattr("auditkit.model.masks._MEASURED", {})
