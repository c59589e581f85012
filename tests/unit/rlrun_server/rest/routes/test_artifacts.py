"""Lists of checkpoints and adapters, and one of them."""

from typing import Any

import pytest
from rlrun.kube.objects import Obj
from rlrun_server.rest.routes.artifacts import ArtifactDetail, ArtifactList

from tests.support.rest_api import CREATED, RestApi, rest_api, uid_of

RIGHTS = [f"{verb} {kind} in team" for verb in ("get", "list") for kind in ("rlcheckpoints", "rladapters")]


def artifact(kind: str, run: str, step: int, phase: str = "Ready", namespace: str = "team", **spec: Any) -> Obj:
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": kind,
        "metadata": {
            "name": f"{run}-step-{step}",
            "namespace": namespace,
            "uid": uid_of(step),
            "resourceVersion": str(step),
            "creationTimestamp": CREATED.format(step),
        },
        "spec": {"runName": run, "runUid": f"uid-of-{run}", "model": "m", "step": step, "uri": "s3://b/k", **spec},
        "status": {"phase": phase, "reward": 0.5},
    }


@pytest.fixture
def api() -> RestApi:
    found = rest_api()
    for kind in ("RLCheckpoint", "RLAdapter"):
        found.add(
            artifact(kind, "first", 1),
            artifact(kind, "first", 2, "Uploading"),
            artifact(kind, "second", 3, model="other"),
            artifact(kind, "first", 4, namespace="secret"),
        )
    return found


@pytest.mark.parametrize("kind", ["checkpoints", "adapters"])
@pytest.mark.parametrize(
    ("query", "steps"),
    [
        ({}, [3, 2, 1]),
        ({"run": "first"}, [2, 1]),
        ({"run": "uid-of-second"}, [3]),
        ({"phase": "Ready"}, [3, 1]),
        ({"model": "other"}, [3]),
        ({"limit": 1}, [3]),
    ],
)
async def test_filters(api: RestApi, kind: str, query: dict[str, Any], steps: list[int]) -> None:
    answer = await api.client.get(f"/namespaces/team/{kind}", params=query, headers=api.user("ann", *RIGHTS))
    found = ArtifactList.model_validate(answer.json())
    assert [item.step for item in found.items] == steps
    assert (found.items[0].deployed is None) == (kind == "checkpoints")


@pytest.mark.parametrize("kind", ["checkpoints", "adapters"])
async def test_one(api: RestApi, kind: str) -> None:
    user = api.user("ann", *RIGHTS)
    answer = await api.client.get(f"/namespaces/team/{kind}/first-step-1", headers=user)
    found = ArtifactDetail.model_validate(answer.json())
    assert (found.summary.step, found.spec["uri"], found.status["phase"]) == (1, "s3://b/k", "Ready")
    for name in ("first-step-4", "nothing"):
        missing = await api.client.get(f"/namespaces/team/{kind}/{name}", headers=user)
        assert (missing.status_code, missing.json()["reason"]) == (404, "ObjectNotFound")


@pytest.mark.parametrize("kind", ["checkpoints", "adapters"])
async def test_before_all_artifacts_are_listed_there_is_no_answer(api: RestApi, kind: str) -> None:
    getattr(api.services.objects, kind)._synced.clear()
    for path in (kind, f"{kind}/first-step-1"):
        answer = await api.client.get(f"/namespaces/team/{path}", headers=api.user("ann", *RIGHTS))
        assert (answer.status_code, answer.json()["reason"]) == (503, "ServerNotReady"), path
