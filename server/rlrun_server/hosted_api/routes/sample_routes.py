"""Routes that return a run's rollouts, its progress, and the distribution of its rewards."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from rlrun.storage.samples.record import SampleRecord, SampleSplit
from starlette.responses import Response

from rlrun_server.hosted_api.base.caller import HostedCaller, key_requires
from rlrun_server.hosted_api.base.errors import FieldProblems
from rlrun_server.hosted_api.base.wire import Json, PageNumber, RowCount, StepNumber, json_object
from rlrun_server.hosted_api.routes.run_routes import RunId
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.context.stored_runs import read_step, read_summaries, uid_of_run
from rlrun_server.rest.metrics.metric_columns import MAX_STEP
from rlrun_server.rest.routes.runs import load_run
from rlrun_server.rest.samples.sample_models import SampleGroupInfo, SampleItem
from rlrun_server.rest.samples.sample_reader import OpenedStep
from rlrun_server.rest.samples.sample_views import histogram, listed_samples, of_group, records_of, rewards_of

router = APIRouter(tags=["samples"])

READS_SAMPLES = key_requires("get", "rlruns", "samples")
MAX_LIMIT = 512
MAX_GROUPS = 64
"""Maximum number of groups in a response whose texts are read. Rollouts of further groups have no texts."""
MAX_STEPS = 20_000
"""Maximum number of steps in a response. The first steps are returned."""
BINS = 20
CONCURRENT_GROUPS = 4
REWARDS = ("reward", "rewards")

T = TypeVar("T")


@router.get("/rft/runs/{run}/samples")
async def get_samples(
    request: Request,
    run: RunId,
    step: StepNumber,
    page: PageNumber = 1,
    limit: RowCount = 100,
    caller: HostedCaller = READS_SAMPLES,
) -> Response:
    """Return rollouts that a step trained on, with their texts. The list is empty if the step stored no rollouts."""
    size = min(limit, MAX_LIMIT)
    first = (page - 1) * size

    def rows(opened: OpenedStep) -> tuple[list[SampleItem], dict[str, SampleGroupInfo], int]:
        samples = listed_samples(opened)
        chosen = samples[first : first + size]
        groups = {sample.group.address: sample.group for sample in chosen}
        infos = {address: group.info() for address, group in groups.items()}
        return [sample.item() for sample in chosen], infos, len(samples)

    items, groups, total = await _of_step(request, caller, run, step, rows) or ([], {}, 0)
    records = await _records(request, caller, run, step, groups)
    counts = {"total": total, "page": page, "limit": size, "total_pages": -(-total // size)}
    samples = await services_of(request).metrics.compute(
        caller.caller.user.limited_as, samples_of, items, groups, records
    )
    return json_object({"run_id": run, "samples": samples, **counts})


@router.get("/rft/runs/{run}/progress")
async def get_progress(request: Request, run: RunId, caller: HostedCaller = READS_SAMPLES) -> Response:
    """Return the newest step, and all steps up to this one that have stored rollouts."""
    progress = await _progress(request, caller, run)
    latest = _latest_step(progress)
    stored = (await _stored_steps(request, caller, run, latest))[:MAX_STEPS]
    answer = {
        "latestStep": latest,
        "stepsWithSamples": stored,
        "stepsWithDistributions": stored,
    }
    return json_object({**answer, "lastUpdatedAt": progress.get("lastStepTime")})


@router.get("/rft/runs/{run}/distributions")
async def get_distributions(
    request: Request,
    run: RunId,
    kind: Annotated[str, Query(alias="type", max_length=64)] = "rewards",
    step: StepNumber | None = None,
    caller: HostedCaller = READS_SAMPLES,
) -> Response:
    """Return the distribution of a step's rewards, by default of the newest completed step with stored rollouts. The
    list of bins is empty if no rollouts are stored.
    """
    if kind not in REWARDS:
        raise FieldProblems([(["type"], f"must be rewards: the distribution of {kind} is not supported")], "query")
    if step is None:
        latest = _latest_step(await _progress(request, caller, run))
        stored = await _stored_steps(request, caller, run, latest)
        if not stored:
            return json_object({"bins": [], "step": None})
        step = stored[-1]
    bins = await _of_step(request, caller, run, step, lambda opened: histogram(rewards_of(opened, None), BINS))
    return json_object({"bins": [each.to_json_dict() for each in bins or ()], "step": step})


async def _of_step(
    request: Request, caller: HostedCaller, run: str, step: int, view: Callable[[OpenedStep], T]
) -> T | None:
    """Return the result of `view` for a step's training rollouts, or None if none are stored. Raises RestError."""
    services = services_of(request)
    try:
        return await read_step(services, caller.caller, caller.namespace, run, step, SampleSplit.train, view)
    except RestError as error:
        if error.status != 404:
            raise
        # Raise the error if the run does not exist.
        uid_of_run(services.objects, caller.namespace, run)
        return None


