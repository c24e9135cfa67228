"""The first load and run of an unknown file, in a worker under tighter limits than later.

The worker reads the file, examines it and runs it on noise. If the runtime crashes, only the worker dies, and the
caller gets an error message. A worker whose file passed goes on to run it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

from auditkit.errors import BadInput, MachineFailure, RuntimeFailure
from auditkit.model.messages import Value
from auditkit.model.read import Limits, OnnxFile, describe, file_size
from auditkit.model.signature import Overrides, Signature
from auditkit.model.worker import Worker, WorkerLost
from auditkit.records import from_json, to_json

_START_SECONDS = 5  # for the worker itself


class _Signature(Protocol):
    @property
    def output(self) -> str:
        """The tensor that is read."""


T = TypeVar("T", bound=_Signature)


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The signature that the worker found, the digest of exactly what it read, and the worker."""

    signature: T
    identity: str
    worker: Worker | None

    def reopened(self, path: Path, limits: Limits) -> OnnxFile:
        """The file that the worker examined, read again in this process."""
        file = describe(path, limits).live([self.signature.output])
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
    worker = Worker(name, limits.run_memory_for(size))
    seconds = limits.seconds_for(size)
    try:
        described = _facts(worker.call("describe", str(path), to_json(limits), seconds=seconds + _START_SECONDS))
        total = _data_bytes(described.get("bytes"), limits)
        seconds = limits.seconds_for(total)
        worker.allow(limits.run_memory_for(total))
        facts = _facts(worker.call("examine", described.get("file"), examiner, to_json(expected), seconds=seconds))
        signature = from_json(signature_type, facts.get("signature"), "signature")
        return Outcome(signature, str(facts.get("identity")), worker)
    except WorkerLost as error:
        raise BadInput(_refusal(error, name, limits, seconds)) from None
    except MachineFailure:
        raise
    except (BadInput, RuntimeFailure) as error:
        raise BadInput(str(error) if str(error).startswith(name) else f"{name}: {error}") from None


def _facts(reply: Value) -> dict[str, Value]:
    return reply if isinstance(reply, dict) else {}


def _data_bytes(size: object, limits: Limits) -> int:
    """The bytes of a model as its worker has counted them, from which further limits follow."""
    if not isinstance(size, int) or not 0 < size <= limits.file_bytes + limits.external_bytes:
        raise RuntimeFailure("the worker gave a size that no model can have.")
    return size


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
