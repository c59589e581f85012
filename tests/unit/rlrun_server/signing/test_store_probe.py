"""The test of the S3 server writes nothing where it has no bucket, and deletes what killed ones have left."""

import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rlrun.api.base.s3_connection import S3Connection
from rlrun.storage.errors import AccessDenied, AlreadyExists, BucketMissing, StoreError, Unreachable
from rlrun.storage.layout import PROBE_FOLDER, S3Uri
from rlrun.storage.store import StoredObject
from rlrun_server.signing import store_probe
from rlrun_server.signing.signer import S3Signer, own_store
from rlrun_server.signing.store_probe import LIMITS, MAX_COLLECTED, MAX_LISTED, StoreProbe, http_sender
from rlrun_server.signing.store_safety import Inconclusive, ProbeRefused, SigningMethod, SigningVerdict
from typing_extensions import override

from tests.support.seaweedfs import S3Server
from tests.support.signed_s3 import AWS, MINIO, Dialect, signed_s3

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = S3Uri("bucket", "prefix")


class ListedStore:
    """Objects with their times of modification."""

    def __init__(self, failure: StoreError | None = None) -> None:
        self.objects: dict[str, datetime] = {}
        self.walked = 0
        self._failure = failure

    def add(self, folder: str, age: timedelta) -> None:
        """Add the objects of a test that was killed."""
        for name in ("copy", "plain"):
            self.objects[f"prefix/{PROBE_FOLDER}/{folder}/{name}"] = NOW - age

    @property
    def folders(self) -> set[str]:
        """Names of the folders of tests."""
        return {key.split("/")[2] for key in self.objects}

    def check(self, uri: S3Uri) -> None:
        if self._failure is not None:
            raise self._failure

    def put_bytes(self, uri: S3Uri, data: bytes, *, replace: bool = True) -> None:
        assert not replace, "the test has written it already"
        if uri.key in self.objects:
            raise AlreadyExists(f"{uri} exists")
        self.objects[uri.key] = NOW

    def walk(self, uri: S3Uri) -> Iterable[StoredObject]:
        for key in sorted(self.objects):
            if key.startswith(f"{uri.key}/"):
                self.walked += 1
                yield StoredObject(key, 1, self.objects[key])

    def delete_prefix(self, uri: S3Uri) -> int:
        found = [key for key in self.objects if key.startswith(f"{uri.key}/")]
        for key in found:
            del self.objects[key]
        return len(found)


class Signer(S3Signer):
    def __init__(self) -> None:
        pass

    async def renew(self) -> None:
        pass

    def base_url(self, bucket: str) -> str:
        return f"http://s3/{bucket}"

    def sign(self, *_: Any, **__: Any) -> dict[str, str]:
        return {}


def answer(method: str, url: str, headers: Any, body: bytes) -> int:
    """Answer as a safe server does."""
    return 200 if url.endswith("/plain") else 403


def probe_of(store: ListedStore, send: store_probe.Send = answer) -> StoreProbe:
    return StoreProbe(Signer(), send, ROOT, store, lambda: NOW)


async def test_a_bucket_that_does_not_exist_is_not_written_to() -> None:
    """Some servers, such as SeaweedFS, make the bucket of an object that is written."""
    sent: list[str] = []

    def send(method: str, url: str, headers: Any, body: bytes) -> int:
        sent.append(f"{method} {url}")
        return answer(method, url, headers, body)

    missing = BucketMissing("the bucket never-made does not exist")
    with pytest.raises(ProbeRefused, match="the bucket never-made does not exist"):
        await probe_of(ListedStore(missing), send).run()
    assert sent == []


async def test_only_what_time_may_change_is_tested_again_soon() -> None:
    with pytest.raises(ProbeRefused):
        await probe_of(ListedStore(AccessDenied("the key is wrong"))).run()
    with pytest.raises(ProbeRefused, match="RLRUN_SERVER_BUCKET"):
        await StoreProbe(Signer(), answer, S3Uri("", ""), ListedStore()).run()
    with pytest.raises(Inconclusive) as caught:
        await probe_of(ListedStore(Unreachable("slow"))).run()
    assert not isinstance(caught.value, ProbeRefused)


