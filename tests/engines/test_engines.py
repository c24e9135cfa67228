"""Engines: the same results with any number of processes, in shards, and when processes are killed."""

import contextlib
import filecmp
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit as auditkit_package
from auditkit.data.dataset import Dataset
from auditkit.demo.draw import draw
from auditkit.demo.planted import bundled_model
from auditkit.engines import local, pool, start
from auditkit.engines.start import Workers, threads_that_fit
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.metrics.curves import parse_steps
from auditkit.model.classifier import OnnxClassifier, load
from auditkit.model.device import CUDA, device_name
from auditkit.model.doctor import versions
from auditkit.runs.evaluate import evaluate, open_bundles
from auditkit.runs.evaluation import runtime_check
from auditkit.runs.evaluation.plan import plan_evaluation
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.explain import Explanation, explain
from auditkit.runs.folder.checksums import SUMS
from auditkit.runs.folder.sittings import SITTINGS
from auditkit.runs.folder.store import Store
from tests.support.commands import auditkit, refused

pytestmark = pytest.mark.workers

IMAGES, LABELS = 40, "top2"
SETTINGS = Evaluation(labels=LABELS, infill=("gray",), deletion=False, tie_orders=0, steps=parse_steps("6"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    drawn = draw(IMAGES, seed=4, tags="random")
    path = tmp_path_factory.mktemp("images") / "images.npz"
    np.savez(path, images=drawn.images, labels=drawn.labels)
    return path


@pytest.fixture(scope="module")
def alone(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes: maps and a run."""
    out = tmp_path_factory.mktemp("alone")
    _work(images, out, Workers())
    return out


def _work(images: Path, out: Path, workers: Workers) -> OnnxClassifier:
    model = load(bundled_model("honest"))
    assert isinstance(model, OnnxClassifier)
    workers.serve(model)
    dataset = Dataset.open(images, model.signature.classes)
    out.mkdir(exist_ok=True)
    with contextlib.chdir(out):  # results name their bundles by path
        explain(model, dataset, Explanation("gradient", LABELS), Path("maps"))
        evaluate(model, dataset, open_bundles([Path("maps")]), SETTINGS, Path("run"))
    return model


def _closed(model: OnnxClassifier) -> None:
    engine = model.engine
    assert isinstance(engine, pool.Pool)
    engine.close()


def assert_same(first: Path, second: Path) -> None:
    """The same files with the same bytes, but for locks and the log of who computed what."""
    names, others = _names(first), _names(second)
    assert names == others
    assert filecmp.cmpfiles(first, second, names, shallow=False) == (names, [], [])
    for sums in first.rglob(SUMS):
        lines, other_lines = (_without_log(path) for path in (sums, second / sums.relative_to(first)))
        assert lines == other_lines


def _names(folder: Path) -> list[str]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", SITTINGS, SUMS)]
    return sorted(str(path.relative_to(folder)) for path in paths)


def _without_log(sums: Path) -> list[str]:
    return [line for line in sums.read_text().splitlines() if not line.endswith(SITTINGS)]


def _units(folder: Path) -> list[str]:
    """The units that workers of a run or bundle computed, by its log."""
    entries = [json.loads(line) for line in (folder / SITTINGS).read_text().splitlines()]
    assert "started" in entries[0]
    return sorted(entry["unit"] for entry in entries if "unit" in entry)


@pytest.mark.parametrize("number", ["2", "4"])
def test_several_processes_write_the_same_bytes(alone: Path, images: Path, tmp_path: Path, number: str) -> None:
    _closed(_work(images, tmp_path, Workers(number)))
    assert_same(alone, tmp_path)
    assert not (alone / "run" / SITTINGS).exists()
    assert _units(tmp_path / "maps") == [f"maps of images {where}" for where in ("0 to 15", "16 to 31", "32 to 39")]
    assert _units(tmp_path / "run") == [f"rows of images {where}" for where in ("0 to 15", "16 to 31", "32 to 39")]


def test_an_audit_by_two_processes_gives_the_same_figures_and_names_them(
    images: Path, tmp_path: Path, device: str
) -> None:
    runs = []
    for number in ("1", "2"):
        done = auditkit("audit", bundled_model("honest"), images, "--method", "gradient-input", "--policy", "explore",
                        "--device", device, "--workers", number, "--quiet", "-o", tmp_path / number)  # fmt: skip
        assert done.returncode == 0, done
        runs.append(Store(tmp_path / number).results())
    one, two = runs
    assert one.runtime is not None
    allowed = one.runtime.largest or 0.0 if device == "cuda" else 0.0
    assert [entry.name for entry in one.metrics] == [entry.name for entry in two.metrics]
    for first, second in zip(one.metrics, two.metrics, strict=True):
        values = [np.nan if value is None else value for value in (first.value, second.value)]
        np.testing.assert_allclose(*values, rtol=0, atol=allowed, err_msg=str(first))
    assert one.examination is not None
    assert two.examination is not None
    assert one.examination.findings == two.examination.findings
    start, *units = [json.loads(line) for line in (tmp_path / "2" / SITTINGS).read_text().splitlines()]
    places = {unit["worker"] for unit in units}
    assert len({start["where"], *places}) == 3  # the main process and two workers
    assert all(where.endswith(device_name(device)) for where in places)
    names = [unit["unit"] for unit in units]
    for kind in ("maps", "rows"):  # in units of another size on each kind of device
        assert any(name.startswith(f"{kind} of images 0 to ") for name in names), names
    assert len([name for name in names if name != "changed images"]) == len({*names} - {"changed images"})


def test_a_killed_process_changes_nothing(
    alone: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes: list[local.LocalProcess] = []
    run = local.LocalProcess.run

    def killed_once(process: local.LocalProcess, number: int, unit: object, tick: pool.Tick) -> object:
        if process not in processes:
            processes.append(process)
            if len(processes) == 1:
                process._child.kill()
        return run(process, number, unit, tick)

    monkeypatch.setattr(local.LocalProcess, "run", killed_once)
    _closed(_work(images, tmp_path, Workers("2")))
    assert len(processes) == 3
    assert_same(alone, tmp_path)


def test_shards_merge_into_the_same_bytes(alone: Path, images: Path, tmp_path: Path) -> None:
    model, options = bundled_model("honest"), ("--labels", LABELS, "--quiet")
    for number in (1, 2, 3):
        done = auditkit("explain", model, images, "-o", tmp_path / f"maps-{number}", "--method", "gradient", *options,
                        "--shard", f"{number}/3")  # fmt: skip
        assert done.returncode == 0, done
    shards = [tmp_path / f"maps-{number}" for number in (3, 1, 2)]
    assert auditkit("merge", *shards, "-o", tmp_path / "maps").returncode == 0
    assert_same(alone / "maps", tmp_path / "maps")
    evaluation = ("evaluate", model, images, "--heatmaps", "maps", *options, "--infill", "gray", "--steps", 6,
                  "--no-deletion", "--tie-orders", 0)  # fmt: skip
    for number in (1, 2, 3):
        done = auditkit(*evaluation, "-o", f"run-{number}", "--shard", f"{number}/3", folder=tmp_path)
        assert "combine the shards with auditkit merge" in " ".join(done.stdout.split()), done
    late = tmp_path / "run-2"
    assert auditkit("merge", tmp_path / "run-1", tmp_path / "run-3", "-o", tmp_path / "run").returncode == 0
    assert auditkit("merge", late, "-o", tmp_path / "run").returncode == 0
    assert auditkit(*evaluation, "-o", "run", folder=tmp_path).returncode == 0
    assert_same(alone / "run", tmp_path / "run")


def test_shards_of_different_runs_are_not_merged(alone: Path, tmp_path: Path) -> None:
    refused(auditkit("merge", alone / "run", tmp_path, "-o", tmp_path / "out"), "neither a run nor a bundle")
    refused(auditkit("merge", alone / "run", alone / "maps", "-o", tmp_path / "out"), "has maps and", "has rows")


@pytest.mark.parametrize(("words", "answer"), [
    (("--workers", "0"), "neither auto nor a number"),
    (("--workers", "many"), "neither auto nor a number"),
    (("--engine", "slurm"), "is not local, ray or ray:ADDRESS"),
    (("--shard", "5/4"), "is not a shard such as 2/8"),
    (("--shard", "1/1000"), "more shards than there are units"),
])  # fmt: skip
def test_workers_and_shards_that_make_no_sense_are_refused(
    images: Path, tmp_path: Path, words: tuple[str, ...], answer: str
) -> None:
    model = bundled_model("honest")
    done = auditkit("explain", model, images, "-o", tmp_path / "maps", "--method", "gradient", "--quiet", *words)
    refused(done, answer)
    assert not (tmp_path / "maps").exists()


@pytest.mark.parametrize(("words", "answer"), [
    (("--workers", "0"), "neither auto nor a number"),
    (("--engine", "slurm"), "is not local, ray or ray:ADDRESS"),
    (("--engine", "ray:127.0.0.1:1"), "there is no Ray cluster"),
])  # fmt: skip
def test_workers_that_there_are_not_are_no_problem_of_a_run(
    alone: Path, images: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], answer: str
) -> None:
    def none_there(address: str | None, *_rest: object) -> None:
        raise BadInput(f"there is no Ray cluster {address}.")

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: "ray is installed")
    monkeypatch.setattr(start, "_on_ray", none_there)
    done = auditkit("verify", alone / "run", "--model", bundled_model("honest"), "--images", images, "--heatmaps",
                    f"maps={alone / 'maps'}", "--quiet", *words)  # fmt: skip
    refused(done, answer)


@pytest.mark.parametrize(("visible", "count", "gpus"), [
    (None, 2, ["0", "1", "0"]), ("", 0, [None] * 3), ("0,1,", 2, ["0", "1", "0"]), ("0,-1,1", 1, ["0", "0", "0"]),
    ("-1", 0, [None] * 3), ("GPU-8f1e,GPU-02ab", 2, ["GPU-8f1e", "GPU-02ab", "GPU-8f1e"]),
])  # fmt: skip
def test_every_process_gets_a_gpu_that_cuda_sees(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int, gpus: list[str | None]
) -> None:
    """CUDA stops at the first name that is none, so it counts fewer than there are commas."""
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(start, "gpu_names", lambda: ["a GPU"] * count)
    monkeypatch.setattr(start, "LocalProcess", lambda _threads, environment: environment.get("CUDA_VISIBLE_DEVICES"))
    model = load(bundled_model("honest"))
    assert isinstance(model, OnnxClassifier)
    model.device = CUDA
    Workers("3").serve(model)
    engine = model.engine
    assert isinstance(engine, pool.Pool)
    assert [slot._start(slot.number) for slot in engine._slots] == gpus
    assert engine.speedup == max(1, len(set(gpus)))


@pytest.fixture
def cluster() -> Iterator[object]:
    """Two machines of a Ray cluster, on the loopback interface."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'onnx-auditkit[ray]'")
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes.add_node(num_cpus=1)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.parametrize(("cores", "workers", "threads"), [
    ([1, 1], 2, 1), ([8], 2, 4), ([5, 3], 2, 3), ([16, 2], 3, 5), ([0, 4], 4, 1),
])  # fmt: skip
def test_every_worker_fits_on_a_machine(cores: list[int], workers: int, threads: int) -> None:
    assert threads_that_fit(cores, workers) == threads


@pytest.mark.filterwarnings("default")
def test_what_a_ray_cluster_cannot_do_is_refused_and_its_reader_is_started_again(
    alone: Path, images: Path, tmp_path: Path, cluster: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from auditkit.engines import ray_cluster

    engine, at_sigterm = f"ray:{cluster.address}", signal.getsignal(signal.SIGTERM)  # type: ignore[attr-defined]
    with pytest.raises(BadInput, match=r"there is no Ray cluster at 127\.0\.0\.1:1: .*refused"):
        _work(images, tmp_path / "refused", Workers("2", "ray:127.0.0.1:1"))
    with pytest.raises(BadInput, match="has 2 CPUs, and each worker needs one"):
        _work(images, tmp_path / "refused", Workers("3", engine))
    assert signal.getsignal(signal.SIGTERM) is at_sigterm
    with monkeypatch.context() as patch:
        patch.setattr(ray_cluster, "versions", lambda: {**versions(), "numpy": "0.1"})
        with pytest.raises(BadInput, match=r"has numpy .*, this one 0\.1; install the same versions"):
            _work(images, tmp_path / "refused", Workers("2", engine))
    share, readers = ray_cluster.Cluster.share, set[object]()

    def with_the_reader_killed(cluster: ray_cluster.Cluster, *arguments: Any) -> Any:
        if cluster not in readers:
            readers.add(cluster)
            ray.kill(cluster._reader, no_restart=False)
        return share(cluster, *arguments)

    monkeypatch.setattr(ray_cluster.Cluster, "share", with_the_reader_killed)
    _closed(_work(images, tmp_path / "whole", Workers("2", engine)))
    assert readers
    assert_same(alone, tmp_path / "whole")


@pytest.mark.filterwarnings("default")
def test_a_ray_cluster_writes_the_same_bytes_though_a_machine_is_lost(
    alone: Path, images: Path, tmp_path: Path, cluster: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from auditkit.engines import ray_cluster

    address = cluster.address  # type: ignore[attr-defined]
    _closed(_work(images, tmp_path / "whole", Workers("2", f"ray:{address}")))
    assert_same(alone, tmp_path / "whole")
    monkeypatch.setattr(ray_cluster, "_READY_SECONDS", 12.0)
    run, lost = ray_cluster.RayProcess.run, list[object]()

    def on_a_lost_machine(process: ray_cluster.RayProcess, number: int, unit: object, tick: pool.Tick) -> object:
        if not lost and isinstance(unit, range):  # of the evaluation
            lost.append(process)
            cluster.remove_node(next(iter(cluster.worker_nodes)))  # type: ignore[attr-defined]
        return run(process, number, unit, tick)

    monkeypatch.setattr(ray_cluster.RayProcess, "run", on_a_lost_machine)
    _closed(_work(images, tmp_path / "lost", Workers("2", f"ray:{address}")))
    assert lost
    assert_same(alone, tmp_path / "lost")


def _never(*_: object) -> None:
    raise AssertionError("a kind of device is compared once")


def test_every_other_kind_of_device_is_compared_with_strict_float32(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(bundled_model("honest"))
    assert isinstance(model, OnnxClassifier)
    Workers("2").serve(model)
    dataset = Dataset.open(images, model.signature.classes)
    plan = plan_evaluation(model, dataset, {}, SETTINGS, None)
    engine = model.engine
    assert engine is not None
    here = device_name("cpu")
    assert engine.on_each_kind(runtime_check._Comparing(plan), here, "a model") == {}
    compared = engine.on_each_kind(runtime_check._Comparing(plan), "another processor", "a model")
    assert engine.on_each_kind(_never, "another processor", "a model") == compared
    assert list(compared) == [here]
    assert (compared[here].largest or 1) < 1e-6
    wrong = replace(compared[here], insertion=1.0)
    monkeypatch.setattr(pool.Pool, "on_each_kind", lambda *_: {"a worse processor": wrong})
    with pytest.raises(RuntimeFailure, match="on a worse processor, strict changes insertion by 1 on average"):
        evaluate(model, dataset, {}, SETTINGS, tmp_path / "run")
    _closed(model)


def _processes_with(marker: str) -> list[int]:
    """Processes that have a marker in their environment."""
    processes = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and marker.encode() in (entry / "environ").read_bytes():
                processes.append(int(entry.name))
    return processes


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are found through /proc")
def test_when_the_main_process_is_killed_its_workers_end_and_the_same_command_resumes(
    alone: Path, images: Path, tmp_path: Path
) -> None:
    shutil.copytree(alone / "maps", tmp_path / "maps")
    words = ("--heatmaps", "maps", "-o", "run", "--labels", LABELS, "--infill", "gray", "--steps", "6",
             "--no-deletion", "--tie-orders", "0", "--workers", "2", "--quiet")  # fmt: skip
    command = [sys.executable, "-m", "auditkit", "evaluate", str(bundled_model("honest")), str(images), *words]
    environment = {
        **os.environ,
        "AUDITKIT_TEST": str(tmp_path),
        "PYTHONPATH": str(Path(auditkit_package.__file__).parents[1]),
    }
    first = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    while first.poll() is None and not list(tmp_path.glob("run/items/*.parquet")):
        time.sleep(0.01)
    first.kill()
    first.wait()
    deadline = time.monotonic() + 20
    while _processes_with(f"AUDITKIT_TEST={tmp_path}") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _processes_with(f"AUDITKIT_TEST={tmp_path}") == []
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_same(alone / "run", tmp_path / "run")
