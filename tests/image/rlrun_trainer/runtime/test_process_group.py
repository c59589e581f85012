"""Two real processes under torchrun do what one does."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from rlrun.api.run_sections.training import KlPenalty
from rlrun.protocol.problem import Problem
from rlrun.protocol.train_batch import SampleLoss, TrainBatch
from rlrun.protocol.trainer import SessionSpec, SessionState, StepResult
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import Store
from rlrun_trainer.runtime.compute_thread import Compute
from rlrun_trainer.runtime.process_group import LARGEST_MESSAGE, message_buffer
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions.session_registry import Sessions
from rlrun_trainer.torch_backend.collective_executor import CollectiveExecutor
from safetensors.torch import load

from tests.support import tiny_model
from tests.support.ports import claimed_ports
from tests.support.seaweedfs import S3Server
from tests.support.source_tree import PYTHONPATH
from tests.support.train_bodies import body_of

SETTINGS = TrainerSettings()
START_SECONDS = 240
END_SECONDS = 25
"""Less than the 30 s after which torchrun kills those that do not end by themselves."""
METRICS = (
    "loss/mean",
    "optim/grad_norm",
    "entropy/all/mean",
    "mismatch_kl/all/mean",
    "mismatch_kl/all/max",
    "importance_ratio/max",
    "is_masked/mean",
    "batch/tokens",
    "batch/trainable_tokens",
)
# AdamW divides by the gradient's own size, so rounding where that is almost nothing moves a weight by up to the rate.
SLOW: dict[str, Any] = {"learning_rate": 2e-4}
FULL: dict[str, Any] = SLOW | {"kind": "weights"}
ATTENTION: dict[str, Any] = SLOW | {"lora": {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}}
EXPERTS: dict[str, Any] = SLOW | {"lora": {"target_modules": ["all-linear", "experts"]}}
PENALTY: dict[str, Any] = {"kl_penalty": KlPenalty(beta=0.5)}


class Trainer:
    """A trainer of two or more processes, and its routes."""

    def __init__(
        self, model_dir: Path, environment: dict[str, str], log: Path, recompute: str, processes: int = 2
    ) -> None:
        self._claim = ExitStack()
        self.port, meeting = self._claim.enter_context(claimed_ports(2))
        self.log = log
        command = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
        command += ["--nnodes", "1", "--node-rank", "0"]
        command += ["--master-addr", "127.0.0.1", "--master-port", str(meeting)]
        command += ["-m", "tests.support.faulty_trainer", "--model-dir", str(model_dir), "--port", str(self.port)]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command, "--device", "cpu", "--slots", "2", "--gradient-checkpointing", recompute],
                env=os.environ | {"PYTHONPATH": PYTHONPATH, "RLRUN_THREADS": "1"} | environment,
                stdout=output,
                stderr=output,
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self.call("GET", "/readyz")[0] != 200:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)

    def call(self, method: str, path: str, body: str | bytes = b"") -> tuple[int, str]:
        data = (body.encode() if isinstance(body, str) else body) or None
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (urllib.error.URLError, ConnectionError) as error:
            return 0, str(error)

    def open(self, spec: SessionSpec) -> SessionState:
        status, text = self.call("PUT", "/sessions/run", spec.model_dump_json(by_alias=True))
        assert status == 200, text + self.log.read_text()
        return SessionState.model_validate_json(text)

    def step(self, step: int, batch: TrainBatch) -> StepResult:
        status, text = self.call("POST", f"/sessions/run/steps/{step}", body_of(batch.samples, batch.batch_id))
        assert status == 200, text + self.log.read_text()
        return StepResult.model_validate_json(text)

    def process_of(self, rank: int) -> int:
        """Its id: torchrun's children, by what they were told."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
                told = (process / "environ").read_bytes().split(b"\0") if parent == self.process.pid else []
            except OSError:
                continue
            if f"RANK={rank}".encode() in told:
                return int(process.name)
        raise AssertionError(f"no process of rank {rank}: {self.log.read_text()}")

    def end(self) -> bool:
        """Send SIGTERM and give the ports back; return whether SIGTERM was enough."""
        with self._claim:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                try:
                    self.process.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait(10)
                    return False
            return True


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trap") / "armed"


