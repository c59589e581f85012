"""Steps on demonstrations: what is trained, where rollouts begin, and what stops a run that cannot be taught so."""

import asyncio
import json

import pytest
from rlrun.protocol.environment import Demonstration
from rlrun.protocol.orchestrator import RunPhase
from rlrun.protocol.train_batch import SampleLoss

from tests.support.fake_environment import FakeEnvironment
from tests.support.run_processes import World


@pytest.mark.proves("algorithm.sftSteps")
async def test_warm_up_on_demonstrations_then_rollouts(world: World) -> None:
    world.spec |= {"maxSteps": 5, "algorithm": {"sftSteps": 2}}
    await world.start()
    assert await world.run() == 0
    environment = world.environments["words"]
    supervised, rewarded = world.trainer.batches[:2], world.trainer.batches[2:]
    for step, batch in supervised:
        assert len(batch.samples) == 8, "batchSize demonstrations"
        for sample in batch.samples:
            assert sample.loss is SampleLoss.cross_entropy
            assert (sample.policy_version, sample.advantage) == (step, 0.0)
            text = "".join(map(chr, sample.token_ids))
            learnt = "".join(c for c, mask in zip(text, sample.loss_mask, strict=True) if mask)
            number = text.removeprefix("user:example ").partition(";")[0]
            assert text == f"user:example {number};assistant:answer {number};"
            assert learnt == f"answer {number};", "the answer and its end, and not what begins it"
    assert len(set(environment.demonstrated)) == 16, "one pass over the examples before any is repeated"
    for step, batch in rewarded:
        assert {sample.loss for sample in batch.samples} == {SampleLoss.policy}
        assert all(0 <= step - sample.policy_version <= 2 for sample in batch.samples)
        assert all(sample.policy_version >= 2 for sample in batch.samples), "no rollouts in the warm-up"
    assert environment.groups["train"] == sum(world.last_word.groups.model_dump().values())
    lines = world.lines()
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert [("reward/mean" in line, "batch/demonstrations" in line) for line in lines] == [(False, True)] * 2 + [
        (True, False)
    ] * 3


@pytest.mark.proves("algorithm.sftSteps")
async def test_demonstrations_are_rendered_with_the_tools_of_their_environment(world: World) -> None:
    world.spec |= {"maxSteps": 1, "algorithm": {"name": "sft"}}
    add = {"name": "add", "parameters": {}}
    world.environments["words"].tools = [{"type": "function", "function": add | {"strict": True}}]
    await world.start()
    assert await world.run() == 0
    [(_, batch)] = world.trainer.batches
    for sample in batch.samples:
        text = "".join(map(chr, sample.token_ids))
        number = text.removeprefix("tool add;user:example ").partition(";")[0]
        assert text == f"tool add;user:example {number};assistant:answer {number};"
        learnt = "".join(c for c, mask in zip(text, sample.loss_mask, strict=True) if mask)
        assert learnt == f"answer {number};"
    told = [body["tools"] for engine in world.engines for body in engine.tokenizations]
    assert told
    assert all(tools == [{"type": "function", "function": add}] for tools in told), "rollouts have no strict tools"


@pytest.mark.proves("sampling.enableThinking")
async def test_demonstrations_and_rollouts_are_rendered_with_the_same_variables_of_the_template(world: World) -> None:
    world.spec |= {"maxSteps": 2, "algorithm": {"sftSteps": 1}}
    world.spec["sampling"] = world.spec.get("sampling", {}) | {"enableThinking": False}
    await world.start()
    assert await world.run() == 0
    rendered = [body for engine in world.engines for body in (*engine.tokenizations, *engine.requests)]
    assert any("add_generation_prompt" in body for body in rendered), "demonstrations"
    assert any("max_tokens" in body for body in rendered), "rollouts"
    assert {json.dumps(body.get("chat_template_kwargs")) for body in rendered} == {'{"enable_thinking": false}'}


@pytest.mark.proves("env.sampling.enableThinking", "env.sampling.reasoningEffort")
async def test_demonstrations_of_an_environment_are_rendered_with_its_own_variables(world: World) -> None:
    world.spec |= {"maxSteps": 1, "algorithm": {"name": "sft"}}
    world.spec["sampling"] = {"maxTokens": 16, "reasoningEffort": "high"}
    world.environments["sums"] = FakeEnvironment("sums")
    own = {"id": "owner/sums", "sampling": {"enableThinking": False, "reasoningEffort": "low"}}
    world.spec["env"] = [{"id": "owner/words"}, own]
    await world.start()
    assert await world.run() == 0
    assert world.environments["words"].demonstrated
    assert world.environments["sums"].demonstrated
    rendered = [body["chat_template_kwargs"] for engine in world.engines for body in engine.tokenizations]
    assert {json.dumps(variables) for variables in rendered} == {
        '{"reasoning_effort": "high"}',
        '{"enable_thinking": false, "reasoning_effort": "low"}',
    }


