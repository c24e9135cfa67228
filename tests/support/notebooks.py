"""Runs the code of a notebook, cell by cell, without a Jupyter kernel: what only a kernel shows is not covered."""

import json
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str) -> dict[str, Any]:
    """The variables after all code cells of an example, run in the current folder; outputs must be stripped."""
    book = json.loads((EXAMPLES / f"{name}.ipynb").read_text())
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    variables: dict[str, Any] = {"__name__": "__main__"}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            exec(compile("".join(cell["source"]), f"{name}, {cell['id']}", "exec"), variables)  # noqa: S102 - our own notebook
    return variables
