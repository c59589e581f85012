"""Command `compare`: shows the fields and results in which runs differ."""

import json
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from rlrun_cli.commands.runs import Output
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import cli_context, with_cluster
from rlrun_cli.remote.run_storage import s3_operation
from rlrun_cli.remote.server import Server
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

COMPARE_EPILOG = """Examples:

  rlrun compare first second
  rlrun compare first team-b/first -o json

Write a run in another namespace as NAMESPACE/NAME. Fields that are not set count as their defaults. The web page \
(rlrun open) also compares curves."""
COMPARE_PATH = "/rlrun/v1/compare"
MAX_RUNS = 20
FACTS = (("phase", "phase"), ("step", "step"), ("reward", "reward"))


@with_cluster
def compare(
    ctx: typer.Context,
    api: RemoteCluster,
    names: Annotated[list[str], typer.Argument(metavar="RUN RUN...", help="Runs, as NAME or NAMESPACE/NAME.")],
    fmt: Output = None,
    server: Server = None,
) -> None:
    """Show how the configurations and results of runs differ."""
    if not 2 <= len(names) <= MAX_RUNS:
        raise CliError(f"runs to compare: {len(names)}", f"specify 2 to {MAX_RUNS} runs", code=INVALID)
    asked = [name if "/" in name else f"{api.namespace}/{name}" for name in names]
    with s3_operation("compare the runs"):
        comparison = cli_context(ctx).server(api, server)(
            "GET", f"{COMPARE_PATH}?{urlencode({'run': asked}, True)}", None
        )
    if fmt is output.Format.name:
        for difference in comparison["differences"]:
            typer.echo(output.printable(difference["path"]).plain)
        return
    if fmt:
        output.emit_document(comparison, fmt)
        return
    rows = [[label, *(_format_value(run.get(key)) for run in comparison["runs"])] for label, key in FACTS]
    rows += [[each["path"], *(_format_value(value) for value in each["values"])] for each in comparison["differences"]]
    output.print_table(["FIELD", *names], rows)
    for problem in comparison.get("problems") or []:
        output.notice(problem)
    if (total := comparison["totalDifferences"]) > len(comparison["differences"]):
        output.notice(f"Only {len(comparison['differences'])} of {total} differences are shown.")


def _format_value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
