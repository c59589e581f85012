"""Diagnoses unready pods from their status and newest Event, and suggests remedies.

Readiness gates, and containers that the operator did not create, such as mesh proxies, can keep a pod unready. Restarts
of such containers are not counted as crashes of the run, and their termination does not end the run.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TypeVar

from pydantic import BaseModel
from rlrun.api.base.received import InputInvalid, parse
from rlrun.api.base.schema import Schema
from rlrun.api.run_status import StartupFailureKind
from rlrun.constants import ExitCode, Reason
from rlrun.kube.conditions import parse_time
from rlrun.kube.objects import Obj, true_condition
from rlrun.kube.pods import UNKNOWN_ENDS, Pod, Termination, component_of, relevant_pods, role_of
from rlrun.kube.refusals import describe_object, explain_refusal
from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.problem import Problem

from rlrun_operator.planning.observation import PodEvent, RunObservation
from rlrun_operator.planning.pod_starts import (
    CRASHING,
    STARTING,
    explain_event,
    explain_wait,
    shape_fields,
    unscheduled_message,
)

OUT_OF = "OutOf"
"""Prefix of the kubelet's reasons for pods that do not fit: OutOfcpu, OutOfmemory, OutOfpods, OutOfnvidia.com/gpu."""
REJECTION_ADVICE = {
    "UnexpectedAdmissionError": "Check the node's device plugin: its GPUs may be unhealthy or in use.",
    "NodeAffinity": "The node's labels have changed: compare them with the pod's node selector.",
    "NodeShutdown": "The node is shutting down; the next pod runs on another node.",
    "Evicted": "The node lacks disk space or memory: free some, or cordon the node with `kubectl cordon`.",
    "TopologyAffinityError": "The kubelet cannot allocate the pod's CPUs and GPUs from a single NUMA node: change the "
    "kubelet's topology manager policy, or the pod's requests.",
    "VolumeAttachmentLimitExceeded": "The node has reached its limit of attached volumes.",
}
END_ADVICE = {
    "Evicted": "The node ran out of memory or disk. If this repeats, raise the pod's requests to its actual usage.",
    "Preempting": "A critical pod on the node needed the resources.",
    "Terminated": "The node was shut down.",
    "NodeShutdown": "The node was shut down.",
    "NodeLost": "The node does not report to Kubernetes.",
    "PreemptionByScheduler": "A pod with higher priority preempted it: see `spec.priorityClassName`.",
    "DeletionByTaintManager": "The node has a taint that the pod does not tolerate, or it has stopped reporting.",
    "EvictionByEvictionAPI": "The node is being drained.",
    "DeletionByPodGC": "The node no longer exists.",
}
REPEATED = 2
"""Number of consecutive rejections or evictions after which a component's next pod is expected to end in the same way.
"""
REPEATED_WITHIN = timedelta(minutes=30)
"""Maximum time between the creations of the first and the last rejected or evicted pod, and between the last creation
and now.
"""


def explain_cluster_end(pod: Pod) -> Problem | None:
    """Return why the cluster ended or rejected the pod, or None if the pod's status reports neither."""
    reason, words = _words_of(pod)
    if not reason:
        return None
    node = f"node {pod.node}" if pod.node else "its node"
    said = f"{reason}: {words}".rstrip(":. ") + "."
    if pod.is_rejected:
        advice = REJECTION_ADVICE.get(reason) or (
            "Another pod has taken the resources that the scheduler considered free."
            if reason.startswith(OUT_OF)
            else f"See `kubectl describe {node}`."
        )
        message = f"{pod.component}: {node} did not admit pod {pod.name}: {said} {advice}"
        return Problem(reason=Reason.POD_REJECTED, message=f"{message} Kubernetes creates another pod.")
    advice = END_ADVICE.get(reason, "")
    message = f"{pod.component}: Kubernetes ended pod {pod.name} on {node}: {said} {advice}"
    return Problem(reason=Reason.POD_EVICTED, message=f"{message.rstrip()} Kubernetes creates another pod.")


