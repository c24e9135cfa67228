"""A sample of the mutated files: exit codes 0 and 2, one line each; a record that was cut short is gone on with."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def _run(record: Path, count: int, commands: int) -> dict[str, Any]:
    words = ["--record", str(record), "--count", str(count), "--commands", str(commands), "--seed", "21"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.mutations", *words], capture_output=True, check=True, cwd=ROOT, text=True
    )
    results: dict[str, Any] = json.loads(done.stdout)
    return results


def test_a_sample_of_mutated_files(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    first = _run(record, 8, 1)
    assert sum(kind["cases"] for kind in first["kinds"].values()) == 8
    lines = record.read_text().splitlines(keepends=True)  # the last one by the command
    torn = "".join(lines[:7]) + lines[7][:20] + "\n"
    record.write_text(torn)
    results = _run(record, 60, 2)
    assert record.read_text().startswith(torn)
    assert len(record.read_text().splitlines()) == 8 + 53 + 2  # the torn one again
    assert results["problems"] == []
    kinds = results["kinds"]
    assert set(kinds) == {"model", "card", "policy", "bundle", "image", "image set"}
    assert all(kind["exit_codes"].get("2") for kind in kinds.values())
    assert sum(kind["cases"] for kind in kinds.values()) == 60
    assert sum(kind["by_command"] for kind in kinds.values()) == 2
