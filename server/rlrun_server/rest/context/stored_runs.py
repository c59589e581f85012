"""Lookup of runs with files in S3, including deleted runs, and readers of their rollouts."""

import re
from collections.abc import Callable
from typing import TypeVar

from rlrun.constants import Reason
from rlrun.storage.layout import SHARED_FOLDERS
from rlrun.storage.samples.record import SampleSplit

from rlrun_server.rest.base.access import Caller
from rlrun_server.rest.base.problems import RestError, not_found
from rlrun_server.rest.context.services import KnownObjects, Services
from rlrun_server.rest.samples.sample_reader import OpenedStep
from rlrun_server.rest.samples.sample_summaries import RunSamples

T = TypeVar("T")
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def uid_of_run(objects: KnownObjects, namespace: str, run: str) -> tuple[str, bool]:
    """Return the uid of the run with this name or uid, and whether the run exists. Raises RestError.

    A deleted run, which may still have files, can only be identified by its uid.
    """
    objects.require(objects.runs)
    if namespace in SHARED_FOLDERS:
        raise RestError(
            404,
            Reason.OBJECT_NOT_FOUND,
            f"Namespace {namespace} cannot have runs, because its name is reserved for the platform.",
        )
    known = objects.runs.find(namespace, run) or objects.runs.find_uid(namespace, run)
    if known is not None:
        return known.uid, True
    if not UID.fullmatch(run):
        raise not_found(f"Run {namespace}/{run}")
    return run, False


async def read_step(
    services: Services,
    caller: Caller,
    namespace: str,
    run: str,
    step: int,
    split: SampleSplit,
    view: Callable[[OpenedStep], T],
) -> T:
    """Open a step's stored rollouts, and return the result of `view`, which is called in a thread.

    Raises RestError, with status 404 if the step has no stored rollouts.
    """
    uid, _ = uid_of_run(services.objects, namespace, run)
    return await services.samples.step(caller.user.limited_as, (namespace, uid), step, split, view)


async def read_summaries(
    services: Services, caller: Caller, namespace: str, run: str, view: Callable[[str, RunSamples], T]
) -> T:
    """Read the summaries of a run's rollouts, and return the result of `view`, which is called in a thread with the
    run's uid and the summaries. Raises RestError, with status 404 for a deleted run without summaries.
    """
    uid, exists = uid_of_run(services.objects, namespace, run)

    def work(samples: RunSamples) -> T:
        if not exists and not samples.summaries:
            raise not_found(f"Run {namespace}/{run}")
        return view(uid, samples)

    return await services.samples.summaries(caller.user.limited_as, (namespace, uid), work)
