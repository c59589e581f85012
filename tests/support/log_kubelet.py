"""A node whose kubelet serves the logs of containers, and nothing else: a real API server asks it."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

from local_cluster.control_plane.pki import CertificateAuthority

ADDRESS = "127.0.0.1"


@dataclass
class LogKubelet:
    """Logs by pod, and what the API server asked."""

    node: str
    logs: dict[str, str] = field(default_factory=dict)
    """Lines with their times. A pod without an entry has no container that has started."""
    asked: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def log_kubelet(api: client.ApiClient, state: Path, node: str) -> Iterator[LogKubelet]:
    """Add a node to the cluster of the control plane in `state`, and serve its kubelet."""
    found = LogKubelet(node)
    pair = CertificateAuthority(state / "pki").issue(f"kubelet-{node}", node, addresses=[ADDRESS])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            pod = parts.path.split("/")[3]
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            found.asked.append({"pod": pod, **query})
            text = found.logs.get(pod)
            body = "container is waiting to start" if text is None else _selected(text, query)
            self.send_response(400 if text is None else 200)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((ADDRESS, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    core = client.CoreV1Api(api)
    core.create_node({"metadata": {"name": node}})
    status = {
        "addresses": [{"type": "InternalIP", "address": ADDRESS}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": server.server_address[1]}},
    }
    core.patch_node_status(node, {"status": status})
    try:
        yield found
    finally:
        core.delete_node(node)
        server.shutdown()
        server.server_close()
        thread.join()


def _selected(text: str, query: dict[str, str]) -> str:
    """Return what a kubelet returns: times of whole seconds, then the last lines, then the first bytes of these."""
    lines = [line for line in text.splitlines(keepends=True) if line[:19] >= query.get("sinceTime", "")[:19]]
    if "tailLines" in query:
        lines = lines[len(lines) - min(len(lines), int(query["tailLines"])) :]
    if query.get("timestamps") != "true":
        lines = [line.split(" ", 1)[1] for line in lines]
    joined = "".join(lines)
    return joined[: int(query["limitBytes"])] if "limitBytes" in query else joined
