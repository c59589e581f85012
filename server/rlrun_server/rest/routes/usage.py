"""Routes of the time for which runs have held GPUs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query, Request
from rlrun.api.base.names import Namespace
from rlrun.api.base.schema import Schema
from starlette.responses import Response

from rlrun_server.rest.base.access import IDENTIFIED, Caller, requires
from rlrun_server.rest.base.responses import JSON, schema_response
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.objects.summaries import RunSummary
from rlrun_server.rest.routes.runs import Since, in_utc

router = APIRouter(tags=["usage"])

MAX_ROWS = 500


class UsageGroup(StrEnum):
    """Subject of a row."""

    run = "run"
    namespace = "namespace"
    model = "model"


class UsageQuery(Schema):
    """Selection and grouping of usage."""

    by: UsageGroup = UsageGroup.run
    since: Since | None = None
    """Runs that were created at this time or later, as in 2026-01-31T12:00:00Z."""


class UsageRow(Schema):
    """Usage of one run, namespace or model."""

    namespace: str | None = None
    run: str | None = None
    uid: str | None = None
    model: str | None = None
    runs: int
    """Number of runs."""
    gpus: int
    """Number of GPUs that they hold now."""
    active_seconds: int
    """Time from the begin of attempts to their end, without the time in the queue."""
    gpu_seconds: int
    """Active time of each attempt multiplied by its number of GPUs."""


class Usage(Schema):
    """Usage of the runs that exist. Deleted runs are not in it."""

    time: datetime
    """Time until which attempts that are under way count."""
    rows: list[UsageRow]
    """The greatest first, at most 500. The rest is in `total` only."""
    total: UsageRow
    is_complete: bool = True
    """False if there may be runs in namespaces that were not asked about, because there are too many."""


@dataclass(frozen=True)
class _Times:
    gpus: int
    active: int
    gpu: int


def usage_of(runs: Iterable[RunSummary], by: UsageGroup, now: datetime) -> tuple[list[UsageRow], UsageRow]:
    """Return the usage of each group, the greatest first, and that of all together."""
    groups: dict[str, list[RunSummary]] = {}
    key: Callable[[RunSummary], str] = {
        UsageGroup.run: lambda run: run.uid,
        UsageGroup.namespace: lambda run: run.namespace,
        UsageGroup.model: lambda run: run.model,
    }[by]
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    rows = [_row(members, by, now) for members in groups.values()]
    rows.sort(key=lambda row: (-row.gpu_seconds, -row.active_seconds, row.namespace or "", row.run or row.model or ""))
    total = UsageRow(
        runs=sum(row.runs for row in rows),
        gpus=sum(row.gpus for row in rows),
        active_seconds=sum(row.active_seconds for row in rows),
        gpu_seconds=sum(row.gpu_seconds for row in rows),
    )
    return rows, total


def _row(runs: list[RunSummary], by: UsageGroup, now: datetime) -> UsageRow:
    times = [_times(run, now) for run in runs]
    first = runs[0]
    return UsageRow(
        namespace=None if by is UsageGroup.model else first.namespace,
        run=first.name if by is UsageGroup.run else None,
        uid=first.uid if by is UsageGroup.run else None,
        model=None if by is UsageGroup.namespace else first.model,
        runs=len(runs),
        gpus=sum(t.gpus for t in times),
        active_seconds=sum(t.active for t in times),
        gpu_seconds=sum(t.gpu for t in times),
    )


def _times(run: RunSummary, now: datetime) -> _Times:
    gpus = run.gpus or 0
    if run.attempt_started_at is None:
        return _Times(0, run.past_active_seconds, run.past_gpu_seconds)
    seconds = max(0, int((now - run.attempt_started_at).total_seconds()))
    return _Times(gpus, run.past_active_seconds + seconds, run.past_gpu_seconds + seconds * gpus)


@router.get("/namespaces/{namespace}/usage", responses={200: {"model": Usage}}, response_class=JSON)
async def get_usage(
    request: Request,
    namespace: Namespace,
    query: Annotated[UsageQuery, Query()],
    caller: Caller = requires("list", "rlruns"),
) -> Response:
    """Return the GPU time of the runs of a namespace."""
    return await _answer(request, caller, lambda found: found == namespace, query, is_complete=True)


@router.get("/usage", responses={200: {"model": Usage}}, response_class=JSON)
async def get_all_usage(
    request: Request, query: Annotated[UsageQuery, Query()], caller: Caller = IDENTIFIED
) -> Response:
    """Return the GPU time of the runs of all namespaces in which you may list rlruns."""
    visible = await services_of(request).visible.of(caller.user)
    return await _answer(request, caller, visible.names.__contains__, query, is_complete=visible.is_complete)


async def _answer(
    request: Request, caller: Caller, includes: Callable[[str], bool], query: UsageQuery, *, is_complete: bool
) -> Response:
    services = services_of(request)
    services.objects.require(services.objects.runs)
    kept = [run for run in services.objects.runs.all() if includes(run.namespace)]
    since = None if query.since is None else in_utc(query.since)
    now = datetime.now(UTC).replace(microsecond=0)

    def answer() -> Response:
        runs = [run.summary for run in kept]
        chosen = [run for run in runs if since is None or run.created_at >= since]
        rows, total = usage_of(chosen, query.by, now)
        return schema_response(Usage(time=now, rows=rows[:MAX_ROWS], total=total, is_complete=is_complete))

    # 10,000 runs take a tenth of a second.
    return await services.metrics.compute(caller.user.limited_as, answer)
