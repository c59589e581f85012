"""Answers of S3, and of what stands in its place, as errors with advice."""

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler

import pytest
from rlrun.api.base.s3_connection import S3Connection
from rlrun.storage.errors import (
    ANSWERS,
    AccessDenied,
    NotImplementedByStore,
    Repeat,
    StoreError,
    StoreFull,
    Unreachable,
)
from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import RequestLimits, Store, Upload

PLACE = S3Uri("bucket", "folder/object")
PAGE = b"<!DOCTYPE html><html><head><title>Log in</title></head><body>please<br>log in</body></html>"
BODIES = {
    "nothing": b"",
    "bytes": b"\x00\xff<<<",
    "page": PAGE,
    "page in XML": b"<html><body>hi</body></html>",
    "cut off": b"<?xml version='1.0'?><ListBucketResult><Contents><Key>a",
    "error": b"<Error><Code>SlowDown</Code></Error>",
    "JSON": b'{"code": 1}',
    "no fields": b"<ListBucketResult><Contents></Contents></ListBucketResult>",
    "no numbers": b"<ListBucketResult><Contents><Key>a</Key><Size>x</Size><LastModified>y</LastModified></Contents>"
    b"</ListBucketResult>",
    "other root": b"<ListMultipartUploadsResult><Upload></Upload></ListMultipartUploadsResult>",
    "refused deletions": b"<DeleteResult><Error><Code>AccessDenied</Code></Error></DeleteResult>",
}
HEADERS = (
    {},
    {"location": "http://127.0.0.1:1/x", "x-amz-bucket-region": "no region!"},
    {"last-modified": "nonsense", "content-type": "text/html"},
)