@pytest.fixture(scope="module")
def dense(model_dir: Path, s3_server: S3Server, trap: Path) -> Iterator[Trainer]:
    trainer = Trainer(model_dir, s3_server.environment | {"TRAP": str(trap)}, trap.parent / "dense.log", "on")
    try:
        trainer.wait_ready()
        yield trainer
    finally:
        trainer.end()


def batch(count: int, seed: int) -> TrainBatch:
    return TrainBatch(samples=tiny_model.samples(count, seed))


async def alone(
    model_dir: Path, store: Store, spec: SessionSpec, batches: list[TrainBatch], dtype: str = "float32"
) -> list[StepResult]:
    """What a trainer of one process makes of the same."""
    compute = Compute()
    backend = CollectiveExecutor(tiny_model.load(model_dir, dtype=dtype))
    sessions = Sessions(backend, compute, store, SETTINGS)
    session = await sessions.open("run", spec)
    results = [await session.train(step, one.samples) for step, one in enumerate(batches)]
    compute.close()
    return results


def tensors(store: Store, uri: str) -> dict[str, torch.Tensor]:
    place = S3Uri.parse(uri)
    names = [name for name, _ in store.list_files(place) if name.endswith(".safetensors")]
    return {key: tensor for name in names for key, tensor in load(store.get_bytes(place / name)).items()}


def compare(store: Store, ours: list[StepResult], theirs: list[StepResult]) -> None:
    for one, two in zip(ours, theirs, strict=True):
        for key in METRICS:
            assert one.metrics[key] == pytest.approx(two.metrics[key], rel=1e-4, abs=1e-6), key
        first, second = tensors(store, one.policy.uri), tensors(store, two.policy.uri)
        assert first.keys() == second.keys()
        for name, tensor in first.items():
            assert torch.allclose(tensor, second[name], atol=1e-5), name


@pytest.fixture
def run_uri(s3_server: S3Server) -> str:
    return f"s3://{s3_server.bucket}/t/team/{uuid.uuid4().hex}"


@pytest.mark.parametrize("length", [-1, 0, LARGEST_MESSAGE + 1])
def test_no_memory_is_taken_for_a_length_that_no_message_has(length: int) -> None:
    with pytest.raises(RuntimeError, match=f"is {length} bytes long"):
        message_buffer(length)


@pytest.mark.parametrize("changes", [SLOW, FULL, SLOW | PENALTY, FULL | PENALTY])
async def test_two_processes_equal_one(
    dense: Trainer, model_dir: Path, store: Store, run_uri: str, changes: dict[str, Any]
) -> None:
    # An even number of micro-batches, an odd one, and fewer samples than processes.
    batches = [batch(12, 0), batch(17, 1), batch(1, 2)]
    dense.open(tiny_model.spec(run_uri, **changes))
    ours = [dense.step(step, one) for step, one in enumerate(batches)]
    dense.call("DELETE", "/sessions/run")
    compare(store, ours, await alone(model_dir, store, tiny_model.spec(run_uri + "-alone", **changes), batches))


async def test_adapters_in_bfloat16_learn_on_a_sharded_model(
    model_dir: Path, tmp_path: Path, s3_server: S3Server, store: Store, run_uri: str
) -> None:
    variables = s3_server.environment | {"RLRUN_DTYPE": "bfloat16"}
    trainer = Trainer(model_dir, variables, tmp_path / "log", "on")
    batches = [batch(12, 0), batch(17, 1)]
    try:
        trainer.wait_ready()
        trainer.open(tiny_model.spec(run_uri, **SLOW))
        ours = [trainer.step(step, one) for step, one in enumerate(batches)]
    finally:
        trainer.end()
    theirs = await alone(model_dir, store, tiny_model.spec(run_uri + "-alone", **SLOW), batches, dtype="bfloat16")
    for one, two in zip(ours, theirs, strict=True):
        for key in ("loss/mean", "optim/grad_norm", "entropy/all/mean"):
            assert one.metrics[key] == pytest.approx(two.metrics[key], rel=2e-2), key
        weights = tensors(store, one.policy.uri)
        assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}


