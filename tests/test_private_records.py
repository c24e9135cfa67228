"""What runs record: names of files, but no folders of absolute paths, no user, no machine and no process."""

import hashlib
import json
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet
import pytest
from onnx import helper
from PIL import Image

import auditkit
from auditkit import user_cache
from auditkit.data.bundle_check import check
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.recorded_names import command_words, image_names, path_name
from auditkit.report.formats import FORMATS
from auditkit.runs.comparison.finished_run import read_run
from auditkit.runs.evaluation.plan import bundle_digest
from auditkit.runs.explain import Explanation, explain
from auditkit.runs.folder.results import ModelFile
from auditkit.runs.folder.sittings import SITTINGS
from auditkit.runs.folder.store import LOCK, locked
from auditkit.verdict.audit import AuditRequest, about_run
from auditkit.verdict.policy_file import parse_policy
from tests.support import onnx_models
from tests.support.commands import Completed
from tests.support.commands import auditkit as command

USER, MACHINE, PROCESS = "canary-user", "canary-machine", 987654321
CANARIES = USER, MACHINE, str(PROCESS)
COUNT = 24
POLICY = """schema_version = 1
name = "few points"
description = "of a test"
[evaluation]
labels = "top1"
infill = "random"
steps = 2
minimum_images = 3
max_failed_images = 0.1
"""


class Inputs(NamedTuple):
    """Files in a folder whose name gives their owner away."""

    folder: Path
    model: Path
    images: Path
    infill: Path

    @property
    def policy(self) -> Path:
        return self.folder / "policy.toml"

    def bundle(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture(scope="module", autouse=True)
def _machine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: MACHINE)
        patch.setattr(os, "getpid", lambda: PROCESS)
        yield


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    folder = tmp_path_factory.mktemp("home") / USER
    (folder / "photos").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        pixels = rng.integers(0, 256, (8, 8, 3)) * (np.arange(3) == number % 3)  # of one colour
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "photos" / f"{number}.png")
    (folder / "photos" / "0.png").write_bytes(b"no picture")
    Image.new("RGB", (8, 8), (90, 90, 90)).save(folder / "infill.png")
    rows = [f"{folder / 'photos'}/{number}.png,{number % 3}\n" for number in range(COUNT)]
    (folder / "images.csv").write_text("image,label\n" + "".join(rows))
    model = onnx_models.save(onnx_models.convnet(size=8, classes=3), folder)
    card = 'schema_version = 1\n[preprocessing]\npreset = "unit"\nresize = "none"\n'
    model.with_suffix(".toml").write_text(card)
    for name in ("maps", "broken"):
        bundle = auditkit.Bundle(folder / name, model, method="noise")
        for number in range(COUNT):
            ids = [f"{folder / 'photos'}/{number}.png"] * 3
            bundle.add(ids, [0, 1, 2], rng.standard_normal((3, 8, 8)).astype(np.float32))
    (folder / "broken" / "maps" / "000003.npy").write_bytes(b"no array")
    (folder / "policy.toml").write_text(POLICY)
    return Inputs(folder, model, folder / "images.csv", folder / "infill.png")


def _run(verb: str, inputs: Inputs, out: Path, *words: object) -> Completed:
    options = ("--device", "cpu", "--workers", "1", "--quiet")
    return command(verb, inputs.model, inputs.images, f"-o{out}", *options, *words)


