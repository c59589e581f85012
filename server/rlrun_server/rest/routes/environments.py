"""Route that lists the environment packages that the caller may use."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from rlrun.api.base.names import Namespace
from rlrun.api.base.schema import Schema
from rlrun.constants import Reason
from starlette.responses import Response

from rlrun_server.authentication.users import Check
from rlrun_server.rest.base.access import IDENTIFIED, Caller
from rlrun_server.rest.base.pages import DEFAULT_LIMIT, MAX_CURSOR, MAX_LIMIT, page_of
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.base.responses import UNCHANGED, list_response
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.objects.environment_catalog import Package
from rlrun_server.signing.user_permissions import PACKAGES

router = APIRouter(tags=["environments"])


class EnvironmentFilter(Schema):
    """Parameters that select environment packages."""

    owner: str | None = Field(default=None, min_length=1, max_length=128)
    """Owner of the packages, the first part of owner/name."""
    namespace: Namespace | None = None
    """Namespace in which you work. It selects the packages of owners that the platform team has assigned to namespaces.
    Defaults to the namespace of the API key.
    """


class EnvironmentQuery(EnvironmentFilter):
    """Parameters of the list of environment packages."""

    limit: int = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT)
    cursor: str = Field(default="", max_length=MAX_CURSOR)
    """`next` of the previous page."""


class EnvironmentSummary(Schema):
    """Environment package in a list."""

    id: str
    """Id for `env.id` of a run: owner/name."""
    version: str
    """The version that was pushed last."""
    versions: int
    """Number of versions."""
    pushed: str
    """Time of the last push."""
    public: bool
    """True if runs of all namespaces may use the package."""


class EnvironmentList(Schema):
    """Page of environment packages, ordered by id."""

    items: list[EnvironmentSummary]
    total: int
    next: str | None = None
    is_complete: bool = True
    """False if the platform has more packages than rlrun-server lists."""
    public: bool | None = None
    """True if runs of all namespaces may use packages of the given owner. Null if the request has no owner."""


@router.get("/environments", response_model=EnvironmentList, responses=UNCHANGED)
async def list_environments(
    request: Request, query: Annotated[EnvironmentQuery, Query()], caller: Caller = IDENTIFIED
) -> Response:
    """List the environment packages that your runs may use.

    Packages of an owner that the platform team has assigned to namespaces are listed only if `namespace` is one of
    these namespaces and you may `get rlenvironments` in it. All other packages are listed for every user.
    """
    services = services_of(request)
    catalog = services.environments
    if catalog is None:
        raise RestError(503, Reason.SERVER_NOT_READY, "This rlrun-server does not list environment packages.")
    packages = await catalog.read()
    namespace = query.namespace or caller.user.namespace
    owners = {package.owner for package in packages.items if query.owner in (None, package.owner)}
    mine = {owner for owner in owners if catalog.has_namespace(owner, namespace)}
    # One check suffices for all owners, because the permission is for the namespace.
    if mine and not await services.access.may(caller.user, Check("get", PACKAGES, namespace)):
        mine = set()
    shown = {owner for owner in owners if not catalog.is_listed(owner)} | mine
    page = page_of(
        [package for package in packages.items if package.owner in shown],
        lambda package: package.id,
        lambda package: package.id,
        descending=False,
        filters=EnvironmentFilter(owner=query.owner, namespace=namespace or None),
        cursor=query.cursor,
        limit=query.limit,
    )
    items = [_json(package, public=not catalog.is_listed(package.owner)) for package in page.rows]
    public = None if query.owner is None else not catalog.is_listed(query.owner)
    return list_response(request, page, items, is_complete=packages.is_complete, public=public)


def _json(package: Package, *, public: bool) -> bytes:
    summary = EnvironmentSummary(
        id=package.id,
        version=package.version,
        versions=package.versions,
        pushed=package.pushed.isoformat(),
        public=public,
    )
    return summary.model_dump_json(by_alias=True).encode()
