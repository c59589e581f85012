"""The status of an RLModel: valid or not, and the runs that use it."""

from typing import Any

import pytest
from rlrun.kube.errors import ApiError
from rlrun_operator.controller.models.model_status import uses_model, write_model_statuses
from rlrun_operator.operator_process import Operator

from tests.support.clocks import START, Clock
from tests.support.cluster_objects import model_object, run_object
from tests.support.expectations import lacks
from tests.support.fake_cluster import FakeCluster
from tests.support.informer_feed import InformerFeed
from tests.support.operator_world import SETTINGS

Obj = dict[str, Any]


def run_in(phase: str | None, name: str = "reverse", model: str = "tiny/model") -> Obj:
    return {**run_object(name, model=model), "status": {"phase": phase} if phase else {}}


def model(**spec: Any) -> Obj:
    found = model_object(**spec)
    found["metadata"]["generation"] = 3
    return found


def status(cluster: FakeCluster, name: str = "tiny-model") -> Obj:
    found = cluster.held("RLModel", name, "")
    return dict(found["status"])


@pytest.mark.parametrize("phase", [None, "Queued", "Pending", "Running"])
def test_a_run_that_has_or_gets_pods_uses_its_model(phase: str | None) -> None:
    assert uses_model(run_in(phase))


@pytest.mark.parametrize("phase", ["Completed", "Failed", "Stopped", "Suspended"])
def test_a_run_without_work_uses_no_model(phase: str) -> None:
    assert not uses_model(run_in(phase))


def test_a_run_that_is_being_deleted_uses_no_model() -> None:
    run = run_in("Running")
    run["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not uses_model(run)


async def test_runs_are_counted_by_model() -> None:
    cluster = FakeCluster(model(), model_object("other/model"))
    runs = [run_in("Running", "a"), run_in(None, "b"), run_in("Failed", "c"), run_in("Running", "d", "no/such")]
    await write_model_statuses(cluster.kube, Clock()(), runs)
    assert (status(cluster)["runs"], status(cluster)["observedGeneration"]) == (2, 3)
    assert status(cluster, "other-model")["runs"] == 0
    (condition,) = status(cluster)["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Validated", "True", "Valid")


async def test_an_invalid_entry_says_which_field_is_wrong() -> None:
    cluster = FakeCluster(model(seqLen="long"))
    await write_model_statuses(cluster.kube, Clock()(), [])
    (condition,) = status(cluster)["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "ModelInvalid")
    assert "seqLen" in condition["message"]


def credential(value: str = "hf_0123", **more: Any) -> Obj:
    return {"trainer": {"env": [{"name": "HF_TOKEN", "value": value, **more}]}}


async def test_a_credential_in_clear_text_is_a_warning_that_does_not_repeat_it() -> None:
    cluster, clock = FakeCluster(model(**credential())), Clock()
    await write_model_statuses(cluster.kube, clock(), [])
    validated, warning = status(cluster)["conditions"]
    assert (validated["type"], validated["status"]) == ("Validated", "True"), "runs can use the model"
    assert (warning["type"], warning["status"], warning["reason"]) == ("Warnings", "True", "CredentialInClearText")
    assert not lacks(warning["message"], "`spec.trainer.env[HF_TOKEN]`", "valueFrom")
    assert "hf_0123" not in str(status(cluster))


async def test_the_warning_ends_when_the_credential_is_in_a_secret() -> None:
    cluster, clock = FakeCluster(model(**credential())), Clock()
    await write_model_statuses(cluster.kube, clock(), [])
    before, name = status(cluster), "tiny-model"
    source = {"valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    for spec, expected in (
        ({**credential(), "seqLen": "long"}, ("True", "CredentialInClearText")),
        (credential("", **source), ("False", "NoWarnings")),
    ):
        cluster.put({**model(**spec), "status": status(cluster, name)})
        clock.advance(120)
        await write_model_statuses(cluster.kube, clock(), [])
        warning = status(cluster)["conditions"][1]
        assert (warning["status"], warning["reason"]) == expected
    assert warning["lastTransitionTime"] != before["conditions"][1]["lastTransitionTime"]


async def test_a_status_is_written_only_when_it_changes() -> None:
    cluster, clock = FakeCluster(model()), Clock()
    await write_model_statuses(cluster.kube, clock(), [run_in("Running")])
    before = cluster.writes
    clock.advance(120)
    await write_model_statuses(cluster.kube, clock(), [run_in("Running")])
    assert cluster.writes == before
    await write_model_statuses(cluster.kube, clock(), [])
    assert cluster.writes == before + 1
    assert status(cluster)["conditions"][0]["lastTransitionTime"] == START.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("watched", [[], ["team"], ["team", "else"]])
async def test_the_resync_counts_the_runs_of_all_namespaces(watched: list[str]) -> None:
    other = run_object("other", "else", "uid-2")
    cluster = FakeCluster(model(), run_in("Running"), other)
    operator = Operator(SETTINGS.model_copy(update={"watch_namespaces": watched}))
    await operator._write_models(cluster.kube, InformerFeed(cluster).informers)
    assert status(cluster)["runs"] == 2


async def test_a_refused_status_does_not_stop_the_resync(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(model())

    async def refuse(*_: object) -> Obj:
        raise ApiError(403, "Forbidden", "no")

    monkeypatch.setattr(cluster, "apply_status", refuse)
    await write_model_statuses(cluster.kube, Clock()(), [run_in("Running")])


async def test_a_refused_status_does_not_stop_those_of_other_models() -> None:
    cluster = FakeCluster(model(), model_object("zoo/other"))
    cluster.answers["apply the status of RLModel tiny-model"] = [ApiError(422, "Invalid", "no")]
    await write_model_statuses(cluster.kube, Clock()(), [])
    assert "status" not in (cluster.find("RLModel", "tiny-model", "") or {})
    assert status(cluster, "zoo-other")["runs"] == 0
