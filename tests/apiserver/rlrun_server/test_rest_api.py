"""The REST API at a real API server, with the chart's roles: the server's own and those of users."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from kubernetes import client
from kubernetes.aio import client as aio_client
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import AsyncApiTransport
from rlrun.kube.connection.api_configuration import load_configuration, without_credentials
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import Store
from rlrun_server.authentication.identification import Identification
from rlrun_server.authentication.users import Users
from rlrun_server.rest.base.stored_files import PlatformStorage
from rlrun_server.rest.context.services import make_services
from rlrun_server.rest.objects.environment_catalog import EnvironmentCatalog
from rlrun_server.rest.rest_app import rest_app

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.apiserver.rlrun_server.test_users import RBAC, Accounts, chart_objects
from tests.support.rest_api import SPEC
from tests.support.sample_records import groups
from tests.support.seaweedfs import S3Server
from tests.support.stored_samples import StoredSamples

SYSTEM = "rlrun-system"


@pytest.fixture
def roles(api: client.ApiClient) -> dict[str, str]:
    """The chart's roles of users, under names of the test's own."""
    suffix, names = uuid.uuid4().hex[:6], {}
    for found in chart_objects(SYSTEM, "user-roles.yaml"):
        kind = found["metadata"]["name"].removeprefix("rlrun-")
        if found["kind"] == "ClusterRole" and kind in ("editor", "viewer"):
            names[kind] = f"{kind}-{suffix}"
            rules = [*found["rules"], {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]}]
            if kind == "editor":
                verbs = ["get", "list", "create", "update", "delete"]
                rules.append({"apiGroups": [""], "resources": ["secrets"], "verbs": verbs})
            body = {"metadata": {"name": names[kind]}, "rules": rules}
            client.RbacAuthorizationV1Api(api).create_cluster_role(body)
    return names


@pytest.fixture
async def own_configuration(
    api: client.ApiClient, control_plane: ControlPlane, namespace: str
) -> aio_client.Configuration:
    """Access of rlrun-server with the rights that the chart gives it, and no others."""
    rules = [r for o in chart_objects(SYSTEM, "server.yaml") if o["kind"] == "ClusterRole" for r in o["rules"]]
    name = f"server-{namespace}"
    rbac = client.RbacAuthorizationV1Api(api)
    rbac.create_cluster_role({"metadata": {"name": name}, "rules": rules})
    token = Accounts(api).make(namespace, "server")
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", "name": "server", "namespace": namespace}
    rbac.create_cluster_role_binding({"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]})
    found = without_credentials(await load_configuration(str(control_plane.kubeconfig)))
    found.api_key = {"BearerToken": f"Bearer {token}"}
    return found


@pytest.fixture
async def rest(own_configuration: aio_client.Configuration, s3_server: S3Server) -> AsyncIterator[httpx.AsyncClient]:
    """The API with what stands around it, as in the process."""
    cluster = AsyncKubeClient(AsyncApiTransport(own_configuration))
    callers = AsyncApiTransport(without_credentials(own_configuration))
    users = Users(cluster.create, time.monotonic)
    store: Store = s3_server.store()

    async def renew() -> None:
        pass

    storage = PlatformStorage(store, renew, S3Uri(s3_server.bucket, ""))
    identification = Identification(users, 1000.0, time.monotonic)
    environments = EnvironmentCatalog(storage, {}, time.monotonic)
    services = make_services(
        cluster, callers, identification, users, storage, time.monotonic, environments=environments
    )
    tasks = [asyncio.create_task(kind.follow()) for kind in services.objects.kinds]
    transport = httpx.ASGITransport(app=rest_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://server/rlrun/v1", timeout=60) as found:
        await until(lambda: _true(all(kind.is_synced for kind in services.objects.kinds)))
        yield found
    for task in tasks:
        task.cancel()
    services.close()
    await callers.close()
    await cluster.close()


async def _true(value: bool) -> bool:
    return value


async def until(holds: Any) -> None:
    """Wait until `holds` returns True, for at most a minute."""
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110  # the server tells nobody of its watch
            await asyncio.sleep(0.05)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_life_of_a_run(
    rest: httpx.AsyncClient, api: client.ApiClient, namespace: str, roles: dict[str, str], s3_server: S3Server
) -> None:
    accounts = Accounts(api)
    editor = bearer(accounts.make(namespace, "ann", roles["editor"]))
    viewer = bearer(accounts.make(namespace, "vic", roles["viewer"]))
    runs = f"/namespaces/{namespace}/runs"

    checked = await rest.post(runs, params={"dryRun": "all"}, json=SPEC, headers=editor)
    assert checked.status_code == 200, checked.text
    made = await rest.post(runs, json=SPEC, headers={**editor, "Idempotency-Key": "one"})
    assert made.status_code == 201, made.text
    again = await rest.post(runs, json=SPEC, headers={**editor, "Idempotency-Key": "one"})
    assert (again.status_code, again.json()["uid"]) == (200, made.json()["uid"])
    name, uid = made.json()["name"], made.json()["uid"]
    assert made.json()["spec"]["batchSize"] == 128, "defaults of the API server"

    forbidden = await rest.post(runs, json=SPEC, headers=viewer)
    assert (forbidden.status_code, forbidden.json()["reason"]) == (403, "AccessForbidden")
    listed = await rest.get(runs, headers=viewer)
    assert [run["name"] for run in listed.json()["items"]] == [name]
    seen = await rest.get("/namespaces", headers=viewer)
    assert [found["name"] for found in seen.json()["items"]] == [namespace]

    changed = await rest.patch(
        f"{runs}/{name}",
        content='{"spec": {"maxSteps": 80}}',
        headers={**editor, "Content-Type": "application/merge-patch+json", "If-Match": made.headers["etag"]},
    )
    assert changed.json()["spec"]["maxSteps"] == 80, changed.text
    outdated = await rest.post(f"{runs}/{name}:stop", headers={**editor, "If-Match": made.headers["etag"]})
    assert (outdated.status_code, outdated.json()["reason"]) == (409, "ObjectChanged")
    lowered = await rest.patch(f"{runs}/{name}", json={"spec": {"maxSteps": 1}}, headers=editor)
    assert lowered.status_code == 422
    assert "cannot be lowered" in lowered.text
    stopped = await rest.post(f"{runs}/{name}:stop", headers=editor)
    assert stopped.json()["spec"]["stop"] is True

    client.CustomObjectsApi(api).patch_namespaced_custom_object_status(
        "rlrun.dev", "v1alpha1", namespace, "rlruns", name, {"status": {"phase": "Stopped"}}
    )

    async def is_stopped() -> bool:
        found = await rest.get(f"{runs}/{name}", headers=viewer)
        return bool(found.json()["summary"]["phase"] == "Stopped")

    await until(is_stopped)
    line = b'{"step": 1, "time": "t", "progress/step": 1, "reward": 0.5}\n'
    s3_server.store().put_bytes(S3Uri(s3_server.bucket, f"{namespace}/{uid}/metrics/part-0-00000.jsonl"), line)
    deleted = await rest.delete(f"{runs}/{name}", headers=editor)
    assert deleted.status_code == 200, deleted.text

    async def is_gone() -> bool:
        return (await rest.get(f"{runs}/{name}", headers=viewer)).status_code == 404

    await until(is_gone)
    metrics = await rest.get(f"{runs}/{uid}/metrics", headers=viewer)
    assert metrics.json()["steps"] == [1], "metrics outlive their run"


async def test_other_tenants_see_nothing(
    rest: httpx.AsyncClient, api: client.ApiClient, namespace: str, roles: dict[str, str]
) -> None:
    accounts = Accounts(api)
    owner = bearer(accounts.make(namespace, "ann", roles["editor"]))
    other = f"other-{uuid.uuid4().hex[:8]}"
    client.CoreV1Api(api).create_namespace({"metadata": {"name": other}})
    stranger = bearer(accounts.make(other, "eve", roles["editor"]))
    made = await rest.post(f"/namespaces/{namespace}/runs", json=SPEC, headers=owner)
    name = made.json()["name"]
    for path in ("runs", f"runs/{name}", f"runs/{name}/metrics", f"runs/{name}/events", "checkpoints", "secrets"):
        found = await rest.get(f"/namespaces/{namespace}/{path}", headers=stranger)
        assert (found.status_code, found.json()["reason"]) == (404, "NamespaceNotFound"), path
    assert (await rest.get("/runs", headers=stranger)).json()["items"] == []
    assert (await rest.delete(f"/namespaces/{namespace}/runs/{name}", headers=stranger)).status_code == 404
    assert (await rest.get(f"/namespaces/{namespace}/runs/{name}", headers=owner)).status_code == 200
    for token in ("made-up", accounts.token(other, "eve", "rlrun/uid/trainer")):
        assert (await rest.get("/whoami", headers=bearer(token))).status_code == 401


async def test_rollouts_and_comparison_with_the_charts_roles(
    rest: httpx.AsyncClient, api: client.ApiClient, namespace: str, roles: dict[str, str], s3_server: S3Server
) -> None:
    accounts = Accounts(api)
    editor = bearer(accounts.make(namespace, "ann", roles["editor"]))
    viewer = bearer(accounts.make(namespace, "vic", roles["viewer"]))
    other = f"other-{uuid.uuid4().hex[:8]}"
    client.CoreV1Api(api).create_namespace({"metadata": {"name": other}})
    stranger = bearer(accounts.make(other, "eve", roles["editor"]))
    runs = f"/namespaces/{namespace}/runs"
    made = [await rest.post(runs, json={**SPEC, "maxSteps": steps}, headers=editor) for steps in (40, 80)]
    first, second = (answer.json() for answer in made)
    stored = StoredSamples(s3_server.store(), S3Uri(s3_server.bucket, ""), namespace, first["uid"])
    stored.add(3, groups(2, 2))

    paths = ["steps", "steps/3/samples", "steps/3/groups/g1", "steps/3/samples/g1-r0", "steps/3/histogram"]
    for path in [*paths, "examples/reverse/1"]:
        for user in (editor, viewer):
            found = await rest.get(f"{runs}/{first['name']}/{path}", headers=user)
            assert found.status_code == 200, found.text
        hidden = await rest.get(f"{runs}/{first['name']}/{path}", headers=stranger)
        assert (hidden.status_code, hidden.json()["reason"]) == (404, "NamespaceNotFound"), path
    references = {"run": [f"{namespace}/{answer['name']}" for answer in (first, second)]}
    compared = await rest.get("/compare", params=references, headers=viewer)
    assert [(d["path"], d["values"]) for d in compared.json()["differences"]] == [("maxSteps", [40, 80])]
    hidden = await rest.get("/compare", params=references, headers=stranger)
    assert (hidden.status_code, hidden.json()["reason"]) == (404, "NamespaceNotFound")

    # A role of one's own that lists runs and reads no rollouts.
    rbac = client.RbacAuthorizationV1Api(api)
    lister = f"lister-{uuid.uuid4().hex[:6]}"
    rules = [{"apiGroups": ["rlrun.dev"], "resources": ["rlruns"], "verbs": ["get", "list"]}]
    rbac.create_cluster_role({"metadata": {"name": lister}, "rules": rules})
    lists = bearer(accounts.make(namespace, "lis", lister))
    refused = await rest.get(f"{runs}/{first['name']}/steps", headers=lists)
    assert (refused.status_code, refused.json()["reason"]) == (403, "AccessForbidden")
    assert "get rlruns/samples" in refused.json()["detail"]


async def test_secrets_and_events_with_the_callers_token(
    rest: httpx.AsyncClient, api: client.ApiClient, namespace: str, roles: dict[str, str]
) -> None:
    accounts = Accounts(api)
    editor = bearer(accounts.make(namespace, "ann", roles["editor"]))
    secrets = f"/namespaces/{namespace}/secrets"
    for value, status in (("one", 201), ("two", 200)):
        written = await rest.put(f"{secrets}/wandb", json={"data": {"WANDB_API_KEY": value}}, headers=editor)
        assert written.status_code == status, written.text
    stored = client.CoreV1Api(api).read_namespaced_secret("wandb", namespace)
    assert stored.data == {"WANDB_API_KEY": "dHdv"}
    listed = await rest.get(secrets, headers=editor)
    assert [found["name"] for found in listed.json()["items"]] == ["wandb"]
    assert (await rest.delete(f"{secrets}/wandb", headers=editor)).status_code == 200

    made = await rest.post(f"/namespaces/{namespace}/runs", json=SPEC, headers=editor)
    run = made.json()
    event = {
        "metadata": {"name": "event", "namespace": namespace},
        "involvedObject": {"kind": "RLRun", "name": run["name"], "namespace": namespace, "uid": run["uid"]},
        "reason": "AttemptStarted",
        "message": "began",
        "type": "Normal",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    client.CoreV1Api(api).create_namespaced_event(namespace, event)
    events = await rest.get(f"/namespaces/{namespace}/runs/{run['name']}/events", headers=editor)
    assert [(found["reason"], found["message"]) for found in events.json()["items"]] == [("AttemptStarted", "began")]
