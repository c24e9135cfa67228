"""A vendor's signature of a model, as the OpenSSF package model-signing writes it: a bundle over digests of files."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from auditkit.errors import BadInput
from auditkit.evidence.envelope import Bundle, Verifier, statement_of, subjects_of
from auditkit.records import Json
from auditkit.regular_files import open_regular, read_named, reason

PREDICATE = "https://model_signing/signature/v1.0"
_MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class SignedFiles:
    """The digests that a vendor signed, by the paths of the files beside the model."""

    model: Path
    signature: Path
    digests: dict[str, str]

    @classmethod
    def check(cls, model: Path, key: Verifier) -> "SignedFiles":
        """The signed files of a model; refused if the key did not sign them, or if one that is here was changed."""
        candidates = (model.with_name(f"{model.name}.sig"), model.with_name("model.sig"))
        signature = next((path for path in candidates if path.is_file()), None)
        if signature is None:
            raise BadInput(f"{model} has no signature to check with --vendor-key; expected {candidates[0]} or "
                           f"{candidates[1].name} next to it.")  # fmt: skip
        bundle = Bundle.parse(read_named(signature, _MOST_BYTES), signature)
        if not bundle.verified([key]):
            raise BadInput(f"{signature} is not signed by the vendor's key; do not use the model, and ask the vendor.")
        digests = _digests(statement_of(bundle.payload, PREDICATE, signature), signature)
        digests = {model.name if name == "." else name: sha256 for name, sha256 in digests.items()}
        signed = cls(model, signature, digests)
        for name in digests:
            path = model.parent / name
            if path.is_file():
                signed._compare(name, _sha256(path))
        signed._compare(model.name, digests.get(model.name, ""))
        return signed

    def check_opened(self, sha256: str, external: Mapping[str, str]) -> None:
        """Refuse a model whose bytes, or those of its external data, as they were read, are not the signed ones."""
        for name, digest in {self.model.name: sha256, **external}.items():
            self._compare(name, digest)

    def _compare(self, name: str, sha256: str) -> None:
        if name not in self.digests:
            raise BadInput(f"{self.signature} does not cover {name}; ask the vendor to sign all files of the model.")
        if self.digests[name] != sha256:
            raise BadInput(f"{self.model.parent / name} is not the file that the vendor signed; ask for it again.")


def _digests(statement: dict[str, Json], where: Path) -> dict[str, str]:
    """The digests of a statement, whose subject is the digest of all of them."""
    predicate, digests, root = statement.get("predicate"), dict[str, str](), hashlib.sha256()
    resources = predicate.get("resources") if isinstance(predicate, dict) else None
    try:
        for resource in resources if isinstance(resources, list) else []:
            name, sha256, algorithm = _resource(resource)
            if name in digests:
                raise ValueError("it names a file twice")
            if algorithm != "sha256":
                raise ValueError(f"it uses the hash {algorithm:.20}; ask the vendor to sign with sha256")
            digests[name] = sha256
            root.update(bytes.fromhex(sha256))
        if list(subjects_of(statement, where).values()) != [root.hexdigest()]:
            raise ValueError("its list of files does not belong to it")
    except (LookupError, TypeError, ValueError) as error:
        sentence = str(error) if type(error) is ValueError else "a part of it is malformed"
        raise BadInput(f"{where} is not a signature of a model: {sentence}.") from None
    return digests


def _resource(resource: Json) -> tuple[str, str, str]:
    """Name, digest and algorithm of one file, whose name stays inside the folder."""
    if not isinstance(resource, dict):
        raise TypeError
    name, sha256, algorithm = (str(resource[term]) for term in ("name", "digest", "algorithm"))
    if name != "." and (PurePosixPath(name).is_absolute() or {"", ".", ".."} & set(name.split("/"))):
        raise ValueError(f"it names a file outside of its folder, '{name:.60}'")
    return name, sha256, algorithm


def _sha256(path: Path) -> str:
    try:
        with open_regular(path) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({reason(error)}).") from None
