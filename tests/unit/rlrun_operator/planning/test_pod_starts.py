"""Containers that cannot start: images and configuration.

Pods with a node and without a container, and what their Events say.

Advice from the scheduler's own words.
"""

from datetime import UTC, datetime

import pytest
from rlrun.api.run_status import StartupFailureKind
from rlrun.kube.objects import Obj
from rlrun.kube.pods import Pod
from rlrun_operator.planning.observation import PodEvent
from rlrun_operator.planning.pod_problems import diagnose_pod
from rlrun_operator.planning.pod_starts import (
    ContainerWait,
    explain_event,
    explain_wait,
    unscheduled_message,
    without_container_since,
)

from tests.support.cluster_objects import inject, pod, terminated, without_container
from tests.support.expectations import present


def waits(reason: str, message: str = "") -> tuple[Obj, Obj]:
    obj = pod("trainer", phase="Pending", state={"waiting": {"reason": reason, "message": message}})
    return obj, obj["status"]["containerStatuses"][0]


def explained(reason: str, message: str = "") -> ContainerWait | None:
    obj, status = waits(reason, message)
    return explain_wait(Pod(obj), status)


@pytest.mark.parametrize("reason", ["", "ContainerCreating", "PodInitializing", "CrashLoopBackOff"])
def test_a_container_that_needs_time_or_has_ended_does_not_wait(reason: str) -> None:
    assert explained(reason) is None


IMAGES = [
    ("InvalidImageName", 'couldn\'t parse image name "a b"', "image reference is invalid"),
    ("ErrImageNeverPull", "", "pull policy is Never"),
    ("ImageInspectError", "Failed to inspect image", "remove the image from the node"),
    ("SignatureValidationFailed", "no signature exists", "sign the image"),
    ("ImagePullBackOff", "Back-off pulling image: SignatureValidationFailed: rejected", "sign the image"),
    ("RegistryUnavailable", "", "access to its registry"),
    ("ErrImagePull", "failed to authorize: 401 Unauthorized", "imagePullSecrets"),
    ("ErrImagePull", "pull access denied, repository does not exist", "imagePullSecrets"),
    ("ErrImagePull", "429 Too Many Requests - toomanyrequests: rate limit", "mirror"),
    ("ErrImagePull", "tls: failed to verify certificate: x509: unknown authority", "add its CA to"),
    ("ErrImagePull", "no match for platform in manifest: not found", "architecture"),
    ("ErrImagePull", "dial tcp: lookup registry: no such host", "DNS, proxy and firewall"),
    ("ErrImagePull", "write /var/lib: no space left on device", "disk is full"),
    ("ErrImagePull", "manifest unknown", "Correct the image in the RLModel"),
]


@pytest.mark.parametrize(("reason", "words", "advice"), IMAGES, ids=[f"{i[0]}-{i[2]}" for i in IMAGES])
def test_an_image_that_cannot_be_used(reason: str, words: str, advice: str) -> None:
    found = present(explained(reason, words))
    assert (found.problem.reason, found.kind) == ("ImagePullFailed", StartupFailureKind.image_pull)
    assert all(part in found.problem.message for part in ("img:1", reason, words, advice))


def test_an_image_with_weights_that_cannot_be_pulled_is_named() -> None:
    weights = f"registry:5000/models/tiny@sha256:{'0' * 64}"
    obj, status = waits("ImagePullBackOff", f'Back-off pulling image "{weights}": not found')
    obj["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {}}, {"name": "models", "image": {"reference": weights}}]
    assert present(explain_wait(Pod(obj), status)).problem.message.startswith(
        f"trainer: image {weights} cannot be pulled"
    )


DIGEST = f"sha256:{'401e' * 8}{'a429' * 8}"
NAMES = [
    f"img@{DIGEST}",
    f"ghcr.io/team/img@{DIGEST}",
    "img:401",
    "img:429",
    "denied",
    "team/unauthorized-429:401",
    "localhost:5000/x509:401",
]


@pytest.mark.parametrize("image", NAMES)
@pytest.mark.parametrize(
    "words",
    [
        'Back-off pulling image "{0}": ErrImagePull: rpc error: code = NotFound desc = failed to pull and unpack image '
        '"docker.io/library/{0}": failed to resolve reference "docker.io/library/{0}": not found',
        "reading manifest in docker.io/library/{0}: manifest unknown",
        'Head "https://registry.test/v2/{0}": unexpected EOF',
    ],
)
def test_the_name_of_an_image_is_no_reason(image: str, words: str) -> None:
    obj, status = waits("ImagePullBackOff", words.format(image))
    obj["spec"]["containers"][0]["image"] = image
    assert present(explain_wait(Pod(obj), status)).problem.message.endswith("give the nodes access to its registry.")


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("read tcp 10.0.0.1:42968->10.0.0.2:443: read: connection reset by peer", "access to its registry"),
        (f"https://ghcr.io/v2/x/blobs/{DIGEST}: 503 Service Unavailable", "access to its registry"),
        (f'failed to copy: Get "https://ghcr.io/v2/x/blobs/{DIGEST}": net/http: i/o timeout', "DNS, proxy"),
        ("unexpected status from HEAD request to https://ghcr.io/v2/x/manifests/1: 401 Unauthorized", "imagePullSec"),
        ("unexpected status from GET request to https://ghcr.io/v2/x/manifests/429: 403 Forbidden", "imagePullSec"),
        (f"https://ghcr.io/v2/x/blobs/{DIGEST}: 429 Too Many Requests", "use credentials or a mirror"),
        ("reading manifest 1 in quay.io/x/y: unauthorized: access is not authorized", "imagePullSecrets"),
    ],
)
def test_numbers_of_an_error_are_those_of_its_status(words: str, advice: str) -> None:
    assert advice in present(explained("ErrImagePull", words)).problem.message.removeprefix(words)


