"""Command `logs`: prints the logs of a run's processes.

Lines are prefixed with the pod's name if there are several pods. With -f, the command waits for pods that do not exist
yet and follows their replacements after a restart, until the run finishes. When the pods no longer exist, the command
reads the copies in S3, even if the run was deleted.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from rlrun.constants import Role
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import is_client_run
from rlrun.kube.pod_logs import ContainerStart

from rlrun_cli.commands.runs import Name
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import cli_context, with_cluster
from rlrun_cli.remote.logs import LogSelection, components_of, parse_seconds, read_copies, starts_of
from rlrun_cli.remote.run_data.run_summary import summarize
from rlrun_cli.remote.run_storage import find_run_uid, open_user_storage, run_layout, s3_operation
from rlrun_cli.remote.server import Server
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import (
    INVALID,
    CliError,
    NotFoundError,
    NotReadyError,
    UnreachableError,
    without_controls,
)

LOGS_EPILOG = """Examples:

  rlrun logs reverse-text-x7k2p -f
  rlrun logs reverse-text-x7k2p --role environment --tail 50
  rlrun logs reverse-text-x7k2p --env math --since 10m
  rlrun logs reverse-text-x7k2p --role trainer --previous
  rlrun logs reverse-text-x7k2p --search warning
  rlrun logs reverse-text-x7k2p --attempt 1

--env selects an environment by its name, its id or the last part of its id. NAME/1 selects the second environment \
with this name, counting [[env]] first and then [[eval.env]].

If the run has no pods because it has ended or was deleted, the copies in S3 are printed. --attempt prints the copies \
of an earlier attempt of an active run. Reading copies requires `get rlruns/log` in the namespace."""
START_SECONDS = 600
"""Time in seconds that -f waits for an unfinished run's first pod."""
POLL_SECONDS = 2.0


def read(api: RemoteCluster, run: str, chosen: LogSelection) -> Iterator[str] | None:
    """Return the log lines written so far, or None if there are no pods because the run has ended, is suspended or does
    not exist.

    Raises CliError if the run has no pods yet, or never has pods because a client's program trains it.
    """
    starts = starts_of(api, run, chosen)
    if starts:
        return _read_pods(api, starts, chosen)
    try:
        item = api.get(RLRUN, run)
    except NotFoundError:
        return None
    if is_client_run(item):
        problem = f"{run} has no pods and no logs, because a client's program trains it (driver: Client)"
        raise CliError(problem, f"see its state: rlrun get {run}")
    state = summarize(item)
    if state.finished or state.phase == "Suspended":
        return None
    hint = f"see what the run waits for: rlrun get {run}; or add -f to wait for the pod"
    raise CliError(f"{run} is {state.phase} and has no {chosen.role.value} pod", hint)


def _read_pods(api: RemoteCluster, starts: list[ContainerStart], chosen: LogSelection) -> Iterator[str]:
    for each in starts:
        prefix = f"[{each.pod}] " if len(starts) > 1 else ""
        try:
            lines = api.log(
                each.pod,
                each.container,
                follow=False,
                tail=chosen.tail,
                previous=chosen.previous,
                since=chosen.since,
            )
            yield from (prefix + line for line in lines)
        except (NotReadyError, NotFoundError) as problem:
            if len(starts) == 1:
                raise
            output.notice(prefix + problem.message)


