"""Supplied maps are made anew by the method that they name: honest ones come out again, others do not."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.graph import mask_objective
from auditkit.graph.mask_objective import WEIGHTS
from auditkit.methods.registry import METHODS
from auditkit.model.classifier import AnyClassifier
from auditkit.runs.explain import Explanation
from auditkit.runs.explanation.record import RECORD
from auditkit.runs.folder.figures import Reproduction
from auditkit.runs.folder.results import Results
from auditkit.runs.folder.store import Store
from auditkit.verdict import reproduce
from auditkit.verdict.decision import judge
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify import Originals, Sampling, Verification, verify
from auditkit.verdict.verify.maps import _compared
from tests.support import onnx_models
from tests.support.forgeries import Forger

COUNT, CLASSES = 20, 3
STEPS = 30  # of learned masks
CPU = auditkit.Settings(device="cpu")
POLICY = """schema_version = 1
name = "small"
reproduce = true
[evaluation]
steps = 4
labels = "top2"
minimum_images = 4
[[check]]
id = "insertion"
metric = "insertion"
min = 0.001
severity = "high"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models, images and a policy."""
    folder = tmp_path_factory.mktemp("made")
    for number, name in enumerate(("model", "other")):
        onnx_models.save(onnx_models.convnet(size=16, classes=CLASSES, seed=number), folder, f"{name}.onnx")
        card = 'schema_version = 1\n[preprocessing]\npreset = "unit"\nresize = "none"\n'
        (folder / f"{name}.toml").write_text(card)
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 16, 16, 3), dtype=np.uint8)
    np.savez(folder / "images.npz", images=images)
    (folder / "policy.toml").write_text(POLICY)
    return folder


def _explained(made: Path, out: Path, method: str, model: str = "model", **options: object) -> HeatmapSet:
    opened = auditkit.load(made / f"{model}.onnx", settings=CPU)
    return auditkit.explain(opened, made / "images.npz", out, method, labels="top2", **options)


def _header(bundle: Path, **changes: object) -> None:
    """Change what a bundle says of itself; the record of its making goes."""
    header = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps({**header, **changes}))
    (bundle / RECORD).unlink(missing_ok=True)


def _audited(made: Path, maps: Path, run: Path) -> Results:
    opened = auditkit.load(made / "model.onnx", settings=CPU)
    return auditkit.audit(opened, made / "images.npz", run, heatmaps={"maps": maps}, policy=made / "policy.toml")


def _verified(made: Path, maps: Path, run: Path) -> Verification:
    where = Originals(made / "model.onnx", made / "images.npz", {"maps": maps}, device="cpu")
    return verify(run, where, Sampling(seed=0))


def _one(results: Results) -> Reproduction:
    (entry,) = results.reproductions
    return entry


def _finding(results: Results) -> list[str]:
    return [check.status for check in results.checks if check.id == "not-reproduced" and check.counts]


@pytest.mark.parametrize("method", ["gradient-input", "occlusion", "rise"])
def test_honest_maps_are_made_again(method: str, made: Path, tmp_path: Path) -> None:
    options: Mapping[str, int] = {"passes": 64} if method == "rise" else {}
    maps = _explained(made, tmp_path / "maps", method, seed=3, **options)
    results = _audited(made, maps.path, tmp_path / "run")
    entry = _one(results)
    assert (entry.reproduced, entry.maps) == (True, 2 * reproduce.SIZES[0])
    assert entry.least == pytest.approx(1)
    assert f"The maps of maps are those of this model and {maps.header.method}: 10 recomputed maps have" in entry.text
    assert _finding(results) == []
    assert entry.text in (tmp_path / "run" / "report.html").read_text()
    found = _verified(made, maps.path, tmp_path / "run")
    assert found.answer == "holds", (found.problems, found.unchecked)


def test_maps_of_another_method_are_not_those_that_are_named(made: Path, tmp_path: Path) -> None:
    maps = _explained(made, tmp_path / "maps", "gradient")
    _header(maps.path, method="occlusion(size=0.25, stride=0.0625, seed=0)")
    results = _audited(made, maps.path, tmp_path / "run")
    assert _one(results).reproduced is False
    assert "The maps of maps are not those of this model and occlusion(" in _one(results).text
    assert (results.verdict, _finding(results)) == ("fail", ["fail"])
    assert _one(results).text in results.verdict_reason
    assert _verified(made, maps.path, tmp_path / "run").answer == "holds"


@pytest.fixture(scope="module")
def not_its_own(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with another model's maps, which name this model, and their audit."""
    folder = tmp_path_factory.mktemp("other")
    maps = _explained(made, folder / "maps", "gradient-input", model="other")
    _header(maps.path, model=auditkit.load(made / "model.onnx", settings=CPU).identity)
    _audited(made, maps.path, folder / "run")
    return folder


