"""Exact prefixes: what is bridged, what is left alone, and an engine whose tokenizer cuts answers another way."""

import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rlrun.api.base.received import ENGINE_LIMITS, read_fast
from rlrun.api.run_sections.rollouts import Sampling, TrajectoryStrategy
from rlrun.protocol.environment import ROLLOUT_ID_HEADER
from rlrun_orchestrator.data.trajectories import Turn, build_trajectory, token_array
from rlrun_orchestrator.inference.gateway import conversations
from rlrun_orchestrator.inference.gateway.conversations import Conversation, Conversations, prefix_keys
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, LiveGroups
from rlrun_orchestrator.inference.gateway.prefix_bridge import Continuation, conversation
from rlrun_orchestrator.inference.gateway.prefixes import (
    RenderedChat,
    bridge,
    continue_exactly,
    has_ended,
    sampled_text,
    shown_messages,
)
from rlrun_orchestrator.inference.gateway.request_router import RequestRouter
from rlrun_orchestrator.inference.gateway.sampling_rules import SamplingRules
from rlrun_orchestrator.inference.gateway.server import Gateway
from rlrun_orchestrator.inference.replica_pool import Replica, ReplicaAddresses, ReplicaPool
from rlrun_orchestrator.inference.sidecar_client import SidecarClient

from tests.support.policy_refs import policy

POLICY = policy(3, "s3://bucket/run")
TO_MODEL, TO_USER, NEWLINE, USER = 2, 1, 3, 4
"""Special tokens of the fake template: assistant's turn begins, a turn ends, line feed, user's turn begins."""
MERGED = 900
"""The tokenizer makes one token of `ab`, which the model drew as two."""
NAMES = {TO_MODEL: "<model>", TO_USER: "<end>", NEWLINE: "Ċ", USER: "<user>", MERGED: "ab"}


def tokenize(text: str) -> list[int]:
    ids: list[int] = []
    for letter in text:
        if ids and ids[-1] == ord("a") and letter == "b":
            ids[-1] = MERGED
        else:
            ids.append(ord(letter))
    return ids


def render(messages: list[dict[str, Any]], generation_prompt: bool, drops: bool = False) -> list[int]:
    """Like ChatML: begin, text, end, line feed. `drops`: only the last answer is shown whole."""
    ids: list[int] = []
    for index, message in enumerate(messages):
        answer = message["role"] == "assistant"
        text = message["content"]
        if drops and answer and index < len(messages) - 1:
            text = text[:1]
        ids += [TO_MODEL if answer else USER, *tokenize(text), TO_USER, NEWLINE]
    return ids + [TO_MODEL] * generation_prompt


