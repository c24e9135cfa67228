"""Masks of images whose truth is known: every infill finds its place, and painted tags are gone."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.demo.draw import draw
from benchmarks import planted
from benchmarks.tables import KINDS


def test_every_infill_has_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    infills = ("gray", "distractors", "untagged")
    words = [word for infill in infills for word in ("--infill", infill)]
    monkeypatch.setattr(
        sys, "argv", ["planted", "-o", str(tmp_path), "--images", "2", "--steps", "2", "--device", "cpu", *words]
    )
    planted.main()
    found = json.loads((tmp_path / "planted.json").read_bytes())
    rows = [(line["model"], line["maps"]) for line in found["lines"]]
    assert rows == [(model, maps) for model in planted.MODELS for maps in (*infills, *planted.CONTROLS)]
    assert [line["learned"]["steps"] for line in found["lines"] if "learned" in line] == [2] * 6
    drawn = KINDS["planted"][1](found)
    assert "| shortcut | tag | untagged |" in drawn


def test_painted_tags_are_gone() -> None:
    drawn = draw(3, seed=1, tags="random")
    plain = planted.without_tags(drawn)
    assert (plain[drawn.tag_regions] == planted.GRAY).all()
    np.testing.assert_array_equal(plain[~drawn.tag_regions], drawn.images[~drawn.tag_regions])


def test_a_map_is_found_where_it_points(tmp_path: Path) -> None:
    """A map of one image's tag lies in its own region and in a corner; that of another corner in a corner alone."""
    drawn = draw(2, seed=1, tags="random")
    images = Dataset(tmp_path, ("a", "b"), drawn.images)
    own, other = drawn.tag_regions
    assert not (own & other).any()
    bundle = auditkit.Bundle(tmp_path / "maps")
    bundle.add(["a", "b"], [0, 0], np.stack([own, own]).astype(np.float32))
    found = planted.located(tmp_path / "maps", images, drawn, own | other, "shortcut")
    assert (found["tolerant"], found["corner"], found["most"]) == (0.5, 1.0, 0.5)
