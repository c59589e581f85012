"""The controllers and the node of a cluster in memory: ReplicaSets and Jobs get pods, pods get ready, break and go.

Unlike `step_kubelet` it takes its time: a pod is ready some ticks after it was made and gone some ticks after it was
deleted, and a report may come late.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

from tests.support.cluster_objects import terminated
from tests.support.fake_cluster import KUBELET, FakeCluster

Obj = dict[str, Any]
HOLD = KUBELET
"""Finalizer by which a pod stays until the kubelet says that its processes have ended."""


@dataclass
class Kubelet:
    """One node. All times are in ticks."""

    cluster: FakeCluster
    start_ticks: int = 1
    end_ticks: int = 1
    backoff_ticks: int = 2
    """Wait of a Job before it replaces a pod."""
    report_every: int = 1
    """Ticks between two looks of the node at its pods: what happens between them is reported late."""
    stopped: bool = False
    now: int = 0
    _made: dict[str, int] = field(default_factory=dict)
    _leaving: dict[str, int] = field(default_factory=dict)
    _filled: set[str] = field(default_factory=set)
    """UIDs of owners that have had a pod."""
    _empty: dict[str, int] = field(default_factory=dict)
    """Since when a Job has had no pod."""
    _numbers: Any = field(default_factory=itertools.count)

    def tick(self) -> None:
        """One look at everything."""
        self.now += 1
        if self.stopped or self.now % self.report_every:
            return
        for pod in self.pods():
            self._end(pod)
        for owner in self.cluster.all("ReplicaSet", "Job"):
            if not owner["metadata"].get("deletionTimestamp"):
                self._fill(owner)
        for pod in self.pods():
            self._start(pod)

    def pods(self, role: str | None = None) -> list[Obj]:
        """All pods, or those of one role."""
        pods = self.cluster.all("Pod")
        return pods if role is None else [p for p in pods if p["metadata"]["labels"]["rlrun.dev/role"] == role]

    def living(self, role: str | None = None) -> list[Obj]:
        """Pods that run and are not on their way out."""
        return [
            p
            for p in self.pods(role)
            if p["status"]["phase"] in ("Pending", "Running") and not p["metadata"].get("deletionTimestamp")
        ]

    def ready(self, role: str) -> list[Obj]:
        """Living pods that are ready."""
        return [p for p in self.living(role) if p["status"]["conditions"][0]["status"] == "True"]

    def crash(self, role: str, code: int = 1, reason: str = "Error", message: str = "") -> bool:
        """A container fails. A ReplicaSet starts it again in its pod, a Job in another. False without a living pod."""
        for pod in self.living(role)[:1]:
            if pod["spec"].get("restartPolicy") == "Never":
                self._terminate(pod, terminated(code, reason, message))
                return True
            status = pod["status"]["containerStatuses"][0]
            status["restartCount"] += 1
            status["lastState"] = terminated(code, reason, message)
            pod["status"]["conditions"][0]["status"] = "False"
            # Whoever looks in the next tick sees it starting.
            self._made[pod["metadata"]["uid"]] = self.now + 1
            self.cluster.put(pod)
            return True
        return False

    def delete(self, role: str) -> bool:
        """Delete the pod, as a user would; its ReplicaSet or Job makes another."""
        for pod in self.living(role)[:1]:
            self.cluster.request_deletion(pod)
            return True
        return False

    def evict(self, role: str) -> bool:
        """The eviction API takes the pod away. Reason `Evicted` is the kubelet's own, on a node that runs out."""
        for pod in self.living(role)[:1]:
            pod["status"]["phase"] = "Failed"
            pod["status"]["conditions"] = [
                {"type": "Ready", "status": "False"},
                {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"},
            ]
            pod["status"]["containerStatuses"][0]["state"] = terminated(137)
            pod["metadata"]["finalizers"] = []
            self.cluster.put(pod)
            return True
        return False

    def finish(self, role: str, code: int, message: str) -> None:
        """The process of the pod ends, and its Job with it."""
        for pod in self.living(role):
            self._terminate(pod, terminated(code, "Completed", message))

    def _terminate(self, pod: Obj, state: Obj) -> None:
        pod["status"]["phase"] = "Failed" if state["terminated"]["exitCode"] else "Succeeded"
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        pod["status"]["containerStatuses"][0]["state"] = state
        pod["metadata"]["finalizers"] = []
        self.cluster.put(pod)

    def _fill(self, owner: Obj) -> None:
        uid = owner["metadata"]["uid"]
        mine = [p for p in self.pods() if any(o["uid"] == uid for o in p["metadata"]["ownerReferences"])]
        if owner["kind"] == "Job" and any(p["status"]["phase"] == "Succeeded" for p in mine):
            return
        here = [
            p
            for p in mine
            if p["status"]["phase"] in ("Pending", "Running") and not p["metadata"].get("deletionTimestamp")
        ]
        if owner["kind"] == "Job" and not here and self._waits(uid, mine):
            return
        for _ in range(owner["spec"].get("replicas", 1) - len(here)):
            self._make(owner)

    def _waits(self, job: str, pods: list[Obj]) -> bool:
        """True while a Job has a pod that terminates, and in its back-off after the end of a pod."""
        if any(p["metadata"].get("deletionTimestamp") for p in pods):
            return True
        if job not in self._filled:
            return False
        return self.now - self._empty.setdefault(job, self.now) < self.backoff_ticks

    def _make(self, owner: Obj) -> None:
        self._filled.add(owner["metadata"]["uid"])
        self._empty.pop(owner["metadata"]["uid"], None)
        template = owner["spec"]["template"]
        name = f"{owner['metadata']['name']}-{next(self._numbers):04d}"
        pod: Obj = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": owner["metadata"]["namespace"],
                "labels": dict(template["metadata"]["labels"]),
                "ownerReferences": [{"uid": owner["metadata"]["uid"]}],
                "finalizers": [HOLD],
            },
            "spec": template["spec"],
            "status": {
                "phase": "Pending",
                "conditions": [{"type": "Ready", "status": "False"}],
                "containerStatuses": [
                    {"name": c["name"], "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}
                    for c in template["spec"]["containers"]
                ],
            },
        }
        self.cluster.put(pod)
        made = self.cluster.find("Pod", name, pod["metadata"]["namespace"])
        if made is not None:
            self._made[made["metadata"]["uid"]] = self.now

    def _start(self, pod: Obj) -> None:
        if pod["status"]["phase"] not in ("Pending", "Running") or pod["metadata"].get("deletionTimestamp"):
            return
        if self.now - self._made.get(pod["metadata"]["uid"], 0) < self.start_ticks:
            return
        if pod["status"]["conditions"][0]["status"] == "True":
            return
        pod["status"]["phase"] = "Running"
        pod["status"]["conditions"][0]["status"] = "True"
        for status in pod["status"]["containerStatuses"]:
            status["state"] = {"running": {}}
        self.cluster.put(pod)

    def _end(self, pod: Obj) -> None:
        if not pod["metadata"].get("deletionTimestamp"):
            return
        since = self._leaving.setdefault(pod["metadata"]["uid"], self.now)
        if self.now - since >= self.end_ticks:
            pod["metadata"]["finalizers"] = []
            self.cluster.request_deletion(pod)