@dataclass
class TokenEngine:
    """Answers `answer`, drawn letter by letter; says how it tokenizes when asked."""

    answer: str = "xab"
    finish: str = "stop"
    drops: bool = False
    knows_tokenize: bool = True
    padding: str = ""
    """Further text of its answers to requests for tokens."""
    refuses_tokens: bool = False
    ignores_tokens: bool = False
    prompts: list[tuple[str, list[int]]] = field(default_factory=list)
    """What was asked, `chat` or `tokens`, and prompt ids of every completion."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    tokenized: list[dict[str, Any]] = field(default_factory=list)
    """Requests for the tokens of a conversation."""

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/tokenize", self.tokenize)
        return app

    async def tokenize(self, request: web.Request) -> web.Response:
        if not self.knows_tokenize:
            return web.Response(status=404)
        body = await request.json()
        self.tokenized.append(body)
        ids = render(body["messages"], body["add_generation_prompt"], self.drops)
        names = [NAMES.get(number) or chr(number) for number in ids] if body.get("return_token_strs") else None
        answer = {"count": len(ids), "max_model_len": 999, "tokens": ids, "token_strs": names, "padding": self.padding}
        return web.json_response(answer)

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
        if given is not None and self.refuses_tokens:
            return web.json_response({"error": {"message": "no tokens here"}}, status=400)
        takes = given is not None and not self.ignores_tokens
        prompt = given if takes else render(body["messages"], True, self.drops)
        drawn, logprobs = self._draw("tokens" if takes else "chat", prompt, body)
        content = [
            {"token": NAMES.get(t) or chr(t), "logprob": p, "bytes": [t % 256], "top_logprobs": []}
            for t, p in zip(drawn, logprobs, strict=True)
        ]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": self.answer, "reasoning": None, "tool_calls": []},
            "logprobs": {"content": content},
            "finish_reason": self.finish,
            "stop_reason": None,
            "token_ids": drawn,
        }
        return web.json_response(self._body("chat.completion", choice, prompt) | {"prompt_token_ids": prompt})

    def _draw(self, route: str, prompt: list[int], body: dict[str, Any]) -> tuple[list[int], list[float]]:
        self.prompts.append((route, prompt))
        self.bodies.append(body)
        drawn = [ord(letter) for letter in self.answer] + [TO_USER] * (self.finish == "stop")
        return drawn, [-0.5] * len(drawn)

    def _body(self, kind: str, choice: dict[str, Any], prompt: list[int]) -> dict[str, Any]:
        usage = {"prompt_tokens": len(prompt), "completion_tokens": 1, "total_tokens": len(prompt) + 1}
        return {"id": "cmpl-1", "object": kind, "created": 1, "model": "m", "choices": [choice], "usage": usage}


@dataclass
class Setup:
    engine: TokenEngine
    groups: LiveGroups
    router: RequestRouter
    url: str

    async def two_turns(self, **extra: Any) -> tuple[LiveGroup, list[Any]]:
        """A rollout of two chats, the second of which continues the first; the group and both answers."""
        group = self.groups.open(POLICY)
        client = openai.AsyncOpenAI(base_url=f"{self.url}groups/{group.id}/v1", api_key="none", max_retries=0)
        headers = {ROLLOUT_ID_HEADER: "r"}
        messages: list[Any] = [{"role": "user", "content": "go"}]
        answers = []
        for _ in range(2):
            answer = await client.chat.completions.create(model="m", messages=messages, extra_headers=headers, **extra)
            answers.append(answer)
            content = answer.choices[0].message.content
            messages = [*messages, {"role": "assistant", "content": content}, {"role": "user", "content": "on"}]
        return group, answers


@pytest.fixture
def template() -> dict[str, Any]:
    """Return the run's variables of the chat template."""
    return {}


@pytest.fixture
async def setup(template: dict[str, Any]) -> AsyncIterator[Setup]:
    engine = TokenEngine()
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
        gateway = Gateway(
            groups, SamplingRules(Sampling(max_tokens=64, stop=["END"], seed=1, **template)), router, None
        )
        front = TestServer(gateway.application())
        await front.start_server()
        yield Setup(engine, groups, router, str(front.make_url("/")))
        await front.close()
    await server.close()


@pytest.mark.parametrize("template", [{"enable_thinking": False}])
async def test_a_bridged_prompt_is_rendered_with_the_runs_variables_of_the_template(
    setup: Setup, template: dict[str, Any]
) -> None:
    await setup.two_turns()
    assert [route for route, _ in setup.engine.prompts] == ["chat", "tokens"], "the second turn is bridged"
    assert [body["chat_template_kwargs"] for body in setup.engine.bodies] == [template] * 2
    assert [body.get("chat_template_kwargs") for body in setup.engine.tokenized] == [template] * 2


