"""How answers look: kubectl-like tables with ages, or JSON, YAML and names for programs.

Tables are never cut to the width of the terminal: what a name's last letters are matters more than a tidy right edge.
Text that came from a cluster or a file is never read as terminal markup.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import yaml
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rlrun_cli.terminal.errors import CliError

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
    """What -o accepts."""

    json = "json"
    yaml = "yaml"
    name = "name"


def out() -> Console:
    """Standard output; made anew, because tests and pagers replace the stream."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=True)


def err() -> Console:
    """Standard error, for everything that is not the answer itself."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def say(text: str, style: str | None = None) -> None:
    """A remark for people, on standard error."""
    err().print(Text(text, style=style or ""))


def show_error(problem: CliError) -> None:
    """`Error: ...`, its details as a list, then the next step."""
    console = err()
    console.print(Text("Error: ", style="bold red").append(Text(problem.message, style="default not bold")))
    for line in problem.details:
        console.print(Text(f"  - {line}"))
    if problem.hint:
        console.print(Text("Next:  ", style="bold").append(Text(problem.hint, style="default not bold")))


def phase(text: str | None) -> Text:
    """A phase in its colour."""
    return Text(text or "-", style=PHASE_STYLES.get(text or "", ""))


def number(value: Any, digits: int = 3) -> str:
    """A number with fixed digits, `-` for none."""
    return "-" if value is None else f"{float(value):.{digits}f}"


def size(count: Any) -> str:
    """Bytes with a binary unit, `-` for none."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(seconds: float) -> str:
    """A time span with the units and the precision that kubectl gives it."""
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
    """Time since the object was created."""
    created = item.get("metadata", {}).get("creationTimestamp")
    if not created:
        return "<unknown>"
    return duration(((now or datetime.now(UTC)) - datetime.fromisoformat(created)).total_seconds())


def table(headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[Text]:
    """Lines of aligned columns, three spaces apart."""
    cells = [[Text(h, style="bold") for h in headers]]
    cells += [[c if isinstance(c, Text) else Text("-" if c is None or c == "" else c) for c in row] for row in rows]
    widths = [max(cell_len(row[i].plain) for row in cells) for i in range(len(headers))]
    lines = []
    for row in cells:
        line = Text()
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            line.append(cell)
            if i < len(row) - 1:
                line.append(" " * (width - cell_len(cell.plain) + 3))
        lines.append(line)
    return lines


def print_table(headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print `table` on standard output."""
    console = out()
    for line in table(headers, rows):
        console.print(line)


def to_yaml(value: Any) -> str:
    """YAML in the order of the fields, with long strings on one line."""
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000))


def clean(item: dict[str, Any]) -> dict[str, Any]:
    """The object without managedFields, which nobody reads."""
    return {**item, "metadata": {k: v for k, v in item.get("metadata", {}).items() if k != "managedFields"}}


def emit(items: list[dict[str, Any]], plural: str, fmt: Format, *, single: bool) -> None:
    """Print objects for programs: one object as itself, several as a v1 List."""
    if fmt is Format.name:
        for item in items:
            sys.stdout.write(f"{plural}.rlrun.dev/{item['metadata']['name']}\n")
        return
    shown = [clean(i) for i in items]
    value: Any = shown[0] if single else {"apiVersion": "v1", "kind": "List", "items": shown}
    sys.stdout.write(to_yaml(value) if fmt is Format.yaml else json.dumps(value, indent=2, ensure_ascii=False) + "\n")