async def _stored_steps(request: Request, caller: HostedCaller, run: str, latest: int) -> list[int]:
    """Return the steps up to `latest` that have stored training rollouts, in order. Raises RestError."""
    summaries = await read_summaries(
        services_of(request), caller.caller, caller.namespace, run, lambda _, samples: samples.summaries
    )
    return sorted({each.step for each in summaries if each.split is SampleSplit.train and each.step <= latest})


async def _progress(request: Request, caller: HostedCaller, run: str) -> Mapping[str, Any]:
    kept = await load_run(services_of(request), caller.namespace, run)
    return (kept.read().get("status") or {}).get("progress") or {}


def _latest_step(progress: Mapping[str, Any]) -> int:
    """Return the newest completed step.

    Rollouts may also be stored for the step in training, and for steps that a restart repeats.
    """
    return min(int(progress.get("step") or 0), MAX_STEP)


async def _records(
    request: Request, caller: HostedCaller, run: str, step: int, groups: Iterable[str]
) -> Mapping[str, bytes]:
    """Return the stored records of the groups' rollouts as JSON, by rollout id. Unreadable groups are omitted."""
    limit = asyncio.Semaphore(CONCURRENT_GROUPS)
    records: dict[str, bytes] = {}

    async def read(group: str) -> None:
        def texts(opened: OpenedStep) -> dict[str, bytes]:
            samples = of_group(listed_samples(opened), group, f"step {step}")
            return dict(zip((sample.address for sample in samples), records_of(opened, samples)[0], strict=False))

        async with limit:
            with contextlib.suppress(RestError):
                records.update(await _of_step(request, caller, run, step, texts) or {})

    await asyncio.gather(*(read(group) for group in itertools.islice(groups, MAX_GROUPS)))
    return records


MAX_ANSWER = 16 * 1024**2
"""Maximum size of a response in bytes. Rollouts beyond it have no texts."""


def samples_of(
    items: Sequence[SampleItem], groups: Mapping[str, SampleGroupInfo], records: Mapping[str, bytes]
) -> list[Json]:
    """Return the rollouts in order. The texts of a rollout are left out if they would make the response exceed
    MAX_ANSWER.

    `groups` maps a group's id to the group, `records` a rollout's id to its stored record as JSON.
    """
    found, size = [], 0
    for item in items:
        record = records.get(item.rollout)
        # The server has written the JSON itself.
        parsed = None if record is None else SampleRecord.model_validate_json(record)
        sample = sample_of(item, groups.get(item.group), parsed)
        length = len(json.dumps(sample))
        if size + length > MAX_ANSWER:
            sample = {**sample_of(item, groups.get(item.group), None), "texts_left_out": True}
        else:
            size += length
        found.append(sample)
    return found


def sample_of(item: SampleItem, group: SampleGroupInfo | None, record: SampleRecord | None) -> Json:
    """Convert a rollout to a sample of the hosted API, with its texts if `record` is available."""
    known: Json = {"sample_id": item.rollout, "group": item.group, "reward": item.reward, "advantage": item.advantage}
    if record is not None:
        whole = record.model_dump(mode="json", by_alias=False, exclude_none=True, exclude={"v", "rollout", "group"})
        return {**known, "example_id": record.example, **whole}
    if group is not None:
        known |= {"example_id": group.example, "environment": group.environment}
    rest = item.model_dump(mode="json", by_alias=False, exclude_none=True, exclude={"rollout", "group"})
    return {**known, **rest}
