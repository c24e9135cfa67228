"""The `auditkit` command: runs a verb, and turns every failure into one line and an exit code."""

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from auditkit.cli import bundle, config, console, options, policy
from auditkit.cli.entry import INTERRUPTED
from auditkit.errors import AuditError, unknown

# In the order of the help; each is the function of that name in the module of that name, with _ for -.
VERBS = ("inspect", "differentiate", "explain", "evaluate", "examine", "audit", "merge", "report", "compare", "verify",
         "sign-off", "keygen", "sign", "archive", "schema", "doctor", "demo")  # fmt: skip

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, cls=options.Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Audit image classifiers through their ONNX files: what they rely on, and how well heatmaps explain them.",
    epilog="Start with: auditkit demo, or: auditkit inspect vendor.onnx",
)  # fmt: skip
for name in VERBS:
    identifier = name.replace("-", "_")
    options.verb(app, name)(getattr(import_module(f"auditkit.cli.{identifier}"), identifier))
app.add_typer(bundle.app, name="bundle")
app.add_typer(policy.app, name="policy")


def _show_version(is_set: bool) -> None:
    if is_set:
        from auditkit.model.doctor import providers, versions

        print(", ".join(f"{name} {version}" for name, version in versions().items()))
        print(f"providers: {', '.join(providers())}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help=(
        "Show the versions of auditkit and of what it runs on."))] = False,
) -> None:  # fmt: skip
    pass


_STDERR = 2  # its descriptor
_LONG_WORD = re.compile(r"(\S{300})\S{100,}")  # a name out of a vendor's file may fill the screen
_CLOSED_PIPE = 141  # as a shell reports SIGPIPE: no verdict, good or bad


def main() -> None:
    """Run the command and exit."""
    if not sys.warnoptions and not os.environ.get("AUDITKIT_DEBUG"):  # a library's warning is not meant for the user
        warnings.simplefilter("ignore")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # so that a name the terminal cannot show does not fail the command
            stream.reconfigure(errors="backslashreplace")
    try:
        with _libraries_muted():
            code = app(standalone_mode=False, prog_name="auditkit")
    except AuditError as error:
        _fail(str(error), error.exit_code)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except (BrokenPipeError, SystemExit):  # typer turns a broken pipe into exit code 1, that of a failed policy
        if "_AUDITKIT_COMPLETE" in os.environ:  # a shell asks for words
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that flushing at exit does not fail again
        sys.exit(_CLOSED_PIPE)
    except Exception as error:
        _fail(*_explained(error))
    if code == INTERRUPTED:  # typer turns an interrupt into this code
        raise KeyboardInterrupt
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _libraries_muted() -> Iterator[None]:
    """Keep off stderr what libraries in C write to its descriptor, such as libtiff about a damaged picture."""
    stderr, debug = sys.stderr, os.environ.get("AUDITKIT_DEBUG")
    try:
        muted = stderr.fileno() == _STDERR and not debug
    except (AttributeError, OSError, ValueError):  # a stream of another kind, which such libraries do not know
        muted = False
    if not muted:
        yield
        return
    descriptor, nowhere = os.dup(_STDERR), os.open(os.devnull, os.O_WRONLY)
    stderr.flush()
    try:
        with os.fdopen(descriptor, "w", 1, stderr.encoding, "backslashreplace") as stream:
            os.dup2(nowhere, _STDERR)
            sys.stderr = stream
            try:
                yield
            finally:
                sys.stderr = stderr
                os.dup2(descriptor, _STDERR)
    finally:
        os.close(nowhere)


def _explained(error: Exception) -> tuple[str, int]:
    """Sentence and exit code for a wrong command line or an internal error."""
    if hasattr(error, "format_message"):  # a usage error, whose class moved between versions of typer
        context = getattr(error, "ctx", None)
        sentence = error.format_message().strip()
        if context and hasattr(error, "possibilities") and hasattr(error, "option_name"):
            names = [config.OPTION, "--help", *(f"--{name}" for name in config.long_options(context.command))]
            sentence = unknown("option", error.option_name, names)
        if sentence and not sentence.endswith((".", "?")):
            sentence += "."
        return sentence + (f" See: {context.command_path} --help" if sentence and context else ""), 2
    if os.environ.get("AUDITKIT_DEBUG"):
        raise error
    return f"internal error ({type(error).__name__}: {error}). AUDITKIT_DEBUG=1 shows where; please report it.", 4


def _fail(sentence: str, code: int) -> NoReturn:
    if sentence:  # there is none without a verb, where the help is printed
        short = _LONG_WORD.sub(r"\1...", " ".join(sentence.split()))
        print("auditkit: " + console.plain(short), file=sys.stderr)
    sys.exit(code)
