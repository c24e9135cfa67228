"""How work travels to another process: pickled, with a key for each model and dataset, which are sent only once."""

import hashlib
import io
import pickle
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from auditkit.data.dataset import Dataset
from auditkit.model.card import Card
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.gradient_check import Check
from auditkit.model.messages import Value
from auditkit.model.read import OnnxFile
from auditkit.model.session import Settings
from auditkit.model.signature import Signature
from auditkit.model.worker import Worker

Part = OnnxClassifier | Dataset


@dataclass(frozen=True)
class Recipe:
    """All that another process needs to open the same classifier: it needs no file."""

    file: OnnxFile
    signature: Signature
    card: Card
    settings: Settings  # resolved; without this process's worker and engine
    name: str  # of the model, in messages
    memory_bytes: int | None
    gradient_checks: dict[str, Check]

    @classmethod
    def of(cls, model: OnnxClassifier) -> "Recipe":
        """The recipe of an open classifier."""
        worker = model.settings.worker
        return cls(
            model.file, model.signature, model.card, replace(model.settings, worker=None, engine=None),
            model.file.path.name, None if worker is None else worker.memory_bytes, model.gradient_checks,
        )  # fmt: skip

    def opened(self, threads: int) -> OnnxClassifier:
        """The classifier in a guarded worker of this process, with so many threads on a CPU."""
        worker = None if self.settings.in_process else Worker(self.name, self.memory_bytes)
        settings = replace(self.settings, worker=worker, threads=self.settings.threads or threads)
        return OnnxClassifier(self.file, self.signature, self.card, settings, self.gradient_checks)


class Recipes(Mapping[str, bytes]):
    """The recipes of models, and datasets, by their keys, each pickled when a process first lacks it."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts, self._pickled, self._lock = parts, dict[str, bytes](), threading.Lock()

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, key: str) -> bytes:
        with self._lock:
            if key not in self._pickled:
                part = self._parts[key]
                self._pickled[key] = pickle.dumps(part if isinstance(part, Dataset) else Recipe.of(part))
            return self._pickled[key]


def model_key(model: OnnxClassifier) -> str:
    """A digest that tells classifiers apart."""
    facts = (model.identity, model.signature, model.card, model.settings)  # whose text names neither worker nor engine
    return hashlib.sha256(repr(facts).encode()).hexdigest()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.parts: dict[str, Part] = {}

    def persistent_id(self, value: Value) -> str | None:
        if not isinstance(value, Part):
            return None
        key = value.key if isinstance(value, Dataset) else model_key(value)
        self.parts[key] = value
        return key


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, parts: Mapping[str, Part]) -> None:
        super().__init__(io.BytesIO(content))
        self._parts = parts

    def persistent_load(self, key: Value) -> Part:
        return self._parts[key]


def packed(work: object) -> tuple[bytes, dict[str, Part]]:
    """Work as bytes, and the models and datasets that it refers to by their keys."""
    content = io.BytesIO()
    pickler = _Pickler(content)
    pickler.dump(work)
    return content.getvalue(), pickler.parts


def unpacked(content: bytes, parts: Mapping[str, Part]) -> Value:
    """The work, with these models and datasets."""
    return _Unpickler(content, parts).load()
