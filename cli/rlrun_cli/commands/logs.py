"""`rlrun logs`: what the processes of a run say, also while they start, restart or come in several.

With one pod its lines come as they are; with several each line says whose it is. Following waits for pods that are not
there yet and picks up their successors after a restart, until the run is finished. Where the pods are gone for good the
copies in S3 are read, also of a run that is deleted.
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
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cluster, session
from rlrun_cli.remote.run_storage import Bucket, Endpoint, Prefix, layout_of, open_store, s3_asked
from rlrun_cli.remote.run_summary import summarize
from rlrun_cli.remote.stored_logs import read_kept
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CliError, NotFoundError, NotReadyError, UnreachableError

EPILOG = """Examples:

  rlrun logs reverse-text-x7k2p -f

  rlrun logs reverse-text-x7k2p --role environment --tail 50

  rlrun logs reverse-text-x7k2p --role trainer --previous

  rlrun logs reverse-text-x7k2p --attempt 1

Without pods (the run has ended, or is deleted) the copies in S3 are printed; S3 credentials come from the usual AWS_*
variables. --attempt reads the copies of an earlier attempt of a run that lives."""
START_SECONDS = 600
"""How long -f waits for a pod that does not come while the run is unfinished."""
PERIOD = 2.0
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


@dataclass(frozen=True)
class LogSource:
    """One start of one container."""

    pod: str
    container: str
    restarts: int


def main_container(pod: Obj) -> str:
    """The container a person means when they name only the pod."""
    chosen = (pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER)
    containers = [c["name"] for c in pod["spec"]["containers"]]
    return str(chosen if chosen in containers else containers[0])


def source(pod: Obj) -> LogSource:
    """The newest start of the pod's main container."""
    name = main_container(pod)
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    restarts = next((int(s.get("restartCount") or 0) for s in statuses if s["name"] == name), 0)
    return LogSource(pod["metadata"]["name"], name, restarts)


def sources(pods: list[Obj]) -> list[LogSource]:
    """One source per pod, oldest pod first."""
    ordered = sorted(pods, key=lambda p: (str(p["metadata"].get("creationTimestamp") or ""), p["metadata"]["name"]))
    return [source(p) for p in ordered]


def pods_of(api: RemoteCluster, run: str, role: Role) -> list[Obj]:
    """Return the pods of a role."""
    return api.list(POD, {RUN_LABEL: run, ROLE_LABEL: role.value})


def read(api: RemoteCluster, run: str, role: Role, tail: int | None, previous: bool) -> Iterator[str] | None:
    """The lines there are now, None when the pods are gone for good. Raises CliError when they are still to come."""
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
            output.say(prefix + problem.message)


class LogFollower:
    """Reads every start of every pod of a role, each in a thread of its own, into one stream of lines."""

    def __init__(self, api: RemoteCluster, run: str, role: Role, tail: int | None, sleep: Callable[[float], None]):
        self._api, self._run, self._role, self._tail, self._sleep = api, run, role, tail, sleep
        self._lines: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._threads: dict[LogSource, threading.Thread] = {}
        self._done: set[LogSource] = set()
        self._read: dict[LogSource, int] = {}
        self._pods: set[str] = set()

    def _pump(self, each: LogSource) -> None:
        # After a cut the log is read again from its beginning, so what was shown already is passed over.
        known = self._read.get(each, 0)
        tail = self._tail if not known or self._tail is None else 0
        skip = known if tail is None else 0
        try:
            for number, line in enumerate(
                self._api.log(each.pod, each.container, follow=True, tail=tail, previous=False)
            ):
                if number >= skip:
                    self._lines.put((each.pod, line))
                    self._read[each] = self._read.get(each, 0) + 1
            self._done.add(each)
        except (NotReadyError, NotFoundError, UnreachableError):
            pass  # not started, gone, or cut off: the next look at the pods decides
        except CliError as problem:
            self._lines.put((each.pod, f"({problem.message})"))
            self._done.add(each)

    def _start_new(self) -> None:
        for each in sources(pods_of(self._api, self._run, self._role)):
            self._pods.add(each.pod)
            thread = self._threads.get(each)
            if each not in self._done and (thread is None or not thread.is_alive()):
                self._threads[each] = threading.Thread(target=self._pump, args=(each,), daemon=True)
                self._threads[each].start()

    def _drain(self) -> Iterator[str]:
        while not self._lines.empty():
            pod, line = self._lines.get()
            yield f"[{pod}] {line}" if len(self._pods) > 1 else line

    def lines(self, clock: Callable[[], float] = time.monotonic) -> Iterator[str]:
        """Lines as they come, until the run is finished and all is read.

        Raises CliError when no pod of the role has come after START_SECONDS.
        """
        begun, announced = clock(), False
        while True:
            state = summarize(self._api.get(RLRUN, self._run))
            self._start_new()
            until = clock() + PERIOD
            while clock() < until:
                yield from self._drain()
                if state.finished and not any(t.is_alive() for t in self._threads.values()):
                    yield from self._drain()
                    return
                self._sleep(0.1)
            if not self._pods:
                if not announced:
                    output.say(f"waiting for a {self._role.value} pod; {state.phase} {state.reason}".rstrip())
                    announced = True
                if clock() - begun > START_SECONDS:
                    raise CliError(
                        f"no {self._role.value} pod of {self._run} after {START_SECONDS} s",
                        f"see what it waits for: rlrun get {self._run}",
                    )


def logs(
    ctx: typer.Context,
    name: Name,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Stay, and print lines as they come.")] = False,
    role: Annotated[Role, typer.Option(help="Whose log.")] = Role.orchestrator,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last lines, per pod.")] = None,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Of the container before its restart.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Of this attempt, from the copies in S3.")] = None,
    bucket: Bucket = "",
    prefix: Prefix = "",
    endpoint: Endpoint = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Print the log of a run's orchestrator, trainer, inference engines or environments, also after its end."""
    api = cluster(ctx, kubeconfig, context, namespace)
    lines: Iterator[str] | None = None
    if follow and not previous and attempt is None and (pods_of(api, name, role) or _goes_on(api, name)):
        lines = LogFollower(api, name, role, tail, session(ctx).sleep).lines()
    elif attempt is None:
        lines = read(api, name, role, tail, previous)
    try:
        with s3_asked("read the copies of the logs"):
            if lines is None:
                store, layout = open_store(ctx, endpoint), layout_of(api, name, bucket, prefix)
                lines = read_kept(store, layout, name, role.value, attempt=attempt, tail=tail, previous=previous)
            for line in lines:
                typer.echo(line)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _goes_on(api: RemoteCluster, run: str) -> bool:
    """Whether pods may still come. Raises NotFoundError only when nothing of the run is left either."""
    try:
        return not summarize(api.get(RLRUN, run)).finished
    except NotFoundError:
        return False
