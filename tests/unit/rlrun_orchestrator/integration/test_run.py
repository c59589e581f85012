"""Whole runs: the real orchestrator against small servers."""

import asyncio
import itertools
import threading
from collections import Counter
from typing import Any

import aiohttp
import pytest
from rlrun.protocol.environment import GroupRequest, Split
from rlrun.protocol.orchestrator import RunPhase
from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import StepResult
from rlrun.storage.samples.record import SampleSplit, SampleStatus
from rlrun_orchestrator.data.groups import GroupState
from rlrun_orchestrator.data.scoring import score_group
from rlrun_orchestrator.rollouts import dispatcher

from tests.support.fake_environment import FakeEnvironment
from tests.support.images.stub_trainer.agreement import versions_of
from tests.support.policy_refs import policy
from tests.support.run_processes import RUN_URI, World


async def test_a_run_of_five_steps(world: World) -> None:
    await world.start()
    assert await world.run() == 0
    status = world.last_word
    assert status.phase is RunPhase.completed
    assert (status.step, status.max_steps, status.policy_version) == (5, 5, status.policy_version)
    assert status.reward == 0.4375
    assert status.groups.trained == 10
    assert status.groups.in_flight == 0
    dispatched = world.environments["words"].groups["train"]
    c = status.groups
    assert c.trained + c.filtered + c.errored + c.stale == dispatched
    assert status.mismatch_kl is not None
    assert abs(status.mismatch_kl - 0.003) < 1e-9
    assert status.waiting_for is None
    assert status.problem is None

    assert [step for step, _ in world.trainer.batches] == [0, 1, 2, 3, 4]
    for step, batch in world.trainer.batches:
        assert len(batch.samples) == 8
        for sample in batch.samples:
            assert 0 <= step - sample.policy_version <= 2
            assert len(sample.token_ids) == len(sample.loss_mask) == len(sample.logprobs)
            # Two turns of "<nnn>" in one sequence: what the environment said in between is masked.
            text = "".join(map(chr, sample.token_ids))
            drawn = "".join(c if m else "." for c, m in zip(text, sample.loss_mask, strict=True))
            assert text.startswith("example ")
            assert drawn.count("<") == drawn.count(">") == 2
            assert all((p < 0) == m for p, m in zip(sample.logprobs, sample.loss_mask, strict=True))
        assert Counter(round(s.advantage, 4) for s in batch.samples) == Counter(
            {-0.4375: 2, 0.5625: 2, 0.0625: 2, -0.1875: 2}
        )
    assert world.trainer.checkpoints == {2, 4, 5}
    assert world.trainer.adapters == {5}
    assert world.trainer.adapter_states[-1]["reward"] == 0.4375

    lines = world.lines()
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    expected = {"reward/mean", "seq_len/mean", "is_truncated/mean", "batch/off_policy_level/max", "loss/mean"}
    expected |= {"time/step", "time/wait_for_policy"}
    assert expected <= lines[-1].keys()
    assert lines[-1]["batch/prefix_breaks"] == 0.0
    rollouts = world.rollouts(3)
    assert len(rollouts) == 8
    assert {line["turns"] for line in rollouts} == {2}


async def test_engines_get_the_runs_distribution_and_both_serve(world: World) -> None:
    world.spec["sampling"] = {"maxTokens": 16, "temperature": 0.7, "seed": 3}
    await world.start()
    assert await world.run() == 0
    requests = [request for engine in world.engines for request in engine.requests]
    assert all(engine.requests for engine in world.engines)
    assert {(r["temperature"], r["max_tokens"], r["top_k"], r["logprobs"]) for r in requests} == {(0.7, 16, 0, True)}
    assert len({r["seed"] for r in requests}) == len(requests)