@dataclass
class Answers:
    """S3 server with one answer to all requests."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    endpoint: str = ""

    def refuse(self, status: int, code: str, more: str = "") -> None:
        """Answer with this error."""
        self.status, self.headers = status, {}
        self.body = f"<Error><Code>{code}</Code><Message>the words of S3</Message>{more}</Error>".encode()


@pytest.fixture
def s3() -> Iterator[Answers]:
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            answers.requests.append(self.command)
            body = b"" if answers.status == 204 else answers.body
            self.send_response(answers.status)
            for name, value in answers.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        answers.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield answers
        server.shutdown()


@pytest.fixture
def store(s3: Answers) -> Iterator[Store]:
    found = Store(
        S3Connection(endpoint=s3.endpoint, region="us-east-1"),
        access_key_id="key",
        secret_access_key="the secret",
        use_environment=False,
        limits=RequestLimits(tries=1),
    )
    yield found
    found.close()


REQUESTS: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put_bytes(PLACE, b"x"),
    "put once": lambda store: store.put_bytes(PLACE, b"x", replace=False),
    "get": lambda store: store.get_bytes(PLACE),
    "range": lambda store: store.get_range(PLACE, 0, 3),
    "manifest": lambda store: store.read_manifest(PLACE),
    "artifact": lambda store: store.upload_artifact({"f": b"x"}, PLACE, ArtifactKind.adapter),
    "large artifact": lambda store: store.upload_artifact({"f": b"x" * 20_000_000}, PLACE, ArtifactKind.adapter),
    "check": lambda store: store.check(PLACE),
    "files": lambda store: store.list_files(PLACE),
    "folders": lambda store: store.list_folders(PLACE),
    "walk": lambda store: list(store.walk(PLACE)),
    "uploads": lambda store: store.uploads(PLACE),
    "abort": lambda store: store.abort_upload("bucket", Upload("k", "i", datetime.now(UTC))),
    "delete": lambda store: store.delete_prefix(PLACE),
}
LISTINGS = ("check", "files", "folders", "walk", "uploads", "delete")


@pytest.mark.slow
@pytest.mark.parametrize("request_name", REQUESTS)
def test_every_answer_is_a_result_or_a_store_error(store: Store, s3: Answers, request_name: str) -> None:
    for s3.status in (200, 204, 301, 307, 400, 403, 404, 405, 413, 500, 503):
        for s3.body in BODIES.values():
            for s3.headers in HEADERS:
                with contextlib.suppress(StoreError):
                    REQUESTS[request_name](store)


@pytest.mark.parametrize("request_name", LISTINGS)
@pytest.mark.parametrize("body", [b"", PAGE, b"<html><body>hi</body></html>", b"<Other></Other>"])
def test_what_is_not_a_listing_is_not_an_empty_one(store: Store, s3: Answers, request_name: str, body: bytes) -> None:
    s3.body = body
    with pytest.raises(Unreachable):
        REQUESTS[request_name](store)


@pytest.mark.parametrize("body", [b"", PAGE, b"default backend - 404"])
def test_a_404_that_s3_did_not_send_is_no_missing_object(store: Store, s3: Answers, body: bytes) -> None:
    s3.status, s3.body = 404, body
    with pytest.raises(Unreachable, match=r"s3\.endpoint"):
        store.read_manifest(PLACE)


def test_a_page_in_the_place_of_a_write_is_an_error(store: Store, s3: Answers) -> None:
    s3.body = PAGE
    with pytest.raises(Unreachable):
        store.put_bytes(PLACE, b"x")


@pytest.mark.parametrize(
    ("status", "code", "error", "advice"),
    [
        (403, "AccessDenied", AccessDenied, "AWS_SECRET_ACCESS_KEY"),
        (403, "InvalidAccessKeyId", AccessDenied, "AWS_SECRET_ACCESS_KEY"),
        (403, "SomethingNew", AccessDenied, "AWS_SECRET_ACCESS_KEY"),
        (403, "RequestTimeTooSkewed", AccessDenied, "clock"),
        (400, "RequestExpired", AccessDenied, "clock"),
        (400, "ExpiredToken", AccessDenied, "AWS_SESSION_TOKEN"),
        (400, "InvalidToken", AccessDenied, "AWS_SESSION_TOKEN"),
        (403, "ExpiredTokenException", AccessDenied, "AWS_SESSION_TOKEN"),
        (400, "AuthorizationHeaderMalformed", AccessDenied, r"s3\.region"),
        (400, "IllegalLocationConstraintException", AccessDenied, r"s3\.region"),
        (301, "PermanentRedirect", AccessDenied, r"s3\.region"),
        (307, "TemporaryRedirect", AccessDenied, r"s3\.region"),
        (302, "Found", AccessDenied, r"s3\.region"),
        (403, "UserSuspended", AccessDenied, "suspended"),
        (403, "QuotaExceeded", StoreFull, "quota"),
        (400, "XMinioAdminBucketQuotaExceeded", StoreFull, "quota"),
        (507, "XMinioStorageFull", StoreFull, "disks"),
        (507, "InsufficientStorage", StoreFull, "disks"),
        (507, "SomethingNew", StoreFull, "disks"),
        (413, "EntityTooLarge", StoreError, "client_max_body_size"),
        (405, "MethodNotAllowed", NotImplementedByStore, "If-None-Match"),
        (503, "SlowDown", Unreachable, "retried"),
        (503, "XMinioServerNotInitialized", Unreachable, "retried"),
        (599, "SomethingNew", Unreachable, "retried"),
        (418, "SomethingNew", StoreError, "documentation"),
    ],
)
def test_each_answer_has_its_own_advice_and_the_words_of_s3(
    store: Store, s3: Answers, status: int, code: str, error: type[StoreError], advice: str
) -> None:
    s3.refuse(status, code)
    with pytest.raises(error, match=advice) as caught:
        store.put_bytes(PLACE, b"x")
    assert type(caught.value) is error
    message = caught.value.problem.message
    assert all(word in message for word in (s3.endpoint, f"{status} {code}", '"the words of S3"', str(PLACE)))
    assert "the secret" not in message


def test_a_wrong_region_is_not_corrected_in_silence_and_the_right_one_is_named(store: Store, s3: Answers) -> None:
    """rlrun-server signs for the region of its settings, so that a client that follows a redirect proves nothing."""
    for status, code in ((400, "AuthorizationHeaderMalformed"), (301, "PermanentRedirect")):
        s3.refuse(status, code, "<Region>eu-west-1</Region>")
        s3.requests.clear()
        with pytest.raises(AccessDenied, match="region of the bucket: eu-west-1"):
            store.check(PLACE)
        assert s3.requests == ["GET"]
    s3.headers = {"x-amz-bucket-region": "eu-north-1"}
    s3.body = b""
    with pytest.raises(AccessDenied, match="region of the bucket: eu-north-1"):
        store.check(PLACE)


def test_a_firewall_in_front_of_s3_is_not_mistaken_for_a_wrong_key(store: Store, s3: Answers) -> None:
    s3.status, s3.body = 403, PAGE
    with pytest.raises(AccessDenied, match="firewall"):
        store.put_bytes(PLACE, b"x")


def test_a_signature_in_a_url_that_has_ended_is_a_matter_of_clocks(store: Store, s3: Answers) -> None:
    s3.status, s3.body = 403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
    with pytest.raises(AccessDenied, match="clock"):
        store.put_bytes(PLACE, b"x")


def test_a_deletion_that_was_refused_has_the_words_of_s3(store: Store, s3: Answers) -> None:
    s3.body = (
        b"<DeleteResult><Error><Key>a</Key><Code>AccessDenied</Code><Message>no right</Message></Error></DeleteResult>"
    )
    with pytest.raises(AccessDenied, match=r'DeleteObjects for s3://bucket/a with AccessDenied \("no right"\)'):
        store._delete(PLACE, ["a"])


def test_text_of_others_is_one_short_line_in_a_message(store: Store, s3: Answers) -> None:
    s3.status = 403
    s3.body = b"<Error><Code>AccessDenied</Code><Message>a\nb&#x202E;c" + b"x" * 100_000 + b"</Message></Error>"
    with pytest.raises(AccessDenied, match="a b c") as caught:
        store.put_bytes(PLACE, b"x")
    assert caught.value.problem.message.isprintable()
    assert len(caught.value.problem.message) < 1000


@pytest.mark.parametrize("code", sorted(ANSWERS))
def test_no_refused_access_is_final_at_once(code: str) -> None:
    rule = ANSWERS[code]
    assert "{" not in rule.advice.format(bucket="b")
    if issubclass(rule.error, AccessDenied):
        assert rule.error.repeat is Repeat.grace
    if issubclass(rule.error, Unreachable):
        assert rule.error.repeat is Repeat.later
