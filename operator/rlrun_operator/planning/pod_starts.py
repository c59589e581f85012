"""Explains why pods do not start: they are unscheduled, have no container yet, or have a waiting container.

While the kubelet prepares volumes, network and images, a pod has a node but no container. The status of such a pod
shows only ContainerCreating or PodInitializing. Failures are in its Events.

For an unscheduled pod, the scheduler's message lists why each node cannot run the pod. Each reason needs a different
action: lower requests do not help against a taint. The messages of Kubernetes 1.31 to 1.35 are supported.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rlrun.api.run_status import StartupFailureKind
from rlrun.constants import Reason, Role
from rlrun.kube.conditions import parse_time
from rlrun.kube.objects import Obj
from rlrun.kube.pods import Pod
from rlrun.protocol.problem import Problem

from rlrun_operator.planning.observation import PodEvent

STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of containers that are starting, or that wait for a volume, the pod's network or an earlier container."""
CRASHING = "CrashLoopBackOff"
"""Reason of a container that waits for its next restart. The container's last termination contains the cause."""
PULL_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
CONFIG_REASON = "CreateContainerConfigError"
PULL_REASON_ADVICE = {
    "InvalidImageName": "The image reference is invalid: correct it in the RLModel or the chart's values.",
    "ErrImageNeverPull": "The image is not on the node and its pull policy is Never: load it, or change the policy.",
    "ImageInspectError": "The node's container runtime cannot read its copy of the image: remove the image from the "
    "node, or use another node.",
    "SignatureValidationFailed": "The node's policy requires a signature that the image does not have: sign the "
    "image, or correct the policy.",
}
PULL_WORD_ADVICE = (
    (
        ("SignatureValidationFailed", "signature validation failed"),
        PULL_REASON_ADVICE["SignatureValidationFailed"],
    ),
    (
        ("unauthorized", "authentication required", "denied", "401", "403 Forbidden"),
        "The registry refuses the node's credentials: set the chart's `imagePullSecrets`, and create the Secret in the "
        "run's namespace.",
    ),
    (("toomanyrequests", "429"), "The registry limits the rate of pulls: use credentials or a mirror, or wait."),
    (("x509:",), "The nodes do not trust the registry's certificate: add its CA to their container runtime."),
    (
        ("no match for platform", "no matching manifest"),
        "The image has no variant for the node's architecture: use another image, or select other nodes.",
    ),
    (
        ("no such host", "dial tcp", "i/o timeout", "TLS handshake timeout", "connection refused"),
        "The node cannot reach the registry: check its DNS, proxy and firewall.",
    ),
    (("no space left on device",), "The node's disk is full: free space on it, or use another node."),
)
CONFIG_ADVICE = (
    (("non-numeric user", "run as root"), "Use an image whose user is a numeric UID other than 0."),
    (("not found", "couldn't find key"), "Create the missing object or key, or correct the reference to it."),
)


@dataclass(frozen=True)
class ContainerWait:
    """Reason why a container cannot start."""

    problem: Problem
    kind: StartupFailureKind


def explain_wait(pod: Pod, status: Obj) -> ContainerWait | None:
    """Return why the container waits, or None if it does not wait, only needs time, or waits for a restart after a
    crash.
    """
    waiting = (status.get("state") or {}).get("waiting") or {}
    reason, detail = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if reason in STARTING or reason == CRASHING:
        return None
    if reason in PULL_REASONS:
        image = _image_of(pod, status["name"], detail)
        message = (
            f"{pod.component}: image {image} cannot be pulled "
            f"({reason}{': ' + detail if detail else ''}). "
            f"{_pull_advice(reason, _without_names(detail, image))}"
        )
        return ContainerWait(Problem(reason=Reason.IMAGE_PULL_FAILED, message=message), StartupFailureKind.image_pull)
    # All other reasons are errors of the kubelet or the runtime: CreateContainerError, RunContainerError, ...
    is_config = reason == CONFIG_REASON
    advice = _first_advice(CONFIG_ADVICE, detail) or (
        "Create the missing object, or correct the reference to it."
        if is_config
        else "Check the container's command and volumes, the image's architecture, and the node."
    )
    message = f"{pod.component}: container {status['name']} cannot be created: {detail or reason}. {advice}"
    kind = Reason.CREATE_CONTAINER_CONFIG_ERROR if is_config else Reason.CREATE_FAILED
    return ContainerWait(Problem(reason=kind, message=message), StartupFailureKind.config_error)


def _without_names(detail: str, image: str) -> str:
    """Remove the image and addresses, which users choose, from the error message of an image pull."""
    words = detail.replace(f'"{image}"', "").split()
    return " ".join(word for word in words if "/" not in word or word == "i/o")


