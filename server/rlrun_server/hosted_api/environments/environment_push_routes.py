"""Routes for `prime env push`, which resolve an environment, announce its wheel and source archive, and upload both
files.
"""

import asyncio
import hashlib
import re
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field
from rlrun.api.base.schema import Schema
from rlrun.constants import Reason
from rlrun.service.errors import ProblemError
from rlrun.storage.environment_image import owner_of_module
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from rlrun_server.hosted_api.base.caller import KEY_IDENTIFIED, HostedCaller
from rlrun_server.hosted_api.base.wire import json_object
from rlrun_server.hosted_api.environments.environment_packages import (
    FILE,
    MAX_WHEEL,
    VERSION,
    environment_id,
    find_version,
    read_environment_id,
    too_large,
)
from rlrun_server.hosted_api.environments.environment_routes import packages_of, require
from rlrun_server.hosted_api.environments.package_uploads import (
    MAX_SOURCE,
    UPLOAD_SECONDS,
    PackageUploads,
    UploadTicket,
    check_wheel,
)
from rlrun_server.hosted_api.secrets.secret_routes import read_model
from rlrun_server.http.body import read_body
from rlrun_server.http.body import too_large as body_too_large
from rlrun_server.rest.base.problems import RestError, invalid
from rlrun_server.rest.context.services import services_of
from rlrun_server.signing.s3_request import Operation

router = APIRouter(tags=["environments"], prefix="/environmentshub")

PREFIX = re.compile(r"(/[A-Za-z0-9._-]+){0,8}")


class EnvironmentToPush(Schema):
    """Request to push an environment."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(max_length=100)
    visibility: str | None = Field(default=None, max_length=32)
    owner_slug: str | None = Field(default=None, max_length=100)
    team_slug: str | None = Field(default=None, max_length=100)
    team_id: str | None = Field(default=None, max_length=100)


class FileToPush(Schema):
    """File of a version that a client announces before uploading it."""

    model_config = ConfigDict(extra="ignore")

    filename: str = Field(max_length=255)
    sha256: str = Field(max_length=64, pattern=r"^[0-9a-f]{64}$")
    size: int = Field(default=0, ge=0, le=2**40)
    semantic_version: str | None = Field(default=None, max_length=64)


@router.post("/resolve")
async def resolve(request: Request, caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Return the id of an environment, which need not exist yet."""
    asked = await read_model(request, EnvironmentToPush)
    owner = asked.owner_slug or asked.team_slug or asked.team_id or caller.namespace
    await require(request, caller, Operation.write, owner, asked.name)
    if (asked.visibility or "").upper() == "PRIVATE" and packages_of(request).is_public(owner):
        detail = (
            f"Packages of {owner} are public: ask the platform team to list the owner in runs.environmentOwners of the "
            "chart, or push without --visibility PRIVATE."
        )
        raise RestError(400, Reason.INVALID_REQUEST, detail)
    is_new = not await packages_of(request).versions(caller.namespace, owner, asked.name)
    data = {"id": environment_id(owner, asked.name), "owner": {"name": owner}, "created": is_new}
    return json_object({"data": data})


