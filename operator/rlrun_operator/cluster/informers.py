"""Informers for all kinds that the operator watches: the kinds of rlrun.dev, and those of the objects it creates.

kopf watches the kinds of rlrun.dev and passes their events to `receive`; informers watch the other kinds themselves.
Each object is stored once, without the parts that no reconcile uses. Listeners receive each change and the kind of the
changed object.
"""

import asyncio
import functools
import json
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rlrun.api.base.phases import Phase
from rlrun.constants import FIELD_MANAGER, MANAGED_BY_LABEL, RUN_LABEL, RUN_UID_LABEL, SERVING_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.informer import CachedObject, Informer, ObjectChange, identity_of
from rlrun.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    NAMESPACE,
    NETWORK_POLICY,
    POD,
    REPLICA_SET,
    RLADAPTER,
    RLCHECKPOINT,
    RLMODEL,
    RLRUN,
    SERVICE,
    SERVICE_ACCOUNT,
    WORKLOAD,
    ResourceKind,
)
from rlrun.kube.objects import Labels, Obj, label, phase_of
from rlrun.kube.pods import Pod
from rlrun.kube.references import checkpoint_id, split_checkpoint_id
from rlrun.kube.requests import KubeRequest, Verb

from rlrun_operator.cluster.object_parts import used_parts
from rlrun_operator.cluster.receiving_informer import ReceivingInformer

CHILDREN = (REPLICA_SET, JOB, SERVICE, NETWORK_POLICY, CONFIG_MAP, SERVICE_ACCOUNT)
"""Kinds of a run's children, except the Secret with the run's tokens, which is read by name."""
OWN_KINDS = (RLRUN, RLMODEL, RLCHECKPOINT, RLADAPTER)
FOLLOWED = (RLRUN, RLMODEL, POD, *CHILDREN, DEPLOYMENT, RLCHECKPOINT, RLADAPTER)
"""Kinds that every operator watches, in the order in which they are first listed. Artifacts come last, because most
belong to finished runs. Only serving pools have Deployments.
"""
LABELS = (RUN_LABEL, RUN_UID_LABEL, SERVING_LABEL)
"""Labels that are stored separately, so that reading them does not require decoding the object."""
BY_UID = (RLCHECKPOINT, RLADAPTER, WORKLOAD)
"""Kinds that a reconcile looks up by the uid of the run. Others are looked up by the name of the run or pool."""
MANAGED = {MANAGED_BY_LABEL: FIELD_MANAGER}
STORED_BYTES = 96 << 20
"""Maximum total size in bytes of the objects that an informer stores in full. The limit is needed because users can put
the operator's labels on their own objects. The pods of 10,000 runs take 40 MiB.
"""
LISTED = {
    "metadata": ("namespace", "name", "uid", "resourceVersion", "labels", "deletionTimestamp"),
    "spec": ("model", "queueName", "ttlSecondsAfterFinished"),
    "status": ("phase", "completionTime", "queue"),
}
"""Fields of a run that are needed when all runs are listed."""

FINISHED = frozenset(phase.value for phase in Phase if phase.finished)

Listener = Callable[[ResourceKind, ObjectChange[CachedObject]], None]


@dataclass(frozen=True, slots=True)
class CachedRun(CachedObject):
    """A run in the store."""

    phase: str
    """Phase of the run, empty before its first reconcile."""
    checkpoint: str
    """Id of the checkpoint that the run starts from, including the namespace. Empty if the run starts without a
    checkpoint.
    """
    model: str
    """Id of the run's model."""
    gpus: int
    """Number of GPUs of the run's current attempt, or 0 if no attempt is active."""
    pool: str
    """Name of the shared pool of the run's newest attempt, or an empty string."""
    has_slot: bool
    """True if the run is admitted by its queue, according to its status."""
    listed: bytes

    @property
    def is_finished(self) -> bool:
        """True if the run has ended."""
        return self.phase in FINISHED

    @property
    def uses_pool(self) -> bool:
        """True if the run is or may become part of a shared pool. A finished run keeps its slot until its pods have
        ended.
        """
        return bool(self.pool) and (self.has_slot or not self.is_finished)

    @property
    def has_begun(self) -> bool:
        """True once the run's model and checkpoint are resolved and no longer read. A Queued run still reads them,
        because they determine which slot it needs.
        """
        return self.phase not in ("", Phase.pending.value, Phase.queued.value)

    def read_listed(self) -> Obj:
        """Return the fields in LISTED, which need a tenth of the memory of the complete run."""
        return self.decode(self.listed)