def repeated_end(pods: Sequence[Pod], wanted: Mapping[str, Mapping[str, int]], now: datetime) -> Problem | None:
    """Return the problem if a component has no ready pod and nodes repeatedly evict or reject its pods, or None.

    Kubernetes replaces such pods immediately, without a pause or a limit. `wanted` is the number of pods by role and
    component. All times, including `now`, are times of the API server. A pod that ran for a long time resets the count.
    Other disruptions are not counted, because they delete the pod or are intended by the platform.
    """
    counts = {component: count for components in wanted.values() for component, count in components.items()}
    for component, count in counts.items():
        own = sorted((p for p in pods if p.component == component), key=lambda p: p.created)
        ended = [p for p in own if p.is_refused_by_node]
        # All pods of a component may end at the same time once, which is not a repetition.
        row = REPEATED + count - 1
        if len(ended) < row or any(p.is_ready for p in own):
            continue
        first, last = parse_time(ended[-row].created), parse_time(ended[-1].created)
        problem = explain_cluster_end(ended[-1])
        if problem is None or first is None or last is None:
            continue
        if max(last - first, now - last) <= REPEATED_WITHIN:
            text = problem.message.removesuffix(" Kubernetes creates another pod.")
            return Problem(reason=problem.reason, message=f"{text} {len(ended)} pods of {component} ended like this.")
    return None


def _words_of(pod: Pod) -> tuple[str, str]:
    """Return reason and message if the cluster ended the pod, else empty strings.

    Both are in the pod's status or, for a deleted pod, in the condition DisruptionTarget.
    """
    if pod.phase == "Failed" and pod.reason:
        return pod.reason, pod.message.strip()
    said = pod.condition("DisruptionTarget")
    if said.get("status") != "True" or not (pod.is_leaving or pod.phase == "Failed"):
        return "", ""
    return str(said.get("reason") or ""), str(said.get("message") or "").strip()


def explain_injected(pod: Pod) -> Problem | None:
    """Return which readiness gate or injected container keeps the pod from being ready, or None."""
    gate = pod.closed_gate
    if gate is not None:
        return Problem(
            reason=Reason.READINESS_GATE_CLOSED,
            message=(
                f"{pod.component}: the containers of pod {pod.name} are ready, but the pod is not: "
                f"{gate.rstrip('.')}. Check the controller that added the readiness gate."
            ),
        )
    failing = next((s for s in pod.injected_statuses if _trouble(s) is not None), None)
    if failing is None:
        return None
    return Problem(
        reason=Reason.INJECTED_CONTAINER_FAILED,
        message=(
            f"{pod.component}: container {failing['name']} keeps pod {pod.name} from becoming ready: "
            f"{_trouble(failing)}. A mesh, another program or `podTemplate` added this container. Fix the "
            f"container, or prevent its injection. To keep a mesh out of the pod, set "
            f"{shape_fields(pod.role, 'meshInjection')} to `Refused`."
        ),
    )


def _trouble(status: Obj) -> str | None:
    state, last = status.get("state") or {}, status.get("lastState") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or last.get("terminated") or {}
    reason = str(waiting.get("reason") or "")
    if ended.get("exitCode", 0) != 0 and (reason == CRASHING or "terminated" in state):
        return f"it ended with exit code {ended['exitCode']} ({ended.get('reason') or 'Error'})"
    if reason not in STARTING:
        return f"{reason}: {waiting.get('message') or 'no message'}".rstrip(".")
    return None


M = TypeVar("M", bound=BaseModel)

