"""A judge behind TLS in a pod of its own, as an environment's reward asks one."""

from dataclasses import dataclass
from pathlib import Path

from demo.kubectl import Kubectl
from local_cluster.control_plane.pki import CertificateAuthority
from tests.e2e.script_pod import ScriptPod

NAME = "judge"
SCORE = 0.5
SCRIPT = f"""
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain("/script/tls.crt", "/script/tls.key")

class Handler(BaseHTTPRequestHandler):
    def setup(self):
        # In the thread of the connection: a slow client must not keep the others waiting.
        self.request = context.wrap_socket(self.request, server_side=True)
        super().setup()

    def do_GET(self):
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "https://169.254.169.254/")
            self.send_header("Content-Length", "0")  # else clients read until the connection ends, or is reset
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
    pod = ScriptPod(
        name=NAME,
        namespace=namespace,
        script=SCRIPT,
        target_port=8443,
        port=443,
        files={"tls.crt": pair.certificate.read_text(), "tls.key": pair.key.read_text()},
    )
    pod.start(kubectl)
    return Judge(host, authority.pair.certificate.read_text())
