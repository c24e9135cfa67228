"""Options that several verbs share, each defined once, and the objects they become; how options are parsed."""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from auditkit.cli import config
from auditkit.errors import BadInput, unknown
from auditkit.recorded_names import command_words

if TYPE_CHECKING:
    from auditkit.data.dataset import Dataset
    from auditkit.model.classifier import OnnxClassifier, Opening
    from auditkit.model.session import Settings

_GIB = 2**30
_Verb = Callable[..., None]
_map_option = partial(typer.Option, rich_help_panel="How heatmaps are made")
_file_option = partial(typer.Option, rich_help_panel="How the model and its images are read")
_run_option = partial(typer.Option, rich_help_panel="How the model is run")
_limit_option = partial(typer.Option, rich_help_panel="Limits for unknown files")

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)]
ImagesPath = Annotated[Path, typer.Argument(metavar="IMAGES", help="Images: folder, CSV or .npz.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Limit = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Use at most N images; their content (and audit's salt) fixes which."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and the estimated time, then stop.")]
ShardOption = Annotated[str | None, _run_option("--shard", metavar="I/N", help=(
    "Compute only part I of N, into its own folder; combine the parts with auditkit merge."))]  # fmt: skip
AsResultsJson = Annotated[bool, typer.Option("--json", help="Print results.json instead of a table.")]
MethodOption = Annotated[
    list[str] | None,
    _map_option("--option", metavar="NAME=VALUE", help="An option of the method, such as steps=300; repeatable."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show results and errors only: no notes, no progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show identifiers and digests too.")]
RecordMachine = Annotated[bool, typer.Option("--record-machine", help=(
    "Record full paths, the names of machines and process ids; by default, no record has them."))]  # fmt: skip
_Config = Annotated[str | None, typer.Option(
    config.OPTION, metavar="FILE", help="TOML file with options, in a table for each command; the command line wins."
)]  # fmt: skip
Quality = Annotated[str | None, _map_option(
    help="Effort for a learned mask: fast (the default; 1,400 images), full (10,000; figures differ by up to 0.02"
    " on average) or paper (20,000, with the paper's optimiser)."
)]  # fmt: skip
Gradient = Annotated[
    str, _map_option(help="How a mask is learned: graph, differences, or auto (the first that works).")
]


class _PlainFlags:
    """The help names no value of a flag, which takes none."""

    def get_params(self, ctx: config.Context) -> list[config.Option]:
        """The parameters of the command."""
        parameters: list[config.Option] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Verbs(_PlainFlags, TyperGroup):
    """A group of commands that says which one a misspelled word may mean."""

    def resolve_command(self, ctx: config.Context, args: list[str]) -> tuple[str | None, config.Command, list[str]]:
        """The command that the arguments begin with."""
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise BadInput(f"{unknown('command', args[0], self.commands)} See: {ctx.command_path} --help")
        return super().resolve_command(ctx, args)


class Verb(_PlainFlags, TyperCommand):
    """A command that takes options from a config file.

    It refuses an option in the place of another option's value, which typer would take for the value.
    """

    def parse_args(self, ctx: config.Context, args: list[str]) -> list[str]:
        """The arguments that are left after the options."""
        names, taking_values = {*ctx.help_option_names}, set[str]()
        for parameter in self.params:
            options = [name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("-")]
            names.update(options)
            if not getattr(parameter, "is_flag", False):
                taking_values.update(options)
        for name, value in pairwise(args):
            if name == "--":
                break
            if name in taking_values and value in names:
                raise BadInput(f"{name} needs a value, but {value} follows. See: {ctx.command_path} --help")
        if not ctx.resilient_parsing:  # as it is to complete a word
            before = sys.argv[: len(sys.argv) - len(args)]
            args = config.expand(ctx, args)
            sys.argv = [*before, *args]  # what a run records
        return super().parse_args(ctx, args)


def verb(app: typer.Typer, name: str) -> Callable[[_Verb], _Verb]:
    """A decorator that adds a verb to an app; its docstring is the help, and the last paragraph of it an example."""

    def decorate(function: _Verb) -> _Verb:
        @wraps(function)
        def command(config: str | None = None, **values: Any) -> None:  # noqa: ARG001 (its options are among the values)
            function(**values)

        # Paragraphs are unwrapped, so that they wrap at the terminal's width.
        *paragraphs, example = (" ".join(part.split()) for part in (function.__doc__ or "").split("\n\n"))
        parameter = Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=_Config)
        _set_parameters(command, [*signature(function).parameters.values(), parameter])
        app.command(name, cls=Verb, help="\n\n".join(paragraphs), epilog=example)(command)
        return function

    return decorate


@dataclass(frozen=True)
class ModelOptions:
    """How to open and run a model; each field is an option of the command line."""

    # fmt: off
    card: Annotated[Path | None, _file_option(help="Preprocessing; by default vendor.toml for vendor.onnx.")] = None
    preset: Annotated[str | None, _file_option(
        help="Use a common preprocessing instead of a card: imagenet, caffe, tf, unit, clip, cifar or none.")] = None
    ignore_exif: Annotated[bool, _file_option(
        "--ignore-exif", help="Use pictures as they are stored; by default their EXIF orientation is applied.")] = False
    input: Annotated[str | None, _file_option(help="Name of the image input.")] = None
    output: Annotated[str | None, _file_option(help="Name of the tensor with the class scores.")] = None
    layout: Annotated[str | None, _file_option(help="NCHW or NHWC.")] = None
    kind: Annotated[str | None, _file_option(help="logits, probabilities, log-probabilities or sigmoid.")] = None
    size: Annotated[str | None, _file_option(
        help="Input size, such as 224 or 240x320 (height x width), if the file leaves it open.")] = None
    vendor_key: Annotated[Path | None, _file_option(metavar="FILE", help=(
        "The vendor's public key: open MODEL only if MODEL.sig or model.sig next to it is signed with it."))] = None
    device: Annotated[str, _run_option(help="auto, cuda or cpu; cuda fails if there is no GPU.")] = "auto"
    precision: Annotated[str, _run_option(help="auto, strict, tf32 or float16.")] = "auto"
    batch: Annotated[int | None, _run_option(help="Images in a batch; measured by default.")] = None
    threads: Annotated[int, _run_option(help="CPU threads; 0 leaves the choice to the runtime.")] = 0
    memory: Annotated[float | None, _run_option(
        help="GiB of GPU memory to use, 3.25 or more; by default as much as is useful.")] = None
    workers: Annotated[str, _run_option(metavar="N", help=(
        "Worker processes: a number, or auto for one on each GPU."))] = "auto"
    engine: Annotated[str, _run_option(help=(
        "Where worker processes run: local, ray, or ray:ADDRESS for a cluster (see docs/scale.md)."))] = "local"
    allow_failed: Annotated[int, _run_option(
        help="Leave out up to this many images on which the model hangs, crashes or takes too much memory.")] = 0
    memory_limit: Annotated[float, _limit_option(
        help="GiB (plus four times the file) that the first load and run of a file may take.")] = 1.0
    time_limit: Annotated[float, _limit_option(
        help="Seconds that the first load and run of a file may take.")] = 45.0
    # fmt: on

    def opening(self, gradient_output: str | None = None) -> "Opening":
        """How to open the model: its card or preset, what the auditor states about it, and the limits."""
        from auditkit.model.classifier import Opening
        from auditkit.model.read import Limits
        from auditkit.model.signature import Overrides

        if self.card is not None and self.preset is not None:
            raise BadInput("--card and --preset cannot be used together; give one of them.")
        if not (0 < self.memory_limit < math.inf and 0 < self.time_limit < math.inf):
            limits_text = f"--memory-limit {self.memory_limit:g} and --time-limit {self.time_limit:g}"
            raise BadInput(f"{limits_text} must be positive numbers.")
        overrides = Overrides(
            input=self.input, output=self.output, layout=self.layout, kind=self.kind,  # type: ignore[arg-type]
            size=_parse_size(self.size), gradient_output=gradient_output,
        )  # fmt: skip
        limits = Limits(memory_bytes=int(self.memory_limit * _GIB), seconds=self.time_limit)
        return Opening(self.card, self.preset, overrides, limits, self.ignore_exif)

    def settings(self) -> "Settings":
        """How to run the model."""
        from auditkit.model.session import Settings

        if self.memory is not None and not 0 < self.memory < math.inf:
            raise typer.BadParameter(f"--memory {self.memory:g} is not a positive number of GiB")
        memory_bytes = None if self.memory is None else int(self.memory * _GIB)
        return Settings(self.device, self.precision, self.threads, self.batch, memory_bytes=memory_bytes,  # type: ignore[arg-type]
                        allow_failed=self.allow_failed)  # fmt: skip

    def open(self, model: Path) -> "OnnxClassifier":
        """The classifier in an ONNX file."""
        return self._opened(model, self.opening(), self.settings())

    def _opened(self, model: Path, opening: "Opening", settings: "Settings") -> "OnnxClassifier":
        """The classifier in an ONNX file, whose signature is checked first where the vendor's key is given."""
        from auditkit.model.classifier import open_file

        if self.vendor_key is None:
            return open_file(model, opening, settings)
        from auditkit.evidence.keys import read_public
        from auditkit.evidence.model_signature import SignedFiles

        signed = SignedFiles.check(model, read_public(self.vendor_key))
        classifier = open_file(model, opening, settings)
        signed.check_opened(classifier.file.sha256, classifier.file.external)
        return classifier

    def open_with_images(
        self, model: Path, images: Path, pool: Path | None, limit: int | None = None, *, quiet: bool = False
    ) -> "tuple[OnnxClassifier, Dataset, Dataset | None]":
        """The classifier in an ONNX file, its images, at most `limit` of them, and the images to fill in with.

        If nobody stated the preprocessing, it is assumed, and a warning says so.
        """
        from auditkit.cli import console
        from auditkit.cli.progress import shown
        from auditkit.data.dataset import Dataset
        from auditkit.engines.start import Workers
        from auditkit.model import decoder
        from auditkit.runs.inspection import at_own_size, settle_preprocessing

        settings, opening = self.settings(), self.opening()
        decoder.start_for(images)
        classifier = self._opened(model, opening, settings)
        classes = (classifier.signature.classes, classifier.card.names)
        dataset = Dataset.open(images, *classes)
        classifier = at_own_size(classifier, dataset, lambda size: self._opened(model, opening.at(size), settings))
        with shown("trying presets", quiet=quiet) as progress:
            settle_preprocessing(classifier, dataset, progress)
        if classifier.card.origin.assumption:
            typer.echo(f"warning: {classifier.card.origin.assumption}", err=True)
        console.print_notes((f"guessed: {text}" for text in classifier.signature.guesses), quiet)
        Workers(self.workers, self.engine).serve(classifier)
        if limit is not None and limit < len(dataset):
            dataset = dataset.sample(limit)
        return classifier, dataset, Dataset.open(pool, *classes) if pool else None


def with_model_options(*names: str, without: tuple[str, ...] = ()) -> Callable[[_Verb], _Verb]:
    """A decorator that replaces a verb's parameter `model_options` by one parameter per option.

    The command line has the options in `names` (all of them by default) except those in `without`; the others keep
    their defaults.
    """
    annotations = get_type_hints(ModelOptions, include_extras=True)
    parameters = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=annotations[field.name])
        for field in fields(ModelOptions)
        if field.name in (names or annotations) and field.name not in without
    ]

    def decorate(verb: _Verb) -> _Verb:
        @wraps(verb)
        def command(**values: Any) -> None:
            chosen = {parameter.name: values.pop(parameter.name) for parameter in parameters}
            verb(**values, model_options=ModelOptions(**chosen))

        others = [item for item in signature(verb).parameters.values() if item.name != "model_options"]
        _set_parameters(command, [*others, *parameters])
        return command

    return decorate


def _set_parameters(command: _Verb, parameters: list[Parameter]) -> None:
    """Let typer see these parameters instead of those that the function is written with."""
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}


def parse_pairs(texts: list[str] | None, option: str, example: str) -> list[tuple[str, str]]:
    """Name and value of each NAME=VALUE that an option was given."""
    pairs = []
    for text in texts or []:
        name, _, value = text.partition("=")
        if not (name and value):
            raise typer.BadParameter(f"{option} {text} is not a pair such as {example}")
        pairs.append((name, value))
    return pairs


def method_options(texts: list[str] | None, quality: str | None) -> tuple[tuple[str, str], ...]:
    """Name and value of each --option, and of --quality."""
    pairs = parse_pairs(texts, "--option", "steps=300")
    options = [(name.strip().replace("-", "_"), value.strip()) for name, value in pairs]
    return tuple(options if quality is None else [("quality", quality), *options])


def command_line(*, record_machine: bool) -> tuple[str, ...]:
    """The command line as a run records it."""
    return tuple(sys.argv) if record_machine else command_words(sys.argv)


def _parse_size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text)
    height, width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if 0 in (height, width):
        raise typer.BadParameter(f"--size {text} is not a size such as 224 or 240x320")
    return height, width
