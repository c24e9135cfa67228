"""The notebook of examples/ that needs torch and Captum."""

from pathlib import Path

import pytest

from tests.support import notebooks

pytest.importorskip("torch")
pytest.importorskip("captum")
pytest.importorskip("onnxscript")


@pytest.mark.filterwarnings("default")  # what the exporter's own code warns of is not ours to mend
def test_captum_maps_are_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    summary = notebooks.run("score_captum_maps")["summary"]
    for metric in ("insertion", "completeness", "soundness"):
        assert summary.value(metric, "maps") is not None
    assert summary.value("insertion", "maps") > summary.value("insertion", "control:random")
