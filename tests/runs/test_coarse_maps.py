"""Learned masks are stored at their own resolution; whoever reads them gets those of all pixels, to the last digit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.data.bundles import HeatmapSet
from auditkit.data.ranks import ranks
from auditkit.errors import BadInput, IntegrityFailure
from auditkit.methods.mask import method
from auditkit.runs.folder.merge import merge
from tests.support import onnx_models
from tests.support.commands import auditkit as command

CPU = auditkit.Settings(device="cpu")
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 10, 10, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = onnx_models.save(onnx_models.convnet(size=10, classes=3), tmp_path_factory.mktemp("model"))
    return auditkit.load(path, preset="unit", settings=CPU)


def _explained(model: Any, out: Path, images: Any = IMAGES) -> HeatmapSet:
    return auditkit.explain(model, images, out, labels="top2", pool=IMAGES, factor=4, steps=5, infill="gray")


def _of_all_pixels(patch: pytest.MonkeyPatch) -> None:
    """Let masks be stored as they were before bundles knew of upsampling."""
    patch.setattr(method, "Coarse", lambda *_: None)


@pytest.fixture(scope="module")
def small(model: Any, tmp_path_factory: pytest.TempPathFactory) -> HeatmapSet:
    return _explained(model, tmp_path_factory.mktemp("small") / "maps")


@pytest.fixture
def large(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeatmapSet:
    with monkeypatch.context() as patch:
        _of_all_pixels(patch)
        return _explained(model, tmp_path / "large" / "maps")


def test_readers_get_what_they_got_from_maps_of_all_pixels(model: Any, small: HeatmapSet, large: HeatmapSet) -> None:
    assert json.loads((small.path / "bundle.json").read_text())["upsampling"] == {
        "kind": "bilinear", "factor": 4, "size": [10, 10],
    }  # fmt: skip
    assert "upsampling" not in json.loads((large.path / "bundle.json").read_text())
    assert np.load(next((small.path / "maps").iterdir())).shape[1:] == (3, 3)
    for mine, other in zip(small, large, strict=True):
        np.testing.assert_array_equal(mine.values, other.values)
        np.testing.assert_array_equal(ranks(mine.values), ranks(other.values))
        np.testing.assert_array_equal(small.get(mine.image, mine.label), other.values)
    figures = [auditkit.evaluate(model, IMAGES, bundle, labels="top2").metrics for bundle in (small, large)]
    assert figures[0] == figures[1]


def test_a_bundle_goes_on_as_it_was_begun(model: Any, small: HeatmapSet, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """One from before has maps of all pixels, and is continued with such."""
    with monkeypatch.context() as patch:
        _of_all_pixels(patch)
        _explained(model, tmp_path / "maps", IMAGES[:2])
    continued = _explained(model, tmp_path / "maps")
    assert continued.header.upsampling is None
    for mine, other in zip(continued, small, strict=True):
        np.testing.assert_array_equal(mine.values, other.values)


def test_a_small_map_that_was_changed_is_refused(model: Any, tmp_path: Path) -> None:
    bundle = _explained(model, tmp_path / "maps")
    file = next((bundle.path / "maps").iterdir())
    maps = np.load(file)
    maps[0, 0, 0] += 0.1
    np.save(file, maps)
    with pytest.raises(IntegrityFailure, match="was changed since it was made"):
        _explained(model, tmp_path / "maps")


def test_maps_of_another_size_are_not_added_to_it(small: HeatmapSet) -> None:
    bundle = auditkit.Bundle(small.path, small.header.model, small.header.method)
    with pytest.raises(BadInput, match="has upsampling"):
        bundle.add(["9"], [0], np.zeros((1, 10, 10)))


@pytest.mark.parametrize(("upsampling", "words"), [
    ({"kind": "bicubic", "factor": 4, "size": [10, 10]}, "bicubic"),
    ({"kind": "bilinear", "factor": 0, "size": [10, 10]}, "factor of 0"),
    ({"kind": "bilinear", "factor": 2, "size": [10**6, 10**6]}, "1000000 by 1000000"),
    ({"kind": "bilinear", "factor": 2, "size": [10, 10]}, "cells"),
])  # fmt: skip
def test_a_header_that_does_not_fit_is_one_sentence(
    small: HeatmapSet, tmp_path: Path, upsampling: dict[str, object], words: str
) -> None:
    folder = tmp_path / "maps"
    (folder / "maps").mkdir(parents=True)
    for path in (small.path / "maps").iterdir():
        (folder / "maps" / path.name).write_bytes(path.read_bytes())
    (folder / "manifest.csv").write_bytes((small.path / "manifest.csv").read_bytes())
    header = json.loads((small.path / "bundle.json").read_text())
    (folder / "bundle.json").write_text(json.dumps({**header, "upsampling": upsampling}))
    done = command("bundle", "check", folder)
    assert done.returncode == 2, done
    assert words in done.stdout + done.stderr


def test_shards_are_merged_as_they_are_stored(small: HeatmapSet, tmp_path: Path) -> None:
    merge([small.path], tmp_path / "maps")
    merged = auditkit.open_bundle(tmp_path / "maps")
    assert merged.header.upsampling == small.header.upsampling
    for mine, other in zip(merged, small, strict=True):
        np.testing.assert_array_equal(mine.values, other.values)
