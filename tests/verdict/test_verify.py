"""A run that was changed is found out, wherever it was changed and however well; an honest one holds."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import auditkit
from auditkit.errors import BadInput, IntegrityFailure, ModelFailure
from auditkit.methods.controls import CONTROLS
from auditkit.methods.registry import METHODS
from auditkit.methods.request import MethodResult, Request
from auditkit.metrics.similarity import rank_correlation
from auditkit.report.load_run import load
from auditkit.runs.evaluation.plan import RunRecord
from auditkit.runs.executor import silent
from auditkit.runs.folder import checksums, parquet, provenance
from auditkit.runs.folder.figures import Runtime
from auditkit.runs.folder.store import Store
from auditkit.runs.summary.results import results
from auditkit.runs.summary.summarise import summarise
from auditkit.verdict.verify import Originals, Sampling, Verification, maps, recompute, run_record, sample, verify
from auditkit.verdict.verify.originals import open_originals
from tests.support import onnx_models
from tests.support.commands import auditkit as command
from tests.support.commands import refused

CPU = auditkit.Settings(device="cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its card, twenty images, maps, and the run that was made of them."""
    folder, rng = tmp_path_factory.mktemp("made"), np.random.default_rng(0)
    model = onnx_models.save(onnx_models.convnet(size=8, classes=3), folder)
    names = 'names = ["cat", "dog", "eel"]'
    model.with_suffix(".toml").write_text(
        f'schema_version = 1\n[preprocessing]\npreset = "unit"\nresize = "none"\n[classes]\n{names}\n'
    )
    images, labels = rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8), rng.integers(0, 3, 20)
    np.savez(folder / "images.npz", images=images, labels=labels)
    bundle = auditkit.Bundle(folder / "maps", model=str(model), method="noise")
    for image in range(20):
        bundle.add([str(image)] * 3, [0, 1, 2], rng.standard_normal((3, 8, 8)).astype(np.float32))
    opened = auditkit.load(model, settings=CPU)
    auditkit.evaluate(opened, folder / "images.npz", folder / "maps", out=folder / "run", steps="auto")
    checksums.write(folder / "run")
    return folder


@pytest.fixture
def given(made: Path, tmp_path: Path) -> Path:
    """The same, to be changed: the run says where model and images were, but not where they are now."""
    return Path(shutil.copytree(made, tmp_path / "given"))


def _verify(given: Path, **sampling: Any) -> Verification:
    where = Originals(given / "model.onnx", given / "images.npz", {"maps": given / "maps"}, device="cpu")
    return verify(given / "run", where, Sampling(**sampling))


def _inside(given: Path) -> list[str]:
    return verify(given / "run").problems


def _of(audited: Path) -> Originals:
    return Originals(audited.parent / "model.onnx", audited.parent / "images.npz", device="cpu")