@pytest.mark.proves("trajectoryStrategy")
async def test_an_answer_that_would_be_tokenized_otherwise_is_bridged(setup: Setup) -> None:
    group, answers = await setup.two_turns()
    first, second = group.turns_of("r")
    exact = first.prompt_ids + first.completion_ids
    assert MERGED in render([{"role": "assistant", "content": "xab"}], False), "the case is what it says"
    assert list(second.prompt_ids) == [*exact, NEWLINE, USER, *tokenize("on"), TO_USER, NEWLINE, TO_MODEL]
    assert [route for route, _ in setup.engine.prompts] == ["chat", "tokens"]
    trajectory = build_trajectory([first, second], TrajectoryStrategy.interleaved, 999)
    assert (len(trajectory.sequences), trajectory.prefix_breaks, trajectory.bridged) == (1, 0, 1)
    assert setup.router.stats.prefixes == {"bridged": 1}
    assert (first.bridged, second.bridged) == (False, True)
    assert answers[1].object == "chat.completion"
    assert answers[1].choices[0].message.role == "assistant"
    assert answers[1].choices[0].message.content == "xab"
    assert answers[1].choices[0].logprobs is None
    chat, tokens = setup.engine.bodies
    same = ("model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop")
    assert {name: tokens[name] for name in same} == {name: chat[name] for name in same}, "the same distribution"
    assert tokens["seed"] != chat["seed"]


async def test_a_bridged_answer_has_the_logprobs_that_its_client_asked_for(setup: Setup) -> None:
    _, answers = await setup.two_turns(logprobs=True)
    assert [token.logprob for token in answers[1].choices[0].logprobs.content] == [-0.5] * 4
    assert setup.engine.prompts[1][0] == "tokens"


async def test_an_exact_prefix_needs_no_bridge(setup: Setup) -> None:
    setup.engine.answer = "xyz"
    await setup.two_turns()
    assert [route for route, _ in setup.engine.prompts] == ["chat", "chat"]
    assert setup.router.stats.prefixes == {"exact": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"drops": True},
        {"finish": "length"},
        {"knows_tokenize": False},
        {"padding": "x" * ENGINE_LIMITS.size},
        {"refuses_tokens": True},
        {"ignores_tokens": True},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_a_chat_without_an_exact_bridge_is_sent_unchanged_and_counted_as_a_break(
    setup: Setup, change: dict[str, Any]
) -> None:
    for name, value in change.items():
        setattr(setup.engine, name, value)
    group, answers = await setup.two_turns()
    assert answers[1].choices[0].message.content == "xab"
    assert [route for route, _ in setup.engine.prompts] == ["chat", "chat"]
    assert setup.router.stats.prefixes == {"broken": 1}
    assert [turn.bridged for turn in group.turns_of("r")] == [False, False]
    assert build_trajectory(group.turns_of("r"), TrajectoryStrategy.interleaved, 999).prefix_breaks == 1


async def test_chats_with_tools_are_bridged_with_all_fields_of_the_request(setup: Setup) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    await setup.two_turns(tools=[tool], reasoning_effort="low")
    assert [route for route, _ in setup.engine.prompts] == ["chat", "tokens"]
    chat, tokens = setup.engine.bodies
    assert [tokens[name] for name in ("tools", "reasoning_effort")] == [[tool], "low"]
    assert tokens["messages"][0] == chat["messages"][0]
    assert [body["tools"] for body in setup.engine.tokenized] == [[tool]] * 2
    variables = {"enable_thinking": True, "reasoning_effort": "low"}
    assert [body["chat_template_kwargs"] for body in setup.engine.tokenized] == [variables] * 2
    assert setup.router.stats.prefixes == {"bridged": 1}


async def test_a_second_conversation_of_a_rollout_is_no_prefix_break(setup: Setup) -> None:
    group = setup.groups.open(POLICY)
    client = openai.AsyncOpenAI(base_url=f"{setup.url}groups/{group.id}/v1", api_key="none", max_retries=0)
    for content in ("one", "two"):
        messages: list[Any] = [{"role": "user", "content": content}]
        await client.chat.completions.create(model="m", messages=messages, extra_headers={ROLLOUT_ID_HEADER: "r"})
    assert not setup.router.stats.prefixes


# --- the pure part ----------------------------------------------------------------------------------------------------

QUESTION = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}
MORE = {"role": "user", "content": "more"}
CALL: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1, "y": 2}'}}


def completed(
    answer: dict[str, Any] = ANSWER,
    *,
    prompt: list[int] | None = None,
    completion: list[int] | None = None,
    **other: Any,
) -> Conversation:
    """Return a chat whose prompt was rendered as the engine got it."""
    turn = Turn.of(prompt or [10], completion or [11, 12, 1], [-0.1] * 3, "stop")
    return dataclasses.replace(Conversation(prefix_keys([QUESTION])[-1], 1, answer, turn, True), **other)


