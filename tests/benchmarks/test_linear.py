"""The script of the paper's linear theorem: closed forms, bounds and scans against counting by hand."""

import itertools
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from auditkit.metrics.statistics import share_interval
from benchmarks import linear, tables

ROOT = Path(linear.__file__).parents[1]
CHANCE = np.random.default_rng(0)


def z_of(kind, d, margin):
    return linear.shares_of_margin(*kind(d, margin, CHANCE))


def every_order(d, negative):
    """Sums of every arrangement of d signs."""
    rows = np.ones((0, d))
    for places in itertools.combinations(range(d), negative):
        row = np.ones(d)
        row[[*places]] = -1
        rows = np.vstack([rows, row])
    return np.pad(np.cumsum(rows, axis=1), ((0, 0), (1, 0)))


@pytest.mark.parametrize("length", [1, 3, 5, 7, 9])
def test_the_chance_of_a_given_interval_is_the_share_of_all_arrangements(length):
    sums = every_order(12, linear.negatives(12, 1 / 3))
    assert len(sums) == 495
    counted = linear.completeness_of(sums, [length], fixed=True).mean()
    assert linear.fixed_exact(12, 1 / 3, length) == pytest.approx(counted, abs=1e-12)


def test_shuffles_have_the_soundness_of_all_arrangements():
    z = z_of(linear.flat, 12, 1 / 3)
    exact = linear.soundness_of(every_order(12, 4), [5, 7])
    drawn = [linear.soundness_of(sums, [5, 7]) for sums in linear.shuffled(z, 4000, np.random.default_rng(1))]
    assert 0.02 < exact[:, 0].mean() < exact[:, 1].mean() < 0.98
    assert np.concatenate(drawn).mean(axis=0) == pytest.approx(exact.mean(axis=0), abs=0.03)


def test_the_scan_finds_what_a_look_at_every_interval_finds():
    rows = CHANCE.integers(-2, 3, (60, 11)).astype(float)
    sums = np.pad(np.cumsum(rows, axis=1), ((0, 0), (1, 0)))
    for length in range(1, 11):
        each = [[row[at : at + length].sum() for at in range(11 - length + 1)] for row in rows]
        assert linear.completeness_of(sums, [length], fixed=True)[:, 0].tolist() == [row[0] > 0 for row in each]
        assert linear.completeness_of(sums, [length], fixed=False)[:, 0].tolist() == [max(row) > 0 for row in each]
        assert linear.soundness_of(sums, [length])[:, 0].tolist() == [min(row) >= 0 for row in each]


@pytest.mark.parametrize(("kind", "bound"), [("flat", 1.0), ("gaussian", 10.0), ("spiky", 8.0)])
def test_inputs_are_what_the_theorem_assumes(kind, bound):
    w, x = linear.KINDS[kind](1024, 1 / 4, CHANCE)
    assert np.linalg.norm(w) == pytest.approx(1) == np.linalg.norm(x)
    assert w @ x == pytest.approx(1 / 4) == linear.shares_of_margin(w, x).mean()
    assert 32 * np.abs([w, x]).max() <= bound + 1e-9


def test_a_lone_coordinate_is_of_unit_length_but_not_bounded():
    w, x = linear.lone(1024, 1 / 4, CHANCE)
    assert np.linalg.norm(w) == pytest.approx(1) == np.linalg.norm(x)
    assert w @ x == pytest.approx(1 / 4)
    assert 32 * np.abs([w, x]).max() > 20


def test_the_constant_is_hoeffdings_for_flat_and_bernsteins_for_spiky_inputs():
    assert linear.constant(z_of(linear.flat, 1024, 1 / 4)) == pytest.approx(2 * 16)
    spiky = linear.constant(z_of(linear.spiky, 1024, 1 / 2))
    assert spiky == pytest.approx(2 * (64 - 1 / 4 + 64.5 / 6) * 4)
    assert spiky < 2 * 8**4 * 4


