"""Reads of one look at a run, answered from the cache where it has an answer."""

import builtins

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Labels, Obj

from rlrun_operator.cache.object_cache import ObjectCache, Question, RunName
from rlrun_operator.cache.object_parts import used_parts


class CachedReader:
    """Reader for one look. Methods raise ApiError."""

    def __init__(
        self, cluster: AsyncKubeClient, cache: ObjectCache, run: RunName, read_after: int | None = None
    ) -> None:
        """`read_after`: moment after which all answers must have been read."""
        self._cluster = cluster
        self._read_after = read_after
        self._cache = cache
        self._run = run
        self.has_kept_answers = False
        """True if an answer was not read in this look."""

    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Obj | None:
        """Return the object, or None if it does not exist."""
        question = Question.one(kind, namespace, name)
        kept = self._find(question)
        if kept is not None:
            return kept[0] if kept else None
        with self._cache.reading(question) as read:
            found = await self._cluster.get(kind, namespace, name)
            self._cache.keep(question, read, [] if found is None else [found], self._run)
        # The same parts as a kept answer has: a look must not depend on where an object comes from.
        return None if found is None else used_parts(kind, found)

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
        question = Question.labelled(kind, namespace, labels)
        kept = self._find(question)
        if kept is not None:
            return kept
        if is_known_empty:
            with self._cache.reading(question) as read:
                self._cache.keep(question, read, [], self._run)
            return []
        with self._cache.reading(question) as read:
            found = await self._cluster.list(kind, namespace, labels)
            self._cache.keep(question, read, found, self._run)
        return [used_parts(kind, obj) for obj in found]

    def _find(self, question: Question) -> builtins.list[Obj] | None:
        found = self._cache.find(question, self._run, self._read_after)
        self.has_kept_answers = self.has_kept_answers or found is not None
        return found
