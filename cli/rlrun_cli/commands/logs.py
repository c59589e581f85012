"""Command `logs`: print the logs of a run's processes.

Lines are prefixed with the name of the pod if there are several. With -f the command waits for pods that do not exist
yet and reads their replacements after a restart, until the run is finished. When the pods no longer exist, the copies
in S3 are read, also for a deleted run.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer
from rlrun.constants import ROLE_LABEL, RUN_LABEL, Role
from rlrun.kube.kinds import POD, RLRUN
from rlrun.kube.objects import Obj

from rlrun_cli.commands.runs import Name
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cli_context, cluster
from rlrun_cli.remote.run_storage import find_run_uid, open_user_storage, run_layout, s3_operation
from rlrun_cli.remote.run_summary import summarize
from rlrun_cli.remote.server import Server
from rlrun_cli.remote.stored_logs import read_stored_logs
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CliError, NotFoundError, NotReadyError, UnreachableError

EPILOG = """Examples:

  rlrun logs reverse-text-x7k2p -f
  rlrun logs reverse-text-x7k2p --role environment --tail 50
  rlrun logs reverse-text-x7k2p --role trainer --previous
  rlrun logs reverse-text-x7k2p --attempt 1

When the run has no pods (it has ended, or is deleted), the copies in S3 are printed. --attempt prints the copies of \
an earlier attempt of an active run. Copies need `get rlruns/log` in the namespace."""
START_SECONDS = 600
"""Time that -f waits for the first pod of an unfinished run."""
POLL_SECONDS = 2.0
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


@dataclass(frozen=True)
class LogSource:
    """One start of one container."""

    pod: str
    container: str
    restarts: int


def main_container(pod: Obj) -> str:
    """Return the default container of a pod."""
    chosen = (pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER)
    containers = [c["name"] for c in pod["spec"]["containers"]]
    return str(chosen if chosen in containers else containers[0])


def source(pod: Obj) -> LogSource:
    """Return the newest start of the pod's main container."""
    name = main_container(pod)
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    restarts = next((int(s.get("restartCount") or 0) for s in statuses if s["name"] == name), 0)
    return LogSource(pod["metadata"]["name"], name, restarts)


def sources(pods: list[Obj]) -> list[LogSource]:
    """Return one source per pod, oldest pod first."""
    ordered = sorted(pods, key=lambda p: (str(p["metadata"].get("creationTimestamp") or ""), p["metadata"]["name"]))
    return [source(p) for p in ordered]


def pods_of(api: RemoteCluster, run: str, role: Role) -> list[Obj]:
    """Return the pods of a role."""
    return api.list(POD, {RUN_LABEL: run, ROLE_LABEL: role.value})


def read(api: RemoteCluster, run: str, role: Role, tail: int | None, previous: bool) -> Iterator[str] | None:
    """Return the current lines, or None if the run will have no more pods. Raises CliError if it has none yet."""
    found = sources(pods_of(api, run, role))
    if found:
        return _read_pods(api, found, tail, previous)
    try:
        state = summarize(api.get(RLRUN, run))
    except NotFoundError:
        return None
    if state.finished or state.phase == "Suspended":
        return None
    hint = f"see what it waits for: rlrun get {run}; or add -f to wait for the pod"
    raise CliError(f"{run} is {state.phase} and has no {role.value} pod", hint)


def _read_pods(api: RemoteCluster, found: list[LogSource], tail: int | None, previous: bool) -> Iterator[str]:
    for each in found:
        prefix = f"[{each.pod}] " if len(found) > 1 else ""
        try:
            for line in api.log(each.pod, each.container, follow=False, tail=tail, previous=previous):
                yield prefix + line
        except (NotReadyError, NotFoundError) as problem:
            if len(found) == 1:
                raise
            output.notice(prefix + problem.message)


class LogFollower:
    """Merges the logs of all containers of a role, including restarts, into one stream. One thread per container."""

    def __init__(self, api: RemoteCluster, run: str, role: Role, tail: int | None, sleep: Callable[[float], None]):
        self._api, self._run, self._role, self._tail, self._sleep = api, run, role, tail, sleep
        self._lines: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._threads: dict[LogSource, threading.Thread] = {}
        self._done: set[LogSource] = set()
        self._lines_read: dict[LogSource, int] = {}
        self._pods: set[str] = set()

    def _read_log(self, each: LogSource) -> None:
        # After an interruption the log is read from its beginning again, so lines already shown are skipped.
        known = self._lines_read.get(each, 0)
        tail = self._tail if not known or self._tail is None else 0
        skip = known if tail is None else 0
        try:
            for number, line in enumerate(
                self._api.log(each.pod, each.container, follow=True, tail=tail, previous=False)
            ):
                if number >= skip:
                    self._lines.put((each.pod, line))
                    self._lines_read[each] = self._lines_read.get(each, 0) + 1
            self._done.add(each)
        except (NotReadyError, NotFoundError, UnreachableError):
            pass  # not started, deleted or interrupted: the next list of pods decides
        except CliError as problem:
            self._lines.put((each.pod, f"({problem.message})"))
            self._done.add(each)

    def _start_new(self) -> None:
        for each in sources(pods_of(self._api, self._run, self._role)):
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
        """Yield lines until the run is finished and all logs are read.

        Raises CliError if the role has no pod after START_SECONDS.
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
                        f"Waiting for a {self._role.value} pod; the run is {state.phase} {state.reason}".rstrip()
                    )
                    announced = True
                if clock() - started > START_SECONDS:
                    raise CliError(
                        f"{self._run} has no {self._role.value} pod after {START_SECONDS} s",
                        f"see what it waits for: rlrun get {self._run}",
                    )


def logs(
    ctx: typer.Context,
    name: Name,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new lines until the run is finished.")] = False,
    role: Annotated[Role, typer.Option(help="Process whose log is printed.")] = Role.orchestrator,
    tail: Annotated[int | None, typer.Option(min=0, help="Number of last lines per pod. Default: all.")] = None,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Print the log of the previous container instance.")
    ] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Print the log of this attempt from S3.")] = None,
    server: Server = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Print the logs of a run's orchestrator, trainer, inference engines or environments, also after its end."""
    api = cluster(ctx, kubeconfig, context, namespace)
    lines: Iterator[str] | None = None
    if follow and not previous and attempt is None and (pods_of(api, name, role) or _may_get_pods(api, name)):
        lines = LogFollower(api, name, role, tail, cli_context(ctx).sleep).lines()
    elif attempt is None:
        lines = read(api, name, role, tail, previous)
    try:
        with s3_operation("read the stored logs"):
            if lines is None:
                uid = find_run_uid(api, name)
                storage = open_user_storage(ctx, api, server)
                store, layout = storage.store, run_layout(api, storage, uid)
                lines = read_stored_logs(store, layout, name, role.value, attempt=attempt, tail=tail, previous=previous)
            for line in lines:
                typer.echo(line)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _may_get_pods(api: RemoteCluster, run: str) -> bool:
    """Return True if the run exists and may start pods."""
    try:
        return not summarize(api.get(RLRUN, run)).finished
    except NotFoundError:
        return False
