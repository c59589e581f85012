"""Runs as they are now: list, get, stop, delete."""

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

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the run, as `rlrun list` shows it.")]
Output = Annotated[output.Format | None, typer.Option("-o", "--output", help="For programs: json, yaml or name.")]


def run_row(item: Obj, *, with_namespace: bool) -> list[output.Cell]:
    """One line of `rlrun list`."""
    seen = summarize(item)
    row: list[output.Cell] = [item["metadata"]["namespace"]] if with_namespace else []
    return [
        *row,
        item["metadata"]["name"],
        output.phase(seen.phase),
        f"{seen.step}/{seen.max_steps}",
        output.number(seen.reward),
        output.duration(seen.eta) if seen.time_left and seen.eta is not None else None,
        str(seen.restarts),
        item["spec"].get("model"),
        output.age(item),
        "" if seen.finished and seen.phase != "Failed" else seen.reason,
    ]


def list_runs(
    ctx: typer.Context,
    all_namespaces: Annotated[bool, typer.Option("-A", "--all-namespaces", help="Runs of every namespace.")] = False,
    fmt: Output = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """List runs, newest first."""
    api = cluster(ctx, kubeconfig, context, namespace)
    items = api.list(RLRUN, all_namespaces=all_namespaces)
    items.sort(key=lambda i: str(i["metadata"].get("creationTimestamp") or ""), reverse=True)
    if fmt:
        output.emit(items, RLRUN.plural, fmt, single=False)
        return
    if not items:
        output.say("No runs" + ("." if all_namespaces else f" in namespace {api.namespace}."))
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


def details(item: Obj) -> list[Text]:
    """What `rlrun get NAME` shows: first how it is going, then why, then what it has made."""
    seen, status, spec = summarize(item), item.get("status") or {}, item["spec"]
    environments = ", ".join(e.get("name") or e.get("id", "?") for e in spec.get("env") or [])
    facts: list[tuple[str, Text | str]] = [
        ("Run", f"{item['metadata'].get('namespace')}/{item['metadata']['name']}"),
        ("Phase", output.phase(seen.phase)),
        ("Why", f"{seen.reason}: {seen.message}" if seen.reason else ""),
        ("Model", str(spec.get("model"))),
        ("Trains on", environments),
        ("Step", f"{seen.step}/{seen.max_steps}" + (f", {seen.time_left}" if seen.time_left else "")),
        ("Reward", output.number(seen.reward)),
        ("Restarts", str(seen.restarts)),
        ("Age", output.age(item)),
    ]
    lines = [Text(f"{label + ':':<11}", style="bold").append(value) for label, value in facts if value]
    if conditions := status.get("conditions"):
        rows = [(f"  {c['type']}", c["status"], c.get("reason"), c.get("message")) for c in conditions]
        headers = ["  TYPE", "STATUS", "REASON", "MESSAGE"]
        lines += [Text(""), Text("Conditions", style="bold"), *output.table(headers, rows)]
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
    """Show one run: how it is going, why, and what it has made."""
    item = cluster(ctx, kubeconfig, context, namespace).get(RLRUN, name)
    if fmt:
        output.emit([item], RLRUN.plural, fmt, single=True)
        return
    console = output.out()
    for line in details(item):
        console.print(line)


def stop_run(
    ctx: typer.Context,
    name: Name,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """End a run and keep its checkpoints and adapters. Cannot be undone."""
    api = cluster(ctx, kubeconfig, context, namespace)
    seen = summarize(api.get(RLRUN, name))
    if seen.finished:
        output.say(f"{name} is {seen.phase} already; nothing changed.")
        return
    api.patch(RLRUN, name, {"spec": {"stop": True}})
    typer.echo(f"rlruns.rlrun.dev/{name} stopping")
    output.say(f"Its artifacts stay: rlrun checkpoints {name} -n {api.namespace}")


def delete_run(
    ctx: typer.Context,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Delete a run with all its pods; its files in S3 stay or go by its artifactPolicy."""
    api = cluster(ctx, kubeconfig, context, namespace)
    item = api.get(RLRUN, name)
    lost = item["spec"].get("artifactPolicy") == "Delete"
    seen = summarize(item)
    if not yes:
        what = f"Delete {api.namespace}/{name} ({seen.phase}, step {seen.step}/{seen.max_steps})"
        what += " and all its checkpoints and adapters in S3?" if lost else "? Its files in S3 stay."
        try:
            agreed = typer.confirm(what, err=True)
        except typer.Abort:
            raise CliError("not deleted: no answer", "give --yes to delete without a question", code=INVALID) from None
        if not agreed:
            output.say("Not deleted.")
            raise typer.Exit(1)
    api.delete(RLRUN, name)
    typer.echo(f"rlruns.rlrun.dev/{name} deleted")
