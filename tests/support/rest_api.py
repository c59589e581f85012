"""The REST API in this process, with an API server in memory."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from rlrun.kube.objects import Obj
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import Store
from rlrun_server.app import WithSessions
from rlrun_server.authentication.account_tokens import AccountTokens
from rlrun_server.authentication.api_key import mint
from rlrun_server.authentication.api_key_store import ApiKeyStore
from rlrun_server.authentication.identification import Identification
from rlrun_server.authentication.oidc_login import OidcLogin
from rlrun_server.authentication.sealed import Sealer
from rlrun_server.authentication.sessions import BrowserSessions
from rlrun_server.authentication.users import Users, account_name
from rlrun_server.client_models.client_model_routes import client_model_routes
from rlrun_server.client_models.saved_states import SavedStateReader
from rlrun_server.rest.base.stored_files import PlatformStorage
from rlrun_server.rest.context.services import Services, make_services
from rlrun_server.rest.objects.environment_catalog import EnvironmentCatalog
from rlrun_server.rest.rest_app import rest_app
from starlette.types import ASGIApp

from tests.support.fake_cluster import FakeCluster
from tests.support.fake_s3 import InMemoryStore
from tests.support.signing_server import KEY, KEY_SECRET, PLATFORM_NAMESPACE, ReviewingApi

BUCKET = "bucket"
OWNERS = {"acme": ["team", "acme-*"]}
"""Listed owners of environment packages."""
CREATED = "2026-01-01T00:00:{:02d}Z"
SPEC: dict[str, Any] = {
    "model": "Qwen/Qwen3-4B",
    "maxSteps": 40,
    "sampling": {"maxTokens": 64},
    "env": [{"id": "acme/reverse"}],
}
"""A valid spec of a run."""


def uid_of(number: int) -> str:
    """Return a uid."""
    return f"{number:08x}-0000-4000-8000-000000000000"


def run_object(
    run: str,
    namespace: str = "team",
    number: int = 1,
    phase: str = "Running",
    reward: float | None = None,
    **spec: Any,
) -> Obj:
    """Return an RLRun as the API server stores it."""
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLRun",
        "metadata": {
            "name": run,
            "namespace": namespace,
            "uid": uid_of(number),
            "resourceVersion": str(number),
            "creationTimestamp": CREATED.format(number % 60),
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {**SPEC, **spec},
        "status": {"phase": phase, "progress": {"step": number, "reward": reward}},
    }


@dataclass
class RestApi:
    """A running API, and what stands around it."""

    api: ReviewingApi
    cluster: FakeCluster
    services: Services
    client: httpx.AsyncClient
    keys: ApiKeyStore
    app: ASGIApp

    async def key(self, namespace: str, *permissions: str) -> dict[str, str]:
        """Return the headers of a new API key of a namespace, whose account has these permissions."""
        self.api.add_account(namespace)
        made, text = mint(namespace, "uid-of-account", "ann", "", timedelta(days=1), datetime.now(UTC))
        await self.keys.change(lambda keys: {**keys, made.id: made})
        self.api.permissions |= {(account_name(namespace), permission) for permission in permissions}
        return {"Authorization": f"Bearer {text}"}

    def user(self, name: str, *permissions: str) -> dict[str, str]:
        """Return the headers of a user who has these permissions: `get rlruns in team`."""
        token = f"token-of-{name}"
        self.api.users[token] = name
        self.api.permissions |= {(name, permission) for permission in permissions}
        return {"Authorization": f"Bearer {token}"}

    def add(self, *objects: Obj) -> None:
        """Let API server and server know these objects."""
        kinds = {known.kind.kind: known for known in self.services.objects.kinds}
        for obj in objects:
            key = (obj["kind"], obj["metadata"].get("namespace") or "", obj["metadata"]["name"])
            self.cluster.objects[key] = obj
            kinds[obj["kind"]].put(obj)


def rest_api(
    store: Store | None = None,
    clock: Any = lambda: 100.0,
    bucket: str = BUCKET,
    *,
    now: Any = lambda: 1e9,
    api_keys_may_write: bool = True,
    oidc: OidcLogin | None = None,
) -> RestApi:
    """Return the API, which knows of all kinds that there are no objects. `oidc`: logins with impersonation."""
    api, cluster = ReviewingApi(), FakeCluster()
    keys = ApiKeyStore(api, PLATFORM_NAMESPACE, KEY_SECRET, clock)
    sealer = Sealer(lambda: [KEY])
    users = Users(api.create, clock, keys, issuer_sealer=sealer if oidc else None)

    async def renew() -> None:
        pass

    store, root = store or InMemoryStore(bucket), S3Uri(bucket, "prefix")
    storage = PlatformStorage(store, renew, root)
    identification = Identification(users, 1000.0, clock)
    tokens = AccountTokens(api.send, clock) if api_keys_may_write else None
    services = make_services(
        cluster.kube,
        cluster,
        identification,
        users,
        storage,
        clock,
        tokens,
        EnvironmentCatalog(storage, OWNERS, clock),
        impersonator=cluster if oidc else None,
    )
    for kind in services.objects.kinds:
        kind._synced.set()
    sessions = BrowserSessions(sealer, identification, users, clock, now, oidc)
    app = rest_app(services)
    # In this place by `server_app`, too.
    app.router.routes[:0] = client_model_routes(SavedStateReader(storage), lambda: KEY)
    with_sessions = WithSessions(app, sessions)
    transport = httpx.ASGITransport(app=with_sessions, raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://server/rlrun/v1")
    return RestApi(api, cluster, services, client, keys, with_sessions)
