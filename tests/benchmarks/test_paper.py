"""The script of the paper's tables, on networks and images that are made up: every figure finds its place."""

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import auditkit
from auditkit.data.bundles import open_bundle
from auditkit.model.preprocessing import pixels
from auditkit.model.signature import to_probabilities
from benchmarks.paper import __main__ as script
from benchmarks.paper import claims, cost, differences, imagenet, objective, order, precision, published, settling, work
from tests.support import onnx_models

CPU = auditkit.Settings(device="cpu")
SIZES = {"cifar10_resnet56": (32, 10), "resnet50": (32, 12)}


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Networks without a hidden truth, and images that are labelled as they see them."""
    folder = tmp_path_factory.mktemp("assets")
    for part in ("models", "images/nips17_150"):
        (folder / part).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, (size, classes) in SIZES.items():
        onnx_models.save(_unsure(onnx_models.convnet(size=size, classes=classes)), folder / "models", f"{name}.onnx")
    pictures = rng.integers(0, 256, (work.POOL + 6, 32, 32, 3), dtype=np.uint8)
    labels = _seen(folder, "cifar10_resnet56", "imagenet", pictures)
    np.savez(folder / "images" / "cifar10_test_1000.npz", images=pictures, labels=labels)
    photographs = rng.integers(0, 256, (work.POOL + 4, 40, 40, 3), dtype=np.uint8)
    names = [f"{number}.png" for number in range(len(photographs))]
    for name, picture in zip(names, photographs, strict=True):
        Image.fromarray(picture).save(folder / "images/nips17_150" / name)
    labels = _seen(folder, "resnet50", "caffe", photographs)
    lines = [f"{name},{label}" for name, label in zip(names, labels, strict=True)]
    (folder / "images/nips17_150/labels.csv").write_text("\n".join(["image,label", *lines]) + "\n")
    return folder


def _unsure(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The network with logits so small that no label is out of the question, also for pixels up to 255."""
    last = next(tensor for tensor in proto.graph.initializer if tensor.name == "g")
    last.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(last) * np.float32(0.01), "g"))
    return proto


def _seen(folder: Path, name: str, preset: str, pictures: Any) -> Any:
    model = auditkit.load(folder / "models" / f"{name}.onnx", preset=preset)
    return model.probabilities(list(pictures)).argmax(axis=1)


def run(assets: Path, out: Path, part: str, *words: str) -> dict[str, Any]:
    given = [part, "-o", str(out), "--assets", str(assets), "--device", "cpu", "--steps", "2", *words]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["paper", *given])
        patch.setitem(imagenet.ROWS, "fong", ("fong", {"steps": 2}))
        patch.setitem(imagenet.ROWS, "igos++", ("igos++", {"steps": 1, "points": 2}))
        script.main()
    found: dict[str, Any] = json.loads((out / f"{part}.json").read_bytes())
    assert (out / f"{part}.md").read_text().startswith("**")
    return found


def test_cifar10(assets: Path, tmp_path: Path) -> None:
    found = run(assets, tmp_path, "cifar10", "--images", "5", "--all-labels", "2")
    by = {(one["infill"], one["name"], one["tv"]): one for one in found["top_two"]}
    assert len(by) == 4 * len(published.TV)
    assert all(one["n"] == 5 for one in by.values())
    change = by["gray", "worst_soundness", 0.1]["less_tv0"]
    difference = by["gray", "worst_soundness", 0.1]["value"] - by["gray", "worst_soundness", 0.0]["value"]
    assert change["value"] == pytest.approx(difference)
    assert change["low"] <= change["value"] <= change["high"]
    assert {one["n"] for one in found["partial"]} == {2}
    assert {one["row"] for one in found["intrinsic"]} == set(published.INTRINSIC)
    assert {one["bundle"] for one in found["intrinsic"] if one["row"] == "random"} == {"control:random"}
    assert found["maps"]["tv0"]["maps"] == 3 * 2 + 2 * 10
    again = run(assets, tmp_path, "cifar10", "--images", "5", "--all-labels", "2")  # which finds everything there
    assert [again[part] for part in ("claims", "partial")] == [found[part] for part in ("claims", "partial")]
    assert all(one["kept"] == one["maps"] for one in again["maps"].values())


