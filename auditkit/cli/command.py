"""A command that notices an option left without its value."""

from itertools import pairwise
from typing import Any

from typer.core import TyperCommand

from auditkit.errors import BadInput


class Verb(TyperCommand):
    """Typer's command, which would take the next option for the value and then miss that option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # the class of contexts moved between versions
        """Parse as typer does, but refuse an option in the place of another option's value."""
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
        return super().parse_args(ctx, args)
