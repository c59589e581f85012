"""Route that compares runs, with the field-by-field difference between their specs."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field
from rlrun.api.base.schema import Schema
from rlrun.constants import Reason
from starlette.responses import Response

from rlrun_server.authentication.users import Check
from rlrun_server.rest.base.access import IDENTIFIED, Caller
from rlrun_server.rest.base.problems import FieldError, RestError, invalid
from rlrun_server.rest.base.responses import schema_response
from rlrun_server.rest.context.services import Services, services_of
from rlrun_server.rest.objects.summaries import RunSummary
from rlrun_server.rest.routes.runs import KeptRun, config_of, find_run

MAX_VALUE = 2000
"""Maximum length of a value as JSON. A longer value is returned as shortened text."""
PLAIN_NAME = re.compile(r"[\w-]+")


class SpecDifference(Schema):
    """Field of the spec whose value differs between runs."""

    path: str
    """Path of the field in the spec, such as `env[0].args.difficulty`, or `env[0].args["a.b"]` for a name with
    characters other than letters, digits, `_` and `-`.
    """
    values: list[Any]
    """Value of each run, in the order of `runs`. null if the field is not set. A long value is returned as shortened
    text.
    """


def differences(specs: Sequence[Mapping[str, Any]]) -> list[SpecDifference]:
    """Return the fields that differ between the specs, in the order of their first occurrence."""
    fields = [dict(_fields(spec, "")) for spec in specs]
    paths = dict.fromkeys(path for by_path in fields for path in by_path)
    return [
        SpecDifference(path=path, values=[_shorten_value(by_path.get(path)) for by_path in fields])
        for path in paths
        if len({_text(by_path.get(path)) for by_path in fields}) > 1
    ]


def _fields(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each leaf field."""
    if isinstance(value, Mapping) and (value or not path):
        for name, inner in value.items():
            yield from _fields(inner, _path_of(str(name), path))
    elif isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
        for number, entry in enumerate(value):
            yield from _fields(entry, f"{path}[{number}]")
    else:
        yield path, value


def _path_of(name: str, parent: str) -> str:
    if not PLAIN_NAME.fullmatch(name):
        return f"{parent}[{json.dumps(name, ensure_ascii=False)}]"
    return f"{parent}.{name}" if parent else name


def _text(value: Any) -> str:
    # Values that are equal in Python, such as 1 and True, may differ in JSON.
    return json.dumps(value, sort_keys=True)


def _shorten_value(value: Any) -> Any:
    text = _text(value)
    if len(text) <= MAX_VALUE:
        return value
    return f"{(value if isinstance(value, str) else text)[:MAX_VALUE]}…"


router = APIRouter(tags=["runs"])

MAX_RUNS = 20
MAX_BYTES = 1024**2
"""Maximum total size of the runs, in bytes. A comparison needs up to a hundred times as much memory."""
MAX_DIFFERENCES = 1000
MAX_NAMES = 2000
METRIC_SECONDS = 20.0
"""Time limit for reading the metrics of all runs, in seconds."""
RunReference = Annotated[
    str,
    Field(max_length=128, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
]
"""Reference to a run: `namespace/name` or `namespace/uid`."""


class ComparisonQuery(Schema):
    """Parameters of a comparison."""

    run: list[RunReference] = Field(min_length=2, max_length=MAX_RUNS)
    """Run to compare, as `namespace/name` or `namespace/uid`. Repeatable."""


class RunComparison(Schema):
    """Result of comparing the specs and metrics of runs."""

    runs: list[RunSummary]
    """Runs in the order of the request."""
    differences: list[SpecDifference]
    """Fields that differ, at most 1,000. An unset field counts as its default value."""
    total_differences: int
    metric_names: list[str]
    """Metrics that all runs with readable metrics have in common, at most 2,000."""
    problems: list[str] = Field(default_factory=list)
    """Reasons why the defaults or metrics of some runs are missing from the comparison."""


@router.get("/compare", response_model=RunComparison)
async def compare_runs(
    request: Request, query: Annotated[ComparisonQuery, Query()], caller: Caller = IDENTIFIED
) -> Response:
    """Compare the configurations of runs, and name the metrics that they have in common."""
    services = services_of(request)
    references = [reference.split("/", 1) for reference in query.run]
    # The comparison costs as much as a request for each run.
    services.access.count(caller.user, len(references) - 1)
    for namespace in dict.fromkeys(namespace for namespace, _ in references):
        await services.access.require(caller.user, Check("get", "rlruns", namespace))
    runs = [find_run(services, namespace, name) for namespace, name in references]
    if len({run.uid for run in runs}) < len(runs):
        detail = "The request names a run twice. Name each run once."
        raise invalid(detail, [FieldError(pointer="query/run", detail=detail)])
    if sum(run.size for run in runs) > MAX_BYTES:
        detail = f"The spec and status of the runs exceed {MAX_BYTES} bytes in total. Compare fewer runs."
        raise RestError(413, Reason.ANSWER_TOO_LARGE, detail)
    metrics, problems = await _metric_names(services, caller, runs)
    runs = [await services.load(services.objects.runs, run) for run in runs]
    return await services.bodies.run(caller.user.limited_as, _compare_runs, runs, metrics, problems)


async def _metric_names(services: Services, caller: Caller, runs: Sequence[KeptRun]) -> tuple[list[str], list[str]]:
    """Return the metrics common to all runs with readable metrics, and the problems of the other runs."""
    common: list[str] | None = None
    problems: list[str] = []
    try:
        async with asyncio.timeout(METRIC_SECONDS):
            for run in runs:
                if not await services.access.may(caller.user, Check("get", "rlruns", run.namespace, "metrics")):
                    problems.append(f"{_name(run)}: you may not get rlruns/metrics in namespace {run.namespace}.")
                    continue
                try:
                    metrics = (await services.metrics.read(run.namespace, run.uid)).columns.values
                except RestError as error:
                    problems.append(f"{_name(run)}: {error.detail}")
                    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
                        # If S3 does not respond, the request would wait as long for each of the other runs.
                        break
                    continue
                common = [name for name in (metrics if common is None else common) if name in metrics]
    except TimeoutError:
        problems.append(
            "S3 is slow: the metrics of some runs were not read in time. Compare fewer runs, or retry the request."
        )
    return (common or [])[:MAX_NAMES], problems


def _compare_runs(runs: Sequence[KeptRun], metrics: list[str], problems: list[str]) -> Response:
    specs: list[dict[str, Any]] = []
    for run in runs:
        obj = run.read()
        config = config_of(obj.get("spec") or {}, obj.get("status") or {})
        if config.resolved is None:
            problems = [*problems, f"{_name(run)}: the spec is compared without defaults, because it is not valid."]
        specs.append(config.spec if config.resolved is None else config.resolved)
    rows = differences(specs)
    return schema_response(
        RunComparison(
            runs=[run.summary for run in runs],
            differences=rows[:MAX_DIFFERENCES],
            total_differences=len(rows),
            metric_names=metrics,
            problems=problems,
        )
    )


def _name(run: KeptRun) -> str:
    return f"{run.namespace}/{run.name}"
