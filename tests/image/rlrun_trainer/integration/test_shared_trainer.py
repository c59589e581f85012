"""A run in a shared trainer with seven neighbours, which is killed twice, ends as the run alone, to the bit. So does a
client's program beside other programs and runs.
"""

import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from rlrun.constants import LATER
from rlrun.protocol.client_command import SaveState
from rlrun.protocol.client_run import SaveKind
from rlrun.protocol.shared_pool import TrainedRun, TrainerOrder
from rlrun.protocol.train_batch import Sample, SampleLoss
from rlrun.protocol.trainer import SessionSpec, SessionState, StepResult
from rlrun.storage.layout import ADAPTER_WEIGHTS, RunLayout, S3Uri
from rlrun.storage.store import Store

from tests.support import tiny_model, trainer_requests
from tests.support.client_commands import body_of as command_body
from tests.support.client_commands import read_result
from tests.support.client_datums import Datum, command, optim_step, random_datums
from tests.support.ports import claimed_ports
from tests.support.seaweedfs import S3Server
from tests.support.train_bodies import body_of
from tests.support.trainer_process import call, call_bytes, ready, start

STEPS = 8
KILLED_AFTER = (2, 5)
"""Steps of the run after which the trainer is killed."""
NEIGHBOURS = 7
CLIENTS, RUNS = 8, 2
"""Runs of a pool whose training loop is a client's program, and runs with an orchestrator."""
UPDATES = 3
LOSSES = ("importance_sampling", "ppo", "gspo")
SECONDS = 120
DEVICE = ("--device", tiny_model.DEVICE)


class Pool:
    """Trainer of a pool whose runs are in its mounted order."""

    def __init__(self, model: Path, s3: S3Server, folder: Path, port: int, runs: int, clients: int = 0) -> None:
        self.model, self.s3, self.port = model, s3, port
        self.root = f"s3://{s3.bucket}/{uuid.uuid4().hex}"
        self.uids = [f"run-{number}" for number in range(runs)]
        self.clients = [f"client-{number}" for number in range(clients)]
        self.order = folder / f"order-{runs}-{clients}.json"
        entries = [
            TrainedRun(
                uid=uid,
                token_digest=hashlib.sha256(uid.encode()).hexdigest(),
                folder=f"{self.root}/{uid}",
                keep_policies=4,
                client=self.spec(uid, 0.1) if uid in self.clients else None,
            )
            for uid in self.uids + self.clients
        ]
        self.order.write_text(TrainerOrder(runs=entries).model_dump_json(by_alias=True))
        self.started = 0
        self.lost: list[int] = []
        """Steps that the run had to repeat after each kill."""

    @contextmanager
    def running(self) -> Iterator[None]:
        variables = {
            "RLRUN_TOKEN": "of the pool",
            "RLRUN_ORDER_PATH": str(self.order),
            "RLRUN_SLOTS": str(len(self.uids + self.clients)),
            "RLRUN_RECOVERY_SECONDS": "0.001",
        }
        process = start("rlrun_trainer", self.model, self.port, self.s3.environment | variables, DEVICE)
        with ready(process, self.port):  # kills it at the end
            self.started += 1
            yield

    def spec(self, uid: str, dropout: float) -> SessionSpec:
        changes: dict[str, Any] = {"lora": {"dropout": dropout}, "max_steps": 1000}
        return tiny_model.spec(f"{self.root}/{uid}", uid, **changes)

    def open(self, uid: str, dropout: float) -> SessionState:
        spec = self.spec(uid, dropout)
        status, text = call(self.port, "PUT", f"/sessions/{uid}", spec.model_dump_json(by_alias=True), uid)
        if status == LATER:
            raise ConnectionError(text)
        assert status == 200, text
        return SessionState.model_validate_json(text)

    def step(self, uid: str, step: int, samples: Sequence[Sample]) -> StepResult:
        body = body_of(samples, f"batch {step}")
        status, text = call(self.port, "POST", f"/sessions/{uid}/steps/{step}", body, uid)
        assert status == 200, text
        return StepResult.model_validate_json(text)

    def train(self, first: int, last: int) -> None:
        """Train the run on demonstrations."""
        step = self.open("run-0", 0.1).step
        if first:
            self.lost.append(first - step)
        while step < last:
            samples = trainer_requests.samples(10, step)
            for sample in samples:
                sample.loss = SampleLoss.cross_entropy
                sample.logprobs = [0.0] * len(sample.token_ids)
            result = self.step("run-0", step, samples)
            assert (result.step, result.policy.version) == (step + 1, step + 1)
            step += 1

    def disturb(self, uid: str, number: int, end: threading.Event, steps: dict[str, int] | None = None) -> int:
        """Train a neighbour until `end`, on batches whose size depends on its number. Returns its number of steps, with
        which it also updates `steps`.
        """
        made = 0
        while not end.is_set():
            try:
                step = self.open(uid, 0.2).step
                while not end.is_set():
                    self.step(uid, step, trainer_requests.samples(2 + 8 * number, 100 * number + step))
                    step, made = step + 1, made + 1
                    (steps if steps is not None else {})[uid] = made
            except (OSError, HTTPException):
                time.sleep(0.2)  # the trainer was killed, or is loading
        return made

    @property
    def layout(self) -> RunLayout:
        return self.layout_of("run-0")

    def layout_of(self, uid: str) -> RunLayout:
        return RunLayout(S3Uri.parse(f"{self.root}/{uid}"))

    def wait_for_copy(self, store: Store) -> None:
        """Wait until the run has a complete recovery copy."""
        folder = self.layout.recovery
        wait_until(lambda: any(store.is_complete(folder / name) for name in store.list_folders(folder)))

    def adapter(self, store: Store) -> str:
        """Return the SHA-256 of the run's adapter after the last step."""
        assert call(self.port, "POST", f"/sessions/run-0/adapters/{STEPS}", "{}", "run-0")[0] == 202
        uri = self.layout.adapter(STEPS)
        wait_until(lambda: store.is_complete(uri))
        return hashlib.sha256(store.get_bytes(uri / ADAPTER_WEIGHTS)).hexdigest()


