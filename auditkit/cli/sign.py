"""`auditkit sign`: sign a finished run."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.errors import BadInput

if TYPE_CHECKING:
    from auditkit.evidence.keys import PrivateKey

PasswordVariable = Annotated[str | None, typer.Option(
    "--password-env", metavar="NAME", help="Environment variable with the key's password; asked for by default."
)]  # fmt: skip


def sign(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of an audit.", show_default=False)],
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Your private key (PEM).")] = None,
    password_variable: PasswordVariable = None,
    timestamp: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Add a time stamp (RFC 3161) over the signature to a signed run, instead of signing."
        ),
    ] = None,
) -> None:
    """Sign a finished run: writes attestation.sigstore.json into its folder, and changes no other file.

    The attestation states the digests of the run's files and of the model, the checks and the metrics, as an in-toto
    test result in a Sigstore bundle. `auditkit verify --trust` checks it, and so do openssl and the Sigstore verifiers
    (see docs/evidence.md). Sign after `auditkit sign-off`, so that the decision is signed too.

    Example: auditkit sign run --key auditor.pem
    """
    from auditkit.evidence.attestation import add_stamp
    from auditkit.evidence.attestation import sign as write
    from auditkit.runs.folder.checksums import ATTESTATION

    if (key is None) == (timestamp is None):
        raise BadInput("give --key FILE to sign a run, or --timestamp FILE to add a time stamp to a signed one.")
    if timestamp is not None:
        print(add_stamp(run, timestamp))
        return
    assert key is not None  # noqa: S101 - as is checked above
    if os.path.lexists(run / ATTESTATION):
        raise BadInput(f"{run / ATTESTATION} already exists. To sign again, remove it first.")
    print(write(run, read_key(key, password_variable)))


def read_key(path: Path, variable: str | None) -> "PrivateKey":
    """The private key in a file, its password asked for where it has one."""
    from auditkit.evidence.keys import read_private

    return read_private(path, lambda: _password(variable, path))


def new_password(variable: str | None) -> bytes:
    """A password for a new key."""
    if variable is not None:
        return _from_environment(variable)
    _require_terminal("for a new key, or --no-password")
    text: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return text.encode()


def _password(variable: str | None, path: Path) -> bytes:
    if variable is not None:
        return _from_environment(variable)
    _require_terminal(f"for {path}")
    text: str = typer.prompt(f"Password of {path}", hide_input=True, err=True)
    return text.encode()


def _from_environment(variable: str) -> bytes:
    value = os.environ.get(variable)
    if not value:
        raise BadInput(f"the environment variable {variable} is not set, or empty; it should hold the password.")
    return os.fsencode(value)


def _require_terminal(purpose: str) -> None:
    if not sys.stdin.isatty():
        raise BadInput(f"a password is needed, and there is no terminal to ask on; give --password-env NAME {purpose}.")
