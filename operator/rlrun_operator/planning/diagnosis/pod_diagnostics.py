"""Diagnosis of pods that are not ready, from their status, with a remedy."""

import json
from dataclasses import dataclass

from pydantic import ValidationError
from rlrun.api.run_status import StartupFailureKind
from rlrun.constants import ExitCode, Reason
from rlrun.kube.conditions import parse_time
from rlrun.kube.objects import Obj
from rlrun.kube.pods import (
    Termination,
    component_of,
    container_image,
    container_statuses,
    is_alive,
    is_leaving,
    is_node_silent,
    is_out_of_disk,
    is_ready,
    memory_limit,
    node_of,
    relevant_pods,
    role_of,
    terminations,
)
from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.problem import Problem

PULL_REASONS = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"})
CREATE_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
OUT_OF_MEMORY = "OOMKilled"
REPLACED_SECONDS = 60.0
"""Time after the end of an evicted pod within which its replacement is created."""

MEMORY_ADVICE = {
    "trainer": "raise trainer.resources.limits.memory in the RLModel, or lower its trainer.microBatchTokens",
    "inference": "raise inference.resources.limits.memory in the RLModel, or configure a smaller engine cache",
    "environment": "choose a larger spec.infrastructure.computeSize",
    "orchestrator": "ask the platform team for larger orchestratorResources, or lower spec.batchSize",
}
STORAGE_ADVICE = {
    "trainer": "raise trainer.resources.limits.ephemeral-storage in the RLModel",
    "inference": "raise inference.resources.limits.ephemeral-storage in the RLModel",
    "environment": "keep fewer temporary files, or choose a larger spec.infrastructure.computeSize",
    "orchestrator": "ask the platform team for a larger ephemeralStorage.orchestrator",
}


@dataclass(frozen=True)
class PodProblem:
    """Reason why a pod is not ready."""

    role: str
    component: str
    problem: Problem
    final: bool = False
    """True if a restart would not help (exit code 64)."""
    startup_failure: StartupFailureKind | None = None
    """Kind of failure if the pod has not started; failurePolicy has the time to wait."""


def parse_final_status(message: str) -> RunStatus | None:
    """Return the RunStatus in an orchestrator's termination message, or None."""
    try:
        return RunStatus.model_validate_json(message)
    except ValidationError:
        return None


def parse_problem(message: str) -> Problem | None:
    """Return the Problem in a termination message, directly or in a RunStatus, or None."""
    try:
        data = json.loads(message)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    inner = data.get("problem") if isinstance(data.get("problem"), dict) else data
    try:
        return Problem.model_validate(inner)
    except ValidationError:
        return None


def explain_eviction(pod: Obj) -> Problem:
    """Return the reason for the eviction of a pod that exceeded its limit of ephemeral storage."""
    role = role_of(pod)
    observed = str(pod["status"]["message"]).strip()
    return Problem(
        reason=f"{role.capitalize()}OutOfDisk",
        message=f"{component_of(pod)}: the pod exceeded its limit of ephemeral storage and was evicted: {observed} To "
        f"fix this, {STORAGE_ADVICE.get(role, 'raise the limit')}.",
    )


def explain_silent_node(pod: Obj) -> Problem:
    """Return the reason for which a pod is not ready although its containers were."""
    return Problem(
        reason=Reason.NODE_UNREACHABLE,
        message=f"{component_of(pod)}: the node {node_of(pod)} of pod {pod['metadata']['name']} does not report to "
        "Kubernetes. The pod is replaced after its eviction, by default 5 minutes after the node's last report. "
        "Repair the node, or remove it with `kubectl delete node`, which replaces its pods at once.",
    )


def explain_termination(pod: Obj, end: Termination) -> Problem:
    """Return the reason for the container's end, from its process or else from Kubernetes."""
    role, component = role_of(pod), component_of(pod)
    title = role.capitalize()
    if is_out_of_disk(pod):
        return explain_eviction(pod)
    data = parse_problem(end.message)
    if data:
        return data
    if end.reason == OUT_OF_MEMORY:
        limit = memory_limit(pod, end.container)
        return Problem(
            reason=f"{title}OutOfMemory",
            message=f"{component}: container {end.container} exceeded its memory limit"
            f"{f' of {limit}' if limit else ''} and was killed. To fix this, "
            f"{MEMORY_ADVICE.get(role, 'raise the limit')}.",
        )
    lines = " | ".join(line.strip() for line in end.message.strip().splitlines()[-3:] if line.strip())
    return Problem(
        reason=f"{title}Crashed",
        message=f"{component}: container {end.container} ended with exit code {end.exit_code}"
        f"{f': {lines}' if lines else ''}. See `kubectl logs {pod['metadata']['name']} -c {end.container} --previous "
        f"-n {pod['metadata'].get('namespace', '')}`.",
    )