def _image_of(pod: Pod, container: str, detail: str) -> str:
    """Return the image that the error is about: the one of an image volume that it names, or the container's image."""
    volumes = (str((volume.get("image") or {}).get("reference") or "") for volume in pod.volumes)
    return next((image for image in volumes if image and image in detail), pod.image_of(container))


def _pull_advice(reason: str, detail: str) -> str:
    return (
        PULL_REASON_ADVICE.get(reason)
        or _first_advice(PULL_WORD_ADVICE, detail)
        or "Correct the image in the RLModel or the chart's values, or give the nodes access to its registry."
    )


def _first_advice(table: tuple[tuple[tuple[str, ...], str], ...], words: str) -> str | None:
    return next((advice for parts, advice in table if any(_has_words(words, part) for part in parts)), None)


def _has_words(text: str, part: str) -> bool:
    """Return whether the text contains `part` as whole words."""
    return re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) is not None


VOLUME_EVENTS = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
NETWORK_EVENTS = frozenset({"FailedCreatePodSandBox", "FailedPodSandBoxStatus", "NetworkNotReady"})
IDENTIFIER = re.compile(r"\b[0-9a-f]{32,}\b")
"""Pattern of sandbox and container identifiers. They change with each attempt, which would change the run's status each
time.
"""


def without_container_since(pod: Pod) -> datetime | None:
    """Return the time since which the pod has a node but no container, or None if it has no node or has a container."""
    scheduled = pod.condition("PodScheduled")
    if pod.is_leaving or pod.phase != "Pending" or scheduled.get("status") != "True":
        return None
    states = [status.get("state") or {} for status in (*pod.statuses, *pod.injected_statuses)]
    waits = [str((state.get("waiting") or {}).get("reason") or "") for state in states if "terminated" not in state]
    if any("running" in state for state in states) or not all(reason in STARTING for reason in waits):
        return None
    ends = [parse_time((state.get("terminated") or {}).get("finishedAt")) for state in states]
    times = [parse_time(scheduled.get("lastTransitionTime")), *ends]
    return max((time for time in times if time is not None), default=None)


def explain_event(pod: Pod, event: PodEvent | None) -> Problem | None:
    """Return why the pod has no container yet, from its newest Event. Returns None if the pod has a container, or if
    there is no Event or it is not a warning.
    """
    if event is None or not event.warning or without_container_since(pod) is None:
        return None
    name, words = pod.name, IDENTIFIER.sub("…", event.message).rstrip(".") + "."
    start = f"{pod.component}: the containers of pod {name} on node {pod.node} cannot be created"
    if event.reason in VOLUME_EVENTS:
        advice = "Create the Secret, ConfigMap or claim that the message names, or repair the node's storage driver."
        return Problem(
            reason=Reason.VOLUME_MOUNT_FAILED,
            message=(f"{start}, because a volume could not be attached or mounted: {words} {advice}"),
        )
    if event.reason in NETWORK_EVENTS:
        advice = "Repair the node's network plugin or container runtime, or install the runtime class."
        return Problem(
            reason=Reason.POD_SANDBOX_FAILED, message=(f"{start}, because the pod sandbox is missing: {words} {advice}")
        )
    advice = f"See `kubectl describe pod {name}`."
    return Problem(reason=Reason.CREATE_FAILED, message=f"{start} ({event.reason}): {words} {advice}")


UNSCHEDULABLE = frozenset({"Unschedulable", "SchedulerError"})
GATED = "SchedulingGated"
PREEMPTION = re.compile(r"(\.? no new claims to deallocate,)?\.? preemption: .*", re.DOTALL)
"""Pattern of the part of the scheduler's message that explains why preempting other pods would not help."""
TAINT = re.compile(r"untolerated taint(?:\(s\))?(?: \{(?P<key>[^:}=]+)[^}]*\})?")
NODE_STATE = "node.kubernetes.io/"
CORDONED = f"{NODE_STATE}unschedulable"
CONTROL_PLANE = "node-role.kubernetes.io/"
REQUESTS: Mapping[str, str] = {
    Role.trainer: "the trainer's `gpus` or `resources` in the RLModel",
    Role.inference: "the `gpus` or `resources` of inference in the RLModel",
    Role.environment: "`spec.infrastructure.computeSize`",
    Role.orchestrator: "`runs.orchestratorResources` in the chart's values",
}
SHAPES: Mapping[str, tuple[str, str]] = {
    Role.trainer: ("trainer.", "the RLModel"),
    Role.inference: ("inference.", "the RLModel"),
    Role.environment: ("runs.environments.", "the chart's values"),
    Role.orchestrator: ("runs.orchestrator.", "the chart's values"),
}
"""Prefix of each role's placement fields, and the object in which they are set."""