def _content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def _changed(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def _forged(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Results changed by someone who knows how the run is kept: the list of digests is made anew."""
    found = json.loads((run / "results.json").read_text())
    change(found)
    (run / "results.json").write_text(json.dumps(found, sort_keys=True, indent=2) + "\n")
    checksums.write(run)


def _forged_rows(run: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Rows of the first unit changed, sealed again, summed up again, and listed again."""
    said = run_record.RecordedRun.of(run)
    key = next(iter(said.units.values()))
    rows = change(Store(run).read(key).to_pylist())
    table = pa.Table.from_pylist(rows, schema=parquet.schema())
    (run / "items" / f"{key}.parquet").write_bytes(parquet.encoded(key, table))
    assert said.results.runtime is not None
    store = Store(run)
    with np.errstate(all="ignore"):
        record = RunRecord.of(said.results)
        tables = partial(store.tables, said.units.values())
        summary = summarise(tables, said.settings, said.results.runtime, record)
    with Store.open(run, said.run) as writing:
        writing.finish(results(summary))
    checksums.write(run)


def test_an_honest_run_holds_from_the_command(given: Path) -> None:
    before = _content(given)
    done = command(
        "verify", given / "run", "--model", given / "model.onnx", "--images", given / "images.npz",
        "--heatmaps", f"maps={given / 'maps'}", "--sample", 1, "--seed", 3, "--json",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["answer"], found["problems"], found["unchecked"]) == ("holds", [], [])
    assert [check["name"] for check in found["checks"]] == [
        "files", "settings", "parts", "rows", "results", "originals", "sample", "figures", "runtime",
    ]  # fmt: skip
    assert (found["sample"]["images"], found["sample"]["seed"], found["sample"]["tolerance"]) == (20, 3, 1e-5)
    assert (found["sample"]["deciding"], found["sample"]["escape"]) == (0, "every image is recomputed")
    assert _content(given) == before  # nothing is written, not even a lock


def test_a_changed_run_ends_the_command_with_5(given: Path) -> None:
    _forged(given / "run", lambda found: found["metrics"][1].update(value=0.99))
    done = command("verify", given / "run")
    assert done.returncode == IntegrityFailure.exit_code == 5
    (line,) = done.stderr.splitlines()
    assert line.startswith("auditkit: ")
    assert "metrics[1]" in line
    assert "does not hold (1 problem): " in line
    assert "DOES NOT HOLD" in done.stdout
    assert "COULD NOT BE CHECKED: the model: give --model FILE" in done.stdout


def test_a_run_holds_wherever_it_lies(given: Path, tmp_path: Path) -> None:
    moved = tmp_path / "archive" / "2026"
    shutil.copytree(given / "run", moved)
    where = Originals(given / "model.onnx", given / "images.npz", {"maps": given / "maps"}, device="cpu")
    assert verify(moved, where, Sampling(seed=0)).answer == "holds"


def test_one_byte_anywhere_is_found(given: Path) -> None:
    run = given / "run"
    files = [path for path in run.rglob("*") if path.is_file() and path.name != ".lock"]
    assert len(files) == 5
    for path in files:
        content = path.read_bytes()
        for at in (0, len(content) // 2, -2):
            _changed(path, at)
            assert _inside(given), (path, at)
            path.write_bytes(content)
    assert _inside(given) == []


def test_one_byte_is_found_though_the_list_was_made_anew(given: Path) -> None:
    """Without the list of digests, what was written still belongs together."""
    run = given / "run"
    for path in [run / "run.json", *(run / "items").glob("*.parquet")]:
        content = path.read_bytes()
        for share in (0.2, 0.5, 0.8):
            _changed(path, int(share * len(content)))
            checksums.write(run)
            assert _inside(given), (path, share)
            path.write_bytes(content)


def test_a_missing_and_an_added_file_are_found_together(given: Path) -> None:
    first, second = sorted((given / "run" / "items").glob("*.parquet"))
    first.unlink()
    (given / "run" / "report.html").write_text("all is well")
    found = _inside(given)
    assert any(f"{first.name} is missing" in said for said in found)
    assert any("report.html is not listed" in said for said in found)
    assert not any(second.name in said for said in found)


def test_swapped_parts_are_found_though_listed_anew(given: Path) -> None:
    first, second = sorted((given / "run" / "items").glob("*.parquet"))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    checksums.write(given / "run")
    found = _inside(given)
    assert len(found) == 2
    assert all("holds another unit" in said for said in found)


def test_a_part_of_another_run_is_found(given: Path) -> None:
    first = next((given / "run" / "items").glob("*.parquet"))
    key = "0" * 64
    table = Store(given / "run").read(first.stem)
    (given / "run" / "items" / f"{key}.parquet").write_bytes(parquet.encoded(key, table))
    checksums.write(given / "run")
    assert _inside(given) == [f"items/{key}.parquet belongs to no unit of the run"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda found: found["metrics"][0].update(value=found["metrics"][0]["value"] + 1e-6), "metrics[0]"),
        (lambda found: found["controls"][3].update(high=2.0), "controls[3]"),
        (lambda found: found["comparisons"].pop(), "comparisons has"),
        (lambda found: found["comparisons"][0].update(against="control:edges"), "comparisons[0]"),
        (lambda found: found["flags"].append({"kind": "ties", "bundle": "maps", "count": 1, "total": 60}), "flags has"),
        (lambda found: found["flags"].append("all is well"), "flags[0] is 'all is well', expected an object"),
        (lambda found: found["classes"][0].update(n=2), "classes[0]"),
        (lambda found: found["run"].update(rows=1), "run.rows"),
        (lambda found: found["limitations"].clear(), "limitations has"),
        (lambda found: found["subject"]["images"].update(digest="0" * 64), "run.json"),
        (lambda found: found["subject"]["model"].update(sha256="0" * 64), "run.json"),
        (lambda found: found["settings"].update(eps1=0.2), "run.json"),
        (lambda found: found["settings"].update(steps="half"), "steps"),
        (lambda found: found["environment"].update(precision="float16"), "run.json"),
        (lambda found: found["failed_images"].append({"image": "3", "reason": "lost"}), "failed_images has"),
        (lambda found: found.pop("settings"), "lacks 'settings'"),
        (lambda found: found.update(metrics=None), "metrics is None, expected a list"),
        (lambda found: found["metrics"][0].update(value="0.9"), "metrics[0].value is '0.9', expected a finite number"),
        (lambda found: found["metrics"][0].update(better=0.9), "metrics[0] has an unknown key 'better'"),
        (lambda found: found["runtime"].pop("largest"), "runtime lacks 'largest'"),
    ],
)  # fmt: skip
def test_changed_results_are_found_though_listed_anew(
    given: Path, change: Callable[[dict[str, Any]], None], named: str
) -> None:
    _forged(given / "run", change)
    assert any(named in said for said in _inside(given))


def _flattened(row: dict[str, Any]) -> dict[str, Any]:
    """A perfect map, whose curve, area, log-odds and ratios agree with each other."""
    prob, curve, odds = row["prob"], [*[row["prob"]] * (len(row["curve"]) - 1), row["curve"][-1]], list(row["log_odds"])
    odds[row["label"]] = np.log(prob / (1 - prob))
    return row | {"curve": curve, "insertion": prob, "alpha": 1.0, "beta": 1.0, "log_odds": odds}


def _more_specific(row: dict[str, Any]) -> dict[str, Any]:
    """A map that hides all labels but its own."""
    odds = [value if label == row["label"] else value - 1 for label, value in enumerate(row["log_odds"])]
    return row | {"log_odds": odds}


FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any] | None], str]] = {
    "1": (lambda row: _flattened(row) if row["bundle"] == "maps" and row["predicted"] else row,
          "insertion of 1 of {rows} rows differs"),
    "2": (lambda row: None if row["bundle"] == "maps" and row["label"] == 1 else row, "1 rows are missing"),
    "3": (lambda row: row | {"deletion": 0.0} if row["predicted"] else row, "deletion of {sources} of {rows} rows"),
    "4": (lambda row: row | {"prediction": (row["prediction"] + 1) % 3}, "prediction of {rows} of {rows}"),
    "5": (lambda row: row | {"flags": ["ties"]}, "flags of"),
    "6": (lambda row: row | {"truth": (row["truth"] + 1) % 3}, "truth of {rows}"),
    "7": (lambda row: row | {"map_digest": "0" * 32}, "map_digest of {rows}"),
    "8": (lambda row: row | {"saliency_metric": -1.0} if row["predicted"] else row, "saliency_metric of"),
    "9": (lambda row: row | {"image": "strange"}, "{rows} rows are missing or too many"),
    "10": (lambda row: row | {"label": row["label"] + 1} if row["label"] == 2 else row, "{twice} rows are missing"),
    "11": (lambda row: _more_specific(row) if row["bundle"] == "maps" else row, "log_odds of 3 of {rows} rows differs"),
}  # fmt: skip


