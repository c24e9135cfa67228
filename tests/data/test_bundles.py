"""Bundles: what goes in comes out; what must not go in is refused in one sentence; a killed writer leaves a bundle."""

import errno
import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.data.bundle_check import ONE_LABEL, check
from auditkit.data.bundle_files import HEADER
from auditkit.data.bundles import Bundle, open_bundle
from auditkit.errors import BadInput, RuntimeFailure
from tests.support import onnx_models
from tests.support.failing_disk import FailingDisk

RNG = np.random.default_rng(0)
DIGEST = "ab" * 32


def noise(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


class Explained:
    """An object that holds what it is given."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


def test_two_lines(tmp_path: Path) -> None:
    maps = noise(3, 8, 8)
    Bundle(tmp_path / "b", model=DIGEST, method="mine").add(["a", "b", "c"], [1, 0, 1], maps)
    bundle = open_bundle(tmp_path / "b")
    assert [(m.image, m.label) for m in bundle] == [("a", 1), ("b", 0), ("c", 1)]
    assert (bundle.get("c", 1) == maps[2]).all()
    header = json.loads((tmp_path / "b" / "bundle.json").read_text())
    assert header.pop("producer").startswith("auditkit ")
    assert header == {
        "schema_version": 1, "method": "mine", "model": DIGEST, "frame": "model-input", "layout": ["NHW"],
        "channels": "none", "sign": "signed", "notes": [],
    }  # fmt: skip
    assert (tmp_path / "b" / "manifest.csv").read_text().splitlines()[:2] == [
        "image,label,heatmap",
        "a,1,maps/000000.npy#0",
    ]
    assert [problem.message for problem in check(bundle, model_identity=DIGEST, classes=2)] == [ONE_LABEL]


def test_a_loop_over_labels_in_one_call(tmp_path: Path) -> None:
    """{label: maps of these images}, in the place of labels and maps; a second call adds further labels."""
    maps = {label: noise(3, 3, 5, 5) for label in (4, 0)}
    bundle = Bundle(tmp_path / "b")
    assert bundle.add(["a", "b", "c"], maps) == 6
    assert bundle.add(["a", "b", "c"], {2: noise(3, 3, 5, 5)}) == 3
    stored = open_bundle(tmp_path / "b")
    assert stored.labels == dict.fromkeys("abc", (4, 0, 2))
    assert (stored.get("b", 4) == maps[4][1].sum(axis=0)).all()


def test_photographs_of_many_sizes(tmp_path: Path) -> None:
    maps = [noise(4, 6), noise(4, 6), noise(7, 5)]
    Bundle(tmp_path / "b", frame="original-image").add(["a", "b", "c"], [0, 0, 0], maps)
    bundle = open_bundle(tmp_path / "b")
    assert [entry.heatmap for entry in bundle.entries] == [
        "maps/000000.npy#0",
        "maps/000000.npy#1",
        "maps/000001.npy#0",
    ]
    assert all((got.values == given).all() for got, given in zip(bundle, maps, strict=True))


def _with(value: float) -> np.ndarray:
    array = noise(2, 5, 5)
    array[1, 2, 3] = value
    return array


JET = np.zeros((6, 6, 3), np.uint8)


@pytest.mark.parametrize(
    ("ids", "labels", "array", "words"),
    [
        (["a", "b"], [0, 1], _with(np.nan), "image 'b', label 1 has nan at row 2, column 3"),
        (["a", "b"], [0, 1], _with(np.inf), "image 'b', label 1 has inf at row 2, column 3"),
        (["a", "b"], [0, 1], _with(1).astype(np.float64) * 1e300, "inf at row"),
        (["a", "b"], None, noise(2, 5, 5), "labels are missing.*never guessed"),
        (["a", "b"], [0.0, 1.0], noise(2, 5, 5), "labels are float64"),
        (["a", "b"], ["cat", "dog"], noise(2, 5, 5), "labels are not class indices"),
        (["a", "b"], [0, -1], noise(2, 5, 5), "label -1 is negative"),
        (["a", "b"], [0, 1, 2], noise(2, 5, 5), r"\[2, 5, 5\] fits 2 image ids and labels of shape \[3\]"),
        (["a", "b", "c"], [0, 1, 2], noise(2, 5, 5), "fits 3 image ids"),
        (["a", "b"], [0, 1], noise(2, 7, 5, 5), r"\[2, 7, 5, 5\]"),
        (["a", "b"], [0, 1], [noise(5, 5)], "2 image ids and 1 arrays"),
        ("a", 0, JET, "colour picture.*rank correlation of 0.02"),
        ("a", 0, np.zeros((6, 6, 4), np.uint8), "colour picture"),
        (["a", "b"], [0, 1], [JET, JET], "colour picture"),
        ("a", None, {0: JET}, "colour picture"),
        ("a", None, {"cat": noise(5, 5)}, "'cat' is not a class index"),
        ("a", [1], {0: noise(5, 5)}, "differ from the maps' own keys"),
        (["a", "b"], {0: noise(2, 5, 5), 1: noise(3, 5, 5)}, None, r"\[3, 5, 5\] fits 2 image ids"),
        (
            [0, 1],
            ["a", "b"],
            noise(2, 5, 5),
            "ids and labels seem swapped, since labels holds texts: the order",
        ),
        (noise(2, 5, 5), [0, 1], ["a", "b"], "ids and array seem swapped, since array holds texts"),
        (["a", "b"], noise(2, 5, 5), [0, 1], "labels and array seem swapped, since labels holds maps"),
        (["a", "b"], [0, 1], None, r"the maps are missing: the order is add\(ids, labels, array\) or add\(ids, {label"),
        ("a", 0, np.array([["x"]]), "not real numbers"),
        ("a", 0, np.array([[None, 1]]), "holds object, not real numbers"),
        ("a", 0, object(), "holds object"),
        ("", 0, noise(5, 5), "cannot be an image id"),
        (["a", "a"], [0, 0], noise(2, 5, 5), "another map for image 'a', label 0 already"),
        ([], [], [], "no image ids"),
    ],
)
def test_what_is_refused(tmp_path: Path, ids: Any, labels: Any, array: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Bundle(tmp_path / "b").add(ids, labels, array)
    assert list(tmp_path.iterdir()) == []


def test_settings_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="frame is None, expected one of model-input, original-image"):
        Bundle(tmp_path / "b", frame=None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="int without a digest"):
        Bundle(tmp_path / "b", model=7)
    with pytest.raises(BadInput, match="'average' is none of"):
        Bundle(tmp_path / "b").add("a", 0, noise(3, 5, 5), channels="average")
    with pytest.raises(BadInput, match="layout='NHH' does not name"):
        Bundle(tmp_path / "b").add("a", 0, noise(3, 5, 5), layout="NHH")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"")
    with pytest.raises(BadInput, match="is not a bundle"):
        Bundle(tmp_path / "photos")


def test_the_model_by_path_or_by_classifier(tmp_path: Path) -> None:
    path = onnx_models.save(onnx_models.convnet(), tmp_path)
    digest = Bundle(tmp_path / "b", model=str(path)).header.model
    assert digest == subprocess.check_output(["sha256sum", path], text=True).split()[0]  # noqa: S607
    classifier = Explained(file=Explained(identity=DIGEST))
    assert Bundle(tmp_path / "b", model=classifier).header.model == DIGEST


def test_a_bundle_is_continued_with_the_same_settings(tmp_path: Path) -> None:
    first, second = noise(2, 4, 4), noise(2, 4, 4)
    Bundle(tmp_path / "b", DIGEST).add(["a", "b"], [0, 0], np.abs(first))
    again = Bundle(tmp_path / "b", DIGEST)
    assert again.add(["b", "c"], [0, 0], np.stack([np.abs(first[1]), second[1]])) == 1  # b is there, and the same
    with pytest.raises(BadInput, match="another map for image 'a', label 0"):
        again.add("a", 0, second[0])
    bundle = open_bundle(tmp_path / "b")
    assert [m.image for m in bundle] == ["a", "b", "c"]
    assert bundle.header.sign == "signed"
    for setting, value in (("method", "other"), ("frame", "original-image"), ("model", "cd" * 32)):
        settings = {"model": DIGEST, setting: value}
        with pytest.raises(BadInput, match=rf"has {setting} '.*', but '{value}'"):
            Bundle(tmp_path / "b", **settings)
    with pytest.raises(BadInput, match="has channels 'none', but 'sum'"):
        again.add("d", 0, noise(3, 4, 4))


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RuntimeFailure, match="cannot be written"):
        Bundle(tmp_path / "file" / "b").add("a", 0, noise(4, 4))


def test_a_bundle_whose_maps_lead_elsewhere_is_not_continued(tmp_path: Path) -> None:
    Bundle(tmp_path / "b").add("a", 0, noise(4, 4))
    (tmp_path / "b" / "maps").rename(tmp_path / "elsewhere")
    (tmp_path / "b" / "maps").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="maps is not a folder"):
        Bundle(tmp_path / "b")


def test_constant_maps_are_taken_and_counted(tmp_path: Path) -> None:
    bundle = Bundle(tmp_path / "b", DIGEST)
    bundle.add(["a", "b"], [0, 0], np.stack([noise(4, 4), np.ones((4, 4), np.float32)]))
    assert bundle.constant == 1
    (problem,) = check(open_bundle(tmp_path / "b"))
    assert (problem.severity, problem.file) == ("warning", "maps/000000.npy#1")
    assert "1 of 2 maps" in problem.message


def test_conversions_are_noted(tmp_path: Path) -> None:
    bundle = Bundle(tmp_path / "b")
    bundle.add("a", 0, noise(4, 4).astype(np.float64))
    bundle.add("b", 0, (np.arange(16, dtype=np.uint8) * 3).reshape(4, 4))
    assert any("float64 values were stored as float32" in note for note in bundle.header.notes)
    assert any("8 bits a pixel" in note for note in bundle.header.notes)


KILLED = """
import os, signal, sys
import numpy as np
from auditkit.data import bundles
bundle = bundles.Bundle(sys.argv[1])
bundle.add("a", 0, np.eye(4))
step = sys.argv[2]
def dying(*args, **options):
    if step == "append":
        with args[0].open("ab") as stream:
            stream.write(args[1][:-3])
    elif step == "create":
        args[0].write_bytes(bytes(args[1])[:-3])
    os.kill(os.getpid(), signal.SIGKILL)
setattr(bundles, step, dying)
bundle.add(["b", "c"], [0, 0], -np.stack([np.eye(4)] * 2))
"""


@pytest.mark.parametrize("step", ["append", "write_whole", "create"])
def test_a_killed_writer_leaves_a_bundle(tmp_path: Path, step: str) -> None:
    """Killed before each kind of write, and in the middle of the manifest; then another writer goes on."""
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "b", step], check=False)
    assert done.returncode == -signal.SIGKILL
    left = open_bundle(tmp_path / "b")
    rest = [m.image for m in left]
    assert rest in (["a"], ["a", "b"])
    assert not [p for p in check(left) if p.severity == "error"]
    again = Bundle(tmp_path / "b")
    again.add(["b", "c"], [0, 0], -np.stack([np.eye(4)] * 2))
    whole = open_bundle(tmp_path / "b")
    assert [m.image for m in whole] == ["a", "b", "c"]
    assert (whole.get("c", 0) == -np.eye(4)).all()
    assert not any("incomplete" in note for note in whole.notes)


def test_a_folder_that_is_empty_stays_the_same_folder(tmp_path: Path) -> None:
    """It may be a link, or a mount, which cannot be replaced."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "disk")
    number = (tmp_path / "disk").stat().st_ino
    Bundle(tmp_path / "b").add("a", 0, np.eye(4))
    assert (tmp_path / "b").is_symlink()
    assert (tmp_path / "disk").stat().st_ino == number
    assert open_bundle(tmp_path / "disk").labels == {"a": (0,)}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "disk"]


