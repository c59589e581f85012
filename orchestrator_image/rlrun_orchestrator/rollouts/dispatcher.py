"""Dispatches groups to environments, and forms batches of their results.

The tracker stores the state of the groups, and the sampler chooses examples. The dispatcher manages tasks, requests and
timing. It starts groups while there are slots, a ready environment, and a replica that serves the policy.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from rlrun.api.run_sections.rollouts import TrainSampling
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.environment import GroupRequest, GroupResult
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.problem import Problem
from rlrun.service.errors import FatalError, RequestError, ServiceUnavailable

from rlrun_orchestrator.data.batch_metrics import environment_shares, summary_stats
from rlrun_orchestrator.data.example_sampler import ExampleSampler, SampledExample
from rlrun_orchestrator.data.group_filter import FilterReason
from rlrun_orchestrator.data.groups import Group, GroupState, UntrainedGroups
from rlrun_orchestrator.data.scoring import ScoringSettings, judge_group, score_group
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, LiveGroups
from rlrun_orchestrator.inference.gateway.sampling_rules import SamplingRules
from rlrun_orchestrator.inference.replica_pool import ReplicaPool
from rlrun_orchestrator.rollouts.distillation import DistillationTeacher
from rlrun_orchestrator.rollouts.empty_batches import EmptyBatchMonitor
from rlrun_orchestrator.rollouts.environment_replicas import is_failed
from rlrun_orchestrator.rollouts.environments import EnvironmentPool, PooledEnvironment
from rlrun_orchestrator.rollouts.group_tracker import GroupTracker
from rlrun_orchestrator.status.run_progress import RunProgress
from rlrun_orchestrator.status.status_conditions import StatusConditions

log = logging.getLogger(__name__)

SCORED_ASIDE = 16_384
"""Number of tokens above which a group is scored in a thread."""
TICK_SECONDS = 0.5
"""Maximum sleep of the dispatch loop in seconds, because pauses of environments end without an event."""


@dataclass(frozen=True)
class DispatchSettings:
    """Parameters of every group request, and deadlines. Times are in seconds."""

    gateway_url: str
    rollouts_per_example: int
    rules: SamplingRules
    """Sampling rules of the run."""
    overrides: Mapping[str, TrainSampling]
    """Sampling parameters that take precedence over the run's, by environment."""
    inference_deadline: float
    empty_batch_backoff: float
    most_filtered_groups: int


