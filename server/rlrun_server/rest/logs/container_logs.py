"""Logs of a run's containers, read from its pods with the caller's permissions, or from the copies in S3."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from rlrun.constants import ROLE_LABEL, RUN_LABEL, RUN_UID_LABEL, Reason, Role
from rlrun.kube import requests
from rlrun.kube.async_client import read_end
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import POD
from rlrun.kube.objects import Obj, attempt_of, controller_kind, label
from rlrun.kube.pod_logs import UnknownEnvironment, components_of, main_container, oldest_first
from rlrun.kube.pods import component_of, role_of
from rlrun.kube.requests import KubeRequest
from rlrun.storage.errors import NotFound
from rlrun.storage.layout import RunLayout
from rlrun.storage.store import Store
from rlrun.storage.stored_logs import select_logs

from rlrun_server.rest.base.problems import FieldError, RestError, from_api_error, invalid
from rlrun_server.rest.logs.log_lines import LogOrigin, time_text

CONTROLLERS = frozenset({"ReplicaSet", "Job"})
"""Kinds of the objects that create the pods of runs."""
MAX_PODS = 32
"""Maximum number of pods whose logs are read for one request. The newest pods are read."""
TOTAL_BYTES = 8 * 1024**2
"""Maximum total size of the logs that are read for one request, in bytes."""
MAX_POD_BYTES = 5 * 1024**2
CONCURRENT_PODS = 4
READ_SECONDS = 25.0
"""Time limit for reading all logs for one request, in seconds."""
NO_LOG = frozenset({400, 404})
"""Statuses for a container that has not started or has no previous instance, and for a deleted pod."""
MAX_FILES = 5000
"""Maximum number of log copies of one run that are listed."""


class LogCluster(Protocol):
    """The part of `CallerCluster` that readers of logs use."""

    async def send(self, request: KubeRequest) -> Obj:
        """Return the API server's response. Raises RestError."""
        ...

    def stream(self, request: KubeRequest) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open the response as a stream of chunks. Raises ApiError, even while the response is read."""
        ...


@dataclass(frozen=True)
class PodSelection:
    """Selection of a run's pods by role, component and attempt."""

    roles: Sequence[Role]
    components: Sequence[str] = ()
    """Components such as `env-0`. If empty, all components of the roles are selected."""
    attempt: int | None = None


@dataclass(frozen=True)
class ContainerLog:
    """Last lines of a container's log."""

    origin: LogOrigin
    data: bytes | None
    """Text of the log, or None if there is no log yet."""
    is_cut: bool = False
    """True if earlier lines are missing."""
    problem: str | None = None


def select_roles(roles: Sequence[Role], env: str | None, run: Obj | None, attempt: int | None = None) -> PodSelection:
    """Return the selection of pods for a request. Raises RestError. `run` is None for a deleted run."""
    if env is None:
        return PodSelection(list(dict.fromkeys(roles)) or [Role.orchestrator], (), attempt)
    if any(role is not Role.environment for role in roles):
        detail = "env selects an environment, so role must be environment. Omit all other roles."
    elif run is None:
        detail = "the run was deleted, so its environments are not known. Remove env, and use role=environment."
    else:
        try:
            return PodSelection([Role.environment], components_of(run, env), attempt)
        except UnknownEnvironment as error:
            detail = f"the run has no environment {env}. It has: {', '.join(error.existing)[:1000]}."
    raise invalid("The query is not valid.", [FieldError(pointer="query/env", detail=detail)], 422)


async def list_pods(cluster: LogCluster, namespace: str, run: str, uid: str, wanted: PodSelection) -> list[LogOrigin]:
    """Return the newest MAX_PODS of the selected pods, oldest first. Raises RestError."""
    role = wanted.roles[0].value if len(wanted.roles) == 1 else ""
    labels = {RUN_LABEL: run, RUN_UID_LABEL: uid, ROLE_LABEL: role}
    page = await cluster.send(requests.list_page(POD, namespace, labels))
    selected = [pod for pod in page.get("items") or [] if _is_selected(pod, uid, wanted)]
    return [
        LogOrigin(Role(role_of(pod)), str(pod["metadata"]["name"]), attempt_of(pod), main_container(pod))
        for pod in oldest_first(selected)[-MAX_PODS:]
    ]


