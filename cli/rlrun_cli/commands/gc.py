"""Command `gc`: list unreferenced files in S3 and objects in the cluster, and delete them on request."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rlrun.storage.layout import S3Uri

from rlrun_cli.commands.runs import Output
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cli_context, cluster
from rlrun_cli.remote.run_storage import Addressing, Bucket, Endpoint, Prefix, open_store
from rlrun_cli.terminal import output
from rlrun_cli.terminal.confirmation import confirm
from rlrun_cli.terminal.errors import INVALID, CliError

if TYPE_CHECKING:
    from rlrun.garbage_collection.planner import GarbageItem
    from rlrun.garbage_collection.sweep import Removed

EPILOG = """Examples:

  rlrun gc
  rlrun gc -n team-a --older-than 7d -o json
  rlrun gc --delete

Never listed: files and objects of a run that is not finished, checkpoints and adapters that have an object, and items \
younger than --older-than. docs/guides/operate.md describes the reasons.

A bucket and prefix must belong to one cluster only: files of runs in another cluster would appear unreferenced.

Exit codes: 0 listed, or all deleted; 1 something could not be read or deleted; 2 invalid command line."""


def gc(
    ctx: typer.Context,
    bucket: Bucket = "",
    prefix: Prefix = "",
    endpoint: Endpoint = None,
    addressing_style: Addressing = None,
    older_than: Annotated[str, typer.Option(help="Minimum age of items, for example 90m, 24h, 7d.")] = "24h",
    delete: Annotated[bool, typer.Option("--delete", help="Delete the listed items, after confirmation.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")] = False,
    fmt: Output = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """List unreferenced files and objects, in all namespaces or in that of -n. Deletes them with --delete."""
    from rlrun.garbage_collection.planner import plan_deletions
    from rlrun.garbage_collection.report import parse_age
    from rlrun.garbage_collection.sweep import remove, take_snapshot
    from rlrun.kube.errors import ApiError
    from rlrun.storage.store import StoreError

    if not bucket:
        raise CliError("no bucket is selected", "add --bucket, or set RLRUN_S3_BUCKET", code=INVALID)
    try:
        age = parse_age(older_than)
    except ValueError as problem:
        raise CliError(f"--older-than: {problem}", code=INVALID) from None
    root = S3Uri(bucket, prefix.strip("/"))
    target = namespace or cli_context(ctx).namespace
    source = cluster(ctx, kubeconfig, context, namespace).garbage_source()
    removed: list[Removed] = []
    try:
        store = open_store(ctx, endpoint, addressing_style)
        snapshot = take_snapshot(store, source, root, target)
        now = datetime.now(UTC)
        items = plan_deletions(snapshot, now, age)
        if delete and items and _confirmed(items, now, yes=yes, quiet=fmt is not None):
            removed = list(remove(store, source, root, target, items, now, age))
    except (StoreError, ApiError) as problem:
        raise CliError(
            str(problem), "nothing was deleted; try again when both S3 and the cluster can be read completely"
        ) from problem
    for note in snapshot.notes:
        output.notice(note)
    _show(items, removed, snapshot.notes, now, fmt, where=target or "all namespaces", delete=delete, yes=yes)
    if failed := [r for r in removed if r.problem is not None]:
        raise CliError(
            f"{len(failed)} of {len(items)} items could not be deleted",
            "try again: the remaining items will be listed again",
            details=[f"{r.item.name}: {r.problem}" for r in failed],
        )


def row(item: "GarbageItem", now: datetime) -> list[output.Cell]:
    """Return one row of the table."""
    age = output.duration((now - item.newest).total_seconds())
    return [item.kind, item.namespace, item.name, output.size(item.size), age, item.reason.value]


def _confirmed(items: "Sequence[GarbageItem]", now: datetime, *, yes: bool, quiet: bool) -> bool:
    if yes:
        return True
    for line in [] if quiet else output.table(HEADERS, [row(i, now) for i in items]):
        output.err().print(line)
    size = output.size(sum(i.size or 0 for i in items))
    confirm(f"Permanently delete {len(items)} items ({size})?", "nothing was deleted", yes=False)
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
        report = document(items, removed, notes)
        output.emit_document(report, fmt)
    elif not items:
        output.notice(f"No unreferenced items in {where}.")
    elif not delete:
        output.print_table(HEADERS, [row(i, now) for i in items])
        size = output.size(sum(i.size or 0 for i in items))
        output.notice(f"{len(items)} items in {where}, {size}; nothing was deleted. Delete them: rlrun gc --delete")
    else:
        if yes:
            output.print_table(HEADERS, [row(i, now) for i in items])
        output.notice(f"{sum(r.problem is None for r in removed)} of {len(items)} items deleted.")
