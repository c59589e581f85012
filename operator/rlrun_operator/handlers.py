"""kopf handlers that turn events of the project's own kinds into keys of the work queues.

They are plain event handlers, which store nothing in the objects, patch nothing and cannot fail. kopf's indexes are not
used, because an object that is deleted during a gap of a watch stays in them. For the same reason the operator lists
all runs periodically (see operator_process.py). An event costs kopf 3 ms: so those of runs, two for each step, are
taken from its stream before (`take_run`), and children of runs, which cause 50 until their pods run, have watches of
their own (cache/metadata_watch.py).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import kopf
from kubernetes.aio import client
from rlrun.api.base.phases import Phase
from rlrun.constants import GROUP, RUN_LABEL, VERSION
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, RLMODEL, RLRUN, ResourceKind
from rlrun.kube.objects import label

from rlrun_operator.cache.kopf_streams import watched_streams
from rlrun_operator.cache.new_runs import NewRuns
from rlrun_operator.cache.object_cache import ObjectCache
from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.runtime.work_queue import Priority

log = logging.getLogger(__name__)

TOKEN_SECONDS = 600
"""Time after which kopf reloads the credentials, because ServiceAccount tokens are rotated."""
RETRY_PAUSES = (1.0, 1.0, *29 * (2.0,))
"""Seconds between retries of kopf's requests. kopf's defaults grow to 21 s, which delays the detection of a changed
spec."""
PAGE_OBJECTS = 50
"""Objects of a page of kopf's lists, of which it reads all bytes. Users may annotate each object with 256 KiB."""
ARTIFACTS = (RLCHECKPOINT, RLADAPTER)
WATCHED = (RLRUN, RLMODEL, *ARTIFACTS)
"""Kinds that kopf watches."""

FINISHED_PHASES = frozenset(phase.value for phase in Phase if phase.finished)

Enqueue = Callable[[RunKey], None]
PriorityEnqueue = Callable[[RunKey, Priority], None]


class Pools(Protocol):
    """Receiver of events about serving pools."""

    def on_change(self, obj: Mapping[str, Any]) -> None:
        """Handle a change of an RLAdapter or of a pool's object."""

    def queue_all(self, namespace: str | None = None) -> None:
        """Reconcile all known pools, of one or of all namespaces."""


def run_key(obj: Mapping[str, Any]) -> RunKey | None:
    """Return the key of the run that a labelled object belongs to, or None."""
    name, namespace = label(obj, RUN_LABEL), obj.get("metadata", {}).get("namespace")
    return RunKey(namespace, name) if name and namespace else None


def readers(checkpoint: Mapping[str, Any]) -> set[str]:
    """Return the namespaces whose runs may start from the RLCheckpoint."""
    return {checkpoint["metadata"]["namespace"], *(checkpoint.get("spec", {}).get("sharedWith") or ())}


def has_ended(run: Mapping[str, Any]) -> bool:
    """Return whether the run has finished and is not deleted."""
    phase = (run.get("status") or {}).get("phase")
    return phase in FINISHED_PHASES and not run["metadata"].get("deletionTimestamp")


def has_new_spec(run: Mapping[str, Any]) -> bool:
    """Return whether the status describes an older spec: the response to a status write may contain a newer one."""
    return bool((run.get("status") or {}).get("observedGeneration") != run["metadata"].get("generation"))


def take_listed(kind: ResourceKind, listed: Mapping[str, Any], cache: ObjectCache, enqueue: PriorityEnqueue) -> bool:
    """Queue a listed run that has not finished, unless a reconcile has seen it so. Return whether kopf needs the
    object.

    The list of all runs reconciles finished ones, one after the other. Runs that wait for a checkpoint are queued when
    the list of checkpoints is complete. An artifact that is being deleted waits for a reconcile of its run, also if the
    run has finished.
    """
    if kind == RLRUN:
        if not has_ended(listed) and (has_new_spec(listed) or not cache.knows(RLRUN, listed)):
            enqueue(RunKey(listed["metadata"]["namespace"], listed["metadata"]["name"]), Priority.ROUTINE)
        return False
    if listed["metadata"].get("deletionTimestamp"):
        return True
    if kind == RLADAPTER:
        return bool(listed["spec"].get("deployed") or (listed.get("status") or {}).get("deploymentState"))
    return kind != RLCHECKPOINT


