"""Controllers and node of a cluster in memory: ReplicaSets and Jobs get pods."""

from rlrun.kube.objects import Obj

from tests.support.cluster_objects import terminated
from tests.support.fake_cluster import FakeCluster


def step_kubelet(cluster: FakeCluster, *, ready: bool = True) -> None:
    """ReplicaSets, Deployments and running Jobs have one pod per replica; pods without them go."""
    wanted: dict[str, Obj] = {}
    for obj in cluster.all("ReplicaSet", "Deployment", "Job"):
        template = obj["spec"]["template"]
        if obj["kind"] == "Job" and obj.get("status", {}).get("conditions"):
            continue
        for i in range(obj["spec"].get("replicas", 1)):
            name = f"{obj['metadata']['name']}-{i}"
            wanted[name] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": obj["metadata"]["namespace"],
                    "labels": template["metadata"]["labels"],
                    "ownerReferences": [{"uid": obj["metadata"]["uid"]}],
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                },
                "spec": template["spec"],
                "status": {
                    "phase": "Running",
                    "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                    "containerStatuses": [
                        {"name": c["name"], "restartCount": 0, "state": {"running": {}}}
                        for c in template["spec"]["containers"]
                    ],
                },
            }
    for name, obj in wanted.items():
        existing = cluster.find("Pod", name, obj["metadata"]["namespace"])
        if existing is None:
            cluster.put(obj)


def crash_container(cluster: FakeCluster, name: str, code: int = 1, message: str = "bug") -> None:
    """The first container of a pod ends and runs again."""
    pod = cluster.held("Pod", name)
    pod["status"]["containerStatuses"][0] |= {"restartCount": 1, "lastState": terminated(code, message=message)}
    cluster.put(pod)


def end_orchestrator(cluster: FakeCluster, code: int, message: str) -> None:
    """The orchestrator's container ends, and so does its Job."""
    for obj in cluster.all("Pod"):
        if obj["metadata"]["labels"]["rlrun.dev/role"] == "orchestrator":
            obj["status"]["phase"] = "Failed" if code else "Succeeded"
            obj["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
            obj["status"]["containerStatuses"] = [
                {"name": "orchestrator", "restartCount": 0, "state": terminated(code, "Completed", message)}
            ]
