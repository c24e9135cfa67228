"""Parts of a job on several machines: what --shard computes, plans and refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import auditkit
from auditkit.arrays import Array
from auditkit.data.dataset import Dataset
from auditkit.methods.registry import METHODS
from auditkit.metrics.curves import parse_steps
from auditkit.model.classifier import OnnxClassifier, Opening
from auditkit.model.device import CPU, CUDA
from auditkit.model.masks import OnnxMasked, masked
from auditkit.runs.evaluate import evaluate, evaluate_shard, open_bundles
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.executor import Shard
from auditkit.runs.explain import Explanation, share_of
from auditkit.runs.folder.merge import merge
from auditkit.runs.folder.store import Store
from auditkit.verdict.verify import Originals, verify
from tests.support import onnx_models
from tests.support.commands import SALT, refused
from tests.support.commands import auditkit as command

IMAGES = 40  # units of 16, 16 and 8
POLICY = """schema_version = 1
name = "random infill"
description = "of a test"
[evaluation]
labels = "top1"
infill = "random"
steps = 2
minimum_images = 3
"""
SHARED = "0123456789abcdef" * 2  # the salt of shards that belong together
Files = tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A model, images, and maps of them."""
    folder = tmp_path_factory.mktemp("files")
    model = onnx_models.save(onnx_models.convnet(size=8, classes=4), folder)
    _draw(folder / "images.npz", IMAGES, seed=0)
    done = command("explain", model, folder / "images.npz", "-o", folder / "maps", "--method", "edges", *OPTIONS)
    assert done.returncode == 0, done
    return model, folder / "images.npz", folder / "maps"


OPTIONS = ("--preset", "unit", "--device", "cpu", "--quiet")


def _draw(path: Path, count: int, seed: int) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    np.savez(path, images=images)


def _words(verb: str, files: Files) -> list[object]:
    model, images, maps = files
    of_verb = {
        "explain": ("--method", "edges", "--labels", "top1"), "evaluate": ("--heatmaps", maps, "--steps", "2"),
        "audit": ("--heatmaps", maps, "--policy", "explore"),
    }  # fmt: skip
    return [verb, model, images, *of_verb[verb], "--preset", "unit", "--device", "cpu"]


@pytest.mark.parametrize(("verb", "what"), [
    ("explain", "16 of 40 images, maps by edges"),
    ("evaluate", "16 of 40 images, maps"),
    ("audit", "16 of 40 images, supplied maps, policy explore"),
])  # fmt: skip
def test_a_dry_run_of_a_shard_plans_its_share_and_does_nothing(
    files: Files, tmp_path: Path, verb: str, what: str
) -> None:
    done = command(*_words(verb, files), "-o", tmp_path / "out", "--shard", "2/3", "--dry-run", "--json")
    assert done.returncode == 0, done
    plan = json.loads(done.stdout)
    assert (plan["plan"], plan["images"], plan["shorter"]) == (what, 16, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["explain", "evaluate", "audit"])
@pytest.mark.parametrize(("shard", "words"), [
    ("0/0", "is not a shard such as 2/8"), ("", "is not a shard such as 2/8"),
    ("9/9", "more shards than there are units of work, 3"),
])  # fmt: skip
def test_a_shard_that_makes_no_sense_is_refused_before_anything_is_written(
    files: Files, tmp_path: Path, verb: str, shard: str, words: str
) -> None:
    of_audits = ("--salt", SALT, "--commit-to", tmp_path / "commit.json") if verb == "audit" else ()
    refused(command(*_words(verb, files), "-o", tmp_path / "out", "--shard", shard, *of_audits, "--quiet"), words)
    assert list(tmp_path.iterdir()) == []


def test_an_audit_that_cannot_be_divided_is_refused_before_the_model_is_opened(files: Files, tmp_path: Path) -> None:
    words = ("audit", tmp_path / "no model", files[1], "--method", "edges", "--commit-to", tmp_path / "commit.json")
    refused(command(*words, "-o", tmp_path / "out", "--shard", "1/2"), "make the maps with explain --shard")
    assert list(tmp_path.iterdir()) == []


def test_a_shard_of_an_audit_needs_the_salt_of_the_others(files: Files, tmp_path: Path) -> None:
    shard = command(*_words("audit", files), "-o", tmp_path / "out", "--shard", "1/2")
    refused(shard, "give each of them the same salt, such as --salt ")
    assert list(tmp_path.iterdir()) == []
    salt = shard.stderr.removesuffix(".\n").rpartition(" ")[2]
    done = command(*_words("audit", files), "-o", tmp_path / "out", "--shard", "1/2", "--salt", salt)
    assert done.returncode == 0, done