@router.post("/{environment}/wheels")
async def announce_wheel(request: Request, environment: str, caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Return the URL for uploading the wheel of a version, or null if the version already contains this wheel."""
    owner, name = read_environment_id(environment)
    await require(request, caller, Operation.write, owner, name)
    asked = await read_model(request, FileToPush)
    if asked.size > MAX_WHEEL:
        raise too_large(asked.filename[:100])
    ticket = _ticket(request, caller, asked, "wheel", owner, name)
    text = uploads_of(request).sign(ticket)
    if await _is_stored(request, ticket):
        return json_object({"data": {"wheel_id": text, "upload_url": None}})
    return json_object({"data": {"wheel_id": text, "upload_url": _upload_url(request, text)}})


@router.post("/{environment}/versions")
async def announce_source(request: Request, environment: str, caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Return the URL for uploading the source archive of a version. The archive is received but not stored."""
    owner, name = read_environment_id(environment)
    await require(request, caller, Operation.write, owner, name)
    asked = await read_model(request, FileToPush)
    text = uploads_of(request).sign(_ticket(request, caller, asked, "source", owner, name))
    return json_object({"data": {"version_id": text, "upload_url": _upload_url(request, text)}})


@router.post("/{environment}/wheels/{ticket}/finalize")
async def finish_wheel(
    request: Request, environment: str, ticket: str, caller: HostedCaller = KEY_IDENTIFIED
) -> Response:
    """Confirm that the wheel is stored."""
    return await _finish(request, caller, environment, ticket)


@router.post("/{environment}/versions/{ticket}/finalize")
async def finish_source(
    request: Request, environment: str, ticket: str, caller: HostedCaller = KEY_IDENTIFIED
) -> Response:
    """Confirm that the version is stored."""
    return await _finish(request, caller, environment, ticket)


@router.put("/uploads/{ticket}")
async def upload(request: Request, ticket: str) -> Response:
    """Receive the file for which the ticket was issued, and store it if it is a wheel. The ticket is the credential, as
    in a presigned URL.
    """
    uploads = uploads_of(request)
    claims = uploads.read(ticket)
    async with uploads.place(claims.namespace) as place:
        counted = place.counting(request)
        if claims.kind == "source":
            await _read_source(counted, claims)
            return json_object({})
        data = await read_body(counted, claims.size, UPLOAD_SECONDS, is_counted=False)
        await services_of(request).metrics.compute(claims.namespace, check_wheel, data, claims)
        # Ignore a repeated upload of the same wheel.
        if not await _is_stored(request, claims):
            await packages_of(request).write_wheel(
                claims.namespace, claims.owner, claims.name, claims.version, claims.file, data
            )
    return json_object({})


def uploads_of(request: Request) -> PackageUploads:
    """Return the uploads of the application."""
    uploads: PackageUploads = request.app.state.uploads
    return uploads


def _ticket(
    request: Request, caller: HostedCaller, asked: FileToPush, kind: Literal["wheel", "source"], owner: str, name: str
) -> UploadTicket:
    version = asked.semantic_version or (asked.filename.split("-")[1] if asked.filename.count("-") > 1 else "")
    if not VERSION.fullmatch(version):
        raise invalid("The version in pyproject.toml must follow PEP 440.", status=422)
    if kind == "wheel" and not FILE.fullmatch(asked.filename):
        raise invalid("The file name must end with .whl and contain only letters, digits, . _ + and -.", status=422)
    module = name.replace("-", "_")
    if hidden_by := owner_of_module(module):
        message = f"The package cannot be named {name}: pods would import the module {module} of {hidden_by} instead."
        raise invalid(message, status=422)
    return UploadTicket(
        kind=kind,
        namespace=caller.namespace,
        owner=owner,
        name=name,
        version=version,
        file=asked.filename,
        sha256=asked.sha256,
        size=asked.size,
        expires=uploads_of(request).expires,
    )


async def _is_stored(request: Request, ticket: UploadTicket) -> bool:
    """Return whether the version contains exactly this wheel. Raises RestError if it contains a different one.

    Adding a wheel to a version would change the version for runs that use it.
    """
    packages = packages_of(request)
    stored = find_version(ticket.version, await packages.versions(ticket.namespace, ticket.owner, ticket.name))
    if stored is None:
        return False
    if ticket.file in stored.files:
        digest = await packages.read_wheel(
            ticket.namespace, ticket.owner, ticket.name, stored.version, ticket.file,
            lambda data: hashlib.sha256(data).hexdigest(),
        )  # fmt: skip
        if digest == ticket.sha256:
            return True
    detail = (
        f"Version {ticket.version} of {ticket.owner}/{ticket.name} already exists with a different content hash, and "
        "versions are immutable. Increase the version."
    )
    raise RestError(409, Reason.NAME_TAKEN, detail)


async def _finish(request: Request, caller: HostedCaller, environment: str, ticket: str) -> Response:
    owner, name = read_environment_id(environment)
    await require(request, caller, Operation.write, owner, name)
    claims = uploads_of(request).read(ticket)
    versions = await packages_of(request).versions(caller.namespace, owner, name)
    if (claims.owner, claims.name, claims.namespace) != (
        owner,
        name,
        caller.namespace,
    ) or find_version(claims.version, versions) is None:
        raise invalid("The upload was not received. Push the environment again.", status=409)
    message = "The wheel is stored. Source archives are not kept."
    return json_object({"data": {"success": True, "message": message}})


async def _read_source(request: Request, ticket: UploadTicket) -> None:
    """Receive a source archive without storing it. Raises RestError, ProblemError."""
    digest, size = hashlib.sha256(), 0
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_SOURCE:
                    raise body_too_large(MAX_SOURCE)
                digest.update(chunk)
    except (TimeoutError, ClientDisconnect):
        raise ProblemError.of(408, Reason.BODY_TOO_SLOW, "The upload took too long. Retry the command.") from None
    if digest.hexdigest() != ticket.sha256:
        raise invalid(f"The upload does not match the announced {ticket.file}: the SHA-256 differs.", status=422)


def _upload_url(request: Request, ticket: str) -> str:
    """Return the URL of an upload, with the address at which the client has reached this server.

    Forwarding headers are only used for this response, which goes to the client that sent them.
    """
    headers: Any = request.headers
    scheme = str(headers.get("x-forwarded-proto", "")).partition(",")[0].strip() or request.url.scheme
    prefix = str(headers.get("x-forwarded-prefix", "")).rstrip("/")
    place = prefix if PREFIX.fullmatch(prefix) else ""
    return f"{'https' if scheme == 'https' else 'http'}://{request.url.netloc}{place}/api/v1/environmentshub/uploads/{ticket}"
