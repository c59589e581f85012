"""Answers for the first looks of a process: one list of each kind for all runs replaces one list for each run.

A list for one run costs the API server a request, and this process 2 ms. A thousand runs have ten thousand of them.
"""

import asyncio
import contextlib
import itertools
import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping

from rlrun.constants import RUN_LABEL, RUN_UID_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    NETWORK_POLICY,
    POD,
    REPLICA_SET,
    RLADAPTER,
    RLCHECKPOINT,
    SERVICE,
    SERVICE_ACCOUNT,
    ResourceKind,
)
from rlrun.kube.objects import label

from rlrun_operator.cache.object_cache import ObjectCache, Question, RunName
from rlrun_operator.cache.object_parts import used_parts
from rlrun_operator.runtime.in_turns import in_turns

log = logging.getLogger(__name__)

BY_NAME = (DEPLOYMENT, REPLICA_SET, JOB, SERVICE, NETWORK_POLICY, CONFIG_MAP, SERVICE_ACCOUNT, POD)
"""Kinds whose objects a look finds by the name of the run."""
BY_UID = (RLCHECKPOINT, RLADAPTER)
"""Kinds whose objects a look finds by the uid of the run."""
DEADLINE_SECONDS = 20.0
"""Time for all of it. Looks read what is missing then."""
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
    """Keep the answers that the first looks at these runs ask for, as far as they can be read within `seconds`.

    `namespaces`: those that are watched, or None for all. `runs`: uid of each run by its name. `watch_seconds`: time
    in which the watches must open.
    """
    by_name = {run: run[1] for run in runs}
    lists = [(kind, RUN_LABEL, by_name) for kind in BY_NAME] + [(kind, RUN_UID_LABEL, runs) for kind in BY_UID]
    opens_until = asyncio.get_running_loop().time() + watch_seconds
    try:
        async with asyncio.timeout(seconds):
            for namespace, (kind, key, values) in itertools.product(namespaces, lists):
                there = {run: value for run, value in values.items() if namespace in (None, run[0])}
                if there and await _is_watched(cache, kind, namespace, opens_until):
                    await _read_lists(cluster, cache, kind, namespace, key, there)
    except (ApiError, TimeoutError) as error:
        log.warning(
            "Could not list the objects of all runs together, so each run's are listed: %s",
            error if isinstance(error, ApiError) else f"not done within {seconds:.0f} s",
        )


async def _is_watched(cache: ObjectCache, kind: ResourceKind, namespace: str | None, until: float) -> bool:
    """Wait until the watch is open, at most until a time of the event loop. Returns whether it is."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            await cache.until_watched(kind, namespace)
    return cache.is_watched(kind, namespace)


async def _read_lists(
    cluster: AsyncKubeClient,
    cache: ObjectCache,
    kind: ResourceKind,
    namespace: str | None,
    key: str,
    values: Mapping[RunName, str],
) -> None:
    """Keep the answers to the lists of one kind by a label. `values`: the label's value for each run."""
    questions = {(run[0], value): Question.labelled(kind, run[0], {key: value}) for run, value in values.items()}
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        reads = {place: stack.enter_context(cache.reading(question)) for place, question in questions.items()}
        async for page in cluster.pages(kind, namespace, {key: ""}):
            for obj in page:
                place = (str(obj["metadata"].get("namespace", "")), label(obj, key))
                if place in questions:
                    # As JSON until the list is complete: the objects of a thousand runs take 100 MiB otherwise.
                    found[place].append(json.dumps(used_parts(kind, obj)))
        async for run, value in in_turns(values.items()):
            place = (run[0], value)
            cache.keep(questions[place], reads[place], map(json.loads, found.pop(place, [])), run)
