"""Reads the objects of runs from informers or, before a decision, from the API server.

A kind is also read from the API server until its informer has listed it. Secrets are not watched, because the
operator may only read them by name. A missing Secret keeps pods from starting, so a Secret is read again after a pod of
its run has changed.
"""

import builtins
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rlrun.constants import RUN_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import RESPONSE_LIMIT, AsyncTransport, too_large
from rlrun.kube.informer import CachedObject, Informer, ObjectChange
from rlrun.kube.kinds import POD, RLRUN, SECRET, ResourceKind
from rlrun.kube.objects import Labels, Obj, phase_of
from rlrun.kube.requests import KubeRequest, Verb, list_page

from rlrun_operator.cluster.informers import FINISHED, CachedRun, Informers, has_slot, pool_of
from rlrun_operator.cluster.object_parts import used_parts
from rlrun_operator.resources.base.naming import token_secret_name
from rlrun_operator.runtime.cache_expiry import drop_expired

SECRET_SECONDS = 1200.0
"""Time in seconds for which a Secret, or its absence, is cached."""


class RunObjects:
    """Reads the objects of runs from informers or the API server. `cluster` is the client that writes them."""

    def __init__(
        self,
        transport: AsyncTransport,
        informers: Informers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """If `informers` is None, everything is read from the API server."""
        self.cluster = AsyncKubeClient(transport, writing=self._writing)
        self._informers = informers
        self._clock = clock
        self._secrets: dict[tuple[str, str], tuple[float, Obj | None]] = {}
        """Secrets by namespace and name, with the time of the read. None for a Secret that does not exist."""
        if informers is not None:
            informers.listeners.append(self._on_change)

    @property
    def has_informers(self) -> bool:
        """True if objects are read from informers, False if all objects are read from the API server."""
        return self._informers is not None

    async def get(self, kind: ResourceKind, namespace: str | None, name: str, *, is_fresh: bool = False) -> Obj | None:
        """Return the object, or None if it does not exist. If `is_fresh`, it is read from the API server. Raises
        ApiError.
        """
        informer = None if is_fresh else self._find(kind, namespace)
        if informer is not None:
            cached = informer.find(namespace or "", name)
            loaded = None if cached is None else await informer.load(cached)
            return None if loaded is None else loaded.read()
        # The operator may list all kinds, but may get only runs by name (see the chart).
        read = self.cluster.get if kind == RLRUN else self.cluster.read_listed
        obj = await read(kind, namespace, name)
        # Keep the same parts as in a stored object, so that a reconcile does not depend on the source.
        return None if obj is None else used_parts(kind, obj)

    async def list(
        self,
        kind: ResourceKind,
        namespace: str | None = None,
        labels: Labels | None = None,
        *,
        is_fresh: bool = False,
        version: int = 0,
    ) -> builtins.list[Obj]:
        """Return the objects of the kind in the namespace that have the label in `labels`, which has at most one entry.

        If `labels` is None, all objects of the kind are returned, and `namespace` must be None. The result includes all
        changes up to the resource version `version`. If `is_fresh`, the objects are read from the API server. Raises
        ApiError.
        """
        informer = None if is_fresh else self._find(kind, namespace)
        if informer is None:
            return [used_parts(kind, obj) for obj in await self.cluster.list(kind, namespace, labels)]
        await informer.catch_up(version)
        if not labels:
            return await _load_all(informer, [*informer.all()], list_page(kind))
        ((key, value),) = labels.items()
        stored = informer.find_labelled(namespace or "", key, value)
        return await _load_all(informer, stored, list_page(kind, namespace, labels))

    async def runs_of_pool(self, namespace: str, pool: str, *, is_fresh: bool = False) -> builtins.list[Obj]:
        """Return the runs whose status names this shared pool and that are unfinished or have a slot. Raises
        ApiError.
        """
        informer = None if is_fresh else self._find(RLRUN, namespace)
        if informer is None:
            pages = self.cluster.all_pages(RLRUN, namespace)
            return [run async for page, _ in pages for run in page if pool_of(run) == pool and _uses_pool(run)]
        named = [run for run in _pooled(informer) if (run.namespace, run.pool) == (namespace, pool)]
        loaded = [await informer.load(run) for run in named]
        return [cached.read() for cached in loaded if cached is not None]

    async def pools_of_runs(self, namespaces: Sequence[str | None]) -> builtins.list[tuple[str, str, str]]:
        """Return namespace, model and name of each shared pool that a run uses. Raises ApiError."""
        found: set[tuple[str, str, str]] = set()
        if self._informers is not None:
            await self._informers.until_synced(RLRUN)
        for namespace in namespaces:
            if (informer := self._find(RLRUN, namespace)) is not None:
                found.update((run.namespace, run.model, run.pool) for run in _pooled(informer))
                continue
            async for page, _ in self.cluster.all_pages(RLRUN, namespace):
                runs = [run for run in page if _uses_pool(run)]
                found.update((run["metadata"]["namespace"], run["spec"]["model"], pool_of(run)) for run in runs)
        return sorted(found)

    async def secret(self, namespace: str, name: str) -> Obj | None:
        """Return the Secret with the tokens of a run, or None if it does not exist. The result may be SECRET_SECONDS
        old. Raises ApiError.
        """
        drop_expired(self._secrets, self._clock() - SECRET_SECONDS)
        if self.has_informers and (namespace, name) in self._secrets:
            return self._secrets[namespace, name][1]
        secret = await self.cluster.get(SECRET, namespace, name)
        self._secrets[namespace, name] = self._clock(), secret
        return secret

    def forget_secret(self, namespace: str, run: str) -> None:
        """Drop the run's Secret from the cache, so that it is read again when needed."""
        self._secrets.pop((namespace, token_secret_name(run)), None)

    def _find(self, kind: ResourceKind, namespace: str | None) -> Informer[CachedObject] | None:
        return None if self._informers is None else self._informers.find(kind, namespace)

    def _on_change(self, kind: ResourceKind, change: ObjectChange[CachedObject]) -> None:
        run = dict(change.cached.labels).get(RUN_LABEL)
        if kind == POD and run:
            self.forget_secret(change.cached.namespace, run)

    @contextmanager
    def _writing(self, request: KubeRequest) -> Iterator[Callable[[Obj], None]]:
        if request.kind == SECRET:
            yield from self._writing_secret(request)
        elif self._informers is None:
            yield lambda _: None
        else:
            with self._informers.writing(request) as store_answer:
                yield store_answer

    def _writing_secret(self, request: KubeRequest) -> Iterator[Callable[[Obj], None]]:
        name = request.name or str((request.body or {})["metadata"].get("name", ""))
        place = (request.namespace or "", name)
        # Until the response arrives, or if it is lost, the state in the API server is unknown.
        self._secrets.pop(place, None)
        # Secrets of pools are written, but never read here.
        drop_expired(self._secrets, self._clock() - SECRET_SECONDS)

        def on_answer(answer: Obj) -> None:
            if request.verb is not Verb.DELETE and answer.get("kind") == SECRET.kind:
                self._secrets[place] = self._clock(), answer

        yield on_answer


def _pooled(informer: Informer[CachedObject]) -> Iterator[CachedRun]:
    """Yield the runs that use a shared pool."""
    return (run for run in informer.all() if isinstance(run, CachedRun) and run.uses_pool)


def _uses_pool(run: Obj) -> bool:
    return bool(pool_of(run)) and (has_slot(run) or phase_of(run) not in FINISHED)


async def _load_all(
    informer: Informer[CachedObject], stored: builtins.list[CachedObject], request: KubeRequest
) -> builtins.list[Obj]:
    """Decode stored objects. Raises ApiError if their total size exceeds RESPONSE_LIMIT: users can put a run's labels
    on large objects.
    """
    if sum(cached.size for cached in stored) > RESPONSE_LIMIT:
        raise too_large(request, RESPONSE_LIMIT)
    loaded = [await informer.load(cached) for cached in stored]
    return [cached.read() for cached in loaded if cached is not None]
