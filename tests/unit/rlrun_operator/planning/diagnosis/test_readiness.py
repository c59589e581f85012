"""Readiness of the roles, and the role that a problem is about."""

import pytest
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.diagnosis.readiness import blamed_role, readiness_conditions

from tests.support.cluster_objects import pod


@pytest.mark.parametrize(
    ("reason", "role"),
    [
        ("WaitingForTrainer", "trainer"),
        ("WaitingForInference", "inference"),
        ("EnvironmentPackageMissing", "environment"),
        ("S3AccessDenied", "orchestrator"),
    ],
)
def test_problem_names_the_role_it_is_about(reason: str, role: str) -> None:
    assert blamed_role(Problem(reason=reason, message="")) == role


def test_readiness_conditions_name_the_missing_pods() -> None:
    wanted = {"inference": {"inference": 3}, "environment": {"env-0": 1, "env-1": 1}}
    pods = [pod("inference", uid="a", ready=True), pod("environment", "env-1", ready=True)]
    messages = {c.type: c.message for c in readiness_conditions(wanted, pods, [], None)}
    assert "inference (2)" in messages["InferenceReady"]
    assert messages["EnvironmentsReady"].endswith("env-0")
