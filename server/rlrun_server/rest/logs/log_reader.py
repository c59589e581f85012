"""Reader of a run's logs: from its pods if it has any, else from the copies in S3."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from rlrun.api.base.phases import Phase
from rlrun.constants import Driver, Reason
from rlrun.kube.objects import Obj
from rlrun.service.tenant_quota import QuotaResult, TenantQuota

from rlrun_server.authentication.users import User
from rlrun_server.rest.base.problems import FieldError, RestError, invalid
from rlrun_server.rest.base.stored_files import StoredFiles
from rlrun_server.rest.base.tenant_queue import TenantQueue
from rlrun_server.rest.logs.container_logs import (
    ContainerLog,
    LogCluster,
    PodSelection,
    list_pods,
    read_copies,
    read_pods,
    select_roles,
)
from rlrun_server.rest.logs.log_lines import (
    SEARCHED_LINES,
    LineFilter,
    compile_pattern,
    merge_lines,
    newest,
    parse_lines,
    parse_since,
)
from rlrun_server.rest.logs.log_models import LogAnswer, LogProblem, LogQuery, LogSource
from rlrun_server.rest.objects.summaries import RunSummary

PER_USER = 3
CONCURRENT = 6
"""Maximum number of concurrent requests for logs. Each holds up to 8 MiB of logs."""
FINISHED = frozenset({Phase.completed, Phase.failed, Phase.stopped, Phase.suspended})
"""Phases of runs that have no pods, or will have none soon."""


@dataclass(frozen=True)
class KnownRun:
    """Run whose logs are read."""

    namespace: str
    uid: str
    obj: Obj | None = None
    """The RLRun, or None if it is deleted. A deleted run is known only by its uid."""
    summary: RunSummary | None = None


class LogReader:
    """Reads logs for all users. The number of concurrent reads is limited."""

    def __init__(self, files: StoredFiles, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._files = files
        self._now = now
        self._quota = TenantQuota(PER_USER, CONCURRENT)
        self._parsing = TenantQueue(1, "logs")

    async def read(self, user: User, cluster: LogCluster | None, run: KnownRun, query: LogQuery) -> LogAnswer:
        """Return the lines that the query selects. Raises RestError.

        If `cluster` is None, only the copies in S3 are read: the run is deleted, or the caller cannot read pods.
        """
        wanted = select_roles(query.role, query.env, run.obj, query.attempt)
        lines = self._filter(query)
        with self._slot(user):
            if cluster is not None and run.summary is not None:
                answer = await self._live(cluster, run, run.summary, wanted, lines, query)
                if answer is not None:
                    return answer
            return await self._read_stored(run, wanted, lines, query)

    def close(self) -> None:
        """Stop the threads without waiting for S3."""
        self._files.close()
        self._parsing.close()

    @contextmanager
    def _slot(self, user: User) -> Iterator[None]:
        """Count the user's request while the context is open. Raises RestError if too many requests are open."""
        result, tenant = self._quota.take(user.limited_as), user.limited_as
        if result is QuotaResult.tenant_limit:
            count = self._quota.uses_of(tenant)
            detail = f"User {tenant} has reached the current limit on open log requests, {count}. Close one of them."
            raise RestError(429, Reason.TOO_MANY_REQUESTS, detail)
        if result is QuotaResult.exhausted:
            detail = f"rlrun-server has {CONCURRENT} open log requests, which is the limit. Retry the request later."
            raise RestError(503, Reason.TOO_MANY_REQUESTS, detail)
        try:
            yield
        finally:
            self._quota.release(tenant)

    def _filter(self, query: LogQuery) -> LineFilter:
        errors = []
        since = None
        if query.since is not None:
            since = parse_since(query.since, self._now())
            if since is None:
                errors.append(FieldError(pointer="query/since", detail=f"{query.since} is not a valid time"))
        pattern = None
        if query.regex is not None:
            try:
                pattern = compile_pattern(query.regex)
            except ValueError as error:
                errors.append(FieldError(pointer="query/regex", detail=f"is not an RE2 pattern: {error}"))
        if errors:
            raise invalid("The query is not valid.", errors, 422)
        return LineFilter(since, query.level, None if query.search is None else query.search.lower(), pattern)

    async def _live(
        self,
        cluster: LogCluster,
        run: KnownRun,
        summary: RunSummary,
        wanted: PodSelection,
        lines: LineFilter,
        query: LogQuery,
    ) -> LogAnswer | None:
        """Return the lines of the pods, or None if the copies in S3 must be read instead."""
        pods = await list_pods(cluster, run.namespace, summary.name, run.uid, wanted)
        if not pods:
            if summary.driver is Driver.client:
                detail = "The run has no pods and no logs, because a client's program trains it (driver: Client)."
                raise RestError(404, Reason.LOGS_NOT_AVAILABLE, detail)
            if query.attempt is None and summary.phase not in FINISHED and not summary.restarts:
                raise _not_available(summary, f"it has no {_names(wanted)} pod")
            return None
        count = max(query.tail, SEARCHED_LINES // len(pods)) if lines.selects else query.tail
        logs = await read_pods(cluster, run.namespace, pods, previous=query.previous, lines=count, since=lines.since)
        if all(log.data is None and log.problem is None for log in logs):
            if query.previous or query.attempt is not None or summary.phase in FINISHED:
                return None
            raise _not_available(summary, f"the container of {logs[0].origin.pod} has not started")
        return await self._parsing.run(run.namespace, _answer, run, LogSource.live, logs, lines, query.tail)

    async def _read_stored(self, run: KnownRun, wanted: PodSelection, lines: LineFilter, query: LogQuery) -> LogAnswer:
        name = None if run.summary is None else run.summary.name
        layout = self._files.layout(run.namespace, run.uid)
        store = self._files.store
        what = f"logs of {run.namespace}/{run.uid}"
        logs = await self._files.run(
            run.namespace, what, read_copies, store, layout, name, wanted, previous=query.previous
        )
        if not logs:
            which = "" if query.attempt is None else f" in attempt {query.attempt}"
            before = " from before a container restart" if query.previous else ""
            detail = (
                f"This run has no {_names(wanted)} log{which}{before}, neither in existing pods nor in S3, where logs "
                "are stored when containers terminate. Select a different role or attempt."
            )
            raise RestError(404, Reason.LOGS_NOT_AVAILABLE, detail)
        return await self._parsing.run(run.namespace, _answer, run, LogSource.kept, logs, lines, query.tail)


def _answer(run: KnownRun, source: LogSource, logs: Sequence[ContainerLog], wanted: LineFilter, tail: int) -> LogAnswer:
    """Return the newest lines that match the filter. Runs in a thread, because it takes up to a second."""
    chosen, is_cut = [], False
    for log in logs:
        data = log.data or b""
        parsed = parse_lines(data, log.origin, wanted, timestamps=source is LogSource.live, max_lines=SEARCHED_LINES)
        lines, has_more = newest(parsed, tail)
        chosen.append(lines)
        is_cut = is_cut or has_more or log.is_cut or data.count(b"\n") > SEARCHED_LINES
    merged_lines, was_cut = merge_lines(chosen, tail)
    return LogAnswer(
        namespace=run.namespace,
        uid=run.uid,
        source=source,
        lines=merged_lines,
        is_complete=not (is_cut or was_cut),
        problems=[LogProblem(pod=log.origin.pod, detail=log.problem) for log in logs if log.problem is not None],
    )


def _names(wanted: PodSelection) -> str:
    return " or ".join(role.value for role in wanted.roles)


def _not_available(run: RunSummary, why: str) -> RestError:
    state = f"{run.phase} ({run.reason})" if run.reason else run.phase
    detail = (
        f"Logs are not available yet: run {run.namespace}/{run.name} is {state}, and {why}. Retry the request later. "
        f"The run's status shows what it is waiting for."
    )
    return RestError(404, Reason.LOGS_NOT_AVAILABLE, detail)
