"""From the fields of a spec to the settings of the parts, and to the trainer's session."""

from pathlib import Path
from typing import Any

import pytest
from rlrun.api.run_sections.rollouts import TrajectoryStrategy
from rlrun.api.run_sections.training import Dppo, LengthPenalty
from rlrun.protocol.orchestrator import GroupCounts
from rlrun.protocol.policy import PolicyKind
from rlrun.protocol.resolved import EnvironmentUse, ResolvedRun
from rlrun.protocol.session_specs import session_spec
from rlrun.protocol.shared_pool import pool_trainer_name
from rlrun.protocol.trainer import SessionSpec
from rlrun_orchestrator import config_mapping
from rlrun_orchestrator.config import OrchestratorSettings
from rlrun_orchestrator.data.example_buffer import Example
from rlrun_orchestrator.data.group_filter import GroupFilter
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.inference.gateway.package_pins import PackageRef
from rlrun_orchestrator.rollouts.environments import LoadLimits

from tests.support.fake_environment import FakeEnvironment
from tests.support.run_processes import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.environments = {"a": FakeEnvironment("a"), "b": FakeEnvironment("b")}
    made.urls = {"a": "http://a", "b": "http://b"}
    made.trainer_url = "http://trainer"
    return made


def resolved(world: World, **spec: Any) -> ResolvedRun:
    world.spec = spec
    return world.resolved()


# --- the draw ---------------------------------------------------------------------------------------------------------

WEIGHTED = [{"id": "owner/a", "weight": 4}, {"id": "owner/b", "weight": 1}]


def share_of_a(run: ResolvedRun) -> float:
    buffer = config_mapping.buffer(run, {"a": 50, "b": 50})
    return sum(buffer.draw().environment == "a" for _ in range(4000)) / 4000


@pytest.mark.proves("buffer.envRatios", "env.weight")
def test_environments_share_the_draw_as_the_run_says(world: World) -> None:
    assert share_of_a(resolved(world)) == pytest.approx(0.5, abs=0.03)
    assert share_of_a(resolved(world, buffer={"envRatios": [1, 3]})) == pytest.approx(0.25, abs=0.03)
    assert share_of_a(resolved(world, env=WEIGHTED)) == pytest.approx(0.8, abs=0.03)


@pytest.mark.proves("buffer.seed", "seed")
def test_the_seed_of_the_draw(world: World) -> None:
    def drawn(**spec: Any) -> list[Any]:
        buffer = config_mapping.buffer(resolved(world, **spec), {"a": 50, "b": 50})
        return [buffer.draw() for _ in range(20)]

    assert drawn() != drawn(seed=1)
    assert drawn(seed=1) == drawn(seed=2, buffer={"seed": 1})


@pytest.mark.proves("buffer.easyThreshold", "buffer.hardThreshold", "buffer.easyFraction", "buffer.hardFraction")
def test_pools_are_as_the_run_says(world: World) -> None:
    def normal(reward: float, **more: float) -> float:
        section = {"onlineDifficultyFiltering": True, **more}
        buffer = config_mapping.buffer(resolved(world, buffer=section), {"a": 400, "b": 400})
        for _ in range(1000):
            buffer.record_reward(buffer.draw(["a"]), reward)
        return buffer.metrics()["pool/normal"]

    def out(reward: float, **more: float) -> bool:
        return normal(reward, **more) < 0.9

    assert out(0.8)
    assert not out(0.79)
    assert out(0.7, easyThreshold=0.7)
    assert out(0.2)
    assert not out(0.21)
    assert out(0.3, hardThreshold=0.3)
    for reward, fraction in ((1.0, "easyFraction"), (0.0, "hardFraction")):
        assert normal(reward, **{fraction: 1.0}) == 1.0, "all stay in the draw"
        assert 0.5 < normal(reward, **{fraction: 0.9}) < 1.0
        assert out(reward)