NO_EVENTS: Mapping[str, PodEvent] = MappingProxyType({})
OUT_OF_MEMORY = "OOMKilled"
START_FAILURES = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of containers whose command could not be started by the runtime."""

FETCHER = "fetch-model"
ACCESS_REASONS = frozenset(
    {
        Reason.S3_ACCESS_DENIED,
        Reason.S3_BUCKET_MISSING,
        Reason.S3_ERROR,
        Reason.STORAGE_ACCESS_DENIED,
        Reason.MODEL_ACCESS_DENIED,
    }
)
"""Reasons of a failed download that disappear when a rotated key, a renewed token or a corrected clock takes effect."""
FETCH_WAITS = ACCESS_REASONS | {
    Reason.S3_UNREACHABLE,
    Reason.S3_FULL,
    Reason.STORAGE_SERVER_UNAVAILABLE,
    Reason.MODEL_HUB_UNREACHABLE,
}
"""Reasons of a failed download that the kubelet retries and that do not count as a crash."""

MEMORY_ADVICE = {
    "trainer": "raise trainer.resources.limits.memory in the RLModel, or lower its trainer.microBatchTokens",
    "vllm": "raise inference.resources.limits.memory in the RLModel, or configure a smaller engine cache",
    "environment": "choose a larger spec.infrastructure.computeSize",
    "orchestrator": "ask the platform team for larger runs.orchestratorResources, or lower spec.batchSize",
    "sidecar": "ask the platform team for larger runs.sidecarResources",
    "gpu-check": "ask the platform team for larger runs.sidecarResources",
    "engine-access": "ask the platform team for larger runs.sidecarResources",
    "ca-bundle": "ask the platform team for larger runs.sidecarResources",
    "fetch-model": "ask the platform team for larger runs.fetcherResources",
}
"""Advice on how to raise the memory limit, by container."""
STORAGE_ADVICE = {
    "trainer": "raise trainer.resources.limits.ephemeral-storage in the RLModel",
    "inference": "raise inference.resources.limits.ephemeral-storage in the RLModel",
    "environment": "store fewer temporary files, or choose a larger spec.infrastructure.computeSize",
    "orchestrator": "ask the platform team for a larger runs.ephemeralStorage.orchestrator",
}


@dataclass(frozen=True)
class PodProblem:
    """Reason why a pod is not ready."""

    role: str
    component: str
    problem: Problem
    final: bool = False
    """True if restarting the container would not help."""
    startup_failure: StartupFailureKind | None = None
    """Kind of failure if the pod has not started. failurePolicy defines how long such a failure is tolerated."""


def parse_final_status(message: str) -> RunStatus | None:
    """Return the RunStatus in an orchestrator's termination message, or None."""
    return _parse(RunStatus, message)


def parse_problem(message: str) -> Problem | None:
    """Return the Problem that a termination message contains, alone or within a RunStatus, or None."""
    status = _parse(_ProblemOfStatus, message)
    return _parse(Problem, message) if status is None else status.problem


class _ProblemOfStatus(Schema, extra="ignore"):
    """Part of a RunStatus that all versions have."""

    problem: Problem


def _parse(model: type[M], message: str) -> M | None:
    try:
        return parse(model, message)
    except InputInvalid:
        return None


def explain_eviction(pod: Pod) -> Problem:
    """Return the problem to report for a pod that was evicted for exceeding its ephemeral-storage limit."""
    role = pod.role
    observed = pod.message.strip()
    return Problem(
        reason=f"{role.capitalize()}OutOfDisk",
        message=f"{pod.component}: the pod exceeded its ephemeral-storage limit and was evicted: {observed} To "
        f"fix this, {STORAGE_ADVICE.get(role, 'raise the limit')}.",
    )


def explain_silent_node(pod: Pod) -> Problem:
    """Return the problem to report for a pod whose containers were ready until its node stopped reporting."""
    return Problem(
        reason=Reason.NODE_UNREACHABLE,
        message=f"{pod.component}: the node {pod.node} of pod {pod.name} does not report to "
        "Kubernetes. The pod is evicted and replaced, by default 5 minutes after the node's last report. Repair the "
        "node, or remove it with `kubectl delete node`, which replaces its pods immediately.",
    )


