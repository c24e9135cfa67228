"""The guarded child process in which an unknown file is opened and run for the first time.

The child reads, examines and runs the file on noise under limits of memory and time, asked on stdin and replying on
stdout. If the runtime crashes, only the child dies, and the caller gets an error message.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from auditkit.errors import AuditError, BadInput
from auditkit.model.read import Limits, OnnxFile, file_size, read
from auditkit.model.signature import Overrides, Signature
from auditkit.records import Json, from_json, to_json

START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from auditkit.model.sandbox import main; main()"
REPLY = "auditkit-trial:"  # begins the child's reply; libraries may print other lines
# Each thread of a numerical library reserves memory, and dozens of them reserve more than the limit.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_GRACE_SECONDS = 5  # beyond the child's own alarm, for a child that cannot set one
_MOST_FILES = 10_000  # of a folder whose size is estimated
_UNCOUNTED = 192 * 2**20  # bytes that the limit does not see: the parent, and the code of the libraries

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The signature that the child found, and the digest of exactly what it read."""

    signature: T
    identity: str

    def reopened(self, path: Path, limits: Limits) -> OnnxFile:
        """The file that the child examined, read again in this process."""
        file = read(path, limits)
        if file.identity != self.identity:
            raise BadInput(f"{path} changed between its trial and its use; leave it alone and try again.")
        return file


def attempt(path: Path, overrides: Overrides, limits: Limits) -> Outcome[Signature]:
    """The first load and run of a classifier's file; raises BadInput with the reason when the file is refused."""
    return guarded(path, "classifier", overrides, limits, Signature)


def guarded(
    path: Path, examiner: Literal["classifier", "masking network"], expected: object, limits: Limits,
    signature_type: type[T],
) -> Outcome[T]:  # fmt: skip
    """What an examiner finds out in the child process about a file of which some facts are expected."""
    size = file_size(path, limits)
    facts = {"examiner": examiner, "expected": to_json(expected), "limits": to_json(limits)}
    request = json.dumps({"path": str(path), "bytes": size, **facts})
    command = [sys.executable, "-I", "-c", START, json.dumps(_import_path())]
    seconds = limits.seconds_for(size + _beside(path)) + _GRACE_SECONDS
    try:
        child = subprocess.run(
            command, input=request, capture_output=True, text=True, errors="replace", timeout=seconds, check=False,
            env={**os.environ, **_ONE_THREAD},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BadInput(_too_slow(path.name, seconds)) from None
    return _outcome(child, path.name, limits, signature_type)


def _import_path() -> list[str]:
    """Where the child finds its modules: not in the current folder, which may be the vendor's and hold a numpy.py."""
    current = Path.cwd().resolve()
    package = str(Path(__file__).resolve().parents[2])
    return [entry for entry in sys.path if entry and Path(entry).resolve() != current] + [package]


def _beside(path: Path) -> int:
    """Bytes of the plain files in the model's folder: about as much as its external data can be."""
    try:
        with os.scandir(path.parent) as entries:
            files = [entry for entry in itertools.islice(entries, _MOST_FILES) if entry.is_file(follow_symlinks=False)]
        return sum(entry.stat(follow_symlinks=False).st_size for entry in files)
    except OSError:  # a folder that may not be listed, or a file that has just gone
        return 0


def _too_slow(name: str, seconds: float) -> str:
    way_out = "if the model is known to be that slow, allow more with --time-limit."
    return f"{name} was still busy after {seconds:.0f} s of its first load and run, so it is refused; {way_out}"


def _outcome(child: subprocess.CompletedProcess[str], name: str, limits: Limits, signature_type: type[T]) -> Outcome[T]:
    replies = [line for line in child.stdout.splitlines() if line.startswith(REPLY)]
    if not replies:
        raise BadInput(_death_sentence(child, name, limits))
    try:
        reply = json.loads(replies[-1].removeprefix(REPLY))
        if "error" not in reply:
            return Outcome(from_json(signature_type, reply["signature"], "signature"), str(reply["identity"]))
        error = str(reply["error"])
    except (BadInput, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadInput(_death_sentence(child, name, limits)) from None
    raise BadInput(error if error.startswith(name) else f"{name}: {error}")


def _death_sentence(child: subprocess.CompletedProcess[str], name: str, limits: Limits) -> str:
    if "MemoryError" in child.stderr or "bad_alloc" in child.stderr or child.returncode == -signal.SIGKILL:
        memory = f"{limits.memory_bytes / 2**30:.1f} GiB plus {limits.memory_per_byte} times its size"
        way_out = "if it is known to need that, allow more with --memory-limit."
        return f"{name} asked for more than {memory} at its first load and run; {way_out}"
    if child.returncode == -getattr(signal, "SIGALRM", 0):
        return _too_slow(name, limits.seconds)
    if child.returncode < 0:
        try:
            cause = signal.Signals(-child.returncode).name
        except ValueError:
            cause = f"signal {-child.returncode}"
        way_out = "Ask the vendor for a file that their own onnxruntime loads."
        return f"{name} crashed the runtime ({cause}) in its child process; it is damaged or hostile. {way_out}"
    last = (child.stderr.strip().splitlines() or ["no message"])[-1]
    return f"{name} could not be opened in the guarded child process (exit {child.returncode}: {last[:200]})."


def main() -> None:
    """Answer the request on stdin: this runs in the child."""
    request = json.load(sys.stdin)
    limits = from_json(Limits, request["limits"], "limits")
    _guard(limits, request["bytes"])
    try:
        file = read(Path(request["path"]), limits, announce=lambda size: _guard(limits, size))
        reply = {"signature": _signature(file, request["examiner"], request["expected"]), "identity": file.identity}
    except AuditError as error:
        reply = {"error": str(error)}
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # a graph that is not put together properly
        reply = {"error": f"the file is damaged or malformed ({type(error).__name__}: {str(error)[:200]})."}
    print(REPLY + json.dumps(reply), flush=True)
    os._exit(0)  # a damaged graph can still crash the runtime while it is torn down


def _signature(file: OnnxFile, examiner: str, expected: Json) -> Json:
    from auditkit.model import masking_network, probe  # noqa: PLC0415 - under the limits only

    if examiner == "masking network":
        requirements = from_json(masking_network.Requirements, expected, "requirements")
        return to_json(masking_network.examine(file, requirements))
    return to_json(probe.examine(file, from_json(Overrides, expected, "overrides")))


def _guard(limits: Limits, model_bytes: int) -> None:
    """Cap the time and private writable memory of this process; address space is reserved far beyond what is used."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limits.memory_bytes + limits.memory_per_byte * model_bytes - _UNCOUNTED
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, limits.seconds_for(model_bytes))
