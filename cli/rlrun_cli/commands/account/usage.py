"""Command `usage`: the time for which runs have held GPUs."""

import re
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from rlrun_cli.commands.runs import Output
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cluster
from rlrun_cli.remote.run_storage import s3_operation
from rlrun_cli.remote.server import Server, find_server
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

EPILOG = """Examples:

  rlrun usage
  rlrun usage -A --by namespace
  rlrun usage --since 2026-01-01 -o json

GPU hours are the active time of each attempt multiplied by its number of GPUs; time in the queue does not count. \
Deleted runs are not included."""
DAY = re.compile(r"\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}:\d{2}(Z|[+-]\d{2}:\d{2})?)?")


class UsageGrouping(StrEnum):
    """Values of --by."""

    run = "run"
    namespace = "namespace"
    model = "model"


HEADINGS: dict[UsageGrouping, tuple[tuple[str, str], ...]] = {
    UsageGrouping.run: (("NAMESPACE", "namespace"), ("RUN", "run"), ("MODEL", "model")),
    UsageGrouping.namespace: (("NAMESPACE", "namespace"),),
    UsageGrouping.model: (("MODEL", "model"),),
}


def show_usage(
    ctx: typer.Context,
    by: Annotated[UsageGrouping, typer.Option(help="What each row is about.")] = UsageGrouping.run,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only runs created since then, as in 2026-01-31.")
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Runs of all namespaces that you see.")
    ] = False,
    fmt: Output = None,
    server: Server = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show the GPU hours of runs, namespaces or models."""
    if since is not None and not DAY.fullmatch(since):
        raise CliError(f"--since: {since!r} is not a time", "write it as in 2026-01-31", code=INVALID)
    api = cluster(ctx, kubeconfig, context, namespace)
    # A key has a namespace of its own, which need not be that of the kubeconfig.
    has_own = bool(api.own_key()) and not api.is_namespace_chosen
    place = "" if all_namespaces or has_own else f"/namespaces/{api.namespace}"
    query = urlencode({"by": by.value} | ({} if since is None else {"since": since}))
    with s3_operation("read the usage"):
        usage = find_server(api, server)("GET", f"/rlrun/v1{place}/usage?{query}", None)
    if fmt is output.Format.name:
        output.emit_values(usage["rows"], by.value, fmt)
        return
    if fmt:
        output.emit_document(usage, fmt)
        return
    if not usage["rows"]:
        output.notice("No runs.")
        return
    _print(usage, by)


def _print(usage: dict[str, Any], by: UsageGrouping) -> None:
    headings = HEADINGS[by]
    rows = [[*(row.get(key) for _, key in headings), *_numbers(row)] for row in usage["rows"]]
    if len(rows) < usage["total"]["runs"] or len(rows) > 1:
        rows.append(["total", *([""] * (len(headings) - 1)), *_numbers(usage["total"])])
    output.print_table([*(name for name, _ in headings), "RUNS", "GPUS", "ACTIVE", "GPU-HOURS"], rows)
    if not usage.get("isComplete", True):
        output.notice("There may be more: you see too many namespaces to ask about all of them.")


def _numbers(row: dict[str, Any]) -> list[str]:
    return [
        str(row["runs"]),
        str(row["gpus"]),
        output.duration(row["activeSeconds"]),
        f"{row['gpuSeconds'] / 3600:.2f}",
    ]
