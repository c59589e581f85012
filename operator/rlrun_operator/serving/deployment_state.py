"""Where the deployment of one adapter stands, judged from its object, its pool's pods and what their sidecars say."""

from dataclasses import dataclass

from rlrun.api.adapter import DeploymentState
from rlrun.constants import Reason
from rlrun.kube.objects import Obj
from rlrun.kube.objects import is_artifact_ready as is_artifact_ready
from rlrun.kube.pods import is_alive, is_leaving, is_ready, relevant_pods
from rlrun.protocol.problem import Problem
from rlrun.protocol.serving import AdapterReport, LoadState, served_name

from rlrun_operator.planning.diagnosis.pod_diagnostics import diagnose_pod
from rlrun_operator.serving.observation import SeenPool

ACCEPTED = frozenset({DeploymentState.deploying, DeploymentState.deployed})
PATIENT = frozenset({Reason.UNSCHEDULABLE})
"""What only has to be waited for."""


@dataclass(frozen=True)
class DeploymentAssessment:
    """The deployment's state, and what people should know of it."""

    state: DeploymentState
    message: str | None = None


def is_wanted(adapter: Obj) -> bool:
    """Whether somebody wants the adapter served."""
    return bool(adapter["spec"].get("deployed")) and not is_leaving(adapter)


def state_of(adapter: Obj) -> DeploymentState:
    """What the object says now; NotDeployed where a foreign hand wrote what is no state."""
    try:
        return DeploymentState(adapter.get("status", {}).get("deploymentState") or DeploymentState.not_deployed)
    except ValueError:
        return DeploymentState.not_deployed


def artifact_problem(adapter: Obj) -> Problem | None:
    """Why the adapter is not even tried. What a pool has taken on goes on being served from its own copy."""
    if is_artifact_ready(adapter) or state_of(adapter) in ACCEPTED:
        return None
    status = adapter.get("status") or {}
    said = f" ({status['message']})" if status.get("message") else ""
    return Problem(
        reason=Reason.ADAPTER_NOT_READY,
        message=f"the adapter is {status.get('phase') or 'Pending'}, not Ready{said}: wait for its upload, or set "
        "spec.deployed to false and deploy another one.",
    )


def running(pods: tuple[Obj, ...]) -> list[Obj]:
    """Pods that have, or may yet get, running containers and are not on their way out."""
    return [p for p in pods if is_alive(p) and not is_leaving(p)]


def wanted_verdict(adapter: Obj, seen: SeenPool) -> DeploymentAssessment:
    """The state of an adapter that is in its pool's order."""
    name = served_name(seen.key.model, adapter["metadata"]["name"])
    pods = running(seen.pods)
    ready = [p for p in pods if is_ready(p)]
    for pod in pods:
        found = report_of(seen, pod, name)
        if found is not None and found.state is LoadState.failed and found.problem is not None:
            return failed(found.problem)
    told = [state for pod in ready if (state := _answer(seen, pod, name)) is not None]
    if told and all(state is LoadState.loaded for state in told):
        return DeploymentAssessment(DeploymentState.deployed)
    if ready and not told and state_of(adapter) is DeploymentState.deployed:
        # Nobody answered the operator just now, which says nothing about the engines.
        return DeploymentAssessment(DeploymentState.deployed)
    if ready:
        return DeploymentAssessment(DeploymentState.deploying, "the engines are loading it")
    troubles = [t for t in map(diagnose_pod, relevant_pods(list(seen.pods))) if t is not None]
    for trouble in troubles:
        if trouble.problem.reason not in PATIENT:
            return failed(trouble.problem)
    if deadline := _deadline_problem(seen):
        return failed(deadline)
    if troubles:
        problem = troubles[0].problem
        return DeploymentAssessment(DeploymentState.deploying, f"{problem.reason}: {problem.message}")
    return DeploymentAssessment(DeploymentState.deploying, "waiting for an engine of the pool to become ready")


def unwanted_verdict(adapter: Obj, seen: SeenPool) -> DeploymentAssessment:
    """The state of an adapter that nobody wants served any more."""
    if state_of(adapter) is DeploymentState.not_deployed:
        return DeploymentAssessment(DeploymentState.not_deployed)
    name = served_name(seen.key.model, adapter["metadata"]["name"])
    unloading = False
    for pod in running(seen.pods):
        if pod["metadata"]["name"] not in seen.reports:
            unloading = unloading or is_ready(pod)
            continue
        found = report_of(seen, pod, name)
        if found is not None and found.state is LoadState.unloading and found.problem is not None:
            problem = found.problem
            return DeploymentAssessment(
                DeploymentState.unload_failed,
                f"{problem.reason}: {problem.message} It is tried again; deleting pod {pod['metadata']['name']} ends "
                "it for certain.",
            )
        unloading = unloading or found is not None
    return DeploymentAssessment(DeploymentState.unloading if unloading else DeploymentState.not_deployed)


def report_of(seen: SeenPool, pod: Obj, name: str) -> AdapterReport | None:
    """What the pod's sidecar says of the adapter with that model name."""
    report = seen.reports.get(pod["metadata"]["name"])
    return next((a for a in report.adapters if a.name == name), None) if report else None


def failed(problem: Problem) -> DeploymentAssessment:
    """DeployFailed with the problem's words."""
    return DeploymentAssessment(DeploymentState.deploy_failed, f"{problem.reason}: {problem.message}")


def _answer(seen: SeenPool, pod: Obj, name: str) -> LoadState | None:
    """None for a sidecar that did not answer; one that has not heard of the adapter has yet to load it."""
    if pod["metadata"]["name"] not in seen.reports:
        return None
    found = report_of(seen, pod, name)
    return found.state if found is not None else LoadState.loading


def _deadline_problem(seen: SeenPool) -> Problem | None:
    for child in seen.children:
        for condition in child.get("status", {}).get("conditions") or [] if child["kind"] == "Deployment" else []:
            if condition["type"] == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
                return Problem(
                    reason=Reason.POOL_NOT_READY,
                    message=f"no engine became ready in time: `kubectl describe deployment {child['metadata']['name']} "
                    f"-n {seen.key.namespace}` and the logs of its pods say why.",
                )
    return None
