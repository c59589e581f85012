from typing import Any

import kopf
import pytest
import yaml
from kopf._cogs.structs.references import Resource
from kubernetes.aio import client
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, RLMODEL, RLRUN, ResourceKind
from rlrun_operator.cache.new_runs import NewRuns
from rlrun_operator.cache.object_cache import ObjectCache, Question
from rlrun_operator.config.quantities import to_millis
from rlrun_operator.handlers import (
    WATCHED,
    configure_kopf,
    connection,
    readers,
    registry,
    run_key,
    take_event,
    take_listed,
)
from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.runtime.work_queue import Priority

from tests.support.source_tree import ROOT


class Pools:
    def on_change(self, obj: object) -> None: ...

    def queue_all(self, namespace: str | None = None) -> None: ...


def ignore(*_: object) -> None: ...


def test_kopf_uses_the_service_account_token_of_the_configuration() -> None:
    configuration = client.Configuration()
    configuration.host = "https://10.0.0.1:443"
    configuration.api_key["BearerToken"] = "bearer abc"
    found = connection(configuration)
    assert found.server == "https://10.0.0.1:443"
    assert found.as_http_headers() == {"Authorization": "Bearer abc"}
    assert found.expiration is not None


def test_kopf_uses_the_client_certificate_of_the_configuration() -> None:
    configuration = client.Configuration()
    configuration.host = "https://10.0.0.1:443"
    configuration.cert_file, configuration.key_file = "/c", "/k"
    found = connection(configuration)
    assert (found.certificate_path, found.private_key_path) == ("/c", "/k")
    assert found.as_http_headers() == {}


def test_a_watch_begins_again_within_two_seconds_and_is_tried_for_a_minute() -> None:
    settings = kopf.OperatorSettings()
    default = settings.networking.error_backoffs
    configure_kopf(settings)
    pauses = settings.networking.error_backoffs
    assert isinstance(pauses, tuple)
    assert isinstance(default, tuple)
    assert max(pauses) <= 2
    # kopf ends the operator after the last one if the API server answers with an error.
    assert sum(pauses) >= max(60, sum(default))


def test_a_page_of_objects_with_the_largest_annotations_fits_into_the_memory_limit_of_the_chart() -> None:
    settings = kopf.OperatorSettings()
    configure_kopf(settings)
    values = yaml.safe_load((ROOT / "charts/rlrun/values.yaml").read_text(encoding="utf-8"))
    limit = to_millis(values["operator"]["resources"]["limits"]["memory"]) / 1000
    # 62,000 annotations with keys of four characters, and their managedFields, take 13.8 MiB decoded (measured), and
    # 300 MiB is the aim at 10,000 runs.
    largest, own = 13.8 * 2**20, 300 * 2**20
    assert settings.watching.chunk_size is not None
    assert settings.watching.chunk_size * largest + own <= limit


def test_labelled_objects_lead_to_their_run() -> None:
    labelled = {"metadata": {"namespace": "n", "labels": {"rlrun.dev/run": "r"}}}
    assert run_key(labelled) == RunKey("n", "r")
    assert run_key({"metadata": {"namespace": "n"}}) is None


@pytest.mark.parametrize(
    ("spec", "namespaces"),
    [({}, {"n"}), ({"sharedWith": ["m", "o"]}, {"n", "m", "o"}), ({"sharedWith": None}, {"n"})],
    ids=["alone", "shared", "null"],
)
def test_a_changed_artifact_concerns_its_namespace_and_those_it_is_shared_with(
    spec: dict[str, object], namespaces: set[str]
) -> None:
    assert readers({"metadata": {"namespace": "n"}, "spec": spec}) == namespaces


KEPT = {
    RLRUN: Question.one(RLRUN, "team", "first"),
    RLCHECKPOINT: Question.of_labels(RLCHECKPOINT, "team", {"rlrun.dev/run-uid": "uid-1"}),
    RLADAPTER: Question.of_labels(RLADAPTER, "team", {"rlrun.dev/run-uid": "uid-1"}),
    RLMODEL: Question.of_labels(RLMODEL, None, None),
}