class Program:
    """Client's program, which sends the commands of an update without waiting for results in between."""

    def __init__(self, pool: Pool, number: int) -> None:
        self.pool, self.uid, self.seed = pool, pool.clients[number], 1000 * number
        self.sent = self.read = self.updates = 0

    def send(self, body: bytes) -> None:
        self.sent += 1
        path = f"/sessions/{self.uid}/commands/{self.sent}"
        assert call(self.pool.port, "POST", path, body, self.uid) == (202, "")

    def wait(self) -> None:
        """Wait for the results of all commands."""
        while self.read < self.sent:
            path = f"/sessions/{self.uid}/results/{self.read + 1}?wait=30"
            status, body = call_bytes(self.pool.port, "GET", path, token=self.uid)
            assert status in (200, 202), body
            if status == 200:
                assert read_result(body)[0].error is None
                self.read += 1

    def update(self, others: Callable[[], None] = lambda: None) -> None:
        """Add the gradients of demonstrations and of samples, call `others`, and apply the gradient."""
        made = self.seed + self.updates
        demonstrations = trainer_requests.samples(10, made)
        for chunk in (demonstrations[:6], demonstrations[6:]):
            self.add("cross_entropy", [taught(sample) for sample in chunk])
        loss = LOSSES[made % len(LOSSES)]
        self.add(loss, random_datums(loss, 7, tiny_model.VOCABULARY, made))
        self.add(loss, random_datums(loss, 3, tiny_model.VOCABULARY, made + 500), forward_only=True)
        self.wait()
        others()
        self.send(command_body(optim_step(learning_rate=0.02 / (self.updates + 1), grad_clip_norm=1.0)))
        self.updates += 1

    def add(self, loss: str, datums: Sequence[Datum], forward_only: bool = False) -> None:
        header, buffers = command(loss, datums, forward_only=forward_only)
        self.send(command_body(header, bytes(buffers)))

    def adapter(self, store: Store) -> str:
        """Save the adapter and return its SHA-256."""
        self.send(command_body(SaveState(saved_as=SaveKind.sampler_weights, name="final")))
        self.wait()
        uri = self.pool.layout_of(self.uid).adapter(self.sent)
        return hashlib.sha256(store.get_bytes(uri / ADAPTER_WEIGHTS)).hexdigest()

    def disturb(self, end: threading.Event, steps: dict[str, int]) -> None:
        """Train until `end`, and update the run's number of steps."""
        while not end.is_set():
            self.update()
            self.wait()
            steps[self.uid] = self.updates


