"""Commands `list` and `get`."""

from typing import Annotated, Any

import typer
from rich.text import Text
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import Obj, is_client_run

from rlrun_cli.commands.listing import Choice, show_list, show_one, with_get_options, with_list_options
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import with_cluster
from rlrun_cli.remote.run_data.run_summary import summarize
from rlrun_cli.terminal import output

LIST_RUNS_EPILOG = """Examples:

  rlrun list
  rlrun list -A
  rlrun list -l team=a --sort-by .status.progress.reward -o wide
  rlrun list -w
  rlrun list -o json | jq '.items[].status.phase'

-o json and -o yaml print the objects as stored by the API server, in a v1 List: docs/reference/rlrun.md describes the \
fields, which are stable within an apiVersion. With -w, objects are printed one after another."""
GET_RUN_EPILOG = """Examples:

  rlrun get reverse-text-x7k2p
  rlrun get reverse-text-x7k2p -o yaml
  rlrun get reverse-text-x7k2p -w -o wide"""
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the run, as shown by `rlrun list`.")]
Output = Annotated[
    output.Format | None, typer.Option("-o", "--output", help="Print machine-readable output: json, yaml or name.")
]


def _environments(item: Obj) -> str:
    return ",".join(str(e.get("name") or e.get("id", "?")) for e in item["spec"].get("env") or [])


def _newest_first(rows: list[Obj]) -> list[Obj]:
    return sorted(rows, key=lambda row: str(row["object"]["metadata"].get("creationTimestamp") or ""), reverse=True)


@with_cluster
@with_list_options
def list_runs(ctx: typer.Context, api: RemoteCluster, choice: Choice) -> None:
    """List runs, newest first, with their phase, progress and reward."""
    show_list(ctx, api, RLRUN, choice, empty="No runs{place}.", order=_newest_first)


def _artifact_lines(title: str, entries: list[dict[str, Any]]) -> list[Text]:
    if not entries:
        return []
    rows = [
        (f"  {e.get('name') or '-'}", str(e.get("step")), output.number(e.get("reward")), e.get("uri")) for e in entries
    ]
    return [Text(""), Text(title, style="bold"), *output.table(["  NAME", "STEP", "REWARD", "URI"], rows)]


def describe_run(item: Obj) -> list[Text]:
    """Return the lines of `rlrun get NAME`: state, conditions, environment packages and newest artifacts."""
    summary, status, spec = summarize(item), item.get("status") or {}, item["spec"]
    facts: list[tuple[str, Text | str]] = [
        ("Run", f"{item['metadata'].get('namespace')}/{item['metadata']['name']}"),
        ("Name", str(spec.get("name") or "")),
        ("Phase", output.phase(summary.phase)),
        ("Reason", f"{summary.reason}: {summary.message}" if summary.reason else ""),
        ("Model", str(spec.get("model"))),
        ("Driver", "Client" if is_client_run(item) else ""),
        ("Trains on", _environments(item).replace(",", ", ")),
        ("Step", summary.steps + (f", {summary.time_left}" if summary.time_left else "")),
        ("Reward", output.number(summary.reward)),
        ("Restarts", str(summary.restarts)),
        ("Age", output.age(item)),
    ]
    lines = [output.fact(label, value, 11) for label, value in facts if value]
    if conditions := status.get("conditions"):
        rows = [(f"  {c['type']}", c["status"], c.get("reason"), c.get("message")) for c in conditions]
        headers = ["  TYPE", "STATUS", "REASON", "MESSAGE"]
        lines += [Text(""), Text("Conditions", style="bold"), *output.table(headers, rows)]
    if packages := status.get("environments"):
        package_rows = [(f"  {p['id']}", p["version"], p["digest"]) for p in packages]
        title = Text("Environment packages", style="bold")
        lines += [Text(""), title, *output.table(["  ID", "VERSION", "DIGEST"], package_rows)]
    lines += _artifact_lines("Newest checkpoints", status.get("checkpoints") or [])
    lines += _artifact_lines("Newest adapters", status.get("adapters") or [])
    return lines


@with_cluster
@with_get_options
def get_run(ctx: typer.Context, api: RemoteCluster, name: Name, choice: Choice) -> None:
    """Show the state of one run: its progress, the reason for its phase, its conditions and its newest artifacts."""
    show_one(ctx, api, RLRUN, name, choice, describe_run)