class Dispatcher:
    """Starts groups, waits for their results and returns batches."""

    def __init__(
        self,
        tracker: GroupTracker,
        sampler: ExampleSampler,
        environments: EnvironmentPool,
        groups: LiveGroups,
        pool: ReplicaPool,
        scoring: ScoringSettings,
        settings: DispatchSettings,
        progress: RunProgress,
        conditions: StatusConditions,
        teacher: DistillationTeacher | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tracker = tracker
        self.sampler = sampler
        self.failure: FatalError | None = None
        """Reason why no further batch can be collected."""
        self.untrained = UntrainedGroups(tracker.limits.groups_per_batch)
        """Groups that ended without being trained on, kept until they are stored with a step."""
        self._filtered: Counter[FilterReason | None] = Counter()
        """Groups filtered since the last batch, by reason."""
        self._cancelled = 0
        """Number of groups cancelled in flight since the last batch."""
        self._redraws: Counter[bool] = Counter()
        """Groups that became stale since the last batch, by whether their examples are sampled again."""
        self._drawn_lengths: list[float] = []
        """Number of sampled tokens of each rollout that ended since the last batch, whether trained on or not."""
        self._shares: dict[str, float] = {}
        self._environments = environments
        self._groups = groups
        self._pool = pool
        self._scoring = scoring
        self._teacher = teacher
        self._settings = settings
        self._progress = progress
        self._conditions = conditions
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Tasks that wait for the environments' responses, by group id."""
        self._wake = asyncio.Event()
        self._done = asyncio.Event()
        self._dispatch_task: asyncio.Task[None] | None = None
        self._empty_batches = EmptyBatchMonitor(
            tracker.limits.groups_per_batch, settings.empty_batch_backoff, settings.most_filtered_groups
        )
        self._no_replica_since: float | None = None
        tracker.schedule.subscribe(self._wake.set)

    # --- called by the loop -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start dispatching groups as soon as a policy is published."""
        self._dispatch_task = asyncio.create_task(self._run(), name="dispatcher")

    def on_policy_published(self, policy: PolicyRef) -> None:
        """Start new groups, and the next turns of groups in flight, with this policy."""
        self.tracker.publish(policy)
        self._groups.publish(policy)
        self._progress.policy_version = policy.version
        self._wake.set()

    def take_batch(self) -> list[Group] | None:
        """Return the next batch, or None while the batch is incomplete. Taking a batch cancels the groups that become
        stale. Complete batches without a rollout to train on are dropped first.
        """
        while empty := self.tracker.drop_empty_batch():
            self._drop_empty(empty)
        groups = self.tracker.take_batch()
        if groups is None:
            return None
        self._redraw(self._cancel(self.tracker.drop_stale()))
        self.sampler.apply_scores()
        self._wake.set()
        self._shares = environment_shares(groups, self.sampler.buffer.weight_by_name)
        return groups

    def _drop_empty(self, batch: Iterable[Group]) -> None:
        """Record the groups of a dropped batch, which has no rollout to train on."""
        for group in batch:
            self._filtered[group.filter_reason] += 1
            self.untrained.add(group)
        self.sampler.apply_scores()
        self._publish_counts()
        self._wake.set()

    def complete_batch(self) -> None:
        """Record that the trainer has completed its step with the batch that was taken."""
        self.tracker.complete_batch()
        self._publish_counts()

    def return_batch(self, step: int, trained: SentBatch | None) -> None:
        """Advance to `step`, after the trainer took the previous step with the batch `trained` of an earlier process.
        If that batch is unknown, `trained` is None. The batch that was taken waits for a later step, without the groups
        whose examples were part of `trained`.
        """
        dropped = self._cancel(self.tracker.return_batch(step, trained))
        if trained is None:
            self._redraw(dropped)
        else:
            self._redraw(group for group in dropped if group.ordinal not in trained.ordinals)
            self.sampler.discard(trained.ordinals)
        self._wake.set()

    def advance(self, step: int) -> None:
        """Advance to `step`, after the trainer took the previous step with demonstrations, which need no rollouts."""
        self.tracker.advance(step)

    def rewind(self, step: int) -> None:
        """Return to `step` with the trainer. The caller restores the sampler."""
        self._cancel(self.tracker.rewind(step))
        self._groups.publish(self.tracker.policy)
        self._wake.set()

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the difficulty pools, the environments and the groups in flight, and of the groups that
        were cancelled, filtered or became stale since the last call.
        """
        share = self._settings.rollouts_per_example
        values = {
            "batch/inflight_rollouts": float(self.tracker.count(GroupState.in_flight) * share),
            "batch/cancelled_rollouts": float(self._cancelled * share),
            "filtered_rollouts": float(self._filtered.total() * share),
            **{f"filtered_rollouts/{reason}": float(self._filtered[reason] * share) for reason in FilterReason},
            "batch/stale_rollouts": float(self._redraws.total() * share),
            "batch/redrawn_examples": float(self._redraws[True]),
            "batch/lost_examples": float(self._redraws[False]),
            **summary_stats("drawn_completion_len", self._drawn_lengths),
            **self._shares,
        }
        self._cancelled, self._shares = 0, {}
        self._filtered.clear()
        self._redraws.clear()
        self._drawn_lengths.clear()
        return self.sampler.buffer.metrics() | values

    async def wait_for_change(self, timeout: float) -> None:
        """Wait until a group has finished or dispatching has failed, for at most `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._done.wait()
        except TimeoutError:
            return
        finally:
            self._done.clear()

    async def stop_dispatching(self) -> None:
        """Start no more groups. Groups in flight continue."""
        if self._dispatch_task is not None:
            self._dispatch_task.cancel()
            await asyncio.gather(self._dispatch_task, return_exceptions=True)
        self._publish_counts()

    async def close(self) -> None:
        """Cancel all groups in flight. Cancelled groups count as stale."""
        await self.stop_dispatching()
        self._cancel(self.tracker.close())
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._publish_counts()

    @property
    def started(self) -> bool:
        """True once `start` has been called."""
        return self._dispatch_task is not None

    # --- dispatch -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._dispatch(self._clock())
            except FatalError as failure:
                self._fail(failure)
                return
            except Exception as error:
                log.exception("dispatching failed")
                message = f"{type(error).__name__}: {error}. This is a bug in the orchestrator; see its log"
                self._fail(FatalError(Problem(reason=Reason.INTERNAL_ERROR, message=message[:1000]), ExitCode.RESTART))
                return
            self._publish_counts()
            try:
                # Avoid wait_for, which in Python 3.11 loses a cancellation that arrives together with the event.
                async with asyncio.timeout(TICK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _fail(self, failure: FatalError) -> None:
        self.failure = failure
        self._done.set()

    def _dispatch(self, now: float) -> None:
        if self._environments.failure is not None:
            raise self._environments.failure
        policy = self.tracker.policy
        if policy is None or not self._replica_serves(policy, now) or not self._empty_batches.may_dispatch(now):
            return
        slots = float(self.tracker.available_slots())
        while slots > 0.0:
            names = self._environments.ready_names(now, self._settings.rollouts_per_example)
            sampled = self.sampler.next_example(names)
            if sampled is None:
                return
            self._start(sampled, policy, now)
            slots -= self.tracker.slots_of(sampled.example.environment)

    def _replica_serves(self, policy: PolicyRef, now: float) -> bool:
        if self._pool.serving(policy.name):
            self._no_replica_since = None
            self._conditions.set_waiting("inference", None)
            return True
        if self._no_replica_since is None:
            self._no_replica_since = now
        problem = self._pool.problem(policy)
        self._conditions.set_waiting("inference", problem)
        if now - self._no_replica_since > self._settings.inference_deadline:
            raise FatalError(problem, ExitCode.RESTART)
        return False

    def _start(self, sampled: SampledExample, policy: PolicyRef, now: float) -> None:
        own = self._settings.overrides.get(sampled.example.environment)
        rules = self._settings.rules.with_overrides(own)
        live_group = self._groups.open(policy, ordinal=sampled.ordinal, rules=rules)
        group = self.tracker.start(live_group.id, sampled, live_group.versions)
        group.sampling = own
        task = asyncio.create_task(self._run_group(group, live_group, now), name=f"group {group.id}")
        self._tasks[group.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(group.id))
        self._environments.environments[group.example.environment].hold(self._settings.rollouts_per_example, task)

    async def _run_group(self, group: Group, live_group: LiveGroup, started: float) -> None:
        member = self._environments.environments[group.example.environment]
        request = GroupRequest(
            group_id=group.id,
            example_index=group.example.index,
            rollouts=self._settings.rollouts_per_example,
            base_url=f"{self._settings.gateway_url.rstrip('/')}/groups/{group.id}/v1",
            model=live_group.model,
            sampling=self._settings.rules.with_overrides(group.sampling).client_fields,
            deadline_seconds=member.group_deadline,
            rollout_seconds=member.rollout_seconds,
            score=self._scoring.verify,
        )
        scored: GroupState | None = None
        answered, counted = True, False
        try:
            result = await member.client.roll_out(request)
            counted = member.pods_pause and is_failed(result)
            self._groups.close(group.id)
            state = await self._score(group, live_group, result)
            if self._teacher is not None and state is GroupState.ready:
                await self._teacher.score(group)
                state = judge_group(group, self._scoring)
            scored = state
        except FatalError as failure:
            self._fail(failure)
        except ServiceUnavailable as error:
            answered = False
            self._environments.mark_unreachable(member.name, error.problem)
        except RequestError as error:
            counted = member.pods_pause
            self._environment_failed(member, error.problem, started, counted)
        except Exception as error:
            # A group that never ends would occupy its slot until the end of the run.
            log.exception("group %s failed", group.id)
            problem = Problem(reason=Reason.GROUP_FAILED, message=f"{type(error).__name__}: {error}"[:500])
            self._environment_failed(member, problem, started, counted)
        finally:
            self._groups.close(group.id)
        if scored is None:
            # Rollouts that the teacher could not score have no outcome.
            group.rollouts.clear()
        if not self.tracker.finish(group, scored or GroupState.errored):
            return
        self._record_end(group, answered)
        self._record_health(member, group, started, counted)
        # Rollouts that failed because no replica served the policy are not the environment's fault.
        asked = self.tracker.policy or live_group.policy
        if answered and (group.state is not GroupState.errored or self._pool.serving(asked.name)):
            self._empty_batches.record_group(group, self._clock())
            self._conditions.set_waiting("batch", self._empty_batches.problem)
            self.failure = self._empty_batches.failure or self.failure
        self._wake.set()
        self._done.set()

    async def _score(self, group: Group, live_group: LiveGroup, result: GroupResult) -> GroupState:
        """Score a group, in a thread if its rollouts are long, because the gateway shares the event loop."""
        turns = live_group.turns_by_rollout()
        score = partial(score_group, group, result, turns, live_group.final_refusals(), self._scoring)
        tokens = sum(turn.new_tokens for own in turns.values() for turn in own)
        return await asyncio.to_thread(score) if tokens > SCORED_ASIDE else score()

    def _environment_failed(self, member: PooledEnvironment, problem: Problem, started: float, counted: bool) -> None:
        """Record a failed group. `counted` is True if the failure has already been counted for one of the environment's
        pods.
        """
        self._empty_batches.last_error = problem
        if not counted:
            member.backoff.record_failure(self._clock(), started)
        self._conditions.add_warning(problem)

    def _record_end(self, group: Group, answered: bool) -> None:
        """Record a group that the environment finished, and sample its example again if it has become stale or
        `answered` is False.
        """
        self._progress.record_group(group)
        self._drawn_lengths += [float(tokens) for rollout in group.rollouts if (tokens := rollout.completion_tokens)]
        if group.state is not GroupState.ready:
            self.untrained.add(group)
        if group.state is GroupState.stale:
            self._redraw([group])
        elif not answered:
            self.sampler.redraw(group.sampled)
        if group.state is GroupState.filtered:
            self._filtered[group.filter_reason] += 1
        if group.state is not GroupState.errored and self._scoring.verify:
            self.sampler.add_score(group.sampled, self.sampler.buffer.settings.decisive_mean(group.mean_rewards))

    def _record_health(self, member: PooledEnvironment, group: Group, started: float, counted: bool) -> None:
        """Record a success or a failure of the environment, depending on the group's rollouts."""
        self._empty_batches.last_error = group.first_error or self._empty_batches.last_error
        if group.state is not GroupState.errored:
            member.backoff.record_success()
        elif not counted and group.rollouts and {each.reason for each in group.errors} != {Reason.TEACHER_REFUSED}:
            member.backoff.record_failure(self._clock(), started)

    def _redraw(self, stale: Iterable[Group]) -> None:
        """Sample the examples of stale groups again, except examples that were already sampled again the maximum number
        of times.
        """
        for group in stale:
            self._redraws[self.sampler.redraw(group.sampled)] += 1

    def _cancel(self, groups: list[Group]) -> list[Group]:
        """Cancel the tasks of groups that the tracker has dropped, and return the groups."""
        for group in groups:
            live_group = self._groups.get(group.id)
            if live_group is not None:
                self._drawn_lengths += [float(tokens) for tokens in live_group.completion_tokens() if tokens]
            self._groups.close(group.id)
            task = self._tasks.get(group.id)
            if task is None or task.done():
                self.untrained.add(group)
            else:
                task.cancel()
                self._cancelled += 1
        self._publish_counts()
        return groups

    def _publish_counts(self) -> None:
        self._progress.groups = self.tracker.counts()
