"""What a pod's status says is wrong with it, in words that name the next step."""

import json
from dataclasses import dataclass

from pydantic import ValidationError
from rlrun.api.run_status import StartupFailureKind
from rlrun.constants import ExitCode, Reason
from rlrun.kube.objects import Obj
from rlrun.kube.pods import (
    Termination,
    component_of,
    container_image,
    container_statuses,
    is_leaving,
    is_ready,
    memory_limit,
    relevant_pods,
    role_of,
    terminations,
)
from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.problem import Problem

PULL_REASONS = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"})
CREATE_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
OUT_OF_MEMORY = "OOMKilled"

MEMORY_ADVICE = {
    "trainer": "raise trainer.resources.limits.memory in the RLModel, or lower its trainer.microBatchTokens",
    "inference": "raise inference.resources.limits.memory in the RLModel, or pass it a smaller engine cache",
    "environment": "choose a larger spec.infrastructure.computeSize",
    "orchestrator": "ask the platform team for larger orchestratorResources, or lower spec.batchSize",
}


@dataclass(frozen=True)
class PodProblem:
    """Why a pod is not ready."""

    role: str
    component: str
    problem: Problem
    final: bool = False
    """No restart can mend it (exit code 64)."""
    obstacle: StartupFailureKind | None = None
    """Set where the pod has not even started: failurePolicy says how long to wait."""


def parse_final_status(message: str) -> RunStatus | None:
    """The RunStatus in an orchestrator's termination message."""
    try:
        return RunStatus.model_validate_json(message)
    except ValidationError:
        return None


def parse_problem(message: str) -> Problem | None:
    """The Problem in a termination message: one itself, or a RunStatus that carries one."""
    try:
        told = json.loads(message)
    except ValueError:
        return None
    if not isinstance(told, dict):
        return None
    inner = told.get("problem") if isinstance(told.get("problem"), dict) else told
    try:
        return Problem.model_validate(inner)
    except ValidationError:
        return None


def explain_termination(pod: Obj, end: Termination) -> Problem:
    """Why the container ended, as the process itself said, or as far as Kubernetes knows."""
    role, component = role_of(pod), component_of(pod)
    title = role.capitalize()
    told = parse_problem(end.message)
    if told:
        return told
    if end.reason == OUT_OF_MEMORY:
        limit = memory_limit(pod, end.container)
        return Problem(
            reason=f"{title}OutOfMemory",
            message=f"{component}: container {end.container} was killed because it needed more memory than its limit"
            f"{f' of {limit}' if limit else ''}: {MEMORY_ADVICE.get(role, 'give it more memory')}.",
        )
    lines = " | ".join(line.strip() for line in end.message.strip().splitlines()[-3:] if line.strip())
    return Problem(
        reason=f"{title}Crashed",
        message=f"{component}: container {end.container} ended with exit code {end.exit_code}"
        f"{f': {lines}' if lines else ''}. See `kubectl logs {pod['metadata']['name']} -c {end.container} --previous "
        f"-n {pod['metadata'].get('namespace', '')}`.",
    )


def diagnose_pod(pod: Obj) -> PodProblem | None:
    """What keeps the pod from being ready, if anything does but time."""
    if is_leaving(pod) or pod.get("status", {}).get("phase") == "Succeeded" or is_ready(pod):
        return None
    ended = terminations(pod)
    final = next((e for e in ended if e.exit_code == ExitCode.CONFIGURATION), None)
    if final:
        return _trouble(pod, explain_termination(pod, final), final=True)
    for status in container_statuses(pod):
        waiting = (status.get("state") or {}).get("waiting") or {}
        reason, detail = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        if reason in PULL_REASONS:
            return _trouble(
                pod,
                Problem(
                    reason=Reason.IMAGE_PULL_FAILED,
                    message=f"{component_of(pod)}: image {container_image(pod, status['name'])} cannot be "
                    f"pulled ({reason}{': ' + detail if detail else ''}): correct the image in the RLModel or the "
                    "chart's values, or give the nodes access to its registry.",
                ),
                obstacle=StartupFailureKind.image_pull,
            )
        if reason in CREATE_REASONS:
            return _trouble(
                pod,
                Problem(
                    reason=Reason.CREATE_CONTAINER_CONFIG_ERROR
                    if reason == "CreateContainerConfigError"
                    else Reason.CREATE_FAILED,
                    message=f"{component_of(pod)}: container {status['name']} cannot be made: {detail or reason}. "
                    "Create what is missing, or correct the reference to it.",
                ),
                obstacle=StartupFailureKind.config_error,
            )
    if ended:
        return _trouble(pod, explain_termination(pod, max(ended, key=lambda e: str(e.finished_at or ""))))
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return _trouble(
                pod,
                Problem(
                    reason=Reason.UNSCHEDULABLE,
                    message=f"{component_of(pod)}: no node can take it: {condition.get('message', '')} Free or add "
                    "nodes, or lower what the RLModel (or computeSize) asks for.",
                ),
                obstacle=StartupFailureKind.unschedulable,
            )
    return None


def pod_troubles(pods: list[Obj]) -> list[PodProblem]:
    """Return what keeps the pods that matter now from being ready."""
    return [found for found in map(diagnose_pod, relevant_pods(pods)) if found is not None]


def _trouble(pod: Obj, problem: Problem, final: bool = False, obstacle: StartupFailureKind | None = None) -> PodProblem:
    return PodProblem(role_of(pod), component_of(pod), problem, final, obstacle)
