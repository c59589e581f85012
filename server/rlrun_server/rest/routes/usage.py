"""Routes that return the GPU time of runs and serving pools."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from rlrun.api.base.names import Namespace
from rlrun.api.base.schema import Schema
from rlrun.api.usage import UsageKind, UsageRecord
from starlette.responses import Response

from rlrun_server.rest.base.access import IDENTIFIED, Caller, requires
from rlrun_server.rest.base.problems import invalid
from rlrun_server.rest.base.responses import schema_response
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.objects.summaries import RunSummary
from rlrun_server.rest.routes.runs import Since, in_utc

router = APIRouter(tags=["usage"])

MAX_ROWS = 500
MAX_DAYS = 400
"""Longest period of a query, in days."""


class UsageGroup(StrEnum):
    """Key by which usage is grouped into rows."""

    run = "run"
    namespace = "namespace"
    user = "user"
    model = "model"


class UsageQuery(Schema):
    """Parameters that select and group usage."""

    by: UsageGroup = UsageGroup.run
    month: str | None = Field(default=None, pattern=r"^20\d\d-(0[1-9]|1[0-2])$")
    """Month in UTC, as in 2026-01. Cannot be combined with `since` or `until`."""
    since: Since | None = None
    """Start of the period, as in 2026-01-31T12:00:00Z. Defaults to the start of this month."""
    until: Since | None = None
    """End of the period. Defaults to now."""


class UsageRow(Schema):
    """Usage of one run or serving pool, namespace, user or model."""

    kind: UsageKind | None = None
    """Run or ServingPool. Set only if usage is grouped by run."""
    namespace: str | None = None
    run: str | None = None
    """Name of the run, or of the pool's Deployment."""
    uid: str | None = None
    user: str | None = None
    """User who created the run. Empty for a pool, or if unknown, for example because a manifest applied with kubectl
    names no user.
    """
    model: str | None = None
    runs: int
    """Number of runs and serving pools."""
    gpus: int
    """Number of GPUs that the runs hold now. Serving pools are not included."""
    active_seconds: int
    """Total time in seconds from the start to the end of each attempt, excluding time in the queue."""
    gpu_seconds: int
    """GPU time: sum over all attempts of active seconds times number of GPUs."""


class Usage(Schema):
    """Usage in a period. It includes ended and running attempts, and attempts of deleted runs. Serving pools are
    counted until the last full hour, or until their deletion.
    """

    time: datetime
    """Time until which running attempts count."""
    since: datetime
    until: datetime
    rows: list[UsageRow]
    """Rows by descending `gpuSeconds`, at most 500. Further rows are included in `total` only."""
    total: UsageRow
    is_complete: bool = True
    """False if usage may be missing because there are too many namespaces to check, or too many records in the period.
    """


@dataclass(frozen=True)
class Window:
    """Period of a query."""

    since: datetime
    until: datetime


def window_of(query: UsageQuery, now: datetime) -> Window:
    """Return the period of a query. Raises RestError."""
    if query.month is not None:
        if query.since is not None or query.until is not None:
            raise invalid("month cannot be combined with since or until: remove month, or remove since and until")
        first = datetime.strptime(query.month, "%Y-%m").replace(tzinfo=UTC)
        return Window(first, (first + timedelta(days=31)).replace(day=1))
    since = in_utc(query.since) if query.since else now.replace(day=1, hour=0, minute=0, second=0)
    until = in_utc(query.until) if query.until else now
    if since > until:
        raise invalid(f"since is after {'until' if query.until else 'now'}: choose an earlier since")
    if until - since > timedelta(days=MAX_DAYS):
        raise invalid(f"since is more than {MAX_DAYS} days before until: choose a shorter period")
    return Window(since, until)


def current_records(runs: Iterable[RunSummary], now: datetime) -> list[UsageRecord]:
    """Return the records of existing runs that may be missing from the usage log: running attempts, and ended attempts
    that were not written yet.
    """
    found = []
    for run in runs:
        attempts = [(one.attempt, one.gpus, one.start_time, one.end_time) for one in run.ended_attempts]
        if run.attempt_started_at is not None:
            attempts.append((run.attempt, run.gpus or 0, run.attempt_started_at, max(now, run.attempt_started_at)))
        found += [
            UsageRecord(
                namespace=run.namespace, name=run.name, uid=run.uid, attempt=attempt, model=run.model[:256],
                user=run.user[:256], gpus=gpus, start_time=start, end_time=end,
            )
            for attempt, gpus, start, end in attempts
        ]  # fmt: skip
    return found


