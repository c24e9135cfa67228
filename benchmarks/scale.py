"""What many images cost beside the model: planning, looking for finished work, summing up, and the report.

    python -m benchmarks.scale > benchmarks/results/scale.json

The run is made up: pictures of 8 x 8 pixels, a map for each of ten labels, and the rows of a first unit, measured with
a function in the model's place, under other names and with other figures for all units. Each phase is measured in a
process of its own, whose largest memory is the system's figure, Python and its libraries included. Prints one JSON
object.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import auditkit
from auditkit.arrays import Array
from auditkit.data.atomic_write import append
from auditkit.data.bundles import Bundle, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.metrics.similarity import BYTES
from auditkit.model.classifier import AnyClassifier
from auditkit.records import to_object
from auditkit.report.html import render_html
from auditkit.report.load_run import load
from auditkit.report.markdown import table
from auditkit.runs.evaluate import evaluate
from auditkit.runs.evaluation.plan import EvaluationPlan, RunRecord, plan_evaluation, unit_keys, without_paths
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.explanation.record import FUNCTION, RECORD, Part, encoded, map_digest
from auditkit.runs.explanation.recorded_bundle import RecordedBundle
from auditkit.runs.folder.figures import Runtime
from auditkit.runs.folder.store import Store
from auditkit.runs.summary.results import results
from auditkit.runs.summary.summarise import summarise
from benchmarks.reporting import log, origin, printed_at_end

_SIDE, _LABELS, _AT_ONCE = 8, 10, 16  # pixels, labels of an image, images of a unit
_SETTINGS = Evaluation(labels=f"top{_LABELS}")
_RUNTIME = Runtime(None, 0, 0.0, None, None, None, None, None, None)
_MEASURED = ("prob", "insertion", "deletion", "alpha", "beta")  # columns that differ from unit to unit
_MEGABYTE = 2**20


def _classify(pictures: Array) -> Array:
    """Scores of ten classes: the mean of ten parts of the picture."""
    parts = np.array_split(pictures.reshape(len(pictures), -1), _LABELS, axis=1)
    return np.stack([part.mean(axis=1) for part in parts], axis=1)


@dataclass(frozen=True)
class _Material:
    """The folder of a run that is made up, and of what it is about."""

    folder: Path

    def plan(self) -> EvaluationPlan:
        """The plan, as an evaluation makes it."""
        images = Dataset.open(self.folder / "images", _LABELS)
        bundles = {"maps": open_bundle(self.folder / "maps")}
        return plan_evaluation(_model(), images, bundles, _SETTINGS, None)

    def keys(self, plan: EvaluationPlan, record: RunRecord) -> dict[range, str]:
        """The units of a run by their keys."""
        return unit_keys([record], plan.span.pixels, plan.model.device, plan.settings)

    @contextmanager
    def store(self, record: RunRecord) -> Iterator[Store]:
        """The run, open."""
        with Store.open(self.folder / "run", without_paths(to_object(record))) as store:
            yield store

    def make(self, count: int) -> None:
        """Write the images, the maps and the rows."""
        rng = np.random.default_rng(count)
        (self.folder / "images").mkdir()
        bundle = Bundle(self.folder / "maps", method="noise")
        labels = list(range(_LABELS))
        for start in range(0, count, _AT_ONCE):
            names = [f"{position:06}.png" for position in range(start, min(start + _AT_ONCE, count))]
            for name in names:
                pixels = rng.integers(0, 256, (_SIDE, _SIDE, 3), np.uint8)
                Image.fromarray(pixels).save(self.folder / "images" / name, compress_level=1)
            maps = rng.standard_normal((len(names), _LABELS, _SIDE, _SIDE), np.float32)
            bundle.create()
            append(bundle.path / RECORD, _record_line(names, maps))
            bundle.add(names, labels, maps, layout="NKHW")
        plan = self.plan()
        record = plan.record()
        first = _first_unit(plan)
        with self.store(record) as store:
            for unit, key in self.keys(plan, record).items():
                store.write(key, _made_up(first, [plan.images.ids[position] for position in unit], rng))


def _record_line(names: list[str], maps: Array) -> bytes:
    """The line of the record that some maps have beside them."""
    digests = {name: {str(label): map_digest(values) for label, values in enumerate(of_image)}
               for name, of_image in zip(names, maps, strict=True)}  # fmt: skip
    return encoded(Part(dict.fromkeys(names, ""), digests, 0, 0, FUNCTION, (), ""))


def _model() -> AnyClassifier:
    return auditkit.load(_classify, size=(_SIDE, _SIDE))


def _first_unit(plan: EvaluationPlan) -> Any:
    """The rows of the first images, measured."""
    images = plan.images.select(range(_AT_ONCE))
    (rows,) = evaluate(plan.model, images, plan.bundles, _SETTINGS).tables()
    return rows


def _made_up(rows: Any, names: list[str], rng: np.random.Generator) -> Any:
    """The rows of other images: the same ones with other names, figures and fingerprints."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import

    before = rows.column("image").to_pylist()
    numbers = {name: number for number, name in enumerate(dict.fromkeys(before))}
    of_image = np.array([numbers[name] for name in before])
    rows = rows.filter(pa.array(of_image < len(names)))
    of_image = of_image[of_image < len(names)]
    columns: dict[str, Any] = {"image": pa.array([names[number] for number in of_image])}
    for name in _MEASURED:
        values = rows.column(name).to_numpy().astype(np.float64) + rng.uniform(-0.01, 0.01, len(of_image))
        columns[name] = pa.array(np.clip(values, 0, 1), from_pandas=True)
    bits = rng.random((len(of_image), BYTES * 8), np.float32) < np.repeat([0.1, 0.4], BYTES * 4)
    tops = np.packbits(bits, axis=1)  # a tenth of the pixels, and those above the mean
    columns["map_top"] = pa.array([top.tobytes() for top in tops], pa.binary(BYTES))
    digests = rng.integers(0, 2**60, len(of_image)).tolist()
    columns["map_digest"] = pa.array([f"{digest:032x}"[::-1] for digest in digests])
    for name, column in columns.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def _plan(material: _Material) -> dict[str, Any]:
    """Planning, and finding out that all units are done."""
    plan = material.plan()
    record = plan.record()
    keys = material.keys(plan, record)
    with material.store(record) as store:
        stored = set(store.keys())
        missing = [unit for unit, key in keys.items() if key not in stored]
    if missing:
        raise RuntimeError(f"{len(missing)} units are missing")
    return {"units": len(keys), "maps": len(plan.bundles["maps"])}


