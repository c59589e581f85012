"""Watches the objects that a command prints. Renews the watch regularly, to detect broken connections."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from rlrun.constants import GONE
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.requests import Printed, Table

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.terminal.errors import to_cli_error

WATCH_SECONDS = 60.0
"""Duration of one watch in seconds, after which a silently broken connection is detected."""
PAUSE_SECONDS = 2.0
MAX_OUTAGE_SECONDS = 120.0
"""Seconds without a response from the API server after which the command fails."""
BOOKMARK, DELETED = "BOOKMARK", "DELETED"


def watch(
    api: RemoteCluster, printed: Printed, sleep: Callable[[float], None], clock: Callable[[], float]
) -> Iterator[tuple[Table, bool]]:
    """Yield `(table, deleted)` pairs: first all objects, then each change. Ends only with an error.

    Raises CliError if a request is rejected, if the first request gets no response, or if the API server later stays
    silent for MAX_OUTAGE_SECONDS.
    """
    table, version, seen = Table([], [], ""), "", dict[str, str]()
    last_response = clock()
    while True:
        try:
            if not version:
                table = api.table(printed)
                version, last_response = table.version, clock()
                # After a new list, only objects that differ are shown again.
                yield replace(table, rows=[row for row in table.rows if seen.get(_uid(row)) != _version(row)]), False
                seen = {_uid(row): _version(row) for row in table.rows}
            for event, change in api.changes(printed, version, WATCH_SECONDS):
                version, last_response = change.version, clock()
                if change.columns:
                    # A column may have been added to the kind since the list.
                    table = replace(table, columns=change.columns)
                if event == BOOKMARK:
                    continue
                seen |= {_uid(row): _version(row) for row in change.rows}
                yield replace(table, rows=change.rows), event == DELETED
            last_response = clock()
        except ApiError as error:
            is_out = not table.columns or clock() - last_response > MAX_OUTAGE_SECONDS
            if error.status == GONE and version:
                version = ""
            elif is_out or not (error.is_temporary or error.status == GONE):
                raise to_cli_error(error) from None
        sleep(PAUSE_SECONDS)


def _uid(row: Obj) -> str:
    return str(row["object"]["metadata"].get("uid"))


def _version(row: Obj) -> str:
    return str(row["object"]["metadata"].get("resourceVersion") or "")
