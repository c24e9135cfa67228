"""A sample of the mutated files: exit codes 0 and 2, one line each; a record that was cut short is gone on with."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutations.__main__ import Outcome, problems

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


FINE = Outcome(2, "auditkit: the card cannot be read.\n", "", 0.1, 100, "fork")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ()),
        ({"code": 0, "stderr": ""}, ()),
        ({"code": 0}, ("1 lines on stderr, expected no line",)),
        ({"stderr": "a\nb\n"}, ("2 lines on stderr, expected one line",)),
        ({"stderr": ""}, ("0 lines on stderr, expected one line",)),
        ({"stderr": "", "stdout": "result  cannot be used: 1 errors"}, ()),  # bundle check
        ({"code": 4}, ("exit code 4",)),
        ({"code": 4, "how": "command"}, ()),
        ({"code": -11, "stderr": ""}, ("exit code -11", "0 lines on stderr, expected one line")),
        ({"stderr": "auditkit: internal error (ValueError).\n"}, ("'internal error' in the output",)),
        ({"stdout": "Traceback"}, ("'Traceback' in the output",)),
        ({"megabytes": 5000}, ("5000 MB",)),
    ],
)
def test_problems_are_seen(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    assert problems(replace(FINE, **changes)) == words