@pytest.mark.parametrize("margin", [1 / 2, 1 / 4, 1 / 8])
def test_the_closed_form_keeps_the_promise_at_the_claimed_lengths(margin):
    for d in (2048, 8192, 131072):
        first, second = linear.claimed(z_of(linear.flat, d, margin))
        assert 1 - linear.fixed_exact(d, margin, first) <= linear.DELTA
        assert (d - second + 1) * (1 - linear.fixed_exact(d, margin, second)) <= linear.DELTA
        assert 1 - linear.fixed_exact(d, margin, first // 4) > linear.DELTA  # not for want of anything to keep


@pytest.mark.parametrize("length", [1, 3, 7, 21])
def test_some_interval_of_a_length_that_divides_d_certifies_the_label_in_any_order(length):
    rows = CHANCE.standard_normal((500, 21))
    rows += 1e-6 - rows.mean(axis=1, keepdims=True)
    rows[:250].sort(axis=1)
    sums = np.pad(np.cumsum(rows, axis=1), ((0, 0), (1, 0)))
    assert linear.completeness_of(sums, [length], fixed=False).all()


def test_without_the_shuffle_or_the_tv_limit_the_other_label_is_certified():
    z = z_of(linear.flat, 2048, 1 / 4)
    _, length = linear.claimed(z)
    assert linear.worst_order(z, length) == 0
    assert linear.worst_order(z, 2047) == 1  # all but one coordinate leave the margin as it is


def test_the_length_needed_is_the_one_behind_the_last_that_falls_short():
    hits = {1: 10, 3: 960, 5: 930, 7: 955, 9: 990, 11: 1000}
    found = linear.needed({length: share_interval(count, 1000) for length, count in hits.items()})
    assert found == {"value": 7, "low": 7, "high": 9}
    assert linear.needed({1: share_interval(1, 10), 3: share_interval(10, 10)})["value"] == 3
    assert linear.needed({1: share_interval(1, 10), 3: share_interval(2, 10)})["value"] is None
    assert linear.needed({1: share_interval(10, 10)})["value"] is None


def test_a_share_shows_the_promise_refutes_it_or_leaves_it_open():
    assert [linear.told(share_interval(hits, 1000))["is"] for hits in (1000, 955, 900)] == ["holds", "open", "fails"]


def test_few_shuffles_have_values_without_intervals(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        sys, "argv", ["linear", "--powers", "9", "11", "--shuffles", "4", "--plot", str(tmp_path / "plot.svg")]
    )
    linear.main()
    found = json.loads(capsys.readouterr().out)
    share = found["rows"][1]["at_L1"]["fixed"]
    assert (share["low"], share["high"], share["n"], share["is"]) == (None, None, 4, "open")
    assert found["rows"][1]["needed_sound"]["low"] is None
    assert f"| {share['value']:.3f} |" in tables.linear(found)


def test_the_script_prints_what_was_claimed_and_measured_and_draws_it(tmp_path, monkeypatch, capsys):
    given = ["--powers", "9", "11", "--shuffles", "100", "--plot", str(tmp_path / "plot.svg")]
    monkeypatch.setattr(sys, "argv", ["linear", *given])
    linear.main()
    found = json.loads(capsys.readouterr().out)
    assert found["command"] == ["python", "-m", "benchmarks.linear", *given[:-1], "plot.svg"]
    assert {"machine", "date", "seed", "shuffles", "delta", "seconds"} <= set(found)
    assert [(row["kind"], row["margin"], row["d"]) for row in found["rows"]] == [
        (*case, d) for case in linear.CASES for d in (512, 2048)
    ]
    flat = next(row for row in found["rows"] if (row["kind"], row["margin"], row["d"]) == ("flat", 1 / 4, 2048))
    assert flat["at_L1"]["fixed"]["n"] == 100
    assert flat["at_L1"]["fixed"]["low"] <= flat["fixed_exact"][0] <= flat["at_L1"]["fixed"]["high"]
    assert flat["at_L2"]["sound"]["value"] > flat["at_L1"]["sound"]["value"]
    assert flat["needed_fixed"]["value"] < flat["needed_sound"]["value"] <= flat["L2"]
    spiky = next(row for row in found["rows"] if row["kind"] == "spiky" and row["d"] == 512)
    assert spiky["L1"] > 512
    assert spiky["at_L1"] is None
    assert found["unbounded"][1]["sound"]["value"] == 0
    assert ElementTree.parse(tmp_path / "plot.svg").getroot().tag.endswith("svg")  # noqa: S314 - our own file


def test_the_committed_figures_say_what_the_script_says_of_them():
    results = ROOT / "benchmarks/results"
    found = json.loads((results / "linear.json").read_text())
    rows = found["rows"]
    assert all(row["at_L1"]["fixed"]["is"] == "holds" for row in rows if row["at_L1"])
    assert all(row["at_L2"]["sound"]["is"] == "holds" for row in rows if row["at_L2"])
    assert all(row["worst_order"] == 0 for row in rows if row["at_L2"])
    assert linear.plot(rows) == (results / "linear.svg").read_text()
