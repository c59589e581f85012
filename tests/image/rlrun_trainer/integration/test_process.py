"""The trainer as a process: starts, trains, ends well on SIGTERM, and says why it could not start."""

import json
import signal
import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from rlrun.constants import ExitCode
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import Store

from tests.support import tiny_model
from tests.support.ports import claimed_ports
from tests.support.seaweedfs import S3Server
from tests.support.train_bodies import body_of
from tests.support.trainer_process import START_SECONDS, call, ready, start

DEVICE = ("--device", tiny_model.DEVICE)


@pytest.fixture
def port() -> Iterator[int]:
    with claimed_ports(1) as ports:
        yield ports[0]


@pytest.fixture
def trainer(model_dir: Path, s3_server: S3Server, port: int) -> Iterator[subprocess.Popen[str]]:
    process = start("rlrun_trainer", model_dir, port, s3_server.environment | {"RLRUN_SLOTS": "2"}, DEVICE)
    with ready(process, port):
        yield process


def test_sigterm_finishes_uploads(trainer: subprocess.Popen[str], port: int, s3_server: S3Server, store: Store) -> None:
    run_uri = f"s3://{s3_server.bucket}/t/team/{uuid.uuid4().hex}"
    assert call(port, "PUT", "/sessions/run", tiny_model.spec(run_uri).model_dump_json(by_alias=True))[0] == 200
    batch = body_of(tiny_model.samples(8))
    assert call(port, "POST", "/sessions/run/steps/0", batch)[0] == 200
    assert call(port, "POST", "/sessions/run/checkpoints/1", "{}")[0] == 202
    assert call(port, "POST", "/sessions/run/adapters/1")[0] == 202
    trainer.send_signal(signal.SIGTERM)
    assert trainer.wait(60) == ExitCode.STOPPED
    layout = RunLayout(S3Uri.parse(run_uri))
    assert store.is_complete(layout.checkpoint(1))
    assert store.is_complete(layout.adapter(1))


def test_sigterm_saves_what_no_checkpoint_holds(
    trainer: subprocess.Popen[str], port: int, s3_server: S3Server, store: Store, tmp_path: Path
) -> None:
    run_uri = f"s3://{s3_server.bucket}/t/team/{uuid.uuid4().hex}"
    assert call(port, "PUT", "/sessions/run", tiny_model.spec(run_uri).model_dump_json(by_alias=True))[0] == 200
    assert (
        call(port, "PUT", "/sessions/idle", tiny_model.spec(run_uri + "-idle").model_dump_json(by_alias=True))[0] == 200
    )
    batch = body_of(tiny_model.samples(8))
    assert call(port, "POST", "/sessions/run/steps/0", batch)[0] == 200
    state = json.dumps({"orchestratorState": {"step": 1, "deal": [1, 2]}})
    assert call(port, "POST", "/sessions/run/checkpoints/1", state)[0] == 202
    assert call(port, "POST", "/sessions/run/steps/1", batch)[0] == 200
    with ThreadPoolExecutor() as pool:
        # Just before a step or in the middle of it, and more than once: neither loses anything.
        large = body_of(tiny_model.samples(2000))
        step = pool.submit(call, port, "POST", "/sessions/run/steps/2", large)
        trainer.send_signal(signal.SIGTERM)
        trainer.send_signal(signal.SIGTERM)
        assert trainer.wait(60) == ExitCode.STOPPED
        made = 3 if step.result()[0] == 200 else 2
    layout = RunLayout(S3Uri.parse(run_uri))
    assert store.is_complete(layout.checkpoint(1))
    assert store.is_complete(layout.checkpoint(made))
    store.download(layout.checkpoint(made), tmp_path / "saved")
    facts = json.loads((tmp_path / "saved/trainer.json").read_text())
    # The orchestrator's state is that of an earlier step, and says so.
    assert (facts["step"], facts["orchestrator_step"]) == (made, 1)
    assert json.loads((tmp_path / "saved/orchestrator_state.json").read_text()) == {"step": 1, "deal": [1, 2]}
    # Nothing was learned there, so nothing is saved.
    assert store.list_folders(RunLayout(S3Uri.parse(run_uri + "-idle")).checkpoints) == []


def test_a_model_that_is_not_there_ends_with_a_message(tmp_path: Path, port: int) -> None:
    words = tmp_path / "termination-log"
    process = start("rlrun_trainer", tmp_path / "none", port, {"RLRUN_TERMINATION_LOG": str(words)}, DEVICE)
    assert process.wait(START_SECONDS) == 1
    problem = json.loads(words.read_text())
    assert problem["reason"] == "ModelMissing"
    assert "RLModel's source" in problem["message"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU")
@pytest.mark.parametrize("processes", [1, 2])
def test_requested_gpus_that_are_not_there_end_the_trainer_before_it_loads_anything(
    tmp_path: Path, port: int, processes: int
) -> None:
    words = tmp_path / "termination-log"
    environment = {"RLRUN_TERMINATION_LOG": str(words), "RLRUN_GPUS": str(processes)}
    with claimed_ports(1) as [meeting]:
        torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--nnodes", "1", "--node-rank", "0")
        address = ("--master-addr", "127.0.0.1", "--master-port", str(meeting))
        launcher = () if processes == 1 else (*torchrun, *address)
        started = start("rlrun_trainer", tmp_path / "none", port, environment, launcher=launcher)
        # torchrun ends with a code of its own.
        assert started.wait(START_SECONDS) == (ExitCode.CONFIGURATION if processes == 1 else 1)
    problem = json.loads(words.read_text())
    assert problem["reason"] == "DeviceMissing", "not ModelMissing: the device comes first"
    assert f"requests {processes} GPU" in problem["message"]
