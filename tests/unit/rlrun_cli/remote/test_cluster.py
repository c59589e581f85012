"""Client of the commands against an HTTP API server: results, and a CliError for each failure."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes import client
from rlrun.kube.kinds import RLRUN, SECRET
from rlrun.kube.requests import Printed
from rlrun.kube.sync_client import SyncApiTransport
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.terminal.errors import ConflictError, NotFoundError, NotReadyError, UnreachableError

from tests.support.fake_cluster import FakeCluster
from tests.unit.rlrun.kube.api_server import Answer, ApiServer, not_found, serving
from tests.unit.rlrun_cli.conftest import remote_cluster

RUNS = "/apis/rlrun.dev/v1alpha1/namespaces/team/rlruns"
SECRETS = "/api/v1/namespaces/team/secrets"
RUN = {"apiVersion": "rlrun.dev/v1alpha1", "kind": "RLRun", "metadata": {"name": "first", "namespace": "team"}}


def remote(host: str) -> RemoteCluster:
    settings = client.Configuration()
    settings.host = host
    settings.retries = 0
    return RemoteCluster(lambda seconds: SyncApiTransport(client.ApiClient(settings)), "team")


async def call_server(
    call: Callable[[RemoteCluster], Any], **answers: Answer | tuple[Answer, ...]
) -> tuple[Any, ApiServer]:
    """Return the result of `call` and the server, which gives each method the named answers for runs and Secrets."""
    async with serving() as server:
        for method, answer in answers.items():
            for path in (RUNS, f"{RUNS}/first", SECRETS, f"{SECRETS}/first", "/api/v1/namespaces/team/pods/p/log"):
                server.answer(f"{method} {path}", *(answer if isinstance(answer, tuple) else (answer,)))
        return await asyncio.to_thread(call, remote(server.host)), server


async def test_a_run_is_read_and_listed_in_the_namespace_or_in_all() -> None:
    found, _ = await call_server(lambda api: api.get(RLRUN, "first"), GET=Answer(RUN))
    assert found == RUN
    found, server = await call_server(lambda api: api.list(RLRUN, {"a": "b"}), GET=Answer({"items": [RUN]}))
    assert found == [RUN]
    assert server.asked[0].query["labelSelector"] == "a=b"
    with pytest.raises(NotFoundError, match="cannot list rlruns: the cluster does not know this kind of object"):
        await call_server(lambda api: api.list(RLRUN, all_namespaces=True), GET=Answer({"items": [RUN]}))


async def test_a_missing_object_and_an_unknown_kind_are_different_errors() -> None:
    with pytest.raises(NotFoundError, match="cannot get RLRun team/first: the object does not exist"):
        await call_server(lambda api: api.get(RLRUN, "first"), GET=not_found("first"))
    with pytest.raises(NotFoundError, match="the cluster does not know this kind of object"):
        await call_server(lambda api: api.get(RLRUN, "first"))


async def test_an_existing_name_is_a_conflict() -> None:
    taken = Answer({"reason": "AlreadyExists", "message": "exists", "details": {"name": "first"}}, 409)
    with pytest.raises(ConflictError, match="cannot create RLRun team/first: an object with this name already exists"):
        await call_server(lambda api: api.create(RUN), POST=taken)


async def test_deletion_of_a_missing_object_is_an_error_unless_allowed() -> None:
    with pytest.raises(NotFoundError, match="cannot delete RLRun team/first: the object does not exist"):
        await call_server(lambda api: api.delete(RLRUN, "first"), DELETE=not_found("first"))
    await call_server(lambda api: api.delete(SECRET, "first", missing_ok=True), DELETE=not_found("first"))


async def test_a_log_before_the_container_has_started_is_not_ready() -> None:
    waiting = Answer({"reason": "BadRequest", "message": 'container "c" is waiting to start'}, 400)
    with pytest.raises(NotReadyError, match=r"cannot read the log of team/p \(c\)"):
        await call_server(lambda api: list(api.log("p", "c", follow=False, tail=None, previous=False)), GET=waiting)


def test_a_closed_port_is_an_unreachable_api_server() -> None:
    with pytest.raises(UnreachableError, match=r"the API server at http://127\.0\.0\.1:1 does not respond") as caught:
        remote("http://127.0.0.1:1").get(RLRUN, "first")
    assert "--kubeconfig" in (caught.value.hint or "")


async def test_a_table_has_the_rows_of_every_page() -> None:
    def page(name: str, token: str) -> Answer:
        return Answer(
            {
                "kind": "Table",
                "metadata": {"continue": token, "resourceVersion": "7"},
                "columnDefinitions": [{"name": "Name"}],
                "rows": [{"cells": [name], "object": {"metadata": {"name": name}}}],
            }
        )

    answers = (page("first", "t"), page("second", ""))
    found, server = await call_server(lambda api: api.table(Printed(RLRUN, "team", "a=b")), GET=answers)
    assert [row["cells"] for row in found.rows] == [["first"], ["second"]]
    assert (found.columns, found.version) == ([{"name": "Name"}], "7")
    query = {"limit": "500", "labelSelector": "a=b", "includeObject": "Metadata"}
    assert [a.query for a in server.asked] == [query, {**query, "continue": "t"}]


def test_a_watch_begins_at_the_version_of_the_table_and_passes_its_selection_on() -> None:
    api = FakeCluster()
    cluster = remote_cluster(api)
    row = b'{"cells": ["first"], "object": {"metadata": {"name": "first"}}}'
    event = b'{"type": "MODIFIED", "object": {"kind": "Table", "metadata": {}, "rows": [' + row + b"]}}"
    api.answers["watch rlruns in namespace team"] = [[event]]
    chosen = Printed(RLRUN, "team", "c!=d", "metadata.name=first", has_objects=True)
    version = cluster.table(chosen).version
    found = list(cluster.changes(chosen, version, 60))
    assert [(kind, change.rows[0]["cells"]) for kind, change in found] == [("MODIFIED", ["first"])]
    listed, watched = api.requests
    assert listed.query["labelSelector"] == watched.query["labelSelector"] == "c!=d"
    assert listed.query["includeObject"] == watched.query["includeObject"] == "Object"
    assert (watched.query["resourceVersion"], watched.query["fieldSelector"]) == (version, "metadata.name=first")
