"""`python -m rlrun_server`: signs requests to S3 and serves the REST API, until SIGTERM."""
# ruff: noqa: E402

import asyncio
import logging
import sys
import time
from datetime import UTC, datetime

from rlrun.constants import ExitCode, Reason
from rlrun.kube.connection.official_client import import_lazily

# Must come before any import of the Kubernetes client.
import_lazily()

from kubernetes.aio.config.config_exception import ConfigException
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import AsyncApiTransport
from rlrun.kube.connection.api_configuration import load_configuration, without_credentials
from rlrun.protocol.problem import Problem
from rlrun.service.authority_files import follow_authorities
from rlrun.service.errors import FatalError
from rlrun.service.run_service import run_service
from rlrun.service.server import stop_event
from rlrun.storage.layout import S3Uri

from rlrun_server.app import probes_app, server_app
from rlrun_server.authentication.account_tokens import AccountTokens
from rlrun_server.authentication.api_key_management import ApiKeyManagement
from rlrun_server.authentication.api_key_store import ApiKeyStore
from rlrun_server.authentication.identification import Identification
from rlrun_server.authentication.oidc_issuer import OidcIssuer
from rlrun_server.authentication.oidc_login import OidcLogin
from rlrun_server.authentication.sealed import Sealer
from rlrun_server.authentication.sessions import BrowserSessions
from rlrun_server.authentication.token_reviews import TokenReviews
from rlrun_server.authentication.users import Users
from rlrun_server.client_models.client_model_routes import client_model_routes
from rlrun_server.client_models.saved_states import SavedStateReader
from rlrun_server.hosted_api.environments.environment_packages import EnvironmentPackages
from rlrun_server.hosted_api.environments.package_uploads import PackageUploads
from rlrun_server.hosted_api.hosted_app import HostedParts, hosted_app
from rlrun_server.http.connection_limits import ConnectionLimits, limit_completions
from rlrun_server.http.serving import serving
from rlrun_server.inference.inference_app import inference_app
from rlrun_server.inference.pool_client import PoolClient
from rlrun_server.page.page_files import PageInvalid, load_page
from rlrun_server.rest.base.stored_files import PlatformStorage
from rlrun_server.rest.context.services import make_services
from rlrun_server.rest.objects.environment_catalog import EnvironmentCatalog
from rlrun_server.rest.rest_app import rest_app
from rlrun_server.runtime.caches import CachedValue
from rlrun_server.runtime.certificate import Certificate, CertificateInvalid
from rlrun_server.runtime.log_format import format_lines
from rlrun_server.runtime.metrics import CONNECTIONS, MAX_CONNECTIONS
from rlrun_server.runtime.namespaces_source import NamespacesSource
from rlrun_server.runtime.settings import ServerConfig, load_settings
from rlrun_server.signing.package_owners import PackageOwners
from rlrun_server.signing.pod_signing import Signing
from rlrun_server.signing.signer import S3Signer, own_store
from rlrun_server.signing.store_probe import LIMITS, StoreProbe, follow, http_sender
from rlrun_server.signing.store_safety import StoreSafety
from rlrun_server.signing.user_signing import UserSigning

log = logging.getLogger("rlrun_server")

KEY_SECONDS = 5.0
"""Seconds for which keys read from files are cached."""
PROBE_CONNECTIONS = (64, 16)
"""Maximum number of connections to the port for probes and metrics, in total and per address."""
LEAVING_SECONDS = 3.0
"""Seconds between SIGTERM and the shutdown, so that the Service can remove this pod from its endpoints first."""


