"""The notebooks of examples/ run as they stand; the one that needs torch is tested in tests/peers."""

from pathlib import Path

import pytest

from tests.support import notebooks


def test_a_vendors_model_is_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    variables = notebooks.run("audit_a_vendors_model")
    assert variables["accuracy"] == 1
    assert variables["misled"] < 0.2
    assert "corner" in {finding.kind for finding in variables["examination"].findings}
    assert (tmp_path / "audit-output" / "audit" / "report.html").is_file()
