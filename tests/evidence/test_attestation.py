"""A signature holds for the files that were signed, by the key that is trusted, and for nothing else."""

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from auditkit import Settings, load
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.evidence import attestation, envelope, keys
from auditkit.runs.evaluation.plan import subject
from auditkit.runs.folder import checksums
from auditkit.runs.folder.checksums import ATTESTATION
from auditkit.runs.folder.store import Store
from auditkit.verdict.verify import Trust, verify
from tests.support.commands import auditkit, refused

DOCS = Path(__file__).parents[2] / "docs" / "evidence.md"
SHELL = re.findall(r"^```sh\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
NODE = re.findall(r"^```js\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)[0]
Plain = dict[str, Any]


def _key(path: Path) -> keys.PrivateKey:
    return keys.read_private(path, bytes)


def _problems(run: Path, key: Path) -> tuple[str, ...]:
    """What `verify --trust` says about the signature."""
    checks = {
        check.name: check for check in verify(run, trust=Trust([keys.read_public(key.with_suffix(".pub"))])).checks
    }
    return checks["signature"].problems


def _changed_bundle(run: Path, change: Callable[[Plain], Any]) -> None:
    plain = json.loads((run / ATTESTATION).read_text())
    change(plain)
    (run / ATTESTATION).write_text(json.dumps(plain, indent=2))


def _signed_statement(run: Path, key: Path, change: Callable[[Plain], Any]) -> None:
    """Write a changed statement with a true signature over it."""
    statement = attestation.statement(run)
    change(statement)
    bundle = envelope.Bundle.signed(json.dumps(statement).encode(), _key(key))
    (run / ATTESTATION).write_bytes(bundle.to_json())


def test_a_signed_run_holds_for_those_who_trust_the_key(audited: Path, run: Path, any_key: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = auditkit("sign", run, "--key", any_key)
    assert (done.returncode, done.stdout) == (0, f"{run / ATTESTATION}\n")
    assert {path: path.read_bytes() for path in before} == before
    originals = ("--model", audited / "model.onnx", "--images", audited / "images.npz", "--maps", 1)
    assert auditkit("verify", run, *originals, "--trust", any_key.with_suffix(".pub")).returncode == 0
    unknown = auditkit("verify", run, *originals)
    assert unknown.returncode == 3
    assert "who signed the run: give --trust FILE" in unknown.stderr
    refused(auditkit("sign", run, "--key", any_key), "already exists")


def test_the_statement_names_files_checks_and_figures(audited: Path, run: Path) -> None:
    statement = attestation.statement(run)
    digests = envelope.subjects_of(statement, "")
    names = ("SHA256SUMS", "results.json", "report.html", "policy.toml")
    assert set(digests) == {*names, "model/model.onnx"}
    assert all(digests[name] == checksums.digest(run / name) for name in names)
    assert digests["model/model.onnx"] == checksums.digest(audited / "model.onnx")
    predicate: Any = statement["predicate"]
    assert predicate["result"] == "WARNED"  # the policy sets no limits
    results = json.loads((run / "results.json").read_text())
    tests = [*predicate["passedTests"], *predicate["warnedTests"], *predicate["failedTests"]]
    assert {check["id"] for check in results["checks"]} <= set(tests)
    assert len(predicate["auditkit"]["figures"]) == len(results["metrics"])
    assert predicate["configuration"] == [{"name": "policy.toml", "digest": {"sha256": digests["policy.toml"]}}]


def test_an_unsigned_run_does_not_hold_for_those_who_ask_for_a_signature(run: Path, key: Path) -> None:
    assert _problems(run, key) == (f"{ATTESTATION} is missing, so nobody has signed the run",)
    done = auditkit("verify", run, "--trust", key.with_suffix(".pub"))
    assert done.returncode == 5


def test_another_key_is_not_trusted(run: Path, any_key: Path, tmp_path: Path) -> None:
    for kind in keys.KINDS:
        keys.generate(kind, tmp_path / f"{kind}.pem", None)
        attestation.sign(run, _key(tmp_path / f"{kind}.pem"))
        assert _problems(run, any_key) == (f"{ATTESTATION} is not signed by a key that you trust",)


def test_one_of_several_trusted_keys_is_enough(run: Path, key: Path, tmp_path: Path) -> None:
    attestation.sign(run, _key(key))
    other = keys.generate("ed25519", tmp_path / "other.pem", None)
    trusted = [keys.read_public(path) for path in (other, key.with_suffix(".pub"))]
    assert attestation.check(run, trusted) == ([], [])


@pytest.mark.parametrize("name", ["SHA256SUMS", "results.json", "report.html", "policy.toml"])
def test_a_changed_byte_of_a_signed_file_is_seen(run: Path, key: Path, name: str) -> None:
    attestation.sign(run, _key(key))
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    assert _problems(run, key)


@pytest.mark.parametrize("part", ["payload", "sig"])
def test_a_changed_byte_of_the_attestation_is_seen(run: Path, any_key: Path, part: str) -> None:
    attestation.sign(run, _key(any_key))
    text = (run / ATTESTATION).read_text()
    value = re.findall(rf'"{part}": "([^"]*)"', text)[0]
    for position in (0, len(value) // 2, len(value) - 5):
        other = "A" if value[position] != "A" else "B"
        (run / ATTESTATION).write_text(text.replace(value, value[:position] + other + value[position + 1 :]))
        assert _problems(run, any_key)


def _second_signature(plain: Plain) -> None:
    plain["dsseEnvelope"]["signatures"] *= 2


def _spaced(plain: Plain) -> None:
    plain["dsseEnvelope"]["payload"] = (
        plain["dsseEnvelope"]["payload"][:8] + "\n" + plain["dsseEnvelope"]["payload"][8:]
    )


def _spare_bits(plain: Plain) -> None:
    """The same bytes in another spelling: the last letter before the padding has bits that no byte uses."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    signature = plain["dsseEnvelope"]["signatures"][0]
    body, padding = signature["sig"].rstrip("="), signature["sig"].count("=")
    assert padding
    signature["sig"] = body[:-1] + letters[letters.index(body[-1]) + 1] + "=" * padding
    assert base64.b64decode(signature["sig"]) == base64.b64decode(body + "=" * padding)


BUNDLES: dict[str, Callable[[Plain], Any]] = {
    "two signatures": _second_signature,
    "no signature": lambda plain: plain["dsseEnvelope"].update(signatures=[]),
    "another payload type": lambda plain: plain["dsseEnvelope"].update(payloadType="text/plain"),
    "another media type": lambda plain: plain.update(mediaType="application/vnd.dev.sigstore.bundle+json;version=0.1"),
    "a message too": lambda plain: plain.update(messageSignature={"signature": "AAAA"}),
    "no envelope": lambda plain: plain.pop("dsseEnvelope"),
    "base64 on two lines": _spaced,
    "spare bits in base64": _spare_bits,
    "a list": lambda plain: plain.update(dsseEnvelope=[]),
    "a number as signature": lambda plain: plain["dsseEnvelope"]["signatures"][0].update(sig=5),
}


@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_of_another_form_is_refused(run: Path, tmp_path: Path, name: str) -> None:
    keys.generate("ed25519", tmp_path / "k.pem", None)  # its signatures have padding
    attestation.sign(run, _key(tmp_path / "k.pem"))
    _changed_bundle(run, BUNDLES[name])
    (problem,) = _problems(run, tmp_path / "k.pem")
    assert problem.startswith("the signature cannot be read (attestation.sigstore.json is not a Sigstore bundle")


def test_a_key_that_stands_twice_is_refused(run: Path, key: Path) -> None:
    attestation.sign(run, _key(key))
    text = (run / ATTESTATION).read_text().replace('"mediaType"', '"dsseEnvelope": {}, "mediaType"')
    (run / ATTESTATION).write_text(text)
    assert "an object has a duplicate key" in _problems(run, key)[0]


def _without(*names: str) -> Callable[[Plain], Any]:
    def change(statement: Plain) -> None:
        statement["subject"] = [entry for entry in statement["subject"] if entry["name"] not in names]

    return change


def _subject_twice(statement: Plain) -> None:
    statement["subject"].append({"name": "results.json", "digest": {"sha256": "0" * 64}})


STATEMENTS: dict[str, tuple[Callable[[Plain], Any], str]] = {
    "no results": (_without("results.json"), "results.json is not signed"),
    "no list of files": (_without("SHA256SUMS"), "SHA256SUMS is not signed"),
    "no model": (_without("model/model.onnx"), "model/model.onnx is not signed"),
    "nothing": (lambda statement: statement.update(subject=[]), "SHA256SUMS is not signed"),
    "no subject": (lambda statement: statement.pop("subject"), "SHA256SUMS is not signed"),
    "a file twice": (_subject_twice, "names a file twice"),
    "a file more": (
        lambda statement: statement["subject"].append({"name": "x", "digest": {"sha256": "0" * 64}}),
        "x is not the file that was signed",
    ),
    "another statement": (lambda statement: statement.update(_type="https://example.com"), "does not hold a statement"),
    "another predicate": (
        lambda statement: statement.update(predicateType="https://model_signing/signature/v1.0"),
        "does not hold a statement",
    ),
    "a better result": (lambda statement: statement["predicate"].update(result="PASSED"), "states other checks"),
    "other figures": (
        lambda statement: statement["predicate"]["auditkit"]["figures"][0].update(value=1),
        "states other checks or figures",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_trusted_key_over_another_statement_does_not_vouch_for_the_run(run: Path, key: Path, name: str) -> None:
    change, sentence = STATEMENTS[name]
    _signed_statement(run, key, change)
    assert any(sentence in problem for problem in _problems(run, key))


def test_the_signature_of_another_run_is_not_this_ones(run: Path, key: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    (other / "sittings.jsonl").write_bytes((other / "sittings.jsonl").read_bytes() * 2)
    checksums.write(other)
    attestation.sign(other, _key(key))
    shutil.copy(other / ATTESTATION, run)
    assert "SHA256SUMS is not the file that was signed" in _problems(run, key)


def test_a_decision_is_signed_too(run: Path, key: Path) -> None:
    by = ("--name", "A. Person", "--role", "head of testing", "--decision", "accepted")
    attestation.sign(run, _key(key))
    auditkit("sign-off", run, *by)
    assert _problems(run, key) == ("signoff.json is not signed; sign the run again",)
    attestation.sign(run, _key(key))
    assert _problems(run, key) == ()
    decision = (run / "signoff.json").read_text()
    (run / "signoff.json").write_text(decision.replace('"accepted"', '"rejected"'))
    assert _problems(run, key) == ("signoff.json is not the file that was signed",)
    (run / "signoff.json").unlink()
    assert _problems(run, key) == ("signoff.json is not the file that was signed",)


def test_a_changed_or_unfinished_run_is_not_signed(run: Path, key: Path) -> None:
    (run / "report.html").write_text("changed")
    refused(auditkit("sign", run, "--key", key), "report.html was changed")
    (run / "SHA256SUMS").unlink()
    refused(auditkit("sign", run, "--key", key), "it is not finished")


def test_an_audit_signs_what_it_wrote(audited: Path, key: Path, tmp_path: Path) -> None:
    words = ("audit", audited / "model.onnx", audited / "images.npz", "--preset", "unit", "--policy", "explore",
             "--method", "random", "-o", tmp_path / "signed", "--quiet")  # fmt: skip
    refused(auditkit(*words, "--sign", key.with_suffix(".pub")), "is not a private key")
    refused(auditkit(*words, "--sign", key, "--shard", "1/2"), "give --sign with the command that finishes it")
    assert not (tmp_path / "signed").exists()
    assert auditkit(*words, "--sign", key).returncode == 0
    assert _problems(tmp_path / "signed", key) == ()


# Stock tools ----------------------------------------------------------------------------------------------------------


def _changes(run: Path) -> list[Path]:
    """A file of each kind, each of which is changed in turn."""
    parts = [next((run / folder).iterdir()) for folder in ("items", "gallery", "maps/maps")]
    return [run / name for name in ("SHA256SUMS", "results.json", "report.html", "policy.toml", "run.json")] + parts


def _fails_after_each_change(run: Path, command: Callable[[], subprocess.CompletedProcess[str]]) -> None:
    for path in _changes(run):
        content = path.read_bytes()
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        assert command().returncode != 0, path
        path.write_bytes(content)
    assert command().returncode == 0


def _shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/sh", "-e", "-c", script], cwd=folder, capture_output=True, text=True, check=False)


def test_openssl_and_sha256sum_check_a_run_as_the_documentation_says(run: Path, any_key: Path, tmp_path: Path) -> None:
    attestation.sign(run, _key(any_key))
    take_out, p256, compare = SHELL
    if not isinstance(_key(any_key).key, keys.ed25519.Ed25519PrivateKey):
        take_out = take_out.rsplit("openssl", 1)[0] + p256
    script = (take_out + compare).replace("auditor.pub", str(any_key.with_suffix(".pub")))
    done = _shell(script, run)
    assert done.returncode == 0, done.stderr
    assert re.search("Signature Verified Successfully|Verified OK", done.stdout)
    assert "SHA256SUMS: OK" in done.stdout
    _fails_after_each_change(run, lambda: _shell(script, run))
    content = (run / ATTESTATION).read_text()
    (run / ATTESTATION).write_text(re.sub('"payload": "(.{100})(.)', r'"payload": "\1Q', content))
    assert _shell(script, run).returncode != 0


def test_ssh_keygen_signs_the_list_of_files(run: Path, tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    assert _shell("ssh-keygen -q -t ed25519 -N '' -f id", tmp_path).returncode == 0
    (tmp_path / "allowed_signers").write_text(f"auditor@example.com {(tmp_path / 'id.pub').read_text()}")
    sign, check = re.findall(r"^    (ssh-keygen -Y .*?)(?:  .*)?$", DOCS.read_text(), re.MULTILINE)
    sign, check = (
        sign.replace("~/.ssh/id_ed25519", f"{tmp_path}/id"),
        f"{check} && cd run && sha256sum --quiet -c SHA256SUMS",
    )
    assert _shell(sign, tmp_path).returncode == 0
    _fails_after_each_change(run, lambda: _shell(check, tmp_path))
    assert next(check for check in verify(run).checks if check.name == "files").problems == ()


def _node(tmp_path: Path, bundle: Path, public: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "check.js").write_text(NODE)
    command = ["node", tmp_path / "check.js", bundle, public]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_stock_sigstore_verifier_checks_the_bundle(run: Path, any_key: Path, tmp_path: Path) -> None:
    if shutil.which("node") is None or "NODE_PATH" not in os.environ:
        pytest.skip("needs node, and NODE_PATH with the npm packages @sigstore/bundle and @sigstore/verify")
    attestation.sign(run, _key(any_key))
    public = any_key.with_suffix(".pub")
    assert _node(tmp_path, run / ATTESTATION, public).stdout == "verified\n"
    other = keys.generate("p256", tmp_path / "other.pem", None)
    assert "signature verification failed" in _node(tmp_path, run / ATTESTATION, other).stderr
    content = (run / ATTESTATION).read_text()
    (run / ATTESTATION).write_text(re.sub('"payload": "(.{100})(.)', r'"payload": "\1Q', content))
    assert "signature verification failed" in _node(tmp_path, run / ATTESTATION, public).stderr


def test_a_statement_that_is_not_json_is_refused(run: Path, key: Path) -> None:
    bundle = envelope.Bundle.signed(b"[" * 100_000, _key(key))
    (run / ATTESTATION).write_bytes(bundle.to_json())
    assert "is not JSON" in _problems(run, key)[0]
    with pytest.raises(BadInput, match="holds a list"):
        envelope.statement_of(b"[]", attestation.TEST_RESULT, ATTESTATION)


def test_external_data_of_the_model_is_named_too(audited: Path, run: Path, tmp_path: Path) -> None:
    proto = onnx.load(audited / "model.onnx")
    onnx.save_model(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    opened = load(tmp_path / "m.onnx", preset="unit", settings=Settings(device="cpu"))
    about = subject(opened, Dataset.open(audited / "images.npz", 3))
    results = replace(Store(run).results(), subject=about)
    assert attestation._model_files(results) == {
        f"model/{name}": checksums.digest(tmp_path / name) for name in ("m.onnx", "m.data")
    }
