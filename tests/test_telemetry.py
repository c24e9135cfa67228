"""Telemetry is off before any library is imported, and whoever was too late is told so."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from auditkit import telemetry
from auditkit.model import doctor

NAME = "ORT_DISABLE_TELEMETRY"


class _Runtime:
    """onnxruntime as far as its telemetry goes."""

    def __init__(self) -> None:
        self.calls = 0

    def disable_telemetry_events(self) -> None:
        self.calls += 1


@pytest.fixture
def imported_before(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], _Runtime]:
    """A function that acts as if onnxruntime had been imported first, with its switch at a value or unset."""

    def prepare(value: str | None) -> _Runtime:
        runtime = _Runtime()
        monkeypatch.setitem(sys.modules, "onnxruntime", runtime)  # type: ignore[arg-type]
        monkeypatch.setattr(telemetry, "_was_late", False)
        monkeypatch.setenv(NAME, value or "")
        if value is None:
            monkeypatch.delenv(NAME)
        return runtime

    return prepare


def _environment_without_switches() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in telemetry.SWITCHES}


@pytest.mark.parametrize("value", [None, "0", "yes"])
def test_importing_auditkit_sets_every_switch(value: str | None) -> None:
    environment = _environment_without_switches()
    if value is not None:
        environment |= dict.fromkeys(telemetry.SWITCHES, value)
    names = sorted(telemetry.SWITCHES)
    code = f"import auditkit, os; print([os.environ[name] for name in {names}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == str([telemetry.SWITCHES[name] for name in names])


def test_benchmarks_import_auditkit_before_onnxruntime() -> None:
    code = "import sys, benchmarks; print('auditkit' in sys.modules, 'onnxruntime' in sys.modules)"
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_doctor_says_whether_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.describe().telemetry == "off: onnxruntime and Ray collect and send nothing"
    monkeypatch.setenv(NAME, "0")
    assert doctor.describe().telemetry.startswith(f"may be on: the environment variable {NAME} is no longer 1")


@pytest.mark.parametrize("value", [None, "", "0", "2", "off"])
def test_a_runtime_that_was_imported_first_is_switched_off_with_a_warning(
    imported_before: Callable[[str | None], _Runtime], value: str | None
) -> None:
    runtime = imported_before(value)
    with pytest.warns(UserWarning, match=f"Import auditkit before onnxruntime, or set {NAME}=1"):
        telemetry.switch_off()
    assert runtime.calls == 1
    assert os.environ[NAME] == "1"
    assert "was imported before auditkit" in str(telemetry.problem())


def test_a_module_in_place_of_the_runtime_has_nothing_to_switch_off() -> None:
    code = "import sys; sys.modules['onnxruntime'] = type(sys)('onnxruntime'); import auditkit"
    environment = _environment_without_switches()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0
    assert "as far as that is possible" in done.stderr


@pytest.mark.parametrize("value", ["1", "true", "YES", " on "])
def test_a_runtime_that_was_imported_with_its_switch_needs_no_warning(
    imported_before: Callable[[str | None], _Runtime], value: str
) -> None:
    runtime = imported_before(value)
    telemetry.switch_off()
    assert runtime.calls == 0
    assert telemetry.problem() is None


def test_a_switch_that_was_changed_later_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    assert telemetry.problem() is None
    monkeypatch.delenv(NAME)
    assert NAME in str(telemetry.problem())
