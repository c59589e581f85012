"""Commands `list`, `get`, `stop` and `delete`."""

from typing import Annotated, Any

import typer
from rich.text import Text
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import Obj

from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cluster
from rlrun_cli.remote.run_summary import summarize
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

LIST_EPILOG = """Examples:

  rlrun list
  rlrun list -A
  rlrun list -o json | jq '.items[].status.phase'"""
GET_EPILOG = """Examples:

  rlrun get reverse-text-x7k2p
  rlrun get reverse-text-x7k2p -o yaml"""
STOP_EPILOG = """Examples:

  rlrun stop reverse-text-x7k2p"""
DELETE_EPILOG = """Examples:

  rlrun delete reverse-text-x7k2p
  rlrun delete reverse-text-x7k2p --yes"""

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the run, as shown by `rlrun list`.")]
Output = Annotated[
    output.Format | None, typer.Option("-o", "--output", help="Print machine-readable output: json, yaml or name.")
]


def run_row(item: Obj, *, with_namespace: bool) -> list[output.Cell]:
    """Return one row of `rlrun list`."""
    summary = summarize(item)
    row: list[output.Cell] = [item["metadata"]["namespace"]] if with_namespace else []
    return [
        *row,
        item["metadata"]["name"],
        output.phase(summary.phase),
        f"{summary.step}/{summary.max_steps}",
        output.number(summary.reward),
        output.duration(summary.eta) if summary.time_left and summary.eta is not None else None,
        str(summary.restarts),
        item["spec"].get("model"),
        output.age(item),
        "" if summary.finished and summary.phase != "Failed" else summary.reason,
    ]


def list_runs(
    ctx: typer.Context,
    all_namespaces: Annotated[
        bool, typer.Option("-A", "--all-namespaces", help="List the runs of all namespaces.")
    ] = False,
    fmt: Output = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """List runs, newest first, with their phase, progress and reward."""
    api = cluster(ctx, kubeconfig, context, namespace)
    items = api.list(RLRUN, all_namespaces=all_namespaces)
    items.sort(key=lambda i: str(i["metadata"].get("creationTimestamp") or ""), reverse=True)
    if fmt:
        output.emit(items, RLRUN.plural, fmt, single=False)
        return
    if not items:
        output.notice("No runs" + ("." if all_namespaces else f" in namespace {api.namespace}."))
        return
    headers = ["NAME", "PHASE", "STEP", "REWARD", "ETA", "RESTARTS", "MODEL", "AGE", "REASON"]
    if all_namespaces:
        headers.insert(0, "NAMESPACE")
    output.print_table(headers, [run_row(i, with_namespace=all_namespaces) for i in items])


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
    environments = ", ".join(e.get("name") or e.get("id", "?") for e in spec.get("env") or [])
    facts: list[tuple[str, Text | str]] = [
        ("Run", f"{item['metadata'].get('namespace')}/{item['metadata']['name']}"),
        ("Name", str(spec.get("name") or "")),
        ("Phase", output.phase(summary.phase)),
        ("Reason", f"{summary.reason}: {summary.message}" if summary.reason else ""),
        ("Model", str(spec.get("model"))),
        ("Trains on", environments),
        ("Step", f"{summary.step}/{summary.max_steps}" + (f", {summary.time_left}" if summary.time_left else "")),
        ("Reward", output.number(summary.reward)),
        ("Restarts", str(summary.restarts)),
        ("Age", output.age(item)),
    ]
    lines = [Text(f"{label + ':':<11}", style="bold").append(value) for label, value in facts if value]
    if conditions := status.get("conditions"):
        rows = [(f"  {c['type']}", c["status"], c.get("reason"), c.get("message")) for c in conditions]
        headers = ["  TYPE", "STATUS", "REASON", "MESSAGE"]
        lines += [Text(""), Text("Conditions", style="bold"), *output.table(headers, rows)]
    if packages := status.get("environments"):
        found = [(f"  {p['id']}", p["version"], p["digest"]) for p in packages]
        title = Text("Environment packages", style="bold")
        lines += [Text(""), title, *output.table(["  ID", "VERSION", "DIGEST"], found)]
    lines += _artifact_lines("Newest checkpoints", status.get("checkpoints") or [])
    lines += _artifact_lines("Newest adapters", status.get("adapters") or [])
    return lines


def get_run(
    ctx: typer.Context,
    name: Name,
    fmt: Output = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show the state of one run: its progress, the reason for its phase, its conditions and its newest artifacts."""
    item = cluster(ctx, kubeconfig, context, namespace).get(RLRUN, name)
    if fmt:
        output.emit([item], RLRUN.plural, fmt, single=True)
        return
    console = output.out()
    for line in describe_run(item):
        console.print(line)


def stop_run(
    ctx: typer.Context,
    name: Name,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """End a run for good and keep its checkpoints and adapters. To pause a run, set `spec.suspend` instead."""
    api = cluster(ctx, kubeconfig, context, namespace)
    summary = summarize(api.get(RLRUN, name))
    if summary.finished:
        output.notice(f"{name} is already {summary.phase}; nothing changed.")
        return
    api.patch(RLRUN, name, {"spec": {"stop": True}})
    typer.echo(f"rlruns.rlrun.dev/{name} stopping")
    output.notice(f"Its artifacts are kept. List them: rlrun checkpoints {name} -n {api.namespace}")


def delete_run(
    ctx: typer.Context,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Delete a run and its pods. Its files in S3 are deleted too if its artifactPolicy is Delete."""
    api = cluster(ctx, kubeconfig, context, namespace)
    item = api.get(RLRUN, name)
    deletes_files = item["spec"].get("artifactPolicy") == "Delete"
    summary = summarize(item)
    if not yes:
        question = f"Delete {api.namespace}/{name} ({summary.phase}, step {summary.step}/{summary.max_steps})"
        question += " and all its files in S3?" if deletes_files else "? Its files in S3 are kept."
        try:
            confirmed = typer.confirm(question, err=True)
        except typer.Abort:
            raise CliError(
                f"{name} was not deleted: the confirmation was not answered",
                "add --yes to delete without confirmation",
                code=INVALID,
            ) from None
        if not confirmed:
            output.notice("Nothing was deleted.")
            raise typer.Exit(1)
    api.delete(RLRUN, name)
    typer.echo(f"rlruns.rlrun.dev/{name} deleted")
