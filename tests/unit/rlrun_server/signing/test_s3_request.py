"""What a URL to S3 asks for, and which URLs are never signed."""

import contextlib
from urllib.parse import parse_qsl

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st
from rlrun.protocol.storage_access import PAYLOAD_HASH
from rlrun_server.signing.s3_request import Operation, RequestNotAllowed, S3Request, read_request

BASE = "http://s3:8333/bucket"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def read(method: str, url: str, **headers: str) -> S3Request:
    given_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return read_request(method, url, {PAYLOAD_HASH: EMPTY, **given_headers}, "bucket", BASE)


@pytest.mark.parametrize(
    ("method", "path", "operation", "key"),
    [
        ("GET", "/p/team/u/run.json", Operation.read, "p/team/u/run.json"),
        ("HEAD", "/p/a", Operation.read, "p/a"),
        ("GET", "/p/e-1.0%2Bcpu.whl?x-id=GetObject", Operation.read, "p/e-1.0+cpu.whl"),
        ("PUT", "/p/a", Operation.write, "p/a"),
        ("POST", "/p/a?uploads", Operation.write, "p/a"),
        ("PUT", "/p/a?partNumber=1&uploadId=x", Operation.write, "p/a"),
        ("POST", "/p/a?uploadId=x", Operation.write, "p/a"),
        ("DELETE", "/p/a?uploadId=x", Operation.write, "p/a"),
        ("DELETE", "/p/a", Operation.delete, "p/a"),
        ("DELETE", "/p/a/", Operation.delete, "p/a/"),
        ("GET", "?list-type=2&prefix=p%2Fa%2F&delimiter=%2F&max-keys=1", Operation.list, "p/a/"),
        ("GET", "?uploads&prefix=p%2Fa%2F", Operation.list, "p/a/"),
    ],
)
def test_requests_of_the_client_library_are_understood(method: str, path: str, operation: Operation, key: str) -> None:
    found = read(method, f"{BASE}{path}")
    assert (found.operation, found.bucket, found.key) == (operation, "bucket", key)


@pytest.mark.parametrize(
    ("method", "path", "may_replace"),
    [
        ("PUT", "/p/a", True),
        ("POST", "/p/a?uploadId=x", True),
        ("POST", "/p/a?uploads", False),
        ("PUT", "/p/a?partNumber=1&uploadId=x", False),
        ("DELETE", "/p/a?uploadId=x", False),
        ("GET", "/p/a", False),
    ],
)
def test_only_a_condition_keeps_a_request_from_replacing_an_object(method: str, path: str, may_replace: bool) -> None:
    assert read(method, f"{BASE}{path}").may_replace is may_replace
    for name, value, replaces in (
        ("If-None-Match", "*", False),
        ("if-none-match", "*", False),
        ("If-None-Match", '"e"', may_replace),
        ("If-None-Match", "*, *", may_replace),
        ("If-Match", "*", may_replace),
    ):
        headers = {PAYLOAD_HASH: EMPTY, name: value}
        assert read_request(method, f"{BASE}{path}", headers, "bucket", BASE).may_replace is replaces, name


@pytest.mark.parametrize(
    "path",
    ["/a//b", "/a/../b", "/./a", "/a/..", "/%2e%2e/a", "/a%2Fb", "/a%2f..%2fb", "/a%252e", "/a\\b", "/a%00b", "/ä",
     "//a", "/a b", "/a%20b", "/" + "/".join(["a"] * 33), "/" + "a" * 256, "/a?versionId=1", "/a?acl", "/a?tagging",
     "/a?uploads&acl"],
)  # fmt: skip
def test_odd_keys_are_refused(path: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        with pytest.raises(RequestNotAllowed):
            read(method, f"{BASE}{path}")


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("GET", "http://other:8333/bucket/a"),
        ("GET", "http://s3:8333/bucket2/a"),
        ("GET", "https://s3:8333/bucket/a"),
        ("GET", "http://s3:8333@evil/bucket/a"),
        ("POST", f"{BASE}?delete"),
        ("PUT", f"{BASE}?policy"),
        ("PUT", BASE),
        ("DELETE", BASE),
        ("GET", BASE),
        ("GET", f"{BASE}?list-type=2"),
        ("GET", f"{BASE}?list-type=2&prefix="),
        ("GET", f"{BASE}?list-type=2&prefix=p%2Fteam"),
        ("GET", f"{BASE}?list-type=2&prefix=p%2F..%2F"),
        ("GET", f"{BASE}?list-type=2&prefix=a%2F&prefix=b%2F"),
        ("GET", f"{BASE}?prefix=a%2F"),
        ("GET", f"{BASE}?versions&prefix=a%2F"),
        ("PATCH", f"{BASE}/a"),
    ],
)
def test_other_places_and_requests_are_refused(method: str, url: str) -> None:
    with pytest.raises(RequestNotAllowed):
        read(method, url)