def test_rows_forged_through_and_through_do_not_come_out_again(given: Path) -> None:
    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        made = [FORGERIES[row["image"]][0](row) if row["image"] in FORGERIES else row for row in rows]
        return [row for row in made if row is not None]

    _forged_rows(given / "run", change)
    assert [said for said in _inside(given) if "occurs twice" not in said] == []
    found = _verify(given, share=1.0, seed=0)
    sources = len(CONTROLS) + 2  # and the maps, and one of them for all labels
    counts = {"rows": 3 * sources, "sources": sources, "twice": 2 * sources}
    (sample,) = (check for check in found.checks if check.name == "sample")
    assert len(sample.problems) == len(FORGERIES)
    for image, (_, named) in FORGERIES.items():
        (said,) = (problem for problem in sample.problems if problem.startswith(f"image '{image}': "))
        assert named.format(**counts) in said


def test_rows_that_contradict_themselves_are_found_wherever_they_are(given: Path) -> None:
    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        better = {"5": {"insertion": 1.0}, "6": {"alpha": 1.0, "beta": 0.99}, "7": {"prob": 0.5}, "8": {"curve": None},
                  "10": {"log_odds": [0.0, 0.0]}, "11": {"log_odds": [9.0] * 3}}  # fmt: skip
        return [row | better.get(row["image"], {}) for row in [*rows, rows[0]]]

    _forged_rows(given / "run", change)
    found = _inside(given)
    for image, named in {
        "0": "twice",
        "5": "curve's area",
        "6": "beta is 0.99",
        "7": "curve ends",
        "8": "no figure",
        "10": "no areas of log-odds of 3 labels",
        "11": "those of its curve",
    }.items():
        assert any(f"image '{image}'" in said and named in said for said in found), (image, found[:9])
    assert not any("image '9'" in said for said in found)