def test_settling(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settling.THEIR_PACE, "steps", 3)
    learned = run(assets, tmp_path, "cifar10", "--images", "3", "--all-labels", "0", "--steps", "4")
    assert [one["claim"].endswith(", 4 steps") for one in learned["claims"]] == [True] * 10
    assert "partial" not in learned
    found = run(assets, tmp_path, "settling", "--images", "2", "--steps", "4")
    assert found["maps"]["tv0.01"]["kept"] == found["maps"]["tv0.01"]["maps"] == 3 * 2  # of cifar10
    assert [one["n"] for one in found["claims"]] == [2] * 2
    by = {(one["tv"], one["pace"]): one for one in found["settling"]}
    assert list(by) == [(tv, pace) for tv in settling.WEIGHTS for pace in ("1", "2", "4", "8", "paper")]
    assert [pace for (tv, pace), one in by.items() if tv and "less_half" not in one] == ["1", "paper"] * 2
    half, whole = by[0.01, "2"], by[0.01, "4"]
    assert whole["less_half"]["value"] == pytest.approx(whole["loss"] - half["loss"])
    assert whole["loss"] < half["loss"]
    lines = (tmp_path / "settling.md").read_text().splitlines()
    fell = whole["loss"] / half["loss"] - 1
    assert any(line.startswith("| TV 0.01 | 4 |") and f", {fell:+.0%} |" in line for line in lines)
    swapped = run(assets, tmp_path, "order", "--images", "2", "--steps", "4")
    by_row = {(one["bundle"], one["infill"]): one["value"] for one in swapped["order"]
              if one["name"] == "worst_completeness"}  # fmt: skip
    assert (len(by_row), len(swapped["order"])) == (4 * 2, 4 * 2 * 3)
    for claim, infill in zip(swapped["claims"][::2], ("gray", "random"), strict=True):
        assert claim["claim"].endswith(f"over {work.INFILLS[infill]}")
        assert claim["value"] == pytest.approx(by_row[order.SWAPPED.format(1, 4), infill] - by_row["1 steps", infill])
    again = run(assets, tmp_path, "settling", "--images", "2", "--steps", "4")
    assert again["settling"] == found["settling"]
    assert all(one["kept"] == one["maps"] for one in again["maps"].values())


def test_upsampling(assets: Path, tmp_path: Path) -> None:
    run(assets, tmp_path, "cifar10", "--images", "4", "--all-labels", "0", "--steps", "8")
    found = run(assets, tmp_path, "upsampling", "--images", "4", "--steps", "8")
    assert found["maps"]["tv0.01"]["kept"] == found["maps"]["tv0.01"]["maps"] == 4 * 2  # of cifar10
    assert [found["maps"][f"tv0 s=4 {steps}"]["maps"] for steps in (2, 8)] == [4 * 2, 2 * 2]
    assert [one["n"] for one in found["claims"]] == [4] * 4
    values = {(one["bundle"], one["name"]): one["value"] for one in found["upsampled"]}
    rows = [values[f"TV 0{row}", "worst_soundness"] for row in (", upsampled", "")]
    assert found["claims"][0]["value"] == pytest.approx(rows[0] - rows[1])
    coarse = {(one["bundle"], one["name"]): one["value"] for one in found["coarse"]}
    for name in ("loss", *work.FAITHFUL):
        assert coarse["the difference", name] == pytest.approx(coarse["8 steps", name] - coarse["2 steps", name])
    assert coarse["the difference", "loss"] < 0


