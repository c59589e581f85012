"""A Python script in a pod with a Service: a server that a test needs inside the cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from demo.kubectl import Kubectl, Object, wait_for

IMAGE = "localhost/rlrun-orchestrator:local"
FOLDER = "/script"
START_SECONDS = 120.0


@dataclass(frozen=True)
class ScriptPod:
    """Pod that runs `script` with `arguments`, and serves once `target_port` answers."""

    name: str
    namespace: str
    script: str
    target_port: int
    port: int
    """Port of the Service, which has the name of the pod."""
    files: Mapping[str, str]
    """Texts of other files in FOLDER."""
    arguments: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    env_from: Sequence[str] = ()
    """Secrets whose values are variables."""

    def start(self, kubectl: Kubectl) -> None:
        """Create pod, Service and ConfigMap, and wait until the pod is ready."""
        kubectl.apply(*self._objects())

        def ready() -> Object | None:
            pod = kubectl.get("pod", self.name, self.namespace) or {}
            conditions = pod.get("status", {}).get("conditions", [])
            return pod if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions) else None

        wait_for(f"the pod {self.name}", ready, START_SECONDS)

    def stop(self, kubectl: Kubectl) -> None:
        """Delete all objects."""
        for kind in ("pod", "service", "configmap"):
            kubectl("delete", kind, self.name, "-n", self.namespace, "--ignore-not-found", "--wait=false")

    def _objects(self) -> list[Object]:
        meta = {"name": self.name, "namespace": self.namespace, "labels": {"app": self.name}}
        container: Object = {
            "name": self.name,
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", f"{FOLDER}/script.py", *self.arguments],
            "env": [{"name": name, "value": value} for name, value in (self.env or {}).items()],
            "envFrom": [{"secretRef": {"name": name}} for name in self.env_from],
            "readinessProbe": {"tcpSocket": {"port": self.target_port}, "periodSeconds": 1},
            # Without a request the pods of the other lane leave it no time, and the rollouts that ask it fail.
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
            "volumeMounts": [{"name": "files", "mountPath": FOLDER}],
        }
        pod = {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [{"name": "files", "configMap": {"name": self.name}}],
        }
        files = {"script.py": self.script, **self.files}
        ports = [{"port": self.port, "targetPort": self.target_port}]
        selector = {"app": self.name}
        return [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": files},
            {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod},
            {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"selector": selector, "ports": ports}},
        ]
