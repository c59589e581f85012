"""Small servers that stand for the other processes of a run, and a store in memory."""

import asyncio
import hashlib
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer
from rlrun.protocol.environment import (
    ROLLOUT_ID_HEADER,
    Demonstration,
    DemonstrationRequest,
    EnvironmentInfo,
    GroupRequest,
    GroupResult,
    RolloutResult,
)
from rlrun.protocol.inference import LoadRequest
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import CheckpointRequest, SessionSpec, SessionState, StepResult, TrainBatch
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun.storage.store import StoreError
from typing_extensions import override

from tests.support.fake_s3 import MODIFIED, InMemoryStore

CHECKPOINT_MANIFEST = Manifest(kind=ArtifactKind.checkpoint, files=[], created_at=MODIFIED).model_dump_json().encode()


class RunStore(InMemoryStore):
    """The orchestrator's store."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Exception] = []
        """Raised one after the other by the next checks and writes."""
        self.away: StoreError | None = None
        """Raised by every write."""

    def _raise_next(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    @override
    def check(self, bucket: str) -> None:
        self._raise_next()
        super().check(bucket)

    @override
    def put_bytes(self, uri: S3Uri, data: bytes) -> None:
        self._raise_next()
        if self.away is not None:
            raise type(self.away)(str(self.away))
        super().put_bytes(uri, data)


def policy(version: int, run_uri: str, lineage: str = "") -> PolicyRef:
    digest = hashlib.sha256(f"{version}/{lineage}".encode()).hexdigest()
    return PolicyRef(version=version, digest=digest, uri=f"{run_uri}/policy/v{version:06d}-{digest[:8]}")


class FakeTrainer:
    """Sessions, steps that are idempotent, checkpoints that appear in the store."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.spec: SessionSpec | None = None
        self.step = 0
        self.lives = 0
        self.results: dict[int, StepResult] = {}
        self.batches: list[tuple[int, TrainBatch]] = []
        self.opened: list[SessionSpec] = []
        self.checkpoints: set[int] = set()
        self.adapters: set[int] = set()
        self.adapter_states: list[dict[str, Any]] = []
        self.saved: dict[str, dict[str, Any]] = {}
        self.resumed_state: dict[str, Any] | None = None
        self.remembers = True
        """Whether a checkpoint that it saves on its way out tells how its newest step went."""
        self.made: dict[str, StepResult | None] = {}
        self.told: StepResult | None = None
        self.die_before: set[int] = set()
        """Steps at which the trainer is replaced, once each, instead of doing them."""
        self.answer: tuple[int, Problem] | None = None
        """What every step is answered with instead, when set."""
        self.hold: set[int] = set()
        """Steps that are made and whose answer nobody gets until `released` is set."""
        self.computing: set[int] = set()
        """Steps that are not made until `released` is set; whoever asked for them may be gone by then."""
        self.asked = asyncio.Event()
        """It has begun one of these."""
        self.turn = asyncio.Lock()
        self.released = asyncio.Event()
        self.preempted_before: set[int] = set()
        """Steps at which it is told to end, once each, instead of doing them."""
        self.preempted_after: set[int] = set()
        """Steps that it makes and whose answer it does not live to give."""
        self.behind: set[int] = set()
        """Steps whose copies it has no room for."""
        self.copying = 0.0
        """Seconds that a copy for a checkpoint takes."""
        self.unpublished = False
        """The newest step is made, and its policy not published until the step is asked for again."""

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**30)
        app.router.add_put("/sessions/{session}", self.open)
        app.router.add_get("/sessions/{session}", self.get)
        app.router.add_post("/sessions/{session}/steps/{step}", self.train)
        app.router.add_post("/sessions/{session}/checkpoints/{step}", self.checkpoint)
        app.router.add_post("/sessions/{session}/adapters/{step}", self.adapter)
        return app

    def restart(self) -> None:
        self.spec, self.results, self.lives = None, {}, self.lives + 1

    def preempt(self) -> None:
        """SIGTERM: a checkpoint of where it is, which knows its newest step and nothing of the orchestrator's, and the
        end.
        """
        assert self.spec is not None
        place = RunLayout(S3Uri.parse(self.spec.run_uri)).checkpoint(self.step)
        if str(place) not in self.saved:
            self.saved[str(place)] = {}
            if self.remembers:
                self.made[str(place)] = self.results.get(self.step - 1)
            self.store.objects[str(place / "manifest.json")] = CHECKPOINT_MANIFEST
            self.checkpoints.add(self.step)
        self.restart()

    def state(self) -> SessionState:
        assert self.spec is not None
        before = self.step - 1 if self.unpublished else self.step
        return SessionState(
            step=self.step,
            policy=policy(before, self.spec.run_uri, self.lineage),
            checkpoints=sorted(self.checkpoints),
            adapters=sorted(self.adapters),
            orchestrator_state=self.resumed_state,
            last=None if self.unpublished else self.results.get(self.step - 1, self._told_of_this_step),
        )

    @property
    def _told_of_this_step(self) -> StepResult | None:
        return self.told if self.told is not None and self.told.step == self.step else None

    @property
    def lineage(self) -> str:
        # The adapter a session starts from is the checkpoint's; what is trained after a restart is another one.
        return "" if self.lives == 0 or self.step == self.resumed_at else str(self.lives)

    async def open(self, request: web.Request) -> web.Response:
        spec = SessionSpec.model_validate_json(await request.read())
        self.opened.append(spec)
        if self.spec is None:
            self.spec = spec
            self.step = int(spec.resume_from.rsplit("-", 1)[1]) if spec.resume_from else 0
            self.resumed_at = self.step
            self.resumed_state = self.saved.get(spec.resume_from or spec.warm_start_from or "")
            self.told = self.made.get(spec.resume_from or "")
        elif spec.max_steps > self.spec.max_steps:
            self.spec = self.spec.model_copy(update={"max_steps": spec.max_steps})
        return web.json_response(self.state().to_json_dict())

    async def get(self, request: web.Request) -> web.Response:
        if self.spec is None:
            return missing()
        return web.json_response(self.state().to_json_dict())

    async def train(self, request: web.Request) -> web.Response:
        # As the real one, which makes the step whoever hangs up meanwhile.
        return await asyncio.shield(self._in_turn(request))

    async def _in_turn(self, request: web.Request) -> web.Response:
        async with self.turn:
            return await self._train(request)

    async def _train(self, request: web.Request) -> web.Response:
        step = int(request.match_info["step"])
        if self.spec is not None and step in self.die_before:
            self.die_before.discard(step)
            self.restart()
            return hung_up(request)
        if self.spec is not None and step in self.preempted_before:
            self.preempted_before.discard(step)
            self.preempt()
            return hung_up(request)
        if self.spec is None:
            return missing()
        if self.answer is not None:
            return web.json_response(self.answer[1].to_json_dict(), status=self.answer[0])
        if step in self.results:
            self.unpublished = False
            return web.json_response(self.results[step].to_json_dict())
        if step >= self.spec.max_steps:
            return web.json_response(Problem(reason="RunComplete", message=str(step)).to_json_dict(), status=422)
        if step != self.step:
            return web.json_response(Problem(reason="StepConflict", message=str(step)).to_json_dict(), status=409)
        batch = TrainBatch.model_validate_json(await request.read())
        await asyncio.sleep(0.02)
        if step in self.computing:
            self.asked.set()
            await self.released.wait()
        self.batches.append((step, batch))
        self.step += 1
        metrics = {"loss/mean": 0.1, "mismatch_kl/all/mean": 0.001 * (step + 1)}
        result = StepResult(step=self.step, policy=self.state().policy, metrics=metrics, batch_id=batch.batch_id)
        self.results[step] = result
        if step in self.preempted_after:
            self.preempted_after.discard(step)
            self.preempt()
            return hung_up(request)
        if step in self.hold:
            await self.released.wait()
        return web.json_response(result.to_json_dict())

    async def checkpoint(self, request: web.Request) -> web.Response:
        if self.spec is None:
            return missing()
        step = int(request.match_info["step"])
        if step in self.behind:
            return behind()
        body = CheckpointRequest.model_validate_json(await request.read())
        await asyncio.sleep(self.copying)
        place = RunLayout(S3Uri.parse(self.spec.run_uri)).checkpoint(step)
        self.saved[str(place)] = body.orchestrator_state
        self.store.objects[str(place / "manifest.json")] = CHECKPOINT_MANIFEST
        self.checkpoints.add(step)
        return web.json_response(self.state().to_json_dict(), status=202)

    async def adapter(self, request: web.Request) -> web.Response:
        if self.spec is None:
            return missing()
        step = int(request.match_info["step"])
        if step in self.behind:
            return behind()
        self.adapter_states.append(CheckpointRequest.model_validate_json(await request.read()).orchestrator_state)
        self.adapters.add(step)
        return web.json_response(self.state().to_json_dict(), status=202)


