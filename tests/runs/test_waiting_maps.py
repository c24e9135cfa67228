"""Maps that are finished before those of earlier images: none is lost, and the bundle has the same bytes in the end."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.data.bundles import HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.methods.request import MethodResult, Request
from auditkit.model.classifier import OnnxClassifier
from auditkit.runs.explain import Explanation, explain
from auditkit.runs.explanation import recorded_bundle
from auditkit.runs.explanation.record import RECORD
from auditkit.runs.folder.merge import merge
from auditkit.runs.folder.names import WAITING
from auditkit.runs.folder.sittings import SITTINGS
from tests.support import onnx_models
from tests.support.backwards_engine import BackwardsEngine

GRADIENT = Explanation("gradient", "top2")  # 16 images in a unit
MASK = Explanation("mask", "top2", (("steps", "3"), ("infill", "gray"), ("factor", "2")))  # 4 images; coarse maps
Given = tuple[Path, Dataset]


@pytest.fixture
def given(tmp_path: Path) -> Given:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "images.npz", images=rng.integers(0, 256, (50, 8, 8, 3), dtype=np.uint8))
    model = onnx_models.save(onnx_models.convnet(size=8, classes=4), tmp_path)
    return model, Dataset.open(tmp_path / "images.npz", 4)


def _explain(given: Given, explanation: Explanation, out: Path, engine: BackwardsEngine | None) -> HeatmapSet:
    model = auditkit.load(given[0], preset="unit", settings=auditkit.Settings(device="cpu", in_process=True))
    assert isinstance(model, OnnxClassifier)
    if engine is not None:
        model.use_engine(engine)
    return explain(model, given[1].select(range(14)) if explanation is MASK else given[1], explanation, out)


def _digests(out: Path) -> dict[str, str]:
    files = [path for path in sorted(out.rglob("*")) if path.is_file() and path.name != SITTINGS]
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _snapshots(out: Path, folder: Path) -> Callable[[], None]:
    """Copies a bundle as a kill would leave it, to a folder that is numbered from 0."""
    return lambda: shutil.copytree(out, folder / str(len(list(folder.iterdir()))))


def _watch(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The images that maps are made of from now on."""
    make, images = Explanation.make, list[str]()

    def watched(explanation: Explanation, request: Request) -> MethodResult:
        images.extend(request.ids)
        return make(explanation, request)

    monkeypatch.setattr(Explanation, "make", watched)
    return images


def _waiting(bundle: Path) -> list[str]:
    """The images whose maps wait in a bundle."""
    folder = bundle / WAITING
    units = sorted(folder.iterdir()) if folder.exists() else []
    return [image for unit in units for image in open_bundle(unit).labels]