@pytest.mark.parametrize(("segments", "is_read"), [(32, True), (33, False)])
def test_keys_have_a_limit_of_segments(segments: int, is_read: bool) -> None:
    with contextlib.nullcontext() if is_read else pytest.raises(RequestNotAllowed, match="32 segments"):
        read("GET", f"{BASE}/{'/'.join('a' * segments)}")


def test_a_query_of_too_many_parameters_is_refused() -> None:
    query = "&".join(f"prefix{number}=" for number in range(17))
    with pytest.raises(RequestNotAllowed, match="more than 16 parameters"):
        read("GET", f"{BASE}?list-type=2&{query}")


@pytest.mark.parametrize(
    "name", ["x_amz_copy_source", "x_amz_acl", "x_amz_grant_read", "x_amz_security_token", "host", "authorization"]
)
def test_headers_that_change_the_meaning_are_refused(name: str) -> None:
    with pytest.raises(RequestNotAllowed, match="headers"):
        read("PUT", f"{BASE}/a", **{name: "x"})


@pytest.mark.parametrize("digest", ["", "short", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", f"{EMPTY}\n"])
def test_the_digest_of_the_body_is_needed(digest: str) -> None:
    with pytest.raises(RequestNotAllowed, match=PAYLOAD_HASH):
        read_request("PUT", f"{BASE}/a", {PAYLOAD_HASH: digest}, "bucket", BASE)


@given(st.text(max_size=60))
def test_an_accepted_key_has_plain_segments_only(text: str) -> None:
    try:
        key = read("GET", f"{BASE}/{text}").key
    except RequestNotAllowed:
        return
    assert all(segment not in ("", ".", "..") for segment in key.removesuffix("/").split("/"))
    assert not set(key) & set("%\\\0?#")


@pytest.mark.parametrize(
    ("method", "query"),
    [
        ("GET", "list-type=2&delimiter=#&prefix=p%2Fa%2F"),
        ("GET", "uploads&delimiter=#&prefix=p%2Fa%2F"),
        ("GET", "list-type=2&prefix=p%2Fa%2F#"),
        ("GET", "list-type=2&prefix=p/a/"),
        ("GET", "list-type=2&delimiter=+&prefix=p%2Fa%2F"),
        ("GET", "list-type=2&prefix=p%2Fa%2F\n"),
        ("GET", "list-type=2&prefix=p%2Fa%2F;x"),
        ("GET", "list-type=2&prefix=p%2Fa%2F&delimiter=&"),
        ("GET", "&list-type=2&prefix=p%2Fa%2F"),
        ("GET", "list-type=2&&prefix=p%2Fa%2F"),
    ],
)
def test_a_query_that_the_signer_reads_differently_is_refused(method: str, query: str) -> None:
    with pytest.raises(RequestNotAllowed):
        read(method, f"{BASE}?{query}")
    with pytest.raises(RequestNotAllowed):
        read("DELETE", f"{BASE}/p/a?x-id=#&uploadId=abc")


@given(st.text(max_size=40))
def test_the_signer_signs_the_query_that_was_read(text: str) -> None:
    url = f"{BASE}?list-type=2&prefix=p%2Fa%2F&delimiter={text}"
    try:
        read("GET", url)
    except RequestNotAllowed:
        return
    request = AWSRequest("GET", url, headers={PAYLOAD_HASH: EMPTY})
    signer = S3SigV4Auth(Credentials("id", "key"), "s3", "us-east-1")
    signed = sorted(parse_qsl(signer.canonical_query_string(request), keep_blank_values=True))
    assert signed == sorted(parse_qsl(url.partition("?")[2], keep_blank_values=True))


def test_a_header_in_two_spellings_is_refused() -> None:
    headers = {PAYLOAD_HASH: EMPTY, "If-None-Match": "*", "if-none-match": '"x"'}
    with pytest.raises(RequestNotAllowed, match="repeated"):
        read_request("PUT", f"{BASE}/a", headers, "bucket", BASE)
