"""What a run says of itself, read from its own files and believed only as far as it is checked."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.errors import BadInput
from auditkit.metrics.curves import parse_steps
from auditkit.model.card import Card
from auditkit.model.device import CPU, PROFILES
from auditkit.records import Json
from auditkit.runs.evaluation.curves import Span
from auditkit.runs.evaluation.plan import unit_keys
from auditkit.runs.evaluation.runtime_check import Runtime
from auditkit.runs.evaluation.settings import CurvePair, Evaluation, curve_pairs, resolved, units
from auditkit.runs.folder import results as results_types
from auditkit.runs.folder.results import Results
from auditkit.runs.folder.store import Store

MOST_IMAGES = 10**7  # more than any run has; a file that was tampered with may say anything
ROUNDING = 1e-9  # between a number that is stored and the same one summed up again, perhaps on another machine
OF_THE_PROTOCOL = ("renormalise", "infill", "eps1", "eps2", "ties")  # settings that a protocol brings itself


@dataclass(frozen=True)
class Recorded:
    """What the evaluation in a run was about, and how it was done."""

    store: Store
    run: Mapping[str, Any]  # what run.json says that the run is
    results: Results
    plain: Mapping[str, Json]  # results.json as it was written
    about: Mapping[str, Any]  # what the keys of its units are the digests of
    asked: Evaluation  # settings as they can be given again
    settings: Evaluation  # the same, resolved
    runtime: Runtime | None  # None: no map could be used, so that there are no rows
    card: Card  # without the names of the classes
    units: Mapping[range, str]  # the key of each

    @classmethod
    def of(cls, folder: Path) -> "Recorded":
        """What run.json and results.json say; refused where that cannot have been written by an evaluation."""
        store = Store(folder)
        run, plain, results = store.settings(), store.plain_results(), store.results()
        try:
            about = _about(plain)
            asked, subject = _asked(about["settings"]), about["subject"]
            settings = resolved(asked, subject["classes"])
            if said := list(differences(about["settings"], settings.to_json())):
                raise ValueError(f"its settings do not belong together: {said[0]}")
            card, runtime = _card(subject["card"]), _runtime(results.runtime)
            keys = {} if runtime is None else _keys(about, card)
            return cls(store, run, results, plain, about, asked, settings, runtime, card, keys)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            said_why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            raise BadInput(f"{folder} does not hold an evaluation of this auditkit's: {said_why}.") from None

    @property
    def curve_pairs(self) -> tuple[CurvePair, ...]:
        """The curves that its settings ask for."""
        return curve_pairs(self.settings)

    @property
    def span(self) -> Span:
        """The keep counts over which its areas are taken."""
        return Span.of(self.settings, self.card.size[0] * self.card.size[1])

    def unit_of(self, position: int) -> range:
        """The unit that an image is in."""
        return next(unit for unit in self.units if position in unit)


def _about(results: Any) -> dict[str, Any]:
    """What an evaluation puts into the keys of its units; its results say all of it."""
    of_run = {name: results["run"][name] for name in ("bundles", "bundle_paths", "pool", "infill_images")}
    return of_run | {name: results[name] for name in ("subject", "settings", "failed_images", "environment")}


def _keys(about: Mapping[str, Any], card: Card) -> dict[range, str]:
    count = int(about["subject"]["images"]["count"])
    if not 0 < count <= MOST_IMAGES:
        raise ValueError(f"it has {count} images")
    every = units(count, card.size[0] * card.size[1], PROFILES[about["environment"].get("device", CPU.name)])
    return unit_keys(about, every)


def _asked(said: Mapping[str, Any]) -> Evaluation:
    own = OF_THE_PROTOCOL if said["protocol"] is not None else ()
    given: dict[str, Any] = {name: value for name, value in said.items() if name not in (*own, "conventions")}
    given |= {"steps": parse_steps(said["steps"]), "range": tuple(said["range"])}
    if "infill" in given:
        given["infill"] = tuple(given["infill"])
    return Evaluation(**given)


def _card(said: Mapping[str, Any]) -> Card:
    fitted: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    del fitted["class_names"]
    return Card(**fitted)


def _runtime(recorded: results_types.Runtime | None) -> Runtime | None:
    if recorded is None:
        return None
    return Runtime(recorded.rows, recorded.repeated, recorded.largest, recorded.mean, recorded.insertion,
                   recorded.alpha, recorded.beta, recorded.note or "")  # fmt: skip


def differences(recorded: Any, found: Any, where: str = "") -> Iterator[str]:
    """Where what is recorded is not what was found; what else it says is left alone, but lists are whole."""
    if isinstance(found, Mapping):
        held = recorded if isinstance(recorded, Mapping) else {}
        for name, value in found.items():
            yield from differences(held.get(name), value, f"{where}.{name}" if where else name)
    elif isinstance(found, list | tuple):
        listed = recorded if isinstance(recorded, list) else []
        if len(listed) != len(found):
            yield f"{where or 'the list'} has {len(listed)} entries, {len(found)} are expected"
        for place, (mine, value) in enumerate(zip(listed, found, strict=False)):
            yield from differences(mine, value, f"{where}[{place}]{_named(value)}")
    elif not _equal(recorded, found):
        yield f"{where or 'the value'} is {recorded!r:.80}, expected {found!r:.80}"


def _named(value: Any) -> str:
    said = value if isinstance(value, Mapping) else {}
    return f" ({said['name']} of {said.get('bundle') or 'the model'})" if "name" in said else ""


def _equal(recorded: Any, found: Any) -> bool:
    if isinstance(found, np.generic):
        found = found.item()
    if isinstance(found, float) and not math.isfinite(found):
        return recorded is None
    if type(found) in (int, float) and type(recorded) in (int, float):
        return math.isclose(recorded, found, rel_tol=ROUNDING, abs_tol=ROUNDING)
    return type(recorded) is type(found) and recorded == found