@pytest.mark.parametrize("explanation", [GRADIENT, MASK], ids=["gradient", "mask"])
@pytest.mark.parametrize("resumed_by", ["workers", "one process"])
def test_wherever_a_run_is_killed_no_map_is_made_twice(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, explanation: Explanation, resumed_by: str
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    killed.mkdir()
    _explain(given, explanation, whole, BackwardsEngine(_snapshots(whole, killed)))
    expected, states = _digests(whole), sorted(killed.iterdir())
    assert not (whole / WAITING).exists()
    assert len(states) == 4
    for number, state in enumerate(states[:-1], start=1):
        waiting, explained = _waiting(state), _watch(monkeypatch)
        assert len(waiting) == len(set(waiting)) > 0
        assert len(open_bundle(state)) == 0
        maps = _explain(given, explanation, state, BackwardsEngine() if resumed_by == "workers" else None)
        assert set(explained).isdisjoint(waiting), number
        assert len(explained) + len(waiting) == len(maps.labels), number
        if resumed_by == "workers" or explanation is GRADIENT:  # one process writes a mask as soon as it is learned
            assert _digests(state) == expected
        monkeypatch.undo()


def test_an_engine_and_one_process_write_the_same_bytes(given: Given, tmp_path: Path) -> None:
    _explain(given, GRADIENT, tmp_path / "workers", BackwardsEngine())
    _explain(given, GRADIENT, tmp_path / "alone", None)
    assert _digests(tmp_path / "workers") == _digests(tmp_path / "alone")


def _killed(given: Given, folder: Path) -> Path:
    """A bundle whose writer was killed while the maps of two units wait."""
    out, states = folder / "out", folder / "states"
    states.mkdir()
    _explain(given, GRADIENT, out, BackwardsEngine(_snapshots(out, states)))
    return states / "1"


def _tear(unit: Path) -> None:
    (unit / "maps" / "000000.npy").write_bytes(b"\x93NUMPY torn")


def _change(unit: Path) -> None:
    path = unit / "maps" / "000000.npy"
    np.save(path, np.load(path) + 1)


def _never_begun(unit: Path) -> None:
    (unit / "bundle.json").unlink()


def _edit_record(unit: Path, change: Callable[[dict[str, Any]], None]) -> None:
    part = json.loads((unit / RECORD).read_text())
    change(part)
    (unit / RECORD).write_text(json.dumps(part) + "\n")


def _odd_label(unit: Path) -> None:
    def add(part: dict[str, Any]) -> None:
        part["maps"][next(iter(part["maps"]))]["abc"] = "00"

    _edit_record(unit, add)


def _endless_label(unit: Path) -> None:
    def add(part: dict[str, Any]) -> None:
        part["maps"][next(iter(part["maps"]))]["1" * 5000] = "00"

    _edit_record(unit, add)


def _no_digest(unit: Path) -> None:
    _edit_record(unit, lambda part: part["images"].pop(next(iter(part["images"]))))


@pytest.mark.parametrize("damage", [
    _tear, _change, _never_begun, shutil.rmtree, _odd_label, _endless_label, _no_digest,
])  # fmt: skip
def test_maps_that_are_damaged_while_they_wait_are_made_again(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    state = _killed(given, tmp_path)
    first, second = sorted((state / WAITING).iterdir())
    lost, kept = list(open_bundle(first).labels), list(open_bundle(second).labels)
    damage(first)
    explained = _watch(monkeypatch)
    _explain(given, GRADIENT, state, BackwardsEngine())
    assert set(lost) <= set(explained)
    assert set(kept).isdisjoint(explained)
    assert _digests(state) == _digests(tmp_path / "out")


def test_an_earlier_line_that_says_otherwise_changes_nothing(given: Given, tmp_path: Path) -> None:
    state = _killed(given, tmp_path)
    path = min((state / WAITING).iterdir()) / RECORD
    part = json.loads(path.read_text())
    part["maps"] = {image: dict.fromkeys(digests, "00") for image, digests in part["maps"].items()}
    path.write_text(json.dumps(part) + "\n" + path.read_text())
    _explain(given, GRADIENT, state, BackwardsEngine())
    assert _digests(state) == _digests(tmp_path / "out")


@pytest.mark.parametrize("state", ["whole", "empty"])
def test_maps_of_another_size_do_not_join(given: Given, tmp_path: Path, state: str) -> None:
    out, states = tmp_path / "out", tmp_path / "states"
    states.mkdir()
    _explain(given, MASK, out, BackwardsEngine(_snapshots(out, states)))
    expected = _digests(out)
    if state == "whole":
        shutil.copytree(states / "2" / WAITING, out / WAITING)
    else:
        shutil.rmtree(out)
        (states / "2").rename(out)
    for unit in (out / WAITING).iterdir():
        header = (unit / "bundle.json").read_text()
        (unit / "bundle.json").write_text(re.sub(r'"size": \[\s*8,\s*8', '"size": [7, 7', header))
        changed = open_bundle(unit).header.upsampling
        assert changed is not None
        assert changed.size == (7, 7)
    _explain(given, MASK, out, BackwardsEngine())
    assert _digests(out) == expected


def test_maps_of_another_model_do_not_join(given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = _killed(given, tmp_path)
    for unit in (state / WAITING).iterdir():
        header = (unit / "bundle.json").read_text()
        digest = open_bundle(unit).header.model or ""
        (unit / "bundle.json").write_text(header.replace(digest, digest[::-1]))
    explained = _watch(monkeypatch)
    _explain(given, GRADIENT, state, BackwardsEngine())
    assert len(explained) == 50
    assert _digests(state) == _digests(tmp_path / "out")


def test_other_labels_are_made_beside_those_that_wait(given: Given, tmp_path: Path) -> None:
    state = _killed(given, tmp_path)
    maps = _explain(given, Explanation("gradient", "top1"), state, BackwardsEngine())
    counts = {len(labels) for labels in maps.labels.values()}
    assert counts == {1, 2}  # those that waited have both labels
    assert not (state / WAITING).exists()


def test_images_that_changed_meanwhile_are_refused(given: Given, tmp_path: Path) -> None:
    state, (model, _) = _killed(given, tmp_path), given
    np.savez(tmp_path / "images.npz", images=np.zeros((50, 8, 8, 3), np.uint8))
    with pytest.raises(BadInput, match="has maps that were made from other inputs"):
        _explain((model, Dataset.open(tmp_path / "images.npz", 4)), GRADIENT, state, BackwardsEngine())


def test_a_link_to_another_place_is_refused(given: Given, tmp_path: Path) -> None:
    state = _killed(given, tmp_path)
    elsewhere = (state / WAITING).rename(tmp_path / "elsewhere")
    (state / WAITING).symlink_to(elsewhere)
    with pytest.raises(BadInput, match="waiting is a link"):
        _explain(given, GRADIENT, state, BackwardsEngine())
    assert len(list(elsewhere.iterdir())) == 2


def test_a_file_in_place_of_the_folder_is_refused(given: Given, tmp_path: Path) -> None:
    state = _killed(given, tmp_path)
    (state / WAITING / "000001").rename(tmp_path / "moved")
    (state / WAITING / "000001").write_text("")
    with pytest.raises(BadInput, match="holds 'waiting/000001', which auditkit did not write"):
        _explain(given, GRADIENT, state, BackwardsEngine())


@pytest.mark.parametrize("failing", range(4))
def test_a_write_that_fails_changes_the_order_of_no_other(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Results that other workers bring after it wait, and no unit counts twice."""
    _explain(given, GRADIENT, tmp_path / "whole", BackwardsEngine())
    write, out = recorded_bundle.append, tmp_path / "out"
    units = iter(range(4))

    def append(path: Path, lines: bytes, *, root: Path) -> int:
        if path.parent == out and next(units, None) == failing:
            raise OSError(5, "the disk is broken")
        return write(path, lines, root=root)

    monkeypatch.setattr(recorded_bundle, "append", append)
    with pytest.raises(RuntimeFailure, match="the disk is broken"):
        _explain(given, GRADIENT, out, _AllAtOnce())
    monkeypatch.undo()
    explained = _watch(monkeypatch)
    _explain(given, GRADIENT, out, BackwardsEngine())
    assert len(explained) <= 16  # of the unit that could not be written
    assert _digests(out) == _digests(tmp_path / "whole")


class _AllAtOnce(BackwardsEngine):
    """Brings all results, whatever happens to the others, as workers do that are at work already."""

    def run(
        self, work: Callable[..., Any], units: Iterable[Any], keep: Callable[[Any, Any], None], tick: Any, at_once: int
    ) -> tuple[list[Any], list[Any]]:  # fmt: skip
        errors, results = list[Exception](), [(unit, work(unit, nullcontext(), tick)) for unit in units]
        for unit, result in results:
            try:
                keep(unit, result)
            except Exception as error:
                errors.append(error)
        raise errors[0]


def test_merge_takes_maps_that_wait_in_a_shard(given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = _killed(given, tmp_path)
    first, _ = sorted((state / WAITING).iterdir())
    lost = next(iter(open_bundle(first).labels))
    values = np.load(first / "maps" / "000000.npy")
    values[0] += 1
    np.save(first / "maps" / "000000.npy", values)
    merged = merge([state], tmp_path / "merged")
    assert len(merged.warnings) == 1
    assert f"was changed since it was made (image '{lost}'" in merged.warnings[0]
    waiting = open_bundle(tmp_path / "merged").labels
    explained = _watch(monkeypatch)
    _explain(given, GRADIENT, tmp_path / "merged", BackwardsEngine())
    assert set(explained) & set(waiting) == {lost}  # one of its two labels
    assert len(explained) + len(waiting) == 51
    assert len(list((state / WAITING).iterdir())) == 2


def test_merge_names_a_unit_that_cannot_be_used_and_takes_the_others(given: Given, tmp_path: Path) -> None:
    state = _killed(given, tmp_path)
    first, second = sorted((state / WAITING).iterdir())
    header = (first / "bundle.json").read_text()
    digest = open_bundle(first).header.model or ""
    (first / "bundle.json").write_text(header.replace(digest, digest[::-1]))
    merged = merge([state], tmp_path / "merged")
    assert len(merged.warnings) == 1
    assert f"maps of {first} were left out: they cannot be read, or are not those of {state}" in merged.warnings[0]
    assert open_bundle(tmp_path / "merged").labels.keys() == open_bundle(second).labels.keys()


def test_merge_takes_what_waits_in_the_folder_for_all(given: Given, tmp_path: Path) -> None:
    state = _killed(given, tmp_path)
    waiting = {image for unit in (state / WAITING).iterdir() for image in open_bundle(unit).labels}
    shard = tmp_path / "out"
    merge([shard], state)
    assert not (state / WAITING).exists()
    assert open_bundle(state).labels.keys() == open_bundle(shard).labels.keys() >= waiting
