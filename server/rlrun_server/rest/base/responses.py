"""Responses of the routes, and the types of their path parameters."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Path
from rlrun.api.base.names import SUBDOMAIN
from rlrun.api.base.schema import Schema
from starlette.requests import Request
from starlette.responses import Response

from rlrun_server.http.request import has_tag
from rlrun_server.rest.base.pages import Page

UNCHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The client's copy, whose ETag is in `If-None-Match`, is current"}
}
"""Description of the 304 response of routes that clients poll."""

RunName = Annotated[str, Path(min_length=1, max_length=64, pattern=SUBDOMAIN, description="Name or uid of the run.")]
ArtifactName = Annotated[str, Path(min_length=1, max_length=253, pattern=SUBDOMAIN)]


def schema_response(body: Schema, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response with the fields of `body` that are not None."""
    content = body.model_dump_json(by_alias=True, exclude_none=True)
    return Response(content, status, headers, "application/json")


def list_response(
    request: Request, page: Page[Any], items: Sequence[bytes], *, is_complete: bool = True, **facts: object
) -> Response:
    """Return a response with a page. `items` are the rows as JSON. `facts` are additional fields of the response."""
    rest: dict[str, object] = {"total": page.total, "isComplete": is_complete, **facts}
    headers = {}
    if page.next_cursor is not None:
        rest["next"] = page.next_cursor
        # Without the host, which differs behind the API server's proxy.
        following = request.url.include_query_params(cursor=page.next_cursor)
        headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
    content = b'{"items":[' + b",".join(items) + b"]," + json.dumps(rest).encode()[1:]
    return if_changed(request, Response(content, 200, headers, "application/json"))


def if_changed(request: Request, response: Response) -> Response:
    """Return the response with an ETag of its body, or 304 if the client's copy is current."""
    tag = tag_of(bytes(response.body))
    response.headers["ETag"] = tag
    return respond_unchanged(request, tag) or response


def respond_unchanged(request: Request, tag: str) -> Response | None:
    """Return 304 if the client has the response with this tag, else None."""
    return Response(status_code=304, headers={"ETag": tag}) if has_tag(request, tag) else None


def tag_of(content: bytes) -> str:
    """Return the `ETag` of a response. `content` is its body, or bytes that identify the body."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def with_list(body: Schema, name: str, items: Sequence[bytes]) -> Response:
    """Return `body` as JSON, with the items, which are already JSON, in the list field `name`."""
    return with_json(body, name, b"[" + b",".join(items) + b"]")


def with_json(body: Schema, name: str, value: bytes) -> Response:
    """Return `body` as JSON, with the field `name` replaced by a value that is already JSON."""
    rest = body.model_dump_json(by_alias=True, exclude_none=True, exclude={name}).encode()
    return Response(rest[:-1] + b',"' + name.encode() + b'":' + value + b"}", media_type="application/json")
