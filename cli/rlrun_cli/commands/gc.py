"""`rlrun gc`: what belongs to nothing, in S3 and in the cluster: listed, and removed only when told to and asked."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rlrun.storage.layout import S3Uri

from rlrun_cli.commands.runs import Output
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cluster, session
from rlrun_cli.remote.run_storage import Bucket, Endpoint, Prefix, open_store
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

if TYPE_CHECKING:
    from rlrun.garbage_collection.planner import GarbageItem
    from rlrun.garbage_collection.sweep import Removed

EPILOG = """Examples:

  rlrun gc

  rlrun gc -n team-a --older-than 7d -o json

  rlrun gc --delete

Never listed: anything of a run that is not finished, a checkpoint or an adapter that has an object, anything younger
than --older-than. docs/guides/operate.md says what is.

One bucket and prefix must belong to one cluster only: the runs of another one look as if they were gone.

Exit codes: 0 listed, or all removed; 1 something could not be read or removed; 2 the command line is wrong."""


def gc(
    ctx: typer.Context,
    bucket: Bucket = "",
    prefix: Prefix = "",
    endpoint: Endpoint = None,
    older_than: Annotated[str, typer.Option(help="Nothing younger is touched: 90m, 24h, 7d.")] = "24h",
    delete: Annotated[bool, typer.Option("--delete", help="Remove what is listed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    fmt: Output = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """List (and with --delete remove) what belongs to nothing any more, in all namespaces or in the one of -n."""
    from rlrun.garbage_collection.planner import plan_deletions
    from rlrun.garbage_collection.report import parse_age
    from rlrun.garbage_collection.sweep import remove, take_snapshot
    from rlrun.kube.errors import ApiError
    from rlrun.storage.store import StoreError

    if not bucket:
        raise CliError("no bucket given", "give --bucket, or set RLRUN_S3_BUCKET", code=INVALID)
    try:
        age = parse_age(older_than)
    except ValueError as problem:
        raise CliError(f"--older-than: {problem}", code=INVALID) from None
    root = S3Uri(bucket, prefix.strip("/"))
    only = namespace or session(ctx).namespace
    swept = cluster(ctx, kubeconfig, context, namespace).garbage_source()
    removed: list[Removed] = []
    try:
        store = open_store(ctx, endpoint)
        world = take_snapshot(store, swept, root, only)
        now = datetime.now(UTC)
        items = plan_deletions(world, now, age)
        if delete and items and _agreed(items, now, yes=yes, quiet=fmt is not None):
            removed = list(remove(store, swept, root, only, items, now, age))
    except (StoreError, ApiError) as problem:
        raise CliError(str(problem), "nothing was removed; try again when it answers completely") from problem
    for note in world.notes:
        output.say(note)
    _show(items, removed, world.notes, now, fmt, where=only or "all namespaces", delete=delete, yes=yes)
    if left := [r for r in removed if r.problem is not None]:
        raise CliError(
            f"{len(left)} of {len(items)} could not be removed",
            "try again: what is still there is found again",
            details=[f"{r.item.name}: {r.problem}" for r in left],
        )


def row(item: "GarbageItem", now: datetime) -> list[output.Cell]:
    """One line of the table."""
    age = output.duration((now - item.newest).total_seconds())
    return [item.kind, item.namespace, item.name, output.size(item.size), age, item.reason.value]


def _agreed(items: "Sequence[GarbageItem]", now: datetime, *, yes: bool, quiet: bool) -> bool:
    if yes:
        return True
    for line in [] if quiet else output.table(HEADERS, [row(i, now) for i in items]):
        output.err().print(line)
    size = output.size(sum(i.size or 0 for i in items))
    try:
        agreed = typer.confirm(f"Remove these {len(items)} for ever ({size})?", err=True)
    except typer.Abort:
        raise CliError("not removed: no answer", "give --yes to remove without a question", code=INVALID) from None
    if not agreed:
        output.say("Not removed.")
        raise typer.Exit(1)
    return True


HEADERS = ["KIND", "NAMESPACE", "NAME", "SIZE", "AGE", "REASON"]


def _show(
    items: "Sequence[GarbageItem]",
    removed: "Sequence[Removed]",
    notes: Sequence[str],
    now: datetime,
    fmt: output.Format | None,
    *,
    where: str,
    delete: bool,
    yes: bool,
) -> None:
    from rlrun.garbage_collection.report import document

    if fmt is output.Format.name:
        sys.stdout.write("".join(f"{i.name}\n" for i in items))
    elif fmt:
        found = document(items, removed, notes)
        as_json = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
        sys.stdout.write(output.to_yaml(found) if fmt is output.Format.yaml else as_json)
    elif not items:
        output.say(f"Nothing in {where} belongs to nothing.")
    elif not delete:
        output.print_table(HEADERS, [row(i, now) for i in items])
        size = output.size(sum(i.size or 0 for i in items))
        output.say(f"{len(items)} found in {where}, {size}; nothing was removed. Remove them: rlrun gc --delete")
    else:
        if yes:
            output.print_table(HEADERS, [row(i, now) for i in items])
        output.say(f"{sum(r.problem is None for r in removed)} of {len(items)} removed.")
