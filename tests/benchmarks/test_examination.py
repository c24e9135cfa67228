"""The family of planted networks is as described, its table counts rightly, and nothing is found in noise."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.runs.examination.proposals import Proposal
from benchmarks.examination import HONEST, KINDS, NETWORKS, Network, family, images_of, tabulated
from benchmarks.examination_null import IMAGES, WORLDS, Simulation, World, null_table, simulated
from models.cues import CUES, NO_CUE


def test_the_family_has_two_parts_of_other_styles() -> None:
    networks = family()
    assert len({network.name for network in networks}) == len(networks) == 5 * len(CUES) + 12
    by_part = {part: [one for one in networks if one.part == part] for part in ("chosen", "held-out")}
    assert Counter(one.cue for one in by_part["chosen"]) == {**dict.fromkeys(CUES, 2), HONEST: 4}
    assert Counter(one.cue for one in by_part["held-out"]) == {**dict.fromkeys(CUES, 3), HONEST: 8}
    styles = [{one.style for one in part} for part in by_part.values()]
    assert not styles[0] & styles[1]
    assert {one.side for one in by_part["chosen"]} == {64}
    assert {one.side for one in by_part["held-out"]} == {48, 64, 96}
    assert {one.network for one in by_part["held-out"]} == set(NETWORKS)
    assert set(KINDS) == {*CUES, HONEST}


@pytest.mark.parametrize("network", [one for one in family() if one.side == 48][:3], ids=lambda network: network.name)
def test_images_have_the_networks_size(network: Network) -> None:
    drawn = images_of(network, 10, 1)
    assert drawn.images.shape == (10, 48, 48, 3)
    assert (drawn.cues == NO_CUE).all() == (network.cue == HONEST)


def entry(network: Network, *kinds: str) -> dict[str, Any]:
    """What `run` keeps of a network, with findings of these kinds."""
    right = bool(set(kinds) & KINDS[network.cue]) if KINDS[network.cue] else not kinds
    found = [{"kind": kind} for kind in kinds]
    return {"network": asdict(network), "images": 120, "right": right, "pointing": None, "findings": found}


def test_the_table_counts_what_is_right(tmp_path: Path) -> None:
    tags = [one for one in family() if (one.part, one.cue) == ("chosen", "tag")]
    honest = [one for one in family() if (one.part, one.cue) == ("chosen", HONEST)]
    entries = [entry(tags[0], "corner"), entry(tags[1], "border"), *map(entry, honest[:3]), entry(honest[3], "mark")]
    for number, one in enumerate(entries):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "examined.json").write_text(json.dumps(one))
    table = tabulated(tmp_path)
    rows = [(row["cue"], row["runs"], row["right"], row["others"]) for row in table["rows"]]
    assert rows == [("tag", 2, 1, ["border"]), (HONEST, 4, 3, ["mark"])]
    totals = [(total["honest"], total["right"], total["runs"]) for total in table["totals"]]
    assert totals == [(False, 1, 2), (True, 3, 4)]
    assert table["networks"] == entries


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_simulated_predictions_lie_at_the_limit(world: World) -> None:
    """So many images that the rates of all exchanges together are exact."""
    everyone = np.ones(1000, dtype=np.bool_)
    simulation, margins = Simulation(world, 1000, np.random.default_rng(0)), []
    donors = simulation.material.predicted == 0 if world.of_label else everyone
    for outcome in simulation.outcomes():
        chance = Proposal(outcome, 0 if world.of_label else None, 0.0).chance(everyone)
        if chance + outcome.exchange.breadth + world.margin < 0.9:
            margins.append(outcome.by_donor(donors).mean() - chance - outcome.exchange.breadth)
    assert len(margins) >= 9
    assert np.mean(margins) == pytest.approx(world.margin, abs=0.02)


def test_findings_are_rare_where_there_is_nothing_to_find() -> None:
    entries = [simulated(world, images, 20) for world in WORLDS[1:2] for images in IMAGES]
    assert sum(found["false findings"] for found in entries) <= 6
    assert all(found["proposed"] == 20 for found in entries)
    assert "different donors" in null_table({"simulated": entries})


def test_findings_are_common_where_there_is_something_to_find() -> None:
    world = World("all images", 10, 0.0, 0.5, None)
    assert simulated(world, 120, 5)["false findings"] == 5


def test_a_share_of_the_marked_class_has_the_cue() -> None:
    logo = next(one for one in family() if one.cue == "logo")
    usual, few = (images_of(logo, 400, 3, share) for share in (None, 0.2))
    marked = [int((drawn.cues != NO_CUE).sum()) for drawn in (usual, few)]
    assert 24 <= marked[0] <= 40
    assert 2 <= marked[1] <= 16
    assert set(few.shapes[few.cues != NO_CUE].tolist()) == {logo.style}


def test_runs_with_a_share_are_counted_apart(tmp_path: Path) -> None:
    logo = next(one for one in family() if one.cue == "logo")
    usual = {**entry(logo, "mark"), "share": None, "with_cue": 10}
    entries = [usual, *({**usual, "share": share, "with_cue": count, "right": right}
                        for share, count, right in ((0.2, 2, False), (0.2, 4, True), (0.4, 5, True)))]  # fmt: skip
    for number, one in enumerate(entries):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "examined.json").write_text(json.dumps(one))
    found = tabulated(tmp_path)
    assert [(row["cue"], row["runs"], row["right"]) for row in found["rows"]] == [("logo", 1, 1)]
    rows = [(row["share"], row["of_all"], row["with_cue"], row["runs"], row["right"]) for row in found["rare"]]
    assert rows == [(0.2, 0.025, 3.0, 2, 1), (0.4, 0.0417, 5.0, 1, 1)]
