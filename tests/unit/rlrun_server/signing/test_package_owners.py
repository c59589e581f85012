"""Packages belong to the namespace that pushed first, by its uid."""

import asyncio
import threading

import pytest
from rlrun.kube.errors import ApiError
from rlrun.storage.layout import S3Uri, package_owner_record
from rlrun.storage.store import Unreachable
from rlrun_server.signing.package_owners import KEPT_SECONDS, NAMESPACE_SECONDS, THREADS, PackageOwners
from rlrun_server.signing.s3_request import Operation, RequestNotAllowed, S3Request
from rlrun_server.signing.user_permissions import required_check

from tests.support.fake_s3 import InMemoryStore
from tests.support.signing_server import ReviewingApi

ROOT = S3Uri("bucket", "prefix")
RECORD = package_owner_record(ROOT, "team")


async def renew() -> None:
    pass


class Platform:
    def __init__(self) -> None:
        self.api, self.store, self.now = ReviewingApi(), InMemoryStore("bucket"), 0.0

    def replica(self) -> PackageOwners:
        return PackageOwners(self.api, self.store, renew, ROOT, {"acme": ["team"]}, lambda: self.now)


async def test_the_first_namespace_owns_the_packages_until_they_are_handed_over() -> None:
    platform = Platform()
    owners = platform.replica()
    platform.api.add_namespace("team", "first")
    await owners.require("team")
    assert platform.store.get_bytes(RECORD) == b"first"
    platform.api.add_namespace("team", "second")
    platform.now += NAMESPACE_SECONDS
    for replica in (owners, platform.replica()):
        with pytest.raises(RequestNotAllowed, match=r"s3://bucket/prefix/environments/team/\.owner"):
            await replica.require("team")
    assert platform.store.delete_prefix(ROOT / "environments" / "team") == 1
    platform.now += KEPT_SECONDS
    await owners.require("team")
    assert platform.store.get_bytes(RECORD) == b"second"


async def test_a_namespace_that_the_server_may_not_read_owns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = Platform()

    async def refuse(*_: object) -> None:
        raise ApiError(403, "Forbidden", "namespaces is forbidden")

    monkeypatch.setattr(platform.api, "get", refuse)
    with pytest.raises(RequestNotAllowed, match=r"namespace team owns these packages.*operator\.watchNamespaces"):
        await platform.replica().require("team")


@pytest.mark.parametrize("operation", Operation)
def test_users_do_nothing_with_the_record(operation: Operation) -> None:
    with pytest.raises(RequestNotAllowed):
        required_check(S3Request(operation, RECORD.bucket, RECORD.key), ROOT, {}, "team", once=True)


async def test_a_namespace_made_after_a_push_of_an_administrator_does_not_own_the_packages() -> None:
    platform = Platform()
    owners = platform.replica()
    await owners.require("team")
    platform.api.add_namespace("team", "first")
    platform.now += NAMESPACE_SECONDS
    with pytest.raises(RequestNotAllowed):
        await owners.require("team")


async def test_replicas_that_record_at_the_same_time_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = Platform()
    platform.api.add_namespace("team", "first")
    read = platform.store.get_range

    def lose_the_race(uri: S3Uri, start: int | None, length: int) -> bytes:
        monkeypatch.setattr(platform.store, "get_range", read)
        try:
            return read(uri, start, length)
        finally:
            platform.store.put_bytes(RECORD, b"other")

    monkeypatch.setattr(platform.store, "get_range", lose_the_race)
    with pytest.raises(RequestNotAllowed):
        await platform.replica().require("team")


async def test_the_files_of_a_push_share_a_read_of_the_namespace() -> None:
    platform = Platform()
    owners = platform.replica()
    platform.api.add_namespace("team", "first")
    await asyncio.gather(*(owners.require("team") for _ in range(20)))
    platform.now += NAMESPACE_SECONDS - 0.1
    await owners.require("team")
    assert platform.api.reads == 1
    assert 2 <= NAMESPACE_SECONDS <= 5


async def test_slow_records_take_no_threads_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = Platform()
    owners = platform.replica()
    go_on, read, names = threading.Event(), platform.store.get_range, set[str]()

    def read_slowly(uri: S3Uri, start: int | None, length: int) -> bytes:
        names.add(threading.current_thread().name)
        go_on.wait(60)
        return read(uri, start, length)

    monkeypatch.setattr(platform.store, "get_range", read_slowly)
    waiting = [asyncio.create_task(owners.require(f"team-{number}")) for number in range(40)]
    try:
        # Credentials are read in the default threads.
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 1), 60) == 1
    finally:
        go_on.set()
    await asyncio.gather(*waiting)
    owners.close()
    assert 0 < len(names) <= THREADS
    assert not any(name.startswith("asyncio") for name in names)


async def test_listed_owners_have_no_record() -> None:
    platform = Platform()
    await platform.replica().require("acme")
    assert platform.api.reads == 0
    assert not platform.store.list_files(ROOT)


async def test_without_s3_nothing_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = Platform()

    def fail(*_: object) -> bytes:
        raise Unreachable("no answer")

    monkeypatch.setattr(platform.store, "get_range", fail)
    results = await asyncio.gather(*(platform.replica().require("team") for _ in range(2)), return_exceptions=True)
    assert all(isinstance(result, Unreachable) for result in results)
