"""`auditkit schema`: print a JSON schema of the files that auditkit reads and writes."""

from importlib import resources
from typing import Annotated

import typer

from auditkit.errors import BadInput, unknown

_FOLDER = resources.files("auditkit") / "schemas"
_SUFFIX = ".schema.json"


def schema(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False,
                                        help="results, bundle, card, policy or signoff.")],
) -> None:  # fmt: skip
    """Print the JSON schema of results.json, a bundle's bundle.json, a model's card, a policy or signoff.json.

    Example: auditkit schema card
    """
    print(read_schema(name), end="")


def read_schema(name: str) -> str:
    """The text of a JSON schema that comes with auditkit."""
    names = sorted(file.name.removesuffix(_SUFFIX) for file in _FOLDER.iterdir() if file.name.endswith(_SUFFIX))
    if name not in names:
        raise BadInput(unknown("schema", name, names))
    return (_FOLDER / f"{name}{_SUFFIX}").read_text("utf-8")