def test_a_forged_runtime_error_is_found(given: Path) -> None:
    def change(found: dict[str, Any]) -> None:
        found["runtime"]["largest"] = 0.01

    _forged(given / "run", change)
    (problem,) = _verify(given, seed=0).problems
    assert problem.startswith("its error 'largest' is 0.01, measured anew")


@pytest.mark.parametrize(("precision", "times", "problems", "unchecked"), [
    ("strict", 1.9, 0, 0), ("strict", 2.5, 1, 0),
    ("tf32", 1.9, 0, 0), ("tf32", 4.5, 0, 1), ("float16", 1 / 4.5, 0, 1), ("tf32", 12, 1, 0),
])  # fmt: skip
def test_an_error_of_the_runtime_depends_on_its_kernels(
    precision: str, times: float, problems: int, unchecked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU chooses them for each size of a batch, and in TF32 they round each in its own way."""
    now = Runtime("reference", 36, 0.0, 0.01, 0.01, 0.01, 0.01, 0.01, None, 0.01)
    environment = {"device": "cuda", "precision": precision}
    recorded = SimpleNamespace(about={"environment": environment}, run={"environment": environment})
    monkeypatch.setattr(recompute, "environment", lambda _: environment)
    monkeypatch.setattr(
        recompute.runtime_check, "checked", lambda plan, *_: (plan, SimpleNamespace(result=lambda: now))
    )
    plan = SimpleNamespace(model=None)
    then = replace(now, largest=times * 0.01)
    found = recompute.check_runtime(recorded, then, plan)  # type: ignore[arg-type]
    assert (len(found.problems), len(found.unchecked)) == (problems, unchecked)


def _another_model(given: Path) -> None:
    onnx_models.save(onnx_models.convnet(size=8, classes=3, seed=1), given)


def _another_image(given: Path) -> None:
    with np.load(given / "images.npz") as arrays:
        images, labels = arrays["images"].copy(), arrays["labels"]
    images[7, 3, 3, 0] ^= 1
    np.savez(given / "images.npz", images=images, labels=labels)


def _another_label(given: Path) -> None:
    with np.load(given / "images.npz") as arrays:
        images, labels = arrays["images"], (arrays["labels"] + 1) % 3
    np.savez(given / "images.npz", images=images, labels=labels)


def _another_map(given: Path) -> None:
    path = next((given / "maps" / "maps").glob("*.npy"))
    maps = np.load(path)
    maps[0, 0, 0] += 1
    np.save(path, maps)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_another_model, "the model "), (lambda given: _changed(given / "model.onnx", 40), "the model "),
        (_another_image, "the set of images "), (_another_label, "the set of images "),
        (lambda given: (given / "images.npz").write_bytes(b"torn"), "is not an .npz file"),
        (_another_map, "the bundle "), (lambda given: (given / "maps" / "manifest.csv").write_text("x"), "manifest"),
    ],
)  # fmt: skip
def test_changed_originals_are_found(given: Path, change: Callable[[Path], None], named: str) -> None:
    change(given)
    found = _verify(given)
    assert len(found.problems) == 1
    assert named in found.problems[0]


def test_every_changed_original_is_listed(given: Path) -> None:
    for change in (_another_image, _another_map):
        change(given)
    found = _verify(given)
    assert len(found.problems) == 2
    assert any("originals and parts must hold first" in said for said in found.unchecked)


def test_what_was_not_given_is_asked_for_by_its_option(given: Path) -> None:
    done = command("verify", given / "run", "--json")
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert "could not be checked in full (4 gaps); the first: the model: give --model FILE." in line
    found = json.loads(done.stdout)
    assert (found["answer"], found["problems"]) == ("could not be checked", [])
    assert found["unchecked"] == [
        "the model: give --model FILE", "the images: give --images PATH",
        "the heatmaps 'maps': give --heatmaps maps=PATH",
        "whether rows and maps come out again: that takes the model, the images, the heatmaps 'maps'",
    ]  # fmt: skip
    refused(command("verify", given / "run", "--heatmaps", "maps=away"), "there is no away")
    with pytest.raises(BadInput, match="no bundle 'other'; it has maps"):
        open_originals(run_record.RecordedRun.of(given / "run"), Originals(heatmaps={"other": given / "maps"}))


def test_another_name_of_a_file_is_told(given: Path) -> None:
    (given / "model.onnx").rename(given / "other.onnx")
    (given / "model.toml").rename(given / "other.toml")
    where = Originals(given / "other.onnx", given / "images.npz", {"maps": given / "maps"}, device="cpu")
    found = verify(given / "run", where)
    assert (found.answer, len(found.unchecked)) == ("could not be checked", 2)
    assert "the name of the card: the run calls it 'model.toml', the one given is 'other.toml'" in found.unchecked[0]


def test_what_is_no_run_is_refused(tmp_path: Path, given: Path) -> None:
    with pytest.raises(BadInput, match="is not a run"):
        verify(tmp_path / "nowhere")
    for name in ("results.json", checksums.SUMS):
        (given / "run" / name).unlink()
    with pytest.raises(BadInput, match="share above 0"):
        Sampling(share=0.0)


def test_a_run_of_another_version_is_refused_and_not_called_changed(given: Path) -> None:
    _forged(given / "run", lambda found: found.update(schema_version=1))
    done = command("verify", given / "run")
    assert done.returncode == 3
    assert "schema_version 1, but this auditkit reads 2; run the command again" in done.stderr
    with (given / "run" / "results.json").open("a") as stream:
        stream.write(" ")
    assert any("results.json" in said for said in _inside(given))
    assert command("verify", given / "run").returncode == IntegrityFailure.exit_code


def test_an_evaluation_without_its_list_does_not_hold(given: Path) -> None:
    (given / "run" / checksums.SUMS).unlink()
    (said,) = verify(given / "run").problems
    assert checksums.SUMS in said


def test_another_card_is_told(given: Path) -> None:
    card = given / "model.toml"
    card.write_text(card.read_text().replace('"unit"', '"imagenet"'))
    (said, _) = _verify(given).unchecked
    assert said.startswith("the card: the run's is 'model.toml', sha256 ")
    card.unlink()
    assert "give --card FILE" in _verify(given).unchecked[0]


def test_another_version_is_given_more_room_and_said(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = recompute.environment
    monkeypatch.setattr(recompute, "environment", lambda model: before(model) | {"onnxruntime": "9.9"})
    found = _verify(given, seed=0)
    assert found.problems == []
    assert found.sample is not None
    assert found.sample.tolerance == 1e-3
    assert "9.9 now" in found.sample.why


def test_rows_that_the_model_fails_on_once_were_not_checked(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not fail on a second try; the rows of its unit and of those after it were not recomputed."""
    real, calls = recompute._Recomputing.__call__, iter([True])

    def once(self: recompute._Recomputing, *unit: Any) -> Any:
        if next(calls, False):
            raise ModelFailure("it failed.")
        return real(self, *unit)

    monkeypatch.setattr(recompute._Recomputing, "__call__", once)
    verification = _verify(given, seed=0)
    assert verification.problems == []
    assert "failed on some images, but not on a second try" in " ".join(verification.unchecked)


def test_samples_are_drawn_by_seed() -> None:
    assert sample.drawn(20, 10, 1) != sample.drawn(20, 10, 2)
    assert sample.drawn(20, 6, 7) == sample.drawn(20, 6, 7)
    assert sorted(sample.drawn(5, 9, 0)) == [0, 1, 2, 3, 4]
    assert sample.drawn(20, 20, 3)[:6] == sample.drawn(20, 6, 3)  # a smaller sample is the beginning of a larger one


def test_the_chance_to_escape_is_that_of_the_draw() -> None:
    """Against every way to draw three of eight images."""
    for changed in range(1, 9):
        missed = [not set(chosen) & set(range(changed)) for chosen in combinations(range(8), 3)]
        assert sample.escape(8, 3, changed) == pytest.approx(np.mean(missed))
    drawn = [sample.drawn(8, 3, seed) for seed in range(3000)]
    assert np.mean([not {0, 1} & set(one) for one in drawn]) == pytest.approx(sample.escape(8, 3, 2), abs=0.03)
    assert "of 200, if not one that decides, is missed by this sample with probability 0.95, 10 of them with 0.591" in (
        sample.escape_text(200, 10)
    )


def test_an_image_that_was_lifted_is_always_computed_again(given: Path) -> None:
    """One forged image out of twenty, which chance alone would miss in nineteen of twenty draws."""

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [_flattened(row) if (row["image"], row["bundle"]) == ("1", "maps") else row for row in rows]

    _forged_rows(given / "run", change)
    assert _inside(given) == []
    seed = next(seed for seed in range(99) if sample.drawn(20, 1, seed) != [1])
    (problem,) = _verify(given, seed=seed, share=0.05).problems
    assert problem.startswith("image '1': ")


def test_few_images_decide_and_each_is_the_highest_or_the_lowest_of_a_figure(made: Path) -> None:
    said = run_record.RecordedRun.of(made / "run")
    rows = [row for table in said.store.tables(said.units.values()) for row in table.to_pylist()]
    worst: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row["bundle"], row["image"]
        worst[key] = min(worst.get(key, 1.0), row["alpha"])
    controls = {bundle for bundle, _ in worst if bundle != "maps"}
    over = {image: worst["maps", image] - max(worst[control, image] for control in controls)
            for bundle, image in worst if bundle == "maps"}  # fmt: skip
    found = sample.deciding(said)
    assert {max(over, key=over.__getitem__), min(over, key=over.__getitem__)} <= set(found)
    assert len(found) <= 2 * 5  # insertion, worst completeness, worst soundness, best effort and label specificity


def test_a_run_over_files_holds_with_its_failed_image_and_random_infill(made: Path, tmp_path: Path) -> None:
    from PIL import Image

    folder, rng = tmp_path / "pictures", np.random.default_rng(1)
    for place in range(5):
        (folder / ("cat", "dog")[place % 2]).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / ("cat", "dog")[place % 2] / f"{place}.png")
    (folder / "cat" / "2.png").write_bytes(b"torn")
    opened = auditkit.load(made / "model.onnx", settings=CPU)
    auditkit.evaluate(opened, folder, out=tmp_path / "run", steps="8", infill="random", labels="top2", draws=3)
    where = Originals(made / "model.onnx", folder, device="cpu")
    assert verify(tmp_path / "run", where).answer == "holds"
    Image.fromarray(pixels).save(folder / "cat" / "2.png")
    found = verify(tmp_path / "run", where)
    assert any("'cat/2.png' is left out by the run, but can be used" in said for said in found.problems)