def test_masks_swap_the_order_of_what_they_hide() -> None:
    kept, rest = np.array([[0.9, 0.6], [0.1, 0.2]]), np.array([[0.7, 0.1], [0.3, 0.2]])
    found = order.together(kept, rest)
    assert found.argsort(axis=None)[::-1].tolist() == [0, 1, 2, 3]
    assert found[0].tolist() == pytest.approx([0.9, 0.6])


def test_the_loss_of_masks_is_what_learning_minimises(assets: Path, tmp_path: Path) -> None:
    model = auditkit.load(assets / "models/cifar10_resnet56.onnx", preset="imagenet", settings=CPU)
    assert isinstance(model, auditkit.OnnxClassifier)
    images, pool = work.cifar(model, assets / "images/cifar10_test_1000.npz", 2)
    study = work.Study(model, images, pool, tmp_path, steps=1)
    masks = auditkit.Bundle(tmp_path / "masks")
    striped = np.tile(np.array([1.0, 0.5], np.float32), (32, 16))
    masks.add([images.ids[0]], [3], np.ones((1, 32, 32), np.float32))
    masks.add([images.ids[1]], [4], striped[None])
    maps = open_bundle(tmp_path / "masks")
    found = objective.losses(study, maps, maps, tv=0.01)
    rows = model.preprocess([pool.images[place] for place in range(work.POOL)])
    rows += striped * (model.preprocess([images.images[1]]) - rows)
    seen = model.probabilities([images.images[0]])[0, 3], to_probabilities(model.scores(rows), "logits")[:, 4]
    assert found["area"] == pytest.approx([1, 0.75])
    assert found["loss"][0] == pytest.approx(-np.log(seen[0]) + 1, abs=1e-5)
    assert found["loss"][1] == pytest.approx(-np.log(seen[1]).mean() + 0.01 * 32 * 31 * 0.25 + 0.75, abs=1e-5)


def test_photographs_corners_and_the_rest(assets: Path, tmp_path: Path) -> None:
    found = run(assets, tmp_path, "photographs", "--images", "3")
    assert {one["row"] for one in found["two"]} == {*published.PHOTOGRAPHS, imagenet.SHARP, "one-map:ours"}
    drawn = ElementTree.parse(tmp_path / "photographs-two.svg").getroot()  # noqa: S314 - our own
    words = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text") if text.get("class") == "key"]
    assert words[: len(published.PHOTOGRAPHS) + 2] == list(dict.fromkeys(one["row"] for one in found["two"]))
    whole = {one["row"]: one["value"] for one in found["two"] if one["name"] == "insertion"}
    wide = run(assets, tmp_path, "ten", "--images", "2")
    assert {one["row"] for one in wide["ten"]} == {*published.PHOTOGRAPHS, "one-map:ours"}
    assert {one["n"] for one in wide["ten"] if one["name"] == "worst_soundness"} == {2}
    assert wide["maps"]["ours"]["maps"] == 1 * 2 + 2 * 10  # those of the two likeliest labels are kept
    assert all(one["claim"].endswith(", ten labels") for one in wide["claims"])
    found = run(assets, tmp_path, "corners", "--images", "3", "--mapped", "2")
    assert [one["n"] for one in found["claims"]] == [3, 3, 2]
    assert set(found["maps"]) == {*imagenet.ON_CORNERS, claims.BUMP}
    cut = {one["row"]: one["value"] for one in found["corners"] if one["name"] == "insertion"}
    assert set(published.CORNERS) < set(cut)
    assert cut["ours"] != whole["ours"]
    found = run(assets, tmp_path, "forgotten", "--images", "3", "--few", "2", "--stages", "2")
    assert len(found["randomisation"]["series"]) == 2
    found = run(assets, tmp_path, "ensembles", "--images", "3", "--few", "2")
    assert {one["bundle"] for one in found["ensembles"]} == {"K=1", "K=2", "K=4"}


