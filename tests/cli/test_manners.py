"""What people expect of a command line: help, hints at typos, completion, config files, colours, versions."""

import json
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

from auditkit.cli import console, main, progress
from tests.support import onnx_models
from tests.support.commands import auditkit, refused

SPEAKING = ("audit", "explain", "evaluate", "examine", "verify", "demo")  # take long, and say how far they are


def _leaves(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every command that is no group, by the words that lead to it."""
    leaves: dict[tuple[str, ...], Any] = {}
    for name, below in command.commands.items():
        words = (*path, name)
        leaves |= _leaves(below, words) if hasattr(below, "commands") else {words: below}
    return leaves


LEAVES = _leaves(get_command(main.app))


@pytest.mark.parametrize("words", [(), ("bundle",), ("policy",), *LEAVES], ids=" ".join)
def test_help_fits_the_screen_and_ends_with_an_example(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = auditkit(*words, "-h")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == auditkit(*words, "--help").stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "<bool>" not in done.stdout
    assert not words or words not in LEAVES or f"Example: auditkit {' '.join(words)}" in done.stdout


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_examples_use_options_that_exist(words: tuple[str, ...]) -> None:
    names = {name for parameter in LEAVES[words].params for name in parameter.opts}
    example = shlex.split(LEAVES[words].epilog.removeprefix("Example: "))
    assert example[: len(words) + 1] == ["auditkit", *words]
    assert {word for word in example if word.startswith("-")} <= names


RUN = ("model.onnx", ".", "-o", "out")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("audt",), "unknown command 'audt'; did you mean 'audit'? See: auditkit --help"),
        (("policy", "chek"), "unknown command 'chek'; did you mean 'check'? See: auditkit policy --help"),
        (("--versoin",), "unknown option '--versoin'; did you mean '--version'? See: auditkit --help"),
        (("audit", *RUN, "--polcy", "x"), "unknown option '--polcy'; did you mean '--policy'? See: auditkit audit"),
        (("audit", *RUN, "--policy", "strct"), "unknown policy or file 'strct'; did you mean 'strict'?"),
        (("audit", *RUN, "--policy", "ours.toml"), "unknown policy or file 'ours.toml'; choose from explore, standard"),
        (("policy", "init", "Strict"), "unknown policy 'Strict'; did you mean 'strict'?"),
        (("audit", *RUN, "--method", "GradCAM"), "unknown method 'GradCAM'; did you mean 'grad-cam'?"),
        (("explain", *RUN, "--method", "gradcam"), "unknown method 'gradcam'; did you mean 'grad-cam'?"),
        (("explain", *RUN, "--option", "step=3"), "mask: unknown option 'step'; did you mean 'steps'?"),
        (("explain", *RUN, "--method", "random", "--option", "a=3"), "random: unknown option 'a'; there are none"),
        (
            ("explain", *RUN, "--method", "integrated"),
            "unknown method 'integrated'; did you mean 'integrated-gradients'?",
        ),
        (("explain", *RUN, "--quality", "ful"), "unknown quality 'ful'; did you mean 'full'?"),
        (("explain", *RUN, "--gradient", "grph"), "unknown gradient 'grph'; did you mean 'graph'?"),
        (("evaluate", *RUN, "--infill", "grey"), "unknown infill 'grey'; did you mean 'gray'?"),
        (("evaluate", *RUN, "--protocol", "xplque"), "unknown protocol 'xplque'; did you mean 'xplique'?"),
        (("evaluate", *RUN, "--device", "gpu"), "unknown device 'gpu'; choose from auto, cuda, cpu."),
        (("inspect", "model.onnx", "--preset", "imagnet"), "unknown preset 'imagnet'; did you mean 'imagenet'?"),
        (("inspect", "model.onnx", "--kind", "logit"), "unknown kind 'logit'; did you mean 'logits'?"),
        (("schema", "reslts"), "unknown schema 'reslts'; did you mean 'results'?"),
        (("report", ".", "-f", "hmtl"), "unknown format 'hmtl'; did you mean 'html'?"),
    ],
)
def test_a_misspelled_word_is_answered_with_the_right_one(
    words: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    onnx_models.save(onnx_models.convnet(), tmp_path)
    refused(auditkit(*words, folder=tmp_path), sentence)


def test_shells_can_complete_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_AUDITKIT_COMPLETE", "source_bash")
    assert "complete -o default -F" in auditkit().stdout
    monkeypatch.setenv("_AUDITKIT_COMPLETE", "complete_bash")
    for line, position, words in (("auditkit au", 1, ["audit"]), ("auditkit audit --pol", 2, ["--policy"])):
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(position))
        done = auditkit()
        assert (done.returncode, done.stdout.split()) == (0, words)


def test_the_version_names_what_it_runs_on() -> None:
    done = auditkit("--version")
    runtime = metadata.version("onnx")
    assert (done.returncode, done.stderr) == (0, "")
    for text in (f"python {platform.python_version()}", f"numpy {np.__version__}", f"onnx {runtime}", "onnxruntime "):
        assert text in done.stdout
    assert "CPUExecutionProvider" in done.stdout.splitlines()[-1]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize(("variable", "value", "escapes"), [("NO_COLOR", "1", {"1", "0"}), ("TERM", "dumb", set())])
def test_colours_can_be_switched_off(variable: str, value: str, escapes: set[str]) -> None:
    """Bold type is no colour; a dumb terminal has neither."""
    import pty
    import re

    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", variable: value}
    words = [sys.executable, "-m", "auditkit", "policy", "list"]
    done = subprocess.run(words, stdout=follower, stderr=follower, env=environment, check=True)
    os.close(follower)
    text = os.read(leader, 100_000).decode()
    os.close(leader)
    assert done.returncode == 0
    assert "standard" in text
    assert set(re.findall(r"\x1b\[([0-9;]*)m", text)) == escapes


# What is said on the way ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", SPEAKING)
def test_long_commands_can_be_quiet_or_verbose(verb: str) -> None:
    names = {name for parameter in LEAVES[verb,].params for name in parameter.opts}
    assert {"--quiet", "-q", "--verbose", "-v"} <= names


def test_quiet_work_says_nothing_on_the_way(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    for quiet in (True, False):
        with progress.shown("evaluating", quiet=quiet) as begin:
            begin(10)(1, 5)
        console.print_notes(["read this"], quiet)
        assert bool(capsys.readouterr().err) is not quiet


def test_identifiers_are_shown_when_asked_for(tmp_path: Path) -> None:
    model = onnx_models.save(onnx_models.convnet(), tmp_path)
    np.savez(tmp_path / "set.npz", images=np.random.default_rng(0).integers(0, 255, (2, 8, 8, 3), np.uint8))
    words = ("explain", model, tmp_path / "set.npz", "--method", "edges", "--preset", "unit", "--device", "cpu")
    plain, verbose = (auditkit(*words, "-o", tmp_path / name, *([f"--{name}"])) for name in ("quiet", "verbose"))
    assert (plain.returncode, verbose.returncode, plain.stderr) == (0, 0, "")
    assert "sha256" not in plain.stdout
    assert "model sha256" in verbose.stdout


# Config files ---------------------------------------------------------------------------------------------------------


def _config(folder: Path, text: str | bytes) -> Path:
    path = folder / "ours.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_options_come_from_a_file_and_typed_ones_take_precedence(tmp_path: Path) -> None:
    config = _config(tmp_path, "[policy.plan]\nimages = 77\njson = true\n[audit]\npolicy = 'strict'\n")
    found = json.loads(auditkit("policy", "plan", "standard", "--config", config).stdout)
    assert found["passes"]["images"] == 77
    found = json.loads(auditkit("policy", "plan", "standard", f"--config={config}", "--images", "5").stdout)
    assert found["passes"]["images"] == 5
    assert auditkit("policy", "plan", "standard", folder=tmp_path).stdout.startswith("policy")  # read only when named


def test_a_run_records_the_options_and_the_digest_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    monkeypatch.chdir(tmp_path)  # so that the names of the recorded command are found when it is run again

    model = onnx_models.save(onnx_models.convnet(), tmp_path)
    np.savez(tmp_path / "set.npz", images=np.random.default_rng(0).integers(0, 255, (3, 8, 8, 3), np.uint8))
    text = "policy = 'explore'\nmethod = 'gradient'\npreset = 'unit'\ndevice = 'cpu'\njson = true\nthreads = 2\n"
    config = _config(tmp_path, f"[audit]\n{text}")
    done = auditkit("audit", model, tmp_path / "set.npz", "-o", tmp_path / "run", "--config", config, "--threads", "1")
    assert (done.returncode, done.stderr) == (0, "")
    command = json.loads(done.stdout)["run"]["command"]
    digest = hashlib.sha256(config.read_bytes()).hexdigest()
    options = ["--policy=explore", "--method=gradient", "--json", "--preset=unit", "--device=cpu"]
    assert command[1:8] == ["audit", f"--config=sha256:{digest}", *options]
    assert command[8:] == [model.name, "set.npz", "-o", "run", "--threads", "1"]
    config.unlink()
    again = auditkit(*command[1:])
    assert json.loads(again.stdout)["run"]["command"] == command


def test_flags_and_lists_come_from_a_file(tmp_path: Path) -> None:
    text = '[evaluate]\ndeletion = false\ncontrols = true\ninfill = ["blur", "grey"]\neps1 = 1e-3\n'
    words = ("evaluate", "m.onnx", "images", "-o", tmp_path / "run", "--config", _config(tmp_path, text))
    refused(auditkit(*words), "unknown infill 'grey'; did you mean 'gray'?")
    refused(auditkit(*words, "--infill", "gray"), "m.onnx")  # the typed one replaces the list


REFUSED = {
    b"[audt]": "ours.toml: unknown key 'audt'; did you mean 'audit'?",
    b"[audit]\npolcy = 'x'": "ours.toml [audit]: unknown key 'polcy'; did you mean 'policy'?",
    b"[audit]\nexit_zero = true": "unknown key 'exit_zero'; did you mean 'exit-zero'?",
    b"[audit]\nconfig = 'x'": "unknown key 'config'",
    b"[audit]\nexit-zero = 1": "exit-zero is 1, expected true or false",
    b"[audit]\npolicy = ['a']": "policy is ['a'], expected a text in quotes or a number.",
    b"[audit]\nheatmaps = [true]": "heatmaps is [True], expected a text in quotes or a number, or a list of them.",
    b"[audit]\npolicy = \"a\\u0000b\"": "policy is ",
    b"[audit]\nthreads = 'many'": "--threads",
    b"audit = 3": "ours.toml [audit] is 3, expected a table",
    b"[audit": "ours.toml is not TOML",
    b"\xff": "cannot be read",
    b"[audit]\n" + b"a." * 200 + b"b = 1": "dots in a line",
    b"#" * (1 << 19): "it has more than 262,144 bytes",
    b"[audit]\npool = " + b"[" * 20_000: "is not TOML",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:20].decode("latin-1"))
def test_a_wrong_config_is_refused_in_one_sentence(text: bytes, tmp_path: Path) -> None:
    words = ("audit", *RUN, "--config", _config(tmp_path, text))
    refused(auditkit(*words, folder=tmp_path), REFUSED[text])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--config", "none.toml"), "the config none.toml cannot be read: No such file"),
        (("--config", "."), "the config . cannot be read: it is a folder"),
        (("--config", "a", "--config=b"), "--config is given twice; put all options into one file."),
        (("--config",), "--config"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    refused(auditkit("audit", *RUN, *words, folder=tmp_path), sentence)
