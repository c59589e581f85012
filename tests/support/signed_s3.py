"""S3 that checks signatures of version 4 as one of several servers does, by their published behaviour.

tests/support/contracts/s3_signature_contract.py says what it has in common with a real one, and holds it to it.
"""

import base64
import hashlib
import hmac
import io
import re
import socket
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qsl, quote, unquote

from tests.support.seaweedfs import S3Server

KEY, SECRET = "key", "secret"
BUCKET = "rlrun"
HOST = "s3.localhost"
EXTRACT = "x-amz-meta-snowball-auto-extract"
COPY = "x-amz-copy-source"
SKEW = timedelta(minutes=15)
"""Difference of the clocks that is accepted."""


@dataclass(frozen=True)
class Dialect:
    """Differences between S3 servers. The default is AWS."""

    refuses_unsigned: tuple[str, ...] = ("x-amz-",)
    """Prefixes of headers that the signature must cover."""
    refuses_unsigned_in_query: tuple[str, ...] = ("x-amz-",)
    """The same for signatures in the URL."""
    signed_headers_in_query: bool = False
    """Signed headers that the request lacks are searched in the query; otherwise they are left out."""
    extracts: bool = False
    needs_content_md5: bool = False
    """DeleteObjects needs Content-MD5."""
    has_conditions: bool = True
    """If-None-Match is implemented; otherwise the answer is 501."""
    virtual_hosts_only: bool = False
    """The bucket must be in the host name, as several clouds demand; a bucket in the path is refused."""


AWS = Dialect()
MINIO = Dialect((), ("x-amz-meta-",), signed_headers_in_query=True, extracts=True)
"""cmd/signature-v4.go: `checkMetaHeaders` for signatures in the URL alone, `extractSignedHeaders` for both."""
OLD_CEPH = Dialect((), ())
"""Before 19.2.6 and 20.2.4, or with rgw_sigv4_insecure (CVE-2026-54330)."""


@dataclass
class SignedS3:
    """A running server."""

    dialect: Dialect
    server: S3Server
    objects: dict[str, bytes] = field(default_factory=dict)
    away: bool = False
    """Answer everything with 503."""
    requests: int = 0


