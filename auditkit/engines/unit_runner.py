"""What runs in a process of an engine: it opens the models that work needs, and runs units of it.

The vendor's graph runs in a guarded worker of this process, as it does in the main process.
"""

import pickle
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

from auditkit.data.dataset import Dataset
from auditkit.engines.travel import Part, Recipe, unpacked
from auditkit.errors import AuditError, RuntimeFailure
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.device import Location, location
from auditkit.model.messages import Value

_TICK_SECONDS = 0.5  # between two messages about progress
_MOST_MODELS = 2  # that are kept open: the audited one, and the last one that was derived from it


@dataclass(frozen=True)
class Job:
    """Work, pickled, with the recipes of its models and with its datasets."""

    number: int
    content: bytes
    recipes: Mapping[str, bytes]  # of its models, and its datasets, by key; a process is sent those that it lacks
    at_once: int  # units on the device at the same time
    folder: str  # of the main process, which relative paths refer to


def outcome(call: Callable[[], Value]) -> tuple[str, Value]:
    """The result of a call, or its error as one of auditkit's own, which the main process can unpickle."""
    try:
        return "result", call()
    except AuditError as error:
        return "error", error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return "error", RuntimeFailure(f"internal error in a worker process ({reason}); please report it.")


class UnitRunner:
    """Runs units of the job that it loaded last."""

    def __init__(self, threads: int) -> None:
        """`threads` is its share of the machine's cores."""
        self._threads = threads
        self._models: dict[str, OnnxClassifier] = {}
        self._datasets: dict[str, Dataset] = {}
        self._job: tuple[int, Value, threading.Semaphore] | None = None

    def lacks(self, keys: Iterable[str]) -> list[str]:
        """Which of these models and datasets, those of the next job, are not here; it needs no other datasets."""
        self._datasets = {key: self._datasets[key] for key in keys if key in self._datasets}
        return [key for key in keys if key not in self._models and key not in self._datasets]

    def load(self, job: Job) -> None:
        """Prepare for the units of a job; earlier jobs are over."""
        for key, content in job.recipes.items():
            recipe: Recipe | Dataset = pickle.loads(content)  # noqa: S301 - from the main process
            if isinstance(recipe, Dataset):
                self._datasets[key] = recipe
                continue
            while len(self._models) >= _MOST_MODELS:
                self._close(list(self._models)[1 if len(self._models) > 1 else 0])
            self._models[key] = recipe.opened(self._threads)
        parts: dict[str, Part] = {**self._models, **self._datasets}
        self._job = job.number, unpacked(job.content, parts), threading.Semaphore(job.at_once)

    @property
    def where(self) -> Location:
        """Where its units run."""
        return location(next(iter(self._models.values())).settings.device)

    def _close(self, key: str) -> None:
        worker = self._models.pop(key).settings.worker
        if worker is not None:
            worker.close()

    def run(self, number: int, unit: Value, tick: Callable[[float, int], None]) -> Value:
        """What the work returns for a unit; several threads may call this."""
        if self._job is None or self._job[0] != number:
            raise RuntimeError(f"job {number} was not loaded")
        _, work, semaphore = self._job
        device: AbstractContextManager[Value] = semaphore
        with _Gathered(tick) as gathered:
            return work(unit, device, gathered)


class _Gathered:
    """Progress that is sent a few times a second: each message takes time of both processes."""

    def __init__(self, tick: Callable[[float, int], None]) -> None:
        self._tick, self._sent = tick, time.monotonic()
        self._done, self._rows = 0.0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._send()

    def __call__(self, done: float, rows: int = 0) -> None:
        self._done, self._rows = self._done + done, self._rows + rows
        if time.monotonic() - self._sent >= _TICK_SECONDS:
            self._send()

    def _send(self) -> None:
        self._tick(self._done, self._rows)
        self._done, self._rows, self._sent = 0.0, 0, time.monotonic()