@pytest.mark.proves(
    "env.sampling.maxTokens",
    "env.sampling.temperature",
    "env.sampling.topP",
    "env.sampling.minP",
    "env.sampling.enableThinking",
    "env.sampling.reasoningEffort",
)
async def test_an_environment_is_sampled_and_trained_with_its_own_parameters(world: World) -> None:
    own = {"maxTokens": 8, "temperature": 0.5, "topP": 0.9, "minP": 0.1}
    world.environments["sums"] = FakeEnvironment("sums")
    entry = {"id": "owner/sums", "sampling": own | {"enableThinking": False, "reasoningEffort": "low"}}
    world.spec |= {
        "sampling": {"maxTokens": 16, "minTokens": 1},
        "env": [{"id": "owner/words"}, entry],
        "val": {"interval": 1, "numExamples": 2},
        "maxSteps": 2,
    }
    await world.start()
    assert await world.run() == 0
    sent = {
        (r["max_tokens"], r["temperature"], r["top_p"], r["min_p"], str(r.get("chat_template_kwargs")))
        for engine in world.engines
        for r in engine.requests
    }
    variables = "{'enable_thinking': False, 'reasoning_effort': 'low'}"
    assert sent == {(16, 1.0, 1.0, 0.0, "None"), (8, 0.5, 0.9, 0.1, variables)}
    for name, expected in (("words", (1.0, 16)), ("sums", (0.5, 8))):
        asked = world.environments[name].requests
        assert {request.split for request in asked} == {Split.train, Split.eval}, name
        assert {(r.sampling["temperature"], r.sampling["max_tokens"]) for r in asked} == {expected}
    samples = [sample for _, batch in world.trainer.batches for sample in batch.samples]
    told = [sample.sampling for sample in samples if sample.sampling is not None]
    assert 0 < len(told) < len(samples)
    assert {(s.temperature, s.top_p, s.min_p) for s in told} == {(0.5, 0.9, 0.1)}


@pytest.mark.proves("tokenBatchSize")
async def test_a_step_takes_groups_until_they_have_enough_tokens(world: World) -> None:
    world.spec |= {"tokenBatchSize": 400, "batchSize": 4, "maxSteps": 6}
    world.environments["long"] = FakeEnvironment("long", turns=8)
    await world.start()
    assert await world.run() == 0
    assert len(world.trainer.batches) == 6
    counts = set()
    for _, batch in world.trainer.batches:
        lengths = [len(sample.token_ids) for sample in batch.samples]
        groups = [sum(lengths[i : i + 4]) for i in range(0, len(lengths), 4)]
        assert sum(groups) - max(groups) < 400 <= sum(groups)
        counts.add(len(groups))
    assert len(counts) > 1, "groups of the two environments differ in length"


async def test_level_zero_trains_only_on_the_current_policy(world: World) -> None:
    world.spec |= {"maxAsyncLevel": 0, "oversamplingFactor": 1}
    await world.start()
    assert await world.run() == 0
    for step, batch in world.trainer.batches:
        assert {sample.policy_version for sample in batch.samples} == {step}
    assert world.last_word.groups.stale == 0
    assert world.environments["words"].groups["train"] == 10, "exactly what is needed"


async def test_each_turn_of_a_long_rollout_is_sampled_by_the_newest_policy(world: World) -> None:
    world.spec |= {"maxSteps": 8}
    words, long_examples = world.environments["words"], set[int]()
    words.examples = 100

    async def wait_in_the_first_group(asked: GroupRequest, turn: int) -> None:
        if asked.group_id == words.requests[0].group_id:
            long_examples.add(asked.example_index)
            await world.until(lambda: newest_loaded(world) >= 5)

    words.between_turns = wait_in_the_first_group
    await world.start()
    assert await world.run() == 0
    (example,) = long_examples
    samples = [
        (step, sample)
        for step, batch in world.trainer.batches
        for sample in batch.samples
        if "".join(map(chr, sample.token_ids)).startswith(f"example {example}<") and sample.turn_versions
    ]
    assert len(samples) == 4, "the group took more than maxAsyncLevel steps and is trained all the same"
    for step, sample in samples:
        assert sample.policy_version == 0
        assert sample.turn_versions is not None
        first, second = runs_of(versions_of(sample), sample.loss_mask)
        assert first == {0}
        assert min(second) >= 4, "the second turn began after these publications"
        assert max(second) <= step
    asked = [request for engine in world.engines for request in engine.requests]
    second_turns = [r for r in asked if r["messages"][0]["content"].startswith(f"example {example}<")]
    served = {int(request["model"][8:14]) for request in second_turns}
    assert served == set().union(*(runs_of(versions_of(s), s.loss_mask)[1] for _, s in samples))
    assert world.last_word.groups.stale == 0
    last = max(step for step, _ in samples)
    line = world.lines()[last]
    assert line["batch/off_policy_level/max"] == last
    assert line["batch/policies_per_rollout"] > 1
    records = [record for record in world.rollouts(last + 1) if record["example"] == example]
    assert {(record["policyVersion"], record["staleness"]) for record in records} == {(0, last)}


