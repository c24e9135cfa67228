"""An audit's salt: nobody knows beforehand which images it takes, or the noise that maps are compared with."""

import hashlib
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import auditkit
from auditkit.arrays import Array
from auditkit.data.dataset import Dataset
from auditkit.evidence.salt import draw_salt, seed_of
from auditkit.model.classifier import Opening
from auditkit.runs.evaluate import evaluate
from auditkit.runs.folder import checksums
from auditkit.runs.folder.results import Results
from auditkit.runs.folder.store import RUN, digest
from auditkit.verdict import audit as auditing
from auditkit.verdict.verify import Originals, verify
from tests.support import onnx_models
from tests.support.commands import SALT, refused
from tests.support.commands import auditkit as command

IMAGES, TAKEN = 30, 6
OTHER = "c3" * 16
POLICY = """
schema_version = 1
name = "small"
description = "for tests"

[evaluation]
labels = "top2"
infill = "random"
steps = "4"
"""


@pytest.fixture(scope="module")
def pictures() -> list[Array]:
    return [*np.random.default_rng(3).integers(0, 256, (IMAGES, 8, 8, 3), dtype=np.uint8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, pictures: list[Array]) -> Path:
    """A model, a policy, and images with plain names."""
    folder = tmp_path_factory.mktemp("salt")
    onnx_models.save(onnx_models.convnet(size=8, classes=4), folder)
    (folder / "small.toml").write_text(POLICY)
    _write(folder / "images", pictures, lambda number: f"{number:03}.png")
    return folder


@pytest.fixture
def _drawn_salts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let audits draw their salts, as they do outside of the tests."""
    monkeypatch.setattr("auditkit.evidence.salt.draw_salt", draw_salt)


def _write(folder: Path, pictures: list[Array], name: Callable[[int], str]) -> None:
    folder.mkdir()
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / name(number))


def _audit(folder: Path, out: Path, images: str = "images", **options: Any) -> Results:
    model = auditkit.load(folder / "model.onnx", preset="unit", settings=auditkit.Settings(device="cpu"))
    options = {"limit": TAKEN, "method": "gradient", "policy": folder / "small.toml"} | options
    return auditkit.audit(model, folder / images, out, **options)


def _taken(folder: Path, run: Path, images: str = "images") -> list[int]:
    """The numbers that the audited images have among the pictures, in the order in which they were taken."""
    numbers = {path.read_bytes(): int(path.stem) for path in (folder / "images").iterdir()}
    names = list[str]()
    for line in (run / "maps" / "explained.jsonl").read_text().splitlines():
        names += json.loads(line)["images"]
    return [numbers[(folder / images / name).read_bytes()] for name in names]


def _timeless(run: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The results without their times, and the content of every part."""
    plain = json.loads((run / "results.json").read_text())
    del plain["run"]["started"], plain["run"]["ended"]
    return plain, {path.name: path.read_bytes() for path in (run / "items").iterdir()}


def test_names_that_would_be_first_under_a_known_seed_do_not_choose_the_images(
    folder: Path, tmp_path: Path, pictures: list[Array]
) -> None:
    """Names are searched whose SHA256 with the seed is small for the wanted pictures, and large for the others."""

    def name(number: int) -> str:
        for attempt in count():
            found = f"{number}-{attempt}.png"
            first = hashlib.sha256(f"{seed_of(SALT)} {found}".encode()).digest()[0]
            if (first < 16) == (number < TAKEN) and (first < 16 or first > 64):
                return found
        raise AssertionError

    _write(tmp_path / "ground", pictures, name)
    plain, ground = Dataset.open(folder / "images", 4), Dataset.open(tmp_path / "ground", 4)
    for salt in (SALT, OTHER, "0" * 32):
        names = plain.sample(TAKEN, seed_of(salt)).ids
        taken = [int(image.removesuffix(".png")) for image in names]
        names = ground.sample(TAKEN, seed_of(salt)).ids
        assert [int(image.partition("-")[0]) for image in names] == taken
        assert set(taken) != set(range(TAKEN))


def test_renamed_images_are_taken_in_the_same_order_and_have_the_same_figures(
    folder: Path, tmp_path: Path, pictures: list[Array]
) -> None:
    """The controls' noise, the order of their ties and the pictures that hidden pixels are replaced with included."""
    _write(folder / "renamed", pictures, lambda number: f"{'xyz'[number % 3]}{IMAGES - number}.png")
    plain = _audit(folder, tmp_path / "plain", method="edges")
    renamed = _audit(folder, tmp_path / "renamed", "renamed", method="edges")
    assert _taken(folder, tmp_path / "plain") == _taken(folder, tmp_path / "renamed", "renamed")
    assert len(plain.controls) > 10
    for before, after in zip([*plain.controls, *plain.metrics], [*renamed.controls, *renamed.metrics], strict=True):
        assert (before.name, before.bundle) == (after.name, after.bundle)
        assert before.value == pytest.approx(after.value, rel=1e-12, nan_ok=True)


@pytest.mark.usefixtures("_drawn_salts")
def test_every_audit_draws_its_own_salt_and_repeats_one_that_it_is_given(folder: Path, tmp_path: Path) -> None:
    first, second = (_audit(folder, tmp_path / name) for name in ("first", "second"))
    assert first.run.salt != second.run.salt
    assert _taken(folder, tmp_path / "first") != _taken(folder, tmp_path / "second")
    _audit(folder, tmp_path / "third", salt=first.run.salt)
    assert _timeless(tmp_path / "first") == _timeless(tmp_path / "third")
    assert first.settings.seed == seed_of(str(first.run.salt))
    assert str(first.run.salt) in (tmp_path / "first" / "report.html").read_text()


@pytest.mark.usefixtures("_drawn_salts")
def test_a_resumed_audit_keeps_its_salt(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_arguments: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(auditing, "evaluate", killed)
    with pytest.raises(KeyboardInterrupt):
        _audit(folder, tmp_path / "run")
    salt = json.loads((tmp_path / "run" / RUN).read_text())["settings"]["salt"]
    monkeypatch.setattr(auditing, "evaluate", evaluate)
    assert _audit(folder, tmp_path / "run").run.salt == salt
    _audit(folder, tmp_path / "undisturbed", salt=salt)
    assert _timeless(tmp_path / "run") == _timeless(tmp_path / "undisturbed")
    originals = Originals(folder / "model.onnx", folder / "images", opening=Opening(preset="unit"))
    assert verify(tmp_path / "run", originals).answer == "holds"


def test_the_folder_of_an_audit_takes_no_other_salt(folder: Path, tmp_path: Path) -> None:
    words = ("audit", folder / "model.onnx", folder / "images", "--policy", "explore", "--method", "edges", "--preset",
             "unit", "--limit", TAKEN, "-o", tmp_path / "run", "--quiet")  # fmt: skip
    assert command(*words).returncode == 0
    refused(command(*words, "--salt", OTHER), f'settings.salt: "{SALT}" (run) / "{OTHER}" (now)')
    refused(command(*words, "--salt", "pepper"), "'pepper' is not the salt of an audit: give 32 hexadecimal digits")
    done = command(*words, "--salt", SALT.upper())
    assert done.returncode == 0, done


def test_a_plan_draws_no_salt(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditkit.evidence.salt.draw_salt", None)
    done = command("audit", folder / "model.onnx", folder / "images", "--policy", "explore", "--method", "edges",
                   "--preset", "unit", "-o", tmp_path / "run", "--dry-run")  # fmt: skip
    assert done.returncode == 0, done
    assert not (tmp_path / "run").exists()


def _with_run_json(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    plain = json.loads((run / RUN).read_text())
    change(plain["settings"])
    plain["settings_digest"] = digest(plain["settings"])
    (run / RUN).write_text(json.dumps(plain, sort_keys=True, indent=2) + "\n")


def _with_results(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    plain = json.loads((run / "results.json").read_text())
    change(plain)
    (run / "results.json").write_text(json.dumps(plain, sort_keys=True, indent=2) + "\n")


def test_a_changed_salt_does_not_hold(folder: Path, tmp_path: Path) -> None:
    """Neither in one file, nor in both, nor with the seed that follows from it: rows are named by a digest of that."""
    run = tmp_path / "run"
    _audit(folder, run)
    originals = Originals(folder / "model.onnx", folder / "images", opening=Opening(preset="unit"))
    assert verify(run, originals).answer == "holds"

    _with_results(run, lambda plain: plain["run"].update(salt=OTHER))
    checksums.write(run)
    problems = verify(run).problems
    assert f"run.json: salt is '{SALT}', expected '{OTHER}'" in problems
    wrong = f"results.json: settings.seed is {seed_of(SALT)}, which does not follow from run.salt, {OTHER}"
    assert wrong in problems

    _with_run_json(run, lambda settings: settings.update(salt=OTHER))
    checksums.write(run)
    assert verify(run).problems[0] == wrong

    _with_results(run, lambda plain: plain["settings"].update(seed=seed_of(OTHER)))
    checksums.write(run)
    assert any("belongs to no unit of the run" in problem for problem in verify(run).problems)

    _with_results(run, lambda plain: plain["run"].pop("salt"))
    _with_run_json(run, lambda settings: settings.update(salt=None))
    checksums.write(run)
    assert any("run.salt is missing" in problem for problem in verify(run).problems)