def test_maps_of_another_model_that_name_this_one_are_not_its_own(not_its_own: Path, made: Path) -> None:
    results = Store(not_its_own / "run").results()
    assert (_one(results).reproduced, _finding(results)) == (False, ["fail"])
    assert _verified(made, not_its_own / "maps", not_its_own / "run").answer == "holds"


@pytest.fixture(scope="module")
def audited(made: Path) -> Results:
    """An audit of honest maps, which lie beside it."""
    return _audited(made, _explained(made, made / "maps", "differences", most_passes=32).path, made / "run")


def _tried(made: Path, audited: Results, model: AnyClassifier, method: str) -> Reproduction:
    """What becomes of the maps of the audit under the name of another method."""
    maps = auditkit.open_bundle(made / "maps")
    maps = replace(maps, header=replace(maps.header, method=method))
    images = Dataset.open(made / "images.npz", CLASSES)
    (entry,) = reproduce.reproduce(model, images, {"maps": maps}, None, audited)
    return entry


@pytest.mark.parametrize(
    ("method", "obstacle"),
    [
        ("Grad-CAM layer4", "unknown-method"), ("", "no-method"), ("rise", "options"),
        ("rise(passes=64, cells=7, keep=0.5)", "options"), ("rise(passes=64, seed=0)", "options"),
        ("rise(passes=64, cells=7, keep=0.5, more=1, seed=0)", "options"), ("masker(path=net.onnx, seed=0)", "file"),
        ("rise(passes=9999999, cells=7, keep=0.5, seed=0)", "options"),
        ("rise(passes=20000, cells=7, keep=0.5, seed=0)", "too-costly"),
        ("rise(passes=64, cells=99, keep=0.5, seed=0)", "too-costly"),
    ],
)  # fmt: skip
def test_what_a_bundle_does_not_state_cannot_be_made(method: str, obstacle: str, made: Path, audited: Results) -> None:
    entry = _tried(made, audited, auditkit.load(made / "model.onnx", settings=CPU), method)
    assert (entry.obstacle, entry.reproduced) == (obstacle, None)
    assert entry.text.startswith("The maps of maps cannot be reproduced here: ")
    judged = judge(parse_policy(POLICY, "policy"), replace(audited, reproductions=(entry,)), None, date(2026, 1, 1))
    assert _finding(judged) == []


def test_a_costly_method_is_tried_on_fewer_images(made: Path, audited: Results) -> None:
    model = auditkit.load(made / "model.onnx", settings=CPU)
    entry = _tried(made, audited, model, "rise(passes=4000, cells=7, keep=0.5, seed=0)")
    assert (entry.maps, entry.reproduced) == (4, False)


def test_a_function_has_no_gradient(made: Path, audited: Results) -> None:
    function = auditkit.load(lambda rows: rows.mean(axis=(2, 3)), size=(16, 16), preset="unit")
    for method in ("gradient", "mask"):
        assert _tried(made, audited, function, Explanation(method).name()).obstacle == "no-gradient"


def test_maps_that_were_made_of_other_pictures(made: Path, audited: Results, tmp_path: Path) -> None:
    assert _one(audited).reproduced, _one(audited).text
    shutil.copytree(made / "maps", tmp_path / "maps")
    images = Dataset.from_array(np.zeros((COUNT, 16, 16, 3), np.uint8))
    model, maps = auditkit.load(made / "model.onnx", settings=CPU), auditkit.open_bundle(tmp_path / "maps")
    (entry,) = reproduce.reproduce(model, images, {"maps": maps}, None, audited)
    assert (entry.obstacle, "has other content here" in entry.text) == ("other-inputs", True)
    (tmp_path / "maps" / RECORD).unlink()
    (entry,) = reproduce.reproduce(model, Dataset.open(made / "images.npz", CLASSES), {"maps": maps}, None, audited)
    assert entry.obstacle == "other-inputs"


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"masker"}))  # whose name has a file's digest
def test_a_name_gives_the_explanation_back(name: str) -> None:
    explanation = Explanation(name, seed=7)
    assert Explanation.parse(explanation.name()).name() == explanation.name()


def _made_to_agree(plain: dict[str, Any]) -> None:
    plain["reproductions"][0].update(least=1.0, median=1.0)


def _left_out(plain: dict[str, Any]) -> None:
    plain["reproductions"] = []


def _said_to_be_unknown(plain: dict[str, Any]) -> None:
    plain["reproductions"] = [{"bundle": "maps", "method": "mine", "obstacle": "unknown-method", "detail": "mine"}]


@pytest.mark.parametrize("change", [_made_to_agree, _left_out, _said_to_be_unknown])
def test_another_answer_than_the_maps_give_is_found(
    change: Callable[[dict[str, Any]], None], not_its_own: Path, made: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(not_its_own / "run", tmp_path / "run"))
    Forger(run).results(change).judged()
    assert "not-reproduced" not in (run / "results.json").read_text()
    found = _verified(made, not_its_own / "maps", run)
    assert found.answer == "does not hold"
    assert any("reproduction" in problem for problem in found.problems)


