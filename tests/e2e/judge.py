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

context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain("/judge/tls.crt", "/judge/tls.key")

class Handler(BaseHTTPRequestHandler):
    def setup(self):
        # In the thread of the connection: a slow client must not keep the others waiting.
        self.request = context.wrap_socket(self.request, server_side=True)
        super().setup()

    def do_GET(self):
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "https://169.254.169.254/")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{SCORE}")

class Server(ThreadingHTTPServer):
    # Rollouts of a batch ask at once. With the default of 5 the kernel drops connections, and clients wait for seconds.
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass  # the readiness probe connects and says nothing

Server(("", 8443), Handler).serve_forever()
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
        # Without a request the pods of the other lane leave it no time, and the rollouts that ask it fail.
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
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
