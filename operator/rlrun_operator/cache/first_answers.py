"""Answers for the first reconciles of a process: one list of each kind for all runs replaces one list for each run.

A list for one run costs the API server a request, and this process 2 ms. A thousand runs have ten thousand of them.
"""

import asyncio
import contextlib
import itertools
import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rlrun.constants import RUN_LABEL, RUN_UID_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, ResourceKind
from rlrun.kube.objects import label

from rlrun_operator.cache.child_kinds import PODS_AND_CHILDREN
from rlrun_operator.cache.object_cache import ObjectCache, Question, RunName
from rlrun_operator.cache.object_parts import used_parts
from rlrun_operator.runtime.in_turns import in_turns

log = logging.getLogger(__name__)

BY_NAME = PODS_AND_CHILDREN
"""Kinds whose objects a reconcile finds by the name of the run."""
BY_UID = (RLCHECKPOINT, RLADAPTER)
"""Kinds whose objects a reconcile finds by the uid of the run."""
FEWEST_RUNS = 10
"""Namespaces with fewer runs than this are not listed: their reconciles read for themselves, without waiting."""
RUNS_PER_PAGE = 10
"""Number of lists of single runs that take as long as one page: a list with more pages is abandoned. Finished runs keep
checkpoints, adapters and an ended Job each."""
LARGEST_LIST = 128 << 20
"""Size of a list in bytes after which it is abandoned. A thousand runs need a tenth of that."""
DEADLINE_SECONDS = 20.0
"""Time limit for all lists. Reconciles read what is missing after it."""
WATCH_SECONDS = 5.0
"""Time in which the watches must open, together. Nothing is kept of a kind that is not watched."""


async def read_first_answers(
    cluster: AsyncKubeClient,
    cache: ObjectCache,
    namespaces: Iterable[str | None],
    runs: Mapping[RunName, str],
    *,
    seconds: float = DEADLINE_SECONDS,
    watch_seconds: float = WATCH_SECONDS,
) -> None:
    """Keep the answers that the first reconciles of these runs ask for, as far as they can be read within `seconds`.

    `namespaces`: those that are watched, or None for all. `runs`: uid of each run by its name. `watch_seconds`: time
    in which the watches must open.
    """
    by_name = {run: run[1] for run in runs}
    kinds = [(kind, RUN_LABEL, by_name) for kind in BY_NAME] + [(kind, RUN_UID_LABEL, runs) for kind in BY_UID]
    lists = [
        _Lists(kind, namespace, key, {run: value for run, value in values.items() if namespace in (None, run[0])})
        for namespace, (kind, key, values) in itertools.product(namespaces, kinds)
    ]
    opens_until = asyncio.get_running_loop().time() + watch_seconds
    # Those first whose watches are open.
    lists = sorted((these for these in lists if len(these.values) >= FEWEST_RUNS), key=lambda these: these.waits(cache))
    try:
        async with asyncio.timeout(seconds):
            for these in lists:
                if await _is_watched(cache, these.kind, these.namespace, opens_until):
                    await these.read(cluster, cache)
    except TimeoutError:
        log.warning("The objects of all runs were not listed within %.0f s, so each run's are listed", seconds)


async def _is_watched(cache: ObjectCache, kind: ResourceKind, namespace: str | None, until: float) -> bool:
    """Wait until the watch is open or the deadline (event loop time) has passed. Returns whether it is open."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            await cache.until_watched(kind, namespace)
    return cache.is_watched(kind, namespace)


@dataclass(frozen=True)
class _Lists:
    """Lists of one kind by a label, one for each run."""

    kind: ResourceKind
    namespace: str | None
    key: str
    values: Mapping[RunName, str]
    """Value of the label for each run."""

    def waits(self, cache: ObjectCache) -> bool:
        """Return whether the watch of the kind is not open."""
        return not cache.is_watched(self.kind, self.namespace)

    async def read(self, cluster: AsyncKubeClient, cache: ObjectCache) -> None:
        """Keep the answers to all these lists, unless a single list of all objects would take more pages than it
        saves."""
        questions = {
            (run[0], value): Question.of_labels(self.kind, run[0], {self.key: value})
            for run, value in self.values.items()
        }
        found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        pages = size = 0
        with contextlib.ExitStack() as stack:
            reads = {place: stack.enter_context(cache.reading(question)) for place, question in questions.items()}
            try:
                async for page in cluster.pages(self.kind, self.namespace, {self.key: ""}):
                    pages += 1
                    if pages > len(self.values) // RUNS_PER_PAGE:
                        return
                    for obj in page:
                        place = (str(obj["metadata"].get("namespace", "")), label(obj, self.key))
                        if place in questions:
                            # As JSON until the list is complete: the objects of a thousand runs take 100 MiB otherwise.
                            found[place].append(json.dumps(used_parts(self.kind, obj)))
                            size += len(found[place][-1])
                    if size > LARGEST_LIST:
                        return
            except ApiError as error:
                log.warning("Could not list the %s of all runs, so each run's are listed: %s", self.kind.plural, error)
                return
            async for run, value in in_turns(self.values.items()):
                place = (run[0], value)
                cache.keep(questions[place], reads[place], map(json.loads, found.pop(place, [])), run)
