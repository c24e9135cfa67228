"""`auditkit keygen`: make a key to sign runs with."""

from pathlib import Path
from typing import Annotated

import typer

from auditkit.cli.sign import PasswordVariable, new_password


def keygen(
    out: Annotated[Path, typer.Option("--out", "-o", help=(
        "File for the private key; the public key goes next to it, with the suffix .pub."))] = Path("auditor.pem"),
    kind: Annotated[str, typer.Option("--type", help="ed25519 or p256.")] = "ed25519",
    password_variable: PasswordVariable = None,
    no_password: Annotated[bool, typer.Option("--no-password", help="Store the key without a password.")] = False,
) -> None:  # fmt: skip
    """Make a key to sign runs with: a private key, which you keep, and a public key, which you hand out.

    The private key is protected by a password, which is asked for, or taken from an environment variable that you name.

    Example: auditkit keygen -o auditor.pem
    """
    from auditkit.evidence.keys import generate

    password = None if no_password else new_password(password_variable)
    print(generate(kind, out, password))