def _maps(material: _Material) -> dict[str, Any]:
    """Opening a bundle to continue it, and finding out that it has all maps."""
    with RecordedBundle(Bundle(material.folder / "maps", method="noise")) as bundle:
        missing = [name for name in bundle.record.images if len(bundle.labels_of(name)) < _LABELS]
    if missing:
        raise RuntimeError(f"{len(missing)} images lack maps")
    return {}


def _summary(material: _Material) -> dict[str, Any]:
    """The results of all rows, written."""
    plan = material.plan()
    record = plan.record()
    keys = material.keys(plan, record)
    begin = time.perf_counter()
    with material.store(record) as store:
        summary = summarise(partial(store.tables, keys.values()), plan.settings, _RUNTIME, record)
        store.finish(results(summary))
    return {"rows": len(summary.table), "seconds": time.perf_counter() - begin}


def _report(material: _Material) -> dict[str, Any]:
    """The page."""
    page = render_html(load(material.folder / "run"))
    return {"page_bytes": len(page.encode())}


_WORK: dict[str, Callable[[_Material], dict[str, Any]]] = {
    "first plan": _plan, "plan": _plan, "first maps": _maps, "maps": _maps, "summary": _summary, "report": _report,
}  # fmt: skip


def _measure_here(phase: str, folder: Path) -> dict[str, Any]:
    """Seconds and memory of a phase in this process."""
    begin = time.perf_counter()
    facts = _WORK[phase](_Material(folder))
    seconds = facts.pop("seconds", time.perf_counter() - begin)
    return {"phase": phase, "seconds": round(seconds, 2), "peak_mb": _peak(), **facts}