class StoppedDisk(FailingDisk):
    """A disk that nothing changes any more from one write on, as if the writer were killed there."""

    def check(self, what: str, path: str) -> None:
        """Count a write; OSError from the one that fails on."""
        super().check(what, path)
        if self.failing and len(self.writes) >= self.failing:
            raise OSError(self.error, "stopped", path)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("exists", [True, False])
def test_a_bundle_that_was_only_begun_is_begun_again(tmp_path: Path, exists: bool) -> None:
    """Stopped at every write, in a folder that was there or in a new one; then another writer begins."""

    def place(name: int) -> Path:
        folder = tmp_path / str(name) / "b"
        (folder if exists else folder.parent).mkdir(parents=True)
        return folder

    with FailingDisk(tmp_path).mounted() as whole:
        Bundle(place(0)).create()
    assert len(whole.writes) > 5
    for number in range(1, len(whole.writes) + 1):
        folder = place(number)
        with StoppedDisk(folder.parent, number, errno.EIO).mounted(), suppress(RuntimeFailure):
            Bundle(folder).create()
        Bundle(folder).add("a", 0, np.eye(4))
        assert open_bundle(folder).labels == {"a": (0,)}


def test_a_bundle_without_its_header_is_not_begun_again(tmp_path: Path) -> None:
    Bundle(tmp_path / "b").add("a", 0, np.eye(4))
    (tmp_path / "b" / HEADER).unlink()
    (tmp_path / "listed").mkdir()
    (tmp_path / "b" / "manifest.csv").rename(tmp_path / "listed" / "manifest.csv")
    for folder in ("b", "listed"):
        with pytest.raises(BadInput, match="exists and is not a bundle"):
            Bundle(tmp_path / folder)


