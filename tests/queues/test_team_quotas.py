"""Runs of three teams in queues of real Kueue, on KWOK nodes with as many GPUs as the teams have quota (`make queues`).

Real are etcd, API server, controllers, scheduler, Kueue and operator. KWOK's nodes report pods as ready; the test ends
the orchestrator of each run all of whose pods have had nodes, so that the next run gets the quota.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from rlrun.constants import ROLE_LABEL, Role
from rlrun.kube.objects import Obj, label
from rlrun.protocol.orchestrator import RunPhase, RunStatus

from bench.scale.testbed import objects
from bench.scale.testbed.bulk import Call, RefusedError
from bench.scale.testbed.cluster import NODES, OperatorProcess, ScaleCluster, wait_for
from bench.scale.testbed.event_watch import EventWatch
from local_cluster.control_plane.kueue import Kueue
from tests.support.gpu_ledger import GPU, Event, GpuLedger, broken_rules
from tests.support.kueue_process import running_kueue

RUNS = int(os.environ.get("RLRUN_QUEUED_RUNS", "200"))
GPUS_PER_NODE = 8
TOTAL = NODES * GPUS_PER_NODE
QUOTAS = {"red": 32, "blue": 24, "green": 24}
"""GPUs of each team. They are all that there are."""
BORROWED = 24
"""GPUs that a team may use above its quota while the others leave them."""
LIMITS = {team: quota + BORROWED for team, quota in QUOTAS.items()}
ENGINES = {"teams/small": 1, "teams/wide": 3}
"""Engines of the runs of each model. Each engine and each trainer has two GPUs, so that every node can be filled."""
QUEUE = "kueue.x-k8s.io/v1beta2"
FLAVOR = "gpu-nodes"
SECONDS = 120.0
"""Deadline of a wait, counted anew when a run has finished."""


def create(kind: str, name: str, spec: Obj, namespace: str = "", version: str = QUEUE) -> Call:
    place = f"/apis/{version}/namespaces/{namespace}" if namespace else f"/apis/{version}"
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
    return Call("POST", f"{place}/{kind.lower()}s", body)


def quota_objects() -> Iterator[Call]:
    """The teams' namespaces, the queues with their quotas in one cohort, and the models."""
    yield create("ResourceFlavor", FLAVOR, {})
    for team, quota in QUOTAS.items():
        gpus = {"name": GPU, "nominalQuota": str(quota), "borrowingLimit": str(BORROWED)}
        plenty = [{"name": name, "nominalQuota": "100Ti"} for name in ("cpu", "memory", "ephemeral-storage")]
        flavor: Obj = {"name": FLAVOR, "resources": [gpus, *plenty]}
        spec: Obj = {
            "cohortName": "teams",
            "namespaceSelector": {},
            "preemption": {"reclaimWithinCohort": "Any"},
            "resourceGroups": [{"coveredResources": [r["name"] for r in flavor["resources"]], "flavors": [flavor]}],
        }
        yield Call("POST", "/api/v1/namespaces", {"metadata": {"name": team}})
        yield create("ClusterQueue", team, spec)
        yield create("LocalQueue", "team", {"clusterQueue": team}, team)
    for model, engines in ENGINES.items():
        spec = {"id": model, "source": "s3://rlrun/models/none", "seqLen": 256, "trainer": {"gpus": 2}}
        spec["inference"] = {"gpus": 2, "replicas": engines}
        yield create("RLModel", model.replace("/", "-"), spec, version="/".join(objects.RUNS))


