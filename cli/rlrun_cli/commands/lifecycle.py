"""Commands `stop`, `suspend`, `resume`, `restart` and `delete`."""

from collections.abc import Callable
from typing import Annotated

import typer
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import Obj

from rlrun_cli.commands.runs import Name
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import cli_context, with_cluster
from rlrun_cli.remote.run_data.run_summary import RunState, summarize
from rlrun_cli.remote.waiting import DEFAULT_SECONDS, Timeout, Wait, wait_for
from rlrun_cli.terminal import output
from rlrun_cli.terminal.confirmation import Yes, confirm
from rlrun_cli.terminal.errors import CliError, NotFoundError

STOP_RUN_EPILOG = """Examples:

  rlrun stop reverse-text-x7k2p
  rlrun stop reverse-text-x7k2p --wait --timeout 600

A stopped run cannot be resumed. To pause a run: rlrun suspend."""
SUSPEND_RUN_EPILOG = """Examples:

  rlrun suspend reverse-text-x7k2p
  rlrun suspend reverse-text-x7k2p --wait

The trainer saves a checkpoint, then the pods are deleted. Suspended time does not count toward the run's deadlines."""
RESUME_RUN_EPILOG = """Examples:

  rlrun resume reverse-text-x7k2p
  rlrun resume reverse-text-x7k2p --wait

The run continues from its newest checkpoint, in a new attempt."""
RESTART_RUN_EPILOG = """Examples:

  rlrun restart reverse-text-x7k2p

Suspends the run and resumes it when its pods have terminated: a new attempt continues from the newest checkpoint. \
After Ctrl-C or the --timeout, the run stays suspended; continue it with rlrun resume."""
DELETE_RUN_EPILOG = """Examples:

  rlrun delete reverse-text-x7k2p
  rlrun delete reverse-text-x7k2p --yes"""
SUSPENDED = "Suspended"
RESUME = {"spec": {"suspend": False}}


class RunEndedError(CliError):
    """Error for a run that has ended or is being stopped."""


@with_cluster
def stop_run(
    ctx: typer.Context,
    api: RemoteCluster,
    name: Name,
    wait: Wait = False,
    timeout: Timeout = DEFAULT_SECONDS,
) -> None:
    """Stop a run permanently and keep its checkpoints and adapters."""
    summary = summarize(api.get(RLRUN, name))
    if summary.finished:
        output.notice(f"{name} is already {summary.phase}; nothing changed.")
        return
    api.patch(RLRUN, name, {"spec": {"stop": True}})
    typer.echo(f"rlruns.rlrun.dev/{name} stopping")
    if wait:
        _wait(ctx, api, name, lambda item: summarize(item).finished, timeout, goal="stopped")
        typer.echo(f"rlruns.rlrun.dev/{name} stopped")
    output.notice(f"Its checkpoints and adapters are kept. List them: rlrun checkpoints {name} -n {api.namespace}")


@with_cluster
def suspend_run(
    ctx: typer.Context,
    api: RemoteCluster,
    name: Name,
    wait: Wait = False,
    timeout: Timeout = DEFAULT_SECONDS,
) -> None:
    """Pause a run: save a checkpoint and delete its pods until it is resumed."""
    item = api.get(RLRUN, name)
    refuse_finished(item, "suspended", api.namespace)
    if item["spec"].get("suspend"):
        output.notice(f"{name} is already suspended; nothing changed.")
    else:
        api.patch(RLRUN, name, {"spec": {"suspend": True}})
        typer.echo(f"rlruns.rlrun.dev/{name} suspending")
    if wait:
        _wait(ctx, api, name, _is_suspended(api.namespace), timeout, goal="suspended")
        typer.echo(f"rlruns.rlrun.dev/{name} suspended")
    output.notice(f"Continue it: rlrun resume {name} -n {api.namespace}")


@with_cluster
def resume_run(
    ctx: typer.Context,
    api: RemoteCluster,
    name: Name,
    wait: Wait = False,
    timeout: Timeout = DEFAULT_SECONDS,
) -> None:
    """Continue a suspended run from its newest checkpoint."""
    item = api.get(RLRUN, name)
    refuse_finished(item, "resumed", api.namespace)
    if not item["spec"].get("suspend"):
        phase = summarize(item).phase
        raise CliError(
            f"{name} is {phase}, not suspended",
            f"start a new attempt: rlrun restart {name} -n {api.namespace}",
        )
    api.patch(RLRUN, name, RESUME)
    _after_resume(ctx, api, name, wait=wait, timeout=timeout)


