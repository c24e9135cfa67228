"""A run as its own files describe it; nothing in them is trusted before it is checked."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from auditkit import __version__
from auditkit.errors import BadInput
from auditkit.metrics.curves import parse_steps
from auditkit.model.card import Card
from auditkit.model.device import CPU, PROFILES
from auditkit.records import Json, to_object
from auditkit.runs.evaluation.curves import Span
from auditkit.runs.evaluation.plan import RunRecord, unit_keys
from auditkit.runs.evaluation.settings import Evaluation, resolved
from auditkit.runs.folder.names import RESULTS
from auditkit.runs.folder.results import CardValue, Results, Settings
from auditkit.runs.folder.store import Store

MOST_MISSING = 1000  # parts; a changed file may hold any number of images
ROUNDING = 1e-7  # relative, between a stored number and the same one recomputed; versions of scipy differ by 2e-9
OF_THE_PROTOCOL = ("renormalise", "infill", "eps1", "eps2", "ties")  # settings that a protocol fixes
ROW_KEY = ("image", "label", "bundle", "infill")  # what tells a row from others; its name in words may not
PlainRecord = Mapping[str, Any]  # a JSON object as it was written
StoredRow = Mapping[str, Any]  # a row of a Parquet file, by column


@dataclass(frozen=True)
class Outcome:
    """What a check found."""

    about: str  # what holds, with counts
    problems: Sequence[str] = ()
    unchecked: Sequence[str] = ()  # what could not be checked, why, and the way out


@dataclass(frozen=True)
class RecordedRun:
    """What a run evaluated, and how."""

    store: Store
    run: PlainRecord  # run.json
    results: Results  # without a runtime if no map could be used, so that there are no rows
    plain: Mapping[str, Json]  # results.json
    about: PlainRecord  # the keys of its units are digests of this
    requested: Evaluation  # settings as a user would give them
    settings: Evaluation  # the same, resolved
    card: Card  # without the names of the classes
    units: Mapping[range, str]  # the key of each

    @classmethod
    def of(cls, folder: Path) -> "RecordedRun":
        """The run in a folder; BadInput if no evaluation can have written run.json and results.json."""
        store = Store(folder)
        run, plain = store.settings(), store.plain_results()
        results = Results.parse(plain, folder / RESULTS)
        try:
            record = RunRecord.of(results)
            about: PlainRecord = to_object(record)
            requested = _evaluation(results.settings)
            settings = resolved(requested, results.subject.classes)
            for difference in differences(about["settings"], to_object(settings.to_record())):
                raise ValueError(f"its settings do not belong together: {difference}")
            card = _card(results.subject.card)
            keys = {} if results.runtime is None else _unit_keys(record, results, card, settings, len(store.keys()))
            return cls(store, run, results, plain, about, requested, settings, card, keys)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            raise BadInput(f"{folder} does not hold an evaluation of this auditkit's: {reason}.") from None

    @property
    def other_version(self) -> str:
        """What to do about a run of another version, whose words and formats this one does not know; else empty."""
        version = self.results.tool.version
        return "" if version == __version__ else f"auditkit {version} wrote it; verify it with that version"

    @property
    def failed_by_model(self) -> dict[str, str]:
        """The images that are sound, but that the model is said to fail on, and why."""
        return {entry.image: entry.reason for entry in self.results.failed_images if entry.by_model}

    @property
    def span(self) -> Span:
        """The keep counts over which its areas are taken."""
        return Span.of(self.settings, self.card.size[0] * self.card.size[1])


def _unit_keys(
    record: RunRecord, results: Results, card: Card, settings: Evaluation, parts: int
) -> dict[range, str]:  # fmt: skip
    count, device = results.subject.images.count, PROFILES[results.environment.get("device", CPU.name)]
    if not 0 < count <= (parts + MOST_MISSING) * device.unit_images:
        raise ValueError(f"it has {count} images, but {parts} parts")
    earlier = results.run.taken.earlier if results.run.taken else ()
    sizes = [*(batch.images for batch in earlier), count]
    if sizes[0] < 1 or sizes != sorted(set(sizes)):
        raise ValueError(f"it took {sizes} images, which do not grow")
    return unit_keys(record.batches(earlier), card.size[0] * card.size[1], device, settings)


def _evaluation(settings: Settings) -> Evaluation:
    omitted = ("conventions", *(OF_THE_PROTOCOL if settings.protocol is not None else ()))
    values = {name: value for name, value in vars(settings).items() if name not in omitted}
    return Evaluation(**values | {"steps": parse_steps(settings.steps)})


def _card(recorded: Mapping[str, CardValue]) -> Card:
    values: dict[str, Any] = {"exif_orientation": False, **recorded}  # a run that does not say so did not apply it
    del values["class_names"]
    return Card(**values)


def differences(recorded: object, expected: object, where: str = "") -> Iterator[str]:
    """Differences between recorded and expected values."""
    if isinstance(expected, Mapping):
        values = recorded if isinstance(recorded, Mapping) else {}
        yield from (f"{where or 'the record'} has an entry '{name}', which is not expected" for name in values
                    if name not in expected)  # fmt: skip
        for name, value in expected.items():
            yield from differences(values.get(name), value, f"{where}.{name}" if where else name)
    elif isinstance(expected, list | tuple):
        entries = recorded if isinstance(recorded, list) else []
        if len(entries) != len(expected):
            yield f"{where or 'the list'} has {len(entries)} entries, {len(expected)} are expected"
        for index, (entry, value) in enumerate(zip(entries, expected, strict=False)):
            yield from differences(entry, value, f"{where}[{index}]{_figure_name(value)}")
    elif not _equal(recorded, expected):
        yield f"{where or 'the value'} is {recorded!r:.80}, expected {expected!r:.80}"


def _figure_name(value: object) -> str:
    if not isinstance(value, Mapping) or "name" not in value:
        return ""
    return f" ({value['name']} of {value.get('bundle') or 'the model'})"


def _equal(recorded: object, expected: object) -> bool:
    if isinstance(expected, np.generic):
        expected = expected.item()
    if isinstance(expected, float) and not math.isfinite(expected):
        return recorded is None
    numbers = (int, float)
    if isinstance(expected, numbers) and isinstance(recorded, numbers) and bool not in (type(expected), type(recorded)):
        return math.isclose(recorded, expected, rel_tol=ROUNDING, abs_tol=ROUNDING / 100)
    return type(recorded) is type(expected) and recorded == expected
