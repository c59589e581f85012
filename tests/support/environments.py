"""A canned OpenAI upstream, environments written on the spot, and wheels made of them."""

import asyncio
import signal
import sys
import textwrap
import uuid
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rlrun.protocol.environment import ROLLOUT_ID_HEADER, ROLLOUT_IDS_HEADER, EnvironmentConfig, GroupRequest
from rlrun_environment.worker.__main__ import Runner, runner_for
from rlrun_environment.worker.loading import load
from rlrun_orchestrator.inference.gateway.responses import to_event_stream
from rlrun_orchestrator.inference.gateway.sampling_rules import CompletionKind

PREAMBLE = """
import asyncio, os, sys, time
import verifiers as vf
from datasets import Dataset

def rows(*texts):
    return Dataset.from_list([{"prompt": [{"role": "user", "content": t}], "answer": t[::-1]} for t in texts])
"""


@dataclass
class Upstream:
    """What the gateway would be: records every request and answers what `reply` says."""

    requests: list[tuple[Mapping[str, str], dict[str, Any]]] = field(default_factory=list)
    """Header and body of each rollout's requests. A shared request is a request of each of its rollouts."""
    shared: list[list[str]] = field(default_factory=list)
    """Rollouts of each shared request."""
    rollouts: list[str | None] = field(default_factory=list)
    """The rollout in each request's path, if there is one."""
    reply: Callable[[int, dict[str, Any]], Any] = lambda n, body: body["messages"][-1]["content"][::-1]
    base_url: str = ""
    cancelled: int = 0

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        ids = request.headers.get(ROLLOUT_IDS_HEADER)
        if ids is None:
            replies = [self._reply(request.headers, body)]
        else:
            self.shared.append(ids.split(","))
            assert body["n"] == len(self.shared[-1])
            replies = [self._reply({ROLLOUT_ID_HEADER: rollout}, body) for rollout in self.shared[-1]]
        self.rollouts.append(request.match_info.get("rollout"))
        try:
            contents = await asyncio.gather(*replies)
        except BaseException:
            self.cancelled += len(replies)
            raise
        usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
        choices: list[dict[str, Any]] = []
        for number, content in enumerate(contents):
            if isinstance(content, web.Response):
                return content
            message = content if isinstance(content, dict) else {"role": "assistant", "content": content}
            finish = "tool_calls" if message.get("tool_calls") else "stop"
            choices.append({"index": number, "message": message, "finish_reason": finish, "logprobs": None})
        if ids is not None:
            choices = [choice | {"usage": usage} for choice in choices]
        head = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"]}
        completion = head | {"choices": choices, "usage": usage}
        if body.get("stream"):
            events = to_event_stream(CompletionKind.chat, completion, include_usage=True)
            return web.Response(body=events, content_type="text/event-stream")
        return web.json_response(completion)

    async def _reply(self, headers: Mapping[str, str], body: dict[str, Any]) -> Any:
        self.requests.append((headers, body))
        content = self.reply(len(self.requests) - 1, body)
        return await content if hasattr(content, "__await__") else content

    async def handle_text(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append((request.headers, body))
        text = self.reply(len(self.requests) - 1, body)
        if isinstance(text, web.Response):
            return text
        choice = {"index": 0, "text": text, "finish_reason": "stop"}
        completion = {"id": "c", "object": "text_completion", "created": 1, "model": body["model"], "choices": [choice]}
        return web.json_response(completion)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    state = Upstream()
    app = web.Application()
    for prefix in ("/groups/{group}/v1", "/groups/{group}/rollouts/{rollout}/v1"):
        app.router.add_post(f"{prefix}/chat/completions", state.handle)
        app.router.add_post(f"{prefix}/completions", state.handle_text)
    server = TestServer(app)
    await server.start_server()
    state.base_url = f"http://127.0.0.1:{server.port}/groups/g1/v1"
    yield state
    await server.close()


@pytest.fixture
def write_environment(tmp_path: Path) -> Iterator[Callable[[str], EnvironmentConfig]]:
    """Write a module into tmp_path and return settings whose id names it."""
    path, handlers = list(sys.path), {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}

    def write(code: str, preamble: str = PREAMBLE, **more: Any) -> EnvironmentConfig:
        name = f"env-{uuid.uuid4().hex[:8]}"
        (tmp_path / f"{name.replace('-', '_')}.py").write_text(preamble + textwrap.dedent(code))
        return EnvironmentConfig.model_validate({"id": f"tester/{name}", **more})

    yield write
    sys.path[:] = path
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
async def make_runner(
    write_environment: Callable[..., EnvironmentConfig], tmp_path: Path
) -> AsyncIterator[Callable[..., Runner]]:
    """The runner that a worker would take for an environment given as code."""
    runners = []

    def make(code: str, **more: Any) -> Runner:
        runners.append(runner_for(load(write_environment(code, **more), tmp_path), tmp_path))
        return runners[-1]

    yield make
    for runner in runners:
        await runner.close()


@pytest.fixture
def make_group(upstream: Upstream) -> Callable[..., GroupRequest]:
    def make(**changes: Any) -> GroupRequest:
        fields: dict[str, Any] = {
            "group_id": "g1",
            "example_index": 0,
            "rollouts": 4,
            "base_url": upstream.base_url,
            "model": "policy",
            "sampling": {"temperature": 0.7, "max_tokens": 32},
            "deadline_seconds": 20.0,
        }
        return GroupRequest.model_validate({**fields, **changes})

    return make


@pytest.fixture
def make_wheel(tmp_path: Path) -> Callable[..., Path]:
    """The smallest valid wheel that holds one module."""

    def make(name: str, code: str, version: str = "1.0.0", tag: str = "py3-none-any") -> Path:
        module = name.replace("-", "_")
        info = f"{module}-{version}.dist-info"
        path = tmp_path / f"{module}-{version}-{tag}.whl"
        files = {
            f"{module}.py": PREAMBLE + textwrap.dedent(code),
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: numpy\n",
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
        }
        files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in files.items():
                archive.writestr(file, text)
        return path

    return make
