"""Maps a run's spec to the settings of the components, with one function per component and no I/O."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rlrun.api.run_sections.environments import DEFAULT_ROLLOUT_TIMEOUT, Environment
from rlrun.api.run_sections.rollouts import TrainSampling, TrajectoryStrategy
from rlrun.api.run_sections.training import AlgorithmName
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.environment import ROLLOUT_SHARE
from rlrun.protocol.orchestrator import GroupCounts
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import EnvironmentUse, ResolvedRun
from rlrun.service.errors import FatalError

from rlrun_orchestrator.config import OrchestratorSettings
from rlrun_orchestrator.data.example_buffer import BufferSettings, ExampleBuffer
from rlrun_orchestrator.data.group_filter import GroupFilter
from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.data.scoring import ScoringSettings
from rlrun_orchestrator.evaluation.evaluator import EvaluatorSettings
from rlrun_orchestrator.inference.gateway.package_pins import PackageRef
from rlrun_orchestrator.inference.gateway.sampling_rules import SamplingRules
from rlrun_orchestrator.loop import LoopTimeouts
from rlrun_orchestrator.rollouts.dispatcher import DispatchSettings
from rlrun_orchestrator.rollouts.environments import LoadLimits
from rlrun_orchestrator.rollouts.group_scheduler import SchedulingLimits
from rlrun_orchestrator.rollouts.group_tracker import GroupTracker
from rlrun_orchestrator.storage.startup import StartupTimeouts
from rlrun_orchestrator.training.policy_publisher import PublishTimeouts
from rlrun_orchestrator.training.trainer_session import TrainerTimeouts


def run_schedule(run: ResolvedRun, settings: OrchestratorSettings) -> RunSchedule:
    """Return the number of steps and the intervals of the run."""
    spec = run.spec
    return RunSchedule(
        max_steps=spec.max_steps,
        supervised_steps=None if spec.algorithm.name is AlgorithmName.sft else spec.algorithm.sft_steps,
        checkpoint_interval=spec.checkpoints.interval or settings.checkpoint_interval,
        adapter_interval=spec.adapters.interval,
    )


def environment_entries(run: ResolvedRun) -> Iterator[tuple[EnvironmentUse, Environment]]:
    """Yield the environments of the run: env in order, then eval.env."""
    for entry in run.spec.env:
        yield EnvironmentUse.train, entry
    for evaluated in run.spec.eval.env if run.spec.eval else []:
        yield EnvironmentUse.eval, evaluated


def used_packages(run: ResolvedRun) -> list[PackageRef]:
    """Return the packages that the run uses."""
    return [PackageRef.of(entry.id, entry.version) for _, entry in environment_entries(run)]


def pinned_digests(run: ResolvedRun) -> dict[PackageRef, set[str]]:
    """Return the digests that entries of env and eval.env specify, by package."""
    digests = defaultdict[PackageRef, set[str]](set)
    for _, entry in environment_entries(run):
        if entry.digest is not None:
            digests[PackageRef.of(entry.id, entry.version)].add(entry.digest)
    return dict(digests)


def startup_timeouts(run: ResolvedRun, settings: OrchestratorSettings) -> StartupTimeouts:
    """Return the time limits of the waits before the first step."""
    component = float(min(settings.start_deadline, run.spec.start_deadline_seconds))
    return StartupTimeouts(
        component=component,
        trainer=settings.shared_trainer_deadline if run.trains_in_pool else component,
        denied_storage=settings.storage_grace,
        poll_interval=settings.poll_interval,
    )


def trainer_timeouts(run: ResolvedRun, settings: OrchestratorSettings) -> TrainerTimeouts:
    """Return the time limits for requests to the trainer."""
    return TrainerTimeouts(
        unreachable=settings.shared_trainer_deadline if run.trains_in_pool else settings.trainer_deadline,
        request=max(settings.start_deadline, settings.trainer_deadline),
        step=settings.step_deadline,
        finish=settings.finish_deadline,
        poll_interval=settings.poll_interval,
    )


def publish_timeouts(settings: OrchestratorSettings) -> PublishTimeouts:
    """Return the time limits for the publication of policies."""
    return PublishTimeouts(
        # Engines may need the run's whole start deadline.
        first=max(settings.start_deadline, settings.inference_deadline),
        later=settings.inference_deadline,
        slow_replicas=settings.publish_grace,
    )


def group_deadlines(run: ResolvedRun, use: EnvironmentUse) -> dict[str, float]:
    """Return, by environment, the time limit in seconds for running and scoring a group whose rollouts all start at
    once.
    """
    evaluated = run.spec.eval.env if run.spec.eval is not None else []
    entries: Sequence[Environment] = run.spec.env if use is EnvironmentUse.train else evaluated
    return {entry.effective_name: entry.rollout_timeout_seconds / ROLLOUT_SHARE for entry in entries}


def load_limits(run: ResolvedRun, use: EnvironmentUse) -> dict[str, LoadLimits]:
    """Return the maximum load of each environment."""
    spec = run.spec
    if use is EnvironmentUse.train:
        most = max(spec.rollouts_per_example, spec.val.rollouts_per_example if spec.val else 1)
        groups = {entry.effective_name: most for entry in spec.env}
    else:
        measured, default = (spec.eval.env, spec.eval.rollouts_per_example) if spec.eval else ([], 1)
        groups = {entry.effective_name: entry.rollouts_per_example or default for entry in measured}
    return {
        entry.effective_name: LoadLimits(entry.max_concurrent, entry.replicas, groups[entry.effective_name])
        for used, entry in environment_entries(run)
        if used is use
    }


def replica_counts(run: ResolvedRun, use: EnvironmentUse) -> dict[str, int]:
    """Return the number of pods of each environment."""
    return {entry.effective_name: entry.replicas for used, entry in environment_entries(run) if used is use}


def longest_group_deadline(run: ResolvedRun) -> float:
    """Return the longest time limit of a group in seconds. A single engine response may take that long."""
    return max(deadline for use in EnvironmentUse for deadline in group_deadlines(run, use).values())


def loop_timeouts(run: ResolvedRun, settings: OrchestratorSettings) -> LoopTimeouts:
    """Return the time limits for the training loop's own waits."""
    # The final evaluation needs time for at least one group.
    longer = max(0.0, longest_group_deadline(run) - DEFAULT_ROLLOUT_TIMEOUT / ROLLOUT_SHARE)
    return LoopTimeouts(finish=settings.finish_deadline + longer, state_saved=settings.record_wait)


