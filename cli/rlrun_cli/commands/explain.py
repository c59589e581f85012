"""Command `explain`: explains fields of a run file. Needs no cluster."""

import difflib
import textwrap
from typing import Annotated

import typer
from rlrun.api.base.names import snake
from rlrun.api.toml.dialect_key import DialectKey
from rlrun.api.toml.dialect_keys import HOSTED, SELF_MANAGED
from rlrun.api.toml.prime_rl_keys import PRIME_RL
from rlrun.codegen.reference_pages import Row, dialect_remark, toml_rows

from rlrun_cli.terminal.errors import INVALID, CliError

EXPLAIN_EPILOG = """Examples:

  rlrun explain
  rlrun explain sampling.temperature
  rlrun explain env
  rlrun explain orchestrator.group_size

FIELD is a key of the TOML file, of the RLRun's spec (spec.maxSteps), or of a config of prime-rl or a hosted service."""
WIDTH = 100


def explain(
    field: Annotated[
        str, typer.Argument(metavar="[FIELD]", help="Field, such as sampling.temperature. Default: list all.")
    ] = "",
) -> None:
    """Explain a field of a run's file: meaning, type, default and limits. Needs no cluster."""
    rows = {_plain(row.path): row for row in toml_rows()}
    key = _plain(snake(field.removeprefix("spec.")))
    foreign = {row.key: row for row in (*PRIME_RL, *HOSTED, *SELF_MANAGED)}
    if key in rows:
        typer.echo(describe(rows[key]))
    elif key in foreign:
        typer.echo(describe_dialect_key(foreign[key]))
        return
    elif key:
        near = difflib.get_close_matches(key, {**rows, **foreign})
        near += [name for name in rows if name.rpartition(".")[2] == key and name not in near]
        hint = f"similar fields: {', '.join(near)}" if near else "list all fields: rlrun explain"
        raise CliError(f"{field} is not a field of a run file", hint, code=INVALID)
    below = [row for name, row in rows.items() if name.rpartition(".")[0] == key]
    if below:
        width = max(len(_plain(row.path)) for row in below)
        typer.echo("\n".join([*([""] if key else []), *(_line(row, width) for row in below)]))


def describe(row: Row) -> str:
    """Return the text that explains a field."""
    facts = [row.type + (", required" if row.required else "")]
    facts += [f"default {row.default}"] if row.default else []
    facts += [row.limits] if row.limits else []
    return f"{row.path}  ({'; '.join(facts)})\n{textwrap.fill(row.description, WIDTH)}"


def describe_dialect_key(row: DialectKey) -> str:
    """Return the text that explains a key of another trainer's file format."""
    remark = dialect_remark(row).replace("`", "")
    if row.equivalent:
        return textwrap.fill(f"{row.key} corresponds to {row.equivalent}. {remark}".rstrip(), WIDTH)
    return textwrap.fill(f"{row.key}: {'ignored: ' if row.is_ignored else ''}{remark}", WIDTH)


def _line(row: Row, width: int) -> str:
    first = row.description.split(". ")[0].rstrip(".")
    return f"{_plain(row.path):{width}}  {textwrap.shorten(first, WIDTH - width)}"


def _plain(path: str) -> str:
    return path.replace("[]", "")
