"""Addresses, credentials and proxies for API servers."""

from kubernetes.aio import client, config

from rlrun.kube.connection.api_proxy import api_proxy

TRUST_FIELDS = (
    "ssl_ca_cert",
    "verify_ssl",
    "disable_strict_ssl_verification",
    "assert_hostname",
    "tls_server_name",
    "proxy",
)
"""Fields of a configuration that describe the connection rather than the user."""


def without_credentials(configuration: client.Configuration) -> client.Configuration:
    """Return a configuration for the same API server without credentials, for requests with their own token
    (`extra_headers`).
    """
    bare = client.Configuration(host=configuration.host)
    for name in TRUST_FIELDS:
        setattr(bare, name, getattr(configuration, name))
    return bare


async def load_configuration(kubeconfig: str | None = None, context: str | None = None) -> client.Configuration:
    """Load the configuration from `kubeconfig`, or else from the pod's ServiceAccount. Raises ConfigException."""
    configuration = client.Configuration()
    if kubeconfig:
        await config.load_kube_config(config_file=kubeconfig, context=context, client_configuration=configuration)
    else:
        config.load_incluster_config(client_configuration=configuration)
    configuration.proxy = api_proxy(str(configuration.host), configuration.proxy)
    return configuration