def test_a_protocol_holds(given: Path) -> None:
    opened = auditkit.load(given / "model.onnx", settings=CPU)
    settings = {"protocol": "paper-code", "labels": "top2"}
    auditkit.evaluate(opened, given / "images.npz", given / "maps", out=given / "other", **settings)
    where = Originals(given / "model.onnx", given / "images.npz", {"maps": given / "maps"}, device="cpu")
    assert verify(given / "other", where, Sampling(seed=0)).answer == "holds"


POLICY = """schema_version = 1
name = "small"
[evaluation]
steps = 8
minimum_images = 4
[randomisation]
images = 4
stages = 2
[[check]]
id = "effort"
metric = "insertion"
min = 0.99
severity = "high"
[[suppression]]
check = "effort"
reason = "a test"
approver = "nobody"
expires = 2999-01-01
"""


def _audit(folder: Path, run: Path, **changes: Any) -> Path:
    from auditkit.data.dataset import Dataset
    from auditkit.runs.explain import Explanation
    from auditkit.verdict.audit import AuditRequest, audit
    from auditkit.verdict.policy_file import parse_policy

    opened = auditkit.load(folder / "model.onnx", settings=CPU)
    images = Dataset.open(folder / "images.npz", 3, opened.card.names)
    policy = parse_policy(POLICY, "small.toml")
    asked = AuditRequest(policy, Explanation("gradient-input"), command=("auditkit", "audit"), **changes)
    audit(opened, images, asked, run)
    return run