def unscheduled_message(pod: Pod) -> str | None:
    """Return why the pod is not scheduled and what to do, or None if the scheduler has not reported a failure."""
    condition = pod.condition("PodScheduled")
    if condition.get("status") == "True" or condition.get("reason") not in (*UNSCHEDULABLE, GATED):
        return None
    words = PREEMPTION.sub("", str(condition.get("message") or "")).strip()
    if condition["reason"] == GATED:
        return (
            f"{pod.component}: scheduling is gated: {_sentence(words)} The controller that added the pod's "
            f"scheduling gates must remove them: see `spec.schedulingGates` of the pod."
        )
    advice = " ".join(_advice(pod.role, words)) or f"See `kubectl describe pod {pod.name}`."
    return f"{pod.component}: no node can run the pod: {_sentence(words)} {advice}"


def _sentence(words: str) -> str:
    return words if words.endswith(".") else f"{words}."


def _advice(role: str, words: str) -> list[str]:
    taints = {found["key"] or "" for found in TAINT.finditer(words)}
    own_taints = sorted(t for t in taints if t and not t.startswith((NODE_STATE, CONTROL_PLANE)))
    found = [_claims(words), _capacity(role, words), _selection(role, words)]
    if CORDONED in taints or "were unschedulable" in words:
        found.append("Nodes are cordoned: allow new pods on them with `kubectl uncordon`.")
    if any(t.startswith(NODE_STATE) and t != CORDONED for t in taints):
        found.append("Some nodes have a taint because of a problem: repair these nodes, or wait until they are ready.")
    if own_taints or (taints == {""} and not any(found)):
        found.append(_toleration(role, own_taints))
    return [text for text in found if text]


def _capacity(role: str, words: str) -> str:
    short = sorted(set(re.findall(r"Insufficient ([^\s,]+?)[,.]?(?=\s|$)", words)))
    if short:
        return f"Free {_join(short)}, add nodes, or lower {REQUESTS.get(role, 'the requests')}."
    if "Too many pods" in words:
        return "The nodes have reached their limit of pods: add nodes, or raise the kubelets' maxPods."
    if "no nodes available" in words:
        return "The cluster has no node: add one."
    return ""


def _selection(role: str, words: str) -> str:
    if "node affinity/selector" in words or "node selector" in words:
        fields = shape_fields(role, "nodeSelector", "affinity")
        return f"No free node matches {fields}: correct the field, or label nodes."
    if "anti-affinity rules" in words or "topology spread" in words or "pod affinity rules" in words:
        fields = shape_fields(role, "affinity", "topologySpreadConstraints")
        nodes = " A trainer with several nodes needs a separate node for each pod." if role == Role.trainer else ""
        return f"Affinity or topology spread rules exclude all nodes: add nodes, or relax {fields}.{nodes}"
    return ""


def shape_fields(role: str, *names: str) -> str:
    """Describe the fields `names` of the role's pods, and the object in which users set them."""
    if role not in SHAPES:
        return " or ".join(f"`spec.{name}` of the pod" for name in names)
    prefix, place = SHAPES[role]
    return f"{' or '.join(f'`{prefix}{name}`' for name in names)} in {place}"


def _toleration(role: str, taints: Sequence[str]) -> str:
    taint = f"taint {_join(taints)}" if taints else "nodes' taints"
    return f"Add a toleration for the {taint} to {shape_fields(role, 'tolerations')}, or remove the taint."


def _claims(words: str) -> str:
    claim = re.search(r'persistentvolumeclaim "([^"]+)" (not found|is being deleted)', words)
    if claim:
        return (
            f"Create the PersistentVolumeClaim {claim[1]} in the run's namespace, or correct the reference to it in "
            f"the RLModel's source, `cacheClaim` or `volumes`, or in the chart's values."
        )
    if "unbound immediate PersistentVolumeClaims" in words or "persistent volumes to bind" in words:
        return "The claim is not bound to a volume: check its StorageClass and its Events with `kubectl describe pvc`."
    if "non-existent p" in words:
        return "The claim's volume no longer exists: recreate the claim."
    if "volume node affinity" in words or "PersistentVolume's node affinity" in words or "volume zone" in words:
        return "The claim's volume can only be used on other nodes or in another zone: free resources there."
    if "max volume count" in words:
        return "The nodes have reached their limit of attached volumes: add nodes."
    return ""


def _join(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
