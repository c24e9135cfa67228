"""The audit as its users run it: whole, cut short, on a full disk, over hostile or broken evidence."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import auditkit
from auditkit.demo.draw import draw
from auditkit.demo.planted import bundled_model
from auditkit.evidence.salt import seed_of
from auditkit.model import decoder
from auditkit.model.pictures import Geometry
from auditkit.runs.folder import checksums, provenance
from auditkit.runs.folder.figures import ExplanationRequest, NotRandomised
from auditkit.runs.folder.results import CheckChange, ModelFile, Results
from auditkit.runs.folder.store import Store, locked
from auditkit.verdict.audit import AuditRequest
from auditkit.verdict.verify import verify
from tests.support.commands import SALT, refused
from tests.support.commands import auditkit as command

CPU = auditkit.Settings(device="cpu")
IMAGES = 4  # of most audits, to which each adds two seconds; too few for a pass or a fail
ENOUGH = 20  # the fewest that decide anything
POLICY = f"""
schema_version = 1
name = "small"
description = "for tests"

[evaluation]
labels = "top2"
steps = "auto"
minimum_images = {IMAGES}

[randomisation]
images = 2
stages = 2

[[check]]
id = "complete"
metric = "worst_completeness"
min = 0.1
severity = "high"

[[check]]
id = "above-controls"
metric = "worst_completeness"
min_margin_over = "control:random:-0.5"
severity = "medium"

