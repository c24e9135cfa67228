"""Shards put together: all that is sound in them, what is missing said, and the shards left as they are."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import auditkit
from auditkit.runs.folder.checksums import SUMS
from auditkit.runs.folder.sittings import SITTINGS
from tests.support import onnx_models
from tests.support.commands import auditkit as command
from tests.support.commands import refused

IMAGES, EACH = 40, (16, 16, 8)  # in all, and of each of three shards
RUN = ("evaluate", "model.onnx", "images.npz", "--heatmaps", "maps", "--labels", "top1", "--steps", "2",
       "--preset", "unit", "--device", "cpu", "--quiet")  # fmt: skip
EXPLAIN = ("explain", "model.onnx", "images.npz", "--method", "gradient", "--labels", "top2", "--preset", "unit",
           "--device", "cpu", "--quiet")  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Maps and a run of one process, and three shards of each."""
    folder = tmp_path_factory.mktemp("made")
    onnx_models.save(onnx_models.convnet(size=8, classes=4), folder)
    images = np.random.default_rng(0).integers(0, 256, (IMAGES, 8, 8, 3), dtype=np.uint8)
    np.savez(folder / "images.npz", images=images)
    done(folder, *EXPLAIN, "-o", "maps")
    done(folder, *RUN, "-o", "run")
    for number in (1, 2, 3):
        done(folder, *EXPLAIN, "-o", f"maps-{number}", "--shard", f"{number}/3")
        done(folder, *RUN, "-o", f"run-{number}", "--shard", f"{number}/3")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "work"))


def done(folder: Path, *words: object) -> tuple[str, list[str]]:
    """What a command that succeeds prints, and its warnings."""
    finished = command(*words, folder=folder)
    assert finished.returncode == 0, finished
    warnings = finished.stderr.splitlines()
    assert all(line.startswith("warning: ") for line in warnings), warnings
    return finished.stdout, warnings


