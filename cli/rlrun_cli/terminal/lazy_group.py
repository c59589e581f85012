"""Groups of commands whose modules are imported when one of the commands is called.

A help page of a group needs the names and summaries of its commands only, which are in its table. Help pages are plain
text, as those of kubectl: importing rich for them would take longer than everything else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from rlrun_cli.terminal.errors import CliError, show_error

HELP_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@dataclass(frozen=True)
class CommandEntry:
    """One command: where it is, and its line in the help page of its group."""

    target: str
    """`module:function`."""
    summary: str
    epilog: str = ""
    """Name of the epilog in the module."""
    panel: str = "Commands"
    """Heading in the help page of the group."""
    hidden: bool = False
    reader: str = ""
    """Name of a function in the module that changes the words of the command line before they are parsed."""


@dataclass(frozen=True)
class GroupEntry:
    """A group of commands within a group."""

    summary: str
    commands: "Mapping[str, CommandEntry]"
    default: str | None = None
    """Command that is meant if the first word is none."""
    panel: str = "Commands"
    hidden: bool = False


Entry = CommandEntry | GroupEntry


class PlainHelp:
    """Help pages: options under the headings of their panels, and lines of an epilog that are indented as they are."""

    params: "list[Any]"
    epilog: str | None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the parameters."""
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
        """Write the epilog."""
        if not self.epilog:
            return
        for paragraph in self.epilog.strip("\n").split("\n\n"):
            formatter.write_paragraph()
            if paragraph.startswith("  "):
                formatter.write(paragraph + "\n")
            else:
                formatter.write_text(paragraph)


class PlainCommand(PlainHelp, TyperCommand):
    """A command."""

    reader: Callable[[Sequence[str]], list[str]] = list

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.reader(args))


@dataclass(frozen=True)
class LazyCommands(Mapping[str, Any]):
    """Commands by name, imported when they are looked up."""

    entries: Mapping[str, Entry]
    loaded: dict[str, Any] = field(default_factory=dict)

    @override
    def __getitem__(self, name: str) -> Any:
        if name not in self.loaded:
            self.loaded[name] = load(name, self.entries[name])
        return self.loaded[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    @override
    def __len__(self) -> int:
        return len(self.entries)


class LazyGroup(PlainHelp, TyperGroup):
    """Group of commands. Prints a CliError as a message and exits with its code."""

    entries: Mapping[str, Entry] = {}
    """Table of the group. A subclass or an instance sets it."""
    default: str | None = None

    def __init__(
        self, *, entries: Mapping[str, Entry] | None = None, default: str | None = None, **settings: Any
    ) -> None:
        self.entries = self.entries if entries is None else entries
        self.default = default
        super().__init__(**{**settings, "commands": LazyCommands(self.entries), "rich_markup_mode": None})

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
        # Options before the name of a command belong to the default command, except those for help.
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
    """Return the command of an entry. The module of a single command is imported."""
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
    module = import_module(module_name)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    epilog = getattr(module, entry.epilog) if entry.epilog else None
    single.command(name, cls=PlainCommand, epilog=epilog, hidden=entry.hidden)(getattr(module, function))
    command = typer.main.get_command(single)
    if entry.reader:
        command.reader = getattr(module, entry.reader)  # type: ignore[attr-defined]
    return command
