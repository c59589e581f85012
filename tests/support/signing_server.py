"""rlrun-server in a thread of this process, with a review of tokens that the test decides about."""

import asyncio
import base64
import copy
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from kubernetes import client
from rlrun.kube import requests
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import ResourceKind, ref_of
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest, Verb
from rlrun.kube.sync_client import SyncApiTransport
from rlrun.protocol import signed_text
from rlrun.protocol.api_keys import KEYS_AUDIENCE
from rlrun.protocol.storage_access import (
    GRANT_VARIABLE,
    SERVER_AUTHORITY_VARIABLE,
    SERVER_VARIABLE,
    TOKEN_FILE_VARIABLE,
    StorageGrant,
    StorageRole,
)
from rlrun.service.listening import listen
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import Store
from rlrun.storage.user_signer import Send, open_user_store, read_location
from rlrun_cli.remote.server import DirectServer
from rlrun_server.app import server_app
from rlrun_server.authentication.api_key_management import ApiKeyManagement
from rlrun_server.authentication.api_key_store import ApiKeyStore
from rlrun_server.authentication.identification import Identification
from rlrun_server.authentication.token_reviews import CreateReview, TokenReviews
from rlrun_server.authentication.users import Users
from rlrun_server.http.serving import serving_on
from rlrun_server.runtime.certificate import Certificate
from rlrun_server.runtime.settings import ServerConfig, ServerSettings
from rlrun_server.signing.package_owners import PackageOwners
from rlrun_server.signing.pod_signing import Signing
from rlrun_server.signing.signer import S3Signer, own_store
from rlrun_server.signing.store_probe import StoreProbe, http_sender
from rlrun_server.signing.store_safety import Inconclusive, SigningMethod, SigningVerdict, StoreSafety
from rlrun_server.signing.user_signing import UserSigning
from typing_extensions import override

from tests.support.seaweedfs import S3Server

KEY = b"a key of at least sixteen bytes"
NAMESPACE = "team"
PLATFORM_NAMESPACE = "platform"
KEY_SECRET = "rlrun-server-api-keys"
UID = "uid-1"


def token_of(namespace: str, audience: str, pod: str = "pod") -> str:
    """Return what the API server of these tests accepts as a token."""
    return f"{namespace} {audience} {pod}"


def key_secret(namespace: str = PLATFORM_NAMESPACE) -> Obj:
    """Return the Secret for API keys as the chart makes it."""
    metadata = {"name": KEY_SECRET, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}


def key_secret_id() -> tuple[str, str, str]:
    """Return kind, namespace and name of the Secret for API keys."""
    return ("Secret", PLATFORM_NAMESPACE, KEY_SECRET)


def stored_key_secret() -> dict[tuple[str, str, str], Obj]:
    """Return the Secret for API keys as an API server stores it."""
    secret = key_secret()
    return {key_secret_id(): {**secret, "metadata": {**secret["metadata"], "resourceVersion": "1"}}}