def test_as_many_examples_as_a_batch_has_groups_stay_in_the_draw(world: World) -> None:
    run = resolved(world, buffer={"onlineDifficultyFiltering": True}, batchSize=24, rolloutsPerExample=4)
    buffer = config_mapping.buffer(run, {"a": 400, "b": 400})
    for index in range(400):
        buffer.record_reward(Example("a", index), 1.0)
    assert {buffer.draw(["a"]).index for _ in range(12)} == set(range(6))


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves(
    "difficultyFilter.enabled",
    "difficultyFilter.minRewardVariance",
    "difficultyFilter.maxReward",
    "difficultyFilter.minReward",
)
def test_the_difficulty_filter_is_as_the_run_says(world: World) -> None:
    rules = {"minRewardVariance": 0.1, "maxReward": 0.9, "minReward": 0.1}
    assert config_mapping.filtering(resolved(world)) == GroupFilter()
    assert config_mapping.filtering(resolved(world, difficultyFilter=rules)) == GroupFilter(False, 0.1, 0.9, 0.1)
    assert config_mapping.filtering(resolved(world, difficultyFilter={**rules, "enabled": False})) == GroupFilter()
    online = {"onlineDifficultyFiltering": True}
    assert config_mapping.filtering(resolved(world, buffer=online)) == GroupFilter(online=True)


@pytest.mark.proves("algorithm.filterZeroAdvantages")
def test_rollouts_without_an_advantage_are_left_out_unless_they_carry_another_loss(world: World) -> None:
    def left_out(**spec: Any) -> bool:
        return config_mapping.scoring(resolved(world, **spec)).filter_zero_advantages

    assert left_out()
    assert not left_out(algorithm={"filterZeroAdvantages": False})
    assert not left_out(klPenalty={}), "the penalty applies to their tokens"
    assert left_out(klPenalty={"enabled": False})
    teacher = {"url": "https://teacher.example.org/v1", "model": "m"}
    assert not left_out(algorithm={"name": "distillation", "teacher": teacher}), "no rollout has an advantage"


@pytest.mark.proves(
    "algorithm.advantage",
    "algorithm.maskTruncated",
    "algorithm.lengthPenalty.outputTokensWeight",
    "algorithm.lengthPenalty.inputTokensWeight",
    "algorithm.lengthPenalty.turnsWeight",
)
def test_rewards_become_advantages_as_the_run_says(world: World) -> None:
    penalty = {"outputTokensWeight": 0.5, "inputTokensWeight": 0.0, "turnsWeight": 0.2}
    asked = {"advantage": "maxRl", "maskTruncated": True, "lengthPenalty": penalty}
    found = config_mapping.scoring(resolved(world, algorithm=asked)).algorithm
    assert (found.advantage, found.mask_truncated) == ("maxRl", True)
    assert found.length_penalty == LengthPenalty(output_tokens_weight=0.5, input_tokens_weight=0, turns_weight=0.2)


@pytest.mark.proves("env.digest", "eval.env.digest")
def test_the_digests_of_all_entries_are_pinned_by_package(world: World) -> None:
    first, second, third = (f"sha256:{digit * 64}" for digit in "123")
    run = resolved(
        world,
        env=[{"id": "owner/a", "digest": first}, {"id": "owner/b"}],
        eval={"env": [{"id": "owner/A", "digest": second}, {"id": "owner/exam", "version": "1.0", "digest": third}]},
    )
    assert config_mapping.pinned_digests(run) == {
        PackageRef.of("owner/a", None): {first, second},
        PackageRef.of("owner/exam", "1.0"): {third},
    }


@pytest.mark.proves("env.rolloutTimeoutSeconds", "eval.env.rolloutTimeoutSeconds")
def test_every_deadline_follows_the_time_for_a_rollout(world: World) -> None:
    default = resolved(world, eval={"env": [{"id": "owner/exam"}]})
    for use, name in ((EnvironmentUse.train, "a"), (EnvironmentUse.eval, "exam")):
        assert config_mapping.group_deadlines(default, use)[name] == pytest.approx(1800)
    run = resolved(
        world,
        env=[{"id": "owner/a", "rolloutTimeoutSeconds": 90}, {"id": "owner/b", "rolloutTimeoutSeconds": 3000}],
        eval={"env": [{"id": "owner/exam", "rolloutTimeoutSeconds": 7200}]},
    )
    assert config_mapping.group_deadlines(run, EnvironmentUse.train) == pytest.approx({"a": 100, "b": 10_000 / 3})
    assert config_mapping.group_deadlines(run, EnvironmentUse.eval) == pytest.approx({"exam": 8000})
    # One response of the engine, and what waits for the last evaluation.
    assert config_mapping.longest_group_deadline(run) == pytest.approx(8000)
    assert config_mapping.loop_timeouts(run, OrchestratorSettings()).finish == pytest.approx(8000)
    assert config_mapping.loop_timeouts(default, OrchestratorSettings()).finish == 1800