# Adapters are as wide as the layers they change, not as the part of them that a process of a group holds.
@pytest.mark.parametrize(
    ("processes", "shard_size", "changes"), [(2, 1, SLOW), (2, 1, FULL | PENALTY), (4, 2, SLOW), (4, 2, FULL)]
)
async def test_groups_of_processes_that_hold_all_weights_equal_one(
    model_dir: Path,
    tmp_path: Path,
    s3_server: S3Server,
    store: Store,
    run_uri: str,
    processes: int,
    shard_size: int,
    changes: dict[str, Any],
) -> None:
    variables = s3_server.environment | {"RLRUN_SHARD_SIZE": str(shard_size)}
    trainer = Trainer(model_dir, variables, tmp_path / "log", "on", processes)
    batches = [batch(12, 0), batch(17, 1), batch(1, 2)]
    try:
        trainer.wait_ready()
        trainer.open(tiny_model.spec(run_uri, **changes))
        ours = [trainer.step(step, one) for step, one in enumerate(batches)]
        assert trainer.call("POST", "/sessions/run/checkpoints/3", "{}")[0] == 202
    finally:
        trainer.end()
    assert store.is_complete(RunLayout(S3Uri.parse(run_uri)).checkpoint(3)), trainer.log.read_text()
    compare(store, ours, await alone(model_dir, store, tiny_model.spec(run_uri + "-alone", **changes), batches))


@pytest.mark.parametrize("changes", [{"lora": {"dropout": 0.2}} | PENALTY, FULL | PENALTY])
def test_two_processes_resume_to_the_bit(
    dense: Trainer, store: Store, run_uri: str, changes: dict[str, Any], wait_for: Callable[..., None]
) -> None:
    shown = batch(9, 0)
    for sample in shown.samples:
        sample.loss, sample.logprobs = SampleLoss.cross_entropy, [0.0] * len(sample.token_ids)
    dense.open(tiny_model.spec(run_uri, **changes))
    dense.step(0, shown)
    dense.step(1, batch(9, 1))
    assert dense.call("POST", "/sessions/run/checkpoints/2", "{}")[0] == 202
    expected = dense.step(2, batch(9, 2))
    uri = RunLayout(S3Uri.parse(run_uri)).checkpoint(2)
    wait_for(lambda: SessionState.model_validate_json(dense.call("GET", "/sessions/run")[1]).uploads_pending == 0)
    dense.call("DELETE", "/sessions/run")
    assert dense.open(tiny_model.spec(run_uri, resume_from=str(uri), **changes)).step == 2
    again = dense.step(2, batch(9, 2))
    assert again.metrics["kl_penalty/kl"] == expected.metrics["kl_penalty/kl"] > 0
    assert again.policy.digest == expected.policy.digest
    dense.call("DELETE", "/sessions/run")


def test_an_invalid_session_is_refused_by_all_processes(dense: Trainer, run_uri: str) -> None:
    spec = tiny_model.spec(run_uri, lora={"target_modules": ["nope"]})
    status, text = dense.call("PUT", "/sessions/run", spec.model_dump_json(by_alias=True))
    assert (status, Problem.model_validate_json(text).reason) == (422, "AdapterInvalid")
    spec = tiny_model.spec(run_uri, resume_from=f"{run_uri}/checkpoints/step-000007")
    assert dense.call("PUT", "/sessions/run", spec.model_dump_json(by_alias=True))[0] == 422
    dense.open(tiny_model.spec(run_uri))
    dense.call("DELETE", "/sessions/run")


@pytest.mark.parametrize("changes", [SLOW, FULL])
async def test_a_loss_that_is_no_number_on_one_process_changes_nothing_on_any(
    dense: Trainer, model_dir: Path, store: Store, run_uri: str, changes: dict[str, Any]
) -> None:
    dense.open(tiny_model.spec(run_uri, **changes))
    bad = batch(12, 0)
    bad.samples[3].advantage = 3e38
    status, text = dense.call("POST", "/sessions/run/steps/0", body_of(bad.samples))
    assert (status, Problem.model_validate_json(text).reason) == (422, "StepNotFinite")
    ours = [dense.step(0, batch(12, 0))]
    dense.call("DELETE", "/sessions/run")
    compare(store, ours, await alone(model_dir, store, tiny_model.spec(run_uri + "-alone", **changes), [batch(12, 0)]))


