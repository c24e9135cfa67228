"""The benchmark of peers, as far as it goes without them: auditkit's own part, DIANNA's with a runner of ours."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest

import auditkit
from benchmarks.peers import __main__ as command
from benchmarks.peers import study, tables
from benchmarks.peers.adapters import PEERS
from benchmarks.peers.job import Job, equal_steps
from benchmarks.peers.jobs import Bench, Case
from benchmarks.peers.turns import Failed, Worker, in_turns, starts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    pictures = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    return Bench(tmp_path_factory.mktemp("bench"), ROOT / "models/honest.onnx", "imagenet", pictures, labels=2, few=2)


@pytest.fixture(scope="module")
def ours(bench: Bench) -> Any:
    return PEERS["auditkit"](bench.folder)


def test_a_job_names_each_image_with_its_likeliest_labels(bench: Bench) -> None:
    job = Job.read(bench.asked(Case(2, 2, 8))["job"])
    model = auditkit.load(bench.folder / "model.onnx", preset="imagenet", settings=auditkit.Settings(device="cpu"))
    likeliest = np.argsort(-model.probabilities(bench.pictures[:2]), axis=1)[:, :2]
    assert list(zip(job.image, job.label, strict=True)) == [(0, likeliest[0, 0]), (0, likeliest[0, 1]),
                                                           (1, likeliest[1, 0]), (1, likeliest[1, 1])]  # fmt: skip
    assert job.maps.shape == (4, 64, 64)
    assert [one.label.tolist() for one in job.alone()] == [[label] for label in job.label]


def test_rows_run_by_a_plain_session_agree_with_ours(bench: Bench, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Runner:
        def __init__(self, path: str) -> None:
            self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

        def __call__(self, rows: Any) -> Any:
            return self.session.run(None, {self.session.get_inputs()[0].name: rows})[0]

    for name in ("dianna", "dianna.utils", "dianna.utils.onnx_runner"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["dianna.utils.onnx_runner"], "SimpleModelRunner", Runner, raising=False)
    workers = {"auditkit": InProcess(ours), "dianna": InProcess(PEERS["dianna"](bench.folder))}
    monkeypatch.setattr(study, "AGREEING", Case(2, 2, 7))
    found = study.agreement(bench, workers, {"auditkit": 0, "dianna": 5})  # type: ignore[arg-type]
    assert found["dianna"]["curves"] == 4
    assert found["dianna"]["largest"] < 1e-5


class InProcess:
    """A worker that is no process."""

    def __init__(self, peer: Any) -> None:
        self.peer = peer

    def ask(self, job: str, points: Any, batch: int, settings: Any = None, **_: Any) -> dict[str, Any]:
        found = self.peer.run(Job.read(job), points, batch, **settings or {})
        return {"areas": found.areas, "rows": found.rows, **(found.more or {})}


def test_ours_counts_the_rows_it_asks_for(bench: Bench, ours: Any) -> None:
    job = Job.read(bench.asked(Case(2, 2, 8))["job"])
    assert ours.run(job, 8, 0, labels="top2").rows == 4 * 7 + 2 * 2


def test_a_worker_answers_in_a_process_of_its_own(bench: Bench) -> None:
    worker = Worker("auditkit", sys.executable, bench.folder)
    case = study.asked(bench, "auditkit", {"auditkit": 0}, Case(2, 1, 8))
    found = in_turns({"auditkit": worker}, {"auditkit": case}, 2)["auditkit"]
    worker.close()
    assert found["times_slower"] == 1
    assert found["rows_s"] == pytest.approx(found["rows"] / found["seconds"], rel=1e-2)
    assert worker.started > 0
    assert worker.about["versions"]["numpy"] == np.__version__


def test_a_peer_that_is_not_there_says_why(bench: Bench) -> None:
    with pytest.raises(Failed, match="openvino"):
        starts({"openvino": sys.executable}, bench.folder, {}, 1)


@pytest.mark.parametrize(("name", "least"), [("xplique", 4), ("torchcam", 4), ("quantus", 3)])
def test_straight_curves_need_the_fewest_points(name: str, least: int) -> None:
    """The trapezoid is right about them up to half a pixel; the mean of the paper's code is not."""
    curves = np.linspace(0, 1, 1025)[None]
    assert study.fewest(name, curves, 1024) == least
    assert study.fewest("paper", curves, 1024) > 30


def test_a_curve_that_jumps_needs_more_points() -> None:
    curves = (np.arange(1025)[None] >= np.array([[100], [500], [701]])).astype(float)
    points = study.fewest("xplique", curves, 1024)
    exact = curves[:, 1:].mean(axis=1)
    assert abs(study.areas("xplique", curves, points) - exact).max() <= study.WITHIN * 1.2
    assert points > 30


def test_equal_steps() -> None:
    assert equal_steps(np.array([[0.0, 1.0, 1.0]])).tolist() == [0.75]


def test_peers_without_an_interpreter_are_left_out_and_named() -> None:
    pythons, skipped = command.interpreters(["torchcam=/t", "openvino=/o"])
    assert pythons == {"auditkit": sys.executable, "paper": "/t", "rise": "/t", "torchcam": "/t", "openvino": "/o",
                       "openvino-f32": "/o"}  # fmt: skip
    assert skipped == dict.fromkeys(["quantus", "xplique", "dianna"], "no interpreter given")
    with pytest.raises(SystemExit, match="no peer 'shap'"):
        command.interpreters(["shap=/s"])


def test_the_table_of_the_committed_result(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "benchmarks/results/peers-cpu.json"
    monkeypatch.setattr(sys, "argv", ["peers", "--table", str(path)])
    command.main()
    shown, found = capsys.readouterr().out, json.loads(path.read_text())
    assert set(found["main"]["peers"]) | set(found["skipped"]) | set(found["failed"]) == set(PEERS)
    for name, one in found["main"]["peers"].items():
        assert f"| {tables.NAMES[name]} | {one['rows_s']:.0f} |" in shown
    assert "\n| " in shown