@pytest.fixture(scope="module")
def audited(made: Path) -> Path:
    return _audit(made, made / "audit")


@pytest.mark.parametrize("labels", ["top2", "Top 2", "1, 0"])
def test_an_audit_of_other_labels_than_the_policys_holds(made: Path, tmp_path: Path, labels: str) -> None:
    assert verify(_audit(made, tmp_path / "run", labels=labels)).problems == []


def test_an_audit_holds_with_its_own_maps_wherever_it_lies(audited: Path, tmp_path: Path) -> None:
    found = verify(Path(shutil.copytree(audited, tmp_path / "moved")), _of(audited), Sampling(seed=0, images_mapped=2))
    assert found.answer == "holds", (found.problems, found.unchecked)
    assert {"files", "verdict", "stages", "report", "sample"} <= {check.name for check in found.checks}
    (check,) = (check for check in found.checks if check.name == "maps")
    assert "of 20 images, made again by gradient-input(seed=0), rank pixels alike" in check.about
    assert "least rank correlation 1.0000" in check.about


def _with_maps(audited: Path, run: Path, change: Callable[[int, np.ndarray[Any, Any]], Any]) -> Path:
    """The same audit over changed maps, by someone who can write the whole folder and forgets nothing."""
    real = METHODS["gradient-input"].run

    def forge(request: Request, options: Any) -> MethodResult:
        found = real(request, options)
        forged = [{label: np.asarray(change(int(image), values), np.float32) for label, values in own.items()}
                  for image, own in zip(request.ids, found.maps, strict=True)]  # fmt: skip
        return replace(found, maps=tuple(forged))

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "gradient-input", replace(METHODS["gradient-input"], run=forge))
        _audit(audited.parent, run)
    return run