async def test_a_refused_write_has_the_words_of_s3() -> None:
    class Refusing(ListedStore):
        @override
        def put_bytes(self, uri: S3Uri, data: bytes, *, replace: bool = True) -> None:
            raise AccessDenied(f"https://s3 answers PutObject of {uri} with 403 RequestTimeTooSkewed")

    with pytest.raises(ProbeRefused, match="/plain with 403 RequestTimeTooSkewed"):
        await probe_of(Refusing(), lambda *_: 403).run()


async def test_objects_of_killed_tests_are_deleted_but_not_those_of_other_replicas() -> None:
    store = ListedStore()
    store.add("0" * 32, timedelta(days=3))
    store.add("1" * 32, timedelta(seconds=50))
    store.add("2" * 32, timedelta(hours=2))
    store.objects["prefix/team/uid/run.json"] = NOW - timedelta(days=9)
    store.objects[f"prefix/{PROBE_FOLDER}s/0/plain"] = NOW - timedelta(days=9)
    assert (await probe_of(store).run()).method is SigningMethod.headers
    assert store.folders == {"1" * 32, "uid", "0"}


async def test_each_test_deletes_a_bounded_number() -> None:
    store = ListedStore()
    for number in range(MAX_LISTED):
        store.add(f"{number:032x}", timedelta(days=1))
    await probe_of(store).run()
    assert len(store.folders) == MAX_LISTED - MAX_COLLECTED
    assert store.walked <= MAX_LISTED + 1
    await probe_of(store).run()
    assert len(store.folders) == MAX_LISTED - 2 * MAX_COLLECTED


async def test_a_test_has_a_result_although_nothing_can_be_deleted() -> None:
    class Stuck(ListedStore):
        @override
        def delete_prefix(self, uri: S3Uri) -> int:
            raise Unreachable("slow")

    assert (await probe_of(Stuck()).run()).method is SigningMethod.headers


async def test_a_test_that_does_not_end_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_probe, "TEST_SECONDS", 0.05)
    go_on, names = threading.Event(), set[str]()

    def send(method: str, url: str, headers: Any, body: bytes) -> int:
        names.add(threading.current_thread().name)
        go_on.wait(60)
        return answer(method, url, headers, body)

    probe = probe_of(ListedStore(), send)
    try:
        for _ in range(2):
            with pytest.raises(Inconclusive, match="did not end within"):
                await probe.run()
        assert names == {"probe_0"}, "credentials are read in the default threads"
    finally:
        go_on.set()
        probe.close()


def probe_at(s3: S3Server) -> StoreProbe:
    """The probe with its own client."""
    connection = S3Connection(endpoint=s3.endpoint)
    signer = S3Signer(connection)
    store = own_store(signer, connection, LIMITS)
    signer._source._held, signer._source._held_at = Credentials(s3), time.monotonic() + 1e6
    signer._source._read_at = time.monotonic() + 1e6
    return StoreProbe(signer, http_sender(connection), S3Uri(s3.bucket, ""), store)


async def test_a_server_that_throttles_is_not_asked_again_within_a_test() -> None:
    with signed_s3(AWS) as s3:
        s3.away = True
        probe = probe_at(s3.server)
        with pytest.raises(Inconclusive, match="SlowDown") as caught:
            await probe.run()
        assert not isinstance(caught.value, ProbeRefused)
        assert s3.requests == 1
        s3.away = False
        assert await probe.run() == SigningVerdict(SigningMethod.headers)
        probe.close()


@pytest.mark.parametrize("dialect", [AWS, MINIO])
async def test_a_server_without_conditional_writes_is_named(dialect: Dialect) -> None:
    with signed_s3(replace(dialect, has_conditions=False)) as s3:
        probe = probe_at(s3.server)
        verdict = await probe.run()
        probe.close()
        assert s3.objects == {}
    assert verdict.method is not None, "runs train, and read what is there"
    assert "does not implement If-None-Match" in verdict.lack
    assert "cannot store packages, checkpoints and adapters" in verdict.lack


async def test_a_real_server_lacks_nothing(s3_server: S3Server) -> None:
    probe = probe_at(s3_server)
    assert await probe.run() == SigningVerdict(SigningMethod.headers)
    probe.close()


class Credentials:
    token = None

    def __init__(self, s3: S3Server) -> None:
        self.access_key, self.secret_key = s3.access_key_id, s3.secret_access_key
