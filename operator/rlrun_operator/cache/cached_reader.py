"""Reads of one reconcile of a run, answered from the cache where it has an answer."""

import builtins

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Labels, Obj

from rlrun_operator.cache.object_cache import ObjectCache, Question, RunName
from rlrun_operator.cache.object_parts import used_parts


class CachedReader:
    """Reader for one reconcile. Methods raise ApiError."""

    def __init__(
        self, cluster: AsyncKubeClient, cache: ObjectCache, run: RunName, read_after: int | None = None
    ) -> None:
        """`read_after`: moment after which all answers must have been read."""
        self._cluster = cluster
        self._read_after = read_after
        self._cache = cache
        self._run = run
        self.has_kept_answers = False
        """True if an answer was not read in this reconcile, unless it rests on an object (`rest_on`)."""
        self._rests_on_object = False

    def rest_on(self, kind: ResourceKind, namespace: str | None, name: str) -> None:
        """Treat the kept answer about an object as current, and from now on all answers that are at least as new.

        Older ones are read again. For the first reconcile of a new object: if it is late, it sees what it would have
        seen when the object appeared.
        """
        began = self._cache.read_at(Question.one(kind, namespace, name))
        if began is not None:
            self._read_after = max(began, self._read_after or began)
            self._rests_on_object, self.has_kept_answers = True, False

    async def get(
        self, kind: ResourceKind, namespace: str | None, name: str, *, is_known_missing: bool = False
    ) -> Obj | None:
        """Return the object, or None if it does not exist.

        `is_known_missing`: only this process can have created it, so that nothing is asked.
        """
        question = Question.one(kind, namespace, name)
        kept = self._find(question)
        if kept is not None:
            return kept[0] if kept else None
        if is_known_missing:
            self._keep_nothing(question)
            return None
        with self._cache.reading(question) as read:
            obj = await self._cluster.get(kind, namespace, name)
            self._cache.keep(question, read, [] if obj is None else [obj], self._run)
        # The same parts as a kept answer has: a reconcile must not depend on where an object comes from.
        return None if obj is None else used_parts(kind, obj)

    async def list(
        self,
        kind: ResourceKind,
        namespace: str | None = None,
        labels: Labels | None = None,
        *,
        is_known_empty: bool = False,
    ) -> builtins.list[Obj]:
        """Return all objects with these labels.

        `is_known_empty`: there are none but those that this process has written, so that nothing is asked.
        """
        question = Question.of_labels(kind, namespace, labels)
        kept = self._find(question)
        if kept is not None:
            return kept
        if is_known_empty:
            self._keep_nothing(question)
            return []
        with self._cache.reading(question) as read:
            objects = await self._cluster.list(kind, namespace, labels)
            self._cache.keep(question, read, objects, self._run)
        return [used_parts(kind, obj) for obj in objects]

    def _find(self, question: Question) -> builtins.list[Obj] | None:
        objects = self._cache.find(question, self._run, self._read_after)
        if objects is not None and not self._rests_on_object:
            self.has_kept_answers = True
        return objects

    def _keep_nothing(self, question: Question) -> None:
        with self._cache.reading(question) as read:
            self._cache.keep(question, read, [], self._run)
