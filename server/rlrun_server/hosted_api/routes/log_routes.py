"""Routes that return a run's logs, as lines of JSON with `timestamp`, `level` and `message`."""

import json
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError
from rlrun.api.base.phases import Phase
from rlrun.constants import Reason, Role
from starlette.responses import Response

from rlrun_server.hosted_api.base.caller import HostedCaller, key_requires
from rlrun_server.hosted_api.base.errors import FieldProblems
from rlrun_server.hosted_api.base.wire import RowCount, json_object
from rlrun_server.hosted_api.objects.run_objects import phase_of, waiting_reason
from rlrun_server.hosted_api.routes.run_routes import RunId
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.logs.log_models import MAX_TAIL, LogLevel, LogLine, LogQuery
from rlrun_server.rest.routes.runs import load_run
from rlrun_server.rest.run_data.log_routes import read_logs

router = APIRouter(tags=["logs"])

READS_LOGS = key_requires("get", "rlruns", "log")
MOST_SECONDS = 86_400
Since = Annotated[int | None, Query(ge=1, le=MOST_SECONDS)]
Word = Annotated[str | None, Query(max_length=256)]


@router.get("/rft/runs/{run}/logs")
async def get_run_logs(
    request: Request,
    run: RunId,
    tail_lines: RowCount = 1000,
    component: Word = None,
    env_name: Word = None,
    search: Word = None,
    regex: bool = False,
    level: LogLevel | None = None,
    since_seconds: Since = None,
    caller: HostedCaller = READS_LOGS,
) -> Response:
    """Return the newest lines of a component, by default of the orchestrator."""
    if component is not None and component not in COMPONENTS:
        raise FieldProblems([(["component"], f"must be one of {', '.join(COMPONENTS)}")], "query")
    fields = {
        "role": [COMPONENTS[component or "orchestrator"]],
        "env": env_name or None,
        "tail": min(tail_lines, MAX_TAIL),
        "level": level,
        "since": None if since_seconds is None else str(since_seconds),
        "regex" if regex else "search": search or None,
    }
    return await _answer(request, run, fields, caller)


@router.get("/rft/runs/{run}/env-server-logs")
async def get_environment_logs(
    request: Request,
    run: RunId,
    env_name: Annotated[str, Query(min_length=1, max_length=200)],
    env_index: Annotated[int, Query(ge=0, le=1000)] = 0,
    tail_lines: RowCount = 1000,
    search: Word = None,
    regex: bool = False,
    level: LogLevel | None = None,
    since_seconds: Since = None,
    caller: HostedCaller = READS_LOGS,
) -> Response:
    """Return the newest lines of one environment's pod."""
    fields = {
        "role": [Role.environment],
        "env": f"{env_name}/{env_index}" if env_index else env_name,
        "tail": min(tail_lines, MAX_TAIL),
        "level": level,
        "since": None if since_seconds is None else str(since_seconds),
        "regex" if regex else "search": search or None,
    }
    return await _answer(request, run, fields, caller)


async def _answer(request: Request, run: str, fields: Mapping[str, object], caller: HostedCaller) -> Response:
    services = services_of(request)
    obj = (await load_run(services, caller.namespace, run)).read()
    phase, status = phase_of(obj), obj.get("status") or {}
    if phase in (Phase.queued, Phase.pending) and not status.get("startTime"):
        raise _not_started(run, phase, waiting_reason(phase, status))
    try:
        query = LogQuery.model_validate(fields)
    except ValidationError as error:
        raise FieldProblems([(e["loc"], str(e["msg"])) for e in error.errors()], "query") from error
    try:
        answer = await read_logs(request, caller.caller, caller.namespace, run, query)
    except RestError as error:
        if error.reason == Reason.LOGS_NOT_AVAILABLE and not phase.finished:
            # The clients recognize this response, wait and retry.
            raise _not_started(run, phase, error.detail) from error
        raise
    return json_object({"logs": log_text(answer.lines)})


def _not_started(run: str, phase: Phase, why: str | None) -> RestError:
    """Return the error that makes clients wait: they search its text for `pending` or `queued`."""
    word = "queued" if phase is Phase.queued else "pending"
    detail = f"Run {run} is {word}: its logs are not available yet. {why or ''}".strip()
    return RestError(404, Reason.OBJECT_NOT_FOUND, detail)


COMPONENTS = {
    "orchestrator": Role.orchestrator,
    "trainer": Role.trainer,
    "inference": Role.inference,
    "env-server": Role.environment,
}
"""Roles by the clients' names."""
NO_TIME = "1970-01-01T00:00:00Z"
NO_LEVEL = "INFO"


def log_text(lines: list[LogLine]) -> str:
    """Return the lines as text. A line without a time is shown with the time of the line before it."""
    texts, time = [], NO_TIME
    for line in lines:
        time = line.time or time
        fields = {
            "timestamp": time,
            "level": line.level.value if line.level is not None else NO_LEVEL,
            "message": line.message,
        }
        texts.append(without_markup(json.dumps(fields, ensure_ascii=False)))
    return "\n".join(texts)


def without_markup(text: str) -> str:
    """Escape the square brackets in a JSON text.

    The clients interpret raw lines as markup, and a closing tag crashes them.
    """
    return text.replace("[", "\\u005b").replace("]", "\\u005d")
