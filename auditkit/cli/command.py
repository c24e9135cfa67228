"""A verb of the command line that notices an option left without its value."""

from itertools import pairwise
from typing import Any

from typer.core import TyperCommand

from auditkit.errors import BadInput


class Verb(TyperCommand):
    """Typer's own, which would take the next option for the value, and then miss that option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The same, unless an option follows one that wants a value."""
        options = {name: one for one in self.params for name in (*one.opts, *one.secondary_opts) if name[:1] == "-"}
        known = {*options, *ctx.help_option_names}
        for name, value in pairwise(args):
            if name == "--":
                break
            if name in options and value in known and not getattr(options[name], "is_flag", False):
                raise BadInput(f"{name} needs a value, and {value} follows. See: {ctx.command_path} --help")
        return super().parse_args(ctx, args)