def explain_termination(pod: Pod, end: Termination) -> Problem:
    """Return why the container ended, as reported by its process or else by Kubernetes."""
    role, component = pod.role, pod.component
    title = role.capitalize()
    if pod.is_out_of_disk:
        return explain_eviction(pod)
    data = parse_problem(end.message)
    if data:
        return data
    if end.reason == OUT_OF_MEMORY:
        limit = pod.memory_limit(end.container)
        return Problem(
            reason=f"{title}OutOfMemory",
            message=f"{component}: container {end.container} exceeded its memory limit"
            f"{f' of {limit}' if limit else ''} and was killed. To fix this, "
            f"{MEMORY_ADVICE.get(end.container, 'raise the limit')}.",
        )
    if end.reason in UNKNOWN_ENDS:
        return Problem(
            reason=Reason.CONTAINER_LOST,
            message=(
                f"{component}: container {end.container} disappeared from node {pod.node}. The node or its "
                f"container runtime was restarted, and the container is started again."
            ),
        )
    if end.reason in START_FAILURES:
        error = end.message.strip().rstrip(".")[-500:]
        return Problem(
            reason=Reason.CREATE_FAILED,
            message=f"{component}: container {end.container} could not be started: {error}. "
            "Check the command, the image's architecture and the memory limit.",
        )
    lines = " | ".join(line.strip() for line in end.message.strip().splitlines()[-3:] if line.strip())
    return Problem(
        reason=f"{title}Crashed",
        message=f"{component}: container {end.container} ended with exit code {end.exit_code}"
        f"{f': {lines}' if lines else ''}. See `kubectl logs {pod.name} -c {end.container} --previous "
        f"-n {pod.namespace}`.",
    )


def refused_fetch(pod: Pod) -> Termination | None:
    """Return the newest termination of the container that downloads the weights if a retry may succeed, otherwise None.

    The exit code is ignored, because fetchers of other versions may exit with the code of a final error in such a case.
    """
    now = pod.termination_of(FETCHER)
    if now is not None and now.exit_code == 0:
        return None
    end = next((end for end in pod.terminations if end.container == FETCHER), None)
    told = parse_problem(end.message) if end is not None else None
    return end if told is not None and told.reason in FETCH_WAITS else None


def diagnose_pod(pod: Pod, event: PodEvent | None = None) -> PodProblem | None:
    """Return why the pod is not ready, or None if it is ready or only needs time.

    `event` is the newest Event of a pod that has a node and no container.
    """
    if pod.is_node_silent:
        return _pod_problem(pod, explain_silent_node(pod))
    if pod.is_leaving or pod.phase == "Succeeded" or pod.is_ready:
        return None
    if pod.is_out_of_disk:
        return _pod_problem(pod, explain_eviction(pod))
    ended = pod.terminations
    refused = refused_fetch(pod)
    if refused is not None:
        problem = explain_termination(pod, refused)
        kind = StartupFailureKind.access if problem.reason in ACCESS_REASONS else None
        return _pod_problem(pod, problem, startup_failure=kind)
    final = next((e for e in ended if _is_final(e)), None)
    if final:
        return _pod_problem(pod, explain_termination(pod, final), final=True)
    ended_by_cluster = explain_cluster_end(pod)
    if ended_by_cluster:
        return _pod_problem(pod, ended_by_cluster)
    wait = next((wait for status in pod.statuses if (wait := explain_wait(pod, status))), None)
    if wait:
        return _pod_problem(pod, wait.problem, startup_failure=wait.kind)
    if ended:
        return _pod_problem(pod, explain_termination(pod, max(ended, key=lambda e: str(e.finished_at or ""))))
    unscheduled = unscheduled_message(pod)
    if unscheduled:
        problem = Problem(reason=Reason.UNSCHEDULABLE, message=unscheduled)
        return _pod_problem(pod, problem, startup_failure=StartupFailureKind.unschedulable)
    told = explain_event(pod, event)
    if told:
        return _pod_problem(pod, told, startup_failure=StartupFailureKind.config_error)
    injected = explain_injected(pod)
    return _pod_problem(pod, injected) if injected else None


def pod_problems(pods: list[Pod], events: Mapping[str, PodEvent] = NO_EVENTS) -> list[PodProblem]:
    """Return the problems of current pods, and of pods that the cluster ended and whose replacements are starting.

    `events` has the newest Event of a pod by the pod's uid, as in `RunObservation.pod_events`.
    """
    relevant = _without_replaced(relevant_pods(pods))
    diagnosed = [problem for p in relevant if (problem := diagnose_pod(p, events.get(p.uid)))]
    explained = {problem.component for problem in diagnosed}
    starting = [p for p in pods if p.is_alive and not p.is_leaving and not p.is_ready]
    ends = {p.component: (p, end) for p in sorted(pods, key=_creation_of) if (end := _end_by_cluster(p)) is not None}
    ended = [
        _pod_problem(pod, end)
        for component, (pod, end) in ends.items()
        if component not in explained and any(_replaces(new, pod, pods) for new in starting)
    ]
    return [*diagnosed, *ended]


