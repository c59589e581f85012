"""kopf's part of the operator."""

import asyncio

import kopf
from kopf._core.intents.handlers import ResourceHandler
from kubernetes.aio import client
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Obj
from rlrun_operator.cluster.informers import OWN_KINDS
from rlrun_operator.handlers import configure_kopf, registry


async def configure() -> client.Configuration:
    return client.Configuration(host="https://10.0.0.1")


async def test_kopf_logs_in_to_the_operators_api_server_and_reports_start_and_end() -> None:
    started, ended, settings = asyncio.Event(), asyncio.Event(), kopf.OperatorSettings()
    handlers = registry(configure, lambda *_: None, started.set, ended.set)
    for handler in handlers._activities.get_all_handlers():
        result = await handler.fn(settings=settings)
        if isinstance(result, kopf.AiohttpSession):
            assert result.server == "https://10.0.0.1"
            await result.aiohttp_session.close()
    assert started.is_set()
    assert ended.is_set()


async def test_kopf_hears_of_each_kind_of_the_platform_and_passes_its_events_on() -> None:
    received: list[tuple[str, str | None, str]] = []

    def receive(kind: ResourceKind, event: str | None, obj: Obj) -> None:
        received.append((kind.kind, event, obj["metadata"]["name"]))

    handlers = registry(configure, receive, lambda: None, lambda: None)
    for handler in handlers._watching.get_all_handlers():
        assert isinstance(handler, ResourceHandler)
        assert handler.selector is not None
        assert (handler.selector.group, handler.selector.version) == ("rlrun.dev", "v1alpha1")
        await handler.fn(event={"type": "DELETED", "object": {"metadata": {"name": handler.selector.any_name}}})
    assert received == [(kind.kind, "DELETED", kind.plural) for kind in OWN_KINDS]


def test_kopf_has_no_handler_that_writes_to_objects() -> None:
    handlers = registry(configure, lambda *_: None, lambda: None, lambda: None)
    assert not handlers._changing.get_all_handlers(), "they store progress in annotations"
    assert not handlers._spawning.get_all_handlers(), "they add finalizers"


def test_kopf_writes_nothing() -> None:
    settings = kopf.OperatorSettings()
    configure_kopf(settings)
    assert not settings.posting.enabled
    assert settings.peering.standalone


def test_kopf_returns_soon_after_an_outage_however_long() -> None:
    settings = kopf.OperatorSettings()
    configure_kopf(settings)
    backoffs = settings.networking.error_backoffs
    assert isinstance(backoffs, tuple)
    assert max(backoffs) <= 2
    assert sum(backoffs) >= 600, "a start of kopf lists all runs again"