def rendered_as(*ids: int) -> dict[str, Any]:
    """Return the fields of a chat whose rendering by the template is other than its prompt."""
    return {"before": completed(prompt=[99]), "suffix": token_array(ids)}


def longest_continued(chats: list[Conversation], messages: list[Any]) -> Conversation | None:
    known = Conversations()
    for one in chats:
        known.add(one)
    return known.longest_continued(messages)


LAST = completed()


@pytest.mark.parametrize(
    ("answer", "messages", "continues"),
    [
        (ANSWER, [QUESTION, ANSWER, MORE], True),
        (ANSWER, [QUESTION, ANSWER | {"tool_calls": []}, MORE, MORE], True),
        (ANSWER, [QUESTION, ANSWER], False),
        (ANSWER, [QUESTION, ANSWER | {"content": "a "}, MORE], False),
        (ANSWER, [QUESTION, ANSWER | {"tool_calls": [CALL]}, MORE], False),
        (ANSWER, [QUESTION, MORE, MORE], False),
        (ANSWER, [MORE, ANSWER, MORE], False),
        (ANSWER, [QUESTION, "a", MORE], False),
        (ANSWER | {"content": None}, [QUESTION, ANSWER | {"content": ""}, MORE], True),
        # Reasoning may be left out, and has two names.
        (ANSWER | {"reasoning": "hm"}, [QUESTION, ANSWER, MORE], True),
        (ANSWER | {"reasoning": "hm"}, [QUESTION, ANSWER | {"reasoning_content": "hm"}, MORE], True),
        (ANSWER | {"reasoning": "hm"}, [QUESTION, ANSWER | {"reasoning": "oh"}, MORE], False),
        (ANSWER | {"reasoning": "hm"}, [QUESTION, ANSWER | {"reasoning": None}, MORE], False),
        (ANSWER, [QUESTION, ANSWER | {"reasoning": "hm"}, MORE], False),
        # Arguments of calls may be formatted anew.
        (
            ANSWER | {"tool_calls": [CALL]},
            [
                QUESTION,
                ANSWER | {"tool_calls": [CALL | {"function": {"name": "f", "arguments": '{"x":1,"y":2}'}}]},
                MORE,
            ],
            True,
        ),
        (
            ANSWER | {"tool_calls": [CALL]},
            [QUESTION, ANSWER | {"tool_calls": [CALL | {"function": {"name": "f", "arguments": '{"x":true}'}}]}, MORE],
            False,
        ),
        (ANSWER | {"tool_calls": [CALL]}, [QUESTION, ANSWER | {"tool_calls": [CALL | {"id": "d"}]}, MORE], False),
        (ANSWER | {"tool_calls": [CALL]}, [QUESTION, ANSWER, MORE], False),
    ],
)
def test_messages_that_continue_a_chat_are_recognized(answer: Any, messages: Any, continues: bool) -> None:
    last = completed(answer)
    assert longest_continued([last], messages) is (last if continues else None)


def test_the_longest_conversation_is_continued_and_of_equal_ones_the_newest() -> None:
    long = dataclasses.replace(LAST, key=prefix_keys([QUESTION, ANSWER, MORE])[-1], count=3)
    newer = dataclasses.replace(LAST, arrival=2)
    messages = [QUESTION, ANSWER, MORE, ANSWER, MORE]
    assert longest_continued([LAST, long, newer], messages) is long
    assert longest_continued([newer, LAST], messages) is newer
    assert longest_continued([], messages) is None


