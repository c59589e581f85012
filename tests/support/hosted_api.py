"""The API of hosted clients in this process, with an API server and S3 in memory."""

from dataclasses import dataclass
from typing import Any

import httpx
from rlrun.kube.objects import Obj
from rlrun.storage.layout import S3Uri
from rlrun_server.hosted_api.environments.environment_packages import EnvironmentPackages
from rlrun_server.hosted_api.environments.package_uploads import PackageUploads
from rlrun_server.hosted_api.hosted_app import HostedParts, hosted_app
from rlrun_server.rest.base.stored_files import PlatformStorage
from rlrun_server.signing.package_owners import PackageOwners

from tests.support.fake_s3 import InMemoryStore
from tests.support.rest_api import BUCKET, RestApi, rest_api, uid_of

KEY = b"a key of at least sixteen bytes"
MODEL = "Qwen/Qwen3-4B"


@dataclass
class HostedApi:
    """A running API with a caller who has all rights that routes ask for in `team`."""

    rest: RestApi
    store: InMemoryStore
    client: httpx.AsyncClient
    now: float = 1000.0

    async def key(self, namespace: str = "team", *fewer: str) -> None:
        """Send an API key of the namespace from now on. `fewer`: rights that its account has instead of all."""
        self.client.headers.update(await self.rest.key(namespace, *(fewer or all_rights(namespace))))


def all_rights(namespace: str) -> list[str]:
    """Return every right that a route asks for."""
    wanted = {
        "rlruns": ("list", "get", "create", "patch", "delete"),
        "rlruns/metrics": ("get",),
        "rlruns/log": ("get",),
        "rlruns/samples": ("get",),
        "rlcheckpoints": ("list",),
        "rladapters": ("list", "get", "patch"),
        "rlenvironments": ("get", "create"),
        "pods": ("list", "deletecollection"),
        "secrets": ("list", "get", "create", "update", "patch", "delete"),
    }
    return [f"{verb} {resource} in {namespace}" for resource, verbs in wanted.items() for verb in verbs]


def hosted_api(owners: dict[str, list[str]] | None = None) -> HostedApi:
    """Return the API. Call `key` before requests."""
    store = InMemoryStore(BUCKET)
    rest = rest_api(store)

    async def renew() -> None:
        pass

    root = S3Uri(BUCKET, "prefix")
    package_owners = PackageOwners(rest.api, store, renew, root, owners or {}, lambda: found.now)
    packages = EnvironmentPackages(PlatformStorage(store, renew, root), owners or {}, package_owners)
    found = HostedApi(rest, store, rest.client)
    app = hosted_app(rest.services, HostedParts(packages, PackageUploads(lambda: [KEY], lambda: found.now)))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    found.client = httpx.AsyncClient(transport=transport, base_url="http://server/api/v1")
    return found


def model_object(model: str = MODEL, seq_len: int = 4096) -> Obj:
    """Return an RLModel."""
    metadata = {
        "name": "model",
        "uid": uid_of(900),
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    spec = {"id": model, "source": f"hf://a/b@{'0' * 40}", "seqLen": seq_len}
    return {"apiVersion": "rlrun.dev/v1alpha1", "kind": "RLModel", "metadata": metadata, "spec": spec}


def artifact_object(kind: str, name: str, step: int, run: int = 1, phase: str = "Ready", **fields: Any) -> Obj:
    """Return an RLCheckpoint or RLAdapter of a run in `team`. `fields`: of spec (deployed) and status."""
    spec = {
        "runName": "first",
        "runUid": uid_of(run),
        "model": MODEL,
        "step": step,
        "uri": f"s3://{BUCKET}/prefix/team/{uid_of(run)}/{step}",
        **({"deployed": fields.pop("deployed")} if "deployed" in fields else {}),
    }
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid_of(500 + step),
            "resourceVersion": str(step),
            "creationTimestamp": f"2026-01-01T00:00:{step % 60:02d}Z",
        },
        "spec": spec,
        "status": {"phase": phase, **fields},
    }
