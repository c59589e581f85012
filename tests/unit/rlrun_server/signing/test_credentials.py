"""Credentials of a source that may not answer."""

import asyncio
import threading
import time

import pytest
from botocore.credentials import ReadOnlyCredentials
from rlrun_server.signing import credentials
from rlrun_server.signing.credentials import KEPT_SECONDS, OLD_SECONDS, CredentialsMissing, CredentialSource


class Cloud:
    """A service that gives credentials."""

    def __init__(self) -> None:
        self.now = 100.0
        self.looks = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.failure: Exception | None = None
        self.source = CredentialSource(self.read, lambda: self.now)

    def read(self) -> ReadOnlyCredentials:
        self.looks += 1
        number = self.looks
        assert self.may_answer.wait(30)
        if self.failure is not None:
            raise self.failure
        return ReadOnlyCredentials(f"key {number}", "secret", None)

    async def key(self) -> str:
        await self.source.renew()
        return str(self.source.current().access_key)


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


async def test_credentials_are_looked_for_every_few_seconds(cloud: Cloud) -> None:
    assert [await cloud.key(), await cloud.key()] == ["key 1"] * 2
    cloud.now += KEPT_SECONDS
    assert await cloud.key() == "key 2"


async def test_a_source_that_does_not_answer_stops_nothing_that_has_credentials(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "WAIT_SECONDS", 0.05)
    await cloud.key()
    cloud.may_answer.clear()
    cloud.now += KEPT_SECONDS
    began = time.monotonic()
    assert await asyncio.gather(*(cloud.key() for _ in range(50))) == ["key 1"] * 50
    cloud.now += 1
    assert [await cloud.key() for _ in range(50)] == ["key 1"] * 50
    assert time.monotonic() - began < 5
    assert cloud.looks == 2
    cloud.may_answer.set()
    while await cloud.key() != "key 2":  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_without_any_credentials_requests_wait_a_while(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "WAIT_SECONDS", 0.05)
    cloud.may_answer.clear()
    with pytest.raises(CredentialsMissing, match="waited more than"):
        await cloud.key()
    cloud.may_answer.set()


async def test_a_failure_is_told_once_the_credentials_are_old(cloud: Cloud) -> None:
    await cloud.key()
    cloud.failure = CredentialsMissing("the identity has gone")
    cloud.now += OLD_SECONDS - 1
    assert await cloud.key() == "key 1"
    cloud.now += KEPT_SECONDS
    with pytest.raises(CredentialsMissing, match="the identity has gone"):
        await cloud.key()
    looks = cloud.looks
    with pytest.raises(CredentialsMissing):
        await cloud.key()
    assert cloud.looks == looks, "a failed look is not repeated at once"
