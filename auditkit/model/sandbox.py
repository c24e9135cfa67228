"""The first load and run of an unknown file, in a worker under tighter limits than later.

The worker reads the file, examines it and runs it on noise. If the runtime crashes, only the worker dies, and the
caller gets an error message. A worker whose file passed goes on to run it.
"""

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from auditkit.errors import BadInput, RuntimeFailure
from auditkit.model.read import Limits, OnnxFile, file_size, read
from auditkit.model.signature import Overrides, Signature
from auditkit.model.worker import Worker, WorkerLost
from auditkit.records import from_json, to_json

_START_SECONDS = 5  # for the worker itself
_MOST_FILES = 10_000  # of a folder whose size is estimated

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The signature that the worker found, the digest of exactly what it read, and the worker."""

    signature: T
    identity: str
    worker: Worker | None

    def reopened(self, path: Path, limits: Limits) -> OnnxFile:
        """The file that the worker examined, read again in this process."""
        file = read(path, limits)
        if file.identity != self.identity:
            raise BadInput(f"{path} was modified while it was being opened; try again.")
        return file


def attempt(path: Path, overrides: Overrides, limits: Limits) -> Outcome[Signature]:
    """The first load and run of a classifier's file; raises BadInput with the reason when the file is refused."""
    return guarded(path, "classifier", overrides, limits, Signature)


def guarded(
    path: Path, examiner: Literal["classifier", "masking network"], expected: object, limits: Limits,
    signature_type: type[T],
) -> Outcome[T]:  # fmt: skip
    """What an examiner finds out about a file in a worker."""
    size, name = file_size(path, limits), path.name
    seconds = limits.seconds_for(size + _beside(path))
    worker = Worker(name, limits.run_memory_for(size))
    arguments = str(path), size, examiner, to_json(expected), to_json(limits)
    try:
        reply = worker.call("examine", *arguments, seconds=seconds + _START_SECONDS)
        facts = reply if isinstance(reply, dict) else {}
        signature = from_json(signature_type, facts.get("signature"), "signature")
        return Outcome(signature, str(facts.get("identity")), worker)
    except WorkerLost as error:
        raise BadInput(_refusal(error, name, limits, seconds)) from None
    except (BadInput, RuntimeFailure) as error:
        raise BadInput(str(error) if str(error).startswith(name) else f"{name}: {error}") from None


def _beside(path: Path) -> int:
    """Bytes of the plain files in the model's folder: about as much as its external data can be."""
    try:
        with os.scandir(path.parent) as entries:
            files = [entry for entry in itertools.islice(entries, _MOST_FILES) if entry.is_file(follow_symlinks=False)]
        return sum(entry.stat(follow_symlinks=False).st_size for entry in files)
    except OSError:  # a folder that may not be listed, or a file that has just gone
        return 0


def _refusal(error: WorkerLost, name: str, limits: Limits, seconds: float) -> str:
    if error.cause == "memory":
        memory = f"{limits.memory_bytes / 2**30:.1f} GiB plus {limits.memory_per_byte} times its size"
        remedy = "if it is known to need that, allow more with --memory-limit."
        return f"{name} asked for more than {memory} at its first load and run; {remedy}"
    if error.cause == "time":
        remedy = "if the model is known to be that slow, allow more with --time-limit."
        return f"{name} was still busy after {seconds:.0f} s of its first load and run, so it is refused; {remedy}"
    remedy = "it is damaged or hostile. Ask the vendor for a file that their own onnxruntime loads."
    return f"{str(error).removesuffix('.')}; {remedy}"
