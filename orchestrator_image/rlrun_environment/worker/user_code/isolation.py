"""Isolates rollouts: a failed rollout does not affect the other rollouts of its group.

verifiers handles only its own exceptions: a KeyError in an environment's `env_response` would fail the whole group and
leave its other rollouts running unobserved, and a SystemExit would end the process. Here an exception or a timeout of a
rollout is recorded in that rollout's state, and the rest of the group is scored without it. Failures in other code or
values of the environment (reading a row, converting a result) fail only the group, with the location in user code.
"""

import asyncio
import contextvars
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.environment import (
    ROLLOUT_SHARE,
    Demonstration,
    DemonstrationRequest,
    GroupRequest,
    GroupResult,
    failed_rollouts,
)
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError

from rlrun_environment.phases import WorkPhase
from rlrun_environment.worker.user_code.progress import PROGRESS, WorkProgress, in_phase
from rlrun_environment.worker.user_code.sanitize import describe_exception
from rlrun_environment.worker.user_code.tracebacks import user_line

log = logging.getLogger(__name__)

PROBLEM_KEY = "rlrun_problem"
"""Key in a rollout's state, and thus column in verifiers' output, for the rollout's first problem as a dict."""


@dataclass(frozen=True)
class GroupLimits:
    """Limits for the rollouts of a group that start at the same time."""

    score: bool
    seconds: float
    """Time limit of the rollouts."""
    ends: float
    """Value of `time.monotonic()` at the deadline."""

    @classmethod
    def of(cls, request: GroupRequest) -> "GroupLimits":
        """Return the limits for rollouts that start now."""
        seconds = request.rollout_seconds or request.deadline_seconds * ROLLOUT_SHARE
        return cls(request.score, seconds, time.monotonic() + seconds)


GROUP_LIMITS: contextvars.ContextVar[GroupLimits] = contextvars.ContextVar("group_limits")
"""Limits of the current group. A group's runner sets them, and the tasks that verifiers creates for rollouts inherit
them.
"""


class HasFolder(Protocol):
    """Part of a runner that error messages use."""

    folder: Path
    """Folder where the environment's package is installed."""


R = TypeVar("R", bound=HasFolder)


def isolated_group(
    run: Callable[[R, GroupRequest], Coroutine[Any, Any, GroupResult]],
) -> Callable[[R, GroupRequest], Coroutine[Any, Any, GroupResult]]:
    """Wrap a runner's method so that any exception but ProblemError and cancellation fails its group's rollouts."""

    @functools.wraps(run)
    async def call(runner: R, request: GroupRequest) -> GroupResult:
        started = time.monotonic()
        try:
            return await run(runner, request)
        except (ProblemError, GeneratorExit):
            raise
        except BaseException as error:
            problem = _example_problem(Reason.ROLLOUT_FAILED, request, error, runner.folder)
            rollouts = failed_rollouts(request, problem)
            return GroupResult(group_id=request.group_id, rollouts=rollouts, seconds=time.monotonic() - started)

    return call


def isolated_demonstration(
    demonstrate: Callable[[R, DemonstrationRequest], Coroutine[Any, Any, Demonstration]],
) -> Callable[[R, DemonstrationRequest], Coroutine[Any, Any, Demonstration]]:
    """Wrap a runner's method so that any exception but ProblemError and cancellation becomes ProblemError (422)."""

    @functools.wraps(demonstrate)
    async def call(runner: R, request: DemonstrationRequest) -> Demonstration:
        try:
            return await demonstrate(runner, request)
        except (ProblemError, GeneratorExit):
            raise
        except BaseException as error:
            problem = _example_problem(Reason.DEMONSTRATIONS_INVALID, request, error, runner.folder)
            raise ProblemError(UNPROCESSABLE, problem) from error

    return call


def _example_problem(
    reason: str, request: GroupRequest | DemonstrationRequest, error: BaseException, folder: Path
) -> Problem:
    """Return the problem for an example on which user code failed. Re-raises the error if it is a cancellation."""
    if cancelled_from_outside(error):
        raise error
    which = f"Example {request.example_index} of the {request.split} split"
    log.error("%s failed", which, exc_info=error)
    return user_code_problem(reason, f"{which} cannot be used: ", error, folder)