def usage_of(
    records: Iterable[UsageRecord], by: UsageGroup, window: Window, held: dict[str, int]
) -> tuple[list[UsageRow], UsageRow]:
    """Return the usage of each group within a period, by descending GPU time, and the total. `held` maps the uid of
    each run to the number of GPUs that the run occupies now.
    """
    groups: dict[tuple[str, ...], list[UsageRecord]] = {}
    key: Callable[[UsageRecord], tuple[str, ...]] = {
        UsageGroup.run: lambda record: (record.uid,),
        UsageGroup.namespace: lambda record: (record.namespace,),
        UsageGroup.user: lambda record: (record.user,),
        UsageGroup.model: lambda record: (record.model,),
    }[by]
    for record in {record.key: record for record in records}.values():
        if record.start_time < window.until and record.end_time > window.since:
            groups.setdefault(key(record), []).append(record)
    rows = [_row(members, by, window, held) for members in groups.values()]
    rows.sort(key=lambda row: (-row.gpu_seconds, -row.active_seconds, row.namespace or "", row.run or row.model or ""))
    total = UsageRow(
        runs=sum(row.runs for row in rows),
        gpus=sum(row.gpus for row in rows),
        active_seconds=sum(row.active_seconds for row in rows),
        gpu_seconds=sum(row.gpu_seconds for row in rows),
    )
    return rows, total


def _row(records: list[UsageRecord], by: UsageGroup, window: Window, held: dict[str, int]) -> UsageRow:
    first, uids = records[0], {record.uid for record in records}
    seconds = [(record.seconds(window.since, window.until), record.gpus) for record in records]
    is_run = by is UsageGroup.run
    return UsageRow(
        kind=first.kind if is_run else None,
        namespace=first.namespace if by in (UsageGroup.run, UsageGroup.namespace) else None,
        run=first.name if is_run else None,
        uid=first.uid if is_run else None,
        user=first.user if by in (UsageGroup.run, UsageGroup.user) else None,
        model=first.model if by in (UsageGroup.run, UsageGroup.model) else None,
        runs=len(uids),
        gpus=sum(held.get(uid, 0) for uid in uids),
        active_seconds=sum(active for active, _ in seconds),
        gpu_seconds=sum(active * gpus for active, gpus in seconds),
    )


@router.get("/namespaces/{namespace}/usage", response_model=Usage)
async def get_usage(
    request: Request,
    namespace: Namespace,
    query: Annotated[UsageQuery, Query()],
    caller: Caller = requires("list", "rlruns"),
) -> Response:
    """Return the GPU time of the runs and serving pools of a namespace."""
    return await _answer(request, caller, lambda found: found == namespace, query, is_complete=True)


@router.get("/usage", response_model=Usage)
async def get_all_usage(
    request: Request, query: Annotated[UsageQuery, Query()], caller: Caller = IDENTIFIED
) -> Response:
    """Return the GPU time of all namespaces in which you may list rlruns.

    Users who may list runs in all namespaces also get the GPU time of deleted namespaces.
    """
    visible = await services_of(request).visible.of(caller.user)
    includes = (lambda _: True) if visible.has_all else visible.names.__contains__
    return await _answer(request, caller, includes, query, is_complete=visible.is_complete)


async def _answer(
    request: Request, caller: Caller, includes: Callable[[str], bool], query: UsageQuery, *, is_complete: bool
) -> Response:
    services = services_of(request)
    services.objects.require(services.objects.runs)
    kept = [run for run in services.objects.runs.all() if includes(run.namespace)]
    now = datetime.now(UTC).replace(microsecond=0)
    window = window_of(query, now)
    logged, has_read_all = await services.usage.read(
        caller.user.limited_as, window.since, now, lambda record: includes(record.namespace)
    )

    def answer() -> Response:
        runs = [run.summary for run in kept]
        held = {run.uid: run.gpus or 0 for run in runs if run.attempt_started_at is not None}
        # Records from the log come last and replace those of existing runs, because they are final.
        rows, total = usage_of([*current_records(runs, now), *logged], query.by, window, held)
        return schema_response(
            Usage(
                time=now,
                since=window.since,
                until=window.until,
                rows=rows[:MAX_ROWS],
                total=total,
                is_complete=is_complete and has_read_all,
            )
        )

    # 10,000 runs take a tenth of a second.
    return await services.metrics.compute(caller.user.limited_as, answer)