@pytest.mark.parametrize("kind", KEPT, ids=lambda kind: kind.plural)
@pytest.mark.parametrize("event", ["ADDED", "MODIFIED", "DELETED"])
async def test_events_reach_the_cache_before_the_queue(kind: ResourceKind, event: str | None) -> None:
    cache = ObjectCache(lambda: 0.0)
    for kept in KEPT:
        cache.watch_opened(kept, None, ())
        with cache.reading(KEPT[kept]) as read:
            cache.keep(KEPT[kept], read, [], ("team", "first"))
    queued: list[list[dict[str, Any]] | None] = []

    def note(*_: object) -> None:
        queued.append(cache.find(KEPT[kind], ("team", "first")))

    async def configure() -> client.Configuration:
        return client.Configuration()

    found = registry(configure, note, note, note, Pools(), cache)
    labels = {"rlrun.dev/run": "first", "rlrun.dev/run-uid": "uid-1"}
    namespace = "team" if kind.namespaced else None
    metadata = {
        "namespace": namespace,
        "name": "first",
        "uid": "u",
        "resourceVersion": "7",
        "labels": labels,
        "generation": 2,
    }
    resource = Resource(kind.group, kind.version, kind.plural, kind=kind.kind, namespaced=kind.namespaced)
    obj = {"metadata": metadata, "spec": {}, "status": {}}
    is_for_kopf = take_event(kind, event, obj, cache, NewRuns(lambda: 0.0), note)
    for handler in found._watching.get_all_handlers():
        fits = handler.selector is not None and handler.selector.check(resource) and "pool" not in str(handler.fn)
        if is_for_kopf and fits:
            await handler.fn(type=event, body=kopf.Body(obj), namespace=namespace, name="first", resource=resource)
    assert queued, kind
    # A new run is not read again.
    expected = [obj] if kind == RLRUN and event == "ADDED" else None
    assert all(found == expected for found in queued)


