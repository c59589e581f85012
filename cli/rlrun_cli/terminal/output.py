"""Output formats: tables with ages as in kubectl, or JSON, YAML and names for programs.

Tables are never truncated to the terminal's width, because the end of a name identifies the object. Text from a cluster
or a file is never interpreted as terminal markup.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO, cast

import yaml
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rlrun_cli.terminal.errors import CONTROL_CHARACTERS, ESCAPES

Cell = str | Text | None

PHASE_STYLES = {
    "Completed": "green",
    "Ready": "green",
    "Running": "cyan",
    "Uploading": "cyan",
    "Pending": "yellow",
    "Queued": "yellow",
    "Suspended": "yellow",
    "Stopped": "dim",
    "Failed": "bold red",
}


class Format(StrEnum):
    """Values of the option -o."""

    json = "json"
    yaml = "yaml"
    name = "name"


class TableFormat(StrEnum):
    """Values of the option -o of commands that print a table by default."""

    table = "table"
    wide = "wide"
    json = "json"
    yaml = "yaml"
    name = "name"


def is_table(fmt: TableFormat | None) -> bool:
    """Return True if `fmt` prints a table."""
    return fmt in (None, TableFormat.table, TableFormat.wide)


def document_format(fmt: TableFormat | None) -> Format:
    """Convert a format for which `is_table` is False to a document format."""
    return Format(str(fmt))


class _Escaping:
    """Stream that escapes characters that are invisible or reorder text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text.translate(ESCAPES))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def out() -> Console:
    """Return a new console on standard output. It is not cached, because tests and pagers replace the stream."""
    return Console(file=cast(TextIO, _Escaping(sys.stdout)), highlight=False, soft_wrap=True)


def err() -> Console:
    """Return a console on standard error, for progress, notices and prompts. Results go to standard output."""
    return Console(file=cast(TextIO, _Escaping(sys.stderr)), highlight=False, soft_wrap=True)


def notice(text: str, style: str | None = None) -> None:
    """Print a line for the user on standard error."""
    err().print(Text(text.translate(CONTROL_CHARACTERS), style=style or ""))


def printable(cell: Cell) -> Text:
    """Return the text on one line without terminal control characters, or `-` for an empty value."""
    text = cell.plain if isinstance(cell, Text) else cell or "-"
    clean = text.translate(CONTROL_CHARACTERS).replace("\n", " ").replace("\t", " ")
    if isinstance(cell, Text):
        return cell if clean == text else Text(clean, style=cell.style)
    return Text(clean)


def fact(label: str, value: Cell, width: int) -> Text:
    """Return one line of a description: the label with a colon, padded to `width` columns, then the value."""
    return Text(f"{label + ':':<{width}}", style="bold").append(printable(value))


def phase(text: str | None) -> Text:
    """Return the phase in its color."""
    return Text(text or "-", style=PHASE_STYLES.get(text or "", ""))


def number(value: Any, digits: int = 3) -> str:
    """Return the number with `digits` decimal places, or `-` for None."""
    return "-" if value is None else f"{float(value):.{digits}f}"


def size(count: Any) -> str:
    """Return a number of bytes with a binary unit, or `-` for None."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(seconds: float) -> str:
    """Format a duration with kubectl's units and precision."""
    s = max(0, int(seconds))
    minutes, hours, days = s // 60, s // 3600, s // 86400
    if s < 120:
        return f"{s}s"
    if minutes < 10:
        return f"{minutes}m{s % 60}s" if s % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    return f"{days // 365}y{days % 365}d"


def age(item: dict[str, Any], now: datetime | None = None) -> str:
    """Return the time since the object was created, or `<unknown>` if the object has no creation time."""
    created = item.get("metadata", {}).get("creationTimestamp")
    if not created:
        return "<unknown>"
    return duration(((now or datetime.now(UTC)) - datetime.fromisoformat(created)).total_seconds())