def group_tracker(run: ResolvedRun, schedule: RunSchedule, before: GroupCounts) -> GroupTracker:
    """Return the tracker of the run's groups. `before` has the counts of earlier processes."""
    spec = run.spec
    return GroupTracker(
        SchedulingLimits.from_rollouts(
            batch_size=spec.batch_size,
            token_batch_size=spec.token_batch_size,
            rollouts_per_example=spec.rollouts_per_example,
            oversampling_factor=spec.oversampling_factor,
            max_async_level=spec.max_async_level,
            max_off_policy_steps=spec.oldest_token_age,
        ),
        schedule,
        before,
        spec.rollouts_per_example,
    )


def buffer(run: ResolvedRun, sizes: Mapping[str, int]) -> ExampleBuffer:
    """Return the buffer. `sizes` has the number of examples by environment.

    Raises FatalError if an environment has no examples, or if the weights of the environments are invalid.
    """
    spec = run.spec
    by_environment = [e.weight for e in spec.env if e.weight is not None]
    try:
        return ExampleBuffer(
            sizes,
            spec.buffer.env_ratios or by_environment or None,
            BufferSettings(
                seed=spec.buffer.seed if spec.buffer.seed is not None else spec.seed,
                filtering=spec.buffer.online_difficulty_filtering,
                easy_threshold=spec.buffer.easy_threshold,
                hard_threshold=spec.buffer.hard_threshold,
                easy_fraction=spec.buffer.easy_fraction,
                hard_fraction=spec.buffer.hard_fraction,
                groups_per_batch=spec.batch_size // spec.rollouts_per_example,
            ),
        )
    except ValueError as error:
        problem = Problem(reason=Reason.NO_EXAMPLES, message=str(error))
        raise FatalError(problem, ExitCode.CONFIGURATION) from error


def filtering(run: ResolvedRun) -> GroupFilter:
    """Return the filter of the run's groups."""
    online, rules = run.spec.buffer.online_difficulty_filtering, run.spec.difficulty_filter
    if rules is None or not rules.enabled:
        return GroupFilter(online)
    return GroupFilter(online, rules.min_reward_variance, rules.max_reward, rules.min_reward)


def scoring(run: ResolvedRun) -> ScoringSettings:
    """Return the settings for the scoring of groups."""
    spec = run.spec
    rewarded = spec.algorithm.name is AlgorithmName.grpo
    penalized = spec.kl_penalty is not None and spec.kl_penalty.enabled
    return ScoringSettings(
        rollouts_per_example=spec.rollouts_per_example,
        strategy=spec.trajectory_strategy,
        seq_len=run.model.seq_len,
        filtering=filtering(run),
        verify=not spec.buffer.skip_verification,
        algorithm=spec.algorithm,
        filter_zero_advantages=rewarded and not penalized and spec.algorithm.filter_zero_advantages,
    )


def sampling_rules(run: ResolvedRun) -> SamplingRules:
    """Return the run's sampling section in the gateway's form."""
    sampling = run.spec.sampling
    # Asynchronous rollouts depend on timing, so a default seed would only make them look repeatable.
    seed = run.spec.seed if sampling.seed is None and run.spec.max_async_level == 0 else sampling.seed
    return SamplingRules(sampling.model_copy(update={"max_tokens": run.max_tokens, "seed": seed}), run.model.seq_len)


def sampling_overrides(run: ResolvedRun) -> dict[str, TrainSampling]:
    """Return the sampling parameters of the training environments that take precedence over the run's."""
    return {entry.effective_name: entry.sampling for entry in run.spec.env if entry.sampling is not None}


def exact_prefixes(run: ResolvedRun) -> bool:
    """Return True if turns are joined into sequences, so that the next turn of a chat may be sent as tokens."""
    return run.spec.trajectory_strategy is TrajectoryStrategy.interleaved


def dispatch(run: ResolvedRun, settings: OrchestratorSettings) -> DispatchSettings:
    """Return the settings that apply to every group request."""
    return DispatchSettings(
        gateway_url=run.endpoints.gateway_url,
        rollouts_per_example=run.spec.rollouts_per_example,
        rules=sampling_rules(run),
        overrides=sampling_overrides(run),
        inference_deadline=settings.inference_deadline,
        empty_batch_backoff=settings.empty_batch_backoff,
        most_filtered_groups=settings.most_filtered_groups,
    )


def evaluation(run: ResolvedRun) -> EvaluatorSettings:
    """Return the settings that apply to every evaluation request."""
    spec = run.spec
    return EvaluatorSettings(
        gateway_url=run.endpoints.gateway_url,
        rules=sampling_rules(run),
        rollouts_in_flight=int(spec.batch_size * spec.oversampling_factor),
        base_model=spec.eval is not None and spec.eval.eval_base_model,
        warm_start=run.warm_start_from is not None,
    )
