"""A judge behind TLS in a pod of its own, as an environment's reward asks one."""

from dataclasses import dataclass
from pathlib import Path

from demo.kubectl import Kubectl, Object, wait_for
from local_cluster.control_plane.pki import CertificateAuthority

NAME = "judge"
SCORE = 0.5
IMAGE = "localhost/rlrun-orchestrator:local"
START_SECONDS = 120.0
SCRIPT = f"""
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{SCORE}")

server = ThreadingHTTPServer(("", 8443), Handler)
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain("/judge/tls.crt", "/judge/tls.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


@dataclass(frozen=True)
class Judge:
    """Where the judge is, and who vouches for it."""

    host: str
    ca: str
    """Certificate of its authority, PEM."""

    @property
    def url(self) -> str:
        return f"https://{self.host}/"


def start_judge(kubectl: Kubectl, namespace: str, folder: Path) -> Judge:
    """Start a judge and wait until it is ready."""
    host = f"{NAME}.{namespace}.svc.cluster.local"
    authority = CertificateAuthority(folder)
    pair = authority.issue(NAME, NAME, addresses=[host])
    files = {
        "judge.py": SCRIPT,
        "tls.crt": pair.certificate.read_text(),
        "tls.key": pair.key.read_text(),
    }
    kubectl.apply(*_objects(namespace, files))

    def ready() -> Object | None:
        pod = kubectl.get("pod", NAME, namespace) or {}
        conditions = pod.get("status", {}).get("conditions", [])
        return pod if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions) else None

    wait_for("the judge", ready, START_SECONDS)
    return Judge(host, authority.pair.certificate.read_text())


def _objects(namespace: str, files: dict[str, str]) -> list[Object]:
    meta = {"name": NAME, "namespace": namespace, "labels": {"app": NAME}}
    container: Object = {
        "name": NAME,
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "/judge/judge.py"],
        "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
        "volumeMounts": [{"name": "files", "mountPath": "/judge"}],
    }
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "files", "configMap": {"name": NAME}}],
    }
    port = {"port": 443, "targetPort": 8443}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": files},
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"selector": {"app": NAME}, "ports": [port]}},
    ]