def newest_loaded(world: World) -> int:
    """Return the newest version that an engine has loaded."""
    return max((int(name[8:14]) for engine in world.engines for name in engine.loads), default=0)


def runs_of(versions: list[int], mask: list[bool]) -> list[set[int]]:
    """Return the versions of each stretch of sampled tokens."""
    pairs = itertools.groupby(zip(versions, mask, strict=True), key=lambda pair: pair[1])
    return [{version for version, _ in stretch} for sampled, stretch in pairs if sampled]


@pytest.mark.proves("maxOffPolicySteps")
async def test_the_example_of_a_group_that_takes_too_long_is_drawn_again_at_most_twice(world: World) -> None:
    world.spec |= {"maxSteps": 16, "maxOffPolicySteps": 2}
    words = world.environments["words"]

    async def never_end_the_first_example(asked: GroupRequest, turn: int) -> None:
        if asked.example_index == words.requests[0].example_index:
            await asyncio.Event().wait()

    words.between_turns = never_end_the_first_example
    await world.start()
    assert await world.run() == 0
    requests = [asked for asked in words.requests if asked.example_index == words.requests[0].example_index]
    assert len(requests) == 3, "drawn, and twice again"
    totals = {
        name: sum(line[f"batch/{name}"] for line in world.lines())
        for name in ("stale_rollouts", "redrawn_examples", "lost_examples")
    }
    assert totals == {"stale_rollouts": 12.0, "redrawn_examples": 2.0, "lost_examples": 1.0}
    status = world.last_word
    assert status.groups.stale >= 3
    drawn = [line["drawn_completion_len/min"] for line in world.lines() if "drawn_completion_len/min" in line]
    assert min(drawn) < min(line["completion_len/min"] for line in world.lines()), "the half-finished ones count"


async def test_the_trained_share_of_each_environment_is_beside_its_weight(world: World) -> None:
    world.environments["sums"] = FakeEnvironment("sums")
    world.spec["env"] = [{"id": "owner/words", "weight": 3}, {"id": "owner/sums", "weight": 1}]
    await world.start()
    assert await world.run() == 0
    for line in world.lines():
        assert (line["env_share/words/weight"], line["env_share/sums/weight"]) == (0.75, 0.25)
        assert line["env_share/words/trained"] + line["env_share/sums/trained"] == 1.0
        environments = Counter(record["environment"] for record in world.rollouts(line["step"]))
        assert line["env_share/sums/trained"] == environments["sums"] / 8


@pytest.mark.slow
async def test_a_replaced_trainer_goes_on_from_the_newest_checkpoint(world: World) -> None:
    world.trainer.die_before = {3}
    await world.start()
    assert await world.run() == 0
    assert [step for step, _ in world.trainer.batches] == [0, 1, 2, 2, 3, 4]
    assert world.trainer.opened[-1].resume_from == f"{RUN_URI}/checkpoints/step-000002"
    status = world.last_word
    assert status.phase is RunPhase.completed
    assert status.groups.trained == 12
    # Version 3 was trained twice and is another policy each time: nothing of the first one may be trained on.
    served = {name for engine in world.engines for name in engine.loads if name.startswith("policy-v000003-")}
    assert len(served) == 2
    assert "trainer_restarts" in str(world.lines()[-1])
    assert world.lines()[-1]["progress/trainer_restarts"] == 1.0
    lost = [s.counts.get(SampleStatus.stale, 0) for s in world.summaries() if s.split is SampleSplit.filtered]
    assert sum(lost) >= 8, "the batch in hand"


async def test_a_trainer_replaced_before_the_first_checkpoint_starts_again(world: World) -> None:
    world.trainer.die_before = {1}
    await world.start()
    assert await world.run() == 0
    assert [step for step, _ in world.trainer.batches] == [0, 0, 1, 2, 3, 4]
    assert world.trainer.opened[-1].resume_from is None


async def test_a_restarted_replica_gets_its_adapters_again(world: World) -> None:
    world.spec["maxSteps"] = 8
    await world.start()
    running = asyncio.create_task(world.run())
    await world.until(lambda: len(world.trainer.batches) >= 2)
    world.engines[0].restart()
    world.endpoints.pop(1)
    world.engines[1].broken = True
    assert await running == 0
    assert world.last_word.groups.errored == 0
    loaded = Counter(world.engines[0].loads)
    assert max(loaded.values()) == 2, "what was still in use was loaded a second time"


