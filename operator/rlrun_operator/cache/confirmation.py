"""Confirmation of kept answers: one list of each kind shows which answers of all runs are still true.

Answers expire, because a watch may have lost an event. Reading each of them again costs a thousand runs ten thousand
requests. Metadata tells as much in two pages for each thousand objects: an answer is true if its objects are those
listed, in the same versions.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field

from rlrun.constants import RUN_LABEL, RUN_UID_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import WORKLOAD, ResourceKind
from rlrun.kube.objects import label

from rlrun_operator.cache.first_answers import BY_NAME, BY_UID
from rlrun_operator.cache.object_cache import ObjectCache, Question, listed_version

log = logging.getLogger(__name__)

LABELS = dict.fromkeys(BY_NAME, RUN_LABEL) | dict.fromkeys((*BY_UID, WORKLOAD), RUN_UID_LABEL)
"""Label by which a reconcile lists the objects of a run."""
ROUND_SECONDS = 600.0
"""Time in which each kind is listed once. Answers are kept for at least 960 s, so that one list may fail."""
DEADLINE_SECONDS = 60.0
"""Time for one list. A page of 500 objects takes a tenth of a second."""
FEWEST_ANSWERS = 10
"""Fewer kept answers of a kind than this are left to expire."""
ANSWERS_PER_PAGE = 10
"""Number of reads of single runs that take as long as one page: a list with more pages is abandoned. Finished runs keep
checkpoints and adapters, and a Job with its pod."""
ROUNDS_WITHOUT = 6
"""Rounds to wait before a list that was abandoned or refused is tried again."""


async def confirm_answers(
    cluster: AsyncKubeClient,
    cache: ObjectCache,
    namespaces: Iterable[str | None],
    kinds: Iterable[ResourceKind],
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Compare the kept answers of these kinds with the API server until the task is cancelled.

    `namespaces`: those that are watched, or None for all.
    """
    lists = list(itertools.starmap(_Confirmation, itertools.product(kinds, namespaces)))
    pause = ROUND_SECONDS / len(lists)
    while True:
        for each in lists:
            await sleep(pause)
            began = cache.time()
            await each.confirm(cluster, cache)
            pause = max(0.0, ROUND_SECONDS / len(lists) - (cache.time() - began))


@dataclass
class _Confirmation:
    """Confirms the answers about one kind, in one namespace or in all."""

    kind: ResourceKind
    namespace: str | None
    _rounds_without: int = field(default=0, init=False)

    async def confirm(self, cluster: AsyncKubeClient, cache: ObjectCache) -> None:
        """List the objects and compare the answers with them, if that is cheaper than to read the answers again."""
        kept = cache.questions(self.kind, self.namespace, LABELS[self.kind])
        if self._rounds_without:
            self._rounds_without -= 1
        elif len(kept) >= FEWEST_ANSWERS and cache.is_watched(self.kind, self.namespace):
            try:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    await self._compare(cluster, cache, kept)
            except ApiError as error:
                if not error.is_temporary:
                    self._rounds_without = ROUNDS_WITHOUT
                log.warning("Could not list the %s to compare them with what is kept: %s", self.kind.plural, error)
            except TimeoutError:
                self._rounds_without = ROUNDS_WITHOUT
                message = "The list of the %s, to compare them with what is kept, took longer than %.0f s"
                log.warning(message, self.kind.plural, DEADLINE_SECONDS)
            except Exception:
                # The answers expire then: no reason to end the process, as an error of another job does.
                self._rounds_without = ROUNDS_WITHOUT
                log.exception("Could not compare the %s with what is kept", self.kind.plural)

    async def _compare(self, cluster: AsyncKubeClient, cache: ObjectCache, kept: Collection[Question]) -> None:
        key, listed_at, pages = LABELS[self.kind], cache.time(), 0
        versions: dict[Question, dict[str, int]] = {question: {} for question in kept}
        async for page in cluster.metadata_pages(self.kind, self.namespace, {key: ""}):
            pages += 1
            if pages > len(kept) // ANSWERS_PER_PAGE:
                self._rounds_without = ROUNDS_WITHOUT
                return
            for obj in page:
                question = Question.of_labels(self.kind, obj["metadata"].get("namespace"), {key: label(obj, key)})
                if question in versions:
                    versions[question].update([listed_version(obj)])
        for question, listed in versions.items():
            cache.compare(question, listed, listed_at)
