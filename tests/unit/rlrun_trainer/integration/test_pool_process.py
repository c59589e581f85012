"""Trainer of a shared pool as a process: the mounted order, and runs that end the process."""

import contextlib
import json
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from rlrun.constants import ExitCode
from rlrun.protocol.shared_pool import TrainerOrder

from tests.support import trainer_requests
from tests.support.images.stub_trainer.__main__ import STEP_SECONDS
from tests.support.ports import claimed_ports
from tests.support.seaweedfs import S3Server
from tests.support.train_bodies import body_of
from tests.support.trainer_process import call, ready, start
from tests.unit.rlrun_trainer.conftest import ONE, POOL_TOKEN, TWO
from tests.unit.support.images.stub_trainer.conftest import model_dir

__all__ = ["model_dir"]

MODULE = "tests.support.images.stub_trainer"


class Trainer:
    """Pod of the trainer, whose container may be started several times."""

    def __init__(self, folder: Path, model: Path, s3: S3Server, port: int) -> None:
        self.folder, self.model, self.s3, self.port = folder, model, s3, port
        self.root = f"s3://{s3.bucket}/{uuid.uuid4().hex}"
        runs = [run.entry().model_copy(update={"folder": f"{self.root}/{run.uid}"}) for run in (ONE, TWO)]
        (folder / "order.json").write_text(TrainerOrder(runs=runs).model_dump_json(by_alias=True))

    def start(self, step_seconds: float = 0.0, **variables: str) -> subprocess.Popen[str]:
        own = {
            "RLRUN_TOKEN": POOL_TOKEN,
            "RLRUN_ORDER_PATH": str(self.folder / "order.json"),
            "RLRUN_DEATHS_FILE": str(self.folder / "deaths.json"),
            "RLRUN_TERMINATION_LOG": str(self.folder / "termination-log"),
            "RLRUN_SLOTS": "2",
            STEP_SECONDS: str(step_seconds),
        }
        return start(MODULE, self.model, self.port, self.s3.environment | own | variables)

    def open(self, uid: str) -> tuple[int, str]:
        spec = trainer_requests.spec(f"{self.root}/{uid}", uid)
        return call(self.port, "PUT", f"/sessions/{uid}", spec.model_dump_json(by_alias=True), f"token of {uid}")

    def step(self, uid: str) -> tuple[int, str]:
        body = body_of(trainer_requests.samples(4))
        return call(self.port, "POST", f"/sessions/{uid}/steps/0", body, f"token of {uid}")

    def is_computing_for(self, uid: str) -> bool:
        return (self.folder / "deaths.json.running").read_bytes().rstrip(b"\0").decode() == uid


@pytest.fixture
def trainer(tmp_path: Path, model_dir: Path, s3_server: S3Server) -> Iterator[Trainer]:
    with claimed_ports(1) as ports:
        yield Trainer(tmp_path, model_dir, s3_server, ports[0])


def end_in_a_step(trainer: Trainer, end: signal.Signals) -> None:
    """Start the container, and end it while it computes for ONE."""
    started = trainer.start(step_seconds=30.0, RLRUN_SHUTDOWN_SECONDS="1")
    with ready(started, trainer.port) as process, ThreadPoolExecutor(1) as threads:
        for run in (ONE, TWO):
            assert trainer.open(run.uid)[0] == 200
        stepping = threads.submit(trainer.step, ONE.uid)
        while not trainer.is_computing_for(ONE.uid):
            assert not stepping.done()
        process.send_signal(end)
        process.wait(60)
        wait([stepping], 60)


@pytest.mark.slow
def test_a_run_that_ended_the_process_twice_is_refused_and_the_others_go_on(trainer: Trainer) -> None:
    for _ in range(2):
        end_in_a_step(trainer, signal.SIGKILL)
    with ready(trainer.start(), trainer.port):
        status, problem = trainer.open(ONE.uid)
        assert (status, json.loads(problem)["reason"]) == (422, "PoolEvicted")
        assert trainer.open(TWO.uid)[0] == 200
        assert trainer.step(TWO.uid)[0] == 200


@pytest.mark.slow
def test_a_process_whose_unit_hangs_ends_itself_which_counts_as_a_death_of_the_run(trainer: Trainer) -> None:
    for _ in range(2):
        started = trainer.start(step_seconds=300.0, RLRUN_UNIT_SECONDS="2")
        with ready(started, trainer.port) as process, ThreadPoolExecutor(1) as threads:
            assert trainer.open(ONE.uid)[0] == 200
            threads.submit(trainer.step, ONE.uid)
            assert process.wait(60) == ExitCode.RESTART
    with ready(trainer.start(), trainer.port):
        status, problem = trainer.open(ONE.uid)
        assert (status, json.loads(problem)["reason"]) == (422, "PoolEvicted")


@pytest.mark.slow
def test_a_process_that_is_stopped_in_a_step_is_no_death(trainer: Trainer) -> None:
    for _ in range(2):
        end_in_a_step(trainer, signal.SIGTERM)
    with ready(trainer.start(), trainer.port):
        assert trainer.open(ONE.uid)[0] == 200


@pytest.mark.slow
def test_connections_of_as_many_engines_as_a_pool_may_have_stay_open(trainer: Trainer) -> None:
    with ready(trainer.start(), trainer.port), contextlib.ExitStack() as stack:
        address = "127.0.0.1", trainer.port
        first, *_ = [stack.enter_context(socket.create_connection(address, 30)) for _ in range(2 * 256)]
        first.sendall(b"GET /healthz HTTP/1.1\r\nHost: trainer\r\n\r\n")
        assert first.recv(12) == b"HTTP/1.1 200"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "token", "message"),
    [("{", POOL_TOKEN, "order.json is not"), ("{}", "", "Set RLRUN_TOKEN"), (None, POOL_TOKEN, "order.json")],
)
def test_without_an_order_and_a_token_the_process_does_not_start(
    trainer: Trainer, order: str | None, token: str, message: str
) -> None:
    (trainer.folder / "order.json").unlink()
    if order is not None:
        (trainer.folder / "order.json").write_text(order)
    process = trainer.start(RLRUN_TOKEN=token)
    assert process.wait(60) == ExitCode.CONFIGURATION
    problem = json.loads((trainer.folder / "termination-log").read_text())
    assert problem["reason"] == "InvalidConfiguration"
    assert message in problem["message"]
