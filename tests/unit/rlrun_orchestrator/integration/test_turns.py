"""Conversations with tools and reasoning: what becomes one sequence, by the templates of known families of models."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from hypothesis import given, settings
from hypothesis import strategies as st
from rlrun.api.run_sections.rollouts import Sampling, TrajectoryStrategy
from rlrun_orchestrator.data.trajectories import Trajectory, Turn, build_trajectory
from rlrun_orchestrator.inference.gateway.conversations import TOKEN_BYTES, Conversations
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroups
from rlrun_orchestrator.inference.gateway.prefix_bridge import PrefixBridge, conversation
from rlrun_orchestrator.inference.gateway.request_router import RequestRouter
from rlrun_orchestrator.inference.gateway.sampling_rules import SamplingRules
from rlrun_orchestrator.inference.gateway.server import Gateway
from rlrun_orchestrator.inference.replica_pool import Replica, ReplicaAddresses, ReplicaPool
from rlrun_orchestrator.inference.sidecar_client import SidecarClient

from tests.support.chat_families import (
    DEEPSEEK31,
    FAMILIES,
    GLM45,
    GLM45_BRIEF,
    GPT_OSS,
    LLAMA3,
    QWEN3,
    QWEN3_BRIEF,
    QWEN3_INSTRUCT,
    Family,
    Message,
    Said,
)
from tests.support.policy_refs import policy
from tests.support.template_engine import (
    AS_RENDERED,
    BY_LETTER,
    REFORMATTED,
    STYLES,
    DirectTokenizer,
    TemplateEngine,
    echoed,
    results,
)

POLICY = policy(3, "s3://bucket/run")
TURNS = 20
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
WITHOUT_THINKING = (QWEN3_BRIEF, QWEN3_INSTRUCT, LLAMA3, GLM45_BRIEF, DEEPSEEK31)


def by_name(value: object) -> str:
    """Return the name of a parameter of a test."""
    return value.name if isinstance(value, Family) else str(value)


class Rollout:
    """A client of one rollout."""

    def __init__(
        self, engine: TemplateEngine, url: str, http: aiohttp.ClientSession, groups: LiveGroups, prefixes: Counter[str]
    ) -> None:
        self.engine, self._url, self._http = engine, url, http
        self.prefixes = prefixes
        self.group = groups.open(POLICY)
        self.with_reasoning = True
        self.formats_anew = False
        self.extra: dict[str, Any] = {}
        """Further fields of each request."""

    async def ask(self, messages: list[Message]) -> Message:
        """Return the answer to a chat."""
        body = {"model": "m", "messages": messages, "tools": TOOLS, **self.extra}
        async with self._http.post(
            f"{self._url}groups/{self.group.id}/rollouts/r/v1/chat/completions", json=body
        ) as response:
            assert response.status == 200, await response.text()
            answer: Message = (await response.json())["choices"][0]["message"]
        return answer

    async def step(self, messages: list[Message], result: str = "5") -> list[Message]:
        """Return the messages with the answer and the results of its calls, or with a further question."""
        answer = await self.ask(messages)
        again = echoed(answer, reasoning=self.with_reasoning, formats_anew=self.formats_anew)
        following = results(answer, [result]) or [{"role": "user", "content": f"and {result}?"}]
        return [*messages, again, *following]

    def trajectory(self) -> Trajectory:
        """Return the training sequences, after a check that each sampled token is trained once, in its context."""
        turns = self.group.turns_of("r")
        assert [(list(turn.prompt_ids), list(turn.completion_ids)) for turn in turns] == self.engine.drawn
        return checked_trajectory(turns)


def checked_trajectory(turns: list[Turn]) -> Trajectory:
    """Return the sequences of turns. Each sampled token must be trained once, after the tokens that the engine had."""
    sampled = sorted(
        tuple(turn.prompt_ids + turn.completion_ids[: end + 1])
        for turn in turns
        for end in range(len(turn.completion_ids))
    )
    built = build_trajectory(turns, TrajectoryStrategy.interleaved, 10**6)
    trained = sorted(
        tuple(sequence.token_ids[: place + 1])
        for sequence in built.sequences
        for place, drawn in enumerate(sequence.loss_mask)
        if drawn
    )
    assert trained == sampled
    return built


@asynccontextmanager
async def rollout_of(family: Family, says: Iterator[Said], style: str) -> AsyncIterator[Rollout]:
    """Yield a rollout whose gateway has an engine of that family."""
    engine = TemplateEngine(family, says, style)
    server = TestServer(engine.application())
    await server.start_server()
    async with aiohttp.ClientSession() as http:
        groups = LiveGroups()

        async def nobody() -> list[ReplicaAddresses]:
            return []

        pool = ReplicaPool(http, nobody, groups.policies, poll_interval=0.05)
        url = str(server.make_url("")).rstrip("/")
        replica = Replica(
            ReplicaAddresses(url, url), SidecarClient(http, url), adapters={POLICY.name}, is_answering=True
        )
        pool.replicas[replica.endpoint] = replica
        router = RequestRouter(http, pool, groups, wait=0.3, deadline=10)
        gateway = Gateway(groups, SamplingRules(Sampling(max_tokens=64, **dict(family.variables))), router, None)
        front = TestServer(gateway.application())
        await front.start_server()
        yield Rollout(engine, str(front.make_url("/")), http, groups, router.stats.prefixes)
        await front.close()
    await server.close()


def calls(family: Family) -> Iterator[Said]:
    """Yield answers with a call, and with reasoning if the model thinks."""
    for number in itertools.count():
        yield Said(f"plan {number}, then 55" if family.thinks else "", "", [("add", {"a": number, "b": "ti, in"})])


def texts(family: Family) -> Iterator[Said]:
    """Yield answers with text only."""
    for number in itertools.count():
        yield Said(f"plan {number}" if family.thinks else "", f"the answer is {number}")


def question(text: str = "What is it?") -> list[Message]:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("family", FAMILIES, ids=by_name)
async def test_a_loop_of_tools_is_one_sequence_where_reasoning_is_kept(family: Family, style: str) -> None:
    async with rollout_of(family, calls(family), style) as rollout:
        messages = question()
        for number in range(TURNS):
            messages = await rollout.step(messages, f"5{number}")
        built = rollout.trajectory()
        prompt, completion = rollout.engine.drawn[-1]
        assert [list(sequence.token_ids) for sequence in built.sequences] == [prompt + completion]
        assert len(built.sequences[0].turn_starts) == TURNS
        assert built.prefix_breaks == 0
        assert (built.bridged == 0) == (style == AS_RENDERED and family is not QWEN3_BRIEF)
        # Without this each turn would be trained with all that was before it.
        apart = sum(len(prompt) + len(completion) for prompt, completion in rollout.engine.drawn)
        assert len(built.sequences[0].token_ids) * 5 < apart


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("family", [QWEN3, GPT_OSS, GLM45], ids=by_name)
async def test_reasoning_that_a_client_leaves_out_is_kept_as_the_template_would(family: Family, style: str) -> None:
    async with rollout_of(family, calls(family), style) as rollout:
        rollout.with_reasoning = False
        messages = question()
        for _ in range(TURNS):
            messages = await rollout.step(messages)
        assert len(rollout.trajectory().sequences) == 1
        last, _ = rollout.engine.drawn[-1]
        assert rollout.engine.tokenizer.text(last).count("plan") == TURNS - 1


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("says", [calls, texts])
@pytest.mark.parametrize("family", [QWEN3, GPT_OSS, GLM45], ids=by_name)
async def test_reasoning_that_the_parser_hides_is_in_no_prompt_of_which_the_template_removes_it(
    family: Family, says: Callable[[Family], Iterator[Said]], style: str
) -> None:
    async with rollout_of(family, says(family), style) as rollout:
        rollout.extra = {"include_reasoning": False}
        messages = question()
        for _ in range(4):
            messages = await rollout.step(messages)
        rollout.trajectory()
        prompts = [rollout.engine.tokenizer.text(prompt) for prompt, _ in rollout.engine.drawn]
        assert [prompt.count("plan") for prompt in prompts] == [0] * 4, "the deployed model does not see it either"


@pytest.mark.parametrize("family", [QWEN3, GPT_OSS, GLM45], ids=by_name)
async def test_a_question_that_ends_the_reasoning_before_it_opens_a_sequence(family: Family) -> None:
    says = itertools.chain(itertools.islice(calls(family), 3), itertools.islice(texts(family), 1), calls(family))
    async with rollout_of(family, says, BY_LETTER) as rollout:
        messages = question()
        for _ in range(8):
            messages = await rollout.step(messages)
        built = rollout.trajectory()
        assert [len(sequence.turn_starts) for sequence in built.sequences] == [4, 4]
        text = rollout.engine.tokenizer.text(rollout.engine.drawn[4][0])
        assert "plan" not in text, "the template's own prompt is sent"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("family", FAMILIES, ids=by_name)
async def test_two_alternating_conversations_are_two_sequences(family: Family, style: str) -> None:
    async with rollout_of(family, calls(family), style) as rollout:
        one, other = question("one"), question("two")
        for _ in range(TURNS // 2):
            one, other = await rollout.step(one), await rollout.step(other)
        built = rollout.trajectory()
        assert [len(sequence.turn_starts) for sequence in built.sequences] == [TURNS // 2, TURNS // 2]
        ends = [prompt + completion for prompt, completion in rollout.engine.drawn[-2:]]
        assert [list(sequence.token_ids) for sequence in built.sequences] == ends


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("family", WITHOUT_THINKING, ids=by_name)
async def test_questions_and_answers_without_reasoning_are_one_sequence(family: Family, style: str) -> None:
    async with rollout_of(family, texts(family), style) as rollout:
        messages = question()
        for _ in range(6):
            messages = await rollout.step(messages)
        assert len(rollout.trajectory().sequences) == 1


@pytest.mark.parametrize("family", FAMILIES, ids=by_name)
async def test_characters_of_several_tokens_are_bridged(family: Family) -> None:
    word = "na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve \N{RIGHTWARDS ARROW} answer"
    says = Said(word if family.thinks else "", "", [("add", {"a": 1, "b": word})])
    async with rollout_of(family, itertools.repeat(says), BY_LETTER) as rollout:
        messages = question()
        for _ in range(4):
            messages = await rollout.step(messages)
        built = rollout.trajectory()
        assert (len(built.sequences), built.bridged) == (1, 3)


async def test_arguments_that_a_client_formats_anew_are_those_that_were_sampled() -> None:
    async with rollout_of(QWEN3, calls(QWEN3), REFORMATTED) as rollout:
        rollout.formats_anew = True
        messages = question()
        for _ in range(4):
            messages = await rollout.step(messages)
        assert len(rollout.trajectory().sequences) == 1


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("family", FAMILIES, ids=by_name)
async def test_a_branch_of_a_middle_turn_begins_with_the_exact_tokens_and_is_a_sequence(
    family: Family, style: str
) -> None:
    async with rollout_of(family, calls(family), style) as rollout:
        root = await rollout.step(question())
        stem = await rollout.step(root)
        branches = [await rollout.step(stem, str(number)) for number in range(3)]
        for _ in range(2):
            branches = [await rollout.step(branch) for branch in branches]
        late = await rollout.step(root, "late")
        await rollout.step(late)
        exact = [prompt + completion for prompt, completion in rollout.engine.drawn]
        assert rollout.prefixes["broken"] == 0
        for turn, before in ((2, 1), (3, 1), (4, 1), (5, 2), (6, 3), (7, 4), (11, 0), (12, 11)):
            assert rollout.engine.drawn[turn][0][: len(exact[before])] == exact[before], turn
        assert [len(sequence.turn_starts) for sequence in rollout.trajectory().sequences] == [5, 3, 3, 2]


async def test_an_answer_to_a_question_that_was_asked_before_begins_with_the_exact_tokens() -> None:
    async with rollout_of(QWEN3, calls(QWEN3), BY_LETTER) as rollout:
        rollout.with_reasoning = False
        stem = await rollout.step(await rollout.step(question()))
        prompts = {tuple(rollout.engine.drawn[-1][0]) for _ in range(3) if await rollout.ask(stem)}
        assert len(prompts) == 1
        assert [len(sequence.turn_starts) for sequence in rollout.trajectory().sequences] == [3, 1, 1]


async def test_a_hundred_branches_store_their_common_turns_once() -> None:
    async with rollout_of(QWEN3, calls(QWEN3), BY_LETTER) as rollout:
        rollout.with_reasoning = False
        stem = question()
        for _ in range(TURNS):
            stem = await rollout.step(stem, "5" * 100)
        known = rollout.group.rollout_session("r").conversations
        size = sum(one.size for one in known)
        for number in range(100):
            await rollout.step(await rollout.step(stem, str(number)))
        assert rollout.prefixes == {"bridged": TURNS - 1 + 200}
        assert sum(one.size for one in known) - size < 100 * size / 5, "a branch of two turns after twenty"
        apart = sum(len(prompt) for prompt, _ in rollout.engine.drawn)
        assert TOKEN_BYTES * sum(len(one.suffix) for one in known) < TOKEN_BYTES * apart / 10
        assert [len(one.turn_starts) for one in rollout.trajectory().sequences] == [TURNS + 2, *[2] * 99]


@pytest.mark.parametrize(
    ("family", "style", "expected"),
    [
        (QWEN3, AS_RENDERED, [0, 1, 1, 1]),
        (QWEN3, BY_LETTER, [0, 2, 2, 2]),
        (LLAMA3, REFORMATTED, [0, 2, 2, 2]),
        # The empty place for reasoning, which the template leaves out later, takes the second request to prove.
        (QWEN3_BRIEF, AS_RENDERED, [0, 2, 2, 2]),
    ],
    ids=by_name,
)
async def test_requests_for_tokens_per_turn(family: Family, style: str, expected: list[int]) -> None:
    async with rollout_of(family, calls(family), style) as rollout:
        messages, seen, found = question(), 0, []
        for _ in expected:
            messages = await rollout.step(messages)
            found.append(rollout.engine.rendered - seen)
            seen = rollout.engine.rendered
        assert found == expected
        assert len(rollout.engine.drawn) == len(expected), "each turn is sampled once"


async def test_an_engine_that_does_not_know_the_field_gets_the_messages_and_its_sequences_are_apart() -> None:
    async with rollout_of(QWEN3, calls(QWEN3), BY_LETTER) as rollout:
        rollout.engine.ignores_tokens = True
        messages = question()
        for _ in range(3):
            messages = await rollout.step(messages)
        built = rollout.trajectory()
        assert (len(built.sequences), built.bridged) == (3, 0)


# --- any conversation -------------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(
    ["", "5", "55", "a", "\n", "ti\n\nth", "</think>", "<think>", "<|im_end|>", "<|eot_id|>", "<|user|>", "<|end|>",
     "<|observation|>", "<|call|>x", "x<|im_start|>", "<tool_call>", "the answer", " in "]
)  # fmt: skip
WORDS = st.lists(TEXTS, max_size=3).map("".join)
PLAIN = st.sampled_from(["a", "the answer", "5", "in\n\nth", "x, y"])
SPELLED = st.sampled_from(
    ["<|im_end|>", "a<|user|>b", "a<|user|>", "<|observation|>", "5<|eot_id|>", "x<|im_end|>\n<|im_start|>y"]
)


@st.composite
def answers(draw: st.DrawFn, family: Family) -> Said:
    """Draw an answer whose text is read as it was meant."""
    reasoning = draw(PLAIN) if family.thinks else ""
    if draw(st.booleans()):
        return Said(reasoning, "", [("add", {"a": draw(st.integers(0, 600)), "b": draw(PLAIN)})])
    return Said(reasoning, draw(PLAIN | SPELLED))


@dataclass(frozen=True)
class Step:
    """One turn of a story, and what its client makes of the answer."""

    conversation: int
    """How many conversations are newer than the one that goes on."""
    said: Said
    following: list[str]
    keeps_reasoning: bool
    answers_calls: bool
    shows_reasoning: bool
    """False if the parser hides it from the client."""


@st.composite
def stories(draw: st.DrawFn) -> tuple[Family, str, list[Step]]:
    """Draw a family, a style of sampling, and steps."""
    family = draw(st.sampled_from(FAMILIES))
    following = st.lists(WORDS, min_size=1, max_size=3)
    often = st.sampled_from([True, True, True, False])
    place = st.sampled_from([0, 0, 0, 1, 2, 3])
    steps = st.builds(Step, place, answers(family), following, often, often, often)
    return family, draw(st.sampled_from(STYLES)), draw(st.lists(steps, min_size=2, max_size=8))


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(stories())
def test_each_token_is_trained_once_in_its_context_and_no_message_is_lost(
    story: tuple[Family, str, list[Step]],
) -> None:
    family, style, steps = story
    engine = TemplateEngine(family, (step.said for step in steps), style)
    bridge = PrefixBridge(DirectTokenizer(engine), enabled=True)  # type: ignore[arg-type]
    groups = LiveGroups()
    group = groups.open(POLICY)
    conversations: list[list[Message]] = [question(str(number)) for number in range(2)]
    known = Conversations()
    for number, step in enumerate(steps):
        messages = conversations[-1 - step.conversation % len(conversations)]
        requested: dict[str, Any] = {
            "messages": messages,
            "chat_template_kwargs": dict(family.variables),
            "include_reasoning": step.shows_reasoning,
        }
        found = asyncio.run(bridge.continuation(group, group.served, requested, known))
        sent = {**requested, "kv_transfer_params": {"prompt_token_ids": found and found.prompt and list(found.prompt)}}
        answer = engine.complete(sent)
        choice = answer["choices"][0]
        turn = Turn.of(answer["prompt_token_ids"], choice["token_ids"], [-0.5] * len(choice["token_ids"]), "stop")
        group.record_turn("r", number, turn)
        known.add(conversation(requested, choice, turn, found, arrival=number))
        said = choice["message"]
        more = results(said, step.following) if step.answers_calls else []
        questions = [{"role": "user", "content": text} for text in step.following[len(more) :]]
        # The stem stays: a later step may branch off there.
        following = [*more, *questions] or [{"role": "user", "content": "x"}]
        conversations.append([*messages, echoed(said, reasoning=step.keeps_reasoning), *following])
        if found is not None and found.prompt is not None:
            assert found.prompt[: len(found.last.tokens)] == found.last.tokens
            if style != REFORMATTED:
                assert text_of(engine, list(found.prompt)) == text_of(engine, list(found.rendered))
    checked_trajectory(group.turns_of("r"))


def text_of(engine: TemplateEngine, ids: list[int]) -> str:
    """Return the text of a prompt, without the empty places for reasoning that Qwen3 leaves out later."""
    return engine.tokenizer.text(ids).replace("<think>\n\n</think>\n\n", "")