def _peak() -> int:
    """The largest memory of this process in MB; getrusage would count that of the process which started it, too."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 // _MEGABYTE


def _measured(phase: str, folder: Path) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale", "--phase", phase, "--folder", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def exponents(lines: list[dict[str, Any]], figure: str) -> dict[str, float]:
    """By which power of the number of images a figure of each phase grows: a straight line through the logarithms."""
    powers = {}
    for phase in dict.fromkeys(line["phase"] for line in lines):
        points = [(line["images"], line[figure]) for line in lines if line["phase"] == phase and line[figure] > 0]
        if len({images for images, _ in points}) > 1:
            images, figures = np.log(np.array(points)).T
            powers[phase] = round(float(np.polyfit(images, figures, 1)[0]), 2)
    return powers


def scale_table(found: dict[str, Any]) -> str:
    """Time and memory of each phase, and how both grow."""
    rows = [[f"{line['images']:,}", line["phase"], f"{line['seconds']:,.1f}", f"{line['peak_mb']:,}",
             f"{line['page_bytes'] / 1e6:.2f}" if "page_bytes" in line else ""] for line in found["lines"]]  # fmt: skip
    text = table(["images", "phase", "s", "peak memory, MB", "page, MB"], rows)
    largest = sorted({line["images"] for line in found["lines"]})[-2:]
    last = [line for line in found["lines"] if line["images"] in largest]
    columns = [
        found["time_exponents"],
        found["memory_exponents"],
        exponents(last, "seconds"),
        exponents(last, "peak_mb"),
    ]
    growth = [[phase, *(f"{powers[phase]:.2f}" if phase in powers else "" for powers in columns)]
              for phase in found["time_exponents"]]  # fmt: skip
    about = (f"{found['labels']} labels an image. `first plan` hashes images and maps, `plan` finds their hashes in "
             "the cache; both end when the units that are missing are known. `maps` opens a bundle to continue it, for "
             "the first time and again. Python and its libraries alone take "
             f"{found['idle_mb']} MB. Time and memory grow with these powers of the number of "
             "images. Over all sizes they look lower than at the end: some of the memory is always the same, and up "
             "to 5,000 images the summary resamples them for its intervals, which takes much of its time.")  # fmt: skip
    head = ["phase", "time", "memory", "time, two largest sizes", "memory, two largest sizes"]
    return f"{text}\n\n{about}\n\n{table(head, growth)}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 10_000, 50_000])
    parser.add_argument("--folder", type=Path, help="of a run that was made up before, for --phase")
    parser.add_argument("--phase", choices=_WORK, help="measure this one alone, here")
    arguments = parser.parse_args()
    if arguments.phase:
        print(json.dumps(_measure_here(arguments.phase, arguments.folder)))
        return
    found: dict[str, Any] = {**origin("benchmarks.scale"), "labels": _LABELS, "idle_mb": _peak(), "lines": []}
    with printed_at_end(found):
        for count in arguments.images:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["XDG_CACHE_HOME"] = f"{folder}/cache-of-making"
                _Material(Path(folder)).make(count)
                os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"  # empty, so that the first plan hashes all files
                for phase in _WORK:
                    found["lines"].append({"images": count, **_measured(phase, Path(folder))})
                    log(found["lines"][-1])
        for name, figure in (("time_exponents", "seconds"), ("memory_exponents", "peak_mb")):
            found[name] = exponents(found["lines"], figure)


if __name__ == "__main__":
    main()
