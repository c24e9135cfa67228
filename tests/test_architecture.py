"""The house: imports point downwards, the command starts fast, the tree speaks of itself alone."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import auditkit

Node = TypeVar("Node", bound=ast.AST)
PACKAGE = Path(auditkit.__file__).parent
# Lowest first; a module may import from its own floor and from those below.
FLOORS = (
    "telemetry",
    "errors",
    "arrays",
    "recorded_names",
    "cores",
    "regular_files",
    "user_cache",
    "elsewhere",
    "records",
    "toml_tables",
    "graph",
    "model",
    "data",
    "metrics",
    "methods",
    "engines",
    "runs",
    "report",
    "evidence",
    "verdict",
    "api",
    "demo",
    "cli",
)
# Ratchets: no figure may rise. Whoever lowers one lowers its limit here.
MOST_ANY = 160  # the word in source text, imports included
MOST_UNTYPED_DICTS = 18  # dict[str, Any] and Mapping[str, Any]
MOST_DOUBLE_LOOPS = 3  # comprehensions with two or more loops
MOST_NESTED_CONDITIONALS = 0  # conditional expressions inside another
MOST_CYCLIC_MODULES = 0  # modules that import each other in a circle when they are loaded
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


def test_only_one_module_imports_the_runtime() -> None:
    users = {p.name for p in PACKAGE.rglob("*.py") if any(n.split(".")[0] == "onnxruntime" for n in _imports(p))}
    assert users == {"runtime.py"}


def test_files_are_written_by_one_module() -> None:
    """Others write into a temporary folder that is theirs alone: a page to print, and an archive that is unpacked."""
    writers = set()
    for path in PACKAGE.rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            modes = [argument.value for argument in call.args[:2] if isinstance(argument, ast.Constant)]
            opens = name == "open" and any(re.fullmatch(r"[wax]b?\+?", str(mode)) for mode in modes)
            if opens or name in ("write_text", "write_bytes"):
                writers.add(str(path.relative_to(PACKAGE)))
    assert writers == {"evidence/archive.py", "report/pdf.py"}


def test_graph_never_sees_a_session() -> None:
    for path in (PACKAGE / "graph").rglob("*.py"):
        assert not any(name.startswith("auditkit.model") for name in _imports(path)), path


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


def _modules_loaded(code: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded after this code."""
    code += "\nimport sys; print('\\nloaded:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("loaded:")[2].split())


def _processor_seconds(code: str) -> float:
    """Processor time of a fresh interpreter that runs this code, whatever else the processor does meanwhile."""
    before = os.times()
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def test_help_is_there_at_once() -> None:
    """It loads nothing but its own modules and typer's, and needs little more time than typer's own help.

    Both are measured in turns on this machine, so that neither its speed nor what else it does makes a difference.
    """
    help_of = "import sys; sys.argv = ['it', '--help']\ntry: {}\nexcept SystemExit: pass"
    ours = "from auditkit.cli.main import main\n" + help_of.format("main()")
    bare = (
        "import typer\napp = typer.Typer()\n"
        "@app.command()\ndef one(a: int = 1, b: str = ''): 'Help.'\n"
        "@app.command()\ndef two(a: int = 1, b: str = ''): 'Help.'\n" + help_of.format("app()")
    )
    extra = {name.partition(".")[0] for name in _modules_loaded(ours) - _modules_loaded(bare)}
    assert extra - sys.stdlib_module_names == {"auditkit"}
    ratios = []
    for _ in range(10):  # once more for cold caches
        ratios.append(_processor_seconds(ours) / _processor_seconds(bare))
        if ratios[-1] < 2:
            break
    assert min(ratios) < 2


def test_public_names_are_there() -> None:
    for name in auditkit.__all__:
        assert getattr(auditkit, name) is not None
        assert name in dir(auditkit)


# Ratchets -------------------------------------------------------------------------------------------------------------


def _sources() -> list[str]:
    return [path.read_text() for path in sorted(PACKAGE.rglob("*.py"))]


def _nodes(kind: type[Node] | tuple[type[Node], ...]) -> Iterator[Node]:
    """Nodes of a kind in the syntax of the whole package."""
    for source in _sources():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, kind):
                yield node


def _matches(pattern: str) -> int:
    return sum(len(re.findall(pattern, source)) for source in _sources())


def test_types_are_named() -> None:
    assert _matches(r"\bAny\b") <= MOST_ANY
    assert _matches(r"\b(?:dict|Mapping)\[str, Any\]") <= MOST_UNTYPED_DICTS


def test_comprehensions_have_one_loop() -> None:
    comprehensions = _nodes((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))
    assert sum(len(node.generators) > 1 for node in comprehensions) <= MOST_DOUBLE_LOOPS


def test_conditional_expressions_are_not_nested() -> None:
    def nests(node: ast.IfExp) -> bool:
        return any(isinstance(inner, ast.IfExp) for inner in ast.walk(node) if inner is not node)

    assert sum(map(nests, _nodes(ast.IfExp))) <= MOST_NESTED_CONDITIONALS


def _module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _statements_on_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module is loaded: not those in functions, nor those for type checkers alone."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from _statements_on_import(statement.orelse)
        elif isinstance(statement, ast.If | ast.Try | ast.With | ast.ClassDef):
            for block in ("body", "orelse", "finalbody"):
                yield from _statements_on_import(getattr(statement, block, []))


def _loaded_by(path: Path, modules: set[str]) -> set[str]:
    """Modules of the package that a module imports by name when it is loaded."""
    names: set[str] = set()
    for statement in _statements_on_import(ast.parse(path.read_text()).body):
        if isinstance(statement, ast.Import):
            names |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            for alias in statement.names:
                submodule = f"{statement.module}.{alias.name}"
                names.add(submodule if submodule in modules else statement.module)
    return names & modules


def _cyclic(imports: dict[str, set[str]]) -> set[str]:
    """Modules that are reached again from what they import."""

    def reached(start: str) -> set[str]:
        waiting, seen = list(imports[start]), set[str]()
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting += imports[module]
        return seen

    return {module for module in imports if module in reached(module)}


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    paths = {_module_name(path): path for path in PACKAGE.rglob("*.py")}
    cyclic = _cyclic({name: _loaded_by(path, set(paths)) for name, path in paths.items()})
    assert len(cyclic) <= MOST_CYCLIC_MODULES, sorted(cyclic)


def test_circles_are_seen() -> None:
    assert _cyclic({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == {"a", "b", "c"}
    assert _cyclic({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == set()