def runs_of(team: str) -> Iterator[Call]:
    """A third of the runs, with both models by turns."""
    for index in range(list(QUOTAS).index(team), RUNS, len(QUOTAS)):
        run = objects.run(index)
        spec = {**run["spec"], "model": list(ENGINES)[index // len(QUOTAS) % len(ENGINES)], "queueName": "team"}
        yield Call("POST", f"/{objects.RLRUNS}/namespaces/{team}/rlruns", {**run, "spec": spec})


@dataclass
class Platform:
    """The processes, and all events of pods and Workloads since there were none."""

    cluster: ScaleCluster
    kueue: Kueue
    operator: OperatorProcess
    events: list[Event] = field(default_factory=list)
    ledger: GpuLedger = field(default_factory=lambda: GpuLedger(LIMITS, TOTAL))
    """The state by the events that have arrived."""
    _arrived: SimpleQueue[Event] = field(default_factory=SimpleQueue)
    _ended: set[str] = field(default_factory=set)

    def take(self, kind: str, obj: Obj, _: float) -> None:
        self._arrived.put((kind, obj))

    def create(self, calls: Iterable[Call]) -> None:
        self.cluster.bulk.send([list(calls)])

    def follow(self) -> None:
        """Read the events that have arrived."""
        while True:
            try:
                event = self._arrived.get_nowait()
            except Empty:
                return
            self.events.append(event)
            self.ledger.apply(event)

    def end_whole_runs(self) -> None:
        """End the orchestrators of all runs that are whole, as they do after their last step."""
        for run in self.ledger.whole:
            for pod in self.ledger.pods(run):
                if label(pod, ROLE_LABEL) == Role.orchestrator and pod["metadata"]["uid"] not in self._ended:
                    self._ended.add(pod["metadata"]["uid"])
                    # Where Kueue has just evicted the run, the pod is gone, and another one follows.
                    with suppress(RefusedError):
                        self.cluster.bulk.send([[end_of(pod)]])

    def wait(self, what: str, done: Callable[[], Any], act: Callable[[], None] = lambda: None) -> None:
        """Follow the events and act until something is done. The deadline moves with each run that finishes."""
        finished, since = self.ledger.finished(), time.monotonic()
        while not done():
            self.operator.require_running()
            self.follow()
            act()
            if self.ledger.finished() > finished:
                finished, since = self.ledger.finished(), time.monotonic()
            if time.monotonic() - since > SECONDS:
                problems = "\n".join(broken_rules(self.events, GpuLedger(LIMITS, TOTAL))[:20])
                logs = "\n".join(log.read_text()[-3000:] for log in (self.operator.log, self.kueue.log))
                pytest.fail(f"not within {SECONDS:.0f} s: {what} ({finished} runs have finished)\n{problems}\n{logs}")
            time.sleep(0.2)

    def phases(self) -> list[str]:
        """The phases of all runs."""
        path = f"/{objects.RLRUNS}/rlruns"
        found = self.cluster.api.call_api(
            path, "GET", auth_settings=["BearerToken"], response_types_map={200: "object"}, _return_http_data_only=True
        )
        return [str((run.get("status") or {}).get("phase")) for run in found["items"]]


def end_of(pod: Obj) -> Call:
    """The report of the node that the orchestrator has completed its run."""
    last = RunStatus(phase=RunPhase.completed, step=1000, max_steps=1000)
    ended = {"exitCode": 0, "message": json.dumps(last.to_json_dict()), "finishedAt": datetime.now(UTC).isoformat()}
    container = {"name": "orchestrator", "image": "none", "imageID": "none", "ready": False, "restartCount": 0}
    status = {"phase": "Succeeded", "containerStatuses": [{**container, "state": {"terminated": ended}}]}
    place = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
    return Call("PATCH", place, {"status": status}, objects.MERGE_PATCH)


@pytest.fixture
def platform() -> Iterator[Platform]:
    with ExitStack() as stack:
        cluster = stack.enter_context(ScaleCluster(GPUS_PER_NODE))
        kueue = stack.enter_context(running_kueue(cluster.control_plane, cluster.api))
        platform = Platform(cluster, kueue, cluster.start_operator(kueue={}))
        wait_for("an operator that leads", platform.operator.is_ready, SECONDS)
        platform.create(quota_objects())
        for path in ("/api/v1/pods", f"/apis/{QUEUE}/workloads"):
            stack.enter_context(EventWatch(cluster.api, path, platform.take))
        yield platform


def test_runs_of_three_teams_start_whole_within_their_quotas(platform: Platform) -> None:
    began, ledger = time.monotonic(), platform.ledger
    platform.create(runs_of("red"))
    platform.wait("a team that borrows", lambda: ledger.gpus("red") > QUOTAS["red"])
    platform.create(runs_of("blue"))
    platform.create(runs_of("green"))
    # No run ends before, so that the other teams have to take back what was borrowed.
    platform.wait("an eviction", lambda: ledger.evicted)
    platform.wait("the end of all runs", lambda: ledger.finished() == RUNS, platform.end_whole_runs)
    print(f"{RUNS} runs in {time.monotonic() - began:.0f} s, {len(ledger.evicted)} of them evicted on the way")
    assert broken_rules(platform.events, GpuLedger(LIMITS, TOTAL)) == []
    assert platform.phases() == ["Completed"] * RUNS
