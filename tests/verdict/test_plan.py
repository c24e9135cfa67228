"""What an audit says before it begins, and what it leaves out to keep within a time."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.cli.plans import Output, announce, announce_audit, shorter_audit, shorter_examination
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.metrics.curves import parse_steps
from auditkit.metrics.statistics import FEWEST_VALUES
from auditkit.model.classifier import Opening
from auditkit.report.formats import render
from auditkit.report.load_run import load
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.explain import Explanation
from auditkit.runs.explanation.record import Record
from auditkit.runs.folder.figures import Shortened, Taking
from auditkit.verdict import estimate
from auditkit.verdict import plan as plans
from auditkit.verdict.audit import AuditRequest, audit
from auditkit.verdict.estimate import Cost
from auditkit.verdict.policy_file import read_policy
from auditkit.verdict.verify import Originals, verify
from tests.support import onnx_models
from tests.support.commands import auditkit as command
from tests.support.commands import refused

IMAGES = 100
STANDARD = read_policy("standard")
QUIET = Output(dry_run=False, as_json=False, quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("plan"), np.random.default_rng(0)
    onnx_models.save(onnx_models.convnet(size=8, classes=4), folder)
    np.savez(folder / "images.npz", images=rng.integers(0, 256, (IMAGES, 8, 8, 3), dtype=np.uint8))
    return folder


@pytest.fixture
def model(folder: Path) -> Any:
    return auditkit.load(folder / "model.onnx", preset="unit", settings=auditkit.Settings(device="cpu"))


@pytest.fixture
def images(folder: Path) -> Dataset:
    return Dataset.open(folder / "images.npz", 4)


@pytest.mark.parametrize("method", ["mask", "differences", "occlusion", "rise", "grad-cam", "gradient-input"])
def test_rows_are_those_that_maps_take(model: Any, images: Dataset, method: str, tmp_path: Path) -> None:
    """At most: differences may end sooner."""
    what = Explanation(method, "top2", (("steps", "60"),) if method == "mask" else ()).adapted_to(model)
    few = images.select(range(3))
    cost = estimate.explaining(model, few, what, None)
    auditkit.explain(model, few, tmp_path / "maps", method, labels="top2", **dict(what.options))
    record = Record.of(tmp_path / "maps")
    taken = max(record.passes, record.gradients)
    assert cost.rate > 0
    assert cost.rows == pytest.approx(taken / 3) or (method == "differences" and cost.rows >= taken / 3)


def test_one_image_is_tried_with_the_pictures_of_the_pool(model: Any, images: Dataset) -> None:
    explanation = Explanation("mask", "top2", (("steps", "60"),))
    assert estimate.explaining(model, images.select([0]), explanation, images.select(range(1, 4))).rows == 240


def test_controls_cost_no_row(model: Any, images: Dataset) -> None:
    assert estimate.explaining(model, images, Explanation("edges"), None).seconds(100) == 0


def test_rows_of_fixed_curves_are_exact(model: Any, images: Dataset) -> None:
    settings = replace(STANDARD.evaluation, steps=parse_steps("12"))
    cost = estimate.evaluating(model, images, settings, 1)
    curves = 3 + 1 + 7 + 7 + 2  # maps and their deletion, controls and theirs, and those drawn for each label
    assert cost.rows == pytest.approx(curves * 11, rel=0.35)


def _plan(model: Any, images: Dataset, monkeypatch: pytest.MonkeyPatch, *, maps: float, figures: float, budget: float,
          any_method: bool = True, policy: str = "standard", **request: Any) -> plans.Plan:  # fmt: skip
    """The plan where an image takes so many seconds; maps by the quick method take a tenth."""

    def explaining(_model: Any, _images: Any, what: Explanation, *_: Any) -> Cost:
        return Cost("explaining", maps * (0.1 if what.method == plans.QUICK_METHOD else 1.0), 1.0)

    monkeypatch.setattr(plans, "explaining", explaining)
    monkeypatch.setattr(plans, "evaluating", lambda *_: Cost("evaluating", figures * 1e4, 1e4))
    asked = AuditRequest(read_policy(policy), Explanation("mask"), **request)
    return plans.plan_audit(model, images, asked, budget, any_method=any_method)


class _Workers:
    def __init__(self, count: int, speedup: float) -> None:
        self.count, self.speedup = count, speedup


def _seconds(images: int, count: int, speedup: float, together: float = 1) -> float:
    engine: Any = _Workers(count, speedup)
    return Cost("evaluating", rows=10, rate=10, most=100, engine=engine, together=together).seconds(images)


def test_workers_share_the_work_as_far_as_it_can_be_divided() -> None:
    assert _seconds(80, 8, 8) == 10
    assert _seconds(80, 8, 8, together=16) == 16  # five units
    assert _seconds(16, 8, 8, together=16) == 16
    assert _seconds(1000, 8, 8) == pytest.approx(100 / 8 * 104 / 100)  # 13 rounds
    assert _seconds(3, 2, 1) == _seconds(4, 2, 1) == 4  # processes that share one processor
    assert _seconds(0, 2, 1) == 0


def test_workers_are_part_of_the_plan(folder: Path, tmp_path: Path) -> None:
    explain = ["explain", folder / "model.onnx", folder / "images.npz", "-o", tmp_path / "maps", "--preset", "unit",
               "--device", "cpu", "--method", "occlusion", "--dry-run"]  # fmt: skip
    assert "on this machine" in command(*explain).stdout
    assert "with 2 workers" in command(*explain, "--workers", "2").stdout


def test_one_worker_may_be_on_another_machine(capsys: pytest.CaptureFixture[str]) -> None:
    engine: Any = _Workers(1, 0.5)
    announce(Output(dry_run=True, as_json=False, quiet=False), "maps", [Cost("explaining", 10, 10, engine=engine)], 60)
    assert "about 2 min with 1 worker" in capsys.readouterr().out


def test_more_images_fit_into_a_budget_with_more_gpus(
    model: Any, images: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = _Workers(8, 8)
    monkeypatch.setattr(plans, "explaining", lambda *_: Cost("explaining", 20.0, 1.0, engine=engine))
    monkeypatch.setattr(plans, "evaluating", lambda *_: Cost("evaluating", 2e5, 1e4, engine=engine))
    request = AuditRequest(read_policy("standard"), Explanation("mask"))
    assert plans.plan_audit(model, images, request, 1200, any_method=True).chosen == ()
    engine.count = engine.speedup = 1
    assert plans.plan_audit(model, images, request, 1200, any_method=True).chosen != ()


def test_what_fits_is_done_as_asked(model: Any, images: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(model, images, monkeypatch, maps=1, figures=1, budget=1200)
    assert plan.request.explanation == Explanation("mask")
    assert (plan.chosen, plan.request.taking) == ((), Taking())
    assert plan.seconds == pytest.approx(200, rel=0.02)


def test_a_budget_takes_the_quick_method_first(model: Any, images: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(model, images, monkeypatch, maps=20, figures=2, budget=1200)
    assert plan.chosen == ("--method occlusion",)
    assert plan.request.taking == Taking(first_look=44)
    asked = _plan(model, images, monkeypatch, maps=20, figures=2, budget=1200, any_method=False)
    assert asked.chosen == ("--until-decided", "--limit 46")  # the method was asked for


def test_a_budget_takes_fewer_images_next(model: Any, images: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(model, images, monkeypatch, maps=20, figures=38, budget=1200)
    assert plan.chosen == ("--method occlusion", "--until-decided", "--limit 25")
    assert plan.seconds <= 1200
    assert "so some checks may stay undecided" in plan.decision
    few = _plan(model, images, monkeypatch, maps=20, figures=380, budget=1200)
    assert few.chosen == ("--method occlusion", "--limit 2")
    with pytest.raises(BadInput) as error:
        announce_audit(QUIET, few)
    assert str(error.value) == (
        "within 20 min, this machine measures about 2 of 100 images, and a verdict by the policy standard needs 20. "
        "Give --budget none --limit 20 (about 2.1 h), or --policy explore for figures without a verdict."
    )


def test_an_audit_that_cannot_be_decided_says_when_maps_cost_most(
    model: Any, images: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _plan(model, images, monkeypatch, maps=200, figures=2, budget=1200, any_method=False)
    with pytest.raises(BadInput, match="a --method that costs less than mask, or --policy explore"):
        announce_audit(QUIET, plan)


def test_a_first_look_takes_as_many_images_as_intervals_need(
    model: Any, images: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _plan(model, images, monkeypatch, maps=20, figures=380, budget=180, policy="explore")
    assert plan.chosen == ("--method occlusion", f"--limit {FEWEST_VALUES}")
    announce_audit(QUIET, plan)


def test_what_the_time_left_out_is_a_value_and_a_sentence(
    model: Any, images: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = _plan(model, images, monkeypatch, maps=20, figures=38, budget=1200)
    shortened = plan.request.shortened
    assert shortened == Shortened(1200, "occlusion", "mask", images=25, total=100, until_decided=True)
    assert shortened.text == (
        "To keep within 20 min at the speed that this machine had at the start, occlusion makes the maps instead of "
        "mask and at most 25 of 100 images are taken, until every check is decided; a faster or less busy machine "
        "would leave out less. For the same on any machine, give --method occlusion --until-decided --limit 25; for "
        "everything, --budget none."
    )
    announce_audit(Output(dry_run=True, as_json=False, quiet=False), plan)
    assert shortened.text in " ".join(capsys.readouterr().out.split())
    assert _plan(model, images, monkeypatch, maps=1, figures=1, budget=1200).request.shortened is None
    with pytest.raises(ValueError, match="a method without the one that it replaces"):
        Shortened(1200, "occlusion")


def test_what_the_time_left_out_is_in_the_report_and_survives_a_resumption(
    model: Any, images: Dataset, tmp_path: Path
) -> None:
    shortened = Shortened(180, "occlusion", "mask", images=5, total=IMAGES)
    explore, taking = read_policy("explore"), Taking(limit=5)
    short = AuditRequest(explore, Explanation("occlusion"), taking=taking, steps=parse_steps("4"), shortened=shortened)
    results = audit(model, images, short, tmp_path / "run")
    assert results.run.shortened == shortened
    page = (tmp_path / "run" / "report.html").read_text()
    assert shortened.text in page[: page.index("Are the heatmaps faithful?")]
    for form in ("md", "junit", "sarif", "oscal", "cyclonedx"):
        assert "a faster or less busy machine would leave out less" in render(load(tmp_path / "run"), form)
    again = plans.resumed(
        AuditRequest(explore, Explanation("mask"), steps=short.steps), tmp_path / "run", any_method=True
    )
    assert again is not None
    assert (again.shortened, again.taking) == (shortened, taking)
    originals = Originals(Path(model.file.path), images.source, opening=Opening(preset="unit"))
    assert verify(tmp_path / "run", originals).problems == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--limit", "12"),
            "--limit 12 leaves too few images: a verdict by the policy standard needs 20. Give --limit 20 or more, or "
            "give --policy explore for figures without a verdict.",
        ),
        (("--policy", "strict", "--limit", "99"), "Give --limit 100 or more"),
    ],
)
def test_an_audit_that_cannot_be_decided_does_not_start(
    folder: Path, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    audit_words = ("audit", folder / "model.onnx", folder / "images.npz", "-o", tmp_path / "run", "--preset", "unit")
    refused(command(*audit_words, *words), sentence)
    refused(command(*audit_words, *words, "--dry-run"), sentence)
    assert not (tmp_path / "run").exists()


def test_so_few_images_are_refused_in_python_too(folder: Path, tmp_path: Path) -> None:
    few = np.zeros((18, 8, 8, 3), np.uint8)
    sentence = (
        "^18 images cannot decide: a verdict by the policy standard needs 20. Add images, or give --policy explore"
    )
    with pytest.raises(BadInput, match=sentence):
        auditkit.audit(folder / "model.onnx", few, tmp_path / "run", preset="unit", method="occlusion")


def test_the_plan_of_an_examination_names_a_cheaper_method() -> None:
    maps, examining = Cost("explaining", 1000, 100), Cost("examining", 100, 100)
    ways = list(shorter_examination([maps, examining], 150, 20, lambda: Cost("explaining", 40, 100)))
    assert ways == [
        "--method grad-cam (about 4 min; the maps take 25 min of the above)",
        "--method grad-cam --limit 37 (about 52 s)",
    ]
    assert list(shorter_examination([maps, examining], 150, 20, lambda: maps)) == ["--limit 37 (about 7 min)"]

    def refuses() -> Cost:
        raise BadInput("no tensor of the graph has a height and a width")

    assert list(shorter_examination([maps, examining], 150, 20, refuses)) == ["--limit 37 (about 7 min)"]
    assert list(shorter_examination([maps, examining], 20, 20, refuses)) == []


def test_examine_prints_the_cheaper_method(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "forward_rate", lambda *_: 100.0)
    done = command("examine", folder / "model.onnx", folder / "images.npz", "-o", tmp_path / "run", "--preset", "unit",
                   "--device", "cpu", "--dry-run", "--option", "most_passes=5000")  # fmt: skip
    assert "shorter" in done.stdout
    assert "--method grad-cam" in done.stdout


def test_long_work_names_ways_to_shorten_it(model: Any, images: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(model, images, monkeypatch, maps=20, figures=2, budget=1e6)
    ways = list(shorter_audit(plan))
    assert ways[0].startswith("--until-decided (about 17 min)")
    assert any("--method occlusion" in way for way in ways)
    assert list(shorter_audit(_plan(model, images, monkeypatch, maps=1, figures=1, budget=1e6))) == []


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("none", None)])
def test_budgets(text: str, seconds: float | None) -> None:
    assert plans.budget_of(text, AuditRequest(STANDARD, None), "cpu") == seconds


def test_a_cpu_has_a_budget_by_default() -> None:
    for policy, seconds in (("standard", 1200), ("explore", 180)):
        request = AuditRequest(read_policy(policy), None)
        assert [plans.budget_of(None, request, device) for device in ("cpu", "cuda")] == [seconds, None]


@pytest.mark.parametrize("text", ["", "10", "0m", "ten minutes", "-5m"])
def test_bad_budgets(text: str) -> None:
    with pytest.raises(BadInput, match="is neither a time such as 90s, 10m or 1h, nor none"):
        plans.budget_of(text, AuditRequest(STANDARD, None), "cpu")


def test_a_resumed_run_keeps_what_was_chosen(model: Any, images: Dataset, tmp_path: Path) -> None:
    chosen = AuditRequest(STANDARD, Explanation("occlusion"), taking=Taking(limit=22))
    audit(model, images, chosen, tmp_path / "run")
    asked = AuditRequest(STANDARD, Explanation("mask"))
    again = plans.resumed(asked, tmp_path / "run", any_method=True)
    assert again is not None
    assert again.taking == Taking(limit=22)
    assert again.explanation is not None
    assert again.explanation.name() == Explanation("occlusion").name()
    assert plans.resumed(asked, tmp_path / "none", any_method=True) is None
    for taking, adopted in ((Taking(limit=22), True), (Taking(limit=23), False), (Taking(until_decided=True), False)):
        again = plans.resumed(replace(asked, taking=taking), tmp_path / "run", any_method=True)
        assert again is not None
        assert again.taking == (Taking(limit=22) if adopted else taking)


def test_the_command_says_its_plan_first_and_stops_there_when_asked(folder: Path, tmp_path: Path) -> None:
    told = ("audit", folder / "model.onnx", folder / "images.npz", "-o", tmp_path / "run", "--preset", "unit")
    begin = time.monotonic()
    done = command(*told, "--dry-run", "--json")
    assert time.monotonic() - begin < 20
    plan = json.loads(done.stdout)
    assert plan["plan"] == "100 images, maps of the labels top3 by mask, policy standard"
    assert [phase["phase"] for phase in plan["phases"]] == ["explaining", "evaluating", "examining"]
    assert not (tmp_path / "run").exists()
    refused(command(*told, "--budget", "soon"), "is neither a time such as 90s, 10m or 1h, nor none")
    refused(command(*told, "--limit", "0"), "--limit")


def test_an_audit_takes_other_labels_and_steps_and_fewer_images(folder: Path, tmp_path: Path) -> None:
    words = ("audit", folder / "model.onnx", folder / "images.npz", "-o", tmp_path / "run", "--preset", "unit",
             "--method", "occlusion", "--dry-run", "--json", "--limit", "40", "--labels", "top2")  # fmt: skip
    many, few = (json.loads(command(*words, "--steps", steps).stdout) for steps in ("16", "4"))
    assert many["plan"] == "40 of 100 images, maps of the labels top2 by occlusion, policy standard"
    assert many["phases"][1]["phase"] == "evaluating"
    assert many["phases"][1]["rows"] > 2 * few["phases"][1]["rows"]


@pytest.mark.parametrize("verb", ["explain", "evaluate", "examine"])
def test_other_verbs_say_their_plan_too(folder: Path, tmp_path: Path, verb: str) -> None:
    done = command(verb, folder / "model.onnx", folder / "images.npz", "-o", tmp_path / "run", "--preset", "unit",
                   "--dry-run", "--limit", "40")  # fmt: skip
    assert done.returncode == 0
    assert "40 images" in done.stdout
    assert "total" in done.stdout
    assert not (tmp_path / "run").exists()


def test_evaluations_need_no_settings_of_a_policy(model: Any, images: Dataset) -> None:
    assert estimate.evaluating(model, images, Evaluation(labels="top1", controls=False), 1).rows > 0
