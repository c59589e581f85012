"""Runner for environments written without verifiers (see `plain_contract`)."""

import asyncio
import inspect
import logging
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from rlrun.constants import Reason
from rlrun.protocol.environment import (
    Demonstration,
    DemonstrationRequest,
    GroupRequest,
    GroupResult,
    RolloutResult,
    Split,
    failed_rollouts,
    timed_out,
)
from rlrun.protocol.problem import Problem

from rlrun_environment.phases import WorkPhase
from rlrun_environment.worker.plain_contract import UncopyableRowError, copy_row
from rlrun_environment.worker.user_code import sanitize
from rlrun_environment.worker.user_code.demonstrations import demonstrate
from rlrun_environment.worker.user_code.isolation import (
    GroupLimits,
    RolloutFailedError,
    cancelled_from_outside,
    isolated_demonstration,
    isolated_group,
    run_isolated,
    user_code_problem,
)
from rlrun_environment.worker.user_code.load_error import LoadError
from rlrun_environment.worker.user_code.loaded import Loaded, row_of
from rlrun_environment.worker.user_code.progress import PROGRESS, WorkProgress, in_phase

log = logging.getLogger(__name__)

API_KEY = "none"
"""Placeholder, because the gateway needs no key but OpenAI clients do not start without one."""
Score = Callable[[dict[str, Any], list[dict[str, Any]]], Any]


class PlainRunner:
    """Runner for rollouts of one loaded plain environment."""

    rollouts_at_once: int | None = None

    def __init__(self, loaded: Loaded, folder: Path) -> None:
        self.loaded = loaded
        self.folder = folder
        self._score: Score | None = getattr(loaded.environment, "score_group", None)

    async def close(self) -> None:
        """Do nothing, because connections belong to the environment."""

    async def check_example(self) -> None:
        """Copy the first example as a rollout would. Raises LoadError if it cannot be copied."""
        split = Split.train if self.loaded.train_examples else Split.eval
        try:
            copy_row(row_of(self.loaded, split, 0))
        except UncopyableRowError as error:
            message = f"the environment loads, but example 0 of its {split} split fails: {error}"
            problem = in_phase(WorkPhase.prepare, Problem(reason=Reason.ENVIRONMENT_LOAD_FAILED, message=message))
            raise LoadError(problem.reason, problem.message) from error

    @isolated_group
    async def run(self, request: GroupRequest) -> GroupResult:
        """Run and score all rollouts of the group within `deadline_seconds`. Failures are returned as part of the
        rollouts.

        Raises ProblemError if the example does not exist.
        """
        row = row_of(self.loaded, request.split, request.example_index)
        started = time.monotonic()
        progress = WorkProgress()
        PROGRESS.set(progress)
        try:
            rollouts = await asyncio.wait_for(self._group(request, row), request.deadline_seconds)
        except TimeoutError:
            rollouts = failed_rollouts(request, in_phase(progress.phase, timed_out(request)))
        return GroupResult(
            group_id=request.group_id,
            rollouts=rollouts,
            seconds=time.monotonic() - started,
            example=sanitize.example(row.get("prompt"), row),
        )

    @isolated_demonstration
    async def demonstrate(self, request: DemonstrationRequest) -> Demonstration:
        """Return an example's prompt and answer. Raises ProblemError."""
        return demonstrate(self.loaded, request)

    async def _group(self, request: GroupRequest, row: dict[str, Any]) -> list[RolloutResult]:
        limits = GroupLimits.of(request)
        ids = [uuid.uuid4().hex for _ in range(request.rollouts)]
        results = await asyncio.gather(*[self._rollout(request, row, rollout, limits) for rollout in ids])
        sound = [entry for entry in results if isinstance(entry, dict)]
        if self._score is not None and request.score and sound:
            PROGRESS.get().phase = WorkPhase.score
            scored = iter(await self._score_rollouts(self._score, row, sound))
            results = [next(scored) if isinstance(entry, dict) else entry for entry in results]
        return [_result(rollout, entry, request.score) for rollout, entry in zip(ids, results, strict=True)]

    async def _rollout(
        self, request: GroupRequest, row: dict[str, Any], rollout: str, limits: GroupLimits
    ) -> dict[str, Any] | Problem:
        try:
            own = copy_row(row)
        except UncopyableRowError as error:
            message = f"Example {request.example_index} of the {request.split} split: {error}."
            return in_phase(WorkPhase.prepare, Problem(reason=Reason.ROLLOUT_FAILED, message=message))
        base = request.base_url.rstrip("/").removesuffix("/v1")
        work = call_function(
            self.loaded.environment.rollout,
            own,
            base_url=f"{base}/rollouts/{rollout}/v1",
            api_key=API_KEY,
            model=request.model,
            sampling=dict(request.sampling),
        )
        try:
            returned = await run_isolated(work, limits, self.folder)
        except RolloutFailedError as failed:
            return in_phase(WorkPhase.rollout, failed.problem)
        if not isinstance(returned, Mapping):
            return {"reward": returned}
        if "reward" not in returned and self._score is None:
            keys = sanitize.short_repr(list(returned), 200)
            message = f"rollout returned a dict without `reward`. Its keys are {keys}."
            return in_phase(WorkPhase.score, Problem(reason=Reason.REWARD_NOT_FINITE, message=message))
        return dict(returned)

    async def _score_rollouts(
        self, score: Score, row: dict[str, Any], sound: list[dict[str, Any]]
    ) -> list[dict[str, Any] | Problem]:
        try:
            rewards = await call_function(score, row, sound)
        except GeneratorExit:
            raise
        except BaseException as error:
            if cancelled_from_outside(error):
                raise
            log.exception("score_group failed")
            problem = user_code_problem(Reason.REWARD_FUNCTION_ERROR, "score_group raised ", error, self.folder)
            return [in_phase(WorkPhase.score, problem)] * len(sound)
        if not isinstance(rewards, list | tuple) or len(rewards) != len(sound):
            message = f"score_group returned {sanitize.short_repr(rewards)} instead of a list of {len(sound)} rewards."
            return [in_phase(WorkPhase.score, Problem(reason=Reason.REWARD_NOT_FINITE, message=message))] * len(sound)
        return [
            {**entry, **(reward if isinstance(reward, Mapping) else {"reward": reward})}
            for entry, reward in zip(sound, rewards, strict=True)
        ]