ENDED, ACTIVE = {"status": {"phase": "Completed"}}, {"status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("kind", "listed", "needed"),
    [
        (RLMODEL, {}, True),
        (RLCHECKPOINT, {}, False),
        (RLADAPTER, {}, False),
        (RLCHECKPOINT, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
        (RLADAPTER, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
        (RLADAPTER, {"spec": {"deployed": True}}, True),
        (RLADAPTER, {"status": {"deploymentState": "Undeploying"}}, True),
    ],
)
def test_listed_objects_that_start_no_look_cost_no_event(
    kind: ResourceKind, listed: dict[str, Any], needed: bool
) -> None:
    queued: list[RunKey] = []
    assert (
        take_listed(
            kind, {"metadata": {}, "spec": {}, **listed}, ObjectCache(lambda: 0.0), lambda key, _: queued.append(key)
        )
        is needed
    )
    assert queued == []


@pytest.mark.parametrize(
    ("listed", "is_queued"),
    [
        (ENDED, False),
        (ACTIVE, True),
        ({}, True),
        ({**ENDED, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
    ],
)
def test_listed_runs_are_queued_without_an_event_if_they_have_not_ended(
    listed: dict[str, Any], is_queued: bool
) -> None:
    queued: list[tuple[RunKey, Priority]] = []
    metadata = {"namespace": "n", "name": "first", **listed.get("metadata", {})}
    assert not take_listed(
        RLRUN, {**listed, "metadata": metadata}, ObjectCache(lambda: 0.0), lambda *found: queued.append(found)
    )
    assert queued == [(RunKey("n", "first"), Priority.ROUTINE)] * is_queued


@pytest.mark.parametrize(
    ("version", "generation", "is_queued"),
    [("7", 1, False), ("8", 1, True), ("7", 2, True)],
    ids=["seen", "changed", "with a new spec"],
)
def test_a_listed_run_that_a_look_has_seen_is_not_queued(version: str, generation: int, is_queued: bool) -> None:
    cache, queued = ObjectCache(lambda: 0.0), list[RunKey]()
    metadata = {"namespace": "team", "name": "first", "uid": "u", "resourceVersion": "7", "generation": 1}
    run = {"kind": "RLRun", "metadata": metadata, "status": {"phase": "Running", "observedGeneration": 1}}
    cache.watch_opened(RLRUN, None, ())
    with cache.reading(KEPT[RLRUN]) as read:
        cache.keep(KEPT[RLRUN], read, [run], ("team", "first"))
    cache.watch_closed(RLRUN)
    listed = {**run, "metadata": {**metadata, "resourceVersion": version, "generation": generation}}
    take_listed(RLRUN, listed, cache, lambda key, _: queued.append(key))
    assert bool(queued) is is_queued


@pytest.mark.parametrize(("kind", "expected"), [(RLCHECKPOINT, [("n", "c", {"n", "m"})]), (RLADAPTER, [])])
async def test_a_checkpoint_wakes_the_runs_that_start_from_it(kind: ResourceKind, expected: list[Any]) -> None:
    async def configure() -> client.Configuration:
        return client.Configuration()

    woken: list[Any] = []
    found = registry(configure, ignore, ignore, lambda *of: woken.append(of), Pools(), ObjectCache(lambda: 0.0))
    body = kopf.Body({"metadata": {"namespace": "n", "name": "c", "uid": "u"}, "spec": {"sharedWith": ["m"]}})
    resource = Resource(kind.group, kind.version, kind.plural, kind=kind.kind, namespaced=True)
    for handler in found._watching.get_all_handlers():
        if "artifact_event" in str(handler.fn) and handler.selector is not None and handler.selector.check(resource):
            await handler.fn(type="MODIFIED", body=body, resource=resource)
    assert woken == expected


@pytest.mark.parametrize("deleted", [True, False])
async def test_a_listed_artifact_has_its_run_looked_at_only_if_it_is_being_deleted(deleted: bool) -> None:
    async def configure() -> client.Configuration:
        return client.Configuration()

    queued: list[RunKey] = []
    found = registry(configure, queued.append, ignore, ignore, Pools(), ObjectCache(lambda: 0.0))
    metadata: dict[str, Any] = {"namespace": "n", "name": "c", "uid": "u", "labels": {"rlrun.dev/run": "first"}}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    resource = Resource(RLCHECKPOINT.group, RLCHECKPOINT.version, RLCHECKPOINT.plural, kind="RLCheckpoint")
    handler = next(h for h in found._watching.get_all_handlers() if "artifact_event" in str(h.fn))
    await handler.fn(type=None, body=kopf.Body({"metadata": metadata, "spec": {}}), resource=resource)
    assert queued == ([RunKey("n", "first")] if deleted else [])


async def test_an_event_of_an_own_write_of_a_run_starts_no_look() -> None:
    queued: list[tuple[RunKey, Priority]] = []
    cache, known = ObjectCache(lambda: 0.0), NewRuns(lambda: 0.0)
    cache.watch_opened(RLRUN, None, ())

    def run(version: int, generation: int = 1) -> dict[str, Any]:
        metadata: dict[str, Any] = {"namespace": "team", "name": "first", "uid": "u", "generation": generation}
        metadata["resourceVersion"] = str(version)
        return {"kind": "RLRun", "metadata": metadata, "status": {"observedGeneration": 1}}

    with cache.reading(KEPT[RLRUN]) as read:
        cache.keep(KEPT[RLRUN], read, [run(1)], ("team", "first"))
    cache.store_written(RLRUN, run(3), cache.moment())

    def take(event: str, obj: dict[str, Any]) -> int:
        """Return the number of looks that were queued until now."""
        assert not take_event(RLRUN, event, obj, cache, known, lambda *found: queued.append(found)), (
            "kopf needs 3 ms for it"
        )
        return len(queued)

    assert [take("MODIFIED", run(version)) for version in (2, 3, 4)] == [0, 0, 1]
    assert queued == [(RunKey("team", "first"), Priority.EVENT)]

    # A change of the spec by a user came before the own write, whose response has it as well.
    queued.clear()
    with cache.reading(KEPT[RLRUN]) as read:
        cache.keep(KEPT[RLRUN], read, [run(5)], ("team", "first"))
    cache.store_written(RLRUN, run(7, generation=2), cache.moment())
    assert take("MODIFIED", run(6, generation=2)) == 1

    # The run is deleted, and made again.
    with cache.reading(KEPT[RLRUN]) as read:
        cache.keep(KEPT[RLRUN], read, [run(8)], ("team", "first"))
    assert take("DELETED", run(8)) == 2
    assert take("ADDED", run(9)) == 3


def unseen(version: int, **fields: Any) -> dict[str, Any]:
    """Return a run without a status."""
    metadata: dict[str, Any] = {"namespace": "team", "name": "first", "uid": "u", "generation": 1}
    return {"kind": "RLRun", "metadata": {**metadata, "resourceVersion": str(version)}, "spec": {}, **fields}


def test_the_event_of_a_run_without_a_status_brings_the_run() -> None:
    cache, queued, new_runs = ObjectCache(lambda: 0.0), list[RunKey](), NewRuns(lambda: 0.0)
    cache.watch_opened(RLRUN, None, ())

    def kept_after(event: str, run: dict[str, Any]) -> list[dict[str, Any]] | None:
        take_event(RLRUN, event, run, cache, new_runs, lambda key, _: queued.append(key))
        return cache.find(KEPT[RLRUN], ("team", "first"))

    assert kept_after("ADDED", unseen(1)) == [unseen(1)]
    assert kept_after("MODIFIED", unseen(2, spec={"a": 1})) is None, "the look reads it"
    assert len(queued) == 2


@pytest.mark.parametrize("event", ["ADDED", "MODIFIED"])
def test_a_late_event_of_a_run_that_was_looked_at_does_not_bring_it(event: str) -> None:
    """The run may have ended since. A watch that has been silent for a minute tells of its creation first."""
    cache, new_runs = ObjectCache(lambda: 0.0), NewRuns(lambda: 0.0)
    cache.watch_opened(RLRUN, None, ())
    new_runs.take(("team", "first"), "u")
    take_event(RLRUN, event, unseen(1), cache, new_runs, ignore)
    assert cache.find(KEPT[RLRUN], ("team", "first")) is None


def test_a_run_of_an_event_is_forgotten_with_its_other_answers() -> None:
    cache = ObjectCache(lambda: 0.0)
    cache.watch_opened(RLRUN, None, ())
    take_event(RLRUN, "ADDED", unseen(1), cache, NewRuns(lambda: 0.0), ignore)
    cache.forget_run(("team", "first"))
    assert cache.find(KEPT[RLRUN], ("team", "first")) is None


def test_a_listed_run_is_not_new() -> None:
    cache, new_runs = ObjectCache(lambda: 0.0), NewRuns(lambda: 0.0)
    cache.watch_opened(RLRUN, None, ())
    take_event(RLRUN, None, unseen(1), cache, new_runs, ignore)
    take_event(RLRUN, "ADDED", unseen(2), cache, new_runs, ignore)
    assert cache.find(KEPT[RLRUN], ("team", "first")) is None


def test_no_run_is_kept_while_its_kind_is_not_watched() -> None:
    cache = ObjectCache(lambda: 0.0)
    take_event(RLRUN, "ADDED", unseen(1), cache, NewRuns(lambda: 0.0), ignore)
    cache.watch_opened(RLRUN, None, ())
    assert cache.find(KEPT[RLRUN], ("team", "first")) is None


async def test_the_event_of_an_own_write_waits_for_the_response() -> None:
    queued: list[RunKey] = []
    cache = ObjectCache(lambda: 0.0)
    cache.watch_opened(RLRUN, None, ())
    run = {"metadata": {"namespace": "team", "name": "first", "uid": "u", "generation": 1, "resourceVersion": "2"}}
    run["status"] = {"observedGeneration": 1}
    with cache.reading(KEPT[RLRUN]) as read:
        old = {**run, "metadata": {**run["metadata"], "resourceVersion": "1"}}
        cache.keep(KEPT[RLRUN], read, [old], ("team", "first"))
    with cache.writing(RLRUN, "team", "first"):
        take_event(RLRUN, "MODIFIED", run, cache, NewRuns(lambda: 0.0), lambda key, _: queued.append(key))
        cache.store_written(RLRUN, {"kind": "RLRun", **run}, cache.moment())
    assert queued == []


def test_kopf_watches_the_kinds_of_the_project_alone() -> None:
    async def configure() -> client.Configuration:
        return client.Configuration()

    found = registry(configure, ignore, ignore, ignore, Pools(), ObjectCache(lambda: 0.0))
    selectors = [handler.selector for handler in found._watching.get_all_handlers()]
    assert {str(s.any_name or s.plural) for s in selectors if s is not None} == {kind.plural for kind in WATCHED}
