"""Signatures of reads that are used again."""

import hashlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from botocore.awsrequest import AWSRequest
from rlrun.protocol.storage_access import PAYLOAD_HASH, RequestToSign, SignedHeaders
from rlrun.storage.errors import StorageServerUnavailable
from rlrun.storage.remote_signer import REMEMBERED_SIGNATURES, REUSE_SECONDS, RemoteSigner, RequestSigner
from rlrun.storage.store import forget_refused_signatures
from typing_extensions import override


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Counting(RequestSigner):
    """A server that counts what it is asked for."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("us-east-1", clock)
        self.asked: list[tuple[str, str]] = []
        self.is_away = False
        self.wait = threading.Event()
        self.wait.set()

    @override
    def close(self) -> None:
        pass

    @override
    def sign_ahead(self, requests: Sequence[RequestToSign]) -> None:
        pass

    @override
    def _ask(self, asked: RequestToSign) -> SignedHeaders:
        assert "range" not in asked.headers
        self.asked.append((asked.method, asked.url))
        number = len(self.asked)
        assert self.wait.wait(10)
        if self.is_away:
            raise StorageServerUnavailable("away")
        return SignedHeaders(headers={"authorization": f"number {number}"})

    def signature(self, method: str, url: str, **headers: str) -> str:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        request = AWSRequest(method, url, headers=given, data=b"")
        self.sign(request)
        return str(request.headers["authorization"])


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def signer(clock: Clock) -> Counting:
    return Counting(clock)


def test_one_signature_opens_all_parts_of_an_object_for_a_while(signer: Counting, clock: Clock) -> None:
    found = {signer.signature("GET", "http://s3/b/k", Range=f"bytes={at}-{at + 9}") for at in range(0, 100, 10)}
    assert found == {"number 1"}
    clock.now += REUSE_SECONDS
    assert signer.signature("GET", "http://s3/b/k") == "number 2"


@pytest.mark.parametrize(
    "second",
    [
        ("HEAD", "http://s3/b/k", {}),
        ("GET", "http://s3/b/k2", {}),
        ("GET", "http://s3/b/k?list-type=2", {}),
        ("GET", "http://s3/b/k", {"If_Match": "x"}),
        ("GET", "http://s3/b/k", {"x_amz_checksum_mode": "ENABLED"}),
    ],
)
def test_another_read_has_a_signature_of_its_own(signer: Counting, second: tuple[str, str, dict[str, str]]) -> None:
    method, url, headers = second
    assert signer.signature("GET", "http://s3/b/k") != signer.signature(method, url, **headers)


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_signatures_of_writes_are_used_once(signer: Counting, method: str) -> None:
    assert signer.signature(method, "http://s3/b/k") != signer.signature(method, "http://s3/b/k")


def waiting(signer: Counting) -> int:
    """Return how many threads wait for the signature of another one's request."""
    (found,) = signer._signatures._known.values()
    return int(found._condition._waiters.__len__())  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_away", [False, True])
def test_threads_share_a_request_and_its_failure(signer: Counting, is_away: bool) -> None:
    signer.wait.clear()
    signer.is_away = is_away
    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(signer.signature, "GET", "http://s3/b/k") for _ in range(8)]
        deadline = time.monotonic() + 10
        while (not signer.asked or waiting(signer) < 7) and time.monotonic() < deadline:
            time.sleep(0.001)
        signer.wait.set()
        failures = [call.exception() for call in calls]
    assert len(signer.asked) == 1
    assert all(isinstance(failure, StorageServerUnavailable) for failure in failures) is is_away
    signer.is_away = False
    assert signer.signature("GET", "http://s3/b/k") == ("number 2" if is_away else "number 1")


def test_a_refused_signature_is_not_used_again(signer: Counting) -> None:
    after = forget_refused_signatures(signer)
    first = signer.signature("GET", "http://s3/b/k")
    for response in (None, {"status_code": 200}, {"status_code": 404}, {"status_code": 500}):
        after(response)
    assert signer.signature("GET", "http://s3/b/k") == first
    after({"status_code": 403})
    assert signer.signature("GET", "http://s3/b/k") != first


def test_another_grant_needs_other_signatures(tmp_path: Path) -> None:
    signer = RemoteSigner("http://server", tmp_path / "token", "first", "us-east-1")
    signer._signatures.get("read", lambda: SignedHeaders(headers={}))
    signer.grant = "first"
    assert signer._signatures._known
    signer.grant = "second"
    assert not signer._signatures._known


def test_the_number_of_remembered_signatures_is_limited(signer: Counting) -> None:
    for number in range(REMEMBERED_SIGNATURES + 1):
        signer.signature("GET", f"http://s3/b/{number}")
    signer.signature("GET", f"http://s3/b/{REMEMBERED_SIGNATURES}")
    assert len(signer.asked) == REMEMBERED_SIGNATURES + 1
    signer.signature("GET", "http://s3/b/0")
    assert len(signer.asked) == REMEMBERED_SIGNATURES + 2


AHEAD = SignedHeaders(headers={"authorization": "ahead"})


def test_a_write_takes_the_signature_that_was_asked_for_ahead_once(signer: Counting, clock: Clock) -> None:
    digest = hashlib.sha256(b"").hexdigest()
    request = RequestToSign(method="PUT", url="http://s3/b/k", headers={PAYLOAD_HASH: digest})
    cache, key = signer._signatures, ("PUT", "http://s3/b/k", *sorted(request.headers.items()))
    cache.add(key, AHEAD, cache.generation)
    assert signer.signature("PUT", "http://s3/b/k") == "ahead"
    assert signer.signature("PUT", "http://s3/b/k") == "number 1"
    cache.add(key, AHEAD, cache.generation)
    clock.now += REUSE_SECONDS
    assert signer.signature("PUT", "http://s3/b/k") == "number 2", "it has waited too long"
    cache.add(key, AHEAD, cache.generation)
    signer.forget()
    assert signer.signature("PUT", "http://s3/b/k") == "number 3"


def test_signatures_that_were_asked_for_before_all_were_forgotten_are_not_used(signer: Counting) -> None:
    cache = signer._signatures
    generation = cache.generation
    signer.forget()
    cache.add("key", AHEAD, generation)
    assert cache.take("key") is None
