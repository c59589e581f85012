"""Exact prefixes: what is bridged, what is left alone, and an engine whose tokenizer cuts answers another way."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rlrun.api.run_sections.rollouts import TrajectoryStrategy
from rlrun.protocol.environment import ROLLOUT_ID_HEADER
from rlrun_orchestrator.data.trajectories import Turn, build_trajectory
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, LiveGroups
from rlrun_orchestrator.inference.gateway.prefixes import (
    Conversation,
    bridge,
    conversation,
    covered_messages,
    is_text_only,
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
    refuses_tokens: bool = False
    prompts: list[tuple[str, list[int]]] = field(default_factory=list)
    """(route, prompt ids) of every completion."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    tokenized: list[dict[str, Any]] = field(default_factory=list)
    """Requests for the tokens of a conversation."""

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.text)
        app.router.add_post("/tokenize", self.tokenize)
        return app

    async def tokenize(self, request: web.Request) -> web.Response:
        if not self.knows_tokenize:
            return web.Response(status=404)
        body = await request.json()
        self.tokenized.append(body)
        ids = render(body["messages"], body["add_generation_prompt"], self.drops)
        return web.json_response({"count": len(ids), "max_model_len": 999, "tokens": ids})

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        prompt = render(body["messages"], True, self.drops)
        drawn, logprobs = self._draw("chat", prompt, body)
        content = [
            {"token": "t", "logprob": p, "bytes": [t % 256], "top_logprobs": []}
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

    async def text(self, request: web.Request) -> web.Response:
        if self.refuses_tokens:
            return web.json_response({"error": {"message": "no tokens here"}}, status=400)
        body = await request.json()
        prompt = body["prompt"]
        drawn, logprobs = self._draw("text", prompt, body)
        choice = {
            "index": 0,
            "text": self.answer,
            "logprobs": {"tokens": ["t"] * len(drawn), "token_logprobs": logprobs, "top_logprobs": [{}] * len(drawn)},
            "finish_reason": self.finish,
            "stop_reason": None,
            "token_ids": drawn,
            "prompt_token_ids": prompt,
        }
        return web.json_response(self._body("text_completion", choice, prompt))

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
        gateway = Gateway(groups, SamplingRules(max_tokens=64, stop=["END"], seed=1, template=template), router, None)
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
    assert [route for route, _ in setup.engine.prompts] == ["chat", "text"], "the second turn is bridged"
    assert setup.engine.bodies[0]["chat_template_kwargs"] == template
    assert [body.get("chat_template_kwargs") for body in setup.engine.tokenized] == [template] * 3


@pytest.mark.proves("trajectoryStrategy")
async def test_an_answer_that_would_be_tokenized_otherwise_is_bridged(setup: Setup) -> None:
    group, answers = await setup.two_turns()
    first, second = group.turns_of("r")
    exact = first.prompt_ids + first.completion_ids
    assert MERGED in render([{"role": "assistant", "content": "xab"}], False), "the case is what it says"
    assert second.prompt_ids == [*exact, NEWLINE, USER, *tokenize("on"), TO_USER, NEWLINE, TO_MODEL]
    assert [route for route, _ in setup.engine.prompts] == ["chat", "text"]
    trajectory = build_trajectory([first, second], TrajectoryStrategy.interleaved, 999)
    assert (len(trajectory.sequences), trajectory.prefix_breaks, trajectory.bridged) == (1, 0, 1)
    assert setup.router.stats.prefixes == {"bridged": 1}
    assert (first.bridged, second.bridged) == (False, True)
    assert answers[1].object == "chat.completion"
    assert answers[1].choices[0].message.role == "assistant"
    assert answers[1].choices[0].message.content == "xab"
    assert answers[1].choices[0].logprobs is None
    chat, text = setup.engine.bodies
    same = ("model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop")
    assert {name: text[name] for name in same} == {name: chat[name] for name in same}, "the same distribution"
    assert text["seed"] != chat["seed"]


async def test_a_bridged_answer_has_the_logprobs_that_its_client_asked_for(setup: Setup) -> None:
    _, answers = await setup.two_turns(logprobs=True)
    assert [token.logprob for token in answers[1].choices[0].logprobs.content] == [-0.5] * 4
    assert setup.engine.prompts[1][0] == "text"


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
        {"refuses_tokens": True},
    ],
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
    assert build_trajectory(group.turns_of("r"), TrajectoryStrategy.interleaved, 999).prefix_breaks == 1


