"""The house: imports point downwards, the command starts fast, the tree speaks of itself alone."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import auditkit

PACKAGE = Path(auditkit.__file__).parent
# Lowest first; a module may import from its own floor and from those below.
FLOORS = (
    "errors",
    "arrays",
    "graph",
    "model",
    "data",
    "metrics",
    "methods",
    "runs",
    "report",
    "verdict",
    "api",
    "demo",
    "cli",
)
HEAVY = ("numpy", "onnx", "onnxruntime", "scipy", "PIL", "pyarrow", "matplotlib", "jinja2")


def _imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_imports_point_downwards() -> None:
    for path in PACKAGE.rglob("*.py"):
        floor = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if floor.startswith("__"):
            continue
        below = FLOORS[: FLOORS.index(floor) + 1]
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] == "auditkit" and len(parts) > 1 and parts[1] != "__version__":
                assert parts[1] in below, f"{path.name} imports {name}, which lies above it"


def test_only_the_session_imports_the_runtime() -> None:
    users = {p.name for p in PACKAGE.rglob("*.py") if any(n.split(".")[0] == "onnxruntime" for n in _imports(p))}
    assert users == {"session.py"}


def test_graph_never_sees_a_session() -> None:
    for path in (PACKAGE / "graph").rglob("*.py"):
        assert not any(name.startswith("auditkit.model") for name in _imports(path)), path


def test_no_room_outgrew_the_house() -> None:
    long = {p.name: n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 350}
    assert not long


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['auditkit', '--help']\n"
        "from auditkit.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_is_there_at_once() -> None:
    """By the processor's clock, which does not count the time that other tests hold it; once more for cold caches."""
    used = []
    for _ in range(10):
        before = os.times()
        subprocess.run([sys.executable, "-m", "auditkit", "--help"], capture_output=True, check=True)
        after = os.times()
        used.append(after.children_user - before.children_user + after.children_system - before.children_system)
        if used[-1] < 0.4:
            break
    assert min(used) < 0.4


def test_public_names_are_there() -> None:
    for name in auditkit.__all__:
        assert getattr(auditkit, name) is not None
        assert name in dir(auditkit)
