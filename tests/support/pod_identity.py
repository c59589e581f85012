"""The service of a cloud that gives credentials to pods, by the protocol of ECS and EKS Pod Identity.

boto3 asks the URL in AWS_CONTAINER_CREDENTIALS_FULL_URI, with the token in a file.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKEN = "token of the pod"


@dataclass
class PodIdentity:
    """The service. `keys` has the S3 credentials as AWS_* variables; without them it refuses."""

    url: str
    keys: Mapping[str, str]
    token_file: Path
    asked: list[str] = field(default_factory=list)
    """Tokens of the requests."""

    @property
    def variables(self) -> dict[str, str]:
        """Variables that the cloud adds to a pod."""
        return {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": self.url,
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(self.token_file),
        }


@contextmanager
def pod_identity(keys: Mapping[str, str], folder: Path) -> Iterator[PodIdentity]:
    """Serve on a free port of this machine."""
    token_file = folder / "pod-identity-token"
    token_file.write_text(TOKEN)
    found = PodIdentity("", keys, token_file)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.headers.get("Authorization", ""))
            end = datetime.now(UTC) + timedelta(hours=1)
            body = {
                "AccessKeyId": found.keys.get("AWS_ACCESS_KEY_ID"),
                "SecretAccessKey": found.keys.get("AWS_SECRET_ACCESS_KEY"),
                "Token": "",  # the S3 server of the tests knows no sessions
                "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
            data = json.dumps(body).encode()
            self.send_response(200 if found.keys else 403)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}/v1/credentials"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
