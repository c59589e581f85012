"""Informers of all kinds that the operator follows: its own objects in the namespaces of runs, and those of rlrun.dev.

Each object is stored once, without the parts that no reconcile uses. A listener receives each change with its kind.
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
from rlrun.kube.informer import CachedObject, Informer, ObjectChange, ObjectSource, version_number
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
from rlrun.kube.pods import is_ending
from rlrun.kube.references import checkpoint_id, split_checkpoint_id
from rlrun.kube.requests import KubeRequest, Verb

from rlrun_operator.cluster.object_parts import used_parts

CHILDREN = (REPLICA_SET, JOB, SERVICE, NETWORK_POLICY, CONFIG_MAP, SERVICE_ACCOUNT)
"""Kinds that the operator creates for a run, besides the Secret of its tokens, which is read by its name."""
OWN_KINDS = (RLRUN, RLMODEL, RLCHECKPOINT, RLADAPTER)
FOLLOWED = (RLRUN, RLMODEL, POD, *CHILDREN, DEPLOYMENT, RLCHECKPOINT, RLADAPTER)
"""Kinds that every operator follows, in the order of their first lists: most artifacts are those of finished runs. Runs
have all of them but Deployments, which serving pools have."""
LABELS = (RUN_LABEL, RUN_UID_LABEL, SERVING_LABEL)
"""Labels that are known without reading an object."""
BY_UID = (RLCHECKPOINT, RLADAPTER, WORKLOAD)
"""Kinds whose objects a reconcile finds by the uid of their run. It finds others by its name, or that of their pool."""
MANAGED = {MANAGED_BY_LABEL: FIELD_MANAGER}
STORED_BYTES = 96 << 20
"""Bytes of all objects of a kind that are stored whole: users may give the operator's labels to objects of their own.
10,000 runs have 40 MiB of pods."""
LISTED = {
    "metadata": ("namespace", "name", "uid", "resourceVersion", "labels", "deletionTimestamp"),
    "spec": ("model", "queueName", "ttlSecondsAfterFinished"),
    "status": ("phase", "completionTime", "queue"),
}
"""Fields of a run that lists of all runs use."""

Listener = Callable[[ResourceKind, ObjectChange[CachedObject]], None]


@dataclass(frozen=True, slots=True)
class CachedRun(CachedObject):
    """A run in the store."""

    phase: str
    """Its phase, empty before its first reconcile."""
    checkpoint: str
    """ID of the checkpoint that it starts from, with namespace. Empty: none."""
    model: str
    """Id of its model."""
    gpus: int
    """Number of GPUs that its attempt holds."""
    listed: bytes

    @property
    def has_begun(self) -> bool:
        """False while its model and checkpoint may be read again."""
        return self.phase not in ("", Phase.pending.value)

    def read_listed(self) -> Obj:
        """Return the fields of LISTED: a tenth of a run's memory."""
        return self.decode(self.listed)


@dataclass(frozen=True, slots=True)
class CachedPod(CachedObject):
    """A pod in the store."""

    is_ending: bool
    """True if it is being deleted, or if only its log hold is left of it."""


class Informers:
    """The informers of one operator."""

    def __init__(
        self,
        source: ObjectSource,
        kinds: Collection[ResourceKind],
        namespaces: Sequence[str | None] = (None,),
        tenant_labels: Labels | None = None,
    ) -> None:
        """`namespaces`: those that are followed, or None for all. `tenant_labels`: the labels of Namespaces that are
        followed. None or empty: none are.
        """
        kinds = (*kinds, *([NAMESPACE] if tenant_labels else []))
        # The pages of several kinds at a time would take the memory of all of them.
        lists = asyncio.Semaphore()
        self._informers: dict[tuple[ResourceKind, str | None], Informer[CachedObject]] = {}
        for kind in kinds:
            for namespace in namespaces if kind.namespaced else (None,):
                informer = Informer[CachedObject](
                    source,
                    kind,
                    functools.partial(convert, kind),
                    namespace=namespace,
                    labels=tenant_labels if kind == NAMESPACE else None if kind in OWN_KINDS else MANAGED,
                    index=(RUN_UID_LABEL,) if kind in BY_UID else (RUN_LABEL, SERVING_LABEL),
                    max_bytes=STORED_BYTES,
                    lists=lists,
                )
                informer.listeners.append(functools.partial(self._tell, kind))
                self._informers[kind, namespace] = informer
        self.listeners: list[Listener] = []
        """Called after each change, but for those of the first lists. They must not wait."""

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines that follow the API server until they are cancelled."""
        return [informer.follow() for informer in self._informers.values()]

    async def until_synced(self, *kinds: ResourceKind) -> None:
        """Wait until all objects of these kinds were listed, of all kinds without one."""
        for (kind, _), informer in self._informers.items():
            if not kinds or kind in kinds:
                await informer.until_synced()

    @property
    def stored_bytes(self) -> int:
        """Bytes of all objects."""
        return sum(informer.stored_bytes for informer in self._informers.values())

    def find(self, kind: ResourceKind, namespace: str | None) -> Informer[CachedObject] | None:
        """Return the informer that has the kind's objects of the namespace, once it has listed them."""
        informer = self._of(kind, namespace)
        return informer if informer is not None and informer.is_synced else None

    def runs(self) -> Iterable[CachedRun]:
        """Return all runs, in no order."""
        for (kind, _), informer in self._informers.items():
            if kind == RLRUN:
                yield from (run for run in informer.all() if isinstance(run, CachedRun))

    def pods(self) -> Iterable[CachedObject]:
        """Return all pods, in no order."""
        return [pod for (kind, _), informer in self._informers.items() if kind == POD for pod in informer.all()]

    @contextmanager
    def writing(self, request: KubeRequest) -> Iterator[Callable[[Obj], None]]:
        """Context of a write of this process, for `AsyncKubeClient`."""
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

    def _tell(self, kind: ResourceKind, change: ObjectChange[CachedObject]) -> None:
        for listener in self.listeners:
            listener(kind, change)


def convert(kind: ResourceKind, obj: Obj) -> CachedObject:
    """Return the stored form of an object."""
    parts = used_parts(kind, obj)
    metadata, data = parts["metadata"], _encode(parts)
    fields: dict[str, Any] = {
        "namespace": sys.intern(str(metadata.get("namespace") or "")),
        "name": str(metadata["name"]),
        "uid": str(metadata.get("uid") or ""),
        "version": version_number(str(metadata.get("resourceVersion") or "")),
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
            listed=listed,
        )
    if kind == POD:
        return CachedPod(**fields, is_ending=is_ending(obj))
    return CachedObject(**fields)


def _held_gpus(status: Obj) -> int:
    gpus = (status.get("resolved") or {}).get("gpus")
    return gpus if status.get("attemptStartTime") and isinstance(gpus, int) else 0


def listed_parts(run: Obj) -> Obj:
    """Return the fields of LISTED."""
    return {
        part: {key: run[part][key] for key in keys if key in run[part]} for part, keys in LISTED.items() if part in run
    }


def _encode(obj: Obj) -> bytes:
    return json.dumps(obj, separators=(",", ":")).encode()
