"""The guarded child process in which an unknown file is opened and run for the first time.

The child reads the file, finds out what it is and runs it on noise, under limits of memory and time. What kills the
runtime kills the child, and becomes a sentence. The caller opens the file only after the child has come back whole.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from auditkit.errors import AuditError, BadInput
from auditkit.model.read import Limits, file_size
from auditkit.model.signature import Overrides, Signature

START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from auditkit.model.sandbox import main; main()"
REPLY = "auditkit-trial:"
# What the limit does not see: the parent, and the code of the libraries.
UNCOUNTED = 192 * 2**20
# Each thread of a numerical library reserves memory of its own, dozens of them more than the limit.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Outcome:
    """What the child found, and the digest of exactly what it read."""

    signature: Signature
    identity: str


def attempt(path: Path, wanted: Overrides, limits: Limits) -> Outcome:
    """The first load and run of a classifier's file, or one sentence that says why it is refused."""
    return Outcome(*guarded(path, "classifier", asdict(wanted), limits, Signature.from_json))


def guarded(
    path: Path, kind: str, wanted: dict[str, Any], limits: Limits, turned: Callable[[dict[str, Any]], Seen]
) -> tuple[Seen, str]:
    """What the child sees in a file of that kind, `turned` from a plain object, and the digest of what it read."""
    size = file_size(path, limits)
    request = json.dumps({"path": str(path), "kind": kind, "wanted": wanted, "limits": asdict(limits), "bytes": size})
    command = [sys.executable, "-I", "-c", START, json.dumps(_import_path())]
    # The child sets its own alarm once it knows the whole size; this is for one that cannot.
    seconds = limits.seconds_for(size + _beside(path)) + 5
    try:
        child = subprocess.run(
            command,
            input=request,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            env={**os.environ, **ONE_THREAD},
        )
    except subprocess.TimeoutExpired:
        raise BadInput(_too_slow(path.name, seconds)) from None
    return _outcome(child, path.name, limits, turned)


def _import_path() -> list[str]:
    """Where the child finds its modules: not in the current folder, which may be the vendor's and hold a numpy.py."""
    here = Path.cwd().resolve()
    own = str(Path(__file__).resolve().parents[2])
    return [entry for entry in sys.path if entry and Path(entry).resolve() != here] + [own]


def _beside(path: Path) -> int:
    """Bytes of the plain files in the model's folder: about as much as its external data can be."""
    try:
        with os.scandir(path.parent) as entries:
            files = [entry for entry in itertools.islice(entries, 10_000) if entry.is_file(follow_symlinks=False)]
        return sum(entry.stat(follow_symlinks=False).st_size for entry in files)
    except OSError:  # a folder that may not be listed, or a file that has just gone
        return 0


def _too_slow(name: str, seconds: float) -> str:
    return (
        f"{name} was still busy after {seconds:.0f} s of its first load and run on noise images, so it is refused; "
        f"if the model is known to be that slow, allow more with --time-limit."
    )


def _outcome(
    child: "subprocess.CompletedProcess[str]", name: str, limits: Limits, turned: Callable[[dict[str, Any]], Seen]
) -> tuple[Seen, str]:
    replies = [line for line in child.stdout.splitlines() if line.startswith(REPLY)]
    if not replies:
        raise BadInput(_death_sentence(child, name, limits))
    try:
        reply: dict[str, Any] = json.loads(replies[-1].removeprefix(REPLY))
        error = str(reply["error"]) if "error" in reply else None
        outcome = None if error else (turned(reply["signature"]), str(reply["identity"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadInput(_death_sentence(child, name, limits)) from None
    if outcome is None:
        raise BadInput(f"{name}: {error}" if not str(error).startswith(name) else str(error))
    return outcome


def _death_sentence(child: "subprocess.CompletedProcess[str]", name: str, limits: Limits) -> str:
    if "MemoryError" in child.stderr or "bad_alloc" in child.stderr or child.returncode == -signal.SIGKILL:
        return (
            f"{name} asked for more than {limits.memory_bytes / 2**30:.1f} GiB plus {limits.memory_per_byte} times its "
            f"size at its first load and run; if it is known to need that, allow more with --memory-limit."
        )
    if child.returncode == -getattr(signal, "SIGALRM", 0):
        return _too_slow(name, limits.seconds)
    if child.returncode < 0:
        try:
            cause = signal.Signals(-child.returncode).name
        except ValueError:
            cause = f"signal {-child.returncode}"
        return (
            f"{name} crashed the runtime ({cause}) in the guarded child process; the file is damaged or hostile. "
            f"Ask the vendor for a file that their own onnxruntime loads."
        )
    last = (child.stderr.strip().splitlines() or ["no message"])[-1]
    return f"{name} could not be opened in the guarded child process (exit {child.returncode}: {last[:200]})."


def _guard(limits: Limits, model_bytes: int) -> None:
    """Cap the memory and time of this process for a model of that size.

    What is capped is private writable memory: address space as such is no measure, the runtime reserves much of it
    and uses little.
    """
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = limits.memory_for(model_bytes) - UNCOUNTED
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, limits.seconds_for(model_bytes))


def main() -> None:
    """The child: a request on stdin, a reply on stdout."""
    request = json.load(sys.stdin)
    limits = Limits(**request["limits"])
    _guard(limits, request["bytes"])
    from auditkit.model import masking_network, probe  # noqa: PLC0415 - under the limits only
    from auditkit.model.read import read  # noqa: PLC0415

    wanted: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in request["wanted"].items()
    }
    try:
        file = read(Path(request["path"]), limits, announce=lambda size: _guard(limits, size))
        if request["kind"] == "masker":
            seen = masking_network.examine(file, masking_network.Pictures(**wanted)).to_json()
        else:
            seen = probe.examine(file, Overrides(**wanted)).to_json()
        reply: dict[str, Any] = {"signature": seen, "identity": file.identity}
    except AuditError as error:
        reply = {"error": str(error)}
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # a graph that is not put together properly
        reply = {"error": f"the file is damaged or malformed ({type(error).__name__}: {str(error)[:200]})."}
    print(REPLY + json.dumps(reply), flush=True)
    os._exit(0)  # a damaged graph can still crash the runtime while it is torn down
