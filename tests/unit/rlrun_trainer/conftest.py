"""Trainer of a shared pool with a model that learns nothing, as two runs and the operator see it over HTTP."""

import hashlib
import math
import struct
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from rlrun.constants import LATER, OUT_OF_MEMORY, UNPROCESSABLE, Reason
from rlrun.protocol.access import bearer
from rlrun.protocol.client_command import ForwardBackward, OptimStep
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import MAX_BATCH_BYTES, TrainedRun, TrainerOrder
from rlrun.protocol.trainer import SessionSpec
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun_trainer.artifacts.checkpoint_facts import (
    CheckpointProgress,
    json_files,
    progress_of,
    read_facts,
    read_orchestrator_state,
)
from rlrun_trainer.runtime.compute_thread import Compute, Units
from rlrun_trainer.runtime.run_deaths import RunDeaths
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.server.pool_server import PoolServer
from rlrun_trainer.sessions.session_registry import Sessions
from rlrun_trainer.sessions.trained_runs import TrainedRuns
from typing_extensions import override

from tests.support import trainer_requests
from tests.support.fake_s3 import InMemoryStore
from tests.support.train_bodies import body_of
from tests.unit.rlrun_trainer.sessions.test_shutdown_budget import CountingBackend

POOL_TOKEN = "p" * 64


@dataclass(frozen=True)
class Caller:
    """One run of the pool."""

    uid: str
    is_client: bool = False
    """True if a client's program trains the run."""

    @property
    def folder(self) -> str:
        return f"s3://bucket/runs/team/{self.uid}"

    @property
    def token(self) -> str:
        return f"token of {self.uid}"

    def entry(self, grant: str = "", max_batch_bytes: int = MAX_BATCH_BYTES) -> TrainedRun:
        digest = hashlib.sha256(self.token.encode()).hexdigest()
        return TrainedRun(
            uid=self.uid,
            token_digest=digest,
            folder=self.folder,
            keep_policies=2,
            max_batch_bytes=max_batch_bytes,
            grant=grant or f"grant of {self.uid}",
            client=self.spec() if self.is_client else None,
        )

    def spec(self, **changes: Any) -> SessionSpec:
        return trainer_requests.spec(self.folder, self.uid, **changes)


ONE, TWO = Caller("u-1"), Caller("u-2")


class GrantedStore(InMemoryStore):
    """Store that remembers its grants and its thread."""

    def __init__(self) -> None:
        super().__init__()
        self.grants: list[str] = []
        self.thread = threading.current_thread()
        self.may_upload = threading.Event()
        """Checkpoints are uploaded only while it is set."""
        self.may_upload.set()

    @override
    def upload_artifact(self, source: Any, uri: S3Uri, kind: ArtifactKind, **facts: Any) -> Manifest:
        if kind is ArtifactKind.checkpoint:
            assert self.may_upload.wait(30)
        return super().upload_artifact(source, uri, kind, **facts)

    @override
    def use_grant(self, grant: str) -> None:
        self.grants.append(grant)


class TwoSlots(CountingBackend):
    """Model with two slots, whose steps have three units and wait before each one for `may_compute`."""

    def __init__(self) -> None:
        self.slots: list[str] = []
        self.may_compute = threading.Event()
        self.may_compute.set()
        self.units = 0
        self.full = 0
        """Number of steps that are refused for lack of memory."""

    @override
    def open_slot(self, name: str, *_: Any) -> Sequence[Problem]:
        if len(self.slots) == 2:
            raise ProblemError.of(LATER, Reason.NO_FREE_SLOT, "all slots are in use")
        self.slots.append(name)
        return ()

    @override
    def close_slot(self, name: str, *_: Any) -> None:
        self.slots.remove(name)

    @override
    def train(self, *_: Any) -> Units[dict[str, float]]:
        if self.full:
            self.full -= 1
            raise ProblemError.of(OUT_OF_MEMORY, Reason.TRAINER_OUT_OF_MEMORY, "the step does not fit")
        for _ in range(3):
            self.units += 1
            assert self.may_compute.wait(30)
            yield
        return {"loss/mean": 0.5}

    @override
    def snapshot(self, _: str, progress: CheckpointProgress) -> dict[str, bytes]:
        return self.policy_files() | json_files(progress, {}, 0, None, "base")

    def restore(self, _: str, folder: Path, resume: bool, optimizer: bool = True) -> CheckpointProgress:
        assert resume
        return progress_of(read_facts(folder), read_orchestrator_state(folder))

    def heartbeat(self) -> None:
        pass