def test_calls_of_a_message_are_parsed_once_for_all_answers_to_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    known, parsed = Conversations(), list[str]()
    for number in range(100):
        known.add(completed(ANSWER | {"tool_calls": [CALL | {"id": str(number // 2)}]}, arrival=number))

    def read(text: str) -> Any:
        parsed.append(text)
        return read_fast(text)

    monkeypatch.setattr(conversations, "read_fast", read)
    found = known.longest_continued([QUESTION, ANSWER | {"tool_calls": [CALL | {"id": "7"}]}, MORE])
    assert found is not None
    assert found.arrival == 15
    assert parsed == [CALL["function"]["arguments"]]


def test_reasoning_that_a_client_left_out_is_rendered() -> None:
    first = completed(ANSWER | {"reasoning": "hm"})
    second = completed(ANSWER | {"reasoning": "oh"}, count=3, before=first)
    messages = [QUESTION, ANSWER, MORE, ANSWER, MORE]
    expected = [QUESTION, ANSWER | {"reasoning": "hm"}, MORE, ANSWER | {"reasoning": "oh"}, MORE]
    assert shown_messages(messages, second) == expected
    assert shown_messages(messages, first) == [*expected[:3], ANSWER, MORE]
    assert shown_messages([QUESTION, ANSWER, MORE], LAST) == [QUESTION, ANSWER, MORE]


def test_an_answer_that_the_template_renders_as_it_was_sampled_is_continued_with_what_follows_it() -> None:
    # The prompt itself has a token 20 in place of the template's 10.
    last = completed(prompt=[20], **rendered_as(10))
    assert continue_exactly(last, token_array([10, 11, 12, 1, 3, 4])) == token_array([20, 11, 12, 1, 3, 4])
    assert continue_exactly(last, token_array([10, 11, 12, 1])) is None
    assert continue_exactly(last, token_array([10, 11, 13, 1, 3, 4])) is None
    assert continue_exactly(last, token_array([30, 11, 12, 1, 3, 4])) is None


NAME_OF = {1: "<end>", 3: "Ċ", 4: "<user>", 8: "m", 10: "<model>", 97: "a", 98: "b", 50: "<think>", 51: "</think>"}
UNTIL, WHOLE = [10, 97, 1, 3], [10, 97, 1, 3, 4, 8, 1, 3, 2]


def rendered(ids: list[int]) -> RenderedChat:
    return RenderedChat(token_array(ids), [NAME_OF[number] for number in ids])


def test_a_bridge_is_the_exact_tokens_and_what_the_template_puts_behind_the_answer() -> None:
    assert bridge(LAST, rendered(UNTIL), token_array(WHOLE)) == token_array([10, 11, 12, 1, 3, 4, 8, 1, 3, 2])


def test_an_end_that_begins_the_next_message_is_not_repeated() -> None:
    # 1 is both: the next message's begin, which the model samples to end its turn.
    assert bridge(LAST, rendered([10, 97]), token_array([10, 97, 1, 8, 10])) == token_array([10, 11, 12, 1, 8, 10])
    assert bridge(LAST, rendered([10, 97]), token_array([10, 97, 4, 8, 10])) is None, (
        "the next message begins with another token"
    )


def test_an_empty_place_for_reasoning_may_be_left_out_later() -> None:
    last = completed(prompt=[10, 50, 3, 51, 3])
    until = rendered([10, 50, 3, 51, 3, 97, 1, 3])
    assert bridge(last, until, token_array(WHOLE)) == token_array([10, 50, 3, 51, 3, 11, 12, 1, 3, 4, 8, 1, 3, 2])
    thought = completed(prompt=[10, 50, 8, 51, 3])
    assert bridge(thought, rendered([10, 50, 8, 51, 3, 97, 1, 3]), token_array(WHOLE)) is None


@pytest.mark.parametrize(
    ("texts", "kept"),
    [
        (["a", "<end>"], True),
        (["A", " ", "<|constrain|>", "\n", "<end>"], True),
        (["<\uff5ctool▁sep\uff5c>", "a", "▁", "<end>"], True),
        (["m", "a", "<end>"], False),
        (["<think>", "a", "<end>"], False),
        (["a", "a", "<end>"], False),
        (["a", "\N{REPLACEMENT CHARACTER}", "<end>"], False),
        (["a", "<", "|x|>", "<end>"], False),
    ],
)
def test_a_bridge_keeps_all_that_was_sampled_whatever_the_parser_made_of_it(texts: list[str], kept: bool) -> None:
    last = completed(sampled_text=sampled_text(texts[:-1]))
    assert (bridge(last, rendered(UNTIL), token_array(WHOLE)) is not None) == kept


@pytest.mark.parametrize(
    ("last", "until", "whole"),
    [
        (LAST, UNTIL, [10, 98, *WHOLE[2:]]),  # the answer is rendered otherwise once something follows
        (
            completed(**rendered_as(4)),
            UNTIL,
            token_array(WHOLE),
        ),  # the rendered answer does not include the generation prompt
        (completed(completion=[11, 12, 7]), UNTIL, WHOLE),  # the template ends the turn with another token
        (LAST, [10, 97, 1, 1], [10, 97, 1, 1, 4]),  # which of the two ends it?
        (LAST, [10, 97, 1, 8], [10, 97, 1, 8, 4]),  # a part of the answer is behind the end
        (LAST, UNTIL, UNTIL),  # nothing follows
        (LAST, [10, 98, 1, 3], [10, 98, 1, 3, 4]),  # the template does not show the answer
        (completed(ANSWER | {"reasoning": "m"}), UNTIL, WHOLE),  # it leaves out the reasoning
        (completed(ANSWER | {"tool_calls": [CALL]}), UNTIL, WHOLE),  # it leaves out the call
        (
            completed({"role": "assistant", "content": "a<end>"}),
            UNTIL,
            token_array(WHOLE),
        ),  # the end is a part of the text
        (completed(ended=False), UNTIL, WHOLE),
    ],
)
def test_ambiguous_tokens_are_not_bridged(last: Conversation, until: list[int], whole: list[int]) -> None:
    assert bridge(last, rendered(until), token_array(whole)) is None


@pytest.mark.parametrize(
    ("finish", "reason", "asked", "ended"),
    [
        ("stop", None, {}, True),
        ("tool_calls", None, {}, True),
        ("stop", 151643, {}, True),
        ("stop", 151643, {"stop_token_ids": [151643]}, False),
        ("stop", "END", {}, False),
        ("length", None, {}, False),
    ],
)
def test_only_the_models_own_end_of_turn_can_be_bridged(finish: str, reason: Any, asked: Any, ended: bool) -> None:
    assert has_ended(asked, {"message": ANSWER, "stop_reason": reason}, Turn.of([1], [2], [-0.1], finish)) is ended


def test_a_conversation_remembers_what_the_template_made_of_its_messages() -> None:
    turn = Turn.of([1, 2], [3], [-0.1], "stop")
    messages = [QUESTION, ANSWER, MORE]
    last = completed(prompt=[1])
    sent = conversation(
        {"messages": messages}, {"message": ANSWER}, turn, Continuation(last, token_array([1, 2]), token_array([1, 9]))
    )
    assert (sent.key, sent.count) == (prefix_keys(messages)[-1], 3)
    assert (sent.before, list(sent.prompt_ids), list(sent.tokens)) == (last, [1, 9], [1, 2, 3])
    ignored = conversation(
        {"messages": messages}, {"message": ANSWER}, turn, Continuation(last, token_array([1, 7]), token_array([1, 9]))
    )
    assert (ignored.before, list(ignored.prompt_ids)) == (None, [1, 2])


def test_renderings_share_what_the_template_keeps() -> None:
    chain = [completed(prompt=[1, 2, 3])]
    renderings = [[1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 5, 6], [1, 2, 4, 7], [1, 8]]
    for whole in renderings[1:]:
        turn = Turn.of([*whole, 0], [3], [-0.1], "stop")
        chain.append(
            conversation({"messages": [MORE]}, {}, turn, Continuation(chain[-1], turn.prompt_ids, token_array(whole)))
        )
    assert [list(one.prompt_ids) for one in chain] == renderings
    assert [list(one.suffix) for one in chain] == [[], [4, 5], [6], [7], [8]]
    assert list(chain[0].turn.prompt_ids) == [1, 2, 3], "no list of another chat grows"
