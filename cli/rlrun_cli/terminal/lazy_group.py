"""Command groups that import a command's module only when the command is called.

A group's help page needs only the names and summaries in the group's table. Help pages are plain text like kubectl's,
because importing rich would take longer than the rest of the command.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from rlrun_cli.terminal.errors import CliError, show_error

COMMANDS = "rlrun_cli.commands"
HELP_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@dataclass(frozen=True)
class CommandEntry:
    """Command of a group: its function, and its line in the group's help page.

    The text at the end of the command's own help page is a constant in its module: `STOP_RUN_EPILOG` for `stop_run`.
    """

    target: str
    """Function of the command, as `module:function`. The module is relative to the package COMMANDS."""
    summary: str
    panel: str = "Commands"
    """Heading in the group's help page."""
    hidden: bool = False
    reader: str = ""
    """Function in the command's module that transforms the command-line words before they are parsed. Empty if there
    is none.
    """


@dataclass(frozen=True)
class GroupEntry:
    """Group of commands within a group."""

    summary: str
    commands: "Mapping[str, CommandEntry]"
    panel: str = "Commands"
    """Heading in the outer group's help page."""
    default: str | None = None
    """Command that is used if the first word is not a command."""
    hidden: bool = False


Entry = CommandEntry | GroupEntry


class PlainHelp:
    """Plain help pages that list options under panel headings and keep the indentation of epilog lines."""

    params: "list[Any]"
    epilog: str | None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the parameters to the help page."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in cast(Any, self).get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panels.setdefault(parameter.rich_help_panel or usual, []).append(record)
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the epilog to the help page."""
        if not self.epilog:
            return
        for paragraph in self.epilog.strip("\n").split("\n\n"):
            formatter.write_paragraph()
            if paragraph.startswith("  "):
                formatter.write(paragraph + "\n")
            else:
                formatter.write_text(paragraph)


class PlainCommand(PlainHelp, TyperCommand):
    """Command with a plain help page."""

    reader: Callable[[Sequence[str]], list[str]] = list

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.reader(args))


class LazyGroup(PlainHelp, TyperGroup):
    """Group of commands. Prints a CliError as a message and exits with its code."""

    entries: Mapping[str, Entry] = {}
    """Entries of the group by command name, set by a subclass or an instance."""
    default: str | None = None

    def __init__(
        self, *, entries: Mapping[str, Entry] | None = None, default: str | None = None, **settings: Any
    ) -> None:
        self.entries = self.entries if entries is None else entries
        self.default = default
        # Until `get_command` loads a command, its name in `commands` only serves to suggest similar names.
        super().__init__(**{**settings, "commands": dict.fromkeys(self.entries), "rich_markup_mode": None})

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.entries and self.commands[cmd_name] is None:
            self.commands[cmd_name] = load(cmd_name, self.entries[cmd_name])
        return self.commands.get(cmd_name)

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.entries)

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, entry in self.entries.items():
            if not entry.hidden:
                panels.setdefault(entry.panel, []).append((name, entry.summary))
        width = max((len(name) for rows in panels.values() for name, _ in rows), default=0)
        for title, rows in panels.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in rows])

    @override
    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Options before a command's name belong to the default command, except help options.
        if self.default and args[:1] not in (["-h"], ["--help"]) and not (args and args[0] in self.entries):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CliError as problem:
            show_error(problem)
            raise typer.Exit(problem.code) from None


def load(name: str, entry: Entry) -> Any:
    """Return the command or group of an entry. For a command, imports its module."""
    if isinstance(entry, GroupEntry):
        return LazyGroup(
            name=name,
            entries=entry.commands,
            default=entry.default,
            help=entry.summary,
            hidden=entry.hidden,
            no_args_is_help=entry.default is None,
        )
    module_name, _, function = entry.target.partition(":")
    module = import_module(f"{COMMANDS}.{module_name}")
    epilog = getattr(module, f"{function.upper()}_EPILOG")
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=PlainCommand, epilog=epilog, hidden=entry.hidden)(getattr(module, function))
    command = typer.main.get_command(single)
    if entry.reader:
        command.reader = getattr(module, entry.reader)  # type: ignore[attr-defined]
    return command
