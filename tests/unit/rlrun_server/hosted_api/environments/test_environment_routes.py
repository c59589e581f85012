"""Look-ups of environments by hosted clients."""

import asyncio
import io
import threading
import zipfile
from collections.abc import Iterable

import pytest
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import StoredObject
from rlrun_server.hosted_api.base.wire import Json
from rlrun_server.hosted_api.environments import environment_routes
from rlrun_server.hosted_api.environments.wheels import inspect_wheel

from tests.support.hosted_api import HostedApi, all_rights, hosted_api
from tests.support.rest_api import BUCKET
from tests.support.waiting import until


def wheel() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("reverse/__init__.py", "x = 1\n")
        archive.writestr("reverse/[data]/big.txt", "a" * 5_000_000)
        archive.writestr("reverse-2.0.dist-info/METADATA", "Name: reverse\n")
    return file.getvalue()


@pytest.fixture
async def api() -> HostedApi:
    found = hosted_api({"acme": ["acme-*"]})
    root = S3Uri(BUCKET, "prefix/environments")
    for version in ("1.0", "2.0", "3.0rc1"):
        found.store.put_bytes(root / f"team/reverse/{version}/reverse-{version}-py3-none-any.whl", wheel())
    found.store.put_bytes(root / "team/reverse/2.0/dependency-1-py3-none-any.whl", b"x")
    found.store.put_bytes(root / "acme/private/1.0/private-1.0-py3-none-any.whl", wheel())
    await found.key()
    return found


async def test_status_names_the_version_that_a_run_gets(api: HostedApi) -> None:
    found = (await api.client.get("/environmentshub/team/reverse/status")).json()["data"]
    assert found["latest_version"]["semantic_version"] == "2.0"
    assert (found["visibility"], found["action"]) == ("PUBLIC", {"status": "SUCCESS"})


async def test_versions_and_lists(api: HostedApi) -> None:
    versions = (await api.client.get("/environmentshub/team/reverse/versions")).json()["data"]
    assert [each["version"] for each in versions] == ["3.0rc1", "2.0", "1.0"]
    listed = (await api.client.get("/environmentshub/", params={"search": "REV"})).json()
    assert ([row["name"] for row in listed["data"]], listed["total_count"]) == (["reverse"], 1)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("visibility=PUBLIC", ["another", "reverse"]),
        ("visibility=PRIVATE", []),
        ("starred_only=true", []),
        ("tags=math", []),
        ("sort_by=name&sort_order=desc", ["reverse", "another"]),
        ("sort_by=created_at&sort_order=desc", ["another", "reverse"]),
        ("search=&visibility=&owner=", ["another", "reverse"]),
    ],
)
async def test_filters_of_the_list(api: HostedApi, query: str, names: list[str]) -> None:
    api.store.put_bytes(S3Uri(BUCKET, "prefix/environments/team/another/1.0/another-1.0-py3-none-any.whl"), wheel())
    found = (await api.client.get(f"/environmentshub/?{query}")).json()
    assert ([row["name"] for row in found["data"]], found["total_count"]) == (names, len(names))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/environmentshub/team/reverse/@latest", 200),
        ("/environmentshub/team/reverse/@1.0", 200),
        ("/environmentshub/team/reverse/@9", 404),
        ("/environmentshub/team/none/@latest", 404),
        ("/environmentshub/team/none/status", 404),
        ("/environmentshub/acme/private/status", 403),
        ("/environmentshub/?owner=acme", 403),
        ("/environmentshub/..%2f..%2fsecret/x/status", 404),
        ("/environmentshub/team/reverse/actions", 200),
    ],
)
async def test_what_is_there_and_what_is_not(api: HostedApi, path: str, status: int) -> None:
    assert (await api.client.get(path)).status_code == status


@pytest.mark.parametrize("spelling", ["Pi_Agent.Env", "pi-agent-env", "PI--AGENT-ENV"])
async def test_all_spellings_are_one_package(api: HostedApi, spelling: str) -> None:
    file = "pi_agent_env-1.0.0-py3-none-any.whl"
    api.store.put_bytes(S3Uri(BUCKET, f"prefix/environments/team/pi-agent-env/1.0.0/{file}"), wheel())
    for version in ("latest", "1.0", "v1.0.0"):
        found = (await api.client.get(f"/environmentshub/team/{spelling}/@{version}")).json()["data"]
        assert (found["name"], found["semantic_version"]) == ("pi-agent-env", "1.0.0")
    listed = (await api.client.get("/environmentshub/", params={"search": spelling})).json()
    assert [row["id"] for row in listed["data"]] == [found["id"]]


