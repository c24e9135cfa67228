"""What an audit announced, and what it took, is read from what it prints."""

import pytest

from benchmarks.first_audit import figures, first_audit_table


def test_times_are_read_from_the_output_of_an_audit() -> None:
    lines = [
        (5.0, "plan          100 images, maps of the labels top3 by occlusion, policy standard"),
        (5.0, "total         about 2 min on this machine"),
        (9.0, "explaining: 3%, 10 of about 400 rows, 9 rows/s, about 1 h left"),  # too early to be judged
        (50.0, "evaluating: 40%, 150 of about 400 rows, 9 rows/s, about 30 s left"),
        (90.0, "evaluating: 90%, 350 of about 400 rows, 9 rows/s, about 20 s left"),
        (100.0, "PASS       Are the heatmaps faithful? Yes."),
    ]
    found = figures(lines, 40.0)
    assert found == {"plan_s": 5.0, "first_report_s": 40.0, "verdict_s": 100.0, "verdict": "PASS", "announced_s": 120.0,
                     "factor": pytest.approx(100 / 120), "largest_eta_error": pytest.approx(-0.2)}  # fmt: skip
    drawn = first_audit_table({"model": "m.onnx", "images": 100, "audits": [{"cores": "0,1", **found}]})
    assert "| 0,1 | 5.0 | 40 | 100 | 120 | 0.83 | -20% | pass |" in drawn