CREATIONS = [
    ("CreateContainerConfigError", 'secret "x" not found', "CreateContainerConfigError", "Create the missing object"),
    (
        "CreateContainerConfigError",
        "container has runAsNonRoot and image has non-numeric user (app)",
        "CreateContainerConfigError",
        "a numeric UID other than 0",
    ),
    ("CreateContainerError", "context deadline exceeded", "CreateFailed", "Check the container's command"),
    ("RunContainerError", "exec: no such file", "CreateFailed", "Check the container's command"),
    ("CreatePodSandboxError", "no runtime", "CreateFailed", "Check the container's command"),
]


@pytest.mark.parametrize(("waiting", "words", "reason", "advice"), CREATIONS, ids=[c[1] for c in CREATIONS])
def test_a_container_that_cannot_be_created(waiting: str, words: str, reason: str, advice: str) -> None:
    found = present(explained(waiting, words))
    assert (found.problem.reason, found.kind) == (reason, StartupFailureKind.config_error)
    assert words in found.problem.message
    assert advice in found.problem.message


SCHEDULED = datetime(2026, 1, 1, tzinfo=UTC)
SANDBOX = "6091888ef60975acea7b4596a3b7deb9f51d58e4f4a43ea33e721ed280beb5b7"


def test_the_wait_begins_when_the_pod_has_a_node() -> None:
    assert without_container_since(Pod(without_container())) == SCHEDULED
    silent = without_container()
    silent["status"]["containerStatuses"] = []
    assert without_container_since(Pod(silent)) == SCHEDULED, "a kubelet that has not reported yet"


def test_the_wait_begins_again_after_an_init_container() -> None:
    obj = without_container(waits="PodInitializing")
    done = {"name": "fetch-model", "state": terminated(0, finished="2026-01-01T00:05:00Z")}
    obj["status"]["initContainerStatuses"] = [done]
    assert without_container_since(Pod(obj)) == datetime(2026, 1, 1, 0, 5, tzinfo=UTC)


def test_an_init_container_that_downloads_is_no_wait() -> None:
    obj = without_container(waits="PodInitializing")
    obj["status"]["initContainerStatuses"] = [{"name": "fetch-model", "state": {"running": {}}}]
    assert without_container_since(Pod(obj)) is None


@pytest.mark.parametrize(
    "obj",
    [
        pod("trainer"),
        pod("trainer", phase="Pending"),
        without_container(deleting=True),
        without_container(waits="ErrImagePull"),
        inject(without_container(), state={"waiting": {"reason": "ErrImagePull"}}),
    ],
    ids=["runs", "no node", "leaving", "says itself", "the injected one says it"],
)
def test_other_pods_do_not_lack_a_container(obj: Obj) -> None:
    assert without_container_since(Pod(obj)) is None


EVENTS = [
    ("FailedMount", 'MountVolume.SetUp failed for volume "s3" : secret "x" not found', "VolumeMountFailed"),
    ("FailedAttachVolume", "Multi-Attach error for volume", "VolumeMountFailed"),
    ("FailedMapVolume", "MapVolume.SetUp failed", "VolumeMountFailed"),
    ("FailedCreatePodSandBox", 'no runtime for "gvisor" is configured', "PodSandboxFailed"),
    ("NetworkNotReady", "network is not ready: container runtime network not ready", "PodSandboxFailed"),
    ("FailedSync", "error determining status", "CreateFailed"),
]


@pytest.mark.parametrize(("reason", "words", "expected"), EVENTS, ids=[c[0] for c in EVENTS])
def test_a_warning_explains_the_wait(reason: str, words: str, expected: str) -> None:
    found = present(explain_event(Pod(without_container()), PodEvent(reason, words, warning=True)))
    assert found.reason == expected
    assert words in found.message
    assert "gpu-1" in found.message


def test_an_image_that_is_being_pulled_is_no_problem() -> None:
    assert explain_event(Pod(without_container()), PodEvent("Pulling", "Pulling image", warning=False)) is None
    assert explain_event(Pod(without_container()), None) is None


def test_identifiers_that_change_with_each_try_are_left_out() -> None:
    words = 'Failed to create pod sandbox: failed to setup network for sandbox "{}": no address'
    tries = [
        explain_event(Pod(without_container()), PodEvent("FailedCreatePodSandBox", words.format(name), warning=True))
        for name in (SANDBOX, SANDBOX[::-1])
    ]
    assert tries[0] == tries[1]