[[check]]
id = "honest-maps"
metric = "flags"
max = 0
severity = "high"
"""


NOT_RANDOMISED = POLICY.replace("[randomisation]\nimages = 2\nstages = 2", "")


@pytest.fixture(autouse=True, scope="module")
def few_images_are_enough() -> Iterator[None]:
    """Audits of few images are quick, and start here all the same; that they do not is tested with their plans."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AuditRequest, "require_enough", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn images and a policy."""
    folder = tmp_path_factory.mktemp("planted")
    drawn = draw(IMAGES, seed=3, tags="random")
    np.savez(folder / "images.npz", images=drawn.images, labels=drawn.labels, masks=drawn.objects)
    (folder / "policy.toml").write_text(POLICY)
    return folder


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many images as a verdict needs, a policy, their maps, and an audit of these."""
    folder = tmp_path_factory.mktemp("decided")
    drawn = draw(ENOUGH, seed=3, tags="random")
    np.savez(folder / "images.npz", images=drawn.images, labels=drawn.labels, masks=drawn.objects)
    (folder / "policy.toml").write_text(NOT_RANDOMISED)
    model = auditkit.load(bundled_model("honest"), settings=CPU)
    auditkit.explain(model, folder / "images.npz", folder / "maps", "gradient-input", labels="top2")
    done = command(*_words(folder, folder / "run", "--heatmaps", folder / "maps"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "PASS" in done.stdout
    return folder


def _words(folder: Path, out: Path, *more: object) -> tuple[object, ...]:
    method = () if "--heatmaps" in more else ("--method", "gradient-input")
    return ("audit", bundled_model("honest"), folder / "images.npz", *method, "--policy", folder / "policy.toml", "-o",
            out, "--device", "cpu", *more)  # fmt: skip


def _results(run: Path) -> Results:
    return Store(run).results()


def _timeless(run: Path) -> str:
    """results.json without its times and the command."""
    plain = json.loads((run / "results.json").read_text())
    del plain["run"]["started"], plain["run"]["ended"], plain["run"]["command"]
    return json.dumps(plain)


@pytest.fixture(scope="module")
def whole(planted: Path) -> Path:
    """An audit that nobody disturbed."""
    done = command(*_words(planted, planted / "whole", "--salt", SALT))
    assert (done.returncode, done.stderr) == (3, "")
    return planted / "whole"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _status(results: Results) -> dict[str, str]:
    return {check.id: check.status for check in results.checks}


# The run --------------------------------------------------------------------------------------------------------------


def test_a_run_holds_all_that_is_filed(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    assert {"results.json", "run.json", "items", "maps", "gallery", "policy.toml", "report.html", "SHA256SUMS"} <= names
    results = _results(whole)
    run, model = results.run, results.subject.model
    assert results.verdict == "inconclusive"
    assert {"complete", "above-controls", "honest-maps"} <= set(_status(results))
    assert results.policy is not None
    assert results.policy.name == "small"
    assert results.explained is not None
    assert results.explained.method.startswith("gradient-input(")
    assert results.explained.gradients == 2 * IMAGES
    assert results.randomisation is not None
    assert len(results.randomisation.series or ()) == 2
    assert run.command is not None
    assert run.command[1] == "audit"
    assert run.started is not None
    assert run.ended is not None
    assert run.started <= run.ended
    assert {"numpy", "python", "onnxruntime", "provider", "device_name"} <= set(results.software or {})
    assert isinstance(model, ModelFile)
    assert run.bundle_models == {"gradient-input": model.sha256}
    text = (whole / "report.html").read_text()
    assert "gradient-input" in text
    assert "http://" not in text.replace("http://www.w3.org/", "")
    assert checksums.check(whole) == []


def test_every_result_says_where_it_comes_from(whole: Path, planted: Path) -> None:
    results = _results(whole)
    subject, run, settings, runtime = results.subject, results.run, results.settings, results.runtime
    model, card = bundled_model("honest"), bundled_model("honest").with_suffix(".toml")
    assert isinstance(subject.model, ModelFile)
    assert results.policy is not None
    digests = [subject.model.sha256, subject.card_origin.sha256, results.policy.sha256]
    assert digests == [_sha256(path) for path in (model, card, planted / "policy.toml")]
    assert (subject.model.path, subject.card_origin.source) == (model.name, card.name)
    assert (subject.layout, subject.dtype, subject.kind) == ("NCHW", "float32", "logits")
    assert subject.card["mean"] == auditkit.load(model, settings=CPU).card.mean
    assert len(subject.images.digest) == len(run.bundles["gradient-input"]) == 64
    assert results.explained is not None
    assert results.explained.request == ExplanationRequest("gradient-input", "top2", {}, 0, "auto", None)
    assert (run.salt, settings.seed) == (SALT, seed_of(SALT))
    assert (settings.labels, settings.steps) == ("top2", "auto:0.005")
    software = results.software or {}
    assert (software["provider"], software["device"], software["precision"]) == (
        "CPUExecutionProvider",
        "cpu",
        "strict",
    )
    assert {"auditkit", "python", "onnxruntime", "numpy", "onnx", "pillow", "pyarrow", "scipy", "platform",
            "device_name"} <= set(software)  # fmt: skip
    assert runtime is not None
    assert runtime.rows > 0
    assert runtime.largest is not None
    assert 0 <= runtime.largest < 1e-5
    assert (run.command or ())[1:3] == ("audit", model.name)
    assert run.started is not None
    assert run.ended is not None
    assert run.started <= run.ended
    assert run.git_commit == provenance.commit(Path.cwd())


def test_the_same_command_again_changes_nothing(whole: Path, planted: Path) -> None:
    before = _timeless(whole)
    assert command(*_words(planted, whole)).returncode == 3
    assert _timeless(whole) == before


def test_another_audit_does_not_go_into_the_same_folder(whole: Path, planted: Path, tmp_path: Path) -> None:
    refused(command(*_words(planted, whole, "--method", "edges")), "holds a run with other settings")
    other = tmp_path / "policy.toml"
    other.write_text(POLICY.replace("min = 0.1", "min = 0.2"))
    refused(command(*_words(planted, whole, "--policy", other)), "holds a run with other settings", "policy")


def test_python_gives_the_same(whole: Path, planted: Path, tmp_path: Path) -> None:
    model = auditkit.load(bundled_model("honest"), settings=CPU)
    results = auditkit.audit(model, planted / "images.npz", tmp_path / "run", method="gradient-input",
                             policy=planted / "policy.toml")  # fmt: skip
    assert results.verdict == "inconclusive"
    assert results == _results(tmp_path / "run")
    assert _timeless(tmp_path / "run") == _timeless(whole)


@pytest.mark.parametrize(("change", "code", "verdict"), [
    (("min = 0.1", "min = 0.999"), 1, "fail"),
    ((f"minimum_images = {IMAGES}", f"minimum_images = {ENOUGH + 1}"), 3, "inconclusive"),
])  # fmt: skip
def test_verdicts_have_their_exit_codes(
    decided: Path, tmp_path: Path, change: tuple[str, str], code: int, verdict: str
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(NOT_RANDOMISED.replace(*change))
    words = _words(decided, tmp_path / "run", "--heatmaps", decided / "maps", "--policy", policy)
    done = command(*words)
    assert done.returncode == code, done.stdout + done.stderr
    assert verdict.upper() in done.stdout
    told = command(*words, "--json", "--exit-zero")
    assert told.returncode == 0
    assert json.loads(told.stdout)["verdict"] == _results(tmp_path / "run").verdict == verdict


def test_what_fails_may_be_told_by_severity(decided: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(NOT_RANDOMISED.replace("min = 0.1", "min = 0.999"))
    results = auditkit.audit(auditkit.load(bundled_model("honest"), settings=CPU), decided / "images.npz",
                             tmp_path / "run", decided / "maps", policy=policy, fail_on="critical")  # fmt: skip
    assert results.verdict == "measured"  # nothing is asked that is critical
    assert _status(results)["complete"] == "fail"
    assert results.run.fail_on == "critical"
    assert verify(tmp_path / "run").problems == []


def test_a_severity_that_is_none_is_told_before_the_work(planted: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.onnx"
    done = command("audit", nowhere, planted / "images.npz", "-o", tmp_path / "run", "--fail-on", "severe")
    refused(done, "unknown severity 'severe'", "low, medium, high, critical")
    with pytest.raises(auditkit.BadInput, match="unknown severity 'severe'"):
        auditkit.audit(nowhere, planted / "images.npz", tmp_path / "run", fail_on="severe")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("making", [
    ("--method", "mask"), ("--option", "steps=3"), ("--gradient", "differences"), ("--gradient", "none"),
])  # fmt: skip
def test_options_for_making_maps_are_not_for_supplied_ones(
    planted: Path, tmp_path: Path, making: tuple[str, str]
) -> None:
    refused(command(*_words(planted, tmp_path / "run", "--heatmaps", tmp_path, *making)), "--heatmaps", making[0])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("making", "named"), [({"method": "mask"}, "mask"), ({"steps": 3}, "option steps")])
def test_nor_are_they_in_python(planted: Path, tmp_path: Path, making: dict[str, Any], named: str) -> None:
    maps = _bundle(tmp_path / "maps", auditkit.load(bundled_model("honest"), settings=CPU).file.identity, [0])
    with pytest.raises(auditkit.BadInput, match=f"heatmaps or {named}, not both"):
        auditkit.audit(bundled_model("honest"), planted / "images.npz", tmp_path / "run", maps, **making)
    assert not (tmp_path / "run").exists()


def test_what_changed_since_the_baseline_is_shown(planted: Path, decided: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    policy = tmp_path / "policy.toml"
    policy.write_text(NOT_RANDOMISED.replace("min = 0.1", "min = 0.999"))
    maps = ("--heatmaps", decided / "maps")
    done = command(*_words(decided, out, *maps, "--policy", policy, "--baseline", decided / "run"))
    assert done.returncode == 1
    baseline = _results(out).baseline
    assert baseline is not None
    assert CheckChange("complete", "pass", "fail") in baseline.checks
    assert baseline.differences
    assert all(entry.value == 0 for entry in baseline.differences)
    nowhere = _words(planted, tmp_path / "other", "--baseline", tmp_path / "nowhere")
    refused(command(*nowhere), "nowhere")
    assert not (tmp_path / "other").exists()


def test_supplied_maps_cannot_be_randomised(planted: Path, whole: Path, tmp_path: Path) -> None:
    command(*_words(planted, tmp_path / "run", "--heatmaps", whole / "maps"))
    randomisation = _results(tmp_path / "run").randomisation
    assert randomisation is not None
    assert randomisation.not_assessed == NotRandomised("supplied")


# Cut short ------------------------------------------------------------------------------------------------------------


def test_an_interrupt_is_one_line(planted: Path, tmp_path: Path) -> None:
    audit = _words(planted, tmp_path / "run", "--fail-on", "critical")
    words = [sys.executable, "-m", "auditkit", *map(str, audit)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run" / "maps" / "bundle.json").exists() and child.poll() is None:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode in (0, 130)
    assert child.returncode == 0 or said == "auditkit: interrupted.\n"


def test_two_at_once_are_not(planted: Path, whole: Path) -> None:
    with locked(whole):
        refused(command(*_words(planted, whole)), "in use by another process")


def test_a_file_in_the_place_of_the_folder_is_said(planted: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(command(*_words(planted, tmp_path / "file")), "not a folder")


def test_a_damaged_part_is_measured_again(planted: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    part = next((out / "items").glob("*.parquet"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    assert command(*_words(planted, out)).returncode == 3
    assert _timeless(out) == _timeless(whole)


def _turned(bundle: Path) -> None:
    """Every map of a bundle upside down, under the same names."""
    for path in (bundle / "maps").glob("*.npy"):
        np.save(path, np.load(path)[:, ::-1])


@pytest.mark.parametrize("where", ["maps", "randomised/stage-2"])
def test_maps_swapped_between_two_sittings_are_refused(planted: Path, whole: Path, tmp_path: Path, where: str) -> None:
    """As if the run had been cut short before it was finished, and its maps replaced meanwhile."""
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    for name in ("results.json", "report.html", "SHA256SUMS"):
        (out / name).unlink()
    _turned(out / where)
    done = command(*_words(planted, out))
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    assert f"{out / where}/maps/000000.npy was changed since it was made" in line
    assert not (out / "results.json").exists()
    shutil.rmtree(out / where)  # as the sentence says
    assert command(*_words(planted, out)).returncode == 3
    assert _timeless(out) == _timeless(whole)


def test_a_broken_image_among_good_ones_is_counted_and_nothing_is_lost(planted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for number, picture in enumerate(draw(IMAGES, seed=3, tags="random").images):
        Image.fromarray(picture).save(folder / f"{number:02}.png")
    (folder / "02.png").write_bytes(b"no picture")
    words = ("audit", bundled_model("honest"), folder, "--method", "gradient-input", "--policy",
             planted / "policy.toml", "-o", tmp_path / "run", "--device", "cpu")  # fmt: skip
    done = command(*words)
    assert done.returncode == 3  # one image fewer than the policy wants
    results = _results(tmp_path / "run")
    assert [failed.image for failed in results.failed_images] == ["02.png"]
    assert "02.png" in (tmp_path / "run" / "report.html").read_text()
    assert "02.png" in done.stdout
    assert results.verdict == "inconclusive"


@pytest.mark.parametrize("broken", [False, True])
def test_an_audit_opens_each_image_at_most_three_times(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """To explain it, to evaluate it, and for the gallery. Images kept in memory are opened once, broken ones twice."""
    opened: Counter[str] = Counter()
    decode = decoder.prepared

    def counted(path: Path, geometry: Geometry) -> tuple[tuple[int, int], np.ndarray]:
        opened[path.name] += 1
        return decode(path, geometry)

    monkeypatch.setattr(decoder, "prepared", counted)
    folder = tmp_path / "images"
    folder.mkdir()
    for number, picture in enumerate(draw(12, seed=3, tags="random").images):
        Image.fromarray(picture).save(folder / f"{number:02}.png")
    if broken:
        (folder / "05.png").write_bytes(b"no picture")
    model = auditkit.load(bundled_model("honest"), settings=CPU)
    out = tmp_path / "run"
    results = auditkit.audit(model, folder, method="gradient-input", policy=planted / "policy.toml", out=out)
    assert [failed.image for failed in results.failed_images] == ["05.png"] * broken
    assert len(opened) == 12
    assert max(opened.values()) == 1 + broken


# Evidence that is none ------------------------------------------------------------------------------------------------


def _bundle(folder: Path, model: str, labels: list[int]) -> Path:
    """Noise for these labels of every image, said to be of a model."""
    rng = np.random.default_rng(0)
    bundle = auditkit.Bundle(folder, model=model, method="noise")
    for image in range(IMAGES):
        bundle.add([str(image)] * len(labels), labels, rng.standard_normal((len(labels), 64, 64)).astype(np.float32))
    return folder


def test_maps_of_another_model_are_a_finding(planted: Path, tmp_path: Path) -> None:
    maps = _bundle(tmp_path / "maps", str(bundled_model("shortcut")), list(range(10)))
    done = command(*_words(planted, tmp_path / "run", "--heatmaps", maps))
    assert done.returncode == 1, done.stderr
    results = _results(tmp_path / "run")
    assert (results.verdict, _status(results)["identity"]) == ("fail", "fail")
    assert "the maps explain the model" in (results.run.refused_bundles or {})["maps"][0].message
    assert results.metrics == ()
    assert verify(tmp_path / "run").problems == []


def test_maps_that_cannot_be_read_are_a_finding(planted: Path, tmp_path: Path) -> None:
    maps = _bundle(tmp_path / "maps", str(bundled_model("honest")), list(range(10)))
    stack = next((maps / "maps").glob("*.npy"))
    np.save(stack, np.full((10, 64, 64), np.nan, np.float32))
    done = command(*_words(planted, tmp_path / "run", "--heatmaps", maps))
    assert done.returncode == 3, done.stderr
    results = _results(tmp_path / "run")
    assert (results.verdict, _status(results)["maps-usable"]) == ("inconclusive", "error")


def test_colour_pictures_are_refused_before_they_are_maps(tmp_path: Path) -> None:
    picture = np.zeros((8, 8, 3), np.uint8)
    picture[..., 0] = np.arange(64).reshape(8, 8)
    Image.fromarray(picture).save(tmp_path / "0.png")
    (tmp_path / "list.csv").write_text("image,label,heatmap\n0,1,0.png\n")
    done = command("bundle", "import", tmp_path / "list.csv", "-o", tmp_path / "maps", "--frame", "model-input")
    assert done.returncode == 2
    assert "colour picture" in done.stderr


@pytest.mark.parametrize("kind", ["stack", "png"])
def test_colour_pictures_in_a_bundle_are_named(kind: str, planted: Path, tmp_path: Path) -> None:
    maps = _bundle(tmp_path / "maps", str(bundled_model("honest")), list(range(10)))
    stack = next((maps / "maps").glob("*.npy"))
    jet = np.random.default_rng(0).integers(0, 256, (10, 64, 64, 3), np.uint8)
    if kind == "stack":
        np.save(stack, jet)
    else:
        with stack.open("wb") as stream:
            Image.fromarray(jet[0]).save(stream, "PNG")
    done = command(*_words(planted, tmp_path / "run", "--heatmaps", maps))
    assert done.returncode == 1, done.stderr
    results = _results(tmp_path / "run")
    assert (results.verdict, _status(results)["cheat-colour-pictures"]) == ("fail", "fail")
    assert (results.run.refused_bundles or {})["maps"][0].kind == "colour-picture"


def test_a_baseline_that_will_not_do_is_refused_before_the_work(planted: Path, whole: Path, tmp_path: Path) -> None:
    done = command(*_words(planted, whole, "--baseline", whole))
    assert (done.returncode, "cannot be its own baseline" in done.stderr) == (2, True)
    (tmp_path / "other").mkdir()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(tmp_path / "other" / "black.png")
    words = _words(planted, tmp_path / "run", "--baseline", whole)
    done = command(*(tmp_path / "other" if word == planted / "images.npz" else word for word in words))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "has none of these images, by their names" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_baseline_whose_images_have_other_contents_loses_no_work(planted: Path, whole: Path, tmp_path: Path) -> None:
    drawn = draw(IMAGES, seed=4, tags="random")
    np.savez(tmp_path / "images.npz", images=drawn.images, labels=drawn.labels, masks=drawn.objects)
    (tmp_path / "policy.toml").write_text(POLICY)
    done = command(*_words(tmp_path, tmp_path / "run", "--baseline", whole))
    (line,) = done.stderr.splitlines()
    assert (done.returncode, "is finished in" in line) == (2, True), done
    assert _results(tmp_path / "run").verdict == _results(whole).verdict
    assert _results(tmp_path / "run").baseline is None
    assert verify(tmp_path / "run").problems == []


def test_leaving_out_labels_leaves_the_verdict_open(planted: Path, tmp_path: Path) -> None:
    maps = _bundle(tmp_path / "maps", str(bundled_model("honest")), [0])
    done = command(*_words(planted, tmp_path / "run", "--heatmaps", maps))
    assert done.returncode in (1, 3)
    assert _status(_results(tmp_path / "run"))["complete"] == "not assessed"
