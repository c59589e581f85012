"""Batches of demonstrations: the examples that a saved state contains, and what ends a run."""

import asyncio
from typing import Any

import pytest
from rlrun.protocol.environment import Demonstration, DemonstrationRequest, EnvironmentInfo
from rlrun.protocol.problem import Problem
from rlrun.service.errors import FatalError, ServiceUnavailable
from rlrun_orchestrator.data.example_buffer import BufferSettings, ExampleBuffer
from rlrun_orchestrator.data.example_sampler import ExampleSampler
from rlrun_orchestrator.rollouts.demonstrations import DemonstrationLoader
from rlrun_orchestrator.rollouts.environments import EnvironmentPool

EXAMPLES, BATCH, SEQ_LEN = 12, 4, 100
AWAY = Problem(reason="EnvironmentUnreachable", message="no answer")


class Environment:
    """A server of demonstrations."""

    name = "words"

    def __init__(self) -> None:
        self.too_long: set[int] = set()
        """Examples whose prompts fill the sequence."""
        self.answer = "yes"
        self.is_away = False

    async def info(self) -> EnvironmentInfo:
        if self.is_away:
            raise ServiceUnavailable(AWAY)
        return EnvironmentInfo(name=self.name, id="owner/words", ready=True)

    async def demonstration(self, request: DemonstrationRequest) -> Demonstration:
        if self.is_away:
            raise ServiceUnavailable(AWAY)
        prompt = "x" * SEQ_LEN if request.example_index in self.too_long else "short"
        return Demonstration(
            prompt=[{"role": "user", "content": prompt}],
            completion=[{"role": "assistant", "content": self.answer}],
        )


class Tokenizer:
    """A token is a character."""

    async def encode(
        self, messages: Any, *, tools: Any = (), template: Any = None, add_generation_prompt: bool
    ) -> list[int]:
        text = "".join(f"{message['role']}:{message['content']}" for message in messages)
        return [ord(c) for c in text + ("assistant:" if add_generation_prompt else "")]


class World:
    """A loader and its environment."""

    def __init__(self) -> None:
        self.environment: Any = Environment()
        self.sampler = ExampleSampler(ExampleBuffer({"words": EXAMPLES}, None, BufferSettings(filtering=False)))
        self.pool = EnvironmentPool(
            [self.environment],
            lambda component, problem: None,
            {},
            poll_interval=0.01,
            grace=0.0,
            lost_deadline=0.0,
            backoff=0.01,
        )
        tokenizer: Any = Tokenizer()
        self.loader = DemonstrationLoader(self.sampler, self.pool, tokenizer, batch_size=BATCH, seq_len=SEQ_LEN)

    async def ordinals(self) -> list[int]:
        """Ordinals of the next batch."""
        return [sample.sampled.ordinal for sample in await self.loader.batch()]

    def outstanding(self) -> list[int]:
        return [sampled.ordinal for sampled in self.loader.outstanding()]

    async def reason(self) -> str:
        """Reason for which the next batch ends the run."""
        async with asyncio.timeout(30):
            with pytest.raises(FatalError) as error:
                await self.loader.batch()
        return error.value.problem.reason


@pytest.fixture
def world() -> World:
    return World()


async def test_the_examples_of_a_batch_are_outstanding_without_those_that_do_not_fit(world: World) -> None:
    drawn = [world.sampler.next_example(["words"]) for _ in range(BATCH)]
    assert all(drawn)
    world.sampler.requeue(sampled for sampled in drawn if sampled)
    world.environment.too_long = {sampled.example.index for sampled in drawn[:2] if sampled}
    assert await world.ordinals() == world.outstanding() == [2, 3, 4, 5]
    world.loader.complete_batch()
    assert world.outstanding() == []
    assert await world.ordinals() == [6, 7, 8, 9]


async def test_the_examples_of_a_batch_that_was_not_trained_on_come_first(world: World) -> None:
    first = await world.ordinals()
    world.loader.return_batch()
    assert world.outstanding() == []
    assert await world.ordinals() == first


async def test_an_environment_that_stays_away_ends_the_run(world: World) -> None:
    world.environment.is_away = True
    assert await world.reason() == "WaitingForEnvironment"
    assert world.pool.environments["words"].unreachable_since is not None


async def test_an_answer_without_tokens_ends_the_run(world: World) -> None:
    world.environment.answer = ""
    assert await world.reason() == "ChatTemplateMismatch"