def taught(sample: Sample) -> Datum:
    """Return a demonstration as supervised recipes send it: each token predicts the next, and prompts have weight 0."""
    weights = [float(is_taught) for is_taught in sample.loss_mask[1:]]
    return Datum.of(sample.token_ids[:-1], target_tokens=sample.token_ids[1:], weights=weights)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def port() -> Iterator[int]:
    with claimed_ports(1) as ports:
        yield ports[0]


def test_a_run_with_neighbours_and_kills_ends_as_alone(
    model_dir: Path, s3_server: S3Server, store: Store, tmp_path: Path, port: int
) -> None:
    alone = Pool(model_dir, s3_server, tmp_path, port, 1)
    with alone.running():
        alone.train(0, STEPS)
        expected = alone.adapter(store)

    shared, end = Pool(model_dir, s3_server, tmp_path, port, 1 + NEIGHBOURS), threading.Event()
    ends = [*KILLED_AFTER, STEPS]
    with ThreadPoolExecutor(NEIGHBOURS) as threads:
        try:
            neighbours = [
                threads.submit(shared.disturb, uid, number, end) for number, uid in enumerate(shared.uids[1:], 1)
            ]
            for first, last in zip([0, *KILLED_AFTER], ends, strict=True):
                with shared.running():
                    shared.train(first, last)
                    if last == STEPS:
                        found = shared.adapter(store)
                    else:
                        shared.wait_for_copy(store)
        finally:
            end.set()
    assert min(neighbour.result() for neighbour in neighbours) >= 1
    assert shared.started == 1 + len(KILLED_AFTER)
    assert all(lost < first for lost, first in zip(shared.lost, KILLED_AFTER, strict=True))
    assert found == expected


def test_a_clients_program_beside_others_ends_as_alone(
    model_dir: Path, s3_server: S3Server, store: Store, tmp_path: Path, port: int
) -> None:
    alone = Pool(model_dir, s3_server, tmp_path, port, 0, clients=1)
    with alone.running():
        program = Program(alone, 0)
        for _ in range(UPDATES):
            program.update()
        expected = program.adapter(store)

    shared, end = Pool(model_dir, s3_server, tmp_path, port, RUNS, CLIENTS), threading.Event()
    steps = dict.fromkeys(shared.uids + shared.clients[1:], 0)

    def wait_for_others() -> None:
        # The slot has its gradient while each neighbour makes a whole step.
        before = dict(steps)
        wait_until(lambda: all(steps[uid] > before[uid] + 1 for uid in steps) or any(each.done() for each in others))

    with shared.running(), ThreadPoolExecutor(len(steps)) as threads:
        try:
            others: list[Future[Any]] = [
                threads.submit(shared.disturb, uid, at, end, steps) for at, uid in enumerate(shared.uids)
            ]
            others += [threads.submit(Program(shared, at).disturb, end, steps) for at in range(1, CLIENTS)]
            program = Program(shared, 0)
            for _ in range(UPDATES):
                program.update(wait_for_others)
            found = program.adapter(store)
        finally:
            end.set()
        for each in others:
            each.result()
    assert min(steps.values()) > UPDATES
    assert found == expected