def test_a_corner_is_what_the_network_sees(assets: Path) -> None:
    model = auditkit.load(onnx_models.save(onnx_models.convnet(size=224), assets, "large.onnx"), preset="caffe")
    photograph = np.random.default_rng(1).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    square = Image.fromarray(photograph).resize((256, 256), Image.Resampling.BICUBIC)
    wanted = square.crop((76, 0, 256, 180)).resize((224, 224), Image.Resampling.BICUBIC)
    seen = pixels(model.card, work._corner(photograph, 1))
    np.testing.assert_array_equal(seen, np.asarray(wanted))


def test_cost(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "STEPS", (1, 3))
    found = run(assets, tmp_path, "cost", "--images", "4", "--steps", "7")
    masks, metrics, both = (one["value"] for one in found["cost"])
    assert both == pytest.approx(masks + metrics)
    assert metrics > 0
    assert {one["n"] for one in found["cost"]} == {3}
    assert "of it, and their price is steps times distractors" in (tmp_path / "cost.md").read_text()


def test_networks(assets: Path, tmp_path: Path) -> None:
    mean = [helper.make_node("ReduceMean", ["image"], ["mean"], axes=[1], keepdims=1)]
    image, mask = onnx_models.value("image", ["N", 3, 32, 32]), onnx_models.value("mask", ["N", 1, 32, 32])
    one = onnx_models.model([*mean, helper.make_node("Identity", ["mean"], ["mask"])], [image], [mask], {})
    onnx_models.save(one, tmp_path, "by-image.onnx")
    by_label = [
        helper.make_node("Cast", ["label"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["number", "column"], ["times"]),
        helper.make_node("Mul", ["mean", "times"], ["mask"]),
    ]
    label = onnx_models.value("label", ["N"], TensorProto.INT64)
    another = onnx_models.model([*mean, *by_label], [image, label], [mask], {"column": np.array([-1, 1, 1, 1])})
    onnx_models.save(another, tmp_path, "by-label.onnx")
    found = run(assets, tmp_path / "out", "networks", "--images", "3", "--maskers", str(tmp_path))
    by = {(one["row"], one["name"]): one for one in found["two"]}
    assert {row for row, _ in by} == {"by-label", "by-image", "ours", "random", "centred-gaussian", "one-map:ours"}
    assert by["by-image", "insertion"]["paper"] == 0.75
    assert len(found["claims"]) == 2


def test_networks_are_to_be_named(assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(assets, tmp_path, "networks")
    assert "networks needs --maskers FOLDER" in capsys.readouterr().err


def test_hours_are_those_of_all_images() -> None:
    one = cost._hours("masks", [3.6, 3.6, 7.2])
    assert one["value"] == pytest.approx(4.8 / 3.6)
    assert one["high"] - one["value"] == pytest.approx(one["value"] - one["low"])
    assert one["high"] == pytest.approx((4.8 + 4.3027 * 1.2) / 3.6, rel=1e-4)


def test_precision(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "LOWER", ("strict",))  # a CPU has no other
    monkeypatch.setattr(precision, "HALF", "strict")
    found = run(assets, tmp_path, "precision", "--images", "2", "--few", "1")
    assert {one["largest"] for one in found["precisions"]["strict"]} == {0.0}
    assert {"insertion", "worst_soundness"} <= {one["name"] for one in found["precisions"]["strict"]}
    learned = {
        way: [one["value"] for one in found["masks_in_half"] if one["bundle"] == way] for way in ("half", "draws")
    }
    assert set(learned["half"]) == {0.0}
    assert any(learned["draws"])
    assert "| insertion" in (tmp_path / "precision.md").read_text()


@pytest.mark.parametrize(("model", "count"), [("cifar10_resnet56", 2), ("resnet50", 7)])
def test_differences(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, count: int) -> None:
    if model == "resnet50":
        monkeypatch.setattr(differences, "SMALL", 16)  # its images here are small
    found = run(assets, tmp_path, "differences", "--images", "2", "--model", model)
    assert len(found["claims"]) == count
    assert found["passes_an_image"] <= 1024
    assert {"differences", "rise", "random"} <= {one["row"] for one in found["differences"]}