def test_maps_forged_through_and_through_are_not_made_again(audited: Path, tmp_path: Path) -> None:
    run = _with_maps(audited, tmp_path / "run", lambda _image, values: values[::-1])
    assert verify(run).problems == []
    found = verify(run, _of(audited), Sampling(seed=0))
    check, stages = (check for check in found.checks if check.problems)
    assert (check.name, len(check.problems), stages.name) == ("maps", 60, "randomised")
    assert "is not the one that gradient-input(seed=0) makes: their rank correlation is " in check.problems[0]
    found = verify(run, _of(audited), Sampling(seed=0, images_mapped=0))
    assert found.unchecked == ["how the maps were made: give --maps 1 or more"]
    originals = ("--model", audited.parent / "model.onnx", "--images", audited.parent / "images.npz")
    done = command("verify", run, *originals, "--device", "cpu", "--seed", 0, "--maps", 1)
    assert done.returncode == 5
    assert "made again" not in done.stdout
    assert "DOES NOT HOLD" in done.stdout


def test_maps_whose_ranks_hardly_differ_hold(audited: Path, tmp_path: Path) -> None:
    run = _with_maps(audited, tmp_path / "run", lambda _image, values: values * (1 + 1e-6))
    assert verify(run, _of(audited), Sampling(seed=0, images_mapped=20)).answer == "holds"


@pytest.mark.parametrize(("change", "named"), [
    (lambda said: said.pop("request"), "explained lacks 'request'"),
    (lambda said: said.update(request=[]), "explained.request is [], expected an object"),
    (lambda said: said["request"].pop("seed"), "explained.request lacks 'seed'"),
    (lambda said: said["request"].update(seed="0"), "explained.request.seed is '0', expected an integer"),
])  # fmt: skip
def test_a_request_that_is_none_is_found(
    audited: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], named: str
) -> None:
    run = Path(shutil.copytree(audited, tmp_path / "run"))
    _forged(run, lambda found: change(found["explained"]))
    with pytest.raises(BadInput, match=re.escape(named)):
        load(run)
    (problem,) = verify(run).problems
    assert named in problem


def test_a_label_without_a_map_is_missed(audited: Path, tmp_path: Path) -> None:
    """An honest request for all labels, of which the bundle has two."""
    run = Path(shutil.copytree(audited, tmp_path / "run"))
    recorded = run_record.RecordedRun.of(run)
    plan = open_originals(recorded, _of(audited)).plan
    assert plan is not None
    (name, bundle) = next(iter(plan.bundles.items()))
    fewer = replace(bundle, entries=tuple(entry for entry in bundle.entries if entry.label))
    outcome = maps.check_maps(recorded, replace(plan, bundles={name: fewer}), [0, 1], None, 2e-5, silent)
    assert outcome.problems == [f"image '{image}' has maps for other labels than 'all' chooses" for image in (0, 1)]
    assert outcome.about.startswith("4 maps of 2 of 20 images")
    assert "least rank correlation 1.0000" in outcome.about