async def call_function(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the function and return its result. An async function is awaited; others run in a new thread.

    A thread cannot be stopped from outside. A hanging thread is abandoned: it is a daemon, so the process can exit, and
    it belongs to no pool, so it occupies no slot.
    """
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            # A future does not accept StopIteration, which user code may raise like any other exception.
            future.set_result(_Raised(error))

    def run() -> None:
        value, error = None, None
        try:
            value = function(*args, **kwargs)
        except BaseException as raised_there:
            error = raised_there
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            log.info("A rollout ended after its worker had closed")

    threading.Thread(target=run, daemon=True, name="rollout").start()
    value = await future
    if isinstance(value, _Raised):
        raise value.error
    return await value if isinstance(value, Awaitable) else value


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def _result(rollout: str, entry: dict[str, Any] | Problem, score: bool) -> RolloutResult:
    if isinstance(entry, Problem):
        return RolloutResult(rollout_id=rollout, reward=0.0, error=entry)
    reward = sanitize.to_finite_float(entry.get("reward")) if score else 0.0
    error = None
    if reward is None:
        shown = sanitize.short_repr(entry.get("reward"))
        message = f"The rollout returned the reward {shown} instead of a finite number."
        error = in_phase(WorkPhase.score, Problem(reason=Reason.REWARD_NOT_FINITE, message=message))
    stop = entry.get("stop_condition")
    return RolloutResult(
        rollout_id=rollout,
        reward=reward or 0.0,
        rewards=sanitize.rewards(entry.get("rewards")) if score else {},
        metrics=sanitize.metrics(entry.get("metrics")),
        stop_condition=sanitize.truncate_text(str(stop), sanitize.MAX_NAME) if stop is not None else None,
        is_truncated=entry.get("is_truncated") is True,
        prompt=sanitize.completion(entry.get("prompt")),
        completion=sanitize.completion(entry.get("completion")),
        error=error,
    )
