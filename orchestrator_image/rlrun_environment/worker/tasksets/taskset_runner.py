"""Runs groups of episodes in verifiers.v1 environments.

An episode is one run of an environment on a task. Each of its agents is a rollout with a trace, its own conversation in
the gateway, and a reward. Agents run as processes of this pod.
"""

import asyncio
import logging
import time
import uuid
from pathlib import Path
from typing import Any

from rlrun.constants import Reason
from rlrun.protocol.environment import (
    Demonstration,
    DemonstrationRequest,
    GroupRequest,
    GroupResult,
    RolloutResult,
    failed_rollouts,
    timed_out,
)
from rlrun.protocol.problem import Problem
from verifiers.v1 import ModelContext, SamplingConfig

from rlrun_environment.phases import WorkPhase
from rlrun_environment.worker.tasksets.rollout_endpoints import RolloutEndpoints, gateway_client
from rlrun_environment.worker.tasksets.trace_results import episode_problem, episode_results, last_phase
from rlrun_environment.worker.user_code import sanitize
from rlrun_environment.worker.user_code.demonstrations import demonstrate
from rlrun_environment.worker.user_code.isolation import (
    GroupLimits,
    RolloutFailedError,
    isolated_demonstration,
    isolated_group,
    run_isolated,
    user_code_problem,
)
from rlrun_environment.worker.user_code.loaded import Loaded, row_of
from rlrun_environment.worker.user_code.progress import in_phase

log = logging.getLogger(__name__)

MAX_EPISODES = 4
"""Maximum number of concurrent episodes. An agent's program or tool server takes 200 to 300 MiB of a worker's 2 GiB."""
CLOSING_SECONDS = 4.0
"""Time for the environment's tool servers to stop. The server kills the worker shortly after this time."""


class TasksetRunner:
    """Runner for rollouts of one loaded environment of verifiers.v1."""

    def __init__(self, loaded: Loaded, folder: Path) -> None:
        self.loaded = loaded
        self.folder = folder
        self.rollouts_at_once: int | None = MAX_EPISODES
        self._episodes = asyncio.Semaphore(MAX_EPISODES)
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def check_example(self) -> None:
        """Do nothing, because loading has already paired the first task with its harness."""

    async def close(self) -> None:
        """Stop the environment's servers."""
        self._stop.set()
        if self._serving is not None:
            await asyncio.wait({self._serving}, timeout=CLOSING_SECONDS)
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)

    @isolated_group
    async def run(self, request: GroupRequest) -> GroupResult:
        """Run and score the group's episodes within `deadline_seconds`. Failures are returned as part of the rollouts.

        Raises ProblemError if the example does not exist.
        """
        row = row_of(self.loaded, request.split, request.example_index)
        started = time.monotonic()
        try:
            rollouts = await asyncio.wait_for(self._group(request), request.deadline_seconds)
        except TimeoutError:
            rollouts = failed_rollouts(request, timed_out(request))
        prompt = next((rollout.prompt for rollout in rollouts if rollout.prompt), row.get("prompt"))
        return GroupResult(
            group_id=request.group_id,
            rollouts=[one.model_copy(update={"prompt": None}) if one.prompt == prompt else one for one in rollouts],
            seconds=time.monotonic() - started,
            example=sanitize.example(prompt, row),
        )

    @isolated_demonstration
    async def demonstrate(self, request: DemonstrationRequest) -> Demonstration:
        """Return a task's prompt and answer. Raises ProblemError.

        Excludes messages and tools that are added only when a rollout starts: a harness's messages, such as the system
        prompt of `bash`, and the tools of tool servers.
        """
        return demonstrate(self.loaded, request)

    async def _group(self, request: GroupRequest) -> list[RolloutResult]:
        problem = await self._serve()
        if problem is not None:
            return failed_rollouts(request, problem)
        task = self.loaded.train.task(request.example_index)  # type: ignore[union-attr]
        if not request.score and hasattr(task, "defer_scoring"):
            task = task.defer_scoring()
        episodes = await asyncio.gather(*(self._episode(request, task) for _ in range(request.rollouts)))
        return [result for results in episodes for result in results]

    async def _episode(self, request: GroupRequest, task: Any) -> list[RolloutResult]:
        environment, episode = self.loaded.environment, uuid.uuid4().hex
        context = ModelContext(
            model=request.model,
            client=gateway_client(request.base_url),
            sampling=SamplingConfig.model_validate(dict(request.sampling)),
        )
        (slot,) = environment.slots(task)
        try:
            async with self._episodes:
                # The episode's time limit starts now, because the episode may have waited for others.
                run = environment.run_slot(slot, context)
                ended = await run_isolated(run, GroupLimits.of(request), self.folder)
        except RolloutFailedError as failed:
            cause = in_phase(last_phase(slot.traces), failed.problem)
            return episode_results(slot.traces, episode, self.folder, cause, score=False)
        problem = episode_problem(ended, self.folder)
        return episode_results(ended.traces, episode, self.folder, problem, score=request.score)

    async def _serve(self) -> Problem | None:
        """Wait for the shared servers, which the first group starts. Returns the problem if they do not start."""
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._hold_servers(), name="environment servers")
        serving, ready = self._serving, asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._ready.is_set():
            return None
        error = serving.exception() if not serving.cancelled() else None
        log.error("The environment's servers did not start", exc_info=error)
        what = "The environment's servers did not start: "
        problem = user_code_problem(Reason.ROLLOUT_FAILED, what, error or asyncio.CancelledError(), self.folder)
        return in_phase(WorkPhase.prepare, problem)

    async def _hold_servers(self) -> None:
        # Use one asyncio task from start to end, because a context must be exited in the task that entered it.
        environment = self.loaded.environment
        async with environment.serving():
            secrets = [server.state_secret for server in environment._shared_tools.values() if server.state_secret]
            environment._interception = RolloutEndpoints(secrets)
            self._ready.set()
            try:
                await self._stop.wait()
            finally:
                self._ready.clear()
