"""The list of environment packages: whose packages it shows, and what it makes of keys in S3."""

import asyncio
import threading
from typing import Any

import pytest
from rlrun.storage.errors import Unreachable
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import StoredObject
from rlrun_server.rest.base import stored_files
from rlrun_server.rest.objects.environment_catalog import FRESH_SECONDS, packages_of
from rlrun_server.rest.routes.environments import EnvironmentList

from tests.support.fake_s3 import MODIFIED, InMemoryStore
from tests.support.rest_api import BUCKET, RestApi, rest_api

KEYS = [
    "acme/private/1.0/private-1.0-py3-none-any.whl",
    "me/reverse/0.9/reverse-0.9-py3-none-any.whl",
    "me/reverse/0.10/reverse-0.10-py3-none-any.whl",
    "me/reverse/0.10/helper-1.0-py3-none-any.whl",
    "team/adder/1.0/adder-1.0-py3-none-any.whl",
    "me/no-wheel/1.0/readme.txt",
    "me/<img>/1.0/x.whl",
    "me/deep/1.0/more/x.whl",
]
FOLDER = S3Uri(BUCKET, "prefix/environments")


class CountingStore(InMemoryStore):
    """Counts the lists, and fails on demand."""

    lists = 0
    is_away = False

    def __init__(self, bucket: str) -> None:
        super().__init__(bucket)
        self.may_answer = threading.Event()
        self.may_answer.set()

    def walk(self, uri: S3Uri) -> Any:
        self.lists += 1
        assert self.may_answer.wait(30)
        if self.is_away:
            raise Unreachable("away")
        return super().walk(uri)


@pytest.fixture
def store() -> CountingStore:
    found = CountingStore(BUCKET)
    for key in KEYS:
        found.put_bytes(FOLDER / key, b"x")
    return found


@pytest.fixture
def seconds() -> list[float]:
    return [100.0]


@pytest.fixture
def api(store: CountingStore, seconds: list[float]) -> RestApi:
    return rest_api(store, clock=lambda: seconds[0])


async def ids(api: RestApi, headers: dict[str, str], **query: Any) -> list[str]:
    answer = await api.client.get("/environments", params=query, headers=headers)
    assert answer.status_code == 200, answer.text
    return [item.id for item in EnvironmentList.model_validate(answer.json()).items]


PUBLIC = ["me/reverse", "team/adder"]


@pytest.mark.parametrize(
    ("rights", "namespace", "found"),
    [
        ([], "", PUBLIC),
        ([], "team", PUBLIC),
        (["get rlenvironments in team"], "", PUBLIC),
        (["get rlenvironments in team"], "team", ["acme/private", *PUBLIC]),
        (["get rlenvironments in acme-x"], "acme-x", ["acme/private", *PUBLIC]),
        (["get rlenvironments in other"], "other", PUBLIC),
    ],
)
async def test_packages_of_a_listed_owner_are_shown_in_its_namespaces_only(
    api: RestApi, rights: list[str], namespace: str, found: list[str]
) -> None:
    assert await ids(api, api.user("ann", *rights), **({"namespace": namespace} if namespace else {})) == found


async def test_each_package_has_its_newest_version(api: RestApi, store: CountingStore) -> None:
    answer = await api.client.get("/environments", params={"owner": "me"}, headers=api.user("ann"))
    (item,) = answer.json()["items"]
    assert (item["id"], item["versions"], item["public"]) == ("me/reverse", 2, True)
    assert item["pushed"] == MODIFIED.isoformat()


async def test_an_owner_without_packages_is_public_or_not(api: RestApi) -> None:
    for owner, public in (("none-yet", True), ("acme", False), (None, None)):
        answer = await api.client.get(
            "/environments", params={"owner": owner} if owner else {}, headers=api.user("ann")
        )
        assert EnvironmentList.model_validate(answer.json()).public is public


async def test_pages_follow_one_another(api: RestApi) -> None:
    headers = api.user("ann")
    first = (await api.client.get("/environments", params={"limit": 1}, headers=headers)).json()
    assert first["total"] == 2
    assert await ids(api, headers, limit=1, cursor=first["next"]) == ["team/adder"]
    other = await api.client.get("/environments", params={"owner": "me", "cursor": first["next"]}, headers=headers)
    assert other.status_code == 400


async def test_s3_is_asked_once_for_a_while(api: RestApi, store: CountingStore, seconds: list[float]) -> None:
    headers = api.user("ann")
    for _ in range(3):
        await ids(api, headers)
    assert store.lists == 1
    seconds[0] += FRESH_SECONDS
    await ids(api, headers)
    assert store.lists == 2


async def test_without_s3_the_answer_is_a_problem(api: RestApi, store: CountingStore) -> None:
    store.is_away = True
    answer = await api.client.get("/environments", headers=api.user("ann"))
    assert answer.status_code == 503
    assert answer.json()["reason"] == "S3Unreachable"
    store.is_away = False
    assert await ids(api, api.user("ann")) == PUBLIC


async def test_a_slow_list_is_the_answer_of_a_later_request(
    api: RestApi, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a list that takes longer than a request waits would never be shown."""
    monkeypatch.setattr(stored_files, "WAIT_SECONDS", 0.05)
    store.may_answer.clear()
    for _ in range(2):
        answer = await api.client.get("/environments", headers=api.user("ann"))
        assert (answer.status_code, answer.json()["reason"]) == (503, "S3Unreachable")
    monkeypatch.setattr(stored_files, "WAIT_SECONDS", 30.0)
    later = asyncio.create_task(ids(api, api.user("ann")))
    await asyncio.sleep(0.05)
    store.may_answer.set()
    assert await later == PUBLIC
    assert store.lists == 1


async def test_a_namespace_that_is_none_is_refused(api: RestApi) -> None:
    answer = await api.client.get("/environments", params={"namespace": "A B"}, headers=api.user("ann"))
    assert answer.status_code == 400


async def test_too_many_files_are_not_all_read(
    api: RestApi, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlrun_server.rest.objects.environment_catalog.MAX_FILES", 2)
    answer = (await api.client.get("/environments", headers=api.user("ann"))).json()
    assert answer["isComplete"] is False


def test_versions_are_told_apart_by_the_time_of_their_push() -> None:
    times = {"1.0": MODIFIED.replace(day=2), "2.0": MODIFIED}
    files = [StoredObject(f"{FOLDER.key}/me/a/{version}/a.whl", 1, time) for version, time in times.items()]
    (package,) = packages_of(files, FOLDER)
    assert (package.version, package.versions) == ("1.0", 2)
