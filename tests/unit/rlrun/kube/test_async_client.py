"""The operator's client against an API server over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kubernetes.aio import client
from rlrun.kube import async_client, async_transport, requests
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import AsyncApiTransport
from rlrun.kube.connection.api_configuration import without_credentials
from rlrun.kube.connection.cluster_clock import ClusterClock
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import EVENT, LEASE, POD, RLRUN
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest

from tests.unit.rlrun.kube.api_server import Answer, ApiServer, not_found, serving

RUNS = "/apis/rlrun.dev/v1alpha1/namespaces/team/rlruns"
LOG = "/api/v1/namespaces/team/pods/first/log"
RUN = {"apiVersion": "rlrun.dev/v1alpha1", "kind": "RLRun", "metadata": {"name": "first", "namespace": "team"}}


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[AsyncKubeClient, ApiServer]]:
    async with serving() as server:
        configuration = client.Configuration()
        configuration.host = server.host
        kube = AsyncKubeClient(AsyncApiTransport(configuration))
        try:
            yield kube, server
        finally:
            await kube.close()


async def test_get_returns_the_object() -> None:
    async with connected() as (kube, server):
        server.answer(f"GET {RUNS}/first", Answer(RUN))
        assert await kube.get(RLRUN, "team", "first") == RUN


async def test_an_impersonated_user_arrives_with_each_group() -> None:
    async with serving() as server:
        configuration = client.Configuration(host=server.host, api_key={"BearerToken": "own"})
        transport = AsyncApiTransport(configuration)
        server.answer(f"GET {RUNS}/first", Answer(RUN))
        groups = (("Impersonate-Group", "ml"), ("Impersonate-Group", "größe"))
        asked = replace(requests.get(RLRUN, "team", "first"), impersonation=(("Impersonate-User", "ann"), *groups))
        try:
            await transport.send(asked)
        finally:
            await transport.close()
    (arrived,) = server.asked
    assert (arrived.impersonated, arrived.authorization) == (("ann", "ml", "größe"), "own")


async def test_get_returns_none_for_a_missing_object() -> None:
    async with connected() as (kube, server):
        server.answer(f"GET {RUNS}/first", not_found("first"))
        assert await kube.get(RLRUN, "team", "first") is None


async def test_get_of_a_kind_that_is_not_installed_is_an_error() -> None:
    async with connected() as (kube, _):
        with pytest.raises(ApiError, match="cannot get RLRun team/first: 404 404: 404 page not found"):
            await kube.get(RLRUN, "team", "first")


async def test_list_reads_every_page() -> None:
    async with connected() as (kube, server):
        pages = ({"items": [{"n": 1}], "metadata": {"continue": "t"}}, {"items": [{"n": 2}], "metadata": {}})
        server.answer("GET /api/v1/namespaces/team/pods", *map(Answer, pages))
        found = await kube.list(POD, "team", {"a": "b", "c": ""})
        assert found == [{"apiVersion": "v1", "kind": "Pod", "n": n} for n in (1, 2)]
        assert [a.query for a in server.asked] == [
            {"limit": "500", "labelSelector": "a=b,c"},
            {"limit": "500", "labelSelector": "a=b,c", "continue": "t"},
        ]


async def test_list_of_which_a_page_is_missing_is_an_error() -> None:
    async with connected() as (kube, server):
        gone = {"reason": "Expired", "message": "too old"}
        server.answer(f"GET {RUNS}", Answer({"items": [], "metadata": {"continue": "t"}}), Answer(gone, 410))
        with pytest.raises(ApiError, match="cannot list rlruns in namespace team: 410 Expired: too old"):
            await kube.list(RLRUN, "team")


@pytest.mark.parametrize("body", [{}, {"items": None}, {"items": {}}])
async def test_list_without_items_is_an_error(body: object) -> None:
    async with connected() as (kube, server):
        server.answer(f"GET {RUNS}", Answer(body))
        with pytest.raises(ApiError, match="not a list of rlruns"):
            await kube.list(RLRUN, "team")


def large_page(count: int, token: str = "") -> Answer:
    """A page with objects of 100 bytes and more."""
    items = [{"metadata": {"name": f"{token}{n}"}, "data": 100 * "x"} for n in range(count)]
    return Answer({"items": items, "metadata": {"continue": token, "resourceVersion": "7"}})


@pytest.fixture
def small_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (async_client, async_transport):
        monkeypatch.setattr(module, "RESPONSE_LIMIT", 1000)
    monkeypatch.setattr(async_client, "RUN_PAGE_LIMIT", 500)
    monkeypatch.setattr(async_client, "PAGE_LIMIT", 1000)


@pytest.mark.usefixtures("small_responses")
async def test_a_response_that_is_too_large_is_not_read_to_its_end() -> None:
    async with connected() as (kube, server):
        server.answer(f"GET {RUNS}/first", Answer({**RUN, "spec": 1000 * "x"}))
        with pytest.raises(ApiError, match=r"cannot get RLRun team/first: TooLarge: .* more than 0.00095 MiB"):
            await kube.get(RLRUN, "team", "first")
        server.answer(f"GET {RUNS}/first", Answer({**RUN, "spec": 800 * "x"}))
        assert await kube.get(RLRUN, "team", "first")


@pytest.mark.usefixtures("small_responses")
async def test_a_list_of_many_runs_goes_on_with_smaller_pages() -> None:
    async with connected() as (kube, server):
        server.answer("GET /api/v1/pods", large_page(2, "a"), large_page(20, "b"), large_page(2, "b"), large_page(1))
        found = [obj["metadata"]["name"] async for page, _ in kube.all_pages(POD, None, {"l": ""}) for obj in page]
        assert found == ["a0", "a1", "b0", "b1", "0"]
        pages = [(a.query["limit"], a.query.get("continue")) for a in server.asked]
        assert pages == [("500", None), ("500", "a"), ("50", "a"), ("50", "b")]


@pytest.mark.usefixtures("small_responses")
async def test_a_list_of_all_goes_on_with_smaller_pages() -> None:
    async with connected() as (kube, server):
        last = Answer({"items": [], "metadata": {"resourceVersion": "8"}})
        server.answer("GET /api/v1/pods", *3 * [large_page(20)], large_page(3, "a"), last)
        pages = [(len(page), version) async for page, version in kube.all_pages(POD, None, {"l": ""})]
        assert [size for size, _ in pages] == [3, 0]
        assert pages[-1][1] == "8"
        assert [a.query["limit"] for a in server.asked] == ["500", "50", "5", "1", "1"]


@pytest.mark.usefixtures("small_responses")
async def test_a_list_of_all_pools_goes_on_with_smaller_pages() -> None:
    async with connected() as (kube, server):
        server.answer("GET /api/v1/pods", large_page(20), large_page(3))
        assert len(await kube.list(POD, None, {"l": ""})) == 3


@pytest.mark.usefixtures("small_responses")
async def test_a_response_without_an_end_is_left() -> None:
    async with connected() as (kube, server):
        server.answer(f"GET {RUNS}/first", Answer(endless=True))
        async with asyncio.timeout(10):
            with pytest.raises(ApiError, match="TooLarge"):
                await kube.get(RLRUN, "team", "first")


@pytest.mark.usefixtures("small_responses")
async def test_one_object_that_is_too_large_ends_a_list() -> None:
    async with connected() as (kube, server):
        server.answer("GET /api/v1/pods", large_page(20))
        with pytest.raises(ApiError, match="cannot list pods: TooLarge"):
            await kube.list(POD, None, {"l": ""})
        assert len(server.asked) == 4


@pytest.mark.usefixtures("small_responses")
async def test_the_list_of_one_objects_events_is_small_in_all() -> None:
    """Who may create Events may give them the uid of any pod."""
    async with connected() as (kube, server):
        server.answer("GET /api/v1/namespaces/team/events", *(large_page(3, token) for token in ("a", "b", "c", "")))
        with pytest.raises(ApiError, match="cannot list events in namespace team: TooLarge"):
            await kube.list(EVENT, "team", fields="involvedObject.uid=pod-1")


@pytest.mark.usefixtures("small_responses")
async def test_the_list_of_one_run_is_small_in_all() -> None:
    async with connected() as (kube, server):
        server.answer("GET /api/v1/namespaces/team/pods", large_page(20))
        with pytest.raises(
            ApiError,
            match=r"cannot list pods in namespace team: TooLarge: .* Delete the pods that users .* labels matching l=x",
        ):
            await kube.list(POD, "team", {"l": "x"})
        assert len(server.asked) == 1
        pages = [large_page(2, token) for token in "abc"]
        server.answer("GET /api/v1/namespaces/team/pods", *pages, large_page(1))
        with pytest.raises(ApiError, match="cannot list pods in namespace team: TooLarge"):
            await kube.list(POD, "team", {"l": "x"})
        server.answer("GET /api/v1/namespaces/team/pods", pages[0], large_page(1))
        assert len(await kube.list(POD, "team", {"l": "x"})) == 3


@pytest.mark.usefixtures("small_responses")
async def test_only_a_page_that_is_too_large_becomes_smaller() -> None:
    async with connected() as (kube, server):
        gone = Answer({"reason": "Expired", "message": "too old"}, 410)
        server.answer("GET /api/v1/pods", large_page(2, "a"), gone)
        with pytest.raises(ApiError, match="410 Expired"):
            await kube.list(POD, None, {"l": ""})
        assert len(server.asked) == 2


async def test_a_large_body_of_an_error_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_transport, "ERROR_LIMIT", 10)
    async with connected() as (kube, server):
        server.answer(f"GET {RUNS}/first", Answer(b"much too long", 500))
        with pytest.raises(ApiError, match=r"500 500: much too l$"):
            await kube.get(RLRUN, "team", "first")


async def test_an_answer_that_is_no_object_is_an_error() -> None:
    async with connected() as (kube, server):
        server.answer(f"GET {RUNS}/first", Answer(b"<html>log in</html>"))
        with pytest.raises(ApiError, match="not a Kubernetes object"):
            await kube.get(RLRUN, "team", "first")


async def test_writes_name_their_field_manager() -> None:
    async with connected() as (kube, server):
        for route in (f"POST {RUNS}", f"PUT {RUNS}/first", f"PATCH {RUNS}/first", f"PATCH {RUNS}/first/status"):
            server.answer(route, Answer(RUN))
        await kube.create(RUN)
        await kube.replace(RUN)
        await kube.apply(RUN)
        await kube.apply_status(RUN, "rlrun-serving")
        await kube.patch(RLRUN, "team", "first", {"metadata": {}})
        await kube.patch_status(RLRUN, "team", "first", {"status": {}})
        own = {"fieldManager": "rlrun-operator"}
        json, apply, merge = ("application/json", "application/apply-patch+yaml", "application/merge-patch+json")
        assert [(a.method, a.path, a.query, a.content_type) for a in server.asked] == [
            ("POST", RUNS, own, json),
            ("PUT", f"{RUNS}/first", own, json),
            ("PATCH", f"{RUNS}/first", {**own, "force": "true"}, apply),
            ("PATCH", f"{RUNS}/first/status", {"fieldManager": "rlrun-serving", "force": "true"}, apply),
            ("PATCH", f"{RUNS}/first", own, merge),
            ("PATCH", f"{RUNS}/first/status", own, merge),
        ]
        assert [a.body for a in server.asked] == [RUN, RUN, RUN, RUN, {"metadata": {}}, {"status": {}}]


async def test_delete_is_in_the_background_and_of_one_uid() -> None:
    async with connected() as (kube, server):
        server.answer(f"DELETE {RUNS}/first", Answer({}))
        assert await kube.delete(RLRUN, "team", "first", "u-1")
        (asked,) = server.asked
        assert asked.body["propagationPolicy"] == "Background"
        assert asked.body["preconditions"] == {"uid": "u-1"}


@pytest.mark.parametrize("answer", [not_found("first"), Answer({"reason": "Conflict", "message": "uid"}, 409)])
async def test_delete_of_an_object_that_is_gone_returns_false(answer: Answer) -> None:
    async with connected() as (kube, server):
        server.answer(f"DELETE {RUNS}/first", answer)
        assert not await kube.delete(RLRUN, "team", "first", "u-1")


async def test_an_api_server_that_does_not_listen_is_unanswered() -> None:
    configuration = client.Configuration()
    configuration.host = "http://127.0.0.1:1"
    kube = AsyncKubeClient(AsyncApiTransport(configuration))
    try:
        with pytest.raises(ApiError, match=r"get Lease team/l: Unreachable: .*127\.0\.0\.1:1 does not") as caught:
            await kube.get(LEASE, "team", "l")
        assert caught.value.is_unanswered
    finally:
        await kube.close()


async def test_log_is_asked_for_by_container() -> None:
    async with connected() as (kube, server):
        server.answer(f"GET {LOG}", Answer(b"hello\n"))
        assert await kube.log("team", "first", "trainer", previous=True, limit=100) == b"hello\n"
        assert server.asked[0].query == {"container": "trainer", "previous": "true", "tailLines": "200000"}


async def test_log_keeps_the_end_of_a_long_one() -> None:
    async with connected() as (kube, server):
        server.answer(f"GET {LOG}", Answer(b"".join(f"{number:04d}".encode() * 8192 for number in range(40))))
        found = await kube.log("team", "first", "main", previous=False, limit=100_000)
        assert found
        assert len(found) == 100_000
        assert found.endswith(b"0039" * 8192)


@pytest.mark.parametrize("status", [400, 404])
async def test_log_that_does_not_exist_is_none(status: int) -> None:
    async with connected() as (kube, server):
        server.answer(f"GET {LOG}", Answer({"reason": "BadRequest", "message": "waiting to start"}, status))
        assert await kube.log("team", "first", "main", previous=False, limit=100) is None


@pytest.mark.parametrize(
    ("text", "is_removed"),
    [
        ("unable to retrieve container logs for containerd://ac2d5c4b", True),
        ('failed to try resolving symlinks in path "/var/log/pods/x": lstat: no such file or directory', True),
        ("unable to retrieve container logs for containerd://ac2d5c4b\n", False),
        ("unable to retrieve container logs for containerd://ac2d5c4b\nmore", False),
        ("x" * 5000, False),
    ],
)
async def test_what_a_kubelet_answers_for_a_removed_log_is_none(text: str, is_removed: bool) -> None:
    async with connected() as (kube, server):
        server.answer(f"GET {LOG}", Answer(text.encode()))
        found = await kube.log("team", "first", "main", previous=False, limit=10_000)
        assert found == (None if is_removed else text.encode())


async def test_log_that_is_forbidden_is_an_error() -> None:
    async with connected() as (kube, server):
        server.answer(f"GET {LOG}", Answer({"reason": "Forbidden", "message": "no pods/log"}, 403))
        with pytest.raises(ApiError, match=r"read the log of team/first \(main\): 403 Forbidden: no pods/log"):
            await kube.log("team", "first", "main", previous=False, limit=100)


OWNED = {**RUN, "metadata": {**RUN["metadata"], "labels": {"rlrun.dev/run-uid": "uid-1"}}}
TAKEN = Answer({"reason": "Conflict", "message": "the object has been modified"}, 409)


async def test_a_new_object_costs_one_request_that_overwrites_none() -> None:
    async with connected() as (kube, server):
        server.answer(f"PATCH {RUNS}/first", Answer(OWNED))
        await kube.apply_own(OWNED, is_new=True)
        assert [(a.method, a.body["metadata"]["resourceVersion"]) for a in server.asked] == [("PATCH", "1")]
        await kube.apply_own(OWNED, is_new=False)
        assert "resourceVersion" not in server.asked[1].body["metadata"]


@pytest.mark.parametrize(
    ("existing", "error"),
    [
        ([OWNED], None),
        ([RUN], "NameTaken"),
        ([], "Conflict"),
    ],
    ids=["own", "foreign", "gone again"],
)
async def test_a_name_that_is_taken_is_looked_at(existing: list[object], error: str | None) -> None:
    async with connected() as (kube, server):
        server.answer(f"PATCH {RUNS}/first", TAKEN, Answer(OWNED))
        server.answer(f"GET {RUNS}", Answer({"items": existing, "metadata": {}}))
        if error is None:
            assert await kube.apply_own(OWNED, is_new=True) == OWNED
            assert "resourceVersion" not in server.asked[-1].body["metadata"]
            return
        with pytest.raises(ApiError) as raised:
            await kube.apply_own(OWNED, is_new=True)
        assert raised.value.reason == error
        assert [a.method for a in server.asked] == ["PATCH", "GET"]
        assert server.asked[1].query == {"fieldSelector": "metadata.name=first"}


async def test_a_list_of_all_tells_the_version_from_which_a_watch_begins() -> None:
    all_runs = "/apis/rlrun.dev/v1alpha1/rlruns"
    async with connected() as (kube, server):
        first = {"items": [RUN], "metadata": {"continue": "t", "resourceVersion": "7"}}
        server.answer(f"GET {all_runs}", Answer(first), Answer({"items": [], "metadata": {"resourceVersion": "7"}}))
        assert [page async for page in kube.all_pages(RLRUN)] == [([RUN], "7"), ([], "7")]
        event = {"type": "MODIFIED", "object": RUN}
        server.answer(f"GET {all_runs}", Answer(json.dumps(event).encode() + b"\n"))
        assert [found async for found in kube.watch(RLRUN, None, {"of": "us"}, "7", 60)] == [("MODIFIED", RUN)]
        query = server.asked[-1].query
        assert (query["watch"], query["resourceVersion"], query["timeoutSeconds"]) == ("true", "7", "60")
        assert query["labelSelector"] == "of=us"


async def test_an_event_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_client, "PAGE_LIMIT", 1000)
    async with connected() as (kube, server):
        server.answer("GET /apis/rlrun.dev/v1alpha1/rlruns", Answer(endless=True))
        with pytest.raises(ApiError, match="the response has more than"):
            async for _ in kube.watch(RLRUN, None, None, "7", 60):
                pass


async def test_a_watch_that_the_server_does_not_answer_is_an_error() -> None:
    async with serving() as server:
        kube = AsyncKubeClient(AsyncApiTransport(client.Configuration(host=server.host)), open_seconds=0.1)
        server.answer("GET /apis/rlrun.dev/v1alpha1/rlruns", Answer(b"", seconds=1))
        with pytest.raises(ApiError, match="the API server did not respond within 0 s") as raised:
            async for _ in kube.watch(RLRUN, None, None, "7", 60):
                pass
        await kube.close()
        assert raised.value.is_temporary


async def test_responses_measure_the_clock_of_the_api_server_and_errors_do_not() -> None:
    """A proxy that answers for the API server has its own time. The test's server is the same machine."""
    ahead = datetime.now(UTC) + timedelta(hours=1)
    clock = ClusterClock(own=lambda: ahead)
    async with serving() as server:
        kube = AsyncKubeClient(AsyncApiTransport(client.Configuration(host=server.host), clock=clock))
        with pytest.raises(ApiError):
            await kube.get(RLRUN, "team", "first")
        assert clock() >= ahead
        server.answer(f"GET {RUNS}/first", Answer(RUN))
        await kube.get(RLRUN, "team", "first")
        await kube.close()
    assert abs(clock() - datetime.now(UTC)) < timedelta(minutes=1)


