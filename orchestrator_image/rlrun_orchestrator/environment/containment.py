"""Keeping what the code of one rollout does inside that rollout.

verifiers handles only its own exceptions: a KeyError in an environment's `env_response` would take the whole group down
and leave its other rollouts running unobserved, and a SystemExit the whole process. Here every rollout runs behind a
wall: what it raises, and that it takes too long, is noted on its own state, and the rest of the group is scored
without it.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.schema.wire import GroupRequest, Problem

from rlrun_orchestrator.environment.bounds import words
from rlrun_orchestrator.environment.tracebacks import user_line

log = logging.getLogger(__name__)

COLUMN = "rlrun_problem"
"""State field (and so column of verifiers' output) that holds a rollout's first problem as a plain dict."""
ROLLOUT_SHARE = 0.9
"""Of a group's deadline: what is left is for scoring those rollouts that made it."""


@dataclass(frozen=True)
class Terms:
    """What holds for one group, for code that only sees a rollout of it."""

    score: bool
    seconds: float
    ends: float
    """`time.monotonic()` at which its rollouts end."""

    @classmethod
    def of(cls, request: GroupRequest) -> "Terms":
        """From now on."""
        seconds = request.deadline_seconds * ROLLOUT_SHARE
        return cls(request.score, seconds, time.monotonic() + seconds)


TERMS: contextvars.ContextVar[Terms] = contextvars.ContextVar("terms")
"""Set by whoever runs a group; the tasks that verifiers makes for its rollouts inherit it."""


class Failed(Exception):
    """A piece of users' code came to no result."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


async def walled(work: Awaitable[Any], terms: Terms, folder: Path) -> Any:
    """The result of one rollout's code. Raises Failed when it raises anything or goes on for too long.

    Only a cancellation that comes from outside passes.
    """
    try:
        async with asyncio.timeout(terms.ends - time.monotonic()) as limit:
            return await work
    except GeneratorExit:
        raise
    except BaseException as error:
        if limit.expired() and isinstance(error, TimeoutError):
            message = f"the rollout did not end within {terms.seconds:g} s, nine tenths of its group's deadline"
            raise Failed(Problem(reason="EnvironmentTimeout", message=message)) from None
        if cancelled_from_outside(error):
            raise
        log.exception("a rollout failed")
        raise Failed(raised("RolloutFailed", "", error, folder)) from error


def cancelled_from_outside(error: BaseException) -> bool:
    """False for a CancelledError that users' code raised itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def raised(reason: str, what: str, error: BaseException, folder: Path) -> Problem:
    """The problem that users' code raised `error`; `what` says where, ending in a space."""
    where = user_line(error, folder)
    text = f"{what}{words(error)}"
    return Problem(reason=reason, message=f"{text} (at {where})" if where else text)


def note(state: Any, problem: Problem) -> None:
    """Remember the first problem of a rollout."""
    if state.get(COLUMN) is None:
        state[COLUMN] = problem.to_json_dict()


def environments_of(environment: Any) -> Iterator[Any]:
    """The environment and, for an `EnvGroup`, all environments in it."""
    yield environment
    inner = getattr(environment, "env_map", None)
    if isinstance(inner, Mapping):
        for member in inner.values():
            yield from environments_of(member)


def contain(environment: Any, folder: Path) -> None:
    """Put every rollout of a `verifiers.Environment` behind its wall, and score only those that came through."""
    for each in environments_of(environment):
        harness = getattr(each, "harness", None)
        if harness is not None and hasattr(each, "taskset"):
            _contain_harness(harness, folder)
        else:
            _contain_rollouts(each, folder)
        each.rubric.score_group = _scoring(each.rubric.score_group, each.rubric.dummy_score_group)


def _contain_rollouts(environment: Any, folder: Path) -> None:
    original: Callable[..., Awaitable[Any]] = environment.rollout

    async def rollout(input: Any, client: Any, model: str, sampling_args: Any = None) -> Any:
        try:
            return await walled(original(input, client, model, sampling_args), TERMS.get(), folder)
        except Failed as failed:
            state = await environment.init_state(input, client, model, sampling_args)
            state["completion"], state["is_completed"] = [], True
            note(state, failed.problem)
            return state

    environment.rollout = rollout


def _contain_harness(harness: Any, folder: Path) -> None:
    # An environment made of a taskset and a harness scores each rollout within its run.
    original: Callable[..., Awaitable[Any]] = harness.run
    score_group: Callable[..., Awaitable[Any]] = harness.score_group

    async def run(task: Any, state: Any = None) -> Any:
        terms = TERMS.get()
        if state is None:  # A harness that another one calls: it is part of that one's rollout.
            return await original(task, state)
        state.runtime_state()["score_rollout"] = terms.score
        try:
            return await walled(original(task, state), terms, folder)
        except Failed as failed:
            state._set_completed()
            note(state, failed.problem)
            return state

    async def score(tasks: list[Any], states: list[Any]) -> Any:
        sound = [(task, state) for task, state in zip(tasks, states, strict=True) if not _failed(state)]
        if TERMS.get().score and sound:
            await score_group([task for task, _ in sound], [state for _, state in sound])
        return states

    harness.run, harness.score_group = run, score


def _scoring(score: Callable[..., Awaitable[Any]], skip: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def score_group(states: list[Any]) -> None:
        sound = [state for state in states if not _failed(state)] if TERMS.get().score else []
        await skip([state for state in states if not any(state is one for one in sound)])
        if sound:
            await score(sound)

    return score_group


def _failed(state: Any) -> bool:
    return bool(state.get(COLUMN) or state.get("error"))
