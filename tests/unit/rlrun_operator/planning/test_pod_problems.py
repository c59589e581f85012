"""Pods that the cluster ended or did not admit.

Containers of other programs in the pods of a run.

Problems read from the status of a pod.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rlrun.api.base.pod_shape import OWN_CONTAINERS
from rlrun.api.run_status import StartupFailureKind
from rlrun.constants import LOG_HOLD_CONTAINER
from rlrun.kube.objects import Obj
from rlrun.kube.pods import Pod
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.observation import PodEvent
from rlrun_operator.planning.pod_failures import count_restarts, find_outcome
from rlrun_operator.planning.pod_problems import (
    MEMORY_ADVICE,
    diagnose_pod,
    explain_cluster_end,
    pod_problems,
    repeated_end,
)

from tests.support.cluster_objects import (
    NODE_FULL,
    OUT_OF_DISK,
    evict,
    inject,
    pod,
    reject,
    terminated,
    without_container,
)
from tests.support.expectations import present

REJECTIONS = [
    ("UnexpectedAdmissionError", "", "device plugin"),
    ("OutOfcpu", "Node didn't have enough resource: cpu, requested: 500, used: 100, capacity: 200", "considered free"),
    ("OutOfnvidia.com/gpu", "Node didn't have enough resource: nvidia.com/gpu", "considered free"),
    ("NodeAffinity", "Predicate NodeAffinity failed", "labels have changed"),
    ("NodeShutdown", "Pod was rejected as the node is shutting down.", "shutting down;"),
    ("Evicted", "The node had condition: [DiskPressure]. ", "cordon"),
    ("TopologyAffinityError", "Resources cannot be allocated with Topology locality", "NUMA"),
    ("node(s) had taints that the pod didn't tolerate", "Predicate TaintToleration failed", "kubectl describe node"),
]


@pytest.mark.parametrize(("reason", "words", "advice"), REJECTIONS, ids=[r[0] for r in REJECTIONS])
def test_a_node_that_does_not_admit_the_pod(reason: str, words: str, advice: str) -> None:
    obj = reject(pod("trainer", phase="Pending"), reason, words)
    found = present(explain_cluster_end(Pod(obj)))
    assert found.reason == "PodRejected"
    assert all(part in found.message for part in (reason, words.strip(), advice, "gpu-1", "another pod"))
    assert ".." not in found.message


ENDS = [
    ("Evicted", "The node was low on resource: memory. ", "raise the pod's requests"),
    ("Preempting", "Preempted in order to admit critical pod", "critical pod"),
    ("Terminated", "Pod was terminated in response to imminent node shutdown.", "was shut down"),
]


@pytest.mark.parametrize(("reason", "words", "advice"), ENDS, ids=[e[0] for e in ENDS])
def test_an_end_by_the_cluster(reason: str, words: str, advice: str) -> None:
    obj = pod("trainer", phase="Failed", state=terminated(137))
    obj["status"] |= {"reason": reason, "message": words}
    found = present(explain_cluster_end(Pod(obj)))
    assert found.reason == "PodEvicted"
    assert all(part in found.message for part in (reason, words.strip(), advice))


def test_other_pods_were_not_ended_by_the_cluster() -> None:
    assert explain_cluster_end(Pod(pod("trainer", phase="Failed", state=terminated(1)))) is None
    assert explain_cluster_end(Pod(pod("trainer"))) is None


def test_a_rejection_is_a_replacement_and_no_crash() -> None:
    refused = reject(pod("trainer", phase="Pending"))
    assert Pod(refused).is_disrupted
    # A kubelet that starts again judges pods that ran before, and their containers end.
    ended = pod("trainer", phase="Pending", state=terminated(137))["status"]["containerStatuses"]
    for obj in (refused, reject(pod("trainer", phase="Pending"), containerStatuses=ended)):
        found = count_restarts([], [Pod(obj)])
        assert (found.restarts, found.crashes) == (1, [])


NOW = datetime(2026, 1, 1, 0, 6, tzinfo=UTC)
WANTED = {"trainer": {"trainer": 1}, "inference": {"inference": 2}}


def evicted(component: str, uid: str, minute: int) -> Obj:
    full = "The node was low on resource: ephemeral-storage. "
    return evict(pod(component, uid=uid, created=f"2026-01-01T00:{minute:02}:00Z"), full)


def test_a_node_that_evicts_each_next_pod_is_a_problem() -> None:
    pods = [evicted("trainer", "a", 0), evicted("trainer", "b", 2)]
    starting = pod("trainer", uid="c", created="2026-01-01T00:04:00Z")
    found = present(repeated_end([*map(Pod, pods), Pod(starting)], WANTED, NOW))
    assert (found.reason, "low on resource: ephemeral-storage" in found.message) == ("PodEvicted", True)
    assert repeated_end([Pod(pods[0]), Pod(starting)], WANTED, NOW) is None


def test_evictions_far_apart_or_of_all_pods_at_once_or_with_a_ready_pod_are_no_row() -> None:
    assert repeated_end([Pod(evicted("trainer", "a", 0)), Pod(evicted("trainer", "b", 45))], WANTED, NOW) is None
    nearby = [evicted("trainer", "a", 0), evicted("trainer", "b", 2)]
    assert repeated_end(list(map(Pod, nearby)), WANTED, NOW + timedelta(hours=20)) is None, (
        "the second pod may have run for 20 hours"
    )
    both = [evicted("inference", "a", 0), evicted("inference", "b", 0)]
    assert repeated_end(list(map(Pod, both)), WANTED, NOW) is None
    three = [*both, evicted("inference", "c", 2)]
    assert repeated_end(list(map(Pod, three)), WANTED, NOW) is not None
    ready = pod("inference", uid="d", created="2026-01-01T00:01:00Z", ready=True)
    assert repeated_end([*map(Pod, three), Pod(ready)], WANTED, NOW) is None


CRASHING: dict[str, Any] = {"restarts": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}


def test_restarts_of_an_injected_container_are_not_those_of_the_run() -> None:
    obj = inject(pod("trainer"), **CRASHING, lastState=terminated(1))
    found = count_restarts([], [Pod(obj)])
    assert (found.restarts, found.crashes, found.components[0].crashes) == (0, [], 0)


def test_the_exit_code_of_an_injected_container_does_not_end_the_run() -> None:
    obj = inject(pod("trainer"), **CRASHING, lastState=terminated(64, message='{"reason": "X", "message": "y"}'))
    found = present(diagnose_pod(Pod(obj)))
    assert (found.problem.reason, found.final) == ("InjectedContainerFailed", False)
    assert "istio-proxy" in found.problem.message


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({**CRASHING, "lastState": terminated(1)}, "exit code 1"),
        ({"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}, "ImagePullBackOff: not found"),
        ({"state": terminated(1)}, "exit code 1"),
    ],
)
def test_an_injected_container_that_keeps_the_pod_from_being_ready(status: dict[str, Any], words: str) -> None:
    found = present(diagnose_pod(Pod(inject(pod("trainer"), **status))))
    assert words in found.problem.message
    assert "set `trainer.meshInjection` in the RLModel to `Refused`" in found.problem.message
    assert found.startup_failure is None


def native(obj: dict[str, Any], **status: Any) -> dict[str, Any]:
    """The pod with a proxy as a native sidecar: an init container that keeps running."""
    obj["spec"]["initContainers"] = [{"name": "istio-proxy", "image": "mesh:1", "restartPolicy": "Always"}]
    shown = {"name": "istio-proxy", "restartCount": 3, "started": True, "state": {"running": {}}, **status}
    obj["status"]["initContainerStatuses"] = [shown]
    return obj


def test_a_native_proxy_that_keeps_running_is_none_of_the_runs_containers() -> None:
    obj = native(pod("orchestrator", state=terminated(1)))
    assert not Pod(obj).has_only_injected_running, "the kubelet ends it"
    assert [end.container for end in Pod(obj).terminations] == ["orchestrator"]
    assert count_restarts([], [Pod(native(pod("trainer")))]).restarts == 0
    assert diagnose_pod(Pod(native(pod("trainer")))) is None
    failing = present(diagnose_pod(Pod(native(pod("trainer"), **CRASHING, lastState=terminated(1)))))
    assert failing.problem.reason == "InjectedContainerFailed"


def test_a_problem_of_the_runs_own_container_comes_first() -> None:
    found = present(diagnose_pod(Pod(inject(pod("trainer", state=terminated(1)), **CRASHING, lastState=terminated(1)))))
    assert found.problem.reason == "TrainerCrashed"


@pytest.mark.parametrize("status", [{}, {"restarts": 2, "lastState": terminated(1)}])
def test_an_injected_container_that_runs_explains_nothing(status: dict[str, Any]) -> None:
    assert diagnose_pod(Pod(inject(pod("trainer"), **status))) is None


def orchestrator(code: int, policy: str = "Never", message: str = "") -> dict[str, Any]:
    obj = inject(pod("orchestrator", state=terminated(code, message=message)))
    obj["spec"]["restartPolicy"] = policy
    return obj


def test_an_orchestrator_that_crashed_beside_a_living_proxy_is_a_crash_and_not_alive() -> None:
    obj = orchestrator(1)
    assert Pod(obj).has_only_injected_running
    assert not Pod(obj).is_alive
    found = count_restarts([], [Pod(obj)])
    assert (found.restarts, [c.exit_code for c in found.crashes]) == (1, [1])
    assert count_restarts(found.components, [Pod(obj)]).crashes == []
    assert find_outcome({}, [Pod(obj)]) is None


@pytest.mark.parametrize(("code", "fails"), [(0, False), (64, True)])
def test_an_orchestrator_that_ended_beside_a_living_proxy_ends_the_run(code: int, fails: bool) -> None:
    obj = orchestrator(code)
    assert not Pod(obj).is_alive
    assert (present(find_outcome({}, [Pod(obj)])).problem is not None) == fails


@pytest.mark.parametrize(
    "obj",
    [
        orchestrator(1, "Always"),
        orchestrator(1, "OnFailure"),
        pod("orchestrator", state=terminated(1)),
        inject(pod("orchestrator")),
        inject(pod("orchestrator", state=terminated(1), phase="Failed"), state=terminated(0)),
    ],
    ids=["always restarts", "restarts after a failure", "nothing injected", "still runs", "the pod has ended"],
)
def test_other_pods_are_not_outlived(obj: dict[str, Any]) -> None:
    assert not Pod({**obj, "spec": {"restartPolicy": "Never", **obj["spec"]}}).has_only_injected_running


def test_ends_of_injected_containers_are_not_ours() -> None:
    assert Pod(inject(pod("trainer"), state=terminated(1))).terminations == []


def test_a_closed_readiness_gate_is_not_a_silent_node() -> None:
    conditions = [{"type": "ContainersReady", "status": "True"}]
    obj = pod("trainer", conditions=conditions)
    assert Pod(obj).is_node_silent
    message = 'the status of pod readiness gate "lb.example.com/target" is not "True", but False'
    obj["status"]["conditions"][0] |= {"reason": "ReadinessGatesNotReady", "message": message}
    assert not Pod(obj).is_node_silent
    found = present(diagnose_pod(Pod(obj)))
    assert found.problem.reason == "ReadinessGateClosed"
    assert message in found.problem.message


WAITING_NEW = {"waiting": {"reason": "SomethingNewError", "message": "no such thing"}}
TROUBLES: list[tuple[str, Obj, str | None, str]] = [
    ("ready", pod("trainer", ready=True, last=terminated(1)), None, ""),
    ("just starting", pod("trainer"), None, ""),
    ("leaving", pod("trainer", deleting=True, state=terminated(1)), None, ""),
    ("succeeded", pod("orchestrator", phase="Succeeded", state=terminated(0)), None, ""),
    (
        "back-off of a pull",
        pod("trainer", state={"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}),
        "ImagePullFailed",
        "img:1",
    ),
    ("no such image here", pod("trainer", state={"waiting": {"reason": "ErrImageNeverPull"}}), "ImagePullFailed", ""),
    (
        "secret missing",
        pod("environment", state={"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x"'}}),
        "CreateContainerConfigError",
        'secret "x"',
    ),
    (
        "trainer out of memory",
        pod("trainer", state={"waiting": {"reason": "CrashLoopBackOff"}}, last=terminated(137, "OOMKilled")),
        "TrainerOutOfMemory",
        "256Mi",
    ),
    (
        "inference out of memory",
        pod("inference", state={"waiting": {"reason": "CrashLoopBackOff"}}, last=terminated(137, "OOMKilled")),
        "InferenceOutOfMemory",
        "inference.resources",
    ),
    (
        "environment out of memory",
        pod("environment", "env-1", state=terminated(137, "OOMKilled")),
        "EnvironmentOutOfMemory",
        "computeSize",
    ),
    ("environment out of disk", evict(pod("environment", "env-1")), "EnvironmentOutOfDisk", "computeSize"),
    ("volume named", evict(pod("environment", "env-1")), "EnvironmentOutOfDisk", 'volume "tmp" exceeds'),
    ("trainer out of disk", evict(pod("trainer"), OUT_OF_DISK[1]), "TrainerOutOfDisk", "trainer.resources"),
    ("engine out of disk", evict(pod("inference"), OUT_OF_DISK[2]), "InferenceOutOfDisk", "inference.resources"),
    ("orchestrator out of disk", evict(pod("orchestrator")), "OrchestratorOutOfDisk", "ephemeralStorage"),
    ("evicted for a full node", evict(pod("environment"), NODE_FULL), "PodEvicted", "low on resource"),
    ("refused by its node", reject(pod("trainer", phase="Pending")), "PodRejected", "no healthy devices present"),
    (
        "gone with its node",
        pod("trainer", restarts=1, last=terminated(255, "Unknown")),
        "ContainerLost",
        "was restarted",
    ),
    (
        "of another architecture",
        pod("trainer", state=terminated(128, "StartError", "exec /usr/bin/python: exec format error")),
        "CreateFailed",
        "exec format error. Check",
    ),
    ("waits for what Kubernetes has no list of", pod("trainer", state=WAITING_NEW), "CreateFailed", "no such thing"),
    (
        "crash with a log",
        pod("trainer", state=terminated(1, message="Traceback\n  File\nValueError: bad shape")),
        "TrainerCrashed",
        "ValueError: bad shape",
    ),
    (
        "restarted, not ready yet",
        pod("inference", restarts=1, last=terminated(1, message="CUDA error")),
        "InferenceCrashed",
        "CUDA error",
    ),
    (
        "told problem",
        pod("environment", state=terminated(64, message='{"reason": "EnvironmentLoadFailed", "message": "fix it"}')),
        "EnvironmentLoadFailed",
        "fix it",
    ),
    (
        "unschedulable",
        pod(
            "trainer",
            phase="Pending",
            conditions=[
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes, no gpu"}
            ],
        ),
        "Unschedulable",
        "no gpu",
    ),
]


@pytest.mark.parametrize(("what", "obj", "reason", "hint"), TROUBLES, ids=[t[0] for t in TROUBLES])
def test_problem_is_read_from_the_pod(what: str, obj: Obj, reason: str | None, hint: str) -> None:
    found = diagnose_pod(Pod(obj))
    assert (found.problem.reason if found else None) == reason
    if found:
        assert hint in found.problem.message
        assert found.final == (what == "told problem")


def test_init_container_that_gives_up_is_final() -> None:
    obj = pod("trainer", phase="Pending", state={"waiting": {"reason": "PodInitializing"}})
    message = '{"reason": "ModelNotFound", "message": "no complete model at s3://x/y"}'
    obj["status"]["initContainerStatuses"] = [
        {
            "name": "fetch-model",
            "restartCount": 1,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": terminated(64, message=message),
        }
    ]
    found = present(diagnose_pod(Pod(obj)))
    assert found.final
    assert found.problem == Problem(reason="ModelNotFound", message="no complete model at s3://x/y")


def test_eviction_explains_why_its_replacement_is_starting() -> None:
    evicted = evict(pod("environment", "env-0", uid="old"), finished="2026-01-01T01:00:00Z")
    replacement = pod("environment", "env-0", uid="new", created="2026-01-01T01:00:02Z")
    (found,) = pod_problems([Pod(evicted), Pod(replacement)])
    assert (found.component, found.problem.reason, found.final) == ("env-0", "EnvironmentOutOfDisk", False)


@pytest.mark.parametrize(
    "other",
    [
        pod("environment", "env-0", uid="new", created="2026-01-01T01:00:02Z", ready=True),
        pod("environment", "env-0", uid="new", created="2026-01-01T01:00:02Z", deleting=True),
        pod("environment", "env-1", uid="new", created="2026-01-01T01:00:02Z"),
    ],
    ids=["ready", "leaving", "of another environment"],
)
def test_eviction_explains_nothing_of_other_pods(other: Obj) -> None:
    evicted = evict(pod("environment", "env-0", uid="old"), finished="2026-01-01T01:00:00Z")
    living = pod("environment", "env-0", uid="living", ready=True)
    assert pod_problems([Pod(evicted), Pod(living), Pod(other)]) == []


def test_eviction_explains_only_the_pod_created_next() -> None:
    evicted = evict(pod("environment", "env-0", uid="old"), finished="2026-01-01T01:00:00Z")
    next_pod = pod("environment", "env-0", uid="next", created="2026-01-01T01:00:02Z", ready=True)
    later = pod("environment", "env-0", uid="later", created="2026-01-01T03:00:00Z")
    assert pod_problems([Pod(evicted), Pod(next_pod), Pod(later)]) == []


def ended_by_cluster(ended: Obj, reason: str, words: str) -> Obj:
    ended["status"] |= {"phase": "Failed", "reason": reason, "message": words, "containerStatuses": []}
    return ended


def disrupted(reason: str, words: str, **changes: Any) -> Obj:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": words}
    return pod("trainer", uid="old", conditions=[condition], **changes)


CLUSTER_ENDS = [
    ended_by_cluster(pod("trainer", uid="old"), "Evicted", "The node was low on resource: ephemeral-storage."),
    ended_by_cluster(pod("trainer", uid="old"), "Evicted", "The node had condition: [MemoryPressure]."),
    ended_by_cluster(pod("trainer", uid="old"), "Evicted", "The node was low on resource: pids."),
    ended_by_cluster(pod("trainer", uid="old"), "Preempting", "Preempted in order to admit critical pod"),
    ended_by_cluster(
        pod("trainer", uid="old"), "Terminated", "Pod was terminated in response to imminent node shutdown."
    ),
    ended_by_cluster(pod("trainer", uid="old"), "NodeLost", "Node gpu-1 which was running pod x is unresponsive"),
    ended_by_cluster(
        pod("trainer", uid="old"), "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
    ),
    reject(pod("trainer", uid="old"), "OutOfcpu", "Node didn't have enough resource: cpu"),
    reject(pod("trainer", uid="old"), "NodeAffinity", "Predicate NodeAffinity failed"),
    reject(pod("trainer", uid="old")),
    disrupted(
        "PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod", deleting=True
    ),
    disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", deleting=True),
    disrupted("EvictionByEvictionAPI", "Eviction API: evicting", deleting=True),
    disrupted("DeletionByPodGC", "PodGC: node no longer exists", phase="Failed"),
]


@pytest.mark.parametrize(
    "ended", CLUSTER_ENDS, ids=lambda p: f"{p['status'].get('reason')}-{p['status']['conditions'][-1].get('reason')}"
)
@pytest.mark.parametrize("skew_minutes", [-10, 0, 10])
def test_the_words_of_an_end_by_the_cluster_are_shown_while_the_next_pod_starts(ended: Obj, skew_minutes: int) -> None:
    words = ended["status"].get("message") or ended["status"]["conditions"][-1]["message"]
    # The kubelet's clock differs from the API server's.
    ended = {**ended, "status": {**ended["status"], "startTime": f"2026-01-01T01:{10 + skew_minutes:02}:00Z"}}
    replacement = pod("trainer", uid="new", created="2026-01-01T01:12:00Z", phase="Pending")
    (found,) = pod_problems([Pod(ended), Pod(replacement)])
    assert words.rstrip(".") in found.problem.message
    assert found.problem.reason in ("PodEvicted", "PodRejected")


def test_a_problem_of_the_replacement_comes_before_the_eviction() -> None:
    evicted = evict(pod("environment", "env-0", uid="old"))
    replacement = pod("environment", "env-0", uid="new", state={"waiting": {"reason": "ErrImagePull"}})
    assert [found.problem.reason for found in pod_problems([Pod(evicted), Pod(replacement)])] == ["ImagePullFailed"]


def test_rejection_explains_why_its_replacement_is_starting() -> None:
    refused = reject(pod("trainer", uid="old", phase="Pending"), startTime="2026-01-01T01:00:00Z")
    replacement = pod("trainer", uid="new", created="2026-01-01T01:00:02Z")
    (found,) = pod_problems([Pod(refused), Pod(replacement)])
    assert (found.component, found.problem.reason, found.final) == ("trainer", "PodRejected", False)


@pytest.mark.parametrize(
    ("role", "container", "setting"),
    [
        ("trainer", "trainer", "trainer.resources.limits.memory"),
        ("inference", "vllm", "inference.resources.limits.memory"),
        ("inference", "sidecar", "runs.sidecarResources"),
        ("inference", "engine-access", "runs.sidecarResources"),
        ("inference", "fetch-model", "runs.fetcherResources"),
        ("trainer", "fetch-model", "runs.fetcherResources"),
        ("environment", "environment", "computeSize"),
        ("orchestrator", "orchestrator", "runs.orchestratorResources"),
    ],
)
def test_out_of_memory_names_the_setting_of_the_container(role: str, container: str, setting: str) -> None:
    found = present(diagnose_pod(Pod(pod(role, state=terminated(137, "OOMKilled"), container=container))))
    assert found.problem.reason == f"{role.capitalize()}OutOfMemory"
    assert setting in found.problem.message


def test_every_container_has_a_setting_of_its_memory() -> None:
    assert {name for names in OWN_CONTAINERS.values() for name in names} == {*MEMORY_ADVICE, LOG_HOLD_CONTAINER}


MISSING = PodEvent("FailedMount", 'MountVolume.SetUp failed for volume "config" : configmap "x" not found', True)


@pytest.mark.parametrize("waits", ["ContainerCreating", "PodInitializing"])
def test_a_pod_without_a_container_is_explained_by_its_newest_event(waits: str) -> None:
    obj = without_container(waits=waits)
    found = present(diagnose_pod(Pod(obj), MISSING))
    assert (found.problem.reason, found.startup_failure) == ("VolumeMountFailed", StartupFailureKind.config_error)
    assert 'configmap "x" not found' in found.problem.message
    assert [p.problem for p in pod_problems([Pod(obj)], {"pod-trainer": MISSING})] == [found.problem]
    assert diagnose_pod(Pod(obj)) is None


@pytest.mark.parametrize(
    "obj",
    [
        pod("trainer", ready=True),
        pod("trainer"),
        pod("trainer", phase="Pending"),
        inject(without_container(), state={"running": {}}),
    ],
    ids=["ready", "runs", "no node", "a container runs"],
)
def test_an_event_says_nothing_about_a_pod_that_has_started_or_has_no_node(obj: Obj) -> None:
    assert diagnose_pod(Pod(obj), MISSING) is None


def test_what_the_container_says_comes_before_an_event() -> None:
    assert (
        present(diagnose_pod(Pod(without_container(waits="ErrImagePull")), MISSING)).problem.reason == "ImagePullFailed"
    )
