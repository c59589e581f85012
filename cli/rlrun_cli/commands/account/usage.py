"""Command `usage`: shows GPU hours by run, namespace, user or model."""

import re
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from rlrun_cli.commands.runs import Output
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import with_cluster
from rlrun_cli.remote.run_storage import s3_operation
from rlrun_cli.remote.server import Server, find_server
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

SHOW_USAGE_EPILOG = """Examples:

  rlrun usage
  rlrun usage -A --by namespace --month 2026-01
  rlrun usage --by user --since 2026-01-01 --until 2026-01-15 -o json

GPU hours are the active time of each attempt in the selected period, multiplied by its number of GPUs. The default \
period is the current month. Time in the queue is not counted. Deleted runs are included. Serving pools are counted up \
to the last full hour or their deletion."""
DAY = re.compile(r"\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}:\d{2}(Z|[+-]\d{2}:\d{2})?)?")

MONTH = re.compile(r"20\d{2}-(0[1-9]|1[0-2])")


class UsageGrouping(StrEnum):
    """Values of the option --by."""

    run = "run"
    namespace = "namespace"
    user = "user"
    model = "model"


HEADINGS: dict[UsageGrouping, tuple[tuple[str, str], ...]] = {
    UsageGrouping.run: (("NAMESPACE", "namespace"), ("RUN", "run"), ("USER", "user"), ("MODEL", "model")),
    UsageGrouping.namespace: (("NAMESPACE", "namespace"),),
    UsageGrouping.user: (("USER", "user"),),
    UsageGrouping.model: (("MODEL", "model"),),
}


@with_cluster
def show_usage(
    api: RemoteCluster,
    by: Annotated[UsageGrouping, typer.Option(help="Grouping of the rows.")] = UsageGrouping.run,
    month: Annotated[str | None, typer.Option(metavar="MONTH", help="Usage in one month, such as 2026-01.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Start of the period, such as 2026-01-31. Default: start of the current month."
        ),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="End of the period. Default: now.")] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Include all namespaces that you can read.")
    ] = False,
    fmt: Output = None,
    server: Server = None,
) -> None:
    """Show the GPU hours of runs, namespaces, users or models."""
    for option, value, pattern in (("since", since, DAY), ("until", until, DAY), ("month", month, MONTH)):
        if value is not None and not pattern.fullmatch(value):
            example = "2026-01" if pattern is MONTH else "2026-01-31"
            raise CliError(
                f"--{option}: {value!r} is not a {'month' if pattern is MONTH else 'time'}",
                f"write it like {example}",
                code=INVALID,
            )
    # An API key has its own namespace, which may differ from the kubeconfig's.
    has_own = bool(api.own_key()) and not api.is_namespace_chosen
    place = "" if all_namespaces or has_own else f"/namespaces/{api.namespace}"
    times = {"month": month, "since": since, "until": until}
    query = urlencode({"by": by.value} | {name: value for name, value in times.items() if value is not None})
    with s3_operation("read the usage"):
        usage = find_server(api, server)("GET", f"/rlrun/v1{place}/usage?{query}", None)
    if fmt is output.Format.name:
        output.emit_values(usage["rows"], by.value, fmt)
        return
    if fmt:
        output.emit_document(usage, fmt)
        return
    if not usage["rows"]:
        output.notice("No runs in this period.")
        return
    _print(usage, by)


def _print(usage: dict[str, Any], by: UsageGrouping) -> None:
    headings = HEADINGS[by]
    rows = [[*(row.get(key) or "-" for _, key in headings), *_numbers(row)] for row in usage["rows"]]
    if len(rows) < usage["total"]["runs"] or len(rows) > 1:
        rows.append(["total", *([""] * (len(headings) - 1)), *_numbers(usage["total"])])
    output.print_table([*(name for name, _ in headings), "RUNS", "GPUS", "ACTIVE", "GPU-HOURS"], rows)
    if not usage.get("isComplete", True):
        output.notice(
            "The list may be incomplete: there are too many namespaces or too many records. Select one namespace or "
            "a shorter period."
        )


def _numbers(row: dict[str, Any]) -> list[str]:
    return [
        str(row["runs"]),
        str(row["gpus"]),
        output.duration(row["activeSeconds"]),
        f"{row['gpuSeconds'] / 3600:.2f}",
    ]