def _is_selected(pod: Obj, uid: str, wanted: PodSelection) -> bool:
    """Return whether the pod belongs to the run, was created by a controller and is selected."""
    return (
        label(pod, RUN_UID_LABEL) == uid
        and controller_kind(pod) in CONTROLLERS
        and role_of(pod) in wanted.roles
        and (not wanted.components or component_of(pod) in wanted.components)
        and (wanted.attempt is None or attempt_of(pod) == wanted.attempt)
    )


async def read_pods(
    cluster: LogCluster,
    namespace: str,
    pods: Sequence[LogOrigin],
    *,
    previous: bool,
    lines: int,
    since: int | None,
) -> list[ContainerLog]:
    """Return the last lines of each pod. `since` is in nanoseconds since 1970. Raises RestError if no pod's log can be
    read, or reading takes longer than READ_SECONDS.
    """
    limit = _limit(len(pods))
    slots = asyncio.Semaphore(CONCURRENT_PODS)
    last_error: ApiError | None = None

    async def read(origin: LogOrigin) -> ContainerLog:
        nonlocal last_error
        request = requests.log(
            namespace,
            origin.pod,
            origin.container,
            previous=previous,
            tail_lines=lines,
            since_time="" if since is None else time_text(since),
            timestamps=True,
        )
        async with slots:
            try:
                async with cluster.stream(request) as chunks:
                    data, is_cut = await read_end(chunks, limit)
            except ApiError as error:
                if error.status in NO_LOG:
                    return ContainerLog(origin, None)
                last_error = error
                return ContainerLog(origin, None, problem=from_api_error(error).detail)
        return ContainerLog(origin, _whole_lines(data, is_cut), is_cut or data.count(b"\n") >= lines)

    try:
        async with asyncio.timeout(READ_SECONDS):
            logs = await asyncio.gather(*(read(pod) for pod in pods))
    except TimeoutError as error:
        detail = f"The nodes did not return the logs within {READ_SECONDS:.0f} s. Retry the request later."
        raise RestError(503, Reason.API_SERVER_UNAVAILABLE, detail) from error
    if last_error is not None and all(log.problem is not None for log in logs):
        raise from_api_error(last_error)
    return list(logs)


def read_copies(
    store: Store, layout: RunLayout, run: str | None, wanted: PodSelection, *, previous: bool
) -> list[ContainerLog]:
    """Return the S3 copies of the requested attempt's logs, by default of the newest attempt with copies. Blocks.

    `run` is None for a deleted run. Raises StoreError.
    """
    prefix = f"{layout.logs.key}/"
    files = [stored.key.removeprefix(prefix) for stored in islice(store.walk(layout.logs), MAX_FILES)]
    by_role = [
        (role, copy)
        for role in wanted.roles
        for copy in select_logs(files, run, role.value, wanted.attempt, previous, wanted.components)
    ]
    newest = max((copy.attempt for _, copy in by_role), default=0)
    chosen = [(role, copy) for role, copy in by_role if copy.attempt == newest][:MAX_PODS]
    limit, logs = _limit(len(chosen)), []
    for role, copy in chosen:
        try:
            data = store.get_range(layout.logs / copy.file, None, limit + 1)
        except NotFound:
            # The file was deleted after it was listed.
            continue
        is_cut, origin = len(data) > limit, LogOrigin(role, copy.pod, copy.attempt, copy.container)
        logs.append(ContainerLog(origin, _whole_lines(data, is_cut), is_cut))
    return logs


def _limit(logs: int) -> int:
    """Return the maximum size in bytes of each log if `logs` logs are read together."""
    return min(MAX_POD_BYTES, TOTAL_BYTES // max(1, logs))


def _whole_lines(data: bytes, is_cut: bool) -> bytes:
    """Return the log, without its incomplete first line if it is cut."""
    return data.partition(b"\n")[2] if is_cut else data
