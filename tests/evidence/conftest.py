"""A finished run, and keys."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.evidence import keys
from auditkit.runs.explain import Explanation
from auditkit.verdict.audit import AuditRequest, audit
from auditkit.verdict.policy import shipped_text
from auditkit.verdict.policy_file import parse_policy
from tests.support import onnx_models


@pytest.fixture(scope="session")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with model.onnx, images.npz and the run made from them."""
    folder = tmp_path_factory.mktemp("evidence")
    model = onnx_models.save(onnx_models.convnet(size=8, classes=3), folder)
    np.savez(folder / "images.npz", images=np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8))
    opened = auditkit.load(model, preset="unit", settings=auditkit.Settings(device="cpu"))
    request = AuditRequest(parse_policy(shipped_text("explore"), "explore.toml"), Explanation("random"))
    audit(opened, Dataset.open(folder / "images.npz", 3), request, folder / "run")
    return folder


@pytest.fixture
def run(audited: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may change."""
    return Path(shutil.copytree(audited / "run", tmp_path / "run"))


@pytest.fixture(params=keys.KINDS)
def any_key(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The file of a private key of each type; the public one lies beside it."""
    keys.generate(request.param, tmp_path / "any.pem", None)
    return tmp_path / "any.pem"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The file of a private key; the public one lies beside it."""
    keys.generate("ed25519", tmp_path / "auditor.pem", None)
    return tmp_path / "auditor.pem"