def missing() -> web.Response:
    return web.json_response(Problem(reason="SessionMissing", message="open it again").to_json_dict(), status=404)


def behind() -> web.Response:
    problem = Problem(reason="UploadsBehind", message="2 uploads of this run still wait")
    return web.json_response(problem.to_json_dict(), status=503)


def hung_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def chat_answer(model: str, prompt_ids: list[int], completion_ids: list[int], text: str) -> dict[str, Any]:
    """The shape of vLLM 0.32's answer to a chat request with logprobs and return_token_ids."""
    content = [
        {"token": f"t{t}", "logprob": -0.25 - t / 1000, "bytes": [t % 256], "top_logprobs": []} for t in completion_ids
    ]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1790000000,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None, "annotations": None},
                "logprobs": {"content": content},
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": completion_ids,
                "routed_experts": None,
            }
        ],
        "service_tier": None,
        "usage": {"prompt_tokens": len(prompt_ids), "total_tokens": 9, "completion_tokens": len(completion_ids)},
        "prompt_logprobs": None,
        "prompt_token_ids": prompt_ids,
        "kv_transfer_params": None,
    }


@dataclass
class FakeEngine:
    """One inference pod: the engine's API and its sidecar on one port."""

    adapters: set[str] = field(default_factory=set)
    requests: list[dict[str, Any]] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    broken: bool = False
    """Every answer is 500."""
    refuses_loads: bool = False
    delay: float = 0.002
    jitter: random.Random | None = None
    """Answers take up to ten times the delay, as this says."""
    seeded: bool = False
    """Answers follow from the request's seed, as an engine's do; else each is another one."""
    tokenizations: list[dict[str, Any]] = field(default_factory=list)
    thoughtful: bool = False
    """Its chat template puts something into the prompt once the answer follows."""
    numbers: Any = field(default_factory=lambda: itertools.count(100))

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_get("/adapters", self.listed)
        app.router.add_put("/adapters/{name}", self.load)
        app.router.add_delete("/adapters/{name}", self.unload)
        return app

    def restart(self) -> None:
        self.adapters.clear()

    async def chat(self, request: web.Request) -> web.Response:
        if self.broken:
            return web.json_response({"error": "engine dead"}, status=500)
        body = json.loads(await request.read())
        self.requests.append(body)
        if body["model"] not in self.adapters:
            message = f"The model `{body['model']}` does not exist."
            return web.json_response({"error": {"message": message, "code": 404}}, status=404)
        await asyncio.sleep(self.delay * (10 * self.jitter.random() if self.jitter else 1))
        words = " ".join(str(m["content"]) for m in body["messages"])
        prompt_ids = [ord(c) for c in words]
        number = 100 + body["seed"] % 900 if self.seeded and "seed" in body else next(self.numbers)
        text = f"<{number}>"
        return web.json_response(chat_answer(body["model"], prompt_ids, [ord(c) for c in text], text))

    async def tokenize(self, request: web.Request) -> web.Response:
        """A template that writes `role:content;` and asks with `assistant:`; one token per character."""
        body = json.loads(await request.read())
        self.tokenizations.append(body)
        messages = body["messages"]
        text = "".join(f"{message['role']}:{message['content']};" for message in messages)
        if body["add_generation_prompt"]:
            text += "assistant:"
        elif self.thoughtful:
            text = "thought;" + text
        tokens = [ord(c) for c in text]
        return web.json_response({"count": len(tokens), "max_model_len": 256, "tokens": tokens})

    async def listed(self, request: web.Request) -> web.Response:
        if self.broken:
            return web.json_response({"reason": "EngineDead", "message": "no answer"}, status=503)
        return web.json_response({"adapters": sorted(self.adapters)})

    async def load(self, request: web.Request) -> web.Response:
        if self.broken or self.refuses_loads:
            return web.json_response({"reason": "LoadFailed", "message": "cannot load"}, status=500)
        ref = LoadRequest.model_validate_json(await request.read())
        assert ref.name == request.match_info["name"]
        self.adapters.add(ref.name)
        self.loads.append(ref.name)
        return web.json_response({"adapters": sorted(self.adapters), "loadSeconds": 0.01})

    async def unload(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.adapters.discard(name)
        self.unloads.append(name)
        return web.json_response({"adapters": sorted(self.adapters)})


@dataclass
class FakeEnvironment:
    """Rolls out through the gateway like any OpenAI client, two turns each, and rewards by turns of a wheel."""

    name: str
    examples: int = 20
    turns: int = 2
    problem: Problem | None = None
    reward_error: Problem | None = None
    """Every second rollout fails with this."""
    rewards: list[float] = field(default_factory=lambda: [0.0, 1.0, 0.5, 0.25])
    reward_of: Callable[[str], float] | None = None
    """Of the text of the last answer, instead of the wheel."""
    shows: bool = True
    """Whether it has demonstrations."""
    demonstrated: list[int] = field(default_factory=list)
    turned_away: int = 0
    """Requests that got no answer because it is away."""
    away: bool = False
    groups: Counter[str] = field(default_factory=Counter)
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
        if self.away:
            return web.Response(status=503)
        info = EnvironmentInfo(
            name=self.name,
            id=f"owner/{self.name}",
            ready=self.problem is None,
            problem=self.problem,
            train_examples=self.examples,
            eval_examples=3,
        )
        return web.json_response(info.to_json_dict())

    async def roll_out(self, request: web.Request) -> web.Response:
        if self.away:
            return web.Response(status=503)
        asked = GroupRequest.model_validate_json(await request.read())
        self.requests.append(asked)
        self.groups[asked.split] += 1
        outcomes = await asyncio.gather(*(self._one(asked, index) for index in range(asked.rollouts)))
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
        shown = Demonstration(
            prompt=[{"role": "user", "content": f"example {asked.example_index}"}],
            completion=[{"role": "assistant", "content": f"answer {asked.example_index}"}],
        )
        return web.json_response(shown.to_json_dict())

    async def _one(self, asked: GroupRequest, index: int) -> RolloutResult:
        assert self.http is not None
        rollout = f"r{index}"
        messages: list[dict[str, str]] = [{"role": "user", "content": f"example {asked.example_index}"}]
        for turn in range(self.turns):
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
        return RolloutResult(rollout_id=rollout, reward=reward, metrics={"turns": float(self.turns)}, error=error)


@dataclass
class FakeTeacher:
    """The part of vLLM's completions that a teacher needs: log probabilities of a prompt."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    failures: int = 0
    """Requests that get no answer before the first that does."""
    refusal: str | None = None
    foreign: bool = False
    """Its tokenizer is another one."""

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self.complete)
        return app

    async def complete(self, request: web.Request) -> web.Response:
        if self.failures > 0:
            self.failures -= 1
            return web.Response(status=503)
        if self.refusal is not None:
            return web.json_response({"error": {"message": self.refusal, "code": 400}}, status=400)
        body = json.loads(await request.read())
        self.requests.append(body)
        found: list[dict[str, Any] | None] = [None]
        for token in body["prompt"][1:]:
            name = str(token + 1 if self.foreign else token)
            found.append({name: {"logprob": self.logprob(token), "rank": 1, "decoded_token": "?"}})
        choice = {"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": found}
        return web.json_response({"id": "cmpl-1", "object": "text_completion", "choices": [choice]})

    @staticmethod
    def logprob(token: int) -> float:
        """It finds `<` impossible and is sure of everything else."""
        return -9999.0 if token == ord("<") else -0.001 * token


async def serve(app: web.Application) -> TestServer:
    server = TestServer(app)
    await server.start_server()
    return server