def take_run(
    event: str, run: Mapping[str, Any], cache: ObjectCache, new_runs: NewRuns, enqueue: PriorityEnqueue
) -> None:
    """Process an event of a run, and queue the run unless the operator's own write caused the event.

    The first reconcile of a new run does not read it again: the event has brought it.
    """

    def on_changed() -> None:
        is_news = cache.changed(RLRUN, run, deleted=event == "DELETED")
        key = RunKey(run["metadata"]["namespace"], run["metadata"]["name"])
        if new_runs.see_event(event, run):
            cache.keep_event(RLRUN, dict(run), (key.namespace, key.name))
        if is_news or has_new_spec(run):
            enqueue(key, Priority.EVENT)

    cache.after_own_write(RLRUN, run, on_changed)


def take_event(
    kind: ResourceKind,
    event: str | None,
    obj: Mapping[str, Any],
    cache: ObjectCache,
    new_runs: NewRuns,
    enqueue: PriorityEnqueue,
) -> bool:
    """Process an event; its type is None for a listed object. Return whether kopf's handlers receive it."""
    if event is None:
        if kind == RLRUN:
            new_runs.see_event(event, obj)
        return take_listed(kind, obj, cache, enqueue)
    if kind == RLRUN:
        take_run(event, obj, cache, new_runs, enqueue)
    return kind != RLRUN


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
    enqueue_pending: Callable[[], None],
    enqueue_warm_starts: Callable[[str, str, Collection[str]], None],
    pools: Pools,
    cache: ObjectCache,
) -> kopf.OperatorRegistry:
    """Return the handlers.

    `configure` loads credentials; `enqueue_pending` queues all pending runs; `enqueue_warm_starts` those that wait for
    a checkpoint, given by namespace and name, and are in one of the namespaces.
    """

    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure_kopf(settings)

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return connection(await configure())

    async def run_event(**_: Any) -> None:
        """Do nothing: `take_run` has already processed the event, and kopf watches only kinds with a handler."""

    async def model_event(type: str | None, body: kopf.Body, **_: Any) -> None:
        seen(RLMODEL, type, body)
        if is_own_status_write(type, body):
            return
        enqueue_pending()
        pools.queue_all()

    async def pool_event(body: kopf.Body, **_: Any) -> None:
        pools.on_change(body)

    def seen(kind: ResourceKind, type: str | None, body: kopf.Body) -> bool:
        """Update the cache. Returns False for the event of the operator's own write."""
        # What was read before a list is forgotten already.
        return type is None or cache.changed(kind, body, deleted=type == "DELETED")

    async def artifact_event(type: str | None, body: kopf.Body, resource: kopf.Resource, **_: Any) -> None:
        seen(kinds[resource.plural], type, body)
        if type is None and not body["metadata"].get("deletionTimestamp"):
            # The runs are queued when the list is complete.
            return
        key = run_key(body)
        if key is not None:
            # Also after own writes: pools' writes decide which adapters retention may delete.
            enqueue(key)
        if resource.plural == RLCHECKPOINT.plural:
            # Runs of other namespaces must not start from it.
            enqueue_warm_starts(body["metadata"]["namespace"], body["metadata"]["name"], readers(body))

    kinds = {kind.plural: kind for kind in ARTIFACTS}
    operator_registry = kopf.OperatorRegistry()
    kopf.on.startup(registry=operator_registry)(startup)
    kopf.on.login(registry=operator_registry)(login)
    kopf.on.event(GROUP, VERSION, "rlruns", registry=operator_registry)(run_event)
    kopf.on.event(GROUP, VERSION, "rlmodels", registry=operator_registry)(model_event)
    kopf.on.event(GROUP, VERSION, "rladapters", registry=operator_registry, id="deployed")(pool_event)
    for kind in ARTIFACTS:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=operator_registry)(artifact_event)
    return operator_registry


def configure_kopf(settings: kopf.OperatorSettings) -> None:
    """Configure kopf: no writes to objects, timeouts for all streams."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.watching.server_timeout = 290
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = PAGE_OBJECTS
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = RETRY_PAUSES
    settings.persistence.finalizer = f"{GROUP}/unused"


async def watch(
    operator_registry: kopf.OperatorRegistry,
    namespaces: list[str],
    cache: ObjectCache,
    new_runs: NewRuns,
    enqueue: PriorityEnqueue,
    on_listed: Callable[[ResourceKind, str | None], None],
    stop: asyncio.Event,
    started: asyncio.Event,
) -> None:
    """Watch until `stop` is set. `started` is set when kopf runs: its lists of the kinds follow.

    `on_listed` is called with kind and namespace, None for all, when one of these lists is complete.
    """

    def is_needed(kind: ResourceKind, event: str | None, obj: Mapping[str, Any]) -> bool:
        return take_event(kind, event, obj, cache, new_runs, enqueue)

    with watched_streams(cache, {kind.plural: kind for kind in WATCHED}, is_needed, on_listed):
        await kopf.operator(
            registry=operator_registry,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=stop,
            ready_flag=started,
        )
