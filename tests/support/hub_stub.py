"""Stub of the Hugging Face hub on loopback: one repository at one commit, as the real client reads it.

It answers the requests of `huggingface_hub.snapshot_download` without Xet: the list of the commit's files, and each of
them. Files of several kilobytes are redirected to another host, as those of the hub are to its content network.
"""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from typing_extensions import override

LARGE = 4096
"""Bytes from which a file is redirected."""
CHUNK = 1 << 16


@dataclass
class HubStub:
    """State of the stub, which tests read and change while it runs."""

    repository: str
    commit: str
    files: Mapping[str, bytes]
    url: str = ""
    token: str | None = None
    """Token without which the repository is gated."""
    cut_after: int | None = None
    """Bytes of a redirected file after which its first answer stops, until `resume` is set. None: no stop."""
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set when an answer has stopped."""
    resume: threading.Event = field(default_factory=threading.Event)
    bodies: Counter[str] = field(default_factory=Counter)
    """Number of answers with the content of each file."""


def _entry(name: str, data: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
    if len(data) >= LARGE:
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return entry


@contextmanager
def hub_stub(stub: HubStub) -> Iterator[HubStub]:
    """Serve the stub on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        @override
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            tree = f"/api/models/{stub.repository}/tree/"
            resolve = f"/{stub.repository}/resolve/{stub.commit}/"
            is_content = self.path.startswith("/content/")
            if (
                stub.token is not None
                and not is_content
                and self.headers.get("Authorization") != f"Bearer {stub.token}"
            ):
                self._error(HTTPStatus.FORBIDDEN, "GatedRepo", f"Access to model {stub.repository} is restricted")
            elif self.path.startswith(tree):
                if self.path.removeprefix(tree).partition("?")[0] != stub.commit:
                    self._error(HTTPStatus.NOT_FOUND, "RevisionNotFound", "Invalid rev id")
                    return
                entries = [_entry(name, data) for name, data in stub.files.items()]
                self._send(HTTPStatus.OK, json.dumps(entries).encode(), {}, with_body=with_body)
            elif self.path.startswith(resolve) and self.path.removeprefix(resolve) in stub.files:
                self._file(self.path.removeprefix(resolve), with_body=with_body)
            elif is_content and self.path.removeprefix("/content/") in stub.files:
                self._content(self.path.removeprefix("/content/"), with_body=with_body)
            else:
                self._error(HTTPStatus.NOT_FOUND, "RepoNotFound", "Repository not found")

        def _file(self, name: str, *, with_body: bool) -> None:
            data = stub.files[name]
            headers = {"X-Repo-Commit": stub.commit, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
            if len(data) < LARGE:
                if with_body:
                    stub.bodies[name] += 1
                self._send(HTTPStatus.OK, data, headers, with_body=with_body)
                return
            headers |= {
                "X-Linked-ETag": f'"{hashlib.sha256(data).hexdigest()}"',
                "X-Linked-Size": str(len(data)),
                # Another host than the hub's, so that the client reads the headers of this answer.
                "Location": f"{stub.url.replace('127.0.0.1', 'localhost')}/content/{name}",
            }
            self._send(HTTPStatus.FOUND, b"", headers, with_body=False)

        def _content(self, name: str, *, with_body: bool) -> None:
            data, start = stub.files[name], 0
            if asked := self.headers.get("Range"):
                start = int(asked.removeprefix("bytes=").split("-")[0])
            headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if asked else {}
            self.send_response(HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK)
            for key, value in {**headers, "Content-Length": str(len(data) - start)}.items():
                self.send_header(key, value)
            self.end_headers()
            if not with_body:
                return
            stub.bodies[name] += 1
            try:
                for begin in range(start, len(data), CHUNK):
                    if stub.cut_after is not None and begin >= stub.cut_after and not stub.resume.is_set():
                        stub.stopped.set()
                        stub.resume.wait(60)
                    self.wfile.write(data[begin : begin + CHUNK])
            except OSError:
                self.close_connection = True

        def _error(self, status: HTTPStatus, code: str, message: str) -> None:
            self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": message}, with_body=False)

        def _send(self, status: HTTPStatus, body: bytes, headers: Mapping[str, str], *, with_body: bool) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        stub.resume.set()
        server.shutdown()
        server.server_close()
        thread.join()
