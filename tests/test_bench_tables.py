"""Tables of results: the page that is read is the one that the results make."""

import json
from pathlib import Path

from benchmarks import tables

FOLDER = Path(tables.__file__).parent


def test_the_page_comes_from_the_results() -> None:
    """If this fails: python -m benchmarks.tables benchmarks/results > benchmarks/README.md."""
    assert (FOLDER / "README.md").read_text() == tables.markdown(FOLDER / "results")


def test_every_file_of_results_is_on_the_page() -> None:
    page = (FOLDER / "README.md").read_text()
    for path in (FOLDER / "results").glob("*.json"):
        assert f"({path.name})" in page, path.name
        assert "machine" in json.loads(path.read_bytes()), path.name


def test_a_step_of_learning_stands_beside_torch() -> None:
    line = {"precision": "tf32", "masks": 1, "pixels": 224, "rows_s": 2500.0, "step": {"auditkit": {"ms": 4.0}},
            "times_peers": {"eager": 2.3, "compile": 1.7}}  # fmt: skip
    drawn = tables.learning({"network": "resnet50", "distractors": 10, "lines": [line]})
    assert "| tf32 | 1 | 224 | 4 | 2,500 | 2.30 | 1.70 |" in drawn
