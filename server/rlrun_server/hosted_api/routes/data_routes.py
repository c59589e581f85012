"""Routes that return a run's metrics, as one object per step, and the number of tokens that it has trained on."""

import json
import math
from bisect import bisect_left, bisect_right

from fastapi import APIRouter, Request
from rlrun.constants import Reason
from starlette.responses import Response

from rlrun_server.hosted_api.base.caller import HostedCaller, key_requires
from rlrun_server.hosted_api.base.wire import Json, RowCount, StepNumber, json_object
from rlrun_server.hosted_api.objects.run_objects import optional_text, status_of
from rlrun_server.hosted_api.routes.run_routes import RunId
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.metrics.metric_columns import MAX_STEP, Columns
from rlrun_server.rest.routes.runs import find_run, load_run

router = APIRouter(tags=["data"])

READS_METRICS = key_requires("get", "rlruns", "metrics")
NO_TOKENS: Json = {"tokens": 0, "input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}


@router.get("/rft/runs/{run}/metrics")
async def get_metrics(
    request: Request,
    run: RunId,
    min_step: StepNumber = 0,
    max_step: StepNumber = MAX_STEP,
    limit: RowCount | None = None,
    caller: HostedCaller = READS_METRICS,
) -> Response:
    """Return the metrics of each step or, if there is a limit, of the newest steps only."""
    services = services_of(request)
    metrics = await services.metrics.read(caller.namespace, find_run(services, caller.namespace, run).uid)

    def answer() -> Response:
        try:
            return json_object({"metrics": rows_of(metrics.columns, min_step, max_step, limit)})
        except TooManyRows as error:
            detail = f"{error} with --min-step, --max-step or -n."
            raise RestError(413, Reason.METRICS_TOO_LARGE, detail) from error

    return await services.metrics.compute(caller.caller.user.limited_as, answer)


@router.get("/billing/runs/{run}/usage")
async def get_usage(request: Request, run: RunId, caller: HostedCaller = READS_METRICS) -> Response:
    """Return the number of tokens that a run has trained on, from its metrics. There are no prices or usage records."""
    services = services_of(request)
    kept = await load_run(services, caller.namespace, run)
    metrics = await services.metrics.read(caller.namespace, kept.uid)
    tokens = total_tokens(metrics.columns)
    usage = {
        "run_id": kept.name,
        "run_name": optional_text(kept.summary.display_name),
        "base_model": kept.summary.model,
        "status": status_of(kept.read()),
        "training": {**NO_TOKENS, "tokens": tokens},
        "inference": NO_TOKENS,
        "pricing": {},
        "total_tokens": tokens,
        "total_cost_usd": 0.0,
        "record_count": len(metrics.columns.steps) if tokens else 0,
    }
    return json_object(usage)


MAX_VALUES = 500_000
"""Maximum number of values in a response, about 15 MB of JSON."""
MAX_BYTES = 24 * 1024**2
"""Approximate maximum size of a response in bytes. Each step repeats the names of its metrics, which tenants choose."""
ROW_BYTES = 80
"""Approximate size of a step with its time, in bytes."""
NUMBER_BYTES = 24
"""Approximate size of a number with its separators, in bytes."""
TOTAL_TOKENS = "progress/total_tokens"


class TooManyRows(Exception):
    """Raised if a response would have too many values or bytes. The message says how many steps fit."""


def rows_of(columns: Columns, min_step: int, max_step: int, limit: int | None) -> list[Json]:
    """Return the metrics of the steps in the range, in order, or of the newest `limit` steps in the range. Raises
    TooManyRows.
    """
    first, last = bisect_left(columns.steps, min_step), bisect_right(columns.steps, max_step)
    if limit is not None:
        first = max(first, last - limit)
    row_bytes = ROW_BYTES + sum(len(json.dumps(name)) + NUMBER_BYTES for name in columns.values)
    fitting = min(MAX_VALUES // max(1, len(columns.values)), MAX_BYTES // row_bytes)
    if last - first > fitting:
        raise TooManyRows(
            f"{last - first} steps of {len(columns.values)} metrics are too many: request at most {fitting} steps"
        )
    return [row_of(columns, at) for at in range(first, last)]


def row_of(columns: Columns, at: int) -> Json:
    """Return the metrics of the step at index `at`."""
    numbers = {name: values[at] for name, values in columns.values.items() if not math.isnan(values[at])}
    return {"step": columns.steps[at], "timestamp": columns.times[at], **numbers}


def total_tokens(columns: Columns) -> int:
    """Return the number of tokens that the run has trained on."""
    known = [value for value in columns.values.get(TOTAL_TOKENS, ()) if not math.isnan(value)]
    return int(max(known, default=0.0))
