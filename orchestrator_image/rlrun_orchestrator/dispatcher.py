"""Keeps the right number of groups in flight and turns what comes back into batches.

The decisions are the scheduler's and the buffer's; here are the tasks, the requests and the clock. The pump dispatches
while there is room, an environment that is well, and a replica that serves the policy.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from rlrun.schema.wire import GroupRequest, PolicyRef, Problem

from rlrun_orchestrator.backoff import Backoff
from rlrun_orchestrator.board import Board
from rlrun_orchestrator.buffer import Buffer, Example
from rlrun_orchestrator.environments import Environment, Environments
from rlrun_orchestrator.errors import EXIT_CONFIGURATION, EXIT_RESTART, RunFailed
from rlrun_orchestrator.gateway.groups import LiveGroup, LiveGroups
from rlrun_orchestrator.http import RequestFailed, Unavailable
from rlrun_orchestrator.inference import ReplicaPool
from rlrun_orchestrator.rollouts import Group, Scoring, score
from rlrun_orchestrator.scheduler import Scheduler, Verdict

log = logging.getLogger(__name__)

EMPTY_BATCHES = 5
"""In a row, before the run fails."""
TICK_SECONDS = 0.5
"""Longest sleep of the pump: pauses end without an event."""


@dataclass(frozen=True)
class DispatchSettings:
    """What every group request carries, and the patience of the dispatcher. Seconds."""

    gateway_url: str
    rollouts_per_example: int
    sampling: dict[str, object]
    group_deadline: float
    inference_deadline: float
    empty_batch_backoff: float


class Dispatcher:
    """Owns all training groups between dispatch and batch."""

    def __init__(
        self,
        scheduler: Scheduler,
        buffer: Buffer,
        environments: Environments,
        groups: LiveGroups,
        pool: ReplicaPool,
        scoring: Scoring,
        settings: DispatchSettings,
        board: Board,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.buffer = buffer
        self.failure: RunFailed | None = None
        """Why no batch will ever come, if so."""
        self.cancelled = 0
        """Groups given up while in flight, since the last batch."""
        self.filtered = 0
        self._environments = environments
        self._groups = groups
        self._pool = pool
        self._scoring = scoring
        self._settings = settings
        self._board = board
        self._clock = clock
        self._policy: PolicyRef | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._finished: dict[str, Group] = {}
        self._wake = asyncio.Event()
        self._done = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._barren = 0
        """Groups that environments answered since the last usable one."""
        self._barren_errors = 0
        self._empty_batches = 0
        self._pause = Backoff(settings.empty_batch_backoff, 10 * settings.empty_batch_backoff)
        self._no_replica_since: float | None = None
        self._last_error: Problem | None = None

    # --- for the loop -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to dispatch as soon as a policy is published."""
        self._pump = asyncio.create_task(self._run(), name="dispatcher")

    def published(self, policy: PolicyRef) -> None:
        """From now on new groups are pinned to this policy."""
        self._policy = policy
        self.scheduler.published(policy.version)
        self._board.policy_version = policy.version
        self._wake.set()

    def take_batch(self) -> list[Group] | None:
        """The next batch, or None while it is not complete. Groups that it makes too old are cancelled."""
        batch = self.scheduler.take_batch()
        if batch is None:
            return None
        groups = [self._finished.pop(group) for group in batch]
        self._abandon(self.scheduler.expire())
        self._wake.set()
        return groups

    def batch_trained(self) -> None:
        """The trainer is done with the batch that was taken."""
        self.scheduler.batch_trained()
        self._count()

    def rewind(self, step: int) -> None:
        """The trainer is back at `step`."""
        self._abandon(self.scheduler.rewind(step))
        if self.scheduler.version is None:
            self._policy = None
        self._wake.set()

    async def changed(self, timeout: float) -> None:
        """Returns when a group has finished, or after `timeout` seconds."""
        try:
            await asyncio.wait_for(self._done.wait(), timeout)
        except TimeoutError:
            return
        finally:
            self._done.clear()

    async def close(self) -> None:
        """Cancels everything in flight; it counts as stale."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        self._abandon(self.scheduler.close())
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._count()

    @property
    def in_flight(self) -> int:
        """Groups that environments work on now."""
        return len(self.scheduler.in_flight)

    # --- the pump -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._dispatch(self._clock())
            except RunFailed as failure:
                self._fail(failure)
                return
            except Exception as error:
                log.exception("dispatching failed")
                message = f"{type(error).__name__}: {error}. This is an error of the orchestrator: see its log"
                self._fail(RunFailed(Problem(reason="InternalError", message=message[:1000]), EXIT_RESTART))
                return
            self._count()
            try:
                await asyncio.wait_for(self._wake.wait(), TICK_SECONDS)
            except TimeoutError:
                continue

    def _fail(self, failure: RunFailed) -> None:
        self.failure = failure
        self._done.set()

    def _dispatch(self, now: float) -> None:
        if self._environments.failure is not None:
            raise self._environments.failure
        if self._policy is None or not self._replica_serves(self._policy, now) or not self._pause.open(now):
            return
        while self.scheduler.room() > 0:
            able = self._environments.available(now)
            if not self.buffer.drawable(able):
                return
            self._start(self.buffer.draw(able), self._policy, now)

    def _replica_serves(self, policy: PolicyRef, now: float) -> bool:
        if self._pool.serving(policy.name):
            self._no_replica_since = None
            self._board.wait("inference", None)
            return True
        if self._no_replica_since is None:
            self._no_replica_since = now
        problem = self._pool.problem(policy)
        self._board.wait("inference", problem)
        if now - self._no_replica_since > self._settings.inference_deadline:
            raise RunFailed(problem, EXIT_RESTART)
        return False

    def _start(self, example: Example, policy: PolicyRef, now: float) -> None:
        live = self._groups.open(policy)
        self.scheduler.dispatched(live.id)
        task = asyncio.create_task(self._roll_out(live, example, now), name=f"group {live.id}")
        self._tasks[live.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(live.id, None))

    async def _roll_out(self, live: LiveGroup, example: Example, started: float) -> None:
        member = self._environments.members[example.environment]
        group = Group(live.id, example, live.policy.version)
        request = GroupRequest(
            group_id=live.id,
            example_index=example.index,
            rollouts=self._settings.rollouts_per_example,
            base_url=f"{self._settings.gateway_url.rstrip('/')}/groups/{live.id}/v1",
            model=live.policy.name,
            sampling=self._settings.sampling,
            deadline_seconds=self._settings.group_deadline,
        )
        answered = True
        try:
            result = await member.client.roll_out(request)
            group = score(result, live.recorded, example, live.policy.version, self._scoring)
        except Unavailable as error:
            answered = False
            self._environments.unreachable(example.environment, error.problem)
        except RequestFailed as error:
            self._environment_failed(member, error.problem, started)
        except Exception as error:
            # A group that never ends would hold its place for ever, so whatever happened, this one ends here.
            log.exception("group %s failed", live.id)
            problem = Problem(reason="GroupFailed", message=f"{type(error).__name__}: {error}"[:500])
            self._environment_failed(member, problem, started)
        finally:
            self._groups.close(live.id)
        self._finish(group, live, answered, started)

    def _environment_failed(self, member: Environment, problem: Problem, started: float) -> None:
        self._last_error = problem
        member.backoff.failed(self._clock(), started)
        self._board.warn(problem)

    def _finish(self, group: Group, live: LiveGroup, answered: bool, started: float) -> None:
        if not self.scheduler.finished(live.id, group.verdict):
            return
        group.id = live.id
        self._board.group_done(group)
        self._last_error = group.first_error or self._last_error
        if group.verdict is not Verdict.errored:
            self._environments.members[group.example.environment].backoff.succeeded()
            self.buffer.scored(group.example, group.mean_reward)
        elif group.rollouts:
            self._environments.members[group.example.environment].backoff.failed(self._clock(), started)
        if live.id in self.scheduler.ready:
            self._finished[live.id] = group
        self.filtered += group.verdict is Verdict.filtered
        # Rollouts that failed for want of a replica say nothing of the environment.
        if answered and (group.verdict is not Verdict.errored or self._pool.serving(live.policy.name)):
            self._note_yield(group.verdict)
        self._wake.set()
        self._done.set()

    def _note_yield(self, verdict: Verdict) -> None:
        """Counts towards the five empty batches that end a run which learns nothing."""
        if verdict is Verdict.usable:
            self._barren = self._barren_errors = self._empty_batches = 0
            self._pause.succeeded()
            self._board.wait("batch", None)
            return
        self._barren += 1
        self._barren_errors += verdict is Verdict.errored
        size = self.scheduler.settings.groups_per_batch
        if self._barren < size:
            return
        self._empty_batches += 1
        errors, self._barren, self._barren_errors = self._barren_errors, 0, 0
        problem = self._empty_problem()
        if self._empty_batches >= EMPTY_BATCHES:
            self.failure = RunFailed(problem, EXIT_CONFIGURATION)
            return
        self._board.wait("batch", problem)
        if 2 * errors >= size:
            self._pause.failed(self._clock())
            log.warning("%s; next try in %.0f s", problem.message, self._pause.pause)

    def _empty_problem(self) -> Problem:
        cause = (
            f"the last error was {self._last_error.reason}: {self._last_error.message}"
            if self._last_error
            else "online difficulty filtering dropped every group: all rewards are 0, or all are 1; change the "
            "environment's difficulty or switch buffer.onlineDifficultyFiltering off"
        )
        batches = "batch" if self._empty_batches == 1 else "batches in a row"
        message = f"{self._empty_batches} {batches} without one usable group: {cause}"
        return Problem(reason="EmptyBatches", message=message[:1000])

    def _abandon(self, groups: list[str]) -> None:
        for group in groups:
            self._groups.close(group)
            self._finished.pop(group, None)
            task = self._tasks.get(group)
            if task is not None:
                task.cancel()
                self.cancelled += 1
        self._count()

    def _count(self) -> None:
        self._board.groups = self.scheduler.counts()