def test_a_dry_run_writes_no_commitment(files: Files, tmp_path: Path) -> None:
    words = ("-o", tmp_path / "out", "--commit-to", tmp_path / "commit.json", "--dry-run", "--quiet")
    assert command(*_words("audit", files), *words).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_shards_of_an_audit_with_a_pool_make_up_its_run(files: Files, tmp_path: Path) -> None:
    """The last command finds every unit, and random infill was drawn from the pool."""
    model, images, maps = files
    _draw(tmp_path / "pool.npz", 5, seed=1)
    (tmp_path / "policy.toml").write_text(POLICY)
    words = ("audit", model, images, "--heatmaps", maps, "--policy", tmp_path / "policy.toml", "--pool",
             tmp_path / "pool.npz", *OPTIONS)  # fmt: skip
    shards = [tmp_path / "1", tmp_path / "2"]
    for number, shard in enumerate(shards, start=1):
        done = command(*words, "-o", shard, "--shard", f"{number}/2", "--salt", SHARED)
        assert done.returncode == 0, done
    assert command("merge", *shards, "-o", tmp_path / "run").returncode == 0
    parts = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "items").iterdir()}
    assert len(parts) == 3
    assert command(*words, "-o", tmp_path / "run").returncode == 0
    assert parts == {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "items").iterdir()}
    assert command(*words, "-o", tmp_path / "alone", "--salt", SHARED).returncode == 0
    runs = [Store(tmp_path / name).results() for name in ("run", "alone")]
    assert runs[0].metrics == runs[1].metrics
    assert {run.run.salt for run in runs} == {SHARED}
    originals = Originals(model, images, {"maps": maps}, tmp_path / "pool.npz", opening=Opening(preset="unit"))
    assert verify(tmp_path / "run", originals).answer == "holds"
    other = command(*words, "-o", tmp_path / "other", "--shard", "2/2", "--salt", SALT)
    assert other.returncode == 0, other
    refused(command("merge", shards[0], tmp_path / "other", "-o", tmp_path / "merged"), "is a shard of another run")
    assert runs[0].run.pool == Dataset.open(tmp_path / "pool.npz", 4).digest()


def _lower(run: Callable[..., object]) -> Callable[..., object]:
    """Masked rows have lower probabilities in tf32."""

    def wrong(self: OnnxMasked, rows: Array, banks: object) -> object:
        factor = np.float32(0.95 if self.session.settings.precision == "tf32" else 1.0)
        for part, probabilities in run(self, rows, banks):  # type: ignore[attr-defined]
            yield part, probabilities * factor

    return wrong


def test_a_shard_goes_to_strict_float32_where_the_whole_does(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that its units are those of the last command, which would refuse them or measure them again otherwise."""
    model, images, maps = files
    monkeypatch.setattr(OnnxMasked, "run", _lower(OnnxMasked.run))
    dataset, bundles = Dataset.open(images, 4), open_bundles([maps])
    settings = Evaluation(labels="top1", steps=parse_steps("2"), saliency="none")

    def opened() -> OnnxClassifier:
        """A model that says it runs in TF32, which the processor does not have."""
        classifier = auditkit.load(model, preset="unit", settings=auditkit.Settings(device="cpu", precision="auto"))
        over = masked(classifier)
        classifier.settings = over.session.settings = replace(classifier.settings, precision="tf32")
        return classifier

    for number in (1, 2):
        assert evaluate_shard(opened(), dataset, bundles, settings, tmp_path / str(number), Shard(number, 2))[1] == 3
    assert Store(tmp_path / "1").settings()["environment"]["precision"] == "strict"
    merge([tmp_path / "1", tmp_path / "2"], tmp_path / "run")
    parts = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "items").iterdir()}
    summary = evaluate(opened(), dataset, bundles, settings, tmp_path / "run")
    assert "strict float32 is used" in str(summary.runtime.note)
    assert parts == {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "items").iterdir()}


@pytest.mark.parametrize("method", ["mask", "gradient", "occlusion"])
def test_neither_device_nor_engine_moves_the_boundaries_of_shards(files: Files, method: str) -> None:
    model = auditkit.load(files[0], preset="unit", settings=auditkit.Settings(device="cpu"))
    dataset = Dataset.open(files[1], 4).select(range(IMAGES))
    shares = []
    for device, engine in ((CPU, None), (CPU, object()), (CUDA, None), (CUDA, object())):
        model.device = device
        model.use_engine(engine)
        shares.append([share_of(model, dataset, Explanation(method), Shard(number, 3)) for number in (1, 2, 3)])
    assert shares.count(shares[0]) == len(shares)
    assert [position for share in shares[0] for position in share] == list(range(IMAGES))


def test_no_boundary_of_shards_divides_images_that_a_cpu_explains_together(files: Files) -> None:
    """So that maps made on CPUs are the same in shards, to the last digit."""
    model = auditkit.load(files[0], preset="unit", settings=auditkit.Settings(device="cpu"))
    for method in METHODS.values():
        assert method.indivisible(model) == method.together(model)
