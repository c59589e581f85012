"""Prints the results of `list` and `get` commands like kubectl: as the API server's table or as documents.

The columns are those in the kinds' CustomResourceDefinitions, which `rlrun.codegen.crd` declares.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.text import Text
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Obj
from rlrun.kube.requests import Printed, Table

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import cli_context, with_options
from rlrun_cli.remote.run_data.run_summary import FINISHED
from rlrun_cli.remote.watching import watch
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError, NotFoundError
from rlrun_cli.terminal.output import Cell, TableFormat
from rlrun_cli.terminal.sorting import sort

TableOutput = Annotated[
    TableFormat | None,
    typer.Option("-o", "--output", help="table, wide (more columns), json, yaml (the objects) or name."),
]
AllNamespaces = Annotated[bool, typer.Option("-A", "--all-namespaces", help="List objects in all namespaces.")]
Selector = Annotated[
    str,
    typer.Option("-l", "--selector", metavar="LABELS", help="Label selector, such as team=a,stage!=test."),
]
SortBy = Annotated[
    str | None,
    typer.Option("--sort-by", metavar="FIELD", help="Field to sort by, as in kubectl: .status.progress.reward."),
]
Watch = Annotated[bool, typer.Option("-w", "--watch", help="Print a row for each change until Ctrl-C.")]
INTERRUPTED = 130

FORMATS: Mapping[str, Callable[[Any], Cell]] = {
    "Phase": lambda value: output.phase(value or "Pending"),
    "Size": output.size,
    "ETA": lambda value: None if value is None else output.duration(value),
}
"""Functions that format values for display, by column name."""


@dataclass(frozen=True)
class Choice:
    """Options of a `list` or `get` command."""

    all_namespaces: bool = False
    selector: str = ""
    watch: bool = False
    sort_by: str | None = None
    fmt: TableFormat | None = None

    def select(self, api: RemoteCluster, kind: ResourceKind, fields: str) -> Printed:
        """Return the query for the selected objects. Its rows contain whole objects if these are printed or sorted by a
        field, otherwise only metadata.
        """
        place = None if self.all_namespaces else api.namespace
        return Printed(kind, place, self.selector, fields, bool(self.sort_by) or not output.is_table(self.fmt))


@contextmanager
def _list_options(
    all_namespaces: AllNamespaces = False,
    selector: Selector = "",
    watch: Watch = False,
    sort_by: SortBy = None,
    fmt: TableOutput = None,
) -> Iterator[Choice]:
    yield Choice(all_namespaces, selector, watch, sort_by, fmt)


with_list_options = with_options("choice", _list_options)
"""Decorator that adds the options of `list`, which the command receives as `choice`."""
with_cluster_list_options = with_options("choice", _list_options, without=("all_namespaces",))
"""Decorator that adds the options of `list` for objects without a namespace."""
with_get_options = with_options("choice", _list_options, without=("all_namespaces", "selector", "sort_by"))
"""Decorator that adds the options of `get`, which the command receives as `choice`."""


def show_list(
    ctx: typer.Context,
    api: RemoteCluster,
    kind: ResourceKind,
    choice: Choice,
    *,
    empty: str,
    fields: str = "",
    order: Callable[[list[Obj]], list[Obj]] = list,
) -> None:
    """Print the selected objects, and with --watch their changes.

    `empty` is the notice for an empty list; its `{place}` is replaced by ` in namespace NAME` or by nothing.
    `fields` is a field selector. `order` sorts the rows; `--sort-by` then takes precedence.

    Raises CliError.
    """
    if choice.watch and choice.sort_by:
        raise CliError("--sort-by cannot be used with --watch", "remove one of the two", code=INVALID)
    printed = choice.select(api, kind, fields)
    if choice.watch:
        _print_changes(ctx, api, choice, printed, order)
        return
    table = _table(ctx, api, printed)
    rows = order(table.rows)
    if choice.sort_by:
        rows = sort(rows, choice.sort_by, _object)
    if not output.is_table(choice.fmt):
        output.emit([_object(row) for row in rows], kind.plural, output.document_format(choice.fmt), single=False)
    elif rows:
        _print_table(table, rows, choice)
    else:
        is_placed = kind.namespaced and not choice.all_namespaces
        output.notice(empty.format(place=f" in namespace {api.namespace}" if is_placed else ""))


def show_one(
    ctx: typer.Context,
    api: RemoteCluster,
    kind: ResourceKind,
    name: str,
    choice: Choice,
    describe: Callable[[Obj], list[Text]],
) -> None:
    """Print one object: as a description by default, as a row or document with -o, or its changes with --watch.

    Raises NotFoundError if the object does not exist, or is deleted while it is watched.
    """
    item = api.get(kind, name)
    printed = choice.select(api, kind, f"metadata.name={name}")
    if choice.watch:
        _print_changes(ctx, api, choice, printed, list)
    elif choice.fmt is None:
        console = output.out()
        for line in describe(item):
            console.print(line)
    elif output.is_table(choice.fmt):
        table = _table(ctx, api, printed)
        _print_table(table, table.rows, choice)
    else:
        output.emit([item], kind.plural, output.document_format(choice.fmt), single=True)


def _table(ctx: typer.Context, api: RemoteCluster, printed: Printed) -> Table:
    table, _ = next(watch(api, printed, cli_context(ctx).sleep, cli_context(ctx).clock))
    return table


def _print_table(table: Table, rows: list[Obj], choice: Choice) -> None:
    output.print_table(_headings(table, choice), [_cells(table, row, choice) for row in rows])


def _object(row: Obj) -> Obj:
    found: Obj = row["object"]
    return found


def _is_shown(column: Obj, choice: Choice) -> bool:
    return not column.get("priority") or choice.fmt is TableFormat.wide


def _headings(table: Table, choice: Choice) -> list[str]:
    names = [column["name"].upper() for column in table.columns if _is_shown(column, choice)]
    return ["NAMESPACE", *names] if choice.all_namespaces else names


def _cells(table: Table, row: Obj, choice: Choice) -> list[Cell]:
    values = dict(zip((column["name"] for column in table.columns), row["cells"], strict=True))
    if values.get("Phase") in FINISHED:
        values["ETA"] = None
    cells = [_cell(column, values[column["name"]]) for column in table.columns if _is_shown(column, choice)]
    return [_object(row)["metadata"].get("namespace"), *cells] if choice.all_namespaces else cells


def _cell(column: Obj, value: Any) -> Cell:
    if column["name"] in FORMATS:
        return FORMATS[column["name"]](value)
    if value is None:
        return None
    return output.number(value) if column.get("type") == "number" else str(value)


def _print_changes(
    ctx: typer.Context,
    api: RemoteCluster,
    choice: Choice,
    printed: Printed,
    order: Callable[[list[Obj]], list[Obj]],
) -> None:
    growing = output.GrowingTable()
    try:
        for table, is_deleted in watch(api, printed, cli_context(ctx).sleep, cli_context(ctx).clock):
            rows = order(table.rows)
            if output.is_table(choice.fmt):
                growing.add(_headings(table, choice), [_cells(table, row, choice) for row in rows])
            else:
                objects = [_object(row) for row in rows]
                output.emit_stream(objects, printed.kind.plural, output.document_format(choice.fmt))
            if is_deleted and printed.fields.startswith("metadata.name="):
                name = printed.fields.partition("=")[2]
                raise NotFoundError(f"{printed.kind.kind} {name} was deleted; the watch has ended")
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