def test_two_writers_see_each_others_maps(tmp_path: Path) -> None:
    first, second = (Bundle(tmp_path / "b") for _ in range(2))
    maps = np.random.default_rng(0).random((3, 4, 4), dtype=np.float32)
    first.add("x", 0, maps[0])
    second.add("y", 1, maps[1])
    with pytest.raises(BadInput, match="has another map for image 'y', label 1 already"):
        first.add("y", 1, maps[2])
    assert first.add("y", 1, maps[1]) == 0
    assert first.add("z", 2, maps[2]) == 1
    assert open_bundle(tmp_path / "b").labels == {"x": (0,), "y": (1,), "z": (2,)}
    assert repr(first) == f"Bundle({tmp_path / 'b'}, 3 maps)"
    assert repr(open_bundle(tmp_path / "b")) == f"HeatmapSet({tmp_path / 'b'}, 3 maps of 3 images, ?)"


def test_ids_may_have_any_space_but_no_end_of_line(tmp_path: Path) -> None:
    name, map_ = "Screenshot at 3.45\u202fPM\u00a0.png", np.random.default_rng(0).random((4, 4))
    Bundle(tmp_path / "b").add(name, 0, map_)
    assert open_bundle(tmp_path / "b").get(name, 0).shape == (4, 4)
    for strange in ("a\nb", "a\u2028b", "\udcff", ""):
        with pytest.raises(BadInput, match="cannot be an image id"):
            Bundle(tmp_path / "c").add(strange, 0, map_)