@dataclass
class ReviewingApi:
    """Answers TokenReviews like an API server, and counts them."""

    reviews: int = 0
    is_away: bool = False
    deleted: set[str] = field(default_factory=set)
    """Tokens of pods that are gone."""
    users: dict[str, str] = field(default_factory=dict)
    """Names of users by token."""
    permissions: set[tuple[str, str]] = field(default_factory=set)
    """User and phrase: `("ann", "get rlruns/metrics in team")`."""

    objects: dict[tuple[str, str, str], Obj] = field(default_factory=stored_key_secret)
    """Secrets and ServiceAccounts by kind, namespace and name."""
    reads: int = 0
    made_tokens: list[KubeRequest] = field(default_factory=list)
    """Requests for tokens of ServiceAccounts."""

    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Obj | None:
        """Return an object."""
        self._check_not_away()
        self.reads += 1
        found = self.objects.get((kind.kind, namespace or "", name))
        await asyncio.sleep(0)
        return copy.deepcopy(found)

    async def replace(self, obj: Obj) -> Obj:
        """Replace an object."""
        self._check_not_away()
        metadata = obj["metadata"]
        key = (str(obj["kind"]), str(metadata["namespace"]), str(metadata["name"]))
        if self.objects[key]["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        changed = {**obj, "metadata": {**metadata, "resourceVersion": str(int(metadata["resourceVersion"]) + 1)}}
        self.objects[key] = copy.deepcopy(changed)
        return changed

    def add_account(self, namespace: str, name: str = "rlrun-user", uid: str = "uid-of-account") -> None:
        """Create a ServiceAccount."""
        self.objects["ServiceAccount", namespace, name] = {"metadata": {"name": name, "uid": uid}}

    def add_namespace(self, name: str, uid: str) -> None:
        """Create a namespace, or make it again with another uid."""
        self.objects["Namespace", "", name] = {"metadata": {"name": name, "uid": uid}}

    async def send(self, request: KubeRequest) -> Obj:
        """Answer a request for a token of a ServiceAccount, with one that has the account's uid and a number."""
        self._check_not_away()
        assert request.subresource == "token"
        self.made_tokens.append(request)
        account = self.objects.get(("ServiceAccount", request.namespace or "", request.name or ""))
        if account is None:
            raise ApiError(404, "NotFound", "serviceaccounts not found")
        claims = {"kubernetes.io": {"serviceaccount": {"uid": account["metadata"]["uid"]}}}
        payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        return {"status": {"token": f"made.{payload}.{len(self.made_tokens)}"}}

    def _check_not_away(self) -> None:
        if self.is_away:
            raise ApiError(0, "Unreachable", "the API server does not answer")

    async def create(self, review: Obj) -> Obj:
        """Return the review with its status."""
        self.reviews += 1
        await asyncio.sleep(0)
        self._check_not_away()
        if review["kind"] == "SubjectAccessReview":
            asked = review["spec"]["resourceAttributes"]
            resource = "/".join(part for part in (asked["resource"], asked["subresource"]) if part)
            named = f" {asked['name']}" if asked.get("name") else ""
            phrase = f"{asked['verb']} {resource}{named} in {asked['namespace']}"
            return {**review, "status": {"allowed": (review["spec"]["user"], phrase) in self.permissions}}
        if not review["spec"].get("audiences"):
            name = self.users.get(review["spec"]["token"])
            user = {"username": name, "uid": f"uid-{name}", "groups": ["system:authenticated"]}
            return {**review, "status": {"authenticated": True, "user": user} if name else {}}
        token, asked = review["spec"]["token"], review["spec"]["audiences"]
        words = token.split(" ")
        if len(words) != 3 or words[1] not in asked or token in self.deleted:
            return {**review, "status": {"authenticated": False}}
        account = words[2] if words[1] == KEYS_AUDIENCE else "run"
        user = {
            "username": f"system:serviceaccount:{words[0]}:{account}",
            "extra": {"authentication.kubernetes.io/pod-name": [words[2]]},
        }
        return {**review, "status": {"authenticated": True, "audiences": [words[1]], "user": user}}


def reviews_of(api: client.ApiClient) -> CreateReview:
    """Return how the server asks a real API server."""
    transport = SyncApiTransport(api)

    async def create(review: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(transport.send, requests.create(review, None))

    return create


class ObjectsOf(AsyncKubeClient):
    """Secrets and ServiceAccounts of a real API server."""

    def __init__(self, api: client.ApiClient) -> None:
        self._blocking = SyncApiTransport(api)

    @override
    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Obj | None:
        return await asyncio.to_thread(self._blocking.find, requests.get(kind, namespace, name))

    @override
    async def replace(self, obj: Obj) -> Obj:
        kind, namespace, name = ref_of(obj)
        return await asyncio.to_thread(self._blocking.send, KubeRequest(Verb.REPLACE, kind, namespace, name, obj))


@dataclass
class SigningServer:
    """A running server."""

    url: str
    s3: S3Server
    folder: Path
    """Folder for tokens."""
    api: ReviewingApi
    users: UserSigning
    owners: PackageOwners
    authority: str = ""
    """Certificates to trust, in PEM. Empty: without TLS."""

    def user(self, name: str, *permissions: str) -> str:
        """Return the token of a user who has these permissions."""
        self.api.users[f"token-of-{name}"] = name
        self.api.permissions |= {(name, permission) for permission in permissions}
        return f"token-of-{name}"

    def send_as(self, token: str) -> Send:
        """Return how a user with this token reaches the server."""
        return DirectServer(self.url, lambda: token).send

    def user_store(self, token: str, namespace: str = NAMESPACE) -> Store:
        """Return the store of a user, who has no credentials."""
        send = self.send_as(token)
        return open_user_store(send, read_location(send), namespace)

    def variables(
        self,
        role: StorageRole,
        run: str,
        *readable: str,
        namespace: str = NAMESPACE,
        owner: str = UID,
        listable: str = "",
    ) -> dict[str, str]:
        """Return the variables of a process of a run whose folder is `run`."""
        grant = StorageGrant(
            namespace=namespace,
            owner=owner,
            role=role,
            folder=run,
            readable=list(readable),
            listable=[listable] if listable else [],
        )
        file = self.folder / f"{namespace}-{owner}-{role}"
        file.write_text(token_of(namespace, grant.audience))
        return {
            SERVER_VARIABLE: self.url,
            SERVER_AUTHORITY_VARIABLE: self.authority,
            TOKEN_FILE_VARIABLE: str(file),
            GRANT_VARIABLE: signed_text.sign(grant, KEY),
            **self.s3.connection.variables,
        }

    def store(self, role: StorageRole, run: str, *readable: str, listable: str = "") -> Store:
        """Return the store of a process, which has no credentials."""
        return Store.of_process(self.variables(role, run, *readable, listable=listable))


@contextmanager
def signing_server(
    s3: S3Server,
    folder: Path,
    settings: ServerSettings | None = None,
    create: CreateReview | None = None,
    host: str = "127.0.0.1",
    cluster: AsyncKubeClient | None = None,
    platform_namespace: str = PLATFORM_NAMESPACE,
    certificate: Mapping[str, bytes] | None = None,
) -> Iterator[SigningServer]:
    """Serve on a free port of this machine with the credentials of the S3 server.

    `create` and `cluster` replace the API server of the tests: one for reviews, the other for objects. `certificate`:
    files of one for `localhost`, with which the server has TLS.
    """
    api, loop, started = ReviewingApi(), asyncio.new_event_loop(), threading.Event()
    found: dict[str, Any] = {}
    settings = settings or ServerSettings()
    settings = settings.model_copy(update={"bucket": settings.bucket or s3.bucket})
    config = ServerConfig(settings, s3.connection)
    credentials = folder / "s3-credentials"
    credentials.mkdir()
    for name, value in s3.environment.items():
        (credentials / name).write_text(value)
    tls = None
    if certificate is not None:
        (folder / "tls").mkdir()
        for name, content in certificate.items():
            (folder / "tls" / name).write_bytes(content)
        tls = Certificate(folder / "tls").context
    signer = S3Signer(s3.connection, credentials)
    store = ApiKeyStore(cluster or api, platform_namespace, KEY_SECRET, time.monotonic)

    async def run() -> None:
        safety = StoreSafety(time.monotonic)
        root = S3Uri(settings.bucket, settings.prefix)
        store_of_server = own_store(signer, s3.connection)
        probe = StoreProbe(signer, http_sender(s3.connection), root, store_of_server)
        try:
            safety.record(await probe.run())
        except Inconclusive:
            # Tests without an S3 server get signatures all the same.
            safety.record(SigningVerdict(SigningMethod.headers))
        signing = Signing(
            settings,
            signer,
            TokenReviews(api.create, time.monotonic),
            lambda: [KEY],
            time.monotonic,
            safety,
        )
        reviews = Users(create or api.create, time.monotonic, store)
        identification = Identification(reviews, settings.reviews_per_second, time.monotonic)
        found["owners"] = PackageOwners(
            cluster or api, store_of_server, signer.renew, root, settings.environment_owners, time.monotonic
        )
        found["users"] = users = UserSigning(
            settings,
            config.location,
            [signer],
            identification,
            reviews,
            time.monotonic,
            safety,
            found["owners"],
        )
        keys = ApiKeyManagement(identification, reviews, store, time.monotonic, lambda: datetime.now(UTC))
        found["stop"] = stop = asyncio.Event()
        sockets = listen(host, 0)
        found["port"] = sockets[0].getsockname()[1]
        async with serving_on(server_app(signing, users, keys, FastAPI()), sockets, tls):
            started.set()
            await stop.wait()
        found["owners"].close()
        probe.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        url = f"http://{host}:{found['port']}" if certificate is None else f"https://localhost:{found['port']}"
        authority = (certificate or {}).get("ca.crt", b"").decode()
        yield SigningServer(url, s3, folder, api, found["users"], found["owners"], authority)
    finally:
        loop.call_soon_threadsafe(found["stop"].set)
        thread.join(20)
        loop.close()