@with_cluster
def restart_run(
    ctx: typer.Context,
    api: RemoteCluster,
    name: Name,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the new attempt is running.")] = False,
    timeout: Timeout = DEFAULT_SECONDS,
) -> None:
    """Restart an unfinished run from its newest checkpoint."""
    item = api.get(RLRUN, name)
    refuse_finished(item, "restarted", api.namespace)
    if not item["spec"].get("suspend"):
        api.patch(RLRUN, name, {"spec": {"suspend": True}})
    typer.echo(f"rlruns.rlrun.dev/{name} suspending")
    hint = f"the run stays suspended; continue it: rlrun resume {name} -n {api.namespace}"
    try:
        _wait(ctx, api, name, _is_suspended(api.namespace), timeout, goal="suspended", hint=hint)
        api.patch(RLRUN, name, RESUME)
    except KeyboardInterrupt:
        output.notice(f"\nInterrupted: {hint}")
        raise typer.Exit(130) from None
    except (NotFoundError, RunEndedError):
        raise  # nothing to resume
    except CliError as problem:
        raise _left_suspended(problem, hint) from problem
    _after_resume(ctx, api, name, wait=wait, timeout=timeout)


def _left_suspended(problem: CliError, hint: str) -> CliError:
    """Return the error with `hint`, which says how to resume the suspended run, added to its own hint."""
    if problem.hint == hint:
        return problem
    steps = f"{problem.hint}; {hint}" if problem.hint else hint
    return CliError(problem.message, steps, code=problem.code, details=problem.details)


def _after_resume(ctx: typer.Context, api: RemoteCluster, name: str, *, wait: bool, timeout: int) -> None:
    typer.echo(f"rlruns.rlrun.dev/{name} resuming")
    if wait:

        def is_running(item: Obj) -> bool:
            refuse_finished(item, "resumed", api.namespace)
            return summarize(item).phase == "Running"

        _wait(ctx, api, name, is_running, timeout, goal="running")
        typer.echo(f"rlruns.rlrun.dev/{name} running")
    output.notice(f"Watch it: rlrun follow {name} -n {api.namespace}")


def refuse_finished(item: Obj, what: str, namespace: str) -> None:
    """Raise RunEndedError if the run has ended or is being stopped. `what` completes "cannot be" in the message."""
    name, summary = item["metadata"]["name"], summarize(item)
    if summary.finished or item["spec"].get("stop"):
        state = summary.phase if summary.finished else "being stopped"
        raise RunEndedError(
            f"{name} is {state} and cannot be {what}",
            "start a new run from a checkpoint: set checkpoint_id (checkpointId in YAML) to one that is listed by "
            f"rlrun checkpoints {name} -n {namespace}",
        )


def _is_suspended(namespace: str) -> Callable[[Obj], bool]:
    def check(item: Obj) -> bool:
        refuse_finished(item, "suspended", namespace)
        return summarize(item).phase == SUSPENDED

    return check


def _wait(
    ctx: typer.Context,
    api: RemoteCluster,
    name: str,
    is_done: Callable[[Obj], bool],
    seconds: int,
    *,
    goal: str,
    hint: str = "",
) -> None:
    hint = hint or f"see what the run waits for: rlrun get {name} -n {api.namespace}"
    wait_for(api, RLRUN, name, is_done, seconds, cli_context(ctx).sleep, cli_context(ctx).clock, goal=goal, hint=hint)


@with_cluster
def delete_run(
    api: RemoteCluster,
    name: Name,
    yes: Yes = False,
) -> None:
    """Delete a run and its pods. If its artifactPolicy is Delete, also deletes its files in S3."""
    item = api.get(RLRUN, name)
    confirm(_delete_question(item, summarize(item), api.namespace), f"{name} was not deleted", yes=yes)
    api.delete(RLRUN, name, item["metadata"]["uid"])
    typer.echo(f"rlruns.rlrun.dev/{name} deleted")


def _delete_question(item: Obj, summary: RunState, namespace: str) -> str:
    run = f"{namespace}/{item['metadata']['name']} ({summary.phase}, step {summary.steps})"
    if item["spec"].get("artifactPolicy") == "Delete":
        return f"Delete {run} and all of its files in S3?"
    return f"Delete {run}? Its files in S3 are kept."
