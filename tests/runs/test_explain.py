"""Explanations as users make them: by the command and from Python, whole, cut short and gone on with."""

import io
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import helper, version_converter
from PIL import Image

import auditkit
from auditkit.data import bundles
from auditkit.data.bundles import Bundle, HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput, IntegrityFailure, NoGradient
from auditkit.methods.registry import METHODS
from auditkit.methods.request import MethodResult, Request
from auditkit.model import gradient
from auditkit.runs.explain import Explanation, explain
from auditkit.runs.explanation import recorded_bundle
from auditkit.runs.explanation.record import RECORD, Record
from auditkit.runs.explanation.recorded_bundle import RecordedBundle
from auditkit.runs.folder.names import UNFINISHED
from tests.support import onnx_models
from tests.support.commands import auditkit as command
from tests.support.commands import refused

CPU = auditkit.Settings(device="cpu")


@pytest.fixture
def given(tmp_path: Path) -> tuple[Path, Path]:
    """A model and twenty images."""
    rng = np.random.default_rng(0)
    model = onnx_models.save(onnx_models.convnet(size=8, classes=4), tmp_path)
    np.savez(tmp_path / "images.npz", images=rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8))
    return model, tmp_path / "images.npz"


def test_maps_for_every_label_that_evaluate_takes(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    done = command("explain", model, images, "-o", tmp_path / "maps", "--method", "gradient-input", "--preset", "unit",
                   "--device", "cpu", "--json")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["maps"], said["images"], said["method"]) == (80, 20, "gradient-input(seed=0)")
    assert (said["passes"], said["gradients"], said["computed"], said["notes"]) == (0, 80, "cpu, strict", [])
    opened = auditkit.load(model, preset="unit", settings=CPU)
    found = auditkit.open_bundle(tmp_path / "maps")
    assert found.header.model == opened.file.identity
    summary = auditkit.evaluate(opened, images, tmp_path / "maps", steps=8)
    assert summary.value("soundness", "maps") is not None