@pytest.mark.proves(
    "batchSize",
    "rolloutsPerExample",
    "oversamplingFactor",
    "maxAsyncLevel",
    "maxOffPolicySteps",
    "algorithm.sftSteps",
)
def test_the_scheduler_counts_groups(world: World) -> None:
    run = resolved(
        world,
        batchSize=24,
        rolloutsPerExample=4,
        oversamplingFactor=1.5,
        maxAsyncLevel=3,
        maxOffPolicySteps=5,
        algorithm={"sftSteps": 2},
    )
    schedule = config_mapping.run_schedule(run, OrchestratorSettings())
    tracker = config_mapping.group_tracker(run, schedule, GroupCounts())
    limits = tracker.limits
    assert (limits.groups_per_batch, limits.max_groups_in_flight) == (6, 9)
    assert (limits.max_async_level, limits.max_off_policy_steps) == (3, 5)
    assert tracker.schedule is schedule
    assert (schedule.max_steps, schedule.supervised_steps) == (5, 2)


@pytest.mark.proves("tokenBatchSize")
def test_the_scheduler_counts_tokens(world: World) -> None:
    run = resolved(world, tokenBatchSize=1000, batchSize=16, rolloutsPerExample=4)
    schedule = config_mapping.run_schedule(run, OrchestratorSettings())
    limits = config_mapping.group_tracker(run, schedule, GroupCounts()).limits
    assert (limits.tokens_per_batch, limits.groups_per_batch, limits.max_groups_in_flight) == (1000, 4, 8)


@pytest.mark.proves("maxAsyncLevel")
def test_without_asynchrony_every_token_is_of_the_newest_policy(world: World) -> None:
    run = resolved(world, maxAsyncLevel=0, oversamplingFactor=1.0, maxOffPolicySteps=8)
    schedule = config_mapping.run_schedule(run, OrchestratorSettings())
    assert config_mapping.group_tracker(run, schedule, GroupCounts()).limits.max_off_policy_steps == 0


def test_counts_of_the_process_before_add_up(world: World) -> None:
    before = GroupCounts(trained=5, filtered=1, errored=2, stale=3, in_flight=6)
    total = sum(before.model_dump().values())
    run = resolved(world)
    tracker = config_mapping.group_tracker(run, config_mapping.run_schedule(run, OrchestratorSettings()), before)
    batch = SentBatch("x", step=3, ordinals=[7, 8], groups=2, tokens=9, reward=0.5, values={})
    for trained, stale in ((5, 9), (7, 7)):
        counts = tracker.counts()
        assert sum(counts.model_dump().values()) == total
        assert (counts.trained, counts.stale, counts.in_flight) == (trained, stale, 0)
        tracker.return_batch(4, batch)


@pytest.mark.proves("rolloutsPerExample")
def test_environments_are_asked_for_as_many_rollouts_as_the_run_says(world: World) -> None:
    run = resolved(world, batchSize=6, rolloutsPerExample=3)
    assert config_mapping.dispatch(run, OrchestratorSettings()).rollouts_per_example == 3
    assert config_mapping.scoring(run).rollouts_per_example == 3


@pytest.mark.proves("trajectoryStrategy")
def test_turns_are_joined_unless_the_run_says_otherwise(world: World) -> None:
    joined, apart = resolved(world), resolved(world, trajectoryStrategy="branching")
    assert config_mapping.scoring(joined).strategy is TrajectoryStrategy.interleaved
    assert config_mapping.exact_prefixes(joined)
    assert config_mapping.scoring(apart).strategy is TrajectoryStrategy.branching
    assert not config_mapping.exact_prefixes(apart)