class RolloutFailedError(Exception):
    """Error for a rollout whose user code failed. `problem` describes the failure."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


async def run_isolated(work: Awaitable[Any], limits: GroupLimits, folder: Path) -> Any:
    """Run one rollout's code and return its result. Raises RolloutFailedError if the code raises or exceeds its time
    limit.

    A CancelledError propagates only if the current task was cancelled from outside.
    """
    try:
        async with asyncio.timeout(limits.ends - time.monotonic()) as limit:
            return await work
    except GeneratorExit:
        raise
    except BaseException as error:
        if limit.expired() and isinstance(error, TimeoutError):
            message = (
                f"The rollout did not end within {limits.seconds:g} s, the environment's rolloutTimeoutSeconds. "
                "Look for calls that hang, or increase this limit."
            )
            raise RolloutFailedError(Problem(reason=Reason.ENVIRONMENT_TIMEOUT, message=message)) from None
        if cancelled_from_outside(error):
            raise
        log.exception("A rollout failed")
        raise RolloutFailedError(user_code_problem(Reason.ROLLOUT_FAILED, "", error, folder)) from error


def cancelled_from_outside(error: BaseException) -> bool:
    """Return True if the current task was cancelled, and False for a CancelledError raised by user code itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def user_code_problem(reason: str, what: str, error: BaseException, folder: Path) -> Problem:
    """Return the problem for user code that raised `error`. `what` is the beginning of the problem's message, with a
    trailing space.
    """
    where = user_line(error, folder)
    text = f"{what}{describe_exception(error)}"
    return Problem(reason=reason, message=f"{text} (at {where})" if where else text)


def record_first_problem(state: Any, problem: Problem) -> None:
    """Record the problem in the rollout's state, unless the state already has one."""
    if state.get(PROBLEM_KEY) is None:
        state[PROBLEM_KEY] = problem.to_json_dict()


def environments_of(environment: Any) -> Iterator[Any]:
    """Yield the environment and, for an `EnvGroup`, all environments in it."""
    yield environment
    inner = getattr(environment, "env_map", None)
    if isinstance(inner, Mapping):
        for member in inner.values():
            yield from environments_of(member)


def isolate_rollouts(environment: Any, folder: Path) -> None:
    """Make an exception in a rollout of a `verifiers.Environment` fail only that rollout, and score only the rollouts
    that finished.
    """
    for each in environments_of(environment):
        _isolate_rollouts(each, folder)
        each.rubric.score_group = _scoring(each.rubric.score_group, each.rubric.dummy_score_group)


def _isolate_rollouts(environment: Any, folder: Path) -> None:
    original: Callable[..., Awaitable[Any]] = environment.rollout
    prepare: Callable[..., Awaitable[Any]] = environment.init_state

    async def init_state(*args: Any, **kwargs: Any) -> Any:
        # Outside of a group, an example is prepared for a check or a demonstration.
        progress = PROGRESS.get(WorkProgress())
        progress.phase = WorkPhase.prepare
        state = await prepare(*args, **kwargs)
        progress.phase = WorkPhase.rollout
        return state

    async def rollout(input: Any, client: Any, model: str, sampling_args: Any = None) -> Any:
        progress = WorkProgress()
        PROGRESS.set(progress)
        try:
            return await run_isolated(original(input, client, model, sampling_args), GROUP_LIMITS.get(), folder)
        except RolloutFailedError as failed:
            problem = in_phase(progress.phase, failed.problem)
            try:
                state = await environment.init_state(input, client, model, sampling_args)
            except Exception:
                # The example itself cannot be read, so pass only its number.
                bare = {"prompt": [], "example_id": input.get("example_id", 0)}
                try:
                    state = await environment.init_state(bare, client, model, sampling_args)
                except Exception:
                    # Without a state, verifiers cannot score the other rollouts of the group.
                    raise RolloutFailedError(problem) from failed
            state["completion"], state["is_completed"] = [], True
            record_first_problem(state, problem)
            return state

    environment.init_state = init_state
    environment.rollout = rollout


def _scoring(score: Callable[..., Awaitable[Any]], skip: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def score_group(states: list[Any]) -> None:
        sound = [state for state in states if not _failed(state)] if GROUP_LIMITS.get().score else []
        await skip([state for state in states if not any(state is one for one in sound)])
        if sound:
            progress = PROGRESS.get()
            before, progress.phase = progress.phase, WorkPhase.score
            await score(sound)
            progress.phase = before

    return score_group


def _failed(state: Any) -> bool:
    return bool(state.get(PROBLEM_KEY) or state.get("error"))