async def test_a_mixture_of_experts(tmp_path: Path, s3_server: S3Server, store: Store, run_uri: str) -> None:
    model_dir = tiny_model.save_moe(tmp_path / "moe")
    trainer = Trainer(model_dir, s3_server.environment, tmp_path / "log", "off")
    try:
        trainer.wait_ready()
        batches = [batch(12, 0), batch(7, 1)]
        for number, kind in enumerate((ATTENTION, EXPERTS, FULL)):
            uri = f"{run_uri}-{number}"
            trainer.open(tiny_model.spec(uri, **kind))
            ours = [trainer.step(step, one) for step, one in enumerate(batches)]
            trainer.call("DELETE", "/sessions/run")
            compare(store, ours, await alone(model_dir, store, tiny_model.spec(uri + "-alone", **kind), batches))
    finally:
        ended = trainer.end()
    # SIGTERM reaches all; those that follow stay until the one that leads has finished its uploads, and not longer.
    assert ended, "the processes had to be killed"
    log = await asyncio.to_thread(trainer.log.read_text)
    assert "Shutdown took" in log
    assert "The first process exited" not in log


@pytest.mark.parametrize("told", ["all", "the one that follows"])
async def test_sigterm_saves_an_unsaved_step(
    model_dir: Path, tmp_path: Path, s3_server: S3Server, store: Store, run_uri: str, told: str
) -> None:
    trainer = Trainer(model_dir, s3_server.environment, tmp_path / "log", "off")
    try:
        trainer.wait_ready()
        trainer.open(tiny_model.spec(run_uri, **FULL))
        made = trainer.step(0, batch(12, 0))
        if told == "all":
            trainer.process.send_signal(signal.SIGTERM)
        else:
            # As on a node of its own that is drained: the first process hears of it and has as much time as that one.
            os.kill(trainer.process_of(rank=1), signal.SIGTERM)
        assert await asyncio.to_thread(trainer.process.wait, 60) != 0, "the Job of the nodes must not complete"
    finally:
        trainer.end()
    saved = RunLayout(S3Uri.parse(run_uri)).checkpoint(1)
    assert store.is_complete(saved), trainer.log.read_text()
    sessions = Sessions(CollectiveExecutor(tiny_model.load(model_dir)), Compute(), store, SETTINGS)
    session = await sessions.open("run", tiny_model.spec(run_uri, resume_from=str(saved), **FULL))
    # Each process had written a part of the policy, so its digest is another one.
    first, second = tensors(store, made.policy.uri), tensors(store, session.state.policy.uri)
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize("changes", [SLOW | PENALTY, FULL])
@pytest.mark.parametrize("where", ["forward", "again", "head"])
async def test_memory_that_runs_out_on_one_process_changes_nothing_on_any(
    dense: Trainer, model_dir: Path, store: Store, trap: Path, run_uri: str, where: str, changes: dict[str, Any]
) -> None:
    dense.open(tiny_model.spec(run_uri, **changes))
    await asyncio.to_thread(trap.write_text, where)
    status, text = dense.call("POST", "/sessions/run/steps/0", body_of(batch(12, 0).samples))
    await asyncio.to_thread(trap.unlink)
    assert (status, Problem.model_validate_json(text).reason) == (507, "TrainerOutOfMemory")
    ours = [dense.step(0, batch(12, 0))]
    dense.call("DELETE", "/sessions/run")
    compare(store, ours, await alone(model_dir, store, tiny_model.spec(run_uri + "-alone", **changes), [batch(12, 0)]))


def test_a_process_that_dies_ends_all(dense: Trainer, trap: Path, run_uri: str) -> None:
    dense.open(tiny_model.spec(run_uri))
    dense.step(0, batch(9, 0))
    trap.write_text("die")
    assert dense.call("POST", "/sessions/run/steps/1", body_of(batch(9, 1).samples))[0] != 200
    assert dense.process.wait(60) != 0