async def test_one_bad_replica_does_not_stop_the_run(world: World) -> None:
    world.engines[0].refuses_loads = True
    await world.start()
    assert await world.run() == 0
    assert not world.engines[0].requests
    assert world.last_word.groups.trained == 10


async def test_engines_that_ignore_adapters_end_the_run_with_the_reason(world: World) -> None:
    for engine in world.engines:
        engine.ignores_adapters = True
    await world.start()
    assert await world.run() == 64
    assert world.last_word.problem
    assert world.last_word.problem.reason == "AdapterIgnored"
    assert not world.trainer.batches


async def test_one_engine_that_ignores_adapters_does_not_stop_the_run(world: World) -> None:
    world.engines[0].ignores_adapters = True
    await world.start()
    assert await world.run() == 0
    assert not world.engines[0].requests


async def test_run_without_replicas_fails_with_a_reason(world: World) -> None:
    world.settings |= {"inference_deadline": 0.3, "start_deadline": 0.3}
    await world.start()
    world.endpoints.clear()
    assert await world.run() == 1
    assert world.last_word.phase is RunPhase.failed
    assert world.last_word.problem
    assert world.last_word.problem.reason == "WaitingForInference"


async def test_unused_adapters_are_unloaded(world: World) -> None:
    world.spec["maxSteps"] = 10
    await world.start()
    assert await world.run() == 0
    for engine in world.engines:
        assert engine.unloads
        assert len(engine.adapters) <= 5


async def test_a_lost_environment_is_waited_for(world: World) -> None:
    world.spec["maxSteps"] = 6
    await world.start()
    environment = world.environments["words"]
    running = asyncio.create_task(world.run())
    await world.until(lambda: len(world.trainer.batches) >= 2)
    environment.away = True
    await world.until_waiting("WaitingForEnvironment")
    environment.away = False
    assert await running == 0


async def test_failing_rewards_are_counted_shown_and_not_trained_on(world: World) -> None:
    world.environments["words"].reward_error = Problem(reason="RewardFunctionError", message="ZeroDivisionError: x")
    await world.start()
    assert await world.run() == 0
    status = world.last_word
    assert status.reward_errors >= 20
    (warning,) = status.warnings
    assert warning.reason == "RewardFunctionErrors"
    assert "ZeroDivisionError" in warning.message
    assert all(len(batch.samples) == 8 for _, batch in world.trainer.batches), "a batch is filled by valid rollouts"
    assert {line["batch/missing_rollouts"] for line in world.lines()} == {8.0}


async def test_warnings_of_the_trainer_are_shown(world: World) -> None:
    world.trainer.warnings = [
        Problem(reason="PackingDisabled", message="one sample per row"),
        Problem(reason="LoraTargetsIncomplete", message="2 of linear_attn"),
    ]
    world.trainer.step_warnings = [Problem(reason="AdapterWithoutGradient", message="layers.0.indexer.wk")]
    await world.start()
    assert await world.run() == 0
    assert {w.reason: w.message for w in world.last_word.warnings} == {
        "PackingDisabled": "one sample per row",
        "LoraTargetsIncomplete": "2 of linear_attn",
        "AdapterWithoutGradient": "layers.0.indexer.wk",
    }


@pytest.mark.slow
async def test_batches_of_errors_end_the_run_with_the_last_error(world: World) -> None:
    world.spec |= {"batchSize": 4, "rolloutsPerExample": 2}
    environment = world.environments["words"]
    environment.reward_error = Problem(reason="RewardFunctionError", message="KeyError: 'answer'")
    await world.start()
    assert await world.run() == 64
    problem = world.last_word.problem
    assert problem
    assert problem.reason == "EmptyBatches"
    assert "KeyError" in problem.message
    assert not world.trainer.batches


async def test_online_filtering_drops_groups_without_a_signal(world: World) -> None:
    world.environments["words"].rewards = [1.0]
    world.spec["buffer"] = {"onlineDifficultyFiltering": True}
    await world.start()
    assert await world.run() == 64
    status = world.last_word
    assert status.problem
    assert "onlineDifficultyFiltering" in status.problem.message
    assert status.groups.filtered >= 10