@dataclass(frozen=True, slots=True)
class CachedPod(CachedObject):
    """A pod in the store."""

    is_ending: bool
    """True if the pod is being deleted, or if its only running container is the sidecar that keeps its logs."""


class Informers:
    """Informers of one operator."""

    def __init__(
        self,
        source: AsyncKubeClient,
        kinds: Collection[ResourceKind],
        namespaces: Sequence[str | None] = (None,),
        tenant_labels: Labels | None = None,
    ) -> None:
        """`namespaces` are watched, or all namespaces if None is in the list. `tenant_labels` selects the Namespace
        objects that are watched; if it is None or empty, no Namespace objects are watched.
        """
        kinds = (*kinds, *([NAMESPACE] if tenant_labels else []))
        # List one kind at a time. Otherwise pages of several kinds would be in memory at the same time.
        lists = asyncio.Semaphore()
        self._informers: dict[tuple[ResourceKind, str | None], Informer[CachedObject]] = {}
        for kind in kinds:
            for namespace in namespaces if kind.namespaced else (None,):
                of_kind = ReceivingInformer[CachedObject] if kind in OWN_KINDS else Informer[CachedObject]
                informer = of_kind(
                    source,
                    kind,
                    functools.partial(convert, kind),
                    namespace=namespace,
                    labels=tenant_labels if kind == NAMESPACE else None if kind in OWN_KINDS else MANAGED,
                    index=(RUN_UID_LABEL,) if kind in BY_UID else (RUN_LABEL, SERVING_LABEL),
                    max_bytes=STORED_BYTES,
                    lists=lists,
                )
                informer.listeners.append(functools.partial(self._notify, kind))
                self._informers[kind, namespace] = informer
        self.listeners: list[Listener] = []
        """Functions called after each change, except during the first lists. They must not block."""

    def jobs(self, on_stalled: Callable[[], None]) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines that follow the API server until they are cancelled.

        They call `on_stalled` if kopf does not pass all objects of rlrun.dev to `receive`.
        """
        return [
            informer.follow_received(on_stalled) if isinstance(informer, ReceivingInformer) else informer.follow()
            for informer in self._informers.values()
        ]

    def receive(self, kind: ResourceKind, event: str | None, obj: Obj) -> None:
        """Apply kopf's event about an object of rlrun.dev to the store. `event` is the event's type, or None for an
        object from one of kopf's lists.
        """
        informer = self._of(kind, obj["metadata"].get("namespace"))
        if isinstance(informer, ReceivingInformer):
            informer.receive(event, obj)

    async def until_synced(self, *kinds: ResourceKind) -> None:
        """Wait until the first lists of the given kinds are complete, or of all kinds if none is given."""
        for (kind, _), informer in self._informers.items():
            if not kinds or kind in kinds:
                await informer.until_synced()

    @property
    def stored_bytes(self) -> int:
        """Total size of the stored objects in bytes."""
        return sum(informer.stored_bytes for informer in self._informers.values())

    def find(self, kind: ResourceKind, namespace: str | None) -> Informer[CachedObject] | None:
        """Return the informer of the kind in the namespace, or None if there is none or it is not synced yet."""
        informer = self._of(kind, namespace)
        return informer if informer is not None and informer.is_synced else None

    def runs(self) -> Iterable[CachedRun]:
        """Return all runs in any order."""
        for (kind, _), informer in self._informers.items():
            if kind == RLRUN:
                yield from (run for run in informer.all() if isinstance(run, CachedRun))

    def pods(self) -> Iterable[CachedObject]:
        """Return all pods in any order."""
        return [pod for (kind, _), informer in self._informers.items() if kind == POD for pod in informer.all()]

    @contextmanager
    def writing(self, request: KubeRequest) -> Iterator[Callable[[Obj], None]]:
        """Context manager for a write of `AsyncKubeClient`. Yields a function that stores the API server's response."""
        informer = self._of(request.kind, request.namespace)
        if informer is None:
            yield lambda _: None
            return
        namespace = (request.namespace or "") if request.kind.namespaced else ""
        name = request.name or str(((request.body or {}).get("metadata") or {}).get("name", ""))
        known = informer.find(namespace, name)
        with informer.writing(namespace, name) as store_answer:

            def on_answer(answer: Obj) -> None:
                is_object = answer.get("kind") == request.kind.kind
                is_leaving = is_object and answer["metadata"].get("deletionTimestamp")
                if request.verb is Verb.DELETE and not is_leaving:
                    if known is not None:
                        informer.remove_deleted(known.uid)
                elif is_object:
                    store_answer(answer)

            yield on_answer

    def _of(self, kind: ResourceKind, namespace: str | None) -> Informer[CachedObject] | None:
        return self._informers.get((kind, None)) or self._informers.get((kind, namespace))

    def _notify(self, kind: ResourceKind, change: ObjectChange[CachedObject]) -> None:
        for listener in self.listeners:
            listener(kind, change)


