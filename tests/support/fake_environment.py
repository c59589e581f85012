"""Environment server of a run, whose rollouts go through the gateway."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from rlrun.protocol.environment import (
    ROLLOUT_ID_HEADER,
    Demonstration,
    DemonstrationRequest,
    EnvironmentInfo,
    GroupRequest,
    GroupResult,
    RolloutResult,
)
from rlrun.protocol.problem import Problem


@dataclass
class FakeEnvironment:
    """Rolls out through the gateway like any OpenAI client, two turns each, and rewards by turns of a wheel."""

    name: str
    examples: int = 20
    turns: int = 2
    problem: Problem | None = None
    version: str | None = None
    """Version of its package that it has installed."""
    reward_error: Problem | None = None
    """Every second rollout fails with this."""
    rewards: list[float] = field(default_factory=lambda: [0.0, 1.0, 0.5, 0.25])
    reward_of: Callable[[str], float] | None = None
    """Of the text of the last answer, instead of the wheel."""
    between_turns: Callable[[GroupRequest, int], Awaitable[None]] | None = None
    """Called with a group and the number of its turn that is complete."""
    shows: bool = True
    """Whether it has demonstrations."""
    demonstration: Demonstration | None = None
    """Demonstration in place of that of each example."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Tools of its demonstrations."""
    demonstrated: list[int] = field(default_factory=list)
    looks: int = 0
    """Requests for its state."""
    turned_away: int = 0
    """Requests that got no answer because it is away."""
    away: bool = False
    groups: Counter[str] = field(default_factory=Counter)
    rollouts: int = 0
    """Rollouts in progress."""
    most_rollouts: int = 0
    """Greatest number of rollouts in progress at a time."""
    is_lost: bool = False
    """Close all connections without an answer, also those of groups in progress."""
    requests: list[GroupRequest] = field(default_factory=list)
    http: aiohttp.ClientSession | None = None

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/info", self.info)
        app.router.add_post("/groups", self.roll_out)
        app.router.add_post("/demonstrations", self.demonstrate)
        app.cleanup_ctx.append(self._client)
        return app

    async def _client(self, app: web.Application) -> Any:
        async with aiohttp.ClientSession() as self.http:
            yield

    async def info(self, request: web.Request) -> web.Response:
        self.looks += 1
        if self.is_lost:
            assert request.transport is not None
            request.transport.abort()
        if self.away:
            return web.Response(status=503)
        info = EnvironmentInfo(
            name=self.name,
            id=f"owner/{self.name}",
            version=self.version,
            ready=self.problem is None,
            problem=self.problem,
            train_examples=self.examples,
            eval_examples=3,
        )
        return web.json_response(info.to_json_dict())

    async def roll_out(self, request: web.Request) -> web.Response:
        if self.away:
            return web.Response(status=503)
        if self.is_lost:
            assert request.transport is not None
            request.transport.abort()
        asked = GroupRequest.model_validate_json(await request.read())
        self.requests.append(asked)
        self.groups[asked.split] += 1
        self.rollouts += asked.rollouts
        self.most_rollouts = max(self.most_rollouts, self.rollouts)
        try:
            outcomes = await asyncio.gather(*(self._one(asked, index) for index in range(asked.rollouts)))
        finally:
            self.rollouts -= asked.rollouts
        if self.is_lost:
            assert request.transport is not None
            request.transport.abort()
        result = GroupResult(group_id=asked.group_id, rollouts=list(outcomes), seconds=0.1)
        return web.json_response(result.to_json_dict())

    async def demonstrate(self, request: web.Request) -> web.Response:
        if self.away:
            self.turned_away += 1
            return web.Response(status=503)
        asked = DemonstrationRequest.model_validate_json(await request.read())
        if not self.shows:
            problem = Problem(reason="DemonstrationsMissing", message="its columns are question")
            return web.json_response(problem.to_json_dict(), status=404)
        self.demonstrated.append(asked.example_index)
        shown = self.demonstration or Demonstration(
            prompt=[{"role": "user", "content": f"example {asked.example_index}"}],
            completion=[{"role": "assistant", "content": f"answer {asked.example_index}"}],
            tools=self.tools,
        )
        return web.json_response(shown.to_json_dict())

    async def _one(self, asked: GroupRequest, index: int) -> RolloutResult:
        assert self.http is not None
        rollout = f"r{index}"
        messages: list[dict[str, str]] = [{"role": "user", "content": f"example {asked.example_index}"}]
        for turn in range(self.turns):
            if turn and self.between_turns is not None:
                await self.between_turns(asked, turn - 1)
            async with self.http.post(
                f"{asked.base_url}/chat/completions",
                json={"model": asked.model, "messages": messages, "max_tokens": 999, **asked.sampling},
                headers={ROLLOUT_ID_HEADER: rollout},
            ) as response:
                if response.status != 200:
                    problem = Problem(reason="ModelError", message=f"{response.status}: {await response.text()}"[:200])
                    return RolloutResult(rollout_id=rollout, reward=0.0, error=problem)
                answer = await response.json()
            said = answer["choices"][0]["message"]["content"]
            # The fake engine joins contents by one space: leaving out the space keeps the token prefix exact.
            messages = [
                {
                    "role": "user",
                    "content": f"{messages[0]['content']}{said}!{turn}",
                }
            ]
        error = self.reward_error if self.reward_error and index % 2 else None
        reward = self.reward_of(said) if self.reward_of else self.rewards[index % len(self.rewards)]
        return RolloutResult(
            rollout_id=rollout,
            reward=reward,
            metrics={"turns": float(self.turns)},
            completion=[{"role": "assistant", "content": said}],
            error=error,
        )