@pytest.mark.proves("algorithm.filterZeroAdvantages")
@pytest.mark.parametrize(("leave_out", "trained"), [(True, 4), (False, 8)])
async def test_rollouts_without_an_advantage_are_not_sent_to_the_trainer(
    world: World, leave_out: bool, trained: int
) -> None:
    world.environments["words"].rewards = [0.5, 0.0, 1.0, 0.5]
    world.spec["algorithm"] = {"filterZeroAdvantages": leave_out}
    await world.start()
    assert await world.run() == 0
    assert {len(batch.samples) for _, batch in world.trainer.batches} == {trained}
    assert all(sample.advantage for _, batch in world.trainer.batches for sample in batch.samples) is leave_out
    for line in world.lines():
        assert line["batch/effective_batch_size"] == trained
        assert line["batch/zero_advantage_rollouts"] == 8 - trained
        assert line["reward/mean"] == 0.5
        assert (line["progress/samples"], line["progress/problems"]) == (trained, 2)
        records = Counter((record["status"], record.get("cause")) for record in world.rollouts(int(line["step"])))
        left_out = {("filtered", "zero_advantage"): 8 - trained} if leave_out else {}
        assert records == {("trained", None): trained, **left_out}
    assert world.last_word.groups.trained == 10


async def test_a_batch_without_any_advantage_is_dropped_and_the_next_takes_its_place(world: World) -> None:
    """Most groups have equal rewards: steps are made with the others, and no group is lost from the counts."""
    environment = world.environments["words"]
    environment.reward_of = lambda said: float(int(said.strip("<>")) % 8 == 0)
    for engine in world.engines:
        engine.seeded = True
    world.spec |= {"sampling": {"maxTokens": 16, "seed": 1}, "batchSize": 4}
    await world.start()
    assert await world.run() == 0
    assert [step for step, _ in world.trainer.batches] == list(range(5))
    assert all(batch.samples for _, batch in world.trainer.batches)
    groups = world.last_word.groups
    assert groups.trained == 5
    assert groups.filtered > 0
    dropped = [record for step in range(1, 6) for record in filtered_rollouts(world, step)]
    assert {record["cause"] for record in dropped} == {"zero_advantage"}
    assert sum(line["filtered_rollouts/zero_advantage"] for line in world.lines()) > 0


def filtered_rollouts(world: World, step: int) -> list[dict[str, Any]]:
    """The rollouts that were filtered before `step`, none if there is no such file."""
    try:
        return world.rollouts(step, "filtered")
    except KeyError:
        return []


async def test_a_run_without_any_advantage_ends_with_empty_batches(world: World) -> None:
    world.environments["words"].rewards = [1.0]
    await world.start()
    assert await world.run() == 64
    status = world.last_word
    assert status.problem
    assert status.problem.reason == "EmptyBatches"
    assert "zero_advantage" in status.problem.message
    assert not world.trainer.batches
    assert (status.groups.trained, status.step) == (0, 0)
    assert status.groups.filtered >= 38, "each one of a dropped batch is counted"
    assert {record["cause"] for record in world.rollouts(1, "filtered")} == {"zero_advantage"}, "for people to read"


async def test_a_run_that_trains_on_all_rollouts_goes_on_without_any_advantage(world: World) -> None:
    world.environments["words"].rewards = [1.0]
    world.spec["algorithm"] = {"filterZeroAdvantages": False}
    await world.start()
    assert await world.run() == 0
    assert all(len(batch.samples) == 8 for _, batch in world.trainer.batches)


async def test_an_environment_problem_ends_the_run_with_its_message(world: World) -> None:
    world.environments["words"].problem = Problem(reason="EnvironmentLoadFailed", message="no module named foo")
    await world.start()
    assert await world.run() == 64
    assert world.last_word.problem == world.environments["words"].problem


async def test_a_trainer_out_of_memory_ends_the_run_with_its_message(world: World) -> None:
    told = Problem(reason="TrainerOutOfMemory", message="lower microBatchTokens")
    world.trainer.answer = (507, told)
    await world.start()
    assert await world.run() == 64
    assert world.last_word.problem == told