async def test_chats_with_tools_are_not_bridged(setup: Setup) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    await setup.two_turns(tools=[tool])
    assert [route for route, _ in setup.engine.prompts] == ["chat", "chat"]
    assert setup.router.stats.prefixes == {"broken": 1}


async def test_a_second_conversation_of_a_rollout_is_no_prefix_break(setup: Setup) -> None:
    group = setup.groups.open(POLICY)
    client = openai.AsyncOpenAI(base_url=f"{setup.url}groups/{group.id}/v1", api_key="none", max_retries=0)
    for content in ("one", "two"):
        messages: list[Any] = [{"role": "user", "content": content}]
        await client.chat.completions.create(model="m", messages=messages, extra_headers={ROLLOUT_ID_HEADER: "r"})
    assert not setup.router.stats.prefixes


# --- the pure part ----------------------------------------------------------------------------------------------------

LAST = Conversation([{"role": "user", "content": "q"}], {"role": "assistant", "content": "a"}, [5, 6, 1], True)
ANSWER = {"role": "assistant", "content": "a"}
MORE = {"role": "user", "content": "more"}


@pytest.mark.parametrize(
    ("messages", "covered"),
    [
        ([*LAST.messages, ANSWER, MORE], 2),
        ([*LAST.messages, ANSWER | {"tool_calls": []}, MORE, MORE], 2),
        ([*LAST.messages, ANSWER], None),
        ([*LAST.messages, ANSWER | {"content": "a "}, MORE], None),
        ([*LAST.messages, ANSWER | {"tool_calls": [{"id": "c"}]}, MORE], None),
        ([*LAST.messages, MORE, MORE], None),
        ([MORE, ANSWER, MORE], None),
        ([*LAST.messages, "a", MORE], None),
        ("text", None),
    ],
)
def test_messages_that_continue_a_chat_are_recognized(messages: Any, covered: int | None) -> None:
    assert covered_messages(messages, LAST) == covered


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({}, True),
        ({"tools": []}, True),
        ({"tools": [{}]}, False),
        ({"top_logprobs": 2}, False),
        ({"continue_final_message": True}, False),
        ({"add_generation_prompt": False}, False),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, False),
        ({"messages": [ANSWER | {"reasoning_content": "hm"}]}, False),
    ],
)
def test_text_only_requests_are_recognized(extra: dict[str, Any], text: bool) -> None:
    assert is_text_only({"messages": [*LAST.messages, ANSWER, MORE]} | extra, LAST) is text


EXACT, BEFORE, UNTIL, WHOLE = [10, 11, 12, 1], [10], [10, 99, 1, 3], [10, 99, 1, 3, 4, 8, 1, 3, 2]


def test_a_bridge_is_the_exact_tokens_and_what_the_template_puts_behind_the_answer() -> None:
    assert bridge(EXACT, BEFORE, UNTIL, WHOLE) == [10, 11, 12, 1, 3, 4, 8, 1, 3, 2]


@pytest.mark.parametrize(
    ("exact", "before", "until", "whole"),
    [
        (EXACT, BEFORE, UNTIL, [10, 98, *WHOLE[2:]]),  # the answer is rendered otherwise once something follows
        (EXACT, [11], UNTIL, WHOLE),  # the generation prompt is no part of the rendered answer
        ([10, 11, 7], BEFORE, UNTIL, WHOLE),  # the template ends the turn with another token
        (EXACT, BEFORE, [10, 99, 1, 1], [10, 99, 1, 1, 4]),  # which of the two ends it?
        (EXACT, BEFORE, UNTIL, UNTIL),  # nothing follows
        ([], BEFORE, UNTIL, WHOLE),
    ],
)
def test_ambiguous_tokens_are_not_bridged(
    exact: list[int], before: list[int], until: list[int], whole: list[int]
) -> None:
    assert bridge(exact, before, until, whole) is None


@pytest.mark.parametrize(
    ("finish", "reason", "asked", "ended"),
    [
        ("stop", None, {}, True),
        ("stop", 151643, {}, True),
        ("stop", 151643, {"stop_token_ids": [151643]}, False),
        ("stop", "END", {}, False),
        ("length", None, {}, False),
    ],
)
def test_only_the_models_own_end_of_turn_can_be_bridged(
    finish: str, reason: Any, asked: dict[str, Any], ended: bool
) -> None:
    turn = Turn([1], [2], [-0.1], finish)
    found = conversation({"messages": []} | asked, {"message": ANSWER, "stop_reason": reason}, turn)
    assert found.ended is ended
    assert json.dumps(found.tokens) == "[1, 2]"
