"""What a learned mask loses when it costs less.

    python -m benchmarks.frontier measure MODEL.onnx IMAGES -o FOLDER [--images 150] [--skip 0] [--only NAME ...]
    python -m benchmarks.frontier table FOLDER [FOLDER ...] [--plot FILE.svg]

`measure` learns the masks of every schedule and evaluates them; it goes on where it was cut short. Images are cut into
five folds: the distractors of an image come from the other folds, the other images that it is evaluated over from its
own. `table` prints each schedule's paired differences to `full` as one JSON object.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

import auditkit
from auditkit.arrays import Array
from auditkit.data.bundles import Bundle, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.graph.mask_objective import WEIGHTS, coarse_masks, upsampling
from auditkit.methods import gradients
from auditkit.methods.mask.learner import Learner
from auditkit.methods.mask.method import MaskOptions, prepare
from auditkit.methods.mask.pair import Pace
from auditkit.methods.request import Bank, Pool, Request
from auditkit.metrics.faithfulness import choose_labels
from auditkit.metrics.statistics import paired_difference
from auditkit.model import preprocessing
from auditkit.model.classifier import OnnxClassifier
from auditkit.report.markdown import table
from auditkit.report.svg import Axis
from auditkit.runs.evaluation.batch import prepare as prepare_unit
from auditkit.runs.evaluation.images import UnitImages, load_images, probabilities
from auditkit.runs.evaluation.measure import measure
from auditkit.runs.evaluation.plan import plan_evaluation
from auditkit.runs.evaluation.settings import Evaluation
from benchmarks.drawing import MARKS, Chart, Series, page
from benchmarks.reporting import log, origin

FOLDS, SEED, UNIT = 5, 2022, 16
COLUMNS = ("image", "label", "infill", "predicted", "prob", "insertion", "alpha", "beta", "log_odds")
METRICS, INFILLS = ("completeness", "soundness", "insertion", "label specificity"), ("gray", "random")
Figures = dict[str, Any]


@dataclass(frozen=True)
class Phase:
    """Some steps of a schedule."""

    steps: int
    distractors: int
    rate: float = 0.2
    fall: float = 0.1
    memory: float = 0.9
    coarser: int = 1  # times the usual pixels of a mask's cell

    @property
    def rows(self) -> int:
        """Images for each mask, at most."""
        return self.steps * self.distractors


@dataclass(frozen=True)
class Schedule:
    """Phases that a mask is learned in, each from where the one before ended."""

    phases: tuple[Phase, ...]
    seed: int = 0
    grad_cam: bool = False  # start from the map of Grad-CAM, not from one half everywhere


def _growing(first: float = 0.2, **changed: Any) -> tuple[Phase, ...]:
    """Distractors double while the rate falls: 1,100 rows."""
    sizes = [(300, 1), (150, 2), (75, 4), (25, 8)]
    rate = [first * 0.1 ** (place / len(sizes)) for place in range(len(sizes) + 1)]
    return tuple(Phase(steps, count, rate[place], rate[place + 1] / rate[place], **changed)
                 for place, (steps, count) in enumerate(sizes))  # fmt: skip


def _single(*numbers: Any, **changed: Any) -> Schedule:
    return Schedule((Phase(*numbers, **changed),))


SCHEDULES: dict[str, Schedule] = {
    "full": _single(1000, 10),
    "full, another seed": Schedule((Phase(1000, 10),), seed=1),
    "300 x 10": _single(300, 10),
    "100 x 10": _single(100, 10),
    "1000 x 1": _single(1000, 1),
    "1000 x 2": _single(1000, 2),
    "500 x 2": _single(500, 2),
    "300 x 3": _single(300, 3),
    "200 x 5": _single(200, 5),
    "400 x 5": _single(400, 5),
    "250 x 2": _single(250, 2),
    "150 x 3": _single(150, 3),
    "100 x 5": _single(100, 5),
    "1000 x 1, memory 0.99": _single(1000, 1, memory=0.99),
    "500 x 2, memory 0.99": _single(500, 2, memory=0.99),
    "fast": _single(700, 2, 0.3),
    "1400 x 2, rate 0.3": _single(1400, 2, 0.3),
    "500 x 2, rate 0.3": _single(500, 2, 0.3),
    "500 x 2, rate 0.4": _single(500, 2, 0.4),
    "1000 x 1, rate 0.4": _single(1000, 1, 0.4),
    "300 x 3, rate 0.6": _single(300, 3, 0.6),
    "500 x 4, rate 0.4": _single(500, 4, 0.4),
    "500 x 4": _single(500, 4),
    "growing": Schedule(_growing()),
    "coarse to fine": Schedule((Phase(100, 2, fall=1.0, coarser=4), Phase(100, 2, fall=1.0, coarser=2), Phase(300, 2))),
    "from Grad-CAM": Schedule((Phase(500, 2),), grad_cam=True),
}  # fmt: skip


@dataclass
class Work:
    """A model and images in folds, with what their masks are learned from."""

    model: OnnxClassifier
    every: Dataset
    mapped: range  # places of those that get masks
    unit: UnitImages  # these
    fold: Array  # [every]
    labels: list[tuple[int, ...]]
    rule: str  # by which the labels were chosen

    def request(self, seed: int) -> tuple[Request, Bank]:
        """All images with their labels, and a bank with the distractors of each."""
        model, every = (
            self.model,
            load_images(range(len(self.every)), self.every, self.model.card, self.model.signature),
        )
        gray = preprocessing.flat_picture(model.card, model.signature, model.card.gray)
        request = Request(model, self.unit.ids, self.unit.pixels, self.unit.inputs, tuple(self.labels), gray,
                          Pool((), np.zeros(0)), seed)  # fmt: skip
        count, fold = len(self.unit.ids), dict(zip(every.ids, self.fold, strict=True))
        others = [count + np.flatnonzero(self.fold != fold[image]) for image in self.unit.ids]
        return request, Bank(np.concatenate([self.unit.inputs, every.inputs]), others)


def opened(asked: argparse.Namespace) -> Work:
    """The model, and as many images of each fold."""
    settings = auditkit.Settings(device=asked.device, precision=asked.precision)
    model = auditkit.load(asked.model, card=asked.card, preset=asked.preset, settings=settings)
    assert isinstance(model, OnnxClassifier)
    every = Dataset.open(asked.data, model.signature.classes)
    order = np.random.default_rng(SEED).permutation(len(every))[: asked.pictures]
    every = every.select(order.tolist())
    fold = np.arange(len(every)) % FOLDS
    mapped = range(min(asked.skip, len(every)), min(asked.skip + asked.images, len(every)))
    unit = load_images(mapped, every, model.card, model.signature)
    chosen = choose_labels(probabilities(model, unit.inputs), asked.labels)
    return Work(model, every, mapped, unit, fold, [tuple(labels.tolist()) for labels in chosen], asked.labels)


def learned(work: Work, schedule: Schedule) -> tuple[dict[tuple[str, int], Array], Figures]:
    """The masks of a schedule by image and label, and what they cost."""
    request, bank = work.request(schedule.seed)
    pairs, rows, begin = request.pairs(), 0, time.perf_counter()
    weights = _from_grad_cam(request, pairs) if schedule.grad_cam else None
    cells = 1
    for number, phase in enumerate(schedule.phases):
        learner = _learner(work.model, phase)
        if weights is not None:
            weights = _resized(weights, learner.recipe.grid(learner.ends))
        done = {(pair.image, pair.label): pair
                for part in learner.learn(replace(request, seed=request.seed + 100 * number), bank, weights)
                for pair in part}  # fmt: skip
        weights, cells = np.stack([done[pair].state[WEIGHTS] for pair in pairs]), learner.recipe.factor
        rows += sum(pair.done for pair in done.values()) * phase.distractors
    masks = upsampling(learner.ends, cells).apply(coarse_masks(weights))
    cost = {"rows": rows / len(pairs), "seconds": time.perf_counter() - begin, "masks": len(pairs)}
    return {(request.ids[image], label): mask for (image, label), mask in zip(pairs, masks, strict=True)}, cost


def _learner(model: OnnxClassifier, phase: Phase) -> Learner:
    """The learner of a phase; phases that differ in their pace alone share a session."""
    usual = prepare(model, MaskOptions(distractors=phase.distractors, memory=phase.memory))
    if phase.coarser > 1:
        cell = usual.recipe.factor * phase.coarser
        usual = prepare(model, MaskOptions(distractors=phase.distractors, memory=phase.memory, factor=cell))
    return replace(usual, pace=Pace(phase.steps, phase.rate, phase.fall))


def _from_grad_cam(request: Request, pairs: list[tuple[int, int]]) -> Array:
    """Weights from -2 to 2 as the maps of Grad-CAM rise."""
    maps = gradients.grad_cam(request, gradients.Cam()).maps
    weights = []
    for image, label in pairs:
        values = maps[image][label]
        weights.append((4 * (values - values.min()) / max(float(np.ptp(values)), 1e-9) - 2)[None])
    return np.stack(weights).astype(np.float32)


def _resized(weights: Array, grid: tuple[int, int]) -> Array:
    """Weights [M, masks, h, w] on another grid."""
    zoom = (1, 1, *(new / old for new, old in zip(grid, weights.shape[2:], strict=True)))
    return np.asarray(ndimage.zoom(weights, zoom, order=1, mode="nearest", grid_mode=True), np.float32)


def evaluated(work: Work, masks: dict[tuple[str, int], Array], folder: Path) -> Figures:
    """The rows of an evaluation over gray and over the other images of the same fold."""
    bundle = Bundle(folder)
    for image, labels in zip(work.unit.ids, work.labels, strict=True):
        bundle.add([image] * len(labels), list(labels), np.stack([masks[image, label] for label in labels]))
    settings = Evaluation(labels=work.rule, infill=("gray", "random"), controls=False, deletion=False,
                          saliency="none")  # fmt: skip
    rows = []
    for fold in range(FOLDS):
        own = [place for place in range(len(work.every)) if work.fold[place] == fold]
        images = work.every.select([place for place in own if place in work.mapped])
        plan = plan_evaluation(work.model, images, {"mask": open_bundle(folder)}, settings, work.every.select(own))
        for start in range(0, len(images), UNIT):
            positions = range(start, min(start + UNIT, len(images)))
            rows += measure(plan, prepare_unit(plan, plan.load(positions)))
    return {name: [_plain(getattr(row, name)) for row in rows] for name in COLUMNS}


def _plain(value: Any) -> Any:
    return np.round(np.asarray(value), 5).tolist() if isinstance(value, np.ndarray | list | tuple | float) else value


def measured(asked: argparse.Namespace) -> None:
    """Learn and evaluate every schedule that has no record yet."""
    work = opened(asked)
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.only or SCHEDULES:
        kept = asked.out / f"{name.replace(' ', '-').replace(',', '')}.json"
        if kept.exists():
            continue
        masks, cost = learned(work, SCHEDULES[name])
        with tempfile.TemporaryDirectory() as scratch:
            begin = time.perf_counter()
            rows = evaluated(work, masks, Path(scratch) / "maps")
        cost["evaluated_seconds"] = time.perf_counter() - begin
        record = {**origin("benchmarks.frontier"), "schedule": name, "model": asked.model.name,
                  "labels": asked.labels, **cost, "results": rows}  # fmt: skip
        kept.write_text(json.dumps(record))
        log({name: {key: round(value, 1) for key, value in cost.items()}})


def per_image(record: Figures, infill: str) -> dict[str, dict[str, float]]:
    """Each metric of each image under one infill."""
    results, by_image = record["results"], dict[str, list[int]]()
    for place, image in enumerate(results["image"]):
        if results["infill"][place] == infill:
            by_image.setdefault(image, []).append(place)
    figures: dict[str, dict[str, float]] = {name: {} for name in METRICS}
    for image, unordered in by_image.items():
        places = sorted(unordered, key=lambda place: results["label"][place])
        odds = np.array([results["log_odds"][place] for place in places])  # [maps, labels]
        own = np.diagonal(odds)
        margin = own - (odds.sum(axis=0) - own) / (len(places) - 1)
        (predicted,) = (place for place in places if results["predicted"][place])
        figures["insertion"][image] = results["insertion"][predicted]
        figures["completeness"][image] = float(np.mean([results["alpha"][place] for place in places]))
        figures["soundness"][image] = float(np.mean([results["beta"][place] for place in places]))
        figures["label specificity"][image] = float(margin.mean())
    return figures


def both_infills(record: Figures) -> dict[str, dict[str, float]]:
    """Each metric of each image, the mean over the infills."""
    gray, random = (per_image(record, infill) for infill in INFILLS)
    return {metric: {image: (value + random[metric][image]) / 2 for image, value in gray[metric].items()}
            for metric in METRICS}  # fmt: skip


def compared(records: dict[str, Figures]) -> list[Figures]:
    """The figures of each schedule on one model, and their paired differences to those of `full`."""
    full, found = both_infills(records["full"]), []
    for record in records.values():
        own = both_infills(record)
        one: Figures = {key: record[key] for key in ("schedule", "model", "labels", "rows", "masks")}
        for metric in METRICS:
            both = [image for image in full[metric] if image in own[metric]]
            mine, theirs = (np.array([figures[metric][image] for image in both]) for figures in (own, full))
            difference = paired_difference(mine, theirs)
            several = difference.low is not None  # fewer than five images have no interval
            one[metric] = {
                "mean": float(mine.mean()), "difference": difference.value, "low": difference.low,
                "high": difference.high, "n": difference.n,
                "standard_error": float((mine - theirs).std(ddof=1) / np.sqrt(len(mine))) if several else None,
            }  # fmt: skip
        found.append(one)
    return found


def pooled(found: list[Figures]) -> list[Figures]:
    """The mean difference over models of each schedule that was measured on all of them, with its 95 % interval.

    It has none if a model has none.
    """
    models = {one["model"] for one in found}
    by_schedule = {one["schedule"]: [other for other in found if other["schedule"] == one["schedule"]] for one in found}
    rows = []
    for schedule, several in by_schedule.items():
        if {one["model"] for one in several} != models:
            continue
        row: Figures = {"schedule": schedule, "rows": float(np.mean([one["rows"] for one in several]))}
        for metric in METRICS:
            value = float(np.mean([one[metric]["difference"] for one in several]))
            errors = [one[metric]["standard_error"] for one in several]
            row[metric] = {"difference": value, "low": None, "high": None}
            if None not in errors:
                error = 1.96 * float(np.linalg.norm(errors)) / len(several)
                row[metric] |= {"low": value - error, "high": value + error}
        rows.append(row)
    return rows


def frontier_table(results: Figures) -> str:
    """Differences to `full` over all models, then on each."""
    parts = [f"{results['about']} Each figure is the mean of gray infill and of other images as infill; in brackets, "
             "95 % intervals of paired differences. Label specificity is in log-odds, not clipped.",
             "Over all models:", _table(results["pooled"])]  # fmt: skip
    for model in dict.fromkeys(one["model"] for one in results["schedules"]):
        own = [one for one in results["schedules"] if one["model"] == model]
        full = next(one for one in own if one["schedule"] == "full")
        means = ", ".join(f"{metric} {full[metric]['mean']:.3f}" for metric in METRICS)
        images = f"{full['completeness']['n']} images, labels {full['labels']}"
        parts += [f"{model}, {images}; quality full has {means}:", _table(own)]
    return "\n\n".join(parts)


def _table(rows: list[Figures]) -> str:
    """One line for each schedule, the cheapest last."""

    def text(figure: Figures) -> str:
        ends = "" if figure["low"] is None else f" ({figure['low']:+.3f} to {figure['high']:+.3f})"
        return f"{figure['difference']:+.3f}{ends}"

    ordered = sorted(rows, key=lambda one: -one["rows"])
    lines = [[one["schedule"], f"{one['rows']:,.0f}", *(text(one[metric]) for metric in METRICS)]
             for one in ordered if one["schedule"] != "full"]  # fmt: skip
    return table(["schedule", "images a mask", *METRICS], lines)


def plot(found: list[Figures]) -> str:
    """For each metric, the differences to `full` against what a mask costs, of all schedules and models."""
    charts: list[Chart] = []
    for metric in METRICS:
        series: list[Series] = []
        for model, (tone, shape) in zip(dict.fromkeys(one["model"] for one in found), MARKS, strict=False):
            points = [(float(np.log10(one["rows"])), one[metric]) for one in found if one["model"] == model]
            rows = [[x, value["difference"], *_ends(value), x, x] for x, value in points]
            series.append((model, tone, shape, np.array(rows)))
        ends = [end for one in found for end in _ends(one[metric])]
        charts.append((metric.capitalize(), Axis(2.5, 4.1, "images a mask, powers of ten"),
                       Axis(min(*ends, -0.02), max(*ends, 0.02), "difference to full"), series))  # fmt: skip
    return page(charts)


def _ends(figure: Figures) -> tuple[float, float]:
    """The interval of a difference; the difference itself where it has none."""
    low, high = (figure["difference"] if figure[end] is None else figure[end] for end in ("low", "high"))
    return low, high


def main() -> None:
    """Measure, or compare what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    measure_verb = verbs.add_parser("measure")
    measure_verb.add_argument("model", type=Path)
    measure_verb.add_argument("data", type=Path)
    measure_verb.add_argument("-o", "--out", type=Path, required=True)
    measure_verb.add_argument("--device", default="auto")
    measure_verb.add_argument("--precision", default="auto")
    measure_verb.add_argument("--card", type=Path)
    measure_verb.add_argument("--preset")
    measure_verb.add_argument("--labels", default="top2")
    measure_verb.add_argument("--images", type=int, default=150, help="that get masks")
    measure_verb.add_argument("--skip", type=int, default=0, help="images before those: a schedule was chosen on them")
    measure_verb.add_argument("--pictures", type=int, default=150, help="of the data that are used at all")
    measure_verb.add_argument("--only", action="append", choices=SCHEDULES)
    measure_verb.set_defaults(run=measured)
    table_verb = verbs.add_parser("table")
    table_verb.add_argument("folders", type=Path, nargs="+")
    table_verb.add_argument("--about", default="", help="a sentence above the table")
    table_verb.add_argument("--plot", type=Path)
    table_verb.set_defaults(run=printed)
    asked = parser.parse_args()
    asked.run(asked)


def printed(asked: argparse.Namespace) -> None:
    """The comparisons of all folders as one JSON object."""
    found: Figures = {"about": asked.about, "schedules": []}
    for folder in asked.folders:
        records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        found |= {key: records[0][key] for key in origin("benchmarks.frontier")}
        found["schedules"] += compared({record["schedule"]: record for record in records})
    found["pooled"] = pooled(found["schedules"])
    if asked.plot:
        asked.plot.write_text(plot(found["schedules"]))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