@pytest.mark.parametrize("step", [0, 2, 5], ids=["the step before", "the step after", "the last"])
async def test_a_result_of_another_step_ends_the_attempt_and_is_not_reported(world: World, step: int) -> None:
    await world.start()
    world.trainer.answer = (200, StepResult(step=step, policy=policy(step, RUN_URI), metrics={"loss/mean": 0.1}))
    assert await world.run() == 1
    problem = world.last_word.problem
    assert problem is not None
    assert problem.reason == "StepResultInvalid"
    assert f"returned a result of step {step}" in problem.message
    assert world.lines() == []
    assert world.last_word.step == 0


async def test_an_orchestrator_that_was_replaced_ends_and_stores_nothing_more(world: World) -> None:
    """As one on a node that was cut off, whose pod counts as lost."""
    await world.start()
    world.trainer.superseded_before = {2}
    assert await world.run() == 1
    problem = world.last_word.problem
    assert problem is not None
    assert problem.reason == "OrchestratorSuperseded"
    assert world.store.objects[f"{RUN_URI}/orchestrator/state-000002.json"] == world.trainer.stored_by_another
    # What it had sent for S3 before may still arrive, in a file that nobody reads any more.
    world.store.objects[f"{RUN_URI}/orchestrator/state-000001.json"] = b'{"version": 0}'
    assert await world.run() == 0
    assert [step for step, _ in world.trainer.batches] == [0, 1, 2, 3, 4]
    assert [line["step"] for line in world.lines()] == [1, 2, 3, 4, 5]


async def test_a_restarted_orchestrator_goes_on_where_the_trainer_is(world: World) -> None:
    await world.start()
    running = asyncio.create_task(world.run())
    await world.until(lambda: len(world.trainer.batches) >= 3)
    world.stop.set()
    assert await running == 1
    world.stop.clear()
    before = world.last_word
    assert before.phase is RunPhase.running
    assert await world.run() == 0
    steps = [step for step, _ in world.trainer.batches]
    assert steps == [0, 1, 2, 3, 4]
    assert world.last_word.started_at == before.started_at
    assert world.last_word.groups.trained >= 8
    c = world.last_word.groups
    assert c.trained + c.filtered + c.errored + c.stale <= world.environments["words"].groups["train"]


async def test_a_finished_run_that_is_started_again_completes_at_once(world: World) -> None:
    await world.start()
    assert await world.run() == 0
    assert await world.run() == 0
    assert world.last_word.step == 5
    assert len(world.trainer.batches) == 5


async def test_evaluation_and_validation_run_beside_training(world: World) -> None:
    world.eval_environments["exam"] = FakeEnvironment("exam", rewards=[1.0, 0.0])
    world.spec |= {
        "env": [{"id": "owner/words", "rolloutTimeoutSeconds": 2700}],
        "eval": {
            "interval": 2,
            "rolloutsPerExample": 2,
            "env": [{"id": "owner/exam", "rolloutTimeoutSeconds": 7200}],
        },
        "val": {"interval": 5, "numExamples": 2},
    }
    await world.start()
    assert await world.run() == 0
    deadlines = {request.deadline_seconds for request in world.environments["words"].requests}
    assert deadlines == {3000}, "in training and in validation"
    assert {request.deadline_seconds for request in world.eval_environments["exam"].requests} == {8000}
    lines = world.lines()
    measured = {line["step"]: line for line in lines if "eval/exam/avg@2" in line}
    assert 5 in measured, "the final policy is always evaluated"
    assert measured[5]["eval/exam/avg@2"] == 0.5
    assert measured[5]["eval/exam/pass@2"] == 1.0
    assert {record["status"] for record in world.rollouts(5, "eval-exam")} == {"measured"}
    for split, environment in ((SampleSplit.eval, "exam"), (SampleSplit.val, "words")):
        summaries = [s for s in world.summaries() if s.split is split]
        assert {s.environment for s in summaries} == {environment}
        for summary in summaries:
            records = world.rollouts(summary.step, f"{split}-{environment}")
            assert len(records) == sum(summary.counts.values())
    assert any("val_reward/words/mean" in line for line in lines)
    policies = {request.model for request in world.eval_environments["exam"].requests}
    assert {name[:14] for name in policies} >= {"policy-v000000", "policy-v000005"}
    assert world.environments["words"].groups["eval"] == 2