@pytest.mark.proves("algorithm.name", "batchSize")
@pytest.mark.parametrize("rollouts", [1, 4])
async def test_a_run_of_demonstrations_only(world: World, rollouts: int) -> None:
    world.spec |= {"algorithm": {"name": "sft"}, "batchSize": 12, "rolloutsPerExample": rollouts}
    await world.start()
    assert await world.run() == 0
    assert [len(batch.samples) for _, batch in world.trainer.batches] == [12] * 5
    assert not world.environments["words"].groups["train"]
    status = world.last_word
    assert (status.phase, status.reward, status.groups.trained) == (RunPhase.completed, None, 0)


async def test_a_resumed_supervised_run_draws_each_example_before_repeating_one(world: World) -> None:
    world.spec |= {"algorithm": {"name": "sft"}, "maxSteps": 2, "checkpoints": {"interval": 2}}
    await world.start()
    assert await world.run() == 0
    world.trainer.restart()
    world.spec["maxSteps"] = 4
    assert await world.run() == 0
    drawn = world.environments["words"].demonstrated
    assert sorted(drawn[:20]) == list(range(20)), "32 draws of 20 examples: every one before any a second time"
    assert len(drawn) == 32


async def test_a_trainer_that_dies_in_the_warm_up_is_taught_the_same_again(world: World) -> None:
    world.spec |= {"algorithm": {"sftSteps": 4}, "checkpoints": {"interval": 2}}
    world.trainer.die_before = {3}
    await world.start()
    assert await world.run() == 0
    assert [step for step, _ in world.trainer.batches] == [0, 1, 2, 2, 3, 4]
    assert world.trainer.batches[2][1] == world.trainer.batches[3][1]


async def test_an_environment_without_demonstrations_ends_the_run_in_clear_words(world: World) -> None:
    world.spec["algorithm"] = {"sftSteps": 1}
    world.environments["words"].shows = False
    await world.start()
    assert await world.run() == 64
    problem = world.last_word.problem
    assert problem
    assert problem.reason == "DemonstrationsMissing"
    assert "algorithm.sftSteps" in problem.message
    assert "its columns are question" in problem.message


async def test_a_template_that_changes_the_prompt_once_the_answer_follows_is_refused(world: World) -> None:
    world.spec["algorithm"] = {"name": "sft"}
    for engine in world.engines:
        engine.thoughtful = True
    await world.start()
    assert await world.run() == 64
    assert world.last_word.problem
    assert world.last_word.problem.reason == "ChatTemplateMismatch"
    assert not world.trainer.batches


async def test_demonstrations_that_do_not_fit_end_the_run(world: World) -> None:
    world.spec["algorithm"] = {"name": "sft"}
    world.seq_len = 16
    await world.start()
    assert await world.run() == 64
    assert world.last_word.problem
    assert world.last_word.problem.reason == "DemonstrationsTooLong"


async def test_a_demonstration_with_an_image_ends_the_run_with_the_reason(world: World) -> None:
    world.spec["algorithm"] = {"name": "sft"}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    world.environments["words"].demonstration = Demonstration(
        prompt=[{"role": "user", "content": [{"type": "text", "text": "what is it?"}, image]}],
        completion=[{"role": "assistant", "content": "a cat"}],
    )
    await world.start()
    assert await world.run() == 64
    assert world.last_word.problem
    assert world.last_word.problem.reason == "DemonstrationsInvalid"
    assert "messages[0].content[1] is of type image_url" in world.last_word.problem.message


async def test_an_environment_that_is_away_is_waited_for(world: World) -> None:
    world.spec["algorithm"] = {"name": "sft"}
    await world.start()
    environment = world.environments["words"]
    running = asyncio.create_task(world.run())
    await world.until(lambda: len(world.trainer.batches) >= 2)
    environment.away = True
    await world.until(lambda: environment.turned_away >= 2)
    environment.away = False
    assert await running == 0
    assert len(world.trainer.batches) == 5