@contextmanager
def signed_s3(dialect: Dialect) -> Iterator[SignedS3]:
    """Serve one bucket on a free port. With virtual hosts only, the names of its hosts resolve in this process."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    host = HOST if dialect.virtual_hosts_only else "127.0.0.1"
    endpoint = f"http://{host}:{http.server_address[1]}"
    http.stub = SignedS3(dialect, S3Server(endpoint, KEY, SECRET, BUCKET))  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        with _resolved_hosts():
            yield http.stub  # type: ignore[attr-defined]
    finally:
        http.shutdown()
        http.server_close()
        thread.join(20)


@contextmanager
def _resolved_hosts() -> Iterator[None]:
    """Resolve HOST and the names below it, which not every system does, to the loopback address."""
    resolve = socket.getaddrinfo

    def resolve_here(host: Any, *args: Any, **options: Any) -> Any:
        is_here = isinstance(host, str) and f".{host}".endswith(f".{HOST}")
        return resolve("127.0.0.1" if is_here else host, *args, **options)

    with patch("socket.getaddrinfo", resolve_here):
        yield


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def handle_request(self) -> None:
        """Check the signature, then act."""
        stub: SignedS3 = self.server.stub  # type: ignore[attr-defined]
        stub.requests += 1
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path, _, query = self.path.partition("?")
        parameters = dict(parse_qsl(query, keep_blank_values=True))
        headers = {name.lower(): value for name, value in self.headers.items()}
        if stub.away:
            return self._error(503, "SlowDown")
        if stub.dialect.virtual_hosts_only and not headers["host"].startswith(f"{BUCKET}.{HOST}:"):
            return self._error(403, "SecondLevelDomainForbidden")
        if problem := _problem(stub.dialect, self.command, path, parameters, headers, body):
            return self._error(403, problem)
        bucket = "" if stub.dialect.virtual_hosts_only else f"/{BUCKET}"
        key = unquote(path).removeprefix(bucket).removeprefix("/")
        return self._act(stub, key, parameters, headers, body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_request

    def _act(self, stub: SignedS3, key: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> None:
        objects, dialect = stub.objects, stub.dialect
        if self.command == "POST" and "delete" in query:
            md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
            if dialect.needs_content_md5 and headers.get("content-md5") != md5:
                return self._error(400, "MissingContentMD5" if "content-md5" not in headers else "InvalidDigest")
            for name in re.findall("<Key>(.*?)</Key>", body.decode()):
                objects.pop(name, None)
            return self._answer(200, b"<DeleteResult/>")
        if self.command == "GET" and "uploads" in query:
            return self._answer(200, b"<ListMultipartUploadsResult/>")
        if self.command == "GET" and "list-type" in query:
            found = sorted(name for name in objects if name.startswith(query.get("prefix", "")))
            entries = "".join(
                f"<Contents><Key>{name}</Key><Size>{len(objects[name])}</Size>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for name in found
            )
            return self._answer(200, f"<ListBucketResult>{entries}</ListBucketResult>".encode())
        if self.command == "PUT":
            if "if-none-match" in headers and not dialect.has_conditions:
                return self._error(501, "NotImplemented")
            if "if-none-match" in headers and key in objects:
                return self._error(412, "PreconditionFailed")
            if "/" in headers.get(COPY, ""):
                source = unquote(headers[COPY]).removeprefix("/").removeprefix(f"{BUCKET}/")
                if source not in objects:
                    return self._error(404, "NoSuchKey")
                objects[key] = objects[source]
                return self._answer(200, b"<CopyObjectResult/>")
            if dialect.extracts and headers.get(EXTRACT) == "true":
                with tarfile.open(fileobj=io.BytesIO(body)) as archive:
                    for member in archive:
                        opened = archive.extractfile(member)
                        objects[member.name] = opened.read() if opened else b""
                return self._answer(200)
            objects[key] = body
            return self._answer(200)
        if self.command == "DELETE":
            objects.pop(key, None)
            return self._answer(204)
        return self._answer(200, objects[key]) if key in objects else self._error(404, "NoSuchKey")


def _problem(
    dialect: Dialect, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: bytes
) -> str:
    """Return the error code for a wrong signature, empty if it is right."""
    in_query = "X-Amz-Signature" in query
    if in_query:
        credential, listed = query["X-Amz-Credential"], query["X-Amz-SignedHeaders"]
        given, date = query["X-Amz-Signature"], query["X-Amz-Date"]
        digest = headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
    else:
        found = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=(.*), SignedHeaders=(.*), Signature=(.*)", headers.get("authorization", "")
        )
        if found is None:
            return "AccessDenied"
        credential, listed, given = found.groups()
        date, digest = headers["x-amz-date"], headers["x-amz-content-sha256"]
    names = listed.split(";")
    prefixes = dialect.refuses_unsigned_in_query if in_query else dialect.refuses_unsigned
    if any(name.startswith(prefixes) and name not in names for name in headers):
        return "AccessDenied"
    lines = []
    for name in names:
        value = headers.get(name)
        if value is None and dialect.signed_headers_in_query:
            value = query.get(name)
        if value is None and dialect.signed_headers_in_query:
            return "AccessDenied"
        if value is not None:
            lines.append(f"{name}:{' '.join(value.split())}\n")
    pairs = sorted((quote(k, safe="~"), quote(v, safe="~")) for k, v in query.items() if k != "X-Amz-Signature")
    canonical = "\n".join(
        [method, path, "&".join(f"{k}={v}" for k, v in pairs), "".join(lines), listed, digest]
    )  # fmt: skip
    access_key, *scope = credential.split("/")
    if access_key != KEY:
        return "InvalidAccessKeyId"
    age = datetime.now(UTC) - datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if in_query and age > timedelta(seconds=int(query["X-Amz-Expires"])):
        return "AccessDenied"
    if not in_query and abs(age) > SKEW:
        return "RequestTimeTooSkewed"
    text = "\n".join(
        ["AWS4-HMAC-SHA256", date, "/".join(scope), hashlib.sha256(canonical.encode()).hexdigest()]
    )  # fmt: skip
    key = f"AWS4{SECRET}".encode()
    for part in scope:
        key = _hmac(key, part)
    if _hmac(key, text).hex() != given:
        return "SignatureDoesNotMatch"
    actual: Any = hashlib.sha256(body).hexdigest()
    return "" if digest in (actual, "UNSIGNED-PAYLOAD") else "XAmzContentSHA256Mismatch"


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