async def test_prometheus_metrics_follow_the_run(world: World) -> None:
    world.spec["maxSteps"] = 30
    await world.start()
    running = asyncio.create_task(world.run())
    await world.until(lambda: len(world.trainer.batches) >= 3)
    async with aiohttp.ClientSession() as http:
        async with http.get(f"http://127.0.0.1:{world.status_port}/metrics") as answer:
            text = await answer.text()
        async with http.get(f"http://127.0.0.1:{world.status_port}/readyz") as answer:
            assert answer.status == 200
    world.stop.set()
    assert await running == 1
    assert "rlrun_reward_mean 0.4375" in text
    assert 'rlrun_groups_total{outcome="trained"}' in text
    assert 'rlrun_inference_replicas{state="serving"} ' in text


@pytest.mark.proves("difficultyFilter.maxReward")
async def test_run_with_only_easy_groups_names_the_filter_rule(world: World) -> None:
    world.environments["words"].rewards = [0.9, 1.0]
    world.spec["difficultyFilter"] = {"maxReward": 0.9}
    await world.start()
    assert await world.run() == 64
    problem = world.last_word.problem
    assert problem
    assert problem.reason == "EmptyBatches"
    assert problem.message.startswith("none of the last 40 groups")
    assert "high_reward" in problem.message
    assert world.last_word.groups.filtered >= 10


@pytest.mark.proves("difficultyFilter.minRewardVariance")
async def test_filtered_rollouts_are_counted_by_cause(world: World) -> None:
    environment = world.environments["words"]
    environment.reward_of = lambda said: float(int(said.strip("<>")) % 8 == 0)
    # Answers from seeds: numbers in the order of the requests can leave out every eighth for five batches.
    for engine in world.engines:
        engine.seeded = True
    world.spec["sampling"] = {"maxTokens": 16, "seed": 1}
    world.spec["difficultyFilter"] = {"minRewardVariance": 0.0}
    await world.start()
    assert await world.run() == 0
    lines = world.lines()
    causes = sum(line["filtered_rollouts/low_variance"] for line in lines)
    assert causes == sum(line["filtered_rollouts"] for line in lines) > 0
    assert all(line["filtered_rollouts/all_zero"] == 0.0 for line in lines)
    for _, batch in world.trainer.batches:
        assert any(sample.advantage != 0 for sample in batch.samples), "every group teaches something"
    stored = [s for s in world.summaries() if s.split is SampleSplit.filtered]
    count = sum(s.counts.get(SampleStatus.filtered, 0) for s in stored)
    assert 0 < count <= causes <= count + sum(s.omitted for s in stored)
    records = [record for s in stored for record in world.rollouts(s.step, "filtered")]
    low = [record for record in records if record["status"] == "filtered"]
    assert {record["cause"] for record in low} == {"low_variance"}
    assert all(record["completion"] for record in low)


@pytest.mark.proves("samples.redact")
async def test_redacted_fields_of_rollouts_are_not_stored(world: World) -> None:
    world.spec["samples"] = {"redact": ["completion"]}
    await world.start()
    assert await world.run() == 0
    for step in range(1, 6):
        for record in world.rollouts(step):
            assert {message["content"] for message in record["completion"]} == {"[redacted]"}
            assert record["redacted"] == ["completion"]


async def test_each_step_has_a_summary_of_its_rollouts(world: World) -> None:
    await world.start()
    assert await world.run() == 0
    found = [s for s in world.summaries() if s.split is SampleSplit.train]
    assert [s.step for s in found] == [1, 2, 3, 4, 5]
    for summary in found:
        assert summary.counts == {SampleStatus.trained: 8}
        assert summary.size == len(world.store.objects[f"{RUN_URI}/rollouts/{summary.file}"])
        assert summary.reward is not None
        assert summary.reward.mean == 0.4375
        records = world.rollouts(summary.step)
        assert {(r["environment"], r["example"]) for r in records} == {group[:2] for group in summary.groups}
        assert {(r["v"], r["split"], r["status"], r["step"]) for r in records} == {
            (2, "train", "trained", summary.step)
        }
        assert all(r["logprob"]["mean"] <= 0 and r["tokens"]["completion"] > 0 for r in records)


async def test_long_rollouts_are_scored_beside_the_event_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set[int]()

    def scored(*arguments: Any) -> GroupState:
        threads.add(threading.get_ident())
        return score_group(*arguments)

    monkeypatch.setattr(dispatcher, "score_group", scored)
    monkeypatch.setattr(dispatcher, "SCORED_ASIDE", 0)
    await world.start()
    assert await world.run() == 0
    assert threads
    assert threading.get_ident() not in threads