def test_maps_that_rank_nothing_are_alike() -> None:
    ramp, flat = np.arange(4.0).reshape(2, 2), np.ones((2, 2))
    assert [rank_correlation(*pair) for pair in ((flat, 2 * flat), (flat, ramp), (ramp, ramp[:1]))] == [1, 0, 0]
    assert rank_correlation(ramp, -ramp) == pytest.approx(-1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda found: found.update(verdict="fail"), "verdict is 'fail'"),
        (lambda found: found["checks"][0].update(status="suppressed"), "checks[0]"),
        (lambda found: found["checks"].pop(), "checks has"),
        (lambda found: found["policy"].update(text=POLICY.replace("0.99", "0.01")), "policy.sha256"),
        (lambda found: found["policy"].update(fail_on="critical"), "policy.fail_on"),
        (lambda found: found["randomisation"]["series"][1].update(spearman=0.0), "stage 2.spearman"),
        (lambda found: found["run"]["bundles"].update({"gradient-input": "0" * 64}), "is missing"),
        (lambda found: found.update(verdict_reason="All is well."), "verdict_reason"),
        (lambda found: found.update(verdict_reason="<b>All is well.</b>"), "report.html does not show these results"),
        (lambda found: found.update(policy=None), "run.json"),
        (lambda found: found.pop("verdict"), "verdict"),
        (lambda found: found.pop("checks"), "checks has 0 entries"),
        (lambda found: found["policy"].update(text=""), "schema_version is missing"),
        (lambda found: found.update(policy=[]), "policy is [], expected an object"),
        (lambda found: found.update(randomisation=[]), "randomisation is [], expected an object"),
        (lambda found: found.update(software=[]), "software is [], expected an object"),
    ],
)  # fmt: skip
def test_a_changed_audit_is_found_though_listed_anew(
    audited: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], named: str
) -> None:
    run = Path(shutil.copytree(audited, tmp_path / "run"))
    _forged(run, change)
    assert any(named in said for said in verify(run).problems)


@pytest.mark.parametrize("name", ["policy.toml", "report.html"])
def test_another_policy_or_report_is_found_though_listed_anew(audited: Path, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(audited, tmp_path / "run"))
    _changed(run / name, 40)
    checksums.write(run)
    assert any(name in problem for problem in verify(run).problems)


def test_an_audit_without_its_list_does_not_hold(audited: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(audited, tmp_path / "run"))
    (run / checksums.SUMS).unlink()
    assert verify(run).problems == ["SHA256SUMS is missing"]


def test_the_commit_is_read_without_running_git(tmp_path: Path) -> None:
    first, second, inside = "1" * 40, "2" * 40, tmp_path / "work" / "deep"
    git = tmp_path / "work" / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    inside.mkdir()
    assert provenance.commit(tmp_path) is None
    (git / "HEAD").write_text(f"{first}\n")
    assert provenance.commit(inside) == first
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert provenance.commit(inside) is None  # nothing was committed yet
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{first} refs/heads/other\n{second} refs/heads/main\n")
    assert provenance.commit(inside) == second
    (git / "refs" / "heads" / "main").write_text(f"{first}\n")
    assert provenance.commit(inside) == first
    tree = git / "worktrees" / "tree"
    tree.mkdir(parents=True)
    (tree / "HEAD").write_text("ref: refs/heads/main\n")
    (tree / "commondir").write_text("../..\n")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / ".git").write_text(f"gitdir: {tree}\n")
    assert provenance.commit(tmp_path / "tree") == first
    (git / "HEAD").write_text("ref: refs/../../../secret\n")
    assert provenance.commit(inside) is None


def test_facts_are_the_same_every_time(made: Path) -> None:
    opened = auditkit.load(made / "model.onnx", settings=CPU)
    found = provenance.facts(opened)
    assert found == provenance.facts(opened)
    assert {"auditkit", "python", "numpy", "onnx", "onnxruntime", "platform", "device_name", "provider"} <= set(found)
    assert found["provider"] == "CPUExecutionProvider"
    assert json.loads(json.dumps(found)) == found
    assert provenance.now().endswith("Z")
