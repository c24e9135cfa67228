"""The guarded child process in which an unknown file is opened and run for the first time.

The child reads the file, finds out what it is and runs it on noise, under limits of memory and time. What kills the
runtime kills the child, and becomes a sentence. The caller opens the file only after the child has come back whole.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from auditkit.errors import AuditError, BadInput
from auditkit.model.read import Limits, file_size
from auditkit.model.signature import Overrides, Signature

START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from auditkit.model.trial import main; main()"
REPLY = "auditkit-trial:"


@dataclass(frozen=True)
class Outcome:
    """What the child found, and the digest of exactly what it read."""

    signature: Signature
    identity: str


def attempt(path: Path, wanted: Overrides, limits: Limits) -> Outcome:
    """The first load and run of a file, or one sentence that says why it is refused."""
    size = file_size(path, limits) + _beside(path)
    request = json.dumps({"path": str(path), "wanted": asdict(wanted), "limits": asdict(limits), "bytes": size})
    command = [sys.executable, "-P", "-c", START, json.dumps([entry or os.getcwd() for entry in sys.path])]
    seconds = limits.seconds_for(size)
    try:
        child = subprocess.run(
            command, input=request, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise BadInput(
            f"{path.name} was still busy after {seconds:.0f} s of its first load and run on noise images, so it is "
            f"refused; if the model is known to be that slow, allow more with --time-limit."
        ) from None
    return _outcome(child, path.name, limits.memory_for(size))


def _beside(path: Path) -> int:
    """Bytes of the data files that usually go with a model, for the limits of the child only."""
    names = [path.with_name(path.name + suffix) for suffix in (".data", "_data")]
    return sum(name.stat().st_size for name in names if name.is_file())


def _outcome(child: "subprocess.CompletedProcess[str]", name: str, memory: int) -> Outcome:
    replies = [line for line in child.stdout.splitlines() if line.startswith(REPLY)]
    if not replies:
        raise BadInput(_death_sentence(child, name, memory))
    reply: dict[str, Any] = json.loads(replies[-1].removeprefix(REPLY))
    if "error" in reply:
        raise BadInput(f"{name}: {reply['error']}" if not reply["error"].startswith(name) else reply["error"])
    return Outcome(Signature.from_json(reply["signature"]), reply["identity"])


def _death_sentence(child: "subprocess.CompletedProcess[str]", name: str, memory: int) -> str:
    if "MemoryError" in child.stderr or "bad_alloc" in child.stderr or child.returncode == -signal.SIGKILL:
        return f"{name} asked for more than {memory / 2**30:.1f} GiB at its first load and run; see --memory-limit."
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


def _limit_memory(limit: int) -> None:
    """Cap private writable memory: address space as such is no measure, the runtime reserves much and uses little."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """The child: a request on stdin, a reply on stdout."""
    request = json.load(sys.stdin)
    limits = Limits(**request["limits"])
    _limit_memory(limits.memory_for(request["bytes"]))
    from auditkit.model.probe import examine  # noqa: PLC0415 - under the limits only
    from auditkit.model.read import read  # noqa: PLC0415

    wanted = dict(request["wanted"])
    wanted["size"] = tuple(wanted["size"]) if wanted["size"] else None
    try:
        file = read(Path(request["path"]), limits)
        signature = examine(file, Overrides(**wanted))
        reply: dict[str, Any] = {"signature": signature.to_json(), "identity": file.identity}
    except AuditError as error:
        reply = {"error": str(error)}
    print(REPLY + json.dumps(reply), flush=True)
    os._exit(0)  # a damaged graph can still crash the runtime while it is torn down