@pytest.mark.proves("sampling.seed", "seed")
def test_the_sampling_is_seeded_where_that_makes_it_repeatable(world: World) -> None:
    def seed(**spec: Any) -> int | None:
        return config_mapping.sampling_rules(resolved(world, seed=4, **spec)).sampling.seed

    on_policy = {"maxAsyncLevel": 0, "oversamplingFactor": 1}
    assert seed() is None
    assert seed(**on_policy) == 4
    assert seed(sampling={"maxTokens": 16, "seed": 9}) == 9
    assert seed(sampling={"maxTokens": 16, "seed": 9}, **on_policy) == 9


@pytest.mark.proves("checkpoints.interval", "adapters.interval")
def test_artifacts_are_due_at_their_intervals_and_at_the_end(world: World) -> None:
    run = resolved(world, maxSteps=7, checkpoints={"interval": 3}, adapters={"interval": 2})
    schedule = config_mapping.run_schedule(run, OrchestratorSettings())
    assert [step for step in range(1, 8) if schedule.checkpoint_due(step)] == [3, 6, 7]
    assert [step for step in range(1, 8) if schedule.adapter_due(step)] == [2, 4, 6, 7]


def test_the_first_policy_has_as_long_as_engines_may_take_to_start() -> None:
    timeouts = config_mapping.publish_timeouts(
        OrchestratorSettings(start_deadline=90.0, inference_deadline=60.0, publish_grace=5.0)
    )
    assert (timeouts.first, timeouts.later, timeouts.slow_replicas) == (90.0, 60.0, 5.0)


def test_the_runs_own_start_deadline_is_respected_when_it_is_shorter(world: World) -> None:
    run = resolved(world, startDeadlineSeconds=60)
    assert config_mapping.startup_timeouts(run, OrchestratorSettings(start_deadline=90.0)).component == 60.0
    assert config_mapping.startup_timeouts(run, OrchestratorSettings(start_deadline=30.0)).component == 30.0


# --- the trainer's session --------------------------------------------------------------------------------------------


def session(world: World, **spec: Any) -> SessionSpec:
    run = resolved(world, **spec)
    return session_spec(run, run.spec.max_steps, None)


def test_a_session_defaults_to_the_settings_of_the_model(world: World) -> None:
    spec, model = session(world), resolved(world).model
    assert spec.kind is PolicyKind.adapter
    assert spec.lora == model.lora
    assert spec.kl_penalty is None
    assert (spec.warmup_steps, spec.gradient_accumulation_steps) == (0, 1)


@pytest.mark.proves(
    "lora.rank", "lora.dropout", "lora.targetModules", "lora.enabled", "loraAlpha", "learningRate", "warmupSteps",
    "schedule", "decaySteps", "minLearningRate", "weightDecay", "maxGradNorm",
    "gradientAccumulationSteps", "sampling.temperature", "sampling.topP", "sampling.repetitionPenalty",
    "sampling.minTokens", "loss.ratioType", "loss.ratioLimit", "loss.ratioLow", "loss.ratioHigh",
    "loss.sequenceMeanLow", "loss.sequenceMeanHigh", "loss.sequenceTokenLow", "loss.sequenceTokenHigh",
    "loss.dppo.klTau", "klPenalty.enabled", "klPenalty.beta", "klPenalty.targetKl",
    "seed",
)  # fmt: skip
def test_a_session_has_the_settings_of_the_run(world: World) -> None:
    loss = {
        "ratioType": "sequence",
        "ratioLimit": "ppo",
        "ratioLow": 0.8,
        "ratioHigh": 1.2,
        "sequenceMeanLow": 0.5,
        "sequenceMeanHigh": 2.0,
        "sequenceTokenLow": 0.01,
        "sequenceTokenHigh": 50.0,
    }
    sampling = {"maxTokens": 16, "temperature": 0.7, "topP": 0.9, "repetitionPenalty": 1.1, "minTokens": 2}
    spec = session(
        world,
        lora={"rank": 4, "dropout": 0.1, "targetModules": ["q_proj"]},
        loraAlpha=8,
        learningRate=0.01,
        warmupSteps=3,
        schedule="linear",
        decaySteps=2,
        minLearningRate=0.001,
        weightDecay=0.1,
        maxGradNorm=0.5,
        gradientAccumulationSteps=2,
        loss=loss,
        klPenalty={"beta": 0.2, "targetKl": 0.05},
        sampling=sampling,
        seed=6,
    ).to_json_dict()
    assert spec["kind"] == "adapter"
    assert spec["lora"] == {"rank": 4, "dropout": 0.1, "targetModules": ["q_proj"]}
    assert (spec["loraAlpha"], spec["learningRate"]) == (8, 0.01)
    assert (spec["schedule"], spec["decaySteps"], spec["minLearningRate"]) == ("linear", 2, 0.001)
    assert (spec["weightDecay"], spec["maxGradNorm"]) == (0.1, 0.5)
    assert (spec["warmupSteps"], spec["gradientAccumulationSteps"], spec["seed"]) == (3, 2, 6)
    assert spec["loss"] == loss
    assert spec["klPenalty"] == {"enabled": True, "beta": 0.2, "targetKl": 0.05}
    assert spec["sampling"] == sampling | {"stop": []}
    assert session(world, loss={"dppo": {"klTau": 0.01}}).loss.dppo == Dppo(kl_tau=0.01)
    assert session(world, lora={"enabled": False}).kind is PolicyKind.weights
    without_penalty = session(world, klPenalty={"enabled": False}).kl_penalty
    assert without_penalty is None or not without_penalty.enabled