def table(headers: Sequence[str], rows: Iterable[Sequence[Cell]], least: Sequence[int] = ()) -> list[Text]:
    """Return the lines of a table, with columns three spaces apart. `least` has the columns' minimum widths."""
    cells = _cells(headers, rows)
    widths = _widths(cells, least)
    lines = []
    for row in cells:
        line = Text()
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            line.append(cell)
            if i < len(row) - 1:
                line.append(" " * (width - cell_len(cell.plain) + 3))
        lines.append(line)
    return lines


def _cells(headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[list[Text]]:
    cells = [[Text(h, style="bold") for h in headers]]
    return cells + [[printable(cell) for cell in row] for row in rows]


def _widths(cells: list[list[Text]], least: Sequence[int]) -> list[int]:
    widths = [max(cell_len(row[i].plain) for row in cells) for i in range(len(cells[0]))]
    return [max(width, low) for width, low in zip(widths, least or [0] * len(widths), strict=True)]


def print_table(headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print `table` to standard output."""
    _print_lines(table(headers, rows))


def _print_lines(lines: Sequence[Text]) -> None:
    console = out()
    if console.is_terminal:
        console.print(Text("\n").join(lines))
    else:
        # Formatting a thousand lines with rich would double the command's duration.
        console.file.write("".join(f"{line.plain}\n" for line in lines))


class GrowingTable:
    """Table that prints rows as they arrive. The first rows set the column widths, and wider cells increase them."""

    def __init__(self) -> None:
        self._headers: Sequence[str] = ()
        self._widths: list[int] = []

    def add(self, headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Print more rows. Prints the headers before the first rows, and again when they change."""
        if not rows:
            return
        first = headers != self._headers
        if first:
            self._headers, self._widths = headers, []
        lines = table(headers, rows, self._widths)
        self._widths = _widths(_cells(headers, rows), self._widths)
        _print_lines(lines if first else lines[1:])


def to_yaml(value: Any) -> str:
    """Return YAML in field order, without wrapping long strings."""
    text = str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000))
    if _has_invisible(text):
        text = str(yaml.safe_dump(value, sort_keys=False, allow_unicode=False, width=10_000))
    return text


def to_json(value: Any, indent: int = 2) -> str:
    """Return indented JSON."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return json.dumps(value, indent=indent) if _has_invisible(text) else text


def _has_invisible(text: str) -> bool:
    return not text.isascii() and text.translate(ESCAPES) != text


def without_managed_fields(item: dict[str, Any]) -> dict[str, Any]:
    """Return the object without `metadata.managedFields`."""
    return {**item, "metadata": {k: v for k, v in item.get("metadata", {}).items() if k != "managedFields"}}


def emit(items: list[dict[str, Any]], plural: str, fmt: Format, *, single: bool) -> None:
    """Print objects for programs: a single object as is, several as a v1 List."""
    if fmt is Format.name:
        for item in items:
            sys.stdout.write(f"{plural}.rlrun.dev/{item['metadata']['name']}\n")
        return
    shown = [without_managed_fields(i) for i in items]
    value: Any = shown[0] if single else {"apiVersion": "v1", "kind": "List", "items": shown}
    emit_document(value, fmt)


def emit_stream(items: list[dict[str, Any]], plural: str, fmt: Format) -> None:
    """Print objects one after another for programs that read a stream: JSON or YAML documents, or names."""
    for item in items:
        if fmt is Format.yaml:
            sys.stdout.write("---\n")
        emit([item], plural, fmt, single=True)
    sys.stdout.flush()


def emit_document(value: Any, fmt: Format) -> None:
    """Print one value as JSON or YAML."""
    sys.stdout.write(to_yaml(value) if fmt is Format.yaml else to_json(value) + "\n")


def emit_values(values: list[dict[str, Any]], name: str, fmt: Format) -> None:
    """Print values that are not Kubernetes objects: as a list, or only the field `name` of each value."""
    if fmt is Format.name:
        for value in values:
            sys.stdout.write(f"{value[name]}\n")
        return
    emit_document(values, fmt)