VERBS: dict[str, Callable[[Inputs], list[object]]] = {
    "explain": lambda inputs: ["--method", "occlusion", "--labels", "top1"],
    "evaluate": lambda inputs: [
        f"--infill=image:{inputs.infill}", "--heatmaps", inputs.bundle("maps"), "--steps", 4,
    ],
    "audit": lambda inputs: [
        "--heatmaps", inputs.bundle("maps"), "--heatmaps", inputs.bundle("broken"), "--policy", inputs.policy,
        "--pool", inputs.folder / "photos", "--commit-to", inputs.folder / "commitment.json", "--exit-zero",
    ],
    "examine": lambda inputs: ["--method", "gradient-input"],
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(inputs: Inputs) -> dict[str, Path]:
    """The folder that each verb wrote."""
    folders = {verb: inputs.folder / "out" / verb for verb in VERBS}
    for verb, folder in folders.items():
        folder.mkdir(parents=True)  # so that nothing is measured for an estimate first
        done = _run(verb, inputs, folder, *VERBS[verb](inputs))
        assert done.returncode in (0, 1), done
    return folders


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and content of every file, those of tables without compression."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(path)
            yield name, f"{table.to_pylist()} {table.schema.metadata}"
        elif path.is_file():
            yield name, path.read_bytes().decode("latin-1")


@pytest.mark.parametrize("verb", VERBS)
def test_no_file_of_a_run_names_user_machine_or_process(runs: dict[str, Path], verb: str) -> None:
    texts = dict(_texts(runs[verb]))
    assert len(texts) > 3
    found = [(name, canary) for name, text in texts.items() for canary in CANARIES if canary in f"{name} {text}"]
    assert found == []


@pytest.mark.parametrize("form", FORMATS)
def test_no_form_of_the_report_does(runs: dict[str, Path], form: str, tmp_path: Path) -> None:
    for verb in ("audit", "evaluate")[: 1 if form == "oscal" else 2]:  # which is for verdicts alone
        done = command("report", runs[verb], "-f", form, "-o", tmp_path / verb)
        assert done.returncode == 0, done
        text = (tmp_path / verb).read_text()
        assert not [canary for canary in CANARIES if canary in text]


def test_the_names_of_files_are_there(runs: dict[str, Path]) -> None:
    results = json.loads((runs["audit"] / "results.json").read_text())
    subject, run = results["subject"], results["run"]
    assert (subject["model"]["path"], subject["images"]["source"]) == ("model.onnx", "images.csv")
    assert subject["card_origin"]["source"] == "model.toml"
    assert (run["bundle_paths"], run["pool_path"]) == ({"broken": "broken", "maps": "maps"}, "photos")
    assert run["refused_bundles"]["broken"][0]["message"].startswith(
        "image '3.png', label 0: broken/maps/000003.npy is not"
    )
    assert [(failed["image"], failed["reason"].partition(":")[0]) for failed in results["failed_images"]] == [
        ("0.png", "the image 0.png cannot be read")
    ]
    words = run["command"]
    assert words[:5] == ["auditkit", "audit", "model.onnx", "images.csv", "-oaudit"]
    assert words[words.index("--pool") + 1] == "photos"
    evaluation = json.loads((runs["evaluate"] / "results.json").read_text())
    assert evaluation["settings"]["infill"] == ["image:infill.png"]
    assert list(evaluation["run"]["infill_images"]) == ["infill.png"]


def test_a_run_without_folders_still_holds(runs: dict[str, Path], inputs: Inputs) -> None:
    maps = ("--heatmaps", f"maps={inputs.bundle('maps')}")
    pool = ("--heatmaps", f"broken={inputs.bundle('broken')}", "--pool", inputs.folder / "photos")
    infill = ("--infill", inputs.infill)
    for verb, words in (("evaluate", infill), ("audit", pool)):
        options = ("--model", inputs.model, "--images", inputs.images, *maps, *words, "--device", "cpu", "--quiet")
        done = command("verify", runs[verb], *options, "--seed", "3")
        assert done.returncode == 0, done


def test_the_same_command_resumes_such_a_run(runs: dict[str, Path], inputs: Inputs) -> None:
    before = (runs["evaluate"] / "results.json").read_bytes()
    assert _run("evaluate", inputs, runs["evaluate"], *VERBS["evaluate"](inputs)).returncode == 0
    assert (runs["evaluate"] / "results.json").read_bytes() == before


def test_record_machine_records_paths_machine_and_process(inputs: Inputs, tmp_path: Path) -> None:
    words = (
        "--heatmaps",
        inputs.bundle("broken"),
        "--policy",
        inputs.policy,
        "--exit-zero",
        "--record-machine",
    )
    done = _run("audit", inputs, tmp_path / "audit", "--heatmaps", inputs.bundle("maps"), *words)
    assert done.returncode == 0, done
    results = json.loads((tmp_path / "audit" / "results.json").read_text())
    assert results["subject"]["model"]["path"] == str(inputs.model)
    assert results["subject"]["images"]["source"] == str(inputs.images)
    assert results["run"]["bundle_paths"]["maps"] == str(inputs.bundle("maps"))
    assert str(inputs.model) in results["run"]["command"]
    (start,) = map(json.loads, (tmp_path / "audit" / SITTINGS).read_text().splitlines())
    assert start["where"].startswith(f"{MACHINE}, process {PROCESS}, ")
    bundles = [f"--heatmaps={name}={inputs.bundle(name)}" for name in ("maps", "broken")]
    options = ("--model", inputs.model, "--images", inputs.images, *bundles, "--device", "cpu", "--quiet")
    assert command("verify", tmp_path / "audit", *options, "--seed", "3").returncode == 0
    examined = _run("examine", inputs, tmp_path / "examine", "--method", "gradient-input", "--record-machine")
    assert examined.returncode in (0, 1), examined
    record = json.loads((tmp_path / "examine" / "examination.json").read_text())
    assert record["subject"]["model"]["path"] == str(inputs.model)


def test_python_users_choose_too(inputs: Inputs, tmp_path: Path) -> None:
    settings = auditkit.Settings(device="cpu")
    model = auditkit.load(inputs.model, settings=settings)
    for name, words, expected in (("no", {}, "images.csv"), ("yes", {"record_machine": True}, str(inputs.images))):
        auditkit.evaluate(model, inputs.images, out=tmp_path / name, steps="2", **words)
        results = json.loads((tmp_path / name / "results.json").read_text())
        assert results["subject"]["images"]["source"] == expected
    identity = read_run(tmp_path / "yes").identity()  # which a run records of its baseline
    assert isinstance(identity.model, ModelFile)
    assert (identity.model.path, identity.images.source) == ("model.onnx", "images.csv")


def test_the_lock_names_the_process_only_while_it_is_held(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text() == str(PROCESS)
    assert (tmp_path / LOCK).read_text() == ""


@pytest.mark.parametrize("mode", [None, 0o755, 0o777])
def test_the_cache_is_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "auditkit"
    if mode is not None:
        folder.mkdir()
        folder.chmod(mode)
    with user_cache.opened_table("facts (key TEXT PRIMARY KEY, value TEXT)"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(("word", "expected"), [
    ("/home/a/model.onnx", "model.onnx"), ("photos/x.png", "photos/x.png"), ("../x.png", "../x.png"),
    ("--out=/home/a/run/", "--out=run"), ("-o/home/a/run", "-orun"),
    ("--infill=image:/a/x.png", "--infill=image:x.png"),
    ("maps=/home/a/maps", "maps=maps"), ("~/maps", "maps"), ("C:\\Users\\a\\m.onnx", "m.onnx"), ("/", "/"),
    ("x,/home/a/y", "x,y"), ("x, /home/a/y,/home/b/z", "x, z"), ("a /home/b/c", "a c"),
    ("a\t~/c", "a\tc"), ("--key=~al/k", "--key=k"), ("~al\\k.pem", "k.pem"),
    ("--note=about 1/3, or x/y", "--note=about 1/3, or x/y"), ("--shard=1/3", "--shard=1/3"),
    ("0.2:0.6", "0.2:0.6"), ("/home/a=b/c:d/m.onnx", "m.onnx"),
    ("ray:10.0.0.7:6379", "ray:..."), ("--engine=ray:head:6379", "--engine=ray:..."), ("ray", "ray"),
])  # fmt: skip
def test_words_of_a_command(word: str, expected: str) -> None:
    assert command_words(["/home/a/bin/auditkit", word]) == ("auditkit", expected)


def test_paths_and_names_of_images() -> None:
    assert [path_name(Path(path)) for path in ("/home/a/m.onnx", "a/m.onnx", "..", "/")] == [
        "m.onnx",
        "a/m.onnx",
        "..",
        "/",
    ]
    assert path_name(Path("/home/a/m.onnx"), full=True) == "/home/a/m.onnx"
    assert image_names(["/home/a/1.png", "b/2.png"]) == ["1.png", "b/2.png"]
    assert image_names(["/home/a/1.png", "/home/b/1.png", "2.png"]) == ["a/1.png", "b/1.png", "2.png"]
    assert image_names(["/home/a/1.png", "1.png"]) == ["a/1.png", "1.png"]
    assert image_names(["/a/1.png", "a/1.png"]) == ["1.png", "a/1.png"]
    assert image_names(["/a/1.png", "/1.png"]) == ["a/1.png", "1.png"]
    assert image_names(["/1.png", "1.png"]) == ["/1.png", "1.png"]


def test_a_list_of_files_is_named_by_their_ends(inputs: Inputs) -> None:
    files = [inputs.folder / "photos" / f"{number}.png" for number in (1, 2)]
    assert Dataset.from_files(files).ids == ("1.png", "2.png")


def _photos(folder: Path, *names: str) -> list[Path]:
    files = [folder / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(file)
    return files


def _maps_of(names: Sequence[object], folder: Path) -> HeatmapSet:
    maps = np.zeros((len(names), 8, 8), np.float32)
    auditkit.Bundle(folder).add([*map(str, names)], [0] * len(names), maps)
    return auditkit.open_bundle(folder)


def test_maps_of_other_pictures_with_the_same_names_are_refused(inputs: Inputs, tmp_path: Path) -> None:
    train, val = (_photos(tmp_path / folder, "0.png", "1.png") for folder in ("train", "val"))
    maps, images = _maps_of(train, tmp_path / "maps"), Dataset.from_files(val)
    assert images.ids == ("0.png", "1.png")
    assert not {*maps.named_as(images).labels} & {*images.ids}
    model = auditkit.load(inputs.model, settings=auditkit.Settings(device="cpu"))
    with pytest.raises(BadInput, match=r"no map for any of the images; its first image is .*train/0\.png"):
        auditkit.evaluate(model, images, maps)
    with pytest.raises(BadInput, match="here are 0"):
        auditkit.examine(model, images, tmp_path / "examine", maps)
    (error,) = [entry for entry in check(maps, images) if entry.severity == "error"]
    assert "'train/0.png' is not in list (and 1 more)" in error.message


def test_maps_of_some_of_the_pictures_are_named_as_the_pictures(tmp_path: Path) -> None:
    train, val = (_photos(tmp_path / folder, "0.png", "1.png") for folder in ("train", "val"))
    images, maps = Dataset.from_files([*train, *val]), _maps_of(train, tmp_path / "maps")
    assert [*maps.labels] == ["0.png", "1.png"]
    assert [*maps.named_as(images).labels] == ["train/0.png", "train/1.png"]
    assert maps.named_as(images).named_as(Dataset.open(tmp_path / "train", 1)).labels == maps.labels
    assert bundle_digest(maps) == bundle_digest(maps.named_as(images))
    (tmp_path / "link").symlink_to(tmp_path / "train")
    linked = Dataset.open(tmp_path / "link", 1)
    assert maps.named_as(linked).labels == maps.labels


def test_maps_of_names_are_those_of_the_pictures_of_these_names(tmp_path: Path) -> None:
    images = Dataset.from_files(_photos(tmp_path, "0.png", "1.png"))
    maps = _maps_of(images.ids, tmp_path / "maps")
    assert maps.named_as(images).labels == {"0.png": (0,), "1.png": (0,)}


def test_two_names_of_one_picture_are_refused(tmp_path: Path) -> None:
    (file,) = _photos(tmp_path, "0.png")
    with pytest.raises(BadInput, match="two names of one image"):
        _maps_of([file, "0.png"], tmp_path / "maps").named_as(Dataset.from_files([file]))


def _masker(network: Path) -> Explanation:
    return Explanation("masker", "top1", (("path", str(network)), ("output", "/masks")))


def test_a_masking_network_is_recorded_by_its_name_and_content(tmp_path: Path) -> None:
    network = tmp_path / "net.onnx"
    network.write_bytes(b"a network")
    file = f"net.onnx@sha256:{hashlib.sha256(b'a network').hexdigest()[:12]}"
    explanation = _masker(network)
    assert explanation.name() == f"masker(path={file}, output=/masks, limits=None, seed=0)"
    assert explanation.to_record(None).options == {"path": file, "output": "/masks"}
    with pytest.raises(BadInput, match=r"nothing\.onnx cannot be opened"):
        _masker(tmp_path / "nothing.onnx").name()


def _network(folder: Path, operator: str) -> Path:
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["mean"], axes=[1]),
        helper.make_node(operator, ["mean"], ["/masks"]),
    ]
    image = onnx_models.value("image", ["N", 3, 8, 8])
    folder.mkdir()
    masks = onnx_models.value("/masks", ["N", 1, 8, 8])
    return onnx_models.save(onnx_models.model(nodes, [image], [masks]), folder)


def test_maps_of_two_networks_of_one_name_are_not_mixed(inputs: Inputs, tmp_path: Path) -> None:
    network, other = _network(tmp_path / "a", "Identity"), _network(tmp_path / "b", "Neg")
    moved = Path(shutil.copytree(tmp_path / "a", tmp_path / "c")) / network.name
    model = auditkit.load(inputs.model, settings=auditkit.Settings(device="cpu"))
    photos = inputs.folder / "photos"
    images = Dataset.from_files([photos / f"{number}.png" for number in (1, 2, 3)])
    explain(model, images.select([0]), _masker(network), tmp_path / "maps")
    with pytest.raises(BadInput, match=r"but 'masker.* is to be added; use another bundle"):
        explain(model, images, _masker(other), tmp_path / "maps")
    maps = explain(model, images, _masker(moved), tmp_path / "maps")
    assert [*maps.labels] == ["1.png", "2.png", "3.png"]
    assert maps.header.method == _masker(network).name()
    policy = parse_policy(POLICY, "policy")
    requests = [AuditRequest(policy, _masker(file)) for file in (network, other, moved)]
    first, second, third = (about_run(model, images, request)["maps"] for request in requests)
    assert first == third != second


def test_two_infills_of_one_name_are_refused(inputs: Inputs, tmp_path: Path) -> None:
    infills = [f"--infill=image:{inputs.folder / folder / 'infill.png'}" for folder in ("", "other")]
    done = _run("evaluate", inputs, tmp_path / "run", *infills)
    assert done.returncode == 2
    assert "two infills are files of the same name" in done.stderr