class LogFollower:
    """Merges the logs of all selected containers, across restarts. Uses one thread per container."""

    def __init__(self, api: RemoteCluster, run: str, chosen: LogSelection, sleep: Callable[[float], None]):
        self._api, self._run, self._chosen, self._sleep = api, run, chosen, sleep
        self._lines: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._threads: dict[ContainerStart, threading.Thread] = {}
        self._done: set[ContainerStart] = set()
        self._lines_read: dict[ContainerStart, int] = {}
        self._pods: set[str] = set()

    def _read_log(self, each: ContainerStart) -> None:
        # After an interruption the log is read from the beginning, so lines already printed are skipped.
        known = self._lines_read.get(each, 0)
        tail = self._chosen.tail if not known or self._chosen.tail is None else 0
        since = self._chosen.since
        # With --since the beginning moves, so only new lines are read after an interruption.
        tail = 0 if known and since is not None else tail
        skip = known if tail is None else 0
        try:
            for number, line in enumerate(
                self._api.log(each.pod, each.container, follow=True, tail=tail, previous=False, since=since)
            ):
                if number >= skip:
                    self._lines.put((each.pod, line))
                    self._lines_read[each] = self._lines_read.get(each, 0) + 1
            self._done.add(each)
        except (NotReadyError, NotFoundError, UnreachableError):
            pass  # Not started, deleted or interrupted; retried if the next list has the container.
        except CliError as problem:
            self._lines.put((each.pod, f"({problem.message})"))
            self._done.add(each)

    def _start_new(self) -> None:
        for each in starts_of(self._api, self._run, self._chosen):
            self._pods.add(each.pod)
            thread = self._threads.get(each)
            if each not in self._done and (thread is None or not thread.is_alive()):
                self._threads[each] = threading.Thread(target=self._read_log, args=(each,), daemon=True)
                self._threads[each].start()

    def _drain(self) -> Iterator[str]:
        while not self._lines.empty():
            pod, line = self._lines.get()
            yield f"[{pod}] {line}" if len(self._pods) > 1 else line

    def lines(self, clock: Callable[[], float] = time.monotonic) -> Iterator[str]:
        """Yield lines until the run is finished and all logs have been read.

        Raises CliError if the run does not exist, if the API server does not respond, or if the role has no pod after
        START_SECONDS.
        """
        started, announced = clock(), False
        while True:
            state = summarize(self._api.get(RLRUN, self._run))
            self._start_new()
            until = clock() + POLL_SECONDS
            while clock() < until:
                yield from self._drain()
                if state.finished and not any(t.is_alive() for t in self._threads.values()):
                    yield from self._drain()
                    return
                self._sleep(0.1)
            if not self._pods:
                if not announced:
                    output.notice(
                        f"Waiting for a {self._chosen.role.value} pod; the run is {state.phase} {state.reason}".rstrip()
                    )
                    announced = True
                if clock() - started > START_SECONDS:
                    raise CliError(
                        f"{self._run} has no {self._chosen.role.value} pod after {START_SECONDS} s",
                        f"see what the run waits for: rlrun get {self._run}",
                    )


@with_cluster
def logs(
    ctx: typer.Context,
    api: RemoteCluster,
    name: Name,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new lines until the run is finished.")] = False,
    role: Annotated[Role, typer.Option(help="Process whose log to print.")] = Role.orchestrator,
    env: Annotated[
        str | None, typer.Option("--env", metavar="NAME[/I]", help="Environment whose log to print.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only lines newer than a duration such as 30s, 10m or 2h."),
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Read only the last N lines of each pod; --search then filters these lines. Default: all lines.",
        ),
    ] = None,
    search: Annotated[
        str | None, typer.Option("--search", metavar="TEXT", help="Only lines that contain this text, ignoring case.")
    ] = None,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Print the log of the previous container instance.")
    ] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Print the log of this attempt from S3.")] = None,
    server: Server = None,
) -> None:
    """Print the logs of a run's orchestrator, trainer, inference engines or environments, even after it has ended."""
    if env is not None and role not in (Role.orchestrator, Role.environment):
        raise CliError("--env selects environments, so --role must be environment", "remove --role", code=INVALID)
    components = components_of(api.get(RLRUN, name), env) if env is not None else []
    role = Role.environment if env is not None else role
    chosen = LogSelection(role, components, tail, parse_seconds(since), previous, attempt)
    lines: Iterator[str] | None = None
    if follow and not previous and attempt is None and (starts_of(api, name, chosen) or _may_get_pods(api, name)):
        lines = LogFollower(api, name, chosen, cli_context(ctx).sleep).lines()
    elif attempt is None:
        lines = read(api, name, chosen)
    if lines is None and since is not None:
        raise CliError(
            f"--since: {name} has no pods, and stored logs have no timestamps",
            "remove --since, and limit the lines with --tail",
        )
    try:
        with s3_operation("read the stored logs"):
            if lines is None:
                uid = find_run_uid(api, name)
                storage = open_user_storage(ctx, api, server)
                lines = read_copies(storage.store, run_layout(api, storage, uid), name, chosen)
            wanted = (search or "").casefold()
            for line in lines:
                if wanted in (readable := without_controls(line)).casefold():
                    typer.echo(readable)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _may_get_pods(api: RemoteCluster, run: str) -> bool:
    """Return True if the run exists and may start pods."""
    try:
        item = api.get(RLRUN, run)
        return not (summarize(item).finished or is_client_run(item))
    except NotFoundError:
        return False
