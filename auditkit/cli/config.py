"""`--config FILE`: options of verbs in a TOML file, which become part of the command line and of its record."""

import hashlib
from pathlib import Path
from typing import Any

from auditkit.errors import BadInput
from auditkit.toml_tables import MOST_CHARACTERS, Table, is_number, parse_toml, read_text

# Of typer, whose classes have no name that all its versions know.
Context = Any
Command = Any
Option = Any
OPTION = "--config"
_DIGEST = "sha256:"  # in place of a file whose options are in the command line already


def expand(context: Context, args: list[str]) -> list[str]:
    """The arguments of a verb with the options of a config file before them and its digest instead of its name.

    Options that are typed take precedence. The result can be recorded and given again without the file.
    """
    end = args.index("--") if "--" in args else len(args)
    typed = [arg.partition("=")[0] for arg in args[:end]]
    if typed.count(OPTION) > 1:
        raise BadInput(f"{OPTION} is given twice; put all options into one file.")
    if OPTION not in typed:
        return args
    position = typed.index(OPTION)
    _, equals, file = args[position].partition("=")
    after = position + (1 if equals else 2)
    file = file if equals else "".join(args[position + 1 : after])
    if not file or file.startswith(_DIGEST):
        return args
    text = read_text(Path(file), "config")
    table, words = _table(context, parse_toml(text, Path(file).name), Path(file).name), list[str]()
    for name, option in long_options(context.command).items():
        if name in table and not {*option.opts, *option.secondary_opts} & {*typed}:
            words += _words(option, name, table)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return [f"{OPTION}={_DIGEST}{digest}", *words, *args[:position], *args[after:]]


def _table(context: Context, data: object, where: str) -> Table:
    """The table of a verb, with its keys checked, and those of the groups that it belongs to."""
    names = getattr(context.command, "commands", None) or [*long_options(context.command)]
    if context.parent is None:
        return Table(data, where, names)
    outer = _table(context.parent, data, where)
    return Table(outer.data.get(context.info_name, {}), f"{outer.where} [{context.info_name}]", names)


def long_options(command: Command) -> dict[str, Option]:
    """The options of a command by their long names without dashes, --config excepted."""
    options = dict[str, Option]()
    for option in command.params:
        names = [name.removeprefix("--") for name in option.opts if name.startswith("--") and name != OPTION]
        options |= dict.fromkeys(names, option)
    return options


def _words(option: Option, name: str, table: Table) -> list[str]:
    """The words of the command line that set an option to its value in the table."""
    value = table.data[name]
    if option.is_flag:
        return [f"--{name}"] if table.truth(name, default=False) else option.secondary_opts[:1]
    values = value if option.multiple and isinstance(value, list) else [value]
    for each in values:
        is_text = isinstance(each, str) and each.isprintable() and len(each) <= MOST_CHARACTERS
        if not is_text and not is_number(each):
            raise table.refuse(name, "a text in quotes or a number" + (", or a list of them" * option.multiple))
    return [f"--{name}={each}" for each in values]