def test_a_resumed_session_has_no_warm_start(world: World) -> None:
    run = resolved(world).model_copy(update={"warm_start_from": "s3://bucket/other"})
    assert session_spec(run, 5, None).warm_start_from == "s3://bucket/other"
    resumed = session_spec(run, 5, "s3://bucket/own/step-000002")
    assert (resumed.resume_from, resumed.warm_start_from) == ("s3://bucket/own/step-000002", None)


@pytest.mark.proves("checkpointOptimizer")
def test_a_session_may_start_from_the_weights_of_a_checkpoint_only(world: World) -> None:
    weights = resolved(world, checkpointId="other", checkpointOptimizer=False)
    whole = resolved(world, checkpointId="other")
    assert not session_spec(weights, 5, None).warm_start_optimizer
    assert session_spec(whole, 5, None).warm_start_optimizer
    assert session_spec(weights, 5, "s3://bucket/own/step-000002").warm_start_optimizer, "of the run itself"


def test_the_load_of_an_environment_counts_its_pods_and_its_largest_group(world: World) -> None:
    run = resolved(
        world,
        env=[{"id": "owner/a", "replicas": 2, "maxConcurrent": 64}, {"id": "owner/b"}],
        rolloutsPerExample=8,
        val={"interval": 1, "numExamples": 4, "rolloutsPerExample": 16},
        eval={"env": [{"id": "owner/exam", "rolloutsPerExample": 3}, {"id": "owner/test"}], "rolloutsPerExample": 5},
    )
    assert config_mapping.load_limits(run, EnvironmentUse.train) == {
        "a": LoadLimits(64, 2, 16),
        "b": LoadLimits(None, 1, 16),
    }
    assert config_mapping.load_limits(run, EnvironmentUse.eval) == {
        "exam": LoadLimits(None, 1, 3),
        "test": LoadLimits(None, 1, 5),
    }


def test_an_outage_of_a_shared_trainer_ends_an_attempt_only_after_a_day(world: World) -> None:
    run, settings = resolved(world, startDeadlineSeconds=60), OrchestratorSettings(start_deadline=1200.0)
    own = config_mapping.trainer_timeouts(run, settings)
    assert (own.unreachable, own.request) == (900.0, 1200.0)
    assert config_mapping.startup_timeouts(run, settings).trainer == 60.0
    place = {"pool": "rlpool-a", "trainer_url": f"http://{pool_trainer_name('rlpool-a')}.ns.svc:8080"}
    pooled = run.model_copy(update={"endpoints": run.endpoints.model_copy(update=place)})
    shared = config_mapping.trainer_timeouts(pooled, settings)
    assert (shared.unreachable, shared.request) == (86_400.0, 1200.0), "no request may hang for as long"
    startup = config_mapping.startup_timeouts(pooled, settings)
    assert (startup.trainer, startup.component) == (86_400.0, 60.0)
