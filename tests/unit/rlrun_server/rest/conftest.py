"""API with stored rollouts in memory."""

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from rlrun.storage.errors import Unreachable
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import StoredObject
from typing_extensions import override

from tests.support.fake_s3 import InMemoryStore
from tests.support.rest_api import BUCKET, RestApi, rest_api, run_object, uid_of
from tests.support.stored_samples import StoredSamples

ROOT = S3Uri(BUCKET, "prefix")


class SampleBucket(InMemoryStore):
    """Bucket that remembers what is asked."""

    def __init__(self) -> None:
        super().__init__(BUCKET)
        self.asked: list[str] = []
        self.is_away = False

    @override
    def walk(self, uri: S3Uri) -> Iterator[StoredObject]:
        self._ask(f"list {uri.key.rpartition('/')[2]}")
        return super().walk(uri)

    @override
    def walk_prefix(self, uri: S3Uri) -> Iterator[StoredObject]:
        self._ask(f"list {uri.key.rpartition('/')[2]}")
        return super().walk_prefix(uri)

    @override
    def get_range(self, uri: S3Uri, start: int | None, length: int) -> bytes:
        self._ask(f"get {uri.key.rpartition('/')[2]}")
        return super().get_range(uri, start, length)

    def _ask(self, what: str) -> None:
        if self.is_away:
            raise Unreachable("S3 is away")
        self.asked.append(what)


class SampleApi:
    """API with one run, and its folder."""

    def __init__(self) -> None:
        self.now = 100.0
        self.bucket = SampleBucket()
        self.rest: RestApi = rest_api(self.bucket, lambda: self.now)
        self.rest.add(run_object("first"))
        self.run = StoredSamples(self.bucket, ROOT, "team", uid_of(1))

    async def get(self, path: str, query: Mapping[str, Any] | None = None, run: str = "first") -> httpx.Response:
        user = self.rest.user("ann", "list rlruns in team", "get rlruns/samples in team")
        return await self.rest.client.get(f"/namespaces/team/runs/{run}/{path}", params=query, headers=user)

    async def found(self, path: str, query: Mapping[str, Any] | None = None, run: str = "first") -> Any:
        answer = await self.get(path, query, run)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def problem(self, path: str, query: Mapping[str, Any] | None = None, run: str = "first") -> tuple[int, str]:
        answer = await self.get(path, query, run)
        return answer.status_code, answer.json()["reason"]


@pytest.fixture
def stored() -> SampleApi:
    return SampleApi()
