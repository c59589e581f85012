"""Route that compares runs."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field
from rlrun.api.base.schema import Schema
from starlette.responses import Response

from rlrun_server.rest.access import IDENTIFIED, Caller
from rlrun_server.rest.responses import JSON
from rlrun_server.rest.summaries import RunSummary

router = APIRouter(tags=["runs"])

MAX_RUNS = 20
RunReference = Annotated[
    str,
    Field(max_length=128, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
]
"""`namespace/name`, or the run's uid in place of its name."""


class ComparisonQuery(Schema):
    """Runs to compare."""

    run: list[RunReference] = Field(min_length=2, max_length=MAX_RUNS)
    """`namespace/name`, or with the run's uid in place of its name. Repeatable."""


class SpecDifference(Schema):
    """Field that differs."""

    path: str
    """Path of the field in the spec: `env[0].args.difficulty`."""
    values: list[Any]
    """Value of each run, in the order of `runs`. null: the field is not set."""


class RunComparison(Schema):
    """Differences of runs."""

    runs: list[RunSummary]
    """Runs in the order of the request."""
    differences: list[SpecDifference]
    """Fields that differ, with the defaults of fields that are not set. At most 1,000."""
    total_differences: int
    metric_names: list[str]
    """Metrics that all runs have. At most 2,000."""
    problems: list[str] = Field(default_factory=list)
    """Runs whose defaults or metrics are not part of the comparison, with the cause."""


@router.get("/compare", responses={200: {"model": RunComparison}}, response_class=JSON)
async def compare_runs(
    request: Request, query: Annotated[ComparisonQuery, Query()], caller: Caller = IDENTIFIED
) -> Response:
    """Compare the configurations of runs, and name the metrics that they have in common."""
    raise NotImplementedError
