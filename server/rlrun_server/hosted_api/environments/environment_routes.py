"""Routes that look up environments: list, status, one version, versions, and the files of a wheel."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import AfterValidator
from rlrun.api.base.names import named_version, package_name
from starlette.responses import Response

from rlrun_server.hosted_api.base.caller import KEY_IDENTIFIED, HostedCaller
from rlrun_server.hosted_api.base.errors import no_counterpart
from rlrun_server.hosted_api.base.wire import Json, Offset, json_object
from rlrun_server.hosted_api.environments.environment_packages import (
    EnvironmentPackages,
    StoredVersion,
    environment_id,
    find_version,
    latest,
    newest_first,
)
from rlrun_server.hosted_api.environments.wheels import inspect_wheel
from rlrun_server.rest.base.access import access_of
from rlrun_server.rest.base.problems import not_found
from rlrun_server.signing.s3_request import Operation

router = APIRouter(tags=["environments"])

MAX_ROWS = 500
Word = Annotated[str | None, Query(max_length=100)]
Owner = Annotated[str, Path(min_length=1, max_length=100)]
Name = Annotated[str, Path(min_length=1, max_length=100), AfterValidator(package_name)]
"""Normalized name of a package."""


def packages_of(request: Request) -> EnvironmentPackages:
    """Return the packages of the application."""
    packages: EnvironmentPackages = request.app.state.packages
    return packages


async def require(request: Request, caller: HostedCaller, operation: Operation, owner: str, name: str) -> None:
    """Check that the caller may perform the operation on the environment. Raises RestError."""
    check = packages_of(request).check_of(operation, owner, name, caller.namespace)
    if check is not None:
        await access_of(request).require(caller.caller.user, check)
    if operation is Operation.write:
        await packages_of(request).require_owner(owner)


@router.get("/environmentshub/")
async def list_environments(
    request: Request,
    owner: Word = None,
    search: Word = None,
    visibility: Word = None,
    tags: Word = None,
    starred_only: bool = False,
    sort_by: Word = None,
    sort_order: Word = None,
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 100,
    offset: Offset = 0,
    caller: HostedCaller = KEY_IDENTIFIED,
) -> Response:
    """List the environments of an owner, by default of the caller's namespace. Tags and stars are not supported."""
    place = owner or caller.namespace
    await require(request, caller, Operation.list, place, "any")
    packages = packages_of(request)
    shown = _visibility(packages, place)
    is_empty = bool(tags) or starred_only or (visibility or shown).upper() != shown
    names = [] if is_empty else await packages.names(caller.namespace, place)
    names = sorted(name for name in names if package_name(search or "") in name)
    # Other orders are not supported, because a folder in S3 has no timestamp.
    if sort_by == "name" and (sort_order or "").lower() == "desc":
        names.reverse()
    rows: list[Json] = [
        {"id": environment_id(place, name), "name": name, "owner": {"name": place}, "visibility": shown,
         "description": None, "tags": [], "stars": 0}
        for name in names[offset : offset + limit]
    ]  # fmt: skip
    return json_object({"data": rows, "total_count": len(names)})


@router.get("/environmentshub/{owner}/{name}/status")
async def get_status(request: Request, owner: Owner, name: Name, caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Return the newest version of an environment. Every stored version is usable, because there is no build."""
    versions = await _versions(request, caller, owner, name)
    newest = latest(versions) or newest_first(versions)[0]
    status = {
        "name": name,
        "description": None,
        "visibility": _visibility(packages_of(request), owner),
        "latest_version": {
            "semantic_version": newest.version,
            "content_hash": None,
            "created_at": newest.created.isoformat(),
        },
        "action": {"status": "SUCCESS"},
    }
    return json_object({"data": status})


@router.get("/environmentshub/{owner}/{name}/versions")
async def list_versions(request: Request, owner: Owner, name: Name, caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """List the versions of an environment, newest first."""
    versions = newest_first(await _versions(request, caller, owner, name))
    rows: list[Json] = [
        {"version": each.version, "created_at": each.created.isoformat(), "sha256": "", "size": each.size}
        for each in versions[:MAX_ROWS]
    ]
    return json_object({"data": rows})


@router.get("/environmentshub/{owner}/{name}/@{version}/inspect")
async def inspect_version(
    request: Request,
    owner: Owner,
    name: Name,
    version: Annotated[str, Path(max_length=64)],
    path: Annotated[str, Query(max_length=500)] = "",
    max_bytes: Annotated[int, Query(ge=1, le=1_000_000)] = 100_000,
    caller: HostedCaller = KEY_IDENTIFIED,
) -> Response:
    """Return a file or folder in a version's wheel. The content of a file is cut after `max_bytes`."""
    stored = _choose_version(await _versions(request, caller, owner, name), version, owner, name)
    file = _own_wheel(stored, name)
    content = await packages_of(request).read_wheel(
        caller.namespace, owner, name, stored.version, file, lambda data: inspect_wheel(data, path, max_bytes)
    )
    if content is None:
        raise not_found(f"File {path} of {owner}/{name} {stored.version}")
    return json_object({"data": content})


@router.get("/environmentshub/{owner}/{name}/@{version}")
async def get_version(
    request: Request,
    owner: Owner,
    name: Name,
    version: Annotated[str, Path(max_length=64)],
    caller: HostedCaller = KEY_IDENTIFIED,
) -> Response:
    """Return an environment with its id, which clients need for the routes of the environment's secrets."""
    stored = _choose_version(await _versions(request, caller, owner, name), version, owner, name)
    details = {
        "id": environment_id(owner, name),
        "name": name,
        "owner": {"name": owner},
        "visibility": _visibility(packages_of(request), owner),
        "semantic_version": stored.version,
        "metadata": {},
        "wheel_url": None,
        "simple_index_url": None,
    }
    return json_object({"data": details})


@router.get("/environmentshub/{owner}/{name}/actions")
async def list_actions(owner: Owner, name: Name, caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Return an empty list of actions, because there are no builds."""
    return json_object({"data": {"actions": [], "total": 0}})


@router.delete("/environmentshub/{owner}/{name}/@{version}")
async def delete_version(
    owner: Owner, name: Name, version: Annotated[str, Path(max_length=64)], caller: HostedCaller = KEY_IDENTIFIED
) -> Response:
    """Respond that versions cannot be deleted."""
    raise no_counterpart("deleting versions, because runs may use them.")


async def _versions(request: Request, caller: HostedCaller, owner: str, name: str) -> list[StoredVersion]:
    await require(request, caller, Operation.list, owner, name)
    stored = await packages_of(request).versions(caller.namespace, owner, name)
    versions = [version for version in stored if version.files]
    if not versions:
        missing = not_found(f"Environment {owner}/{name}")
        missing.detail += await packages_of(request).similar(caller.namespace, owner, name)
        raise missing
    return versions


def _choose_version(versions: list[StoredVersion], version: str, owner: str, name: str) -> StoredVersion:
    if named_version(version) is None:
        return latest(versions) or newest_first(versions)[0]
    wanted = find_version(version, versions)
    if wanted is None:
        raise not_found(f"Version {version} of environment {owner}/{name}")
    return wanted


def _own_wheel(stored: StoredVersion, name: str) -> str:
    """Return the wheel of the package itself, as opposed to its dependencies."""
    return next((file for file in stored.files if package_name(file.partition("-")[0]) == name), stored.files[0])


def _visibility(packages: EnvironmentPackages, owner: str) -> str:
    return "PUBLIC" if packages.is_public(owner) else "PRIVATE"
