"""kopf handlers that turn watch events into keys of the work queues.

They are plain event handlers, which store nothing in the objects, patch nothing and cannot fail. kopf's indexes are not
used, because an object that is deleted during a gap of a watch stays in them. For the same reason the operator lists
all runs periodically (see operator_process.py).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import kopf
from kubernetes.aio import client
from rlrun.constants import FIELD_MANAGER, GROUP, MANAGED_BY_LABEL, RUN_LABEL, SERVING_LABEL, VERSION
from rlrun.kube.objects import label

from rlrun_operator.planning.plan.observation import RunKey

log = logging.getLogger(__name__)

TOKEN_SECONDS = 600
"""Time after which kopf reloads the credentials, because ServiceAccount tokens are rotated."""
CHILDREN = (("apps", "v1", "deployments"), ("batch", "v1", "jobs"), ("", "v1", "pods"))
ARTIFACTS = ("rlcheckpoints", "rladapters")

Enqueue = Callable[[RunKey], None]


class Pools(Protocol):
    """Receiver of events about serving pools."""

    def on_change(self, obj: Mapping[str, Any]) -> None:
        """Handle a change of an RLAdapter or of a pool's object."""

    def on_models_changed(self) -> None:
        """Handle a change of an RLModel."""


def run_key(obj: Mapping[str, Any]) -> RunKey | None:
    """Return the key of the run that a labelled object belongs to, or None."""
    name, namespace = label(obj, RUN_LABEL), obj.get("metadata", {}).get("namespace")
    return RunKey(namespace, name) if name and namespace else None


def readers(artifact: Mapping[str, Any]) -> set[str]:
    """Return the namespaces whose runs may use the RLCheckpoint or RLAdapter."""
    return {artifact["metadata"]["namespace"], *(artifact.get("spec", {}).get("sharedWith") or ())}


def is_own_status_write(event: str | None, model: Mapping[str, Any]) -> bool:
    """True for the event of the operator's own write of a model's status."""
    observed = (model.get("status") or {}).get("observedGeneration")
    return event == "MODIFIED" and observed == model["metadata"].get("generation")


def connection(configuration: client.Configuration) -> kopf.ConnectionInfo:
    """Return kopf's credentials from the operator's client configuration, the only source of credentials."""
    key = configuration.api_key.get("BearerToken") or configuration.api_key.get("authorization")
    scheme, _, token = key.partition(" ") if key else ("", "", "")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert or None,
        insecure=not configuration.verify_ssl,
        scheme=scheme.capitalize() or None if token else None,
        token=token or scheme or None,
        certificate_path=configuration.cert_file or None,
        private_key_path=configuration.key_file or None,
        expiration=datetime.now(UTC) + timedelta(seconds=TOKEN_SECONDS),
    )


def registry(
    configure: Callable[[], Awaitable[client.Configuration]],
    enqueue: Enqueue,
    enqueue_waiting: Callable[[Collection[str] | None], None],
    pools: Pools,
) -> kopf.OperatorRegistry:
    """Return the handlers.

    `configure` loads credentials; `enqueue_waiting` queues the pending runs of the namespaces, or with None all.
    """

    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure_kopf(settings)

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return connection(await configure())

    async def run_event(namespace: str, name: str, **_: Any) -> None:
        enqueue(RunKey(namespace, name))

    async def model_event(type: str | None, body: kopf.Body, **_: Any) -> None:
        if is_own_status_write(type, body):
            return
        enqueue_waiting(None)
        pools.on_models_changed()

    async def pool_event(body: kopf.Body, **_: Any) -> None:
        pools.on_change(body)

    async def child_event(body: kopf.Body, **_: Any) -> None:
        key = run_key(body)
        if key is not None:
            enqueue(key)

    async def artifact_event(body: kopf.Body, **_: Any) -> None:
        await child_event(body)
        # A pending run may start from this checkpoint. Others than these namespaces must not, so their runs stay alone.
        enqueue_waiting(readers(body))

    found = kopf.OperatorRegistry()
    kopf.on.startup(registry=found)(startup)
    kopf.on.login(registry=found)(login)
    kopf.on.event(GROUP, VERSION, "rlruns", registry=found)(run_event)
    kopf.on.event(GROUP, VERSION, "rlmodels", registry=found)(model_event)
    kopf.on.event(GROUP, VERSION, "rladapters", registry=found, id="deployed")(pool_event)
    for plural in ARTIFACTS:
        kopf.on.event(GROUP, VERSION, plural, registry=found)(artifact_event)
    for group, version, plural in CHILDREN:
        kopf.on.event(group, version, plural, labels={RUN_LABEL: kopf.PRESENT}, registry=found)(child_event)
        kopf.on.event(group, version, plural, labels={SERVING_LABEL: kopf.PRESENT}, registry=found)(pool_event)
    return found


def configure_kopf(settings: kopf.OperatorSettings) -> None:
    """Configure kopf: no writes to objects, server-side filters, timeouts for all streams."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.watching.server_timeout = 290
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = 500
    for group, version, plural in CHILDREN:
        # The key is a tuple, because kopf reads the string "apps/v1/deployments" as one name that matches nothing.
        settings.watching.label_selectors[group, version, plural] = f"{MANAGED_BY_LABEL}={FIELD_MANAGER}"
    settings.networking.request_timeout = 30
    settings.persistence.finalizer = f"{GROUP}/unused"


async def watch(found: kopf.OperatorRegistry, namespaces: list[str], stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Watch until `stop` is set. `ready` is set when all streams are open."""
    await kopf.operator(
        registry=found,
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop,
        ready_flag=ready,
    )