def test_an_edited_sentence_is_found(not_its_own: Path, made: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(not_its_own / "run", tmp_path / "run"))
    Forger(run).text("report.html", lambda text: text.replace("are not those of this model", "are those of this model"))
    assert _verified(made, not_its_own / "maps", run).answer == "does not hold"


def test_a_suppression_can_name_it(not_its_own: Path) -> None:
    text = f'{POLICY}[[suppression]]\ncheck = "not-reproduced"\nreason = "a"\napprover = "b"\nexpires = 2999-01-01\n'
    judged = judge(parse_policy(text, "policy"), Store(not_its_own / "run").results(), None, date(2026, 1, 1))
    assert _finding(judged) == ["suppressed"]


def _other_digits(monkeypatch: pytest.MonkeyPatch, noise: float) -> None:
    """Let masks start from other weights every time, as if a GPU's last digits had been magnified by many steps."""
    initial_state, rng = mask_objective.initial_state, np.random.default_rng(0)

    def moved(*arguments: Any) -> dict[str, np.ndarray]:
        state = initial_state(*arguments)
        return state | {WEIGHTS: state[WEIGHTS] + noise * rng.standard_normal(state[WEIGHTS].shape, np.float32)}

    monkeypatch.setattr(mask_objective, "initial_state", moved)


def _masks(made: Path, out: Path, model: str = "model") -> HeatmapSet:
    return _explained(made, out, "mask", model, steps=STEPS)


def test_learned_masks_need_only_be_as_alike_as_the_method_repeats_itself(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _other_digits(monkeypatch, 0.014)
    maps = _masks(made, tmp_path / "maps")
    results = _audited(made, maps.path, tmp_path / "run")
    entry = _one(results)
    assert entry.median is not None, entry
    assert entry.limit is not None
    assert entry.limit < entry.median < reproduce.LEARNED_LIMIT
    assert _finding(results) == []
    assert _verified(made, maps.path, tmp_path / "run").answer == "holds"


def test_a_method_that_does_not_repeat_itself_proves_nothing(
    made: Path, audited: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _other_digits(monkeypatch, 1.0)
    maps = _masks(made, tmp_path / "maps")
    model, images = auditkit.load(made / "model.onnx", settings=CPU), Dataset.open(made / "images.npz", CLASSES)
    (entry,) = reproduce.reproduce(model, images, {"maps": maps}, None, audited)
    assert (entry.obstacle, entry.reproduced) == ("unsteady", None)


def test_learned_masks_of_another_model_are_told_apart(made: Path, tmp_path: Path) -> None:
    maps = _masks(made, tmp_path / "maps", "other")
    _header(maps.path, model=auditkit.load(made / "model.onnx", settings=CPU).identity)
    shutil.copy(_masks(made, tmp_path / "own").path / RECORD, maps.path)
    results = _audited(made, maps.path, tmp_path / "run")
    assert _one(results).reproduced is False
    assert (results.verdict, _finding(results)) == ("fail", ["fail"])


def test_masks_that_the_audit_made_are_verified_on_another_device(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = auditkit.load(made / "model.onnx", settings=CPU)
    auditkit.audit(opened, made / "images.npz", tmp_path / "run", method="mask", policy=made / "policy.toml",
                   steps=STEPS)  # fmt: skip
    where = Originals(made / "model.onnx", made / "images.npz", device="cpu")
    found = verify(tmp_path / "run", where, Sampling(seed=0))
    assert found.answer == "holds", found.problems
    assert any("least rank correlation 1.0000" in check.about for check in found.checks)
    _other_digits(monkeypatch, 0.014)
    found = verify(tmp_path / "run", where, Sampling(seed=0))
    assert found.answer == "holds", found.problems
    assert any("since the method's own maps have" in check.about for check in found.checks)


def test_how_alike_recreated_maps_have_to_be() -> None:
    learned, other, values = Explanation("mask"), Explanation("gradient"), {"one": 0.8, "two": 0.7, "three": 0.9}
    assert len(_compared(values, other, lambda: pytest.fail("made again"))[1]) == 3
    assert _compared({"one": 0.995}, learned, lambda: pytest.fail("made again"))[1] == []
    exchanged = {"one": 1.0, "two": 1.0, "three": 0.8}
    (problem,) = _compared(exchanged, learned, lambda: pytest.fail("made again"))[1]
    assert problem.startswith("the map three is not the one")
    assert _compared(values, learned, lambda: [0.85, 0.6, 0.89])[1] == []
    (problem,) = _compared(values, learned, lambda: [0.97, 0.98, 0.99])[1]
    assert "have a median rank correlation of 0.800; at least 0.88 is expected" in problem


def test_of_learned_masks_the_median_decides() -> None:
    entry = Reproduction("maps", "mask()", None, "", 10, 0.96, 0.3, reproduce.LEARNED_LIMIT, "median")
    assert entry.reproduced
    assert entry.text.endswith("the least is 0.300; the median must reach 0.9.")
    assert replace(entry, decides="least").reproduced is False