TAIL = " preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."


def unscheduled(message: str, role: str = "trainer", reason: str = "Unschedulable") -> Obj:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return pod(role, phase="Pending", conditions=[condition])


CASES = [
    ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "trainer", "Free nvidia.com/gpu", "toleration"),
    ("0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient memory.", "environment", "computeSize", "RLModel"),
    ("0/1 nodes are available: 1 Insufficient memory.", "orchestrator", "runs.orchestratorResources", "RLModel"),
    (
        "0/2 nodes are available: 2 node(s) had untolerated taint {nvidia.com/gpu: present}.",
        "inference",
        "toleration for the taint nvidia.com/gpu to `inference.tolerations` in the RLModel",
        "lower",
    ),
    (
        "0/2 nodes are available: 2 node(s) had untolerated taint {team: a}.",
        "environment",
        "toleration for the taint team to `runs.environments.tolerations` in the chart's values",
        "RLModel",
    ),
    (
        "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
        "orchestrator",
        "`runs.orchestrator.nodeSelector` or `runs.orchestrator.affinity` in the chart's values",
        "RLModel",
    ),
    (
        "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.",
        "trainer",
        "`trainer.affinity` or `trainer.topologySpreadConstraints` in the RLModel. A trainer with several nodes",
        "lower",
    ),
    (
        "0/2 nodes are available: 2 node(s) had untolerated taint {team.test/anti-affinity: a}.",
        "trainer",
        "toleration for the taint team.test/anti-affinity",
        "neighbours",
    ),
    (
        "0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules.",
        "trainer",
        "`trainer.affinity` or `trainer.topologySpreadConstraints` in the RLModel",
        "lower",
    ),
    ("0/2 nodes are available: 2 node(s) had untolerated taint(s).", "trainer", "`trainer.tolerations`", "lower"),
    (
        "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
        "2 Insufficient nvidia.com/gpu.",
        "trainer",
        "add nodes, or lower",
        "toleration",
    ),
    (
        "0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/disk-pressure: }.",
        "trainer",
        "because of a problem",
        "toleration",
    ),
    ("0/1 nodes are available: 1 node(s) were unschedulable.", "trainer", "kubectl uncordon", "lower"),
    (
        "0/2 nodes are available: 2 node(s) had untolerated taint {node.kubernetes.io/unschedulable: }.",
        "trainer",
        "kubectl uncordon",
        "toleration",
    ),
    (
        "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
        "inference",
        "`inference.nodeSelector` or `inference.affinity` in the RLModel",
        "lower",
    ),
    (
        '0/3 nodes are available: persistentvolumeclaim "weights" not found.',
        "trainer",
        "Create the PersistentVolumeClaim weights",
        "lower",
    ),
    (
        "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
        "trainer",
        "StorageClass",
        "lower",
    ),
    (
        "0/3 nodes are available: 3 node(s) didn't match PersistentVolume's node affinity.",
        "trainer",
        "in another zone",
        "nodeSelector",
    ),
    ("0/3 nodes are available: 3 node(s) had volume node affinity conflict.", "trainer", "in another zone", "lower"),
    ("0/3 nodes are available: 3 Too many pods.", "trainer", "maxPods", "lower"),
    ("no nodes available to schedule pods", "trainer", "has no node", "lower"),
    ("0/3 nodes are available: 3 something that no list has.", "trainer", "kubectl describe pod", "lower"),
]


@pytest.mark.parametrize(("words", "role", "advice", "absent"), CASES, ids=[c[0][:60] for c in CASES])
def test_advice_follows_the_words_of_the_scheduler(words: str, role: str, advice: str, absent: str) -> None:
    found = present(diagnose_pod(Pod(unscheduled(words + TAIL, role))))
    assert found.problem.reason == "Unschedulable"
    assert words.rstrip(".") in found.problem.message
    assert advice in found.problem.message
    assert absent not in found.problem.message
    assert "preemption" not in found.problem.message.lower()


def test_the_part_about_claims_of_devices_is_left_out_with_that_about_preemption() -> None:
    words = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are."
    message = present(unscheduled_message(Pod(unscheduled(words))))
    assert "deallocate" not in message
    assert "1 Insufficient cpu. Free cpu" in message


def test_gates_and_errors_of_the_scheduler_are_told() -> None:
    gated = present(
        unscheduled_message(
            Pod(unscheduled("Scheduling is blocked due to non-empty scheduling gates", "trainer", "SchedulingGated"))
        )
    )
    assert "`spec.schedulingGates`" in gated
    error = present(
        unscheduled_message(Pod(unscheduled('binding rejected: pod "x" timed out', "trainer", "SchedulerError")))
    )
    assert "binding rejected" in error


def test_a_pod_with_a_node_is_not_unscheduled() -> None:
    obj = pod("trainer", phase="Pending", conditions=[{"type": "PodScheduled", "status": "True"}])
    assert unscheduled_message(Pod(obj)) is None
    assert unscheduled_message(Pod(pod("trainer", phase="Pending"))) is None
