"""Pods of a ReplicaSet that the API server refuses, for example because of a quota on pods or GPUs."""

from rlrun.kube.kinds import REPLICA_SET
from rlrun.kube.objects import Obj, attempt_of, true_condition
from rlrun.kube.pods import component_of, role_of
from rlrun.kube.refusals import describe_object, explain_refusal

from rlrun_operator.planning.diagnosis.pod_diagnostics import PodProblem
from rlrun_operator.planning.plan.observation import RunObservation

REPLICA_FAILURE = "ReplicaFailure"
"""Condition of a ReplicaSet whose pods cannot be created, with the API server's message. A Job has none."""


def refused_pods(observation: RunObservation, attempt: int) -> list[PodProblem]:
    """Return the problems of the attempt's ReplicaSets whose pods are refused."""
    replica_sets = [r for r in observation.owned_children(REPLICA_SET.kind) if attempt_of(r) == attempt]
    return [
        PodProblem(
            role_of(r),
            component_of(r),
            explain_refusal(f"The API server refused a pod of {describe_object(r)}", message),
        )
        for r in replica_sets
        if (message := _failure(r)) is not None
    ]


def _failure(replica_set: Obj) -> str | None:
    condition = true_condition(replica_set, REPLICA_FAILURE)
    return None if condition is None else str(condition.get("message") or condition.get("reason") or "no message")
