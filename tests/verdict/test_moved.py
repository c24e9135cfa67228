"""Years later: which figures moved, by how much, and whether the verdict would be another."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.runs.explain import Explanation
from auditkit.runs.folder import checksums, provenance
from auditkit.verdict.audit import AuditRequest, audit
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify import Originals, Sampling, Verification, recompute, verify
from tests.support import onnx_models

POLICY = """schema_version = 1
name = "small"
[evaluation]
steps = 4
minimum_images = 20
[[check]]
id = "effort"
metric = "insertion"
min = 0.01
severity = "high"
"""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moved")
    model = onnx_models.save(onnx_models.convnet(size=8, classes=3), folder)
    np.savez(folder / "images.npz", images=np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8))
    opened = auditkit.load(model, preset="unit", settings=auditkit.Settings(device="cpu"))
    request = AuditRequest(parse_policy(POLICY, "small.toml"), Explanation("gradient"))
    audit(opened, Dataset.open(folder / "images.npz", 3), request, folder / "run")
    return folder


def _verified(folder: Path, share: float) -> Verification:
    originals = Originals(folder / "model.onnx", folder / "images.npz", device="cpu")
    return verify(folder / "run", originals, Sampling(share, 1, 0))


def _about(found: Verification) -> str:
    return next(check.about for check in found.checks if check.name == "figures")


def test_all_rows_give_the_same_figures_and_verdict(audited: Path) -> None:
    found = _verified(audited, 1.0)
    assert found.answer == "holds"
    assert (
        "figures from all rows, computed anew: none moved by more than 1e-08; the verdict would be the same, pass"
        in _about(found)
    )
    assert "figures" not in [check.name for check in _verified(audited, 0.5).checks]


def test_moved_figures_and_another_verdict_are_named(audited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows as another version might compute them: too far off to hold, and far enough to change a check."""
    measure = recompute.measure

    def lower(*arguments: object) -> list[object]:
        return [replace(row, insertion=0.0) for row in measure(*arguments)]  # type: ignore[arg-type]

    monkeypatch.setattr(recompute, "measure", lower)
    monkeypatch.setattr(provenance, "software", lambda: {"numpy": "1.2.3"})
    found = _verified(audited, 1.0)
    assert found.answer == "does not hold"  # since no rounding explains it
    about = _about(found)
    assert "numpy 1.2.3 in place of " in about
    assert "moved, furthest relevance_gain of " in about
    (gap,) = next(check.unchecked for check in found.checks if check.name == "figures")
    assert "effort would be 'inconclusive', not 'pass'" in gap
    assert "it would be 'inconclusive', not 'pass'" in gap


def test_a_run_lists_packages_and_graphs(audited: Path, tmp_path: Path) -> None:
    run = shutil.copytree(audited / "run", tmp_path / "run")
    listed = provenance.read(run)
    assert listed.packages["numpy"] == np.__version__
    assert set(listed.graphs) == {"model", "masked", "gradient"}
    assert provenance.PROVENANCE in checksums.read(run)
    provenance.write(run, {"gradient of conv": "0" * 64})  # of a later sitting
    assert set(provenance.read(run).graphs) == {*listed.graphs, "gradient of conv"}


@pytest.mark.parametrize(
    "change",
    [{"packages": {"a\nb": "1"}}, {"graphs": {"model": "x"}}, {"more": 1}, {"packages": {"a": "<p>All is well.</p>"}}],
)
def test_a_list_that_auditkit_would_not_write_does_not_hold(
    audited: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    plain = json.loads((audited / "run" / provenance.PROVENANCE).read_text()) | change
    (tmp_path / provenance.PROVENANCE).write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n")
    with pytest.raises(auditkit.AuditError, match=r"provenance\.json"):
        provenance.read(tmp_path)
