"""Services that the routes share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from rlrun.api.base.schema import Schema
from rlrun.constants import Reason
from rlrun.kube.async_transport import AsyncTransport
from rlrun.kube.errors import ApiError
from rlrun.kube.informer import Informer, ObjectSource
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, RLMODEL, RLRUN
from starlette.requests import Request

from rlrun_server.authentication.account_tokens import AccountTokens
from rlrun_server.authentication.identification import Identification
from rlrun_server.authentication.users import Users
from rlrun_server.rest.base.access import Access
from rlrun_server.rest.base.problems import RestError, from_own_api_error, not_found
from rlrun_server.rest.base.stored_files import PlatformStorage, StoredFiles
from rlrun_server.rest.base.tenant_queue import TenantQueue
from rlrun_server.rest.logs.log_reader import LogReader
from rlrun_server.rest.metrics.metric_reader import MetricReader
from rlrun_server.rest.objects.environment_catalog import EnvironmentCatalog
from rlrun_server.rest.objects.kept_objects import KeptObject, KeptObjects, informer_of
from rlrun_server.rest.objects.summaries import (
    ArtifactSummary,
    ModelSummary,
    RunSummary,
    summarize_artifact,
    summarize_model,
    summarize_run,
)
from rlrun_server.rest.objects.usage_reader import UsageReader
from rlrun_server.rest.objects.visible_namespaces import VisibleNamespaces
from rlrun_server.rest.samples.sample_reader import SampleReader

FILE_THREADS = 2
LARGE_OBJECT = 64 * 1024
"""Size in bytes above which an object is processed in a thread. An object of a megabyte may take 0.3 s."""
LISTING_SECONDS = 30.0
"""Seconds after the start for which a server that has not listed all objects is not ready. Pods need no lists, so
signing must not wait longer for an API server that does not respond.
"""
WAITING_BODIES = 8
"""Maximum number of request bodies of a user that wait in memory to be parsed."""

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=Schema)


class KnownObjects:
    """All objects that the server watches, by kind."""

    def __init__(self, cluster: ObjectSource) -> None:
        self.runs: KeptObjects[RunSummary] = informer_of(cluster, RLRUN, summarize_run)
        self.checkpoints: KeptObjects[ArtifactSummary] = informer_of(cluster, RLCHECKPOINT, summarize_artifact)
        self.adapters: KeptObjects[ArtifactSummary] = informer_of(cluster, RLADAPTER, summarize_artifact)
        self.models: KeptObjects[ModelSummary] = informer_of(cluster, RLMODEL, summarize_model)

    @property
    def kinds(self) -> tuple[Informer[Any], ...]:
        """Informers of all kinds that the server watches."""
        return self.runs, self.checkpoints, self.adapters, self.models

    def namespaces(self) -> set[str]:
        """Return the namespaces that have an object."""
        return {kept.namespace for kind in self.kinds for kept in kind.all() if kept.namespace}

    def not_ready(self, age: float) -> str | None:
        """Return what a server that started `age` seconds ago has not listed yet, or None if it is ready."""
        missing = [each.kind.plural for each in self.kinds if not each.is_synced]
        return f"reading {', '.join(missing)}" if missing and age < LISTING_SECONDS else None

    def require(self, kind: Informer[Any]) -> None:
        """Check that the objects of the kind have been listed. Raises RestError."""
        if not kind.is_synced:
            detail = (
                f"rlrun-server has not read the cluster's {kind.kind.plural} yet. Retry the request; if this "
                f"persists, ask the platform team to check the server's log."
            )
            raise RestError(503, Reason.SERVER_NOT_READY, detail)


@dataclass(frozen=True)
class Services:
    """Services that the routes use."""

    access: Access
    objects: KnownObjects
    visible: VisibleNamespaces
    callers: AsyncTransport
    """Transport to the API server without credentials, for requests with the caller's token."""
    metrics: MetricReader
    samples: SampleReader
    logs: LogReader
    usage: UsageReader
    bodies: TenantQueue = field(default_factory=lambda: TenantQueue(1, "bodies", WAITING_BODIES))
    """Thread pool for parsing request bodies."""
    account_tokens: AccountTokens | None = None
    """Tokens for callers with an API key. If None, API keys are read-only."""
    impersonator: AsyncTransport | None = None
    """Transport to the API server that may impersonate users from an OIDC issuer, or None."""
    environments: EnvironmentCatalog | None = None
    """Catalog of environment packages, or None if the server does not list them."""

    async def load(self, known: KeptObjects[S], kept: KeptObject[S]) -> KeptObject[S]:
        """Return the complete object. Reads it from the API server if only a part is stored. Raises RestError."""
        for loaded in await self.load_all(known, [kept]):
            return loaded
        raise not_found(f"{known.kind.kind} {kept.namespace}/{kept.name}")

    async def load_all(self, known: KeptObjects[S], all_kept: Iterable[KeptObject[S]]) -> list[KeptObject[S]]:
        """Return the complete form of each object that still exists. Raises RestError."""
        try:
            found = [await known.load(kept) for kept in all_kept]
        except ApiError as error:
            raise from_own_api_error(error) from error
        return [kept for kept in found if kept is not None]

    async def show(
        self, caller: str, kept: KeptObject[Any], call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of `call`, which runs in a thread if the object is large. Raises RestError if too many
        calls of the caller are waiting.
        """
        if kept.size <= LARGE_OBJECT:
            return call(*args, **kwargs)
        return await self.metrics.compute(caller, call, *args, **kwargs)

    def close(self) -> None:
        """Stop all threads."""
        self.metrics.close()
        self.samples.close()
        if self.environments is not None:
            self.environments.close()
        self.logs.close()
        self.usage.close()
        self.bodies.close()


def services_of(request: Request) -> Services:
    """Return the services of the application."""
    services: Services = request.app.state.services
    return services


def make_services(
    cluster: ObjectSource,
    callers: AsyncTransport,
    identification: Identification,
    users: Users,
    storage: PlatformStorage,
    clock: Callable[[], float],
    account_tokens: AccountTokens | None = None,
    environments: EnvironmentCatalog | None = None,
    *,
    impersonator: AsyncTransport | None = None,
) -> Services:
    """Return the services of the application. The caller must run the informers in `objects.kinds`."""
    objects = KnownObjects(cluster)
    access = Access(identification, users, clock)
    return Services(
        access,
        objects,
        VisibleNamespaces(access, objects.namespaces, clock),
        callers,
        MetricReader(storage, clock),
        SampleReader(storage, clock),
        LogReader(StoredFiles(storage, "logs", FILE_THREADS)),
        UsageReader(StoredFiles(storage, "usage", FILE_THREADS)),
        account_tokens=account_tokens,
        environments=environments,
        impersonator=impersonator,
    )
