"""Routes that list a run's steps with stored rollouts, even after the run is deleted."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from rlrun.api.base.names import MAX_ENVIRONMENT_ID, Namespace
from starlette.responses import Response

from rlrun_server.rest.base.access import Caller, requires
from rlrun_server.rest.base.pages import page_of
from rlrun_server.rest.base.responses import UNCHANGED, RunName, if_changed, schema_response, with_list
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.context.stored_runs import read_summaries
from rlrun_server.rest.samples.sample_models import ExampleHistory, StepList
from rlrun_server.rest.samples.sample_queries import MAX_EXAMPLE, ExampleQuery, Order, StepFilter, StepQuery, StepScope
from rlrun_server.rest.samples.sample_summaries import KeptSummary, RunSamples, points_of

router = APIRouter(tags=["samples"], prefix="/namespaces/{namespace}/runs/{run}")
MAY_READ = requires("get", "rlruns", "samples")
MAX_POINTS = 5000
"""Maximum number of groups of an example in a response. The newest groups are returned."""


@router.get("/steps", response_model=StepList, responses=UNCHANGED)
async def list_steps(
    request: Request,
    namespace: Namespace,
    run: RunName,
    query: Annotated[StepQuery, Query()],
    caller: Caller = MAY_READ,
) -> Response:
    """List the steps with stored rollouts, with the counts and rewards of each split."""

    def answer(uid: str, run_samples: RunSamples) -> Response:
        scope = StepScope(uid=uid, **{name: getattr(query, name) for name in StepFilter.model_fields})
        page = page_of(
            [summary for summary in run_samples.summaries if _is_wanted(summary, query)],
            lambda summary: summary.step,
            lambda summary: f"{summary.split}:{summary.environment or ''}",
            descending=query.order is Order.desc,
            filters=scope,
            cursor=query.cursor,
            limit=query.limit,
        )
        step_list = StepList(
            namespace=namespace,
            uid=uid,
            items=[],
            total=page.total,
            next=page.next_cursor,
            first_step=run_samples.summaries[0].step if run_samples.summaries else None,
            last_step=run_samples.summaries[-1].step if run_samples.summaries else None,
            splits=run_samples.splits,
            environments=run_samples.environments,
            is_complete=run_samples.is_complete,
            is_stale=run_samples.is_stale,
        )
        return if_changed(request, with_list(step_list, "items", [summary.text for summary in page.rows]))

    return await read_summaries(services_of(request), caller, namespace, run, answer)


# The id of an environment contains a slash, which the router decodes if the client has encoded it.
@router.get("/examples/{environment:path}/{example}", response_model=ExampleHistory, responses=UNCHANGED)
async def get_example(
    request: Request,
    namespace: Namespace,
    run: RunName,
    environment: Annotated[str, Path(min_length=1, max_length=MAX_ENVIRONMENT_ID)],
    example: Annotated[int, Path(ge=-MAX_EXAMPLE, le=MAX_EXAMPLE)],
    query: Annotated[ExampleQuery, Query()],
    caller: Caller = MAY_READ,
) -> Response:
    """Return the mean rewards of one example over the steps."""

    def answer(uid: str, run_samples: RunSamples) -> Response:
        points, is_complete = points_of(run_samples, environment, example, query.split)
        history = ExampleHistory(
            namespace=namespace,
            uid=uid,
            environment=environment,
            example=example,
            points=points[-MAX_POINTS:],
            is_complete=is_complete and len(points) <= MAX_POINTS,
            is_stale=run_samples.is_stale,
        )
        return if_changed(request, schema_response(history))

    return await read_summaries(services_of(request), caller, namespace, run, answer)


def _is_wanted(summary: KeptSummary, query: StepFilter) -> bool:
    return (
        query.min_step <= summary.step <= query.max_step
        and (not query.split or summary.split in query.split)
        and query.env in (None, summary.environment)
    )
