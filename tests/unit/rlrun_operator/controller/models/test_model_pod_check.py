"""The condition PodTemplateValid of an RLModel, and the requests that it costs."""

from typing import Any

import pytest
from rlrun.api.model import RLModelSpec
from rlrun.kube.errors import ApiError
from rlrun_operator.controller.models.model_pod_check import ModelPodCheck, model_pods
from rlrun_operator.controller.models.model_status import write_model_statuses

from tests.support.clocks import Clock
from tests.support.cluster_objects import model_object
from tests.support.expectations import present
from tests.support.fake_cluster import FakeCluster
from tests.support.operator_world import SETTINGS

Obj = dict[str, Any]
TRAINER = f"create Pod {SETTINGS.lease_namespace}/trainer-check"
ENGINE = f"create Pod {SETTINGS.lease_namespace}/inference-check"


class Setup:
    """A cluster with one model, and what writes its status."""

    def __init__(self, **spec: Any) -> None:
        self.cluster = FakeCluster(self.model(1, **spec))
        self.pods = ModelPodCheck(SETTINGS)

    @staticmethod
    def model(generation: int, **spec: Any) -> Obj:
        found = model_object(**spec)
        found["metadata"]["generation"] = generation
        return found

    def change(self, generation: int, **spec: Any) -> None:
        self.cluster.put({**self.model(generation, **spec), "status": self.status})

    @property
    def status(self) -> Obj:
        found = self.cluster.find("RLModel", "tiny-model", "") or {}
        return dict(found["status"])

    async def condition(self) -> tuple[str, str, str] | None:
        await write_model_statuses(self.cluster.kube, Clock()(), [], pods=self.pods)
        found = [c for c in self.status["conditions"] if c["type"] == "PodTemplateValid"]
        return next(((c["status"], c["reason"], c.get("message", "")) for c in found), None)

    @property
    def asked(self) -> list[str]:
        return [call for call in self.cluster.calls if call.startswith("create Pod")]


async def test_pods_are_asked_about_once_for_each_generation_and_never_created() -> None:
    setup = Setup()
    for _ in range(3):
        assert await setup.condition() == ("True", "Valid", "")
    assert setup.asked == [TRAINER, ENGINE]
    assert not setup.cluster.all("Pod")
    (request, _) = [r for r in setup.cluster.requests if r.kind.kind == "Pod"]
    assert request.parameters.items() >= {"dryRun": "All", "fieldValidation": "Strict"}.items()
    setup.change(2, seqLen=512)
    assert await setup.condition() == ("True", "Valid", "")
    assert setup.asked == [TRAINER, ENGINE] * 2


async def test_the_pod_has_the_patch_of_its_role() -> None:
    setup = Setup(inference={"gpus": 0, "podTemplate": {"spec": {"priority": 7}}})
    await setup.condition()
    pods = [r.body or {} for r in setup.cluster.requests if r.kind.kind == "Pod"]
    priorities = {pod["metadata"]["name"]: pod["spec"].get("priority") for pod in pods}
    assert priorities == {"trainer-check": None, "inference-check": 7}


async def test_a_refused_pod_is_asked_about_again_until_it_is_taken() -> None:
    setup = Setup()
    missing = ApiError(403, "Forbidden", 'pods "inference-check" is forbidden: RuntimeClass "nvidia" not found')
    setup.cluster.answers[ENGINE] = [missing, missing, {}]
    for _ in range(2):
        found = present(await setup.condition())
        assert found[:2] == ("False", "ObjectRefused")
        assert 'refuses the pods of `spec.inference`: pods "inference-check" is forbidden: RuntimeClass' in found[2]
    assert await setup.condition() == ("True", "Valid", "")
    assert await setup.condition() == ("True", "Valid", "")
    assert setup.asked == [TRAINER, ENGINE] * 3


@pytest.mark.parametrize(
    "error",
    [
        ApiError(503, "ServiceUnavailable", "later"),
        ApiError(403, "Forbidden", "exceeded quota: small"),
        ApiError(403, "Forbidden", 'User "x" cannot create resource "pods" in API group ""'),
        ApiError(400, "BadRequest", "admission webhook does not support dry run"),
    ],
)
async def test_what_says_nothing_about_the_pod_is_unknown(error: ApiError) -> None:
    setup = Setup()
    setup.cluster.answers[TRAINER] = [error]
    found = present(await setup.condition())
    assert found[:2] == ("Unknown", "ApiServerUnavailable")
    assert error.message in found[2]


@pytest.mark.parametrize(
    "message",
    [
        "maximum memory usage per Container is 4Gi, but limit is 32Gi",
        "minimum cpu usage per Pod is 100m, but request is 10m",
        "memory max limit to request ratio per Container is 2, but provided ratio is 4.000000",
        'pods "trainer-check" is forbidden: violates PodSecurity "restricted:latest": restricted volume types',
    ],
)
async def test_what_the_operators_namespace_refuses_is_unknown(message: str) -> None:
    setup = Setup()
    setup.cluster.answers[TRAINER] = [ApiError(403, "Forbidden", message)]
    found = present(await setup.condition())
    assert found[:2] == ("Unknown", "ObjectRefused")
    assert "the operator's namespace" in found[2]
    assert message in found[2]


async def test_an_invalid_model_has_no_such_condition() -> None:
    setup = Setup()
    assert await setup.condition()
    setup.change(2, trainer={"podTemplate": {"spec": {"hostNetwork": True}}})
    assert await setup.condition() is None
    (validated,) = setup.status["conditions"]
    assert (validated["status"], validated["reason"]) == ("False", "ModelInvalid")
    assert "spec.hostNetwork: reserved for the operator" in validated["message"]
    assert setup.asked == [TRAINER, ENGINE]


async def test_a_patch_that_cannot_be_merged_makes_its_model_invalid() -> None:
    setup = Setup(trainer={"podTemplate": {"spec": {"volumes": [{"emptyDir": {}}]}}})
    assert await setup.condition() is None
    (validated,) = setup.status["conditions"]
    assert (validated["status"], validated["reason"]) == ("False", "ModelInvalid")
    assert "spec.volumes[0].name" in validated["message"]


async def test_an_error_of_the_operator_is_told_and_the_other_models_are_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any, model: RLModelSpec) -> list[Obj]:
        if model.id == "tiny/model":
            raise KeyError("name")
        return model_pods(SETTINGS, model)

    setup = Setup()
    setup.cluster.put(model_object("zoo/other"))
    monkeypatch.setattr("rlrun_operator.controller.models.model_pod_check.model_pods", fail)
    found = present(await setup.condition())
    assert found[:2] == ("False", "InternalError")
    assert "KeyError: 'name'" in found[2]
    assert "The pods of RLModel tiny-model could not be built" in caplog.text
    other = setup.cluster.held("RLModel", "zoo-other", "")
    assert [c["status"] for c in other["status"]["conditions"]] == ["True", "True"]