def convert(kind: ResourceKind, obj: Obj) -> CachedObject:
    """Return the stored form of an object."""
    parts = used_parts(kind, obj)
    metadata, data = parts["metadata"], _encode(parts)
    uid, version = identity_of(obj)
    fields: dict[str, Any] = {
        "namespace": sys.intern(str(metadata.get("namespace") or "")),
        "name": str(metadata["name"]),
        "uid": uid,
        "version": version,
        "data": data,
        "size": len(data),
        "labels": tuple((key, sys.intern(label(obj, key))) for key in LABELS if label(obj, key)),
    }
    if kind == RLRUN:
        reference, namespace = str((obj.get("spec") or {}).get("checkpointId") or ""), fields["namespace"]
        checkpoint = checkpoint_id(*split_checkpoint_id(reference, namespace)) if reference else ""
        phase, listed = sys.intern(phase_of(obj)), _encode(listed_parts(obj))
        return CachedRun(
            **fields,
            phase=phase,
            checkpoint=sys.intern(checkpoint),
            model=sys.intern(str((obj.get("spec") or {}).get("model") or "")),
            gpus=_held_gpus(obj.get("status") or {}),
            pool=sys.intern(pool_of(obj)),
            has_slot=has_slot(obj),
            listed=listed,
        )
    if kind == POD:
        return CachedPod(**fields, is_ending=Pod(obj).is_ending)
    return CachedObject(**fields)


def pool_of(run: Obj) -> str:
    """Return the name of the shared pool in the run's status, or an empty string."""
    pool = (run.get("status") or {}).get("pool")
    return str(pool.get("name") or "") if isinstance(pool, dict) else ""


def has_slot(run: Obj) -> bool:
    """Return whether the run is admitted by its queue, according to its status."""
    queue = (run.get("status") or {}).get("queue")
    return isinstance(queue, dict) and bool(queue.get("admittedTime"))


def _held_gpus(status: Obj) -> int:
    gpus = (status.get("resolved") or {}).get("gpus")
    return gpus if status.get("attemptStartTime") and isinstance(gpus, int) else 0


def listed_parts(run: Obj) -> Obj:
    """Return the fields of a run that are in LISTED."""
    return {
        part: {key: run[part][key] for key in keys if key in run[part]} for part, keys in LISTED.items() if part in run
    }


def _encode(obj: Obj) -> bytes:
    return json.dumps(obj, separators=(",", ":")).encode()