def test_python_makes_the_same_maps(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    command("explain", model, images, "-o", tmp_path / "one", "--method", "smoothgrad", "--preset", "unit",
            "--option", "samples=3", "--labels", "top2", "--seed", "5", "--device", "cpu")  # fmt: skip
    opened = auditkit.load(model, preset="unit", settings=CPU)
    two = auditkit.explain(opened, images, tmp_path / "two", "smoothgrad", samples=3, labels="top2", seed=5)
    one = auditkit.open_bundle(tmp_path / "one")
    assert one.labels == two.labels
    for mine, other in zip(one, two, strict=True):
        np.testing.assert_array_equal(mine.values, other.values)


def test_the_same_command_goes_on_and_keeps_what_is_there(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    opened = auditkit.load(model, preset="unit", settings=CPU)
    with np.load(images) as arrays:
        first = arrays["images"][:7]
    auditkit.explain(opened, first, tmp_path / "maps", "gradient", labels="top1")
    before = {path.name: path.read_bytes() for path in (tmp_path / "maps" / "maps").iterdir()}
    whole = auditkit.explain(opened, images, tmp_path / "maps", "gradient", labels="top2")
    assert len(whole) == 40
    assert all((tmp_path / "maps" / "maps" / name).read_bytes() == content for name, content in before.items())
    other = auditkit.explain(opened, images, tmp_path / "other", "gradient", labels="top2")
    for image, labels in other.labels.items():
        for label in labels:
            np.testing.assert_allclose(whole.get(image, label), other.get(image, label), atol=1e-6)


def test_another_way_does_not_go_into_the_same_bundle(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    opened = auditkit.load(model, preset="unit", settings=CPU)
    auditkit.explain(opened, images, tmp_path / "maps", "random")
    for other in ({"method": "gradient"}, {"method": "random", "seed": 1}):
        with pytest.raises(BadInput, match="use another bundle"):
            auditkit.explain(opened, images, tmp_path / "maps", **other)
    with np.load(images) as arrays:
        changed = arrays["images"].copy()
    changed[3] = 255 - changed[3]
    with pytest.raises(BadInput, match="image '3' has other content here"):
        auditkit.explain(opened, changed, tmp_path / "maps", "random")


def test_a_function_is_explained_too(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    opened = auditkit.load(model, preset="unit", settings=CPU)
    found = auditkit.explain(opened.predict, images, tmp_path / "maps", "edges", size=(8, 8), preset="unit")
    assert len(found) == 80
    assert found.header.model is None


@pytest.mark.parametrize(("words", "said"), [
    (("--method", "magic"), "unknown method 'magic'"),
    (("--method", "smoothgrad", "--option", "sample=3"), "unknown option 'sample'; did you mean 'samples'?"),
    (("--method", "smoothgrad", "--option", "samples=three"), "not a number"),
    (("--method", "gradient", "--option", "samples=3"), "there are none"),
    (("--method", "gradient", "--labels", "top9"), "top9"),
    (("--method", "gradient", "--seed", "-1"), "seed -1"),
    (("--method", "masker"), "needs the option path"),
    (("--method", "grad-cam", "--option", "layer=nope"), "layer=nope names no tensor"),
    (("--method", "grad-cam", "--option", "layer=image"), "layer=image names no tensor"),
])  # fmt: skip
def test_bad_input_is_one_sentence(given: tuple[Path, Path], tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    model, images = given
    refused(command("explain", model, images, "-o", tmp_path / "maps", "--preset", "unit", *words), said)


def test_the_help_names_every_method() -> None:
    from auditkit.cli.explain import _METHODS as HELP
    from auditkit.methods.registry import METHODS

    assert set(METHODS) == set(HELP.rstrip(".").replace(" or ", ", ").split(", "))


@pytest.mark.parametrize("method", ["mask", "differences", "rise", "occlusion"])
def test_methods_that_ask_the_model(given: tuple[Path, Path], tmp_path: Path, method: str) -> None:
    model, images = given
    few = {"mask": {"steps": 5}, "differences": {"most_passes": 32}, "rise": {"passes": 32}, "occlusion": {}}[method]
    opened = auditkit.load(model, preset="unit", settings=CPU)
    with np.load(images) as arrays:
        found = auditkit.explain(opened, arrays["images"][:5], tmp_path / "maps", method, labels="top2", **few)
    assert len(found) == 10
    assert found.header.method.startswith(f"{method}(")
    assert all(np.ptp(held.values) > 0 for held in found)


@pytest.mark.parametrize("method", ["mask", "differences", "rise", "occlusion"])
def test_progress_moves_within_a_unit(given: tuple[Path, Path], tmp_path: Path, method: str) -> None:
    few = {"mask": {"steps": "9"}, "differences": {"most_passes": "64"}}.get(method, {})
    done, opened = [0.0], auditkit.load(given[0], preset="unit", settings=CPU)
    what = Explanation(method, "top1", tuple(few.items()))
    explain(opened, Dataset.open(given[1], 4).select(range(4)), what, tmp_path / "maps",
            progress=lambda _total: lambda images, _rows=0: done.append(done[-1] + images))  # fmt: skip
    assert len({round(images, 6) for images in done if 0 < images < 4}) >= 3  # of the only unit
    assert done[-1] == pytest.approx(4)


def test_maps_of_large_images_are_kept_one_by_one_on_a_cpu(given: tuple[Path, Path], tmp_path: Path) -> None:
    large = auditkit.load(onnx_models.save(onnx_models.convnet(size=128), tmp_path, "large.onnx"), settings=CPU)
    small = auditkit.load(given[0], settings=CPU)
    for method in ("differences", "rise", "occlusion", "grad-cam"):
        assert METHODS[method].together(large) == 1 < METHODS[method].together(small)


def test_without_a_gradient_masks_come_from_differences(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    opened = auditkit.load(model, preset="unit", settings=CPU)
    for number, (source, more) in enumerate([
        (opened, {"gradient": "differences"}), (opened.predict, {"size": (8, 8), "preset": "unit"}),
    ]):  # fmt: skip
        found = auditkit.explain(source, images, tmp_path / str(number), labels="top1", most_passes=32, **more)
        assert found.header.method.startswith("differences(")
        spent = Record.of(found.path).passes
        assert 20 * 16 <= spent <= 20 * 32  # an image may be done before its most
    with pytest.raises(BadInput, match="needs the gradient of the graph"):
        auditkit.explain(opened, images, tmp_path / "no", "smoothgrad", gradient="differences")


def _vendors(kind: str) -> onnx.ModelProto:
    """A model without a gradient to learn masks by, and why."""
    rng, make = np.random.default_rng(1), helper.make_node
    first, width, batch, opset = {
        "no rule": ([make("Det", ["image"], ["p"])], 3, "N", 17),
        "no check": ([make("GlobalAveragePool", ["image"], ["p"])], 3, "N", 17),
        "coupled": ([make("ReduceMean", ["image"], ["m"], axes=[0]), make("Sub", ["image", "m"], ["p"])], 192, "N", 17),
        "dynamically quantised": ([make("DynamicQuantizeLinear", ["image"], ["q", "s", "z"]),
                                   make("DequantizeLinear", ["q", "s", "z"], ["p"])], 192, "N", 17),
        "fixed batch": ([make("Add", ["image", "rows"], ["p"])], 192, 3, 17),
        "not raised": ([make("Relu", ["image"], ["p"])], 192, "N", 9),
    }[kind]  # fmt: skip
    nodes = [*first, make("Flatten", ["p"], ["flat"]), make("Gemm", ["flat", "g", "b"], ["logits"])]
    weights = {"g": rng.standard_normal((width, 4)), "b": rng.standard_normal(4) + 1e6 * (kind == "no check")}
    weights |= {"rows": np.zeros((3, 1, 1, 1))} if kind == "fixed batch" else {}
    ends = [onnx_models.value("image", [batch, 3, 8, 8])], [onnx_models.value("logits", [batch, 4])]
    return onnx_models.model(nodes, *ends, {n: w.astype(np.float32) for n, w in weights.items()}, opset=opset)


@pytest.mark.parametrize(("kind", "reason"), [
    ("no rule", "no gradient rule for Det"), ("no check", "the scores hardly change"),
    ("coupled", "change each other's scores"), ("dynamically quantised", "change each other's scores"),
    ("fixed batch", "only takes batches of 3, not a multiple of"), ("not raised", "operator set 9 cannot be raised"),
])  # fmt: skip
def test_every_file_gets_a_map(
    given: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, reason: str
) -> None:
    """By differences where there is no gradient; only `graph` refuses, and its advice works."""
    if kind == "not raised":
        monkeypatch.setattr(version_converter, "convert_version", Mock(side_effect=RuntimeError("no adapter")))
    opened = auditkit.load(onnx_models.save(_vendors(kind), tmp_path, "v.onnx"), preset="unit", settings=CPU)
    batches = kind in ("coupled", "dynamically quantised", "fixed batch")  # of these, single gradients can be had
    infill, hide = ("distractors", "random") if batches else ("gray", "gray")
    request = Explanation("mask", "top1", (("steps", "9"), ("infill", infill)))
    fitting = request.adapted_to(opened)
    assert (fitting.method, fitting.options) == ("differences", (("hide", hide),))
    assert [note.kind for note in fitting.notes] == ["no-gradient", "unused-options"]
    assert reason in fitting.notes[0].detail
    assert fitting.notes[1].detail == "steps=9"
    assert fitting.adapted_to(opened) == fitting
    if not batches:
        with pytest.raises(NoGradient, match="Use mask with --gradient differences"):
            Explanation("smoothgrad").adapted_to(opened)
    with pytest.raises(NoGradient, match=re.escape(reason)):
        replace(request, gradient="graph").adapted_to(opened)
    if kind == "fixed batch":  # its other advice
        learned = replace(request, options=(("steps", "9"), ("distractors", "3"), ("masks", "1")), gradient="graph")
        assert learned.adapted_to(opened) == learned
    with np.load(given[1]) as arrays:
        maps = auditkit.explain(opened, arrays["images"][:3], tmp_path / "maps", labels="top1", gradient="differences",
                                most_passes=16, steps=9, infill="gray")  # fmt: skip
    assert len(maps) == 3
    assert Record.of(maps.path).notes[:2] == (
        "the method differences is used instead of mask: --gradient differences",
        "these options of mask do not apply to differences: steps=9",
    )


def test_the_command_tells_of_differences_before_it_begins(given: tuple[Path, Path], tmp_path: Path) -> None:
    model = onnx_models.save(_vendors("no rule"), tmp_path, "v.onnx")
    words = ("explain", model, given[1], "-o", tmp_path / "maps", "--preset", "unit", "--labels", "0")
    done = command(*words, "--option", "steps=300")
    assert done.returncode == 0
    first, second = done.stderr.splitlines()[:2]
    assert first.startswith("note: the method differences is used instead of mask: no gradient rule for Det")
    assert second == "note: these options of mask do not apply to differences: steps=300"
    refused(command(*words, "--option", "step=300"), "mask: unknown option 'step'; did you mean 'steps'")
    refused(command(*words, "--method", "fong"), "Use mask with --gradient differences, which needs none")


def test_pictures_to_look_at(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    done = command("explain", model, images, "-o", tmp_path / "maps", "--method", "edges", "--preset", "unit",
                   "--labels", "top1", "--pictures", tmp_path / "drawn")  # fmt: skip
    assert done.returncode == 0
    drawn = sorted((tmp_path / "drawn").iterdir())
    assert len(drawn) == 20
    with Image.open(drawn[0]) as picture:
        assert picture.width == 3 * 224 + 8
        pixels = np.asarray(picture)
    kept = pixels[18:, 2 * 228 : 2 * 228 + 224]
    share = (kept == np.array([128, 128, 128])).all(axis=2).mean()
    assert share == pytest.approx(0.95, abs=0.02)


# Maps that are there already ------------------------------------------------------------------------------------------


def _explained(given: tuple[Path, Path], out: Path) -> HeatmapSet:
    model, images = given
    return auditkit.explain(auditkit.load(model, preset="unit", settings=CPU), images, out, "gradient", labels="top1")


def _swapped(maps: Path) -> None:
    """Two maps of a stack change places; every other byte stays."""
    stack = np.load(maps / "maps" / "000000.npy")
    stack[[0, 1]] = stack[[1, 0]]
    np.save(maps / "maps" / "000000.npy", stack)


def _pointing_elsewhere(maps: Path) -> None:
    lines = (maps / "manifest.csv").read_text().splitlines()
    first, second = (line.rpartition(",") for line in lines[1:3])
    lines[1:3] = [f"{first[0]},{second[2]}", f"{second[0]},{first[2]}"]
    (maps / "manifest.csv").write_text("\n".join(lines) + "\n")


def _torn(maps: Path) -> None:
    path = maps / "maps" / "000000.npy"
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize("change", [_swapped, _pointing_elsewhere, _torn])
def test_a_map_that_was_changed_is_not_gone_on_with(
    given: tuple[Path, Path], tmp_path: Path, change: Callable[[Path], None]
) -> None:
    _explained(given, tmp_path / "maps")
    change(tmp_path / "maps")
    with pytest.raises(
        IntegrityFailure, match=r"000000.npy was changed since it was made \(image '0'.*; delete .*maps"
    ):
        _explained(given, tmp_path / "maps")


def test_a_map_that_came_from_elsewhere_is_not_gone_on_with(given: tuple[Path, Path], tmp_path: Path) -> None:
    known = _explained(given, tmp_path / "maps")
    label = next(label for label in range(4) if label not in known.labels["0"])
    fitting = auditkit.Bundle(tmp_path / "maps", model=str(given[0]), method=known.header.method)
    fitting.add(["0"], [label], np.ones((1, 8, 8), np.float32))
    with pytest.raises(IntegrityFailure, match="was not made here"):
        _explained(given, tmp_path / "maps")


def test_a_map_that_is_changed_meanwhile_is_found_in_the_end(
    given: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = METHODS["gradient"].run, 0

    def late(request: Request, options: Any) -> MethodResult:
        nonlocal calls
        calls += 1
        if calls == 2:  # sixteen images were explained before
            _swapped(tmp_path / "maps")
        return real(request, options)

    monkeypatch.setitem(METHODS, "gradient", replace(METHODS["gradient"], run=late))
    with pytest.raises(IntegrityFailure, match="was changed since it was made"):
        _explained(given, tmp_path / "maps")


class _Killed(BaseException):
    """Nothing after this is run."""


@pytest.mark.parametrize("moment", ["the record", "the maps", "the manifest"])
def test_killed_while_maps_are_written_it_goes_on_to_the_same(
    given: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A digest without a map is of one that is made again; a map without a digest cannot be."""
    whole = _explained(given, tmp_path / "whole")

    def stop(*_arguments: Any, **_settings: Any) -> None:
        raise _Killed

    with monkeypatch.context() as patch:
        target = {"the record": (recorded_bundle, "append"), "the maps": (bundles.Bundle, "_write_stack"),
                  "the manifest": (bundles, "append")}[moment]  # fmt: skip
        patch.setattr(*target, stop)
        with pytest.raises(_Killed):
            _explained(given, tmp_path / "maps")
    assert bool(Record.of(tmp_path / "maps").parts) == (moment != "the record")
    again = _explained(given, tmp_path / "maps")
    assert again.labels == whole.labels
    for first, second in zip(again, whole, strict=True):
        np.testing.assert_array_equal(first.values, second.values)
    assert (tmp_path / "maps" / RECORD).read_bytes() == (tmp_path / "whole" / RECORD).read_bytes()


@pytest.mark.parametrize("text", ["{}\n", "[]\n", '{"images": {}, "maps": {"0": "x"}}\n', "torn\n", "\n"])
def test_a_record_that_is_none_is_one_sentence(given: tuple[Path, Path], tmp_path: Path, text: str) -> None:
    _explained(given, tmp_path / "maps")
    (tmp_path / "maps" / RECORD).write_text(text)
    with pytest.raises(BadInput, match=r"line 1, cannot be read: .*make a new bundle"):
        _explained(given, tmp_path / "maps")


def test_the_record_is_only_added_to(given: tuple[Path, Path], tmp_path: Path) -> None:
    """A line for every request; what was there stays, so that the bytes written grow with the images."""
    model, images = given
    opened = auditkit.load(model, preset="unit", settings=CPU)
    sizes = []
    with np.load(images) as arrays:
        for count in (5, 10, 20):
            before = (tmp_path / "maps" / RECORD).read_bytes() if sizes else b""
            auditkit.explain(opened, arrays["images"][:count], tmp_path / "maps", "gradient", labels="top1")
            content = (tmp_path / "maps" / RECORD).read_bytes()
            assert content.startswith(before)
            sizes.append(len(content))
    assert len(Record.of(tmp_path / "maps").parts) == 4
    assert sizes[1] / sizes[0] == pytest.approx(2, rel=0.2)
    assert sizes[2] / sizes[1] == pytest.approx(2, rel=0.2)


def test_a_torn_last_line_of_the_record_is_dropped(given: tuple[Path, Path], tmp_path: Path) -> None:
    whole = _explained(given, tmp_path / "maps")
    record = tmp_path / "maps" / RECORD
    before = record.read_bytes()
    record.write_bytes(before + before.splitlines()[-1][:-7])
    assert _explained(given, tmp_path / "maps").labels == whole.labels
    assert record.read_bytes() == before


# The gradient ---------------------------------------------------------------------------------------------------------


def test_learning_masks_prepares_the_graph_once(
    given: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, prepared = gradient.ready, list[None]()
    monkeypatch.setattr(gradient, "ready", lambda *words: [prepared.append(None), real(*words)][1])
    with np.load(given[1]) as arrays:
        opened = auditkit.load(given[0], preset="unit", settings=CPU)
        auditkit.explain(opened, arrays["images"], tmp_path / "maps", "mask", labels="top1", steps=2)
    assert len(prepared) == 1


def test_a_bundle_takes_no_maps_that_were_prepared_or_filled_in_otherwise(
    given: tuple[Path, Path], tmp_path: Path
) -> None:
    model, images = given
    words = ("explain", model, images, "-o", tmp_path / "maps", "--device", "cpu", "--method")
    assert command(*words, "gradient", "--labels", "0", "--preset", "unit").returncode == 0
    refused(command(*words, "gradient", "--labels", "0,1", "--preset", "caffe"), "preprocessed differently")
    pools = tmp_path / "a.npz", tmp_path / "b.npz"
    for seed, pool in enumerate(pools):
        np.savez(pool, images=np.random.default_rng(seed).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8))
    words = (*words[:4], tmp_path / "learned", *words[5:], "mask", "--option", "steps=2", "--preset", "unit")
    assert command(*words, "--labels", "0", "--pool", pools[0]).returncode == 0
    for more in (("--pool", pools[1]), ()):
        refused(command(*words, "--labels", "0,1", *more), "replaced with another gray or other images", "--pool")
    assert command(*words, "--labels", "0,1", "--pool", pools[0]).returncode == 0


def test_pictures_that_cannot_be_written_are_told_before_any_work(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    (tmp_path / "taken").write_text("")
    words = ("explain", model, images, "-o", tmp_path / "maps", "--method", "edges", "--preset", "unit")
    refused(command(*words, "--pictures", tmp_path / "taken"), "taken is a file; name a folder")
    for option, said in (("passes=1000000000", "1,000,000"), ("steps=0", "rise")):
        refused(command(*words[:-4], "--method", "rise", "--preset", "unit", "--option", option), said)
    refused(command(*words[:-4], "--method", "fong", "--preset", "unit", "--option", "blur=1e30"), "above 1000 pixels")
    refused(command(*words, "--memory", "nan"), "--memory nan")
    refused(command(*words, "--memory-limit", "nan"), "--memory-limit nan")
    assert not (tmp_path / "maps").exists()


def _array_of(shape: tuple[int, ...], data: bytes) -> bytes:
    """An .npy file with a header of that shape."""
    stream, header = io.BytesIO(), {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + data


def _checkpoint(content: bytes, wrong_at: int | None = None) -> bytes:
    """An .npz with one packed array; that byte of it, counted from its end, is wrong."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("state.npy", content)
        end = archive.start_dir
    packed = bytearray(stream.getvalue())
    if wrong_at is not None:
        packed[end - wrong_at] ^= 0xFF
    return bytes(packed)


NOISE = np.random.default_rng(0).random(100, np.float32).tobytes()


@pytest.mark.parametrize(
    "content",
    [
        _checkpoint(_array_of((2**42,), b"")),
        _checkpoint(_array_of((100,), NOISE), wrong_at=300),
        _checkpoint(b"not an array"),
        _checkpoint(_array_of((100,), NOISE))[:-30],
    ],
    ids=["16 TiB", "damaged when unpacked", "no array", "cut short"],
)
def test_unfinished_work_that_cannot_be_read_counts_as_none(tmp_path: Path, content: bytes) -> None:
    with RecordedBundle(Bundle(tmp_path / "maps")) as bundle:
        bundle.save({"state": np.ones(3), "other": np.ones(3)})
        assert bundle.load(["state", "missing"])["state"].tolist() == [1, 1, 1]
        (tmp_path / "maps" / UNFINISHED).write_bytes(content)
        assert bundle.load(["state"]) == {}
