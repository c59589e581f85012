"""Determines the deployment state of one adapter from its object, its pool's pods and their sidecars' reports."""

from collections.abc import Iterable
from dataclasses import dataclass

from rlrun.api.adapter import DeploymentState
from rlrun.constants import ConditionType, Reason
from rlrun.kube.objects import Obj, is_artifact_ready
from rlrun.kube.pods import Pod, is_leaving
from rlrun.protocol.problem import Problem
from rlrun.protocol.serving import AdapterReport, LoadState, served_name

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.pod_problems import pod_problems, refused_replicas
from rlrun_operator.resources.platform import is_in_own_folder
from rlrun_operator.serving.observation import PoolObservation

ACCEPTED = frozenset({DeploymentState.deploying, DeploymentState.deployed})
WAIT_REASONS = frozenset(
    {
        Reason.UNSCHEDULABLE,
        Reason.NODE_UNREACHABLE,
        Reason.POD_REJECTED,
        Reason.POD_EVICTED,
        Reason.CONTAINER_LOST,
        Reason.READINESS_GATE_CLOSED,
        Reason.WEIGHTS_DOWNLOADING,
        Reason.STARTING,
    }
)
"""Reasons of problems that may end without any action."""


@dataclass(frozen=True)
class DeploymentAssessment:
    """Assessed state of a deployment, with a message for users."""

    state: DeploymentState
    message: str | None = None


def is_wanted(adapter: Obj) -> bool:
    """Return whether the adapter should be served."""
    return bool(adapter["spec"].get("deployed")) and not is_leaving(adapter)


def state_of(adapter: Obj) -> DeploymentState:
    """Return the deployment state in the object's status, or NotDeployed if it is missing or invalid."""
    try:
        return DeploymentState(adapter.get("status", {}).get("deploymentState") or DeploymentState.not_deployed)
    except ValueError:
        return DeploymentState.not_deployed


def artifact_problem(adapter: Obj, settings: OperatorSettings) -> Problem | None:
    """Return why the adapter cannot be deployed, or None if it can. The files of an adapter that its pool has already
    accepted are not checked, because the pool has its own copy.
    """
    if not is_in_own_folder(adapter, settings):
        return Problem(
            reason=Reason.ARTIFACT_NOT_OWNED,
            message=f"The adapter has the URI {adapter['spec']['uri']}, which is not in the folder of its run. Deploy "
            "an adapter that the operator has created.",
        )
    if is_artifact_ready(adapter) or state_of(adapter) in ACCEPTED:
        return None
    status = adapter.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition["type"] == ConditionType.VERIFIED:
            return Problem(reason=condition["reason"], message=f"{condition['message']} Set `spec.deployed` to false.")
    reason = f" ({status['message']})" if status.get("message") else ""
    return Problem(
        reason=Reason.ADAPTER_NOT_READY,
        message=(
            f"The adapter is {status.get('phase') or 'Pending'}, not Ready{reason}. Wait for its upload, or set "
            f"`spec.deployed` to false and deploy another adapter."
        ),
    )


def running_pods(pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods that are not finished and not being deleted."""
    return [p for p in pods if p.is_alive and not p.is_leaving]


def assess_wanted(adapter: Obj, pool: PoolObservation) -> DeploymentAssessment:
    """Assess an adapter that its pool should serve."""
    name = served_name(pool.key.model, adapter["metadata"]["name"])
    pods = running_pods(pool.pods)
    ready = [p for p in pods if p.is_ready]
    for pod in pods:
        report = report_of(pool, pod, name)
        if report is not None and report.state is LoadState.failed and report.problem is not None:
            return deploy_failed(report.problem)
    answers = [state for pod in ready if (state := _answer(pool, pod, name)) is not None]
    if answers and all(state is LoadState.loaded for state in answers):
        return DeploymentAssessment(DeploymentState.deployed)
    if ready and not answers and state_of(adapter) is DeploymentState.deployed:
        # No sidecar responded, so the state of the engines is unknown.
        return DeploymentAssessment(DeploymentState.deployed)
    if ready:
        return DeploymentAssessment(DeploymentState.deploying, "The engines are loading the adapter. No action needed.")
    problems = [*refused_replicas(pool.children), *(found.problem for found in pod_problems(list(pool.pods)))]
    for problem in problems:
        if problem.reason not in WAIT_REASONS:
            return deploy_failed(problem)
    if deadline := _deadline_problem(pool):
        return deploy_failed(deadline)
    if problems:
        return assess_problem(problems[0])
    return DeploymentAssessment(
        DeploymentState.deploying, "Waiting for an engine of the pool to become ready. No action needed."
    )


def assess_unwanted(adapter: Obj, pool: PoolObservation) -> DeploymentAssessment:
    """Assess an adapter that its pool should not serve."""
    if state_of(adapter) is DeploymentState.not_deployed:
        return DeploymentAssessment(DeploymentState.not_deployed)
    name = served_name(pool.key.model, adapter["metadata"]["name"])
    unloading = False
    for pod in running_pods(pool.pods):
        if pod.name not in pool.reports:
            unloading = unloading or pod.is_ready
            continue
        report = report_of(pool, pod, name)
        if report is not None and report.state is LoadState.unloading and report.problem is not None:
            problem = report.problem
            return DeploymentAssessment(
                DeploymentState.unload_failed,
                f"{problem.reason}: {problem.message.rstrip('.')}. The pool retries the unload. To force it, delete "
                f"pod {pod.name}.",
            )
        unloading = unloading or report is not None
    return DeploymentAssessment(DeploymentState.unloading if unloading else DeploymentState.not_deployed)


def report_of(pool: PoolObservation, pod: Pod, name: str) -> AdapterReport | None:
    """Return the report of the pod's sidecar on the adapter with this model name, or None."""
    report = pool.reports.get(pod.name)
    return next((a for a in report.adapters if a.name == name), None) if report else None


def assess_problem(problem: Problem) -> DeploymentAssessment:
    """Return the state of a deployment that `problem` blocks: Deploying if waiting suffices, otherwise DeployFailed."""
    if problem.reason not in WAIT_REASONS:
        return deploy_failed(problem)
    return DeploymentAssessment(DeploymentState.deploying, f"{problem.reason}: {problem.message}")


def deploy_failed(problem: Problem) -> DeploymentAssessment:
    """Return state DeployFailed with the problem as its message."""
    return DeploymentAssessment(DeploymentState.deploy_failed, f"{problem.reason}: {problem.message}")


def _answer(pool: PoolObservation, pod: Pod, name: str) -> LoadState | None:
    """Return the adapter's state on the pod, or None if there is no report. An adapter missing in it is loading."""
    if pod.name not in pool.reports:
        return None
    report = report_of(pool, pod, name)
    return report.state if report is not None else LoadState.loading


def _deadline_problem(pool: PoolObservation) -> Problem | None:
    for child in pool.children:
        for condition in child.get("status", {}).get("conditions") or [] if child["kind"] == "Deployment" else []:
            if condition["type"] == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
                return Problem(
                    reason=Reason.POOL_NOT_READY,
                    message="No engine became ready in time. Find the cause with `kubectl describe deployment "
                    f"{child['metadata']['name']} -n {pool.key.namespace}` and in the logs of its pods.",
                )
    return None
