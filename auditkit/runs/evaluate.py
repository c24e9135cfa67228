"""Heatmaps evaluated over a set of images: every unit run once, its rows kept, and all of them summed up."""

import hashlib
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.data.heatmaps import HeatmapSet, open_bundle
from auditkit.data.images import ImageSet
from auditkit.errors import BadInput
from auditkit.metrics.faithfulness import choose_labels, default_labels
from auditkit.model.classifier import CallableClassifier, OnnxClassifier
from auditkit.model.masked import Masked, masked
from auditkit.model.signature import to_probabilities
from auditkit.runs.parts import COLUMNS
from auditkit.runs.plan import Evaluation, units
from auditkit.runs.prepare import Prepared, look, prepare
from auditkit.runs.record import environment, results, subject
from auditkit.runs.store import Store
from auditkit.runs.summary import Summary, summarise
from auditkit.runs.unit import Row, run_unit

Array = np.ndarray[Any, Any]
AnyClassifier = OnnxClassifier | CallableClassifier
Progress = Callable[[int], Callable[[int], None]]
AHEAD = 2  # units made ready while one runs
HEAVY_COLUMNS = ["keep_counts", "curve"]  # that no aggregate needs


@dataclass(frozen=True)
class Work:
    """All that an evaluation is about."""

    model: AnyClassifier
    images: ImageSet
    bundles: Mapping[str, HeatmapSet]
    pool: ImageSet
    settings: Evaluation

    def about(self) -> dict[str, Any]:
        """All that can change a number: a folder with a run about something else is refused."""
        return {
            "subject": subject(self.model, self.images),
            "settings": self.settings.to_json(),
            "bundles": {name: digest(bundle) for name, bundle in self.bundles.items()},
            "pool": self.pool.digest() if self.settings.infill == "random" else None,
            "environment": environment(self.model),
        }


@dataclass(frozen=True)
class Ready:
    """A unit whose images the model has seen whole, and whose banks are made."""

    ids: tuple[str, ...]
    prob: Array  # [images, classes]
    predicted: Array
    prepared: Prepared


def named(paths: Sequence[Path]) -> dict[str, HeatmapSet]:
    """Bundles by the names of their folders, numbered where two are the same."""
    found: dict[str, HeatmapSet] = {}
    for path in paths:
        name, number = path.resolve().name, 2
        unique = name
        while unique in found:
            unique, number = f"{name}-{number}", number + 1
        found[unique] = open_bundle(path)
    return found


def evaluate(
    model: AnyClassifier, images: ImageSet, bundles: Mapping[str, HeatmapSet], settings: Evaluation,
    out: Path | None = None, progress: Progress = lambda _total: lambda _done: None, pool: ImageSet | None = None,
) -> Summary:  # fmt: skip
    """Every metric of every bundle and control, with intervals over the images; kept in `out` when one is named."""
    settings = replace(settings, labels=settings.labels or str(default_labels(model.signature.classes)))
    work = Work(model, images, bundles, images if pool is None else pool, settings)
    check(work)
    tick = progress(len(images))
    over = masked(model)
    every = list(units(len(images)))
    with _quick_handover():
        if out is None:
            return summarise([row for _, rows in _rows(work, over, every, tick) for row in rows], settings)
        about = work.about()
        with Store.open(out, about) as store:
            keys = {unit: Store.key({"about": about, "unit": [unit.start, unit.stop]}) for unit in every}
            todo = [unit for unit in every if not store.has(keys[unit])]
            tick(len(images) - sum(len(unit) for unit in todo))
            for unit, rows in _rows(work, over, todo, tick):
                store.write(keys[unit], {name: [row.get(name) for row in rows] for name in COLUMNS})
            tables = (table.drop_columns(HEAVY_COLUMNS) for table in store.tables(keys.values()))
            summary = summarise([row for table in tables for row in table.to_pylist()], settings)
            store.finish(results(about, summary))
    return summary


@contextmanager
def _quick_handover() -> Iterator[None]:
    """Let threads take turns often: the one that feeds the device must not wait for the one that prepares."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def check(work: Work) -> None:
    """Refuse what cannot be evaluated, before any work is done."""
    if not len(work.images):
        raise BadInput(f"{work.images.source} holds no images.")
    if len(set(work.images.ids)) < len(work.images):
        twice = next(name for name in work.images.ids if work.images.ids.count(name) > 1)
        raise BadInput(f"{work.images.source} has the image '{twice}' twice; every image counts once.")
    if work.settings.infill == "random" and len(set(work.pool.ids)) < 2:
        raise BadInput("random infill needs at least two images; give more, or a --pool.")
    if not work.bundles and not work.settings.controls:
        raise BadInput("there is nothing to evaluate: give --heatmaps, or leave the controls on.")
    identity = work.model.file.identity if isinstance(work.model, OnnxClassifier) else None
    for name, bundle in work.bundles.items():
        if not set(bundle.labels) & set(work.images.ids):
            first = next(iter(bundle.labels), "none")
            raise BadInput(f"bundle {name} has no map for any of the images; its first image is '{first}'.")
        if identity and bundle.header.model and bundle.header.model != identity:
            raise BadInput(
                f"bundle {name} was made for the model {bundle.header.model[:12]}..., but this one is "
                f"{identity[:12]}...; maps of another model say nothing about this one."
            )


def digest(bundle: HeatmapSet) -> str:
    """Digest of a bundle's every file."""
    found = hashlib.sha256()
    for path in sorted(p for p in bundle.path.rglob("*") if p.is_file()):
        found.update(str(path.relative_to(bundle.path)).encode("utf-8", "surrogateescape"))
        with path.open("rb") as stream:
            found.update(hashlib.file_digest(stream, "sha256").digest())
    return found.hexdigest()


def _ready(work: Work, unit: range) -> Ready:
    """Decode a unit's images, ask the model about them whole, and make the banks for all the rest."""
    model = work.model
    seen = look(unit, work.images, model.card, model.signature)
    prob = to_probabilities(model.scores(seen.shown), model.signature.kind).astype(np.float32).astype(np.float64)
    predicted, labels = prob.argmax(axis=1), choose_labels(prob, work.settings.labels)
    banks = prepare(seen, model.card, model.signature, labels, predicted, work.bundles, work.settings, work.pool)
    return Ready(seen.ids, prob, predicted, banks)


def _rows(
    work: Work, over: Masked, todo: Sequence[range], tick: Callable[[int], None]
) -> Iterator[tuple[range, list[Row]]]:
    """Rows of the units in order, the next ones being made ready while one runs."""
    with ThreadPoolExecutor(AHEAD) as workers:
        coming = deque(workers.submit(_ready, work, unit) for unit in todo[:AHEAD])
        for place, unit in enumerate(todo):
            ready = coming.popleft().result()
            coming.extend(workers.submit(_ready, work, later) for later in todo[place + AHEAD : place + AHEAD + 1])
            yield unit, run_unit(over, ready.prepared, ready.ids, ready.prob, ready.predicted, work.settings)
            tick(len(unit))
