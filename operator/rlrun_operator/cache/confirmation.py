"""Confirmation of kept answers: one list of each kind shows which answers of all runs are still true.

Answers expire, because a watch may have lost an event. Reading each of them again costs a thousand runs ten thousand
requests. Metadata tells as much in two pages for each thousand objects: an answer is true if its objects are those
listed, in the same versions.
"""

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from rlrun.constants import RUN_LABEL, RUN_UID_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, WORKLOAD, ResourceKind
from rlrun.kube.objects import label

from rlrun_operator.cache.child_kinds import PODS_AND_CHILDREN
from rlrun_operator.cache.object_cache import ObjectCache, Question, listed_version

log = logging.getLogger(__name__)

LABELS = dict.fromkeys(PODS_AND_CHILDREN, RUN_LABEL) | dict.fromkeys((RLCHECKPOINT, RLADAPTER, WORKLOAD), RUN_UID_LABEL)
"""Label by which a look lists the objects of a run."""
ROUND_SECONDS = 600.0
"""Time in which each kind is listed once. Answers are kept for at least 960 s."""
FEWEST_ANSWERS = 10
"""Kept answers of a kind below which they are left to expire."""
ANSWERS_PER_PAGE = 10
"""So many reads of single runs take as long as one page: a list with more pages is given up. Runs that have ended keep
checkpoints and adapters."""
ROUNDS_WITHOUT = 6
"""Rounds in which such a list is not tried again."""


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
    while True:
        for each in lists:
            await sleep(ROUND_SECONDS / len(lists))
            try:
                await each.confirm(cluster, cache)
            except ApiError as error:
                plural = each.kind.plural
                log.warning("Could not compare the kept %s with those of the API server: %s", plural, error)


@dataclass
class _Confirmation:
    """Confirmation of the answers about one kind, in one or in all namespaces."""

    kind: ResourceKind
    namespace: str | None
    _rounds_without: int = field(default=0, init=False)

    async def confirm(self, cluster: AsyncKubeClient, cache: ObjectCache) -> None:
        """Confirm what the API server has, and forget what it has otherwise. Raises ApiError."""
        if self._rounds_without:
            self._rounds_without -= 1
            return
        key = LABELS[self.kind]
        kept = cache.questions(self.kind, self.namespace, key)
        if len(kept) < FEWEST_ANSWERS:
            return
        listed: dict[Question, dict[str, int]] = defaultdict(dict)
        expiry, pages = cache.expiry(), 0
        async for page in cluster.metadata_pages(self.kind, self.namespace, {key: ""}):
            pages += 1
            if pages > len(kept) // ANSWERS_PER_PAGE:
                self._rounds_without = ROUNDS_WITHOUT
                return
            for obj in page:
                question = Question.labelled(self.kind, obj["metadata"].get("namespace"), {key: label(obj, key)})
                if question in kept:
                    uid, version = listed_version(obj)
                    listed[question][uid] = version
        for question in kept:
            cache.confirm(question, listed.get(question, {}), expiry)
