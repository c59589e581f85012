"""Checks a new run's environments, so that missing packages and versions are rejected before anything is created."""

import asyncio
import logging
from collections.abc import Iterator

from rlrun.api.base.field_errors import FieldProblem
from rlrun.api.run import RLRunSpec
from rlrun.api.run_sections.environments import Environment
from starlette.requests import Request

from rlrun_server.hosted_api.base.caller import HostedCaller
from rlrun_server.hosted_api.environments.environment_packages import find_version, latest, newest_first
from rlrun_server.hosted_api.environments.environment_routes import packages_of, require
from rlrun_server.rest.base.problems import RestError
from rlrun_server.signing.s3_request import Operation

log = logging.getLogger(__name__)

CHECK_SECONDS = 15.0
"""Time limit for all environments of a run in seconds, because clients wait for 30 s."""
MAX_SHOWN = 10


async def environment_problems(request: Request, caller: HostedCaller, spec: RLRunSpec) -> list[FieldProblem]:
    """Return a problem for each environment whose package or version is missing, or whose package the caller may not
    read. Skips environments that cannot be checked because S3 fails or is slow. The operator checks them later.
    """
    problems: list[FieldProblem] = []
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await _check(request, caller, spec, problems)
    except TimeoutError:
        log.info("some environments of a new run were not checked: S3 did not respond within %.0f s", CHECK_SECONDS)
    return problems


async def _check(request: Request, caller: HostedCaller, spec: RLRunSpec, problems: list[FieldProblem]) -> None:
    for path, entry in _entries(spec):
        owner, _, name = entry.package_id.partition("/")
        try:
            await require(request, caller, Operation.list, owner, name)
            stored = await packages_of(request).versions(caller.namespace, owner, name)
            versions = [each for each in stored if each.files]
        except RestError as error:
            if error.status in (403, 404):
                problems.append(FieldProblem(f"{path}.id", _missing(entry.id)))
            else:
                log.info("environment %s of a new run was not checked: %s", entry.id, error.reason)
            continue
        if latest(versions) is None:
            problems.append(
                FieldProblem(f"{path}.id", _missing(entry.id) + await _similar(request, caller, owner, name))
            )
        elif entry.version is not None and find_version(entry.version, versions) is None:
            newest = [each.version for each in newest_first(versions)[:MAX_SHOWN]]
            message = f"does not exist; newest versions of {entry.id}: {', '.join(newest)}"
            problems.append(FieldProblem(f"{path}.version", message))


def _entries(spec: RLRunSpec) -> Iterator[tuple[str, Environment]]:
    for at, entry in enumerate(spec.env):
        yield f"env[{at}]", entry
    for at, measured in enumerate(spec.eval.env if spec.eval is not None else ()):
        yield f"eval.env[{at}]", measured


async def _similar(request: Request, caller: HostedCaller, owner: str, name: str) -> str:
    try:
        return await packages_of(request).similar(caller.namespace, owner, name)
    except RestError:
        return ""


def _missing(environment: str) -> str:
    return f"{environment} does not exist, or you may not read it; push it with the `env push` command"