def content(folder: Path, omitted: Sequence[str] = (".lock", SITTINGS, SUMS)) -> dict[str, bytes]:
    """The files of a folder, but for locks, the log of who computed what, and the list that has its digest."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in omitted)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def values(folder: Path) -> Mapping[tuple[str, int], bytes]:
    return {(heatmap.image, heatmap.label): heatmap.values.tobytes() for heatmap in auditkit.open_bundle(folder)}


def test_merged_shards_have_the_bytes_of_one_process(folder: Path) -> None:
    """Given twice or in another order, and merged once more, they are the same."""
    for _ in range(2):
        assert done(folder, "merge", "maps-3", "maps-1", "maps-2", "maps-1", "-o", "together")[1] == []
        assert content(folder / "together") == content(folder / "maps")
        assert done(folder, "merge", "run-3", "run-1", "run-2", "run-1", "-o", "rows")[1] == []
    done(folder, *RUN, "-o", "rows")
    assert content(folder / "rows") == content(folder / "run")


@pytest.mark.parametrize("kind", ["maps", "run"])
def test_merged_shards_have_the_logs_of_all(folder: Path, kind: str) -> None:
    for _ in range(2):
        done(folder, "merge", f"{kind}-2", f"{kind}-1", "-o", "together")
    done(folder, "merge", f"{kind}-3", "-o", "together")
    logs = [(folder / f"{kind}-{number}" / SITTINGS).read_bytes() for number in (1, 2, 3)]
    assert all(b'"where"' in log for log in logs)
    lines = (folder / "together" / SITTINGS).read_bytes().splitlines()
    assert set(lines) == {line for log in logs for line in log.splitlines()}
    assert len(lines) <= len(b"".join(logs).splitlines())  # none is added a second time


def test_a_shard_of_rows_that_never_comes_is_measured_by_the_last_command(folder: Path) -> None:
    assert "measure what is missing" in " ".join(done(folder, "merge", "run-1", "run-3", "-o", "rows")[0].split())
    done(folder, *RUN, "-o", "rows")
    assert content(folder / "rows") == content(folder / "run")


def test_a_shard_of_maps_that_never_comes_is_named_and_made_by_the_same_command_without_shard(folder: Path) -> None:
    """The maps are the same, in another order in their files, and so are the figures."""
    printed, warnings = done(folder, "merge", "maps-1", "maps-3", "-o", "together", "--json")
    assert warnings == ["warning: images without maps: 16 of 40 (all of shard 2)"]
    merged = json.loads(printed)
    assert merged["images_without_maps"] == {"2": 16}
    assert "with -o together and without --shard, to make the maps that are missing" in merged["summary"]
    done(folder, *EXPLAIN, "-o", "together")
    assert values(folder / "together") == values(folder / "maps")
    shutil.rmtree(folder / "maps")
    (folder / "together").rename(folder / "maps")
    done(folder, *RUN, "-o", "rows")
    assert content(folder / "rows") == content(folder / "run")


def test_a_shard_of_maps_may_come_late(folder: Path) -> None:
    _, warnings = done(folder, "merge", "maps-2", "-o", "together")
    assert warnings == ["warning: images without maps: 24 of 40 (all of shard 1, all of shard 3)"]
    assert done(folder, "merge", "maps-1", "maps-3", "-o", "together")[1] == []
    assert values(folder / "together") == values(folder / "maps")


def test_shards_are_only_read(folder: Path) -> None:
    """One that was killed keeps its unfinished work; its torn lines and maps without names are left out."""
    shard = folder / "maps-2"
    (shard / "unfinished.npz").write_bytes(b"of the learner")
    (shard / "maps" / "999999.npy").write_bytes(b"no name yet")
    for name in ("explained.jsonl", "manifest.csv"):
        with (shard / name).open("ab") as stream:
            stream.write(b'{"torn')
    before = content(folder, omitted=(".lock",))
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    folder.chmod(0o755)
    assert done(folder, "merge", "maps-1", "maps-2", "maps-3", "-o", "together")[1] == []
    assert done(folder, "merge", "run-1", "run-2", "-o", "rows")[1] == []
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    after = content(folder, omitted=(".lock",))
    assert {name: after[name] for name in before} == before
    assert values(folder / "together") == values(folder / "maps")


def test_a_shard_that_is_at_work_can_be_merged_as_far_as_it_is(folder: Path) -> None:
    """The record names maps before they are written, and the manifest after."""
    lines = (folder / "maps-2" / "manifest.csv").read_text().splitlines(keepends=True)
    (folder / "maps-2" / "manifest.csv").write_text("".join(lines[:9]))
    _, warnings = done(folder, "merge", "maps-1", "maps-2", "-o", "together")
    assert warnings == ["warning: images without maps: 20 of 40 (some of shard 2, all of shard 3)"]
    expected = values(folder / "maps")
    merged = values(folder / "together")
    assert len(merged) == 32 + 8
    assert merged == {pair: expected[pair] for pair in merged}


def test_damaged_rows_are_named_and_measured_by_the_last_command(folder: Path) -> None:
    (part,) = (folder / "run-2" / "items").glob("*.parquet")
    part.write_bytes(part.read_bytes()[:-40])
    printed, (warning,) = done(folder, "merge", "run-1", "run-2", "run-3", "-o", "rows")
    assert part.name in warning
    assert "it is not used" in warning
    assert "has 2 units of rows" in " ".join(printed.split())
    done(folder, *RUN, "-o", "rows")
    assert content(folder / "rows") == content(folder / "run")


@pytest.mark.parametrize(("damage", "words"), [
    ("changed", "maps/000000.npy was changed since it was made (image '17', label"),
    ("cut short", "and 31 more"),
    ("from elsewhere", "image '999', label 0, was not made here"),
])  # fmt: skip
def test_damaged_maps_are_named_and_made_by_the_last_command(folder: Path, damage: str, words: str) -> None:
    file = next((folder / "maps-2" / "maps").iterdir())
    if damage == "changed":
        maps = np.load(file)
        maps[3] += 1
        np.save(file, maps)
    elif damage == "cut short":
        file.write_bytes(file.read_bytes()[:-40])
    else:
        np.save(folder / "maps-2" / "maps" / "strange.npy", np.ones((8, 8), np.float32))
        with (folder / "maps-2" / "manifest.csv").open("a") as stream:
            stream.write("999,0,maps/strange.npy\n")
    printed, warnings = done(folder, "merge", "maps-1", "maps-2", "maps-3", "-o", "together")
    assert warnings[0].startswith("warning: maps of maps-2 were left out: ")
    assert words in warnings[0]
    assert "to make the maps that are missing" in " ".join(printed.split())
    done(folder, *EXPLAIN, "-o", "together")
    assert values(folder / "together") == values(folder / "maps")


@pytest.mark.parametrize(("words", "difference"), [
    (("--method", "gradient-input"), "has maps of another model or method than maps-1"),
    (("--labels", "top1"), "has maps of other labels than maps-1"),
    (("--limit", "32"), "was cut from other images, or into another number of shards, than maps-1"),
])  # fmt: skip
def test_shards_of_maps_with_other_settings_are_refused_before_anything_is_written(
    folder: Path, words: tuple[str, ...], difference: str
) -> None:
    done(folder, *EXPLAIN, *words, "-o", "other", "--shard", "2/2" if "--limit" in words else "2/3")
    (folder / "other").rename(folder / "maps-4")
    refused(command("merge", "maps-1", "maps-4", "-o", "together", folder=folder), difference, "shards of one command")
    assert not (folder / "together").exists()
    if "--method" in words:
        refused(command("merge", "maps-4", "-o", "maps-1", folder=folder), "has maps of another model or method")


def test_shards_of_rows_with_other_settings_are_refused_before_anything_is_written(folder: Path) -> None:
    done(folder, *RUN, "--seed", "1", "-o", "other", "--shard", "2/3")
    answer = "other is a shard of another run than run-1; merge shards of one command."
    refused(command("merge", "run-1", "other", "-o", "rows", folder=folder), answer)
    assert not (folder / "rows").exists()


@pytest.mark.parametrize(("words", "answer"), [
    (("maps-1", "run-1", "-o", "out"), "maps-1 has maps and run-1 has rows; merge shards of one command."),
    (("run-1", ".", "-o", "out"), ". is neither a run nor a bundle of maps; give the folders that --shard wrote."),
    (("maps-1", "maps", "-o", "./maps"), "maps is the folder for all shards and one of them; leave it out"),
    (("run-1", "-o", "run-1"), "run-1 is the folder for all shards and one of them; leave it out"),
])  # fmt: skip
def test_folders_that_cannot_be_merged_are_refused(folder: Path, words: tuple[str, ...], answer: str) -> None:
    before = content(folder)
    refused(command("merge", *words, folder=folder), answer)
    assert content(folder) == before


def test_shards_without_maps_are_refused(folder: Path) -> None:
    for path in (folder / "maps-1" / "explained.jsonl", folder / "maps-1" / "manifest.csv"):
        path.write_text("image,label,heatmap\n" if path.name == "manifest.csv" else "")
    refused(command("merge", "maps-1", "-o", "together", folder=folder), "the shards have no maps that can be used.")
    assert not (folder / "together").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1, "labels": "top2", "images": [3]}'])
def test_a_list_of_shares_that_is_none_is_one_sentence(folder: Path, text: str) -> None:
    (folder / "maps-1" / "shares.json").write_text(text)
    refused(command("merge", "maps-1", "-o", "together", folder=folder), "shares.json")