async def serve(config: ServerConfig) -> int:
    """Serve until SIGTERM and return the exit code. Raises FatalError if the configuration is invalid."""
    format_lines()
    stop = stop_event()
    try:
        configuration = await load_configuration(config.settings.kubeconfig)
    except ConfigException as error:
        problem = Problem(reason=Reason.INVALID_CONFIGURATION, message=f"cannot configure the API client: {error}")
        raise FatalError(problem, ExitCode.CONFIGURATION) from error
    own_transport = AsyncApiTransport(configuration)
    cluster = AsyncKubeClient(own_transport)
    callers = AsyncApiTransport(without_credentials(configuration))
    reviews = TokenReviews(cluster.create, time.monotonic)
    folder = config.settings.credentials
    connection = config.connection
    signer = S3Signer(connection, folder)
    keys = CachedValue(config.keys, KEY_SECONDS, time.monotonic)
    safety = StoreSafety(time.monotonic)
    signing = Signing(config.settings, signer, reviews, keys.value, time.monotonic, safety)
    location = config.location
    endpoints = dict.fromkeys((location.endpoint, connection.endpoint))
    signers = [S3Signer(connection.at(endpoint), folder) for endpoint in endpoints]
    namespace, _, name = config.settings.api_key_secret.partition("/")
    key_store = ApiKeyStore(cluster, namespace, name, time.monotonic) if name else None
    sealer, oidc = Sealer(keys.value), config.settings.oidc
    impersonator = AsyncApiTransport(configuration) if oidc is not None and oidc.impersonate else None
    users = Users(cluster.create, time.monotonic, key_store, issuer_sealer=sealer if impersonator else None)
    identification = Identification(users, config.settings.reviews_per_second, time.monotonic)
    own_signer = S3Signer(connection, folder)
    root = S3Uri(config.settings.bucket, config.settings.prefix.strip("/"))
    store = own_store(own_signer, connection)
    probe_store = own_store(own_signer, connection, LIMITS)
    probe = StoreProbe(own_signer, http_sender(connection), root, probe_store)
    owners = config.settings.environment_owners
    package_owners = PackageOwners(cluster, store, own_signer.renew, root, owners, time.monotonic)
    user_signing = UserSigning(
        config.settings, location, signers, identification, users, time.monotonic, safety, package_owners
    )
    storage = PlatformStorage(store, own_signer.renew, root)
    tokens = AccountTokens(own_transport.send, time.monotonic) if config.settings.api_keys_may_write else None
    namespaces = config.settings.namespaces
    services = make_services(
        NamespacesSource(cluster, namespaces) if namespaces else cluster,
        callers,
        identification,
        users,
        storage,
        time.monotonic,
        tokens,
        EnvironmentCatalog(storage, owners, time.monotonic),
        impersonator=impersonator,
    )
    pool_key = CachedValue(config.pool_key, KEY_SECONDS, time.monotonic)
    pools, saved_states = PoolClient(pool_key.value), SavedStateReader(storage)
    page, sessions = None, None
    issuer = None if oidc is None else OidcIssuer(oidc, config.oidc_secret, time.monotonic)
    if config.settings.page:
        try:
            page = load_page(has_issuer=issuer is not None)
        except (OSError, PageInvalid) as error:
            problem = Problem(reason=Reason.INVALID_CONFIGURATION, message=f"the page cannot be served: {error}")
            raise FatalError(problem, ExitCode.CONFIGURATION) from error
        login = None if oidc is None or issuer is None else OidcLogin(oidc, issuer, sealer, time.time)
        sessions = BrowserSessions(sealer, identification, users, time.monotonic, time.time, login)
    key_management = ApiKeyManagement(
        identification, users, key_store, time.monotonic, lambda: datetime.now(UTC), tokens.forget if tokens else None
    )
    packages = EnvironmentPackages(storage, owners, package_owners)
    hosted = HostedParts(packages, PackageUploads(keys.value, time.time))

    try:
        certificate = None if config.settings.tls is None else Certificate(config.settings.tls)
    except CertificateInvalid as error:
        problem = Problem(reason=Reason.INVALID_CONFIGURATION, message=str(error))
        raise FatalError(problem, ExitCode.CONFIGURATION) from error

    limits = ConnectionLimits(config.settings.max_connections, config.settings.max_connections_per_address)
    CONNECTIONS.labels("busy").set_function(lambda: limits.busy)
    CONNECTIONS.labels("idle").set_function(lambda: limits.count - limits.busy)
    MAX_CONNECTIONS.set(limits.total)

    started = time.monotonic()

    def not_ready() -> str | None:
        if stop.is_set():
            return "shutting down"
        return safety.not_ready() or services.objects.not_ready(time.monotonic() - started)

    try:
        async with (
            serving(
                server_app(
                    signing,
                    user_signing,
                    key_management,
                    rest_app(services),
                    hosted=hosted_app(services, hosted),
                    inference=inference_app(
                        services,
                        pools,
                        names_tenants=config.settings.metrics_with_tenants,
                        max_completions=limit_completions(config.settings.max_connections_per_address),
                    ),
                    page=page,
                    sessions=sessions,
                    client_models=client_model_routes(saved_states, pool_key.value),
                ),
                config.settings.port,
                config.settings.tls_port,
                None if certificate is None else certificate.context,
                limits=limits,
            ),
            serving(
                probes_app(not_ready, lambda: safety.shortcoming),
                config.settings.metrics_port,
                limits=ConnectionLimits(*PROBE_CONNECTIONS),
            ),
        ):
            log.info("listening on port %d", config.settings.tls_port if certificate else config.settings.port)
            tasks = [asyncio.create_task(kind.follow()) for kind in services.objects.kinds]
            tasks.append(asyncio.create_task(follow(probe.run, safety)))
            if certificate is not None:
                tasks.append(asyncio.create_task(certificate.follow()))
            await stop.wait()
            await asyncio.sleep(LEAVING_SECONDS)
            for task in tasks:
                task.cancel()
    finally:
        packages.close()
        saved_states.close()
        package_owners.close()
        probe.close()
        services.close()
        await pools.close()
        await callers.close()
        for client in (impersonator, issuer):
            if client is not None:
                await client.close()
        await cluster.close()
    return ExitCode.COMPLETED


if __name__ == "__main__":
    follow_authorities()
    sys.exit(run_service("rlrun_server", load_settings, serve))
