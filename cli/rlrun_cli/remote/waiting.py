"""Polls an object until it reaches a state, with a deadline."""

from collections.abc import Callable
from typing import Annotated

import typer
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Obj

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.terminal.errors import CliError, UnreachableError

INTERVAL = 1.0
DEFAULT_SECONDS = 300

Wait = Annotated[bool, typer.Option("--wait", help="Wait until the change has taken effect.")]
Timeout = Annotated[
    int, typer.Option("--timeout", metavar="SECONDS", min=1, max=86_400, help="Deadline of the wait, in seconds.")
]


def wait_for(
    api: RemoteCluster,
    kind: ResourceKind,
    name: str,
    is_done: Callable[[Obj], bool],
    seconds: float,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    *,
    goal: str,
    hint: str,
) -> Obj:
    """Poll the object until `is_done` returns True, and return it. `goal` completes "is not" in the error message.

    If the API server does not respond, it is asked again until the deadline. Raises CliError after the deadline, or if
    a request is rejected or the object does not exist. Propagates exceptions from `is_done`.
    """
    deadline = clock() + seconds
    while True:
        last_problem = ""
        try:
            item = api.get(kind, name)
            if is_done(item):
                return item
        except UnreachableError as problem:
            last_problem = f": {problem.message}"
        if clock() >= deadline:
            raise CliError(f"{name} is not {goal} after {seconds:.0f} s{last_problem}", hint)
        sleep(INTERVAL)
