"""Options that several verbs share, and what they become."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from auditkit.model.classifier import Opening
    from auditkit.model.session import Settings

FILE, RUN, SAFETY = "What the file is (when a guess is wrong)", "How it is run", "Limits for unknown files"

Card = Annotated[Path | None, typer.Option(help="Card to use; otherwise MODEL with the ending .toml, if it exists.")]
Preset = Annotated[
    str | None,
    typer.Option(help="Use a common preprocessing instead of a card: imagenet, caffe, tf, unit, clip, cifar or none."),
]
Input = Annotated[str | None, typer.Option("--input", help="Name of the image input.", rich_help_panel=FILE)]
Output = Annotated[str | None, typer.Option(help="Name of the tensor with the class scores.", rich_help_panel=FILE)]
Layout = Annotated[str | None, typer.Option(help="NCHW or NHWC.", rich_help_panel=FILE)]
Kind = Annotated[
    str | None, typer.Option(help="logits, probabilities, log-probabilities or sigmoid.", rich_help_panel=FILE)
]
Size = Annotated[
    str | None,
    typer.Option(
        help="Input size, as 224 or 240x320 (height x width), when the file leaves it open.", rich_help_panel=FILE
    ),
]
Device = Annotated[str, typer.Option(help="auto, cuda or cpu; cuda fails when there is none.", rich_help_panel=RUN)]
Precision = Annotated[str, typer.Option(help="auto, strict, tf32 or float16.", rich_help_panel=RUN)]
Batch = Annotated[int | None, typer.Option(help="Images run at once; measured unless given.", rich_help_panel=RUN)]
Threads = Annotated[int, typer.Option(help="CPU threads; 0 leaves it to the runtime.", rich_help_panel=RUN)]
Memory = Annotated[
    float | None,
    typer.Option(help="GiB of the GPU's memory to keep to, 3.25 or more; else as much as helps.", rich_help_panel=RUN),
]
MemoryLimit = Annotated[
    float,
    typer.Option(
        help="GiB (plus four times the file) that the first load and run of a file may take.", rich_help_panel=SAFETY
    ),
]
TimeLimit = Annotated[
    float, typer.Option(help="Seconds that the first load and run of a file may take.", rich_help_panel=SAFETY)
]


def opening(
    card: Path | None, preset: str | None, memory_limit: float, time_limit: float, size: str | None, **said: Any
) -> "Opening":
    """How to open the model, from the options given."""
    from auditkit.errors import BadInput  # noqa: PLC0415
    from auditkit.model.classifier import Opening  # noqa: PLC0415
    from auditkit.model.read import Limits  # noqa: PLC0415
    from auditkit.model.signature import Overrides  # noqa: PLC0415

    if card is not None and preset is not None:
        raise BadInput("--card and --preset exclude each other; give one.")
    if not (0 < memory_limit < math.inf and 0 < time_limit < math.inf):
        raise BadInput(f"--memory-limit {memory_limit:g} and --time-limit {time_limit:g} must be positive numbers.")
    limits = Limits(memory_bytes=int(memory_limit * 2**30), seconds=time_limit)
    return Opening(card, preset, Overrides(size=_parsed(size), **said), limits)


def _parsed(size: str | None) -> tuple[int, int] | None:
    if size is None:
        return None
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", size)
    if match is None or 0 in (height := int(match[1]), width := int(match[2] or match[1])):
        raise typer.BadParameter(f"--size {size} is not like 224 or 240x320")
    return height, width


def settings(
    device: str, precision: str = "auto", batch: int | None = None, threads: int = 0, memory: float | None = None
) -> "Settings":
    """How to run the model, from the options given."""
    from auditkit.model.session import Settings  # noqa: PLC0415

    if memory is not None and not 0 < memory < math.inf:
        raise typer.BadParameter(f"--memory {memory:g} is not a positive number of GiB")
    most = None if memory is None else int(memory * 2**30)
    return Settings(device, precision, threads, batch, memory_bytes=most)  # type: ignore[arg-type]


def pairs(given: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Name and value of each --option."""
    return tuple(_pair(text) for text in given or [])


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"--option {text} is not like steps=300")
    return name.strip().replace("-", "_"), value.strip()