async def test_every_request_is_counted() -> None:
    counted: list[str] = []
    async with serving() as server:
        configuration = client.Configuration(host=server.host)
        kube = AsyncKubeClient(
            AsyncApiTransport(configuration, on_request=lambda request: counted.append(str(request)))
        )
        server.answer(f"GET {RUNS}/first", Answer(RUN))
        await kube.get(RLRUN, "team", "first")
        await kube.close()
    assert counted == ["get RLRun team/first"]


async def test_a_write_shows_its_answer_before_the_caller_has_it() -> None:
    seen: list[object] = []

    @contextmanager
    def writing(request: KubeRequest) -> Iterator[Callable[[Obj], None]]:
        seen.append(str(request))
        yield seen.append
        seen.append("end")

    async with serving() as server:
        kube = AsyncKubeClient(AsyncApiTransport(client.Configuration(host=server.host)), writing=writing)
        server.answer(f"PATCH {RUNS}/first", Answer(RUN))
        server.answer(f"GET {RUNS}/first", Answer(RUN))
        await kube.patch(RLRUN, "team", "first", {})
        await kube.get(RLRUN, "team", "first")
        await kube.close()
    assert seen == ["change RLRun team/first", RUN, "end"]


async def test_a_way_without_credentials_has_none() -> None:
    configuration = client.Configuration(host="https://api", ssl_ca_cert="ca.pem")
    configuration.api_key = {"BearerToken": "Bearer of-the-server"}
    configuration.cert_file, configuration.key_file = "own.crt", "own.key"
    configuration.username, configuration.password = "server", "secret"
    configuration.tls_server_name = "kubernetes"
    bare = without_credentials(configuration)
    assert (bare.host, bare.ssl_ca_cert, bare.tls_server_name) == ("https://api", "ca.pem", "kubernetes")
    assert not await bare.auth_settings()
    assert (bare.cert_file, bare.key_file, bare.username, bare.password) == (None, None, None, None)
    assert bare.refresh_api_key_hook is None


async def test_only_the_configuration_says_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    async with connected() as (kube, server):
        server.answer(f"GET {RUNS}/first", Answer(RUN))
        await kube.get(RLRUN, "team", "first")
        assert server.asked[0].authorization is None


async def test_the_token_of_the_configuration_is_sent() -> None:
    async with serving() as server:
        configuration = client.Configuration(host=server.host)
        configuration.api_key = {"BearerToken": "Bearer of-the-operator"}
        kube = AsyncKubeClient(AsyncApiTransport(configuration))
        server.answer(f"GET {RUNS}/first", Answer(RUN))
        await kube.get(RLRUN, "team", "first")
        await kube.close()
        assert server.asked[0].authorization == "Bearer of-the-operator"


async def test_the_proxy_of_the_configuration_is_used() -> None:
    async with serving() as server:
        configuration = client.Configuration(host="http://api.test")
        configuration.proxy = server.host
        kube = AsyncKubeClient(AsyncApiTransport(configuration))
        server.answer(f"GET {RUNS}/first", Answer(RUN))
        assert await kube.get(RLRUN, "team", "first") == RUN
        await kube.close()
