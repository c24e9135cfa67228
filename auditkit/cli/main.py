"""The `auditkit` command: finds the verb, runs it, and turns every failure into one line and an exit code."""

import os
import sys
from typing import Annotated, NoReturn

import typer

from auditkit import __version__
from auditkit.cli import (
    audit,
    bundle,
    compare,
    console,
    demo,
    differentiate,
    doctor,
    evaluate,
    explain,
    inspect,
    policy,
    report,
    verify,
)
from auditkit.cli.command import Verb
from auditkit.errors import AuditError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Audit image classifiers through their ONNX files: what they are, and how well heatmaps explain them.",
    epilog="Start with: auditkit demo, or: auditkit inspect vendor.onnx",
)  # fmt: skip
VERBS = (
    inspect.inspect, differentiate.differentiate, explain.explain, evaluate.evaluate, audit.audit, report.report,
    compare.compare, verify.verify, doctor.doctor, demo.demo,
)  # fmt: skip
for verb in VERBS:
    # Paragraphs unwrapped, so that the terminal's own width wraps them.
    paragraphs = (" ".join(part.split()) for part in (verb.__doc__ or "").split("\n\n"))
    app.command(verb.__name__, cls=Verb, help="\n\n".join(paragraphs))(verb)
app.add_typer(bundle.app, name="bundle")
app.add_typer(policy.app, name="policy")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"auditkit {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")]
    = False,
) -> None:  # fmt: skip
    pass


NOBODY_READS = 141  # as of a command that a closed pipe has ended: no verdict, good or bad


def main() -> None:
    """Run the command and exit."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a name that the terminal cannot show is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False, prog_name="auditkit")
    except AuditError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted.", 130)
    except (BrokenPipeError, SystemExit):  # typer turns the one into the other, with the code of a failed policy
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads; do not fail again at exit
        sys.exit(NOBODY_READS)
    except Exception as error:
        sentence, exit_code = _told(error)
        _fail(sentence, exit_code)
    if code == 130:  # typer turns an interrupt into this code
        _fail("interrupted.", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _told(error: Exception) -> tuple[str, int]:
    """Sentence and exit code for a wrong command line, or for a mistake of auditkit's own."""
    # The class of usage errors moved between versions of typer; what they can do did not.
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        where = f" See: {context.command_path} --help" if context else ""
        sentence = error.format_message().strip()
        return sentence + ("" if sentence.endswith((".", "?")) else ".") + where if sentence else "", 2
    if os.environ.get("AUDITKIT_DEBUG"):
        raise error
    return f"internal error ({type(error).__name__}: {error}). AUDITKIT_DEBUG=1 shows where; please report it.", 4


def _fail(sentence: str, code: int) -> NoReturn:
    if sentence:  # without a verb, the help says it all
        print("auditkit: " + console.plain(" ".join(sentence.split())), file=sys.stderr)
    sys.exit(code)
