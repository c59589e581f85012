"""All processes of a run in one: the orchestrator itself, small servers for everyone else."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import zstandard
from aiohttp import web
from aiohttp.test_utils import TestServer
from rlrun.api.base.address_rules import AddressRules
from rlrun.api.run_status import EnvironmentPackage
from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.resolved import ResolvedRun
from rlrun.storage.layout import rollouts_name
from rlrun.storage.samples.summary import StepSamples
from rlrun_orchestrator.app import attempt
from rlrun_orchestrator.config import OrchestratorSettings
from rlrun_orchestrator.inference.replica_pool import ReplicaAddresses

from tests.support.fake_environment import FakeEnvironment
from tests.support.fake_replica import FakeReplica
from tests.support.fake_teacher import FakeTeacher
from tests.support.fake_trainer import FakeTrainer
from tests.support.ports import claimed_ports
from tests.support.run_store import RunStore
from tests.support.waiting import until

RUN_URI = "s3://bucket/runs/ns/uid-1"


@dataclass
class World:
    """The surroundings of one run."""

    folder: Path
    store: RunStore = field(default_factory=RunStore)
    engines: list[FakeReplica] = field(default_factory=lambda: [FakeReplica(), FakeReplica()])
    environments: dict[str, FakeEnvironment] = field(default_factory=lambda: {"words": FakeEnvironment("words")})
    eval_environments: dict[str, FakeEnvironment] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    endpoints: list[ReplicaAddresses] = field(default_factory=list)
    """What DNS answers now."""
    servers: list[TestServer] = field(default_factory=list)
    gateway_port: int = 0
    status_port: int = 0
    attempts: int = 0
    seq_len: int = 256
    teacher: FakeTeacher | None = None
    teacher_url: str = ""
    uid: str = "uid-1"
    warm_start_from: str | None = None
    packages: list[EnvironmentPackage] = field(default_factory=list)
    """What the status of the run has recorded."""

    pods: dict[str, list[FakeEnvironment]] = field(default_factory=dict)
    """Further pods of environments, whose first one is in `environments` or `eval_environments`."""
    addresses: dict[str, list[str]] = field(default_factory=dict)
    """URLs of the pods that DNS answers for the URL of an environment."""

    def __post_init__(self) -> None:
        self.trainer = FakeTrainer(self.store)
        self.trainer_url = ""
        self.urls: dict[str, str] = {}

    async def start(self) -> None:
        """Starts everyone but the orchestrator."""
        if self.teacher is not None:
            self.teacher_url = f"{await self._serve(self.teacher.application())}/v1"
        self.trainer_url = await self._serve(self.trainer.application())
        for name, environment in (self.environments | self.eval_environments).items():
            self.urls[name] = await self._serve(environment.application())
            further = [await self._serve(pod.application()) for pod in self.pods.get(name, [])]
            self.addresses[self.urls[name]] = [self.urls[name], *further]
        for engine in self.engines:
            url = await self._serve(engine.application())
            self.endpoints.append(ReplicaAddresses(url, url))

    async def _serve(self, app: Any) -> str:
        server = await serve(app)
        self.servers.append(server)
        return str(server.make_url("")).rstrip("/")

    def resolved(self) -> ResolvedRun:
        """What the operator would have written."""
        spec: dict[str, Any] = {
            "model": "owner/tiny",
            "maxSteps": 5,
            "batchSize": 8,
            "rolloutsPerExample": 4,
            "oversamplingFactor": 2,
            "maxAsyncLevel": 2,
            "sampling": {"maxTokens": 16},
            "env": [{"id": f"owner/{name}"} for name in self.environments],
            "checkpoints": {"interval": 2},
        }
        places = [
            {"name": name, "id": f"owner/{name}", "url": self.urls[name], "use": use}
            for use, members in (("train", self.environments), ("eval", self.eval_environments))
            for name in members
        ]
        return ResolvedRun.model_validate(
            {
                "run": {"namespace": "ns", "name": "run", "uid": self.uid, "attempt": 1},
                "spec": spec | self.spec,
                "model": {"id": "owner/tiny", "source": f"hf://owner/tiny@{'0' * 40}", "seqLen": self.seq_len},
                "endpoints": {
                    "trainerUrl": self.trainer_url,
                    "inferenceHost": "unused",
                    "gatewayUrl": f"http://127.0.0.1:{self.gateway_port}",
                    "environments": places,
                },
                "artifacts": {"runUri": RUN_URI, "environmentsUri": "s3://bucket/environments"},
                "warmStartFrom": self.warm_start_from,
                "environmentPackages": [package.to_json_dict() for package in self.packages],
            }
        )

    def write_configuration(self, **spec: Any) -> None:
        """What the kubelet does when the ConfigMap has changed."""
        new = self.folder / "run.json.new"
        self.spec |= spec
        new.write_text(self.resolved().model_dump_json(by_alias=True, exclude_none=True))
        new.replace(self.folder / "run.json")

    async def run(self, timeout: float = 120.0) -> int:
        """One attempt of the orchestrator; its exit code."""
        with claimed_ports(2) as ports:
            return await self._attempt(ports, timeout)

    async def _attempt(self, ports: list[int], timeout: float) -> int:
        self.gateway_port, self.status_port = ports
        self.attempts += 1
        settings = OrchestratorSettings(
            **{
                "gateway_port": self.gateway_port,
                "status_port": self.status_port,
                "termination_log": self.folder / "termination",
                "config": self.folder / "run.json",
                "config_interval": 0.02,
                "spool": self.folder / "spool",
                "poll_interval": 0.05,
                "publish_grace": 0.2,
                "configuration_grace": 0.2,
                "storage_grace": 0.2,
                "start_deadline": 10.0,
                "trainer_deadline": 5.0,
                "inference_deadline": 5.0,
                "environment_deadline": 5.0,
                "finish_deadline": 5.0,
                "drain_deadline": 5.0,
                "request_wait": 5.0,
                "empty_batch_backoff": 0.01,
                "most_filtered_groups": 40,
                "environment_backoff": 0.01,
                "private_addresses": AddressRules.parse(["127.0.0.1"]),
                **self.settings,
            }
        )

        async def resolve() -> list[ReplicaAddresses]:
            return list(self.endpoints)

        async def addresses(url: str) -> list[str]:
            return self.addresses[url]

        work = attempt(self.resolved(), settings, self.stop, self.store, resolve, addresses)  # type: ignore[arg-type]
        return await asyncio.wait_for(work, timeout)

    async def status(self) -> RunStatus:
        """What the operator would see now."""
        url = f"http://127.0.0.1:{self.status_port}/status"
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            return RunStatus.model_validate(await answer.json())

    async def until_waiting(self, reason: str, timeout: float = 60.0) -> RunStatus:
        """Return the status once the run waits for that reason."""
        async with asyncio.timeout(timeout):
            while True:
                status = await self.status()
                if status.waiting_for is not None and status.waiting_for.reason == reason:
                    return status
                await asyncio.sleep(0.01)

    @property
    def last_word(self) -> RunStatus:
        """The termination message."""
        return RunStatus.model_validate_json((self.folder / "termination").read_bytes())

    def lines(self) -> list[dict[str, Any]]:
        """The lines of metrics, as written."""
        parts = sorted(key for key in self.store.objects if "/metrics/part-" in key)
        return [json.loads(line) for part in parts for line in self.store.objects[part].decode().splitlines()]

    def state(self) -> dict[str, Any]:
        """The state of the newest orchestrator, as written; empty before the first."""
        files = sorted(key for key in self.store.objects if "/orchestrator/state-" in key)
        found: dict[str, Any] = json.loads(self.store.objects[files[-1]]) if files else {}
        return found

    def rollouts(self, step: int, use: str = "") -> list[dict[str, Any]]:
        """The rollouts that led to `step`, or those of another use, as written."""
        data = self.store.objects[f"{RUN_URI}/rollouts/{rollouts_name(step, use)}"]
        text = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        return [json.loads(line) for line in text.decode().splitlines()]

    def summaries(self) -> list[StepSamples]:
        """The summaries of the stored rollouts."""
        parts = sorted(key for key in self.store.objects if "/rollouts/steps/part-" in key)
        lines = [line for part in parts for line in self.store.objects[part].splitlines()]
        newest = {s.key: s for s in map(StepSamples.model_validate_json, lines)}
        return [newest[key] for key in sorted(newest)]

    async def until(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Returns when the condition holds."""
        await until(condition, timeout)


async def serve(app: web.Application) -> TestServer:
    server = TestServer(app)
    await server.start_server()
    return server