class ClientSlots(TwoSlots):
    """Model of clients' programs: a weight, to which each update adds all tokens since the update before it."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[str, float] = {}
        self.gradients: dict[str, int] = {}
        self.restored: list[tuple[bool, bool]] = []

    @override
    def open_slot(self, name: str, *_: Any) -> Sequence[Problem]:
        found = super().open_slot(name)
        self.weights[name] = 0.0
        return found

    @override
    def close_slot(self, name: str, *_: Any) -> None:
        super().close_slot(name)
        self.gradients.pop(name, None)

    def forward_backward(
        self, name: str, spec: SessionSpec, command: ForwardBackward, buffers: memoryview
    ) -> Units[tuple[dict[str, float], list[bytes]]]:
        tokens, offset = list[tuple[int, ...]](), 0
        for datum in command.datums:
            tokens.append(struct.unpack_from(f"<{datum.length}i", buffers, offset))
            offset += datum.size
            if max(tokens[-1]) >= trainer_requests.VOCABULARY or min(tokens[-1]) < 0:
                raise ProblemError.of(UNPROCESSABLE, Reason.BATCH_INVALID, f"datums[{len(tokens) - 1}]: tokens")
        for _ in tokens:
            self.units += 1
            assert self.may_compute.wait(30)
            yield
        if not command.forward_only:
            self.gradients[name] = self.gradients.get(name, 0) + sum(map(sum, tokens))
        logprobs = [struct.pack(f"<{len(each)}f", *(-float(token) for token in each)) for each in tokens]
        return {"loss:sum": float(sum(map(sum, tokens))), "odd:mean": math.nan}, logprobs

    def optim_step(self, name: str, command: OptimStep) -> dict[str, float]:
        self.weights[name] += command.learning_rate * self.gradients.pop(name, 0)
        return {"grad_norm": 1.0}

    @override
    def policy_files(self, name: str = "", *_: Any) -> dict[str, bytes]:
        return {"adapter_config.json": b"{}", "adapter_model.safetensors": repr(self.weights[name]).encode()}

    @override
    def snapshot(self, name: str, progress: CheckpointProgress) -> dict[str, bytes]:
        gradient = {"gradient": str(self.gradients.get(name, 0)).encode()}
        return self.policy_files(name) | gradient | json_files(progress, {}, 0, None, "base")

    @override
    def restore(self, name: str, folder: Path, resume: bool, optimizer: bool = True) -> CheckpointProgress:
        self.restored.append((resume, optimizer))
        self.weights[name] = float((folder / "adapter_model.safetensors").read_text())
        if resume:
            self.gradients[name] = int((folder / "gradient").read_text())
        return progress_of(read_facts(folder), read_orchestrator_state(folder))


@dataclass
class Pool:
    """The trainer's routes as calls, with what stands around it."""

    trainer: PoolServer
    runs: TrainedRuns
    backend: TwoSlots
    sessions: Sessions
    compute: Compute
    url: str
    http: aiohttp.ClientSession
    stores: list[GrantedStore] = field(default_factory=list)

    async def call(
        self, token: str | None, method: str, path: str, body: Any = None, data: bytes | None = None
    ) -> tuple[int, Any]:
        async with self.http.request(method, self.url + path, json=body, data=data, headers=bearer(token)) as response:
            is_json = response.content_type == "application/json"
            return response.status, await response.json() if is_json else await response.text()

    async def order(self, *callers: Caller, number: int = 0, grant: str = "") -> tuple[int, Any]:
        order = TrainerOrder(runs=[caller.entry(grant) for caller in callers], number=number)
        return await self.call(POOL_TOKEN, "PUT", "/pool-order", order.to_json_dict())

    async def open(self, caller: Caller, spec: SessionSpec | None = None) -> tuple[int, Any]:
        body = (spec or caller.spec()).to_json_dict()
        return await self.call(caller.token, "PUT", f"/sessions/{caller.uid}", body)

    async def state(self, caller: Caller) -> tuple[int, Any]:
        return await self.call(caller.token, "GET", f"/sessions/{caller.uid}")

    async def save(self, caller: Caller, kind: str, step: int) -> tuple[int, Any]:
        return await self.call(caller.token, "POST", f"/sessions/{caller.uid}/{kind}/{step}", {})

    async def step(self, caller: Caller, step: int) -> tuple[int, Any]:
        data = body_of(trainer_requests.samples(2), "")
        return await self.call(caller.token, "POST", f"/sessions/{caller.uid}/steps/{step}", data=data)


@pytest.fixture
def settings() -> TrainerSettings:
    return TrainerSettings(slots=2, shutdown_seconds=30)


@pytest.fixture
def backend() -> TwoSlots:
    return TwoSlots()


@pytest.fixture
async def pool(settings: TrainerSettings, backend: TwoSlots, tmp_path: Path) -> AsyncIterator[Pool]:
    stores: list[GrantedStore] = []

    def make_store() -> GrantedStore:
        stores.append(GrantedStore())
        return stores[-1]

    compute = Compute()
    runs = TrainedRuns(RunDeaths(tmp_path / "deaths.json"), make_store)
    trainer = PoolServer(POOL_TOKEN, runs)
    sessions = Sessions(backend, compute, InMemoryStore(), settings)  # type: ignore[arg-type]
    trainer.sessions = sessions
    server = TestServer(trainer.application())
    await server.start_server()
    async with aiohttp.ClientSession() as http:
        made = Pool(trainer, runs, backend, sessions, compute, f"http://127.0.0.1:{server.port}", http, stores)
        assert (await made.order(ONE, TWO))[0] == 200
        yield made
    backend.may_compute.set()
    await server.close()
    compute.close()
