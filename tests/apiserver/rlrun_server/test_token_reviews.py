"""Tokens of pods, reviewed by a real API server."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import AsyncApiTransport
from rlrun.kube.connection.api_configuration import load_configuration
from rlrun.protocol.storage_access import StorageGrant, StorageRole
from rlrun_server.authentication.token_reviews import TokenReviews

from local_cluster.control_plane.without_nodes import ControlPlane

GRANT = StorageGrant(namespace="", owner="uid-1", role=StorageRole.trainer)


@pytest.fixture
async def reviews(control_plane: ControlPlane) -> AsyncIterator[TokenReviews]:
    cluster = AsyncKubeClient(AsyncApiTransport(await load_configuration(str(Path(control_plane.kubeconfig)))))
    # Between two reviews an hour passes, so that none comes from the cache of this class.
    yield TokenReviews(cluster.create, itertools.count(0.0, 3600.0).__next__)
    await cluster.close()


def pod_of(core: client.CoreV1Api, namespace: str, name: str) -> Any:
    core.create_namespaced_service_account(namespace, {"metadata": {"name": name}})
    container = {"name": "c", "image": "none"}
    spec = {"serviceAccountName": name, "automountServiceAccountToken": False, "containers": [container]}
    return core.create_namespaced_pod(namespace, {"metadata": {"name": name}, "spec": spec})


def token_for(core: client.CoreV1Api, namespace: str, pod: Any, audience: str) -> str:
    """The token that the kubelet asks for and mounts."""
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.metadata.name, "uid": pod.metadata.uid}
    request = {"spec": {"audiences": [audience], "expirationSeconds": 3600, "boundObjectRef": bound}}
    account = pod.spec.service_account_name
    return str(core.create_namespaced_service_account_token(account, namespace, request).status.token)


async def ended(reviews: TokenReviews, token: str) -> None:
    """Wait until the token is refused. The API server reads pods and accounts from a cache, which follows later."""
    async with asyncio.timeout(30):
        while (await reviews.review(token, GRANT.audience)).is_accepted:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_only_tokens_of_the_role_are_accepted(
    reviews: TokenReviews, api: client.ApiClient, namespace: str
) -> None:
    core = client.CoreV1Api(api)
    pod = pod_of(core, namespace, "reverse")
    token = token_for(core, namespace, pod, GRANT.audience)
    found = await reviews.review(token, GRANT.audience)
    assert (found.namespace, found.account, found.pod) == (namespace, "reverse", "reverse")
    other_role = GRANT.model_copy(update={"role": StorageRole.orchestrator}).audience
    other_run = GRANT.model_copy(update={"owner": "uid-2"}).audience
    for audience in (other_role, other_run, "https://kubernetes.default.svc"):
        assert not (await reviews.review(token, audience)).is_accepted, audience
    own = core.create_namespaced_service_account_token("reverse", namespace, {"spec": {}}).status.token
    assert not (await reviews.review(own, GRANT.audience)).is_accepted, "a token for the Kubernetes API"
    assert not (await reviews.review(f"{token}x", GRANT.audience)).is_accepted
    assert not (await reviews.review("nonsense", GRANT.audience)).is_accepted


async def test_the_token_of_a_pod_ends_with_it(reviews: TokenReviews, api: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(api)
    pod = pod_of(core, namespace, "reverse")
    token = token_for(core, namespace, pod, GRANT.audience)
    core.delete_namespaced_pod("reverse", namespace, grace_period_seconds=0)
    await ended(reviews, token)


async def test_the_token_of_a_pod_ends_with_its_service_account(
    reviews: TokenReviews, api: client.ApiClient, namespace: str
) -> None:
    """So a pool keeps its ServiceAccount until its trainer has saved the last checkpoints."""
    core = client.CoreV1Api(api)
    token = token_for(core, namespace, pod_of(core, namespace, "reverse"), GRANT.audience)
    core.delete_namespaced_service_account("reverse", namespace)
    await ended(reviews, token)
