"""Command `gc`: lists unreferenced files in S3 and objects in the cluster, and deletes them on request."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rlrun.storage.layout import RUN_UID

from rlrun_cli.commands.runs import Output
from rlrun_cli.remote.run_storage import with_sweep
from rlrun_cli.terminal import output
from rlrun_cli.terminal.confirmation import confirm
from rlrun_cli.terminal.errors import INVALID, CliError

if TYPE_CHECKING:
    from rlrun.garbage_collection.planner import GarbageItem
    from rlrun.garbage_collection.snapshot import RunFolder
    from rlrun.garbage_collection.sweep import Removed, Sweep

GC_EPILOG = """Examples:

  rlrun gc
  rlrun gc -n team-a --older-than 7d -o json
  rlrun gc --delete
  rlrun gc --mark-deleted team-a/7b1c5f0e-6d0f-4a3c-9c55-1f0d8f3f2a11
  rlrun gc --adopt

Never listed: files and objects of unfinished runs, checkpoints and adapters that have an object, and items younger \
than --older-than. Only files of deleted runs and artifacts are garbage: the operator writes a tombstone to the bucket \
for each deletion that it sees. Files without an object or a tombstone are counted and kept; -o json lists them as \
`unknown`. docs/guides/operate.md explains the values of REASON.

Nothing is deleted if the bucket is marked as belonging to another cluster, or if more than three runs, and more than \
a tenth of all runs, would lose files.

Exit codes: 0 all items listed or deleted; 1 an item could not be read or deleted, or deletion was refused; 2 invalid \
command line."""


@with_sweep
def gc(
    sweep: "Sweep",
    older_than: Annotated[str, typer.Option(help="Minimum age of items, such as 90m, 24h, 7d.")] = "24h",
    delete: Annotated[bool, typer.Option("--delete", help="Delete the listed items after confirmation.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    allow_mass_deletion: Annotated[
        bool, typer.Option("--allow-mass-deletion", help="Delete even if more than a tenth of all runs lose files.")
    ] = False,
    mark_deleted: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE/UID",
            help="Mark a run that the cluster does not know as deleted, so that its files become garbage. "
            "Repeatable. Deletes nothing.",
        ),
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Make this cluster the only one that may delete files. Deletes nothing."),
    ] = False,
    fmt: Output = None,
) -> None:
    """List unreferenced files and objects in all namespaces or, with -n, in one. --delete deletes them."""
    from rlrun.garbage_collection.report import parse_age

    if delete + adopt + bool(mark_deleted) > 1:
        raise CliError("--delete, --adopt and --mark-deleted cannot be combined", "use only one of them", code=INVALID)
    try:
        age = parse_age(older_than)
    except ValueError as problem:
        raise CliError(f"--older-than: {problem}", code=INVALID) from None
    runs = [_run_folder(text) for text in mark_deleted or []]
    if adopt:
        _adopt(sweep, yes=yes)
    elif runs:
        _mark_deleted(sweep, runs, yes=yes)
    else:
        _collect(sweep, age, fmt, delete=delete, yes=yes, allow_mass_deletion=allow_mass_deletion)


def _run_folder(text: str) -> "RunFolder":
    from rlrun.garbage_collection.snapshot import RunFolder

    namespace, _, uid = text.partition("/")
    if not namespace or not RUN_UID.fullmatch(uid):
        raise CliError(
            f"--mark-deleted: {text!r} is not NAMESPACE/UID",
            "write NAMESPACE/UID, the last two parts of a folder that `rlrun gc -o json` lists as unknown",
            code=INVALID,
        )
    return RunFolder(namespace, uid)


def _adopt(sweep: "Sweep", *, yes: bool) -> None:
    from rlrun.garbage_collection.installation import InstallationMismatch, read_mark

    try:
        mark = read_mark(sweep.store, sweep.root)
        old = "no cluster" if mark is None else f"cluster {mark.cluster} (since {mark.written_at:%Y-%m-%d %H:%M} UTC)"
    except InstallationMismatch:
        old = "an unknown cluster (its mark cannot be read)"
    question = (
        f"{sweep.root} is marked as belonging to {old}. Make this cluster the only one that may delete files there?"
    )
    confirm(question, "the mark was not changed", yes=yes)
    sweep.adopt()
    output.notice(f"This cluster may delete files at {sweep.root}. First list what would be deleted: rlrun gc")


def _mark_deleted(sweep: "Sweep", runs: "Sequence[RunFolder]", *, yes: bool) -> None:
    names = ", ".join(f"{run.namespace}/{run.uid}" for run in runs)
    confirm(f"Mark these runs and their artifacts as deleted: {names}?", "nothing was marked", yes=yes)
    for run in runs:
        sweep.mark_deleted(run)
        output.notice(f"{run.namespace}/{run.uid} is marked as deleted; garbage collection will delete its files.")


def _collect(
    sweep: "Sweep",
    age: timedelta,
    fmt: output.Format | None,
    *,
    delete: bool,
    yes: bool,
    allow_mass_deletion: bool,
) -> None:
    from rlrun.garbage_collection.planner import find_unknown, plan_deletions
    from rlrun.garbage_collection.report import UNKNOWN_ADVICE

    removed: list[Removed] = []
    snapshot = sweep.take_snapshot()
    now = datetime.now(UTC)
    items, unknown = plan_deletions(snapshot, now, age), find_unknown(snapshot, now, age)
    if delete:
        sweep.check(snapshot, items, allow_mass_deletion=allow_mass_deletion)
        if items and _confirmed(items, now, yes=yes, quiet=fmt is not None):
            removed = list(sweep.remove(items, now, age, allow_mass_deletion=allow_mass_deletion))
    for note in snapshot.notes:
        output.notice(note)
    where = ", ".join(sorted(sweep.namespaces)) or "all namespaces"
    _show(items, removed, unknown, snapshot.notes, now, fmt, where=where, delete=delete, yes=yes)
    if unknown:
        output.notice(UNKNOWN_ADVICE.format(count=len(unknown)))
    if failed := [r for r in removed if r.problem is not None]:
        raise CliError(
            f"not deleted: {len(failed)} of {len(items)} items",
            "correct these causes and repeat the command, which lists the remaining items again",
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
    confirm(f"Permanently delete all listed items ({len(items)}, {size})?", "nothing was deleted", yes=False)
    return True


HEADERS = ["KIND", "NAMESPACE", "NAME", "SIZE", "AGE", "REASON"]


def _show(
    items: "Sequence[GarbageItem]",
    removed: "Sequence[Removed]",
    unknown: "Sequence[GarbageItem]",
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
        report = document(items, removed, notes, unknown)
        output.emit_document(report, fmt)
    elif not items:
        output.notice(f"No unreferenced items in {where}.")
    elif not delete:
        output.print_table(HEADERS, [row(i, now) for i in items])
        size = output.size(sum(i.size or 0 for i in items))
        output.notice(f"Items in {where}: {len(items)}, {size}; nothing was deleted. Delete them: rlrun gc --delete")
    else:
        if yes:
            output.print_table(HEADERS, [row(i, now) for i in items])
        output.notice(f"Deleted: {sum(r.problem is None for r in removed)} of {len(items)} items.")