def _without_replaced(pods: list[Pod]) -> list[Pod]:
    """Return `pods` except terminating pods whose component also has a pod that is not terminating."""
    staying = {p.component for p in pods if not p.is_leaving}
    return [p for p in pods if not p.is_leaving or p.component not in staying]


def _end_by_cluster(pod: Pod) -> Problem | None:
    """Return why the cluster is ending or has ended the pod, or None."""
    return explain_eviction(pod) if pod.is_out_of_disk else explain_cluster_end(pod)


def _replaces(pod: Pod, ended: Pod, pods: Sequence[Pod]) -> bool:
    """Return whether a ReplicaSet or Job created `pod` as the direct replacement of `ended`.

    Only times set by the API server are compared, because a kubelet's clock may differ.
    """
    begin, end = _creation_of(ended), _creation_of(pod)
    same = [p for p in pods if p.component == ended.component]
    return pod in same and begin <= end and not any(begin < _creation_of(p) < end for p in same)


def _creation_of(pod: Pod) -> datetime:
    return parse_time(pod.created) or datetime.min.replace(tzinfo=UTC)


def _is_final(end: Termination) -> bool:
    """Return whether a restart of the container would fail in the same way. Reads the termination message as well,
    because torchrun replaces the exit codes of its processes.
    """
    told = parse_problem(end.message)
    return end.exit_code == ExitCode.CONFIGURATION or (told is not None and told.reason == Reason.DEVICE_MISSING)


def _pod_problem(
    pod: Pod, problem: Problem, final: bool = False, startup_failure: StartupFailureKind | None = None
) -> PodProblem:
    return PodProblem(pod.role, pod.component, problem, final, startup_failure)


REPLICA_FAILURE = "ReplicaFailure"
"""Condition of a ReplicaSet or Deployment whose pods cannot be created, with the API server's message."""
FAILED_CREATE = "FailedCreate"
"""Reason of the Events of a Job whose pods cannot be created. Jobs have no condition for this."""


def refused_pods(observation: RunObservation, attempt: int) -> list[PodProblem]:
    """Return the problems of the attempt's ReplicaSets and Jobs whose pods are refused."""
    return [
        PodProblem(role_of(owner), component_of(owner), problem)
        for owner in observation.pod_controllers(attempt)
        if (problem := explain_refused_pod(owner, observation.pod_events.get(owner["metadata"]["uid"]))) is not None
    ]


def explain_refused_pod(owner: Obj, event: PodEvent | None = None) -> Problem | None:
    """Return why the API server refuses the pods of `owner`, or None. `event` is the newest Event of a Job without
    pods.
    """
    message = _failure(owner)
    if message is None and event is not None and event.warning and event.reason == FAILED_CREATE:
        message = event.message.removeprefix("Error creating: ")
    if message is None:
        return None
    # Remove the pod's name, which changes with each attempt. Otherwise each attempt would cause a write of the status,
    # and thus a reconcile.
    name = owner["metadata"]["name"]
    message = re.sub(rf'"{re.escape(name)}-[a-z0-9-]+"', f'"{name}-…"', message)
    return explain_refusal(f"The API server refused a pod of {describe_object(owner)}", message)


def refused_replicas(owners: Iterable[Obj]) -> list[Problem]:
    """Return why the API server refuses pods, for each owner whose status reports a refusal."""
    return [problem for owner in owners if (problem := explain_refused_pod(owner)) is not None]


def _failure(owner: Obj) -> str | None:
    condition = true_condition(owner, REPLICA_FAILURE)
    return None if condition is None else str(condition.get("message") or condition.get("reason") or "no message")
