import hashlib
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import auditkit  # noqa: F401 - before any test imports onnxruntime, whose telemetry it switches off
from tests.support.commands import SALT


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that take minutes or much memory")


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" in os.environ:
        _share_the_cores()


def _share_the_cores() -> None:
    """Give each process of the tests cores of its own: on all cores, threads of one wait for those of another."""
    if hasattr(os, "sched_setaffinity"):
        cores, processes = sorted(os.sched_getaffinity(0)), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        os.sched_setaffinity(0, cores[number::processes] or cores)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from auditkit.model.session import cuda_problem

    problem = cuda_problem()
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
        if "gpu" in item.keywords and problem:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {problem}"))
        if "assets" in item.keywords and not os.environ.get("AUDITKIT_ASSETS"):
            item.add_marker(pytest.mark.skip(reason="set AUDITKIT_ASSETS to a folder of real models and images"))


@pytest.fixture
def assets() -> Path:
    return Path(os.environ["AUDITKIT_ASSETS"])


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep digests of the tests' files out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _same_salt() -> Iterator[None]:
    """Give every audit of this process the same salt unless it names one, so that its figures repeat."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("auditkit.evidence.salt.draw_salt", lambda _about: SALT)
        yield


@pytest.fixture(scope="session", autouse=True)
def _same_bytes_are_tried_once() -> Iterator[None]:
    """Remember what the sandbox said of a file, and run it here: a second for each of the many tests that open a model.

    Tests marked `workers` have real workers. The tests of the model package itself, and of files whose tensors lie in
    other files, have the real sandbox every time.
    """
    from auditkit.model import runtime, sandbox
    from auditkit.model.signature import Signature

    attempt = sandbox.attempt
    outcomes: dict[tuple[str, str], sandbox.Outcome[Signature]] = {}

    def tried(path: Path, overrides: sandbox.Overrides, limits: sandbox.Limits) -> sandbox.Outcome[Signature]:
        outcome = attempt(path, overrides, limits)
        if not runtime.IN_WORKER or outcome.worker is None:
            return outcome
        outcome.worker.close()
        return replace(outcome, worker=None)

    def attempt_once(path: Path, overrides: sandbox.Overrides, limits: sandbox.Limits) -> sandbox.Outcome[Signature]:
        content = path.read_bytes() if path.is_file() else b""
        real = "tests/model/" in os.environ.get("PYTEST_CURRENT_TEST", "") or not runtime.IN_WORKER
        if real or not content or b"location" in content:
            return tried(path, overrides, limits)
        key = hashlib.sha256(content).hexdigest(), repr((overrides, limits))
        if key not in outcomes:
            outcomes[key] = tried(path, overrides, limits)
        return outcomes[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "attempt", attempt_once)
        patch.setattr(runtime, "IN_WORKER", True)
        yield


@pytest.fixture(autouse=True)
def _real_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sessions run in workers, as they do outside of the tests, in tests that are marked so."""
    if "workers" in request.keywords:
        monkeypatch.setattr("auditkit.model.runtime.IN_WORKER", False)
