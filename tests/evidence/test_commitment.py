"""A commitment fixes policy, model, images and salt before the model sees an image, and `verify` compares them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auditkit.errors import RuntimeFailure
from auditkit.evidence import keys
from auditkit.model.classifier import OnnxClassifier
from auditkit.runs.folder import checksums
from auditkit.runs.folder.store import Store
from auditkit.verdict.verify import Trust, verify
from tests.evidence.test_timestamp import OpensslAuthority
from tests.support.commands import SALT, Completed, auditkit, refused


def _audit(audited: Path, out: Path, *words: object) -> Completed:
    return auditkit("audit", audited / "model.onnx", audited / "images.npz", "--preset", "unit", "--policy", "explore",
                    "--method", "random", "-o", out, "--quiet", *words)  # fmt: skip


@pytest.fixture(scope="module")
def committed(audited: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with fixed.json and the run that it was written for."""
    folder = tmp_path_factory.mktemp("committed")
    assert _audit(audited, folder / "run", "--commit-to", folder / "fixed.json").returncode == 0
    return folder


def _problems(run: Path, trust: Trust = Trust()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    check = next(check for check in verify(run, trust=trust).checks if check.name == "commitment")
    return check.problems, check.unchecked


def _changed(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    plain = json.loads((run / "commitment.json").read_text())
    change(plain)
    (run / "commitment.json").write_text(json.dumps(plain))
    checksums.write(run)


def test_it_is_written_before_the_model_sees_an_image(
    audited: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed, existed = tmp_path / "fixed.json", list[bool]()

    def scores(*_arguments: object, **_options: object) -> None:
        existed.append(fixed.exists())
        raise RuntimeFailure("The model was asked.")

    monkeypatch.setattr(OnnxClassifier, "scores", scores)
    assert _audit(audited, tmp_path / "run", "--commit-to", fixed).returncode == 4
    assert existed
    assert all(existed)


def test_the_run_carries_it_and_holds(audited: Path, committed: Path) -> None:
    run = committed / "run"
    assert (run / "commitment.json").read_bytes() == (committed / "fixed.json").read_bytes()
    assert "commitment.json" in checksums.read(run)
    fixed = json.loads((committed / "fixed.json").read_text())
    assert fixed["policy"] == {"name": "explore", "sha256": checksums.digest(run / "policy.toml")}
    assert fixed["model"] == checksums.digest(audited / "model.onnx")
    assert (fixed["count"], fixed["salt"]) == (4, SALT)
    assert _problems(run) == ((), ())


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "policy": lambda plain: plain["policy"].update(sha256="0" * 64),
    "model": lambda plain: plain.update(model="0" * 64),
    "images": lambda plain: plain.update(images="0" * 64),
    "count": lambda plain: plain.update(count=5),
    "salt": lambda plain: plain.update(salt="0" * 32),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_that_is_not_what_was_committed_to_does_not_hold(run: Path, committed: Path, name: str) -> None:
    (run / "commitment.json").write_bytes((committed / "fixed.json").read_bytes())
    _changed(run, lambda plain: plain.update(written="2020-01-01T00:00:00Z"))
    assert _problems(run) == ((), ())
    _changed(run, CHANGES[name])
    assert _problems(run)[0] == (f"commitment.json commits to another {name} than the run has",)


def test_a_commitment_after_the_run_is_seen(run: Path, committed: Path) -> None:
    (run / "commitment.json").write_bytes((committed / "fixed.json").read_bytes())
    _changed(run, lambda plain: plain.update(written="2999-01-01T00:00:00Z"))
    (problem,) = _problems(run)[0]
    assert problem.startswith("the commitment is of 2999-01-01T00:00:00Z, and the run began on ")
    for text in ("", "long ago", "2020"):
        _changed(run, lambda plain, text=text: plain.update(written=text))
        assert "does not say when it was written" in _problems(run)[0][0]


def test_another_audit_does_not_replace_it(audited: Path, committed: Path, tmp_path: Path) -> None:
    before = (committed / "fixed.json").read_bytes()
    refused(_audit(audited, tmp_path / "run", "--commit-to", committed / "fixed.json", "--salt", "0" * 32),
            "commits to another salt", "choose another file")  # fmt: skip
    assert _audit(audited, tmp_path / "run", "--commit-to", committed / "fixed.json").returncode == 0  # the same again
    assert (committed / "fixed.json").read_bytes() == before
    (tmp_path / "text").write_text("none")
    refused(_audit(audited, tmp_path / "run", "--commit-to", tmp_path / "text"), "is not JSON")


def test_a_run_that_began_before_is_not_continued_under_it(audited: Path, run: Path, tmp_path: Path) -> None:
    first = json.dumps({"started": "2020-01-01T00:00:00Z", "command": []})
    (run / "sittings.jsonl").write_text(first + "\n")
    refused(
        _audit(audited, run, "--commit-to", tmp_path / "late.json"), "was started before the commitment was written"
    )


def test_the_order_is_checked_by_a_time_stamp(audited: Path, committed: Path, run: Path, tmp_path: Path) -> None:
    tsa = OpensslAuthority(tmp_path / "tsa", "rsa")
    trust = Trust((), [keys.read_certificate(tsa.certificate)])
    (run / "commitment.json").write_bytes((committed / "fixed.json").read_bytes())
    _changed(run, lambda plain: plain.update(written="2020-01-01T00:00:00Z"))
    late = tsa.stamp((run / "commitment.json").read_bytes())
    (run / "commitment.tsr").write_bytes(late.read_bytes())
    checksums.write(run)
    of_salt, of_time = _problems(run, trust)[0]
    assert of_salt == "commitment.json commits to another salt than the run has"  # the stamp would have changed it
    assert "and the run began on" in of_time
    (tmp_path / "fixed.json").write_bytes((committed / "fixed.json").read_bytes())
    token = tsa.stamp((tmp_path / "fixed.json").read_bytes())
    (tmp_path / "fixed.tsr").write_bytes(token.read_bytes())
    assert _audit(audited, tmp_path / "new", "--commit-to", tmp_path / "fixed.json").returncode == 0
    assert (tmp_path / "new" / "commitment.tsr").read_bytes() == token.read_bytes()
    assert _problems(tmp_path / "new", trust) == ((), ())
    assert "who stamped the time" in _problems(tmp_path / "new")[1][0]
    (tmp_path / "new" / "commitment.tsr").write_bytes(tsa.stamp(b"else").read_bytes())
    assert "over something else than commitment.json" in _problems(tmp_path / "new", trust)[0][1]


def test_every_time_stamp_gives_the_audit_another_salt(audited: Path, committed: Path, tmp_path: Path) -> None:
    """Until the authority has answered, nobody can know what the audit will draw."""
    tsa, fixed = OpensslAuthority(tmp_path / "tsa", "rsa"), tmp_path / "fixed.json"
    fixed.write_bytes((committed / "fixed.json").read_bytes())
    stamp, salts = tmp_path / "fixed.tsr", [SALT]
    for name in ("one", "two"):
        stamp.write_bytes(tsa.stamp(fixed.read_bytes()).read_bytes())
        assert _audit(audited, tmp_path / name, "--commit-to", fixed).returncode == 0
        salts.append(str(Store(tmp_path / name).results().run.salt))
        assert _problems(tmp_path / name)[0] == ()
    assert len(set(salts)) == 3
    stamp.write_bytes(tsa.stamp(b"something else").read_bytes())
    refused(_audit(audited, tmp_path / "three", "--commit-to", fixed), "over something else than fixed.json")
    assert not (tmp_path / "three").exists()
