"""A vendor's signature: read as the package model-signing (1.1.1) wrote it, before the model is opened."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auditkit.errors import BadInput
from auditkit.evidence import keys
from auditkit.evidence.envelope import Bundle
from auditkit.evidence.model_signature import PREDICATE, SignedFiles
from tests.support.commands import auditkit, refused

SIGNED = Path(__file__).parent / "signed_model"  # by `model_signing sign key`
Resource = dict[str, str]


def _sign(
    model: Path, key: Path, names: list[str], change: Callable[[dict[str, Any]], Any] = lambda _plain: None
) -> None:
    """Sign files as model-signing does; "." is the model itself."""
    resources: list[Resource] = []
    for name in names:
        digest = hashlib.sha256((model if name == "." else model.parent / name).read_bytes()).hexdigest()
        resources.append({"name": name, "algorithm": "sha256", "digest": digest})
    root = hashlib.sha256(b"".join(bytes.fromhex(resource["digest"]) for resource in resources)).hexdigest()
    statement = {"_type": "https://in-toto.io/Statement/v1", "subject": [{"name": "m", "digest": {"sha256": root}}],
                 "predicateType": PREDICATE, "predicate": {"resources": resources}}  # fmt: skip
    change(statement)
    bundle = Bundle.signed(json.dumps(statement).encode(), keys.read_private(key, bytes))
    model.with_name(f"{model.name}.sig").write_bytes(bundle.to_json())


def test_what_model_signing_wrote_is_read(tmp_path: Path) -> None:
    folder, key = Path(shutil.copytree(SIGNED, tmp_path / "m")), keys.read_public(SIGNED / "vendor.pub")
    signed = SignedFiles.check(folder / "model.onnx", key)
    weights = hashlib.sha256(b"weights\n").hexdigest()
    signed.check_opened(signed.digests["model.onnx"], {"weights.bin": weights})
    with pytest.raises(BadInput, match=r"does not cover other\.bin"):
        signed.check_opened(signed.digests["model.onnx"], {"other.bin": weights})
    for name in ("model.onnx", "weights.bin"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + b"!")
        with pytest.raises(BadInput, match="is not the file that the vendor signed"):
            SignedFiles.check(folder / "model.onnx", key)
        (folder / name).write_bytes(content)
    text = (folder / "model.sig").read_text()
    (folder / "model.sig").write_text(text.replace('"sig":"ME', '"sig":"MF'))
    with pytest.raises(BadInput, match="is not signed by the vendor's key"):
        SignedFiles.check(folder / "model.onnx", key)


def test_a_model_is_opened_only_if_the_vendor_signed_it(audited: Path, key: Path, tmp_path: Path) -> None:
    model = Path(shutil.copy(audited / "model.onnx", tmp_path))
    words = ("audit", model, audited / "images.npz", "--preset", "unit", "--policy", "explore", "--method", "random",
             "-o", tmp_path / "out", "--quiet", "--vendor-key", key.with_suffix(".pub"))  # fmt: skip
    refused(auditkit(*words), "has no signature to check", "model.onnx.sig or model.sig")
    _sign(model, key, ["."])
    assert auditkit(*words).returncode == 0
    shutil.rmtree(tmp_path / "out")
    model.write_bytes(b"no ONNX file at all")  # which would be refused otherwise if it were opened
    refused(auditkit(*words), "is not the file that the vendor signed")
    keys.generate("p256", tmp_path / "other.pem", None)
    _sign(model, tmp_path / "other.pem", ["."])
    refused(auditkit(*words), "is not signed by the vendor's key")
    assert not (tmp_path / "out").exists()


def _resources(change: Callable[[list[Resource]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda statement: change(statement["predicate"]["resources"])


@pytest.mark.parametrize(
    ("names", "change", "sentence"),
    [
        (["weights.bin"], lambda _plain: None, "does not cover model.onnx"),
        (["model.onnx"], _resources(lambda entries: entries[0].update(name="../model.onnx")), "outside of its folder"),
        (["model.onnx"], _resources(lambda entries: entries[0].update(name="/model.onnx")), "outside of its folder"),
        (["model.onnx"], _resources(lambda entries: entries.append(entries[0])), "names a file twice"),
        (["model.onnx"], _resources(lambda entries: entries[0].update(algorithm="blake2b")), "uses the hash blake2b"),
        (["model.onnx"], _resources(lambda entries: entries[0].pop("digest")), "a part of it is malformed"),
        (["model.onnx", "weights.bin"], _resources(lambda entries: entries.pop()), "does not belong to it"),
        (["model.onnx"], lambda plain: plain.update(predicateType="https://example.com"), "does not hold a statement"),
        (["model.onnx"], lambda plain: plain.update(predicate=[]), "does not belong to it"),
    ],
)
def test_a_signature_of_another_form_is_refused(
    names: list[str], change: Callable[[dict[str, Any]], Any], sentence: str, key: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(SIGNED, tmp_path / "m"))
    _sign(folder / "model.onnx", key, names, change)
    with pytest.raises(BadInput, match=sentence):
        SignedFiles.check(folder / "model.onnx", keys.read_public(key.with_suffix(".pub")))