def diagnose_pod(pod: Obj) -> PodProblem | None:
    """Return the reason why the pod is not ready, or None if it is ready or only needs time."""
    if is_node_silent(pod):
        return _pod_problem(pod, explain_silent_node(pod))
    if is_leaving(pod) or pod.get("status", {}).get("phase") == "Succeeded" or is_ready(pod):
        return None
    if is_out_of_disk(pod):
        return _pod_problem(pod, explain_eviction(pod))
    ended = terminations(pod)
    final = next((e for e in ended if e.exit_code == ExitCode.CONFIGURATION), None)
    if final:
        return _pod_problem(pod, explain_termination(pod, final), final=True)
    for status in container_statuses(pod):
        waiting = (status.get("state") or {}).get("waiting") or {}
        reason, detail = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        if reason in PULL_REASONS:
            return _pod_problem(
                pod,
                Problem(
                    reason=Reason.IMAGE_PULL_FAILED,
                    message=f"{component_of(pod)}: image {container_image(pod, status['name'])} cannot be "
                    f"pulled ({reason}{': ' + detail if detail else ''}). Correct the image in the RLModel or the "
                    "chart's values, or give the nodes access to its registry.",
                ),
                startup_failure=StartupFailureKind.image_pull,
            )
        if reason in CREATE_REASONS:
            return _pod_problem(
                pod,
                Problem(
                    reason=Reason.CREATE_CONTAINER_CONFIG_ERROR
                    if reason == "CreateContainerConfigError"
                    else Reason.CREATE_FAILED,
                    message=f"{component_of(pod)}: container {status['name']} cannot be created: {detail or reason}. "
                    "Create the missing object, or correct the reference to it.",
                ),
                startup_failure=StartupFailureKind.config_error,
            )
    if ended:
        return _pod_problem(pod, explain_termination(pod, max(ended, key=lambda e: str(e.finished_at or ""))))
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return _pod_problem(
                pod,
                Problem(
                    reason=Reason.UNSCHEDULABLE,
                    message=f"{component_of(pod)}: no node has enough free resources: "
                    f"{condition.get('message', '')} Free or add nodes, or lower the requests of the RLModel (or "
                    "computeSize).",
                ),
                startup_failure=StartupFailureKind.unschedulable,
            )
    return None


def pod_problems(pods: list[Obj]) -> list[PodProblem]:
    """Return the problems of the relevant pods, and the evictions of pods whose replacements are starting."""
    diagnosed = [problem for problem in map(diagnose_pod, _without_replaced(relevant_pods(pods))) if problem]
    explained = {problem.component for problem in diagnosed}
    starting = [p for p in pods if is_alive(p) and not is_leaving(p) and not is_ready(p)]
    evicted = [
        p
        for p in relevant_pods([p for p in pods if is_out_of_disk(p)])
        if component_of(p) not in explained and any(_replaces(new, p) for new in starting)
    ]
    return [*diagnosed, *(_pod_problem(p, explain_eviction(p)) for p in evicted)]


def _without_replaced(pods: list[Obj]) -> list[Obj]:
    """Return the pods without those that are being deleted while another pod of their component is not."""
    staying = {component_of(p) for p in pods if not is_leaving(p)}
    return [p for p in pods if not is_leaving(p) or component_of(p) not in staying]


def _replaces(pod: Obj, evicted: Obj) -> bool:
    """True if a ReplicaSet or Job created the pod for the evicted one: at once, and of the same component."""
    created = parse_time(pod["metadata"].get("creationTimestamp"))
    ended = max((end.finished_at for end in terminations(evicted) if end.finished_at), default=None)
    if created is None or ended is None or component_of(pod) != component_of(evicted):
        return False
    return abs((created - ended).total_seconds()) <= REPLACED_SECONDS


def _pod_problem(
    pod: Obj, problem: Problem, final: bool = False, startup_failure: StartupFailureKind | None = None
) -> PodProblem:
    return PodProblem(role_of(pod), component_of(pod), problem, final, startup_failure)
