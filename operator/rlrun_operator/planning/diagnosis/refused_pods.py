"""Pods of a Deployment that the API server refuses, for example because of a quota on pods or GPUs."""

from rlrun.kube.objects import Obj, attempt_of
from rlrun.kube.pods import component_of, role_of
from rlrun.kube.refusals import describe_object, explain_refusal

from rlrun_operator.planning.diagnosis.pod_diagnostics import PodProblem
from rlrun_operator.planning.plan.observation import RunObservation

REPLICA_FAILURE = "ReplicaFailure"
"""Condition of a Deployment whose pods cannot be created, with the API server's message. A Job has none."""


def refused_pods(observation: RunObservation, attempt: int) -> list[PodProblem]:
    """Return the problems of the attempt's Deployments whose pods are refused."""
    deployments = [d for d in observation.owned_children("Deployment") if attempt_of(d) == attempt]
    return [
        PodProblem(
            role_of(d),
            component_of(d),
            explain_refusal(f"The API server refused a pod of {describe_object(d)}", message),
        )
        for d in deployments
        if (message := _failure(d)) is not None
    ]


def _failure(deployment: Obj) -> str | None:
    conditions = deployment.get("status", {}).get("conditions") or []
    found = next((c for c in conditions if c["type"] == REPLICA_FAILURE and c.get("status") == "True"), None)
    return None if found is None else str(found.get("message") or found.get("reason") or "no message")
