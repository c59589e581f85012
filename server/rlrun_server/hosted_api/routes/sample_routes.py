"""Routes of a run's rollouts, of its progress, and of the distribution of its rewards."""

import asyncio
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request
from rlrun.api.base.schema import Schema
from rlrun.storage.samples.record import SampleSplit
from starlette.responses import Response

from rlrun_server.hosted_api.base.caller import HostedCaller, key_requires
from rlrun_server.hosted_api.base.errors import FieldProblems
from rlrun_server.hosted_api.base.wire import json_object
from rlrun_server.hosted_api.objects.sample_objects import bins_of, samples_of
from rlrun_server.hosted_api.routes.run_routes import RunId
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.metrics.metric_columns import MAX_STEP
from rlrun_server.rest.routes.runs import find_run
from rlrun_server.rest.run_data.sample_routes import get_group, get_histogram, list_samples
from rlrun_server.rest.run_data.sample_steps import list_steps
from rlrun_server.rest.samples.sample_models import (
    RewardHistogram,
    SampleGroupDetail,
    SampleGroupInfo,
    SampleItem,
    SampleList,
    StepList,
)
from rlrun_server.rest.samples.sample_queries import HistogramQuery, Order, SampleQuery, SplitQuery, StepQuery

router = APIRouter(tags=["samples"])

READS_SAMPLES = key_requires("get", "rlruns", "samples")
MAX_LIMIT = 512
MAX_READS = 16
"""Pages of MAX_LIMIT rollouts that are read for one answer: more than a stored step has."""
MAX_GROUPS = 64
"""Groups of one answer whose texts are read. Rollouts of further ones are without."""
STEPS_OF_PAGE = 2000
MAX_STEP_PAGES = 10
CONCURRENT_GROUPS = 4
REWARDS = ("reward", "rewards")

M = TypeVar("M", bound=Schema)


@router.get("/rft/runs/{run}/samples")
async def get_samples(
    request: Request,
    run: RunId,
    step: Annotated[int, Query(ge=0, le=MAX_STEP)],
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    limit: Annotated[int, Query(ge=1, le=1_000_000)] = 100,
    caller: HostedCaller = READS_SAMPLES,
) -> Response:
    """Return rollouts that a step trained on, with their texts."""
    size = min(limit, MAX_LIMIT)
    first, cursor = (page - 1) * size, ""
    items: list[SampleItem] = []
    infos: dict[str, SampleGroupInfo] = {}
    for _ in range(MAX_READS):
        query = SampleQuery(limit=MAX_LIMIT, cursor=cursor)
        rows = _read(SampleList, await list_samples(request, caller.namespace, run, step, query, caller.caller))
        items += rows.items
        infos |= {info.group: info for info in rows.groups}
        cursor = rows.next or ""
        if not cursor or len(items) >= first + size:
            break
    chosen = items[first : first + size]
    groups = await _groups(request, caller, run, step, chosen)
    total = {"total": rows.total, "page": page, "limit": size, "total_pages": -(-rows.total // size)}
    samples = await services_of(request).metrics.compute(
        caller.caller.user.limited_as, samples_of, chosen, infos, groups
    )
    return json_object({"run_id": run, "samples": samples, **total})


@router.get("/rft/runs/{run}/progress")
async def get_progress(request: Request, run: RunId, caller: HostedCaller = READS_SAMPLES) -> Response:
    """Return the newest step, and the steps with stored rollouts."""
    kept = find_run(services_of(request), caller.namespace, run)
    progress = (kept.read().get("status") or {}).get("progress") or {}
    steps, cursor = set(), ""
    for _ in range(MAX_STEP_PAGES):
        query = StepQuery(split=[SampleSplit.train], limit=STEPS_OF_PAGE, cursor=cursor)
        found = _read(StepList, await list_steps(request, caller.namespace, run, query, caller.caller))
        steps |= {item.step for item in found.items}
        cursor = found.next or ""
        if not cursor:
            break
    stored = sorted(steps)
    answer = {
        "latestStep": int(progress.get("step") or 0),
        "stepsWithSamples": stored,
        "stepsWithDistributions": stored,
    }
    return json_object({**answer, "lastUpdatedAt": progress.get("lastStepTime")})


@router.get("/rft/runs/{run}/distributions")
async def get_distributions(
    request: Request,
    run: RunId,
    kind: Annotated[str, Query(alias="type", max_length=64)] = "rewards",
    step: Annotated[int | None, Query(ge=0, le=MAX_STEP)] = None,
    caller: HostedCaller = READS_SAMPLES,
) -> Response:
    """Return the distribution of a step's rewards: of the newest step if none is named."""
    if kind not in REWARDS:
        raise FieldProblems([(["type"], f"must be rewards: there is no distribution of {kind}")], "query")
    if step is None:
        query = StepQuery(split=[SampleSplit.train], order=Order.desc, limit=1)
        steps = _read(StepList, await list_steps(request, caller.namespace, run, query, caller.caller))
        if not steps.items:
            return json_object({"bins": [], "step": None})
        step = steps.items[0].step
    found = await get_histogram(request, caller.namespace, run, step, HistogramQuery(), caller.caller)
    return json_object({"bins": bins_of(_read(RewardHistogram, found)), "step": step})


async def _groups(
    request: Request, caller: HostedCaller, run: str, step: int, items: list[SampleItem]
) -> dict[str, SampleGroupDetail]:
    """Return the groups of the rollouts. One that cannot be read is left out."""
    limit = asyncio.Semaphore(CONCURRENT_GROUPS)

    async def read(group: str) -> SampleGroupDetail | None:
        async with limit:
            try:
                found = await get_group(request, caller.namespace, run, step, group, SplitQuery(), caller.caller)
            except RestError:
                return None
            return _read(SampleGroupDetail, found)

    names = list(dict.fromkeys(item.group for item in items))[:MAX_GROUPS]
    details = await asyncio.gather(*(read(name) for name in names))
    return {name: detail for name, detail in zip(names, details, strict=True) if detail is not None}


def _read(model: type[M], response: Response) -> M:
    """Return what a route of the REST API has answered."""
    return model.model_validate_json(bytes(response.body))
