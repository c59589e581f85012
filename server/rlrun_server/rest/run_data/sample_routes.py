"""Routes that return a run's stored rollouts, even after the run is deleted."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request
from rlrun.api.base.names import Namespace
from rlrun.storage.samples.record import SampleSplit
from rlrun.storage.samples.selection import SampleFilter
from starlette.responses import Response

from rlrun_server.rest.base.access import Caller, requires
from rlrun_server.rest.base.pages import Value, page_of
from rlrun_server.rest.base.responses import RunName, schema_response, with_json, with_list
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.context.stored_runs import read_step
from rlrun_server.rest.samples.sample_models import RewardHistogram, SampleDetail, SampleGroupDetail, SampleList
from rlrun_server.rest.samples.sample_queries import (
    AddressedSample,
    HistogramQuery,
    Order,
    SampleQuery,
    SampleScope,
    SampleSelection,
    SampleSort,
    SplitQuery,
    Step,
)
from rlrun_server.rest.samples.sample_reader import OpenedStep
from rlrun_server.rest.samples.sample_views import (
    ListedSample,
    function_names,
    histogram,
    listed_samples,
    mean_of,
    of_group,
    one,
    record_of,
    records_of,
    rewards_of,
    select_samples,
)

router = APIRouter(tags=["samples"], prefix="/namespaces/{namespace}/runs/{run}")
MAY_READ = requires("get", "rlruns", "samples")

VALUES: dict[SampleSort, Callable[[ListedSample], Value]] = {
    SampleSort.position: lambda sample: sample.number,
    SampleSort.reward: lambda sample: sample.row.reward,
    SampleSort.advantage: lambda sample: sample.row.advantage,
    SampleSort.tokens: lambda sample: sample.row.completion_tokens,
    SampleSort.turns: lambda sample: sample.row.turns,
    SampleSort.mean: lambda sample: sample.group.mean,
}
"""Function that returns the sort key of a rollout, for each sort order."""


@router.get("/steps/{step}/samples", response_model=SampleList)
async def list_samples(
    request: Request,
    namespace: Namespace,
    run: RunName,
    step: Step,
    query: Annotated[SampleQuery, Query()],
    caller: Caller = MAY_READ,
) -> Response:
    """List the rollouts of a step, without their texts."""
    wanted = SampleFilter(query.env, query.status, query.min_reward, query.max_reward)

    def answer(rollouts: OpenedStep) -> Response:
        scope = {name: getattr(query, name) for name in SampleSelection.model_fields}
        page = page_of(
            select_samples(listed_samples(rollouts), wanted, query.group, query.example, query.q),
            VALUES[query.sort],
            lambda sample: f"{sample.number:07d}",
            descending=query.order is Order.desc,
            filters=SampleScope(uid=rollouts.run[1], step=step, **scope),
            cursor=query.cursor,
            limit=query.limit,
        )
        groups = {sample.group.address: sample.group for sample in page.rows}
        sample_list = SampleList(
            **rollouts.address,
            items=[sample.item() for sample in page.rows],
            groups=[group.info() for group in groups.values()],
            functions=function_names(page.rows),
            total=page.total,
            next=page.next_cursor,
            problems=rollouts.problems,
        )
        return schema_response(sample_list)

    return await read_step(services_of(request), caller, namespace, run, step, query.split, answer)


@router.get("/steps/{step}/groups/{group}", response_model=SampleGroupDetail)
async def get_group(
    request: Request,
    namespace: Namespace,
    run: RunName,
    step: Step,
    group: AddressedSample,
    query: Annotated[SplitQuery, Query()],
    caller: Caller = MAY_READ,
) -> Response:
    """Return all rollouts of a group with their texts."""

    def answer(rollouts: OpenedStep) -> Response:
        samples = of_group(listed_samples(rollouts), group, _step_name(step, query.split))
        records, problem = records_of(rollouts, samples)
        detail = SampleGroupDetail(
            **rollouts.address,
            group=samples[0].group.info(),
            items=[sample.item() for sample in samples],
            records=[],
            problem=problem,
        )
        return with_list(detail, "records", records)

    return await read_step(services_of(request), caller, namespace, run, step, query.split, answer)


@router.get("/steps/{step}/samples/{rollout}", response_model=SampleDetail)
async def get_sample(
    request: Request,
    namespace: Namespace,
    run: RunName,
    step: Step,
    rollout: AddressedSample,
    query: Annotated[SplitQuery, Query()],
    caller: Caller = MAY_READ,
) -> Response:
    """Return a rollout with its texts."""

    def answer(rollouts: OpenedStep) -> Response:
        sample = one(listed_samples(rollouts), rollout, _step_name(step, query.split))
        record, problem = record_of(rollouts, sample)
        detail = SampleDetail(
            **rollouts.address,
            group=sample.group.info(),
            item=sample.item(),
            problem=problem,
        )
        return schema_response(detail) if record is None else with_json(detail, "record", record)

    return await read_step(services_of(request), caller, namespace, run, step, query.split, answer)


@router.get("/steps/{step}/histogram", response_model=RewardHistogram)
async def get_histogram(
    request: Request,
    namespace: Namespace,
    run: RunName,
    step: Step,
    query: Annotated[HistogramQuery, Query()],
    caller: Caller = MAY_READ,
) -> Response:
    """Return the distribution of the rewards of a step."""

    def answer(rollouts: OpenedStep) -> Response:
        rewards = rewards_of(rollouts, query.env)
        reward_histogram = RewardHistogram(
            **rollouts.address,
            bins=histogram(rewards, query.bins),
            count=len(rewards),
            mean=mean_of(rewards),
            problems=rollouts.problems,
        )
        return schema_response(reward_histogram)

    return await read_step(services_of(request), caller, namespace, run, step, query.split, answer)


def _step_name(step: int, split: SampleSplit) -> str:
    return f"step {step}, split {split},"
