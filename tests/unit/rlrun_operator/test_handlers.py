"""kopf's part of the operator."""

import asyncio

import kopf
from kubernetes.aio import client
from rlrun_operator.handlers import configure_kopf, connection, registry


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


def test_kopf_uses_the_proxy_of_the_configuration() -> None:
    configuration = client.Configuration(host="https://api.corp:6443")
    assert connection(configuration).proxy_url is None
    configuration.proxy = "http://proxy.corp:3128"
    assert connection(configuration).proxy_url == "http://proxy.corp:3128"


async def test_kopf_starts_the_watches_and_has_no_streams_of_its_own() -> None:
    async def configure() -> client.Configuration:
        return client.Configuration(host="https://10.0.0.1")

    started = asyncio.Event()
    handlers, settings = registry(configure, started.set), kopf.OperatorSettings()
    for handler in handlers._activities.get_all_handlers():
        result = await handler.fn(settings=settings)
        if isinstance(result, kopf.ConnectionInfo):
            assert result.server == "https://10.0.0.1"
    assert started.is_set()
    assert not handlers._watching.get_all_handlers(), "kopf would list 10,000 runs object by object"
    assert settings.scanning.disabled, "an answer with status 410 to a watch of kopf ends the operator"


def test_kopf_writes_nothing() -> None:
    settings = kopf.OperatorSettings()
    configure_kopf(settings)
    assert not settings.posting.enabled
    assert settings.peering.standalone