async def test_a_missing_package_names_its_neighbours(api: HostedApi) -> None:
    answer = await api.client.get("/environmentshub/team/reverze/status")
    assert "Similar packages: team/reverse" in answer.json()["detail"]
    assert "Similar" not in (await api.client.get("/environmentshub/team/chess/status")).json()["detail"]


async def test_owners_namespaces_read_their_private_packages(api: HostedApi) -> None:
    await api.key("acme-lab", "list rlruns in acme-lab", "get rlenvironments in acme-lab")
    found = (await api.client.get("/environmentshub/acme/private/status")).json()["data"]
    assert found["visibility"] == "PRIVATE"


async def test_files_of_a_wheel(api: HostedApi) -> None:
    place = "/environmentshub/team/reverse/@latest/inspect"
    root = (await api.client.get(place)).json()["data"]
    assert [entry["name"] for entry in root["entries"]] == ["reverse", "reverse-2.0.dist-info"]
    folder = (await api.client.get(place, params={"path": "reverse"})).json()["data"]
    assert [(entry["name"], entry["is_directory"]) for entry in folder["entries"]] == [
        ("(data)", True),
        ("__init__.py", False),
    ]
    assert [entry["path"] for entry in folder["entries"]] == ["reverse/(data)", "reverse/__init__.py"]
    inner = (await api.client.get(place, params={"path": "reverse/[data]"})).json()["data"]
    assert (inner["path"], inner["entries"][0]["path"]) == ("reverse/(data)", "reverse/(data)/big.txt")
    file = (await api.client.get(place, params={"path": "reverse/__init__.py"})).json()["data"]
    assert (file["content"], file["truncated"]) == ("x = 1\n", False)
    big = (await api.client.get(place, params={"path": "reverse/[data]/big.txt", "max_bytes": 10})).json()["data"]
    assert (big["content"], big["truncated"], big["total_bytes"]) == ("a" * 10, True, 5_000_000)
    assert (await api.client.get(place, params={"path": "nothing"})).status_code == 404


async def test_a_namespace_whose_requests_wait_for_s3_delays_no_other(
    api: HostedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, walk = threading.Event(), api.store.walk

    def slow_walk(uri: S3Uri) -> Iterable[StoredObject]:
        if "/slow" in uri.key:
            may_end.wait(60)
        return walk(uri)

    monkeypatch.setattr(api.store, "walk", slow_walk)
    other = await api.rest.key("other", *all_rights("other"))
    slow = [asyncio.create_task(api.client.get("/environmentshub/team/slow/status")) for _ in range(12)]
    try:
        await asyncio.sleep(0.1)
        for _ in range(3):
            found = await asyncio.wait_for(api.client.get("/environmentshub/team/reverse/status", headers=other), 20)
            assert found.status_code == 200, found.text
    finally:
        may_end.set()
    statuses = sorted(answer.status_code for answer in await asyncio.gather(*slow))
    assert statuses == [404] * 9 + [429] * 3, "one in a thread, eight that wait, and no more"


async def test_two_wheels_at_a_time_are_in_memory(api: HostedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, get_range = threading.Event(), api.store.get_range
    read: list[str] = []

    def counted(uri: S3Uri, start: int | None, length: int) -> bytes:
        read.append(uri.key)
        return get_range(uri, start, length)

    def slow(data: bytes, path: str, max_bytes: int) -> Json | None:
        may_end.wait(60)
        return inspect_wheel(data, path, max_bytes)

    monkeypatch.setattr(api.store, "get_range", counted)
    monkeypatch.setattr(environment_routes, "inspect_wheel", slow)
    places = [f"/environmentshub/team/reverse/@{version}/inspect" for version in ("1.0", "2.0", "3.0rc1")]
    callers = [await api.rest.key(name, *all_rights(name)) for name in ("team", "other", "third")]
    asked = [asyncio.create_task(api.client.get(p, headers=who)) for p in places for who in callers]
    try:
        await until(lambda: len(read) >= 2)
        await asyncio.sleep(0.2)
        assert len(read) == 2
    finally:
        may_end.set()
    assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
    assert len(read) == len(asked)
