"""The stub as a process: it needs a token like the real one, and on SIGTERM saves what no checkpoint holds."""

import json
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from rlrun.constants import ExitCode
from rlrun.protocol.access import TOKEN_VARIABLE
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import Store

from tests.support.ports import claimed_ports
from tests.support.seaweedfs import S3Server
from tests.support.train_bodies import body_of
from tests.support.trainer_process import call, ready, start
from tests.support.trainer_requests import samples, spec

MODULE = "tests.support.images.stub_trainer"
TOKEN = "t" * 32


@pytest.fixture
def port() -> Iterator[int]:
    with claimed_ports(1) as ports:
        yield ports[0]


def test_sigterm_saves_what_no_checkpoint_holds(model_dir: Path, port: int, s3_server: S3Server, store: Store) -> None:
    run_uri = f"s3://{s3_server.bucket}/{uuid.uuid4().hex}"
    body = spec(run_uri).model_dump_json(by_alias=True)
    with ready(start(MODULE, model_dir, port, s3_server.environment | {TOKEN_VARIABLE: TOKEN}), port) as process:
        assert call(port, "PUT", "/sessions/run", body)[0] == 401
        assert call(port, "PUT", "/sessions/run", body, TOKEN)[0] == 200
        batch = body_of(samples(8))
        assert call(port, "POST", "/sessions/run/steps/0", batch, TOKEN)[0] == 200
        assert 'trainer_step{session="run"} 1.0' in call(port, "GET", "/metrics")[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == ExitCode.STOPPED
    assert store.is_complete(RunLayout(S3Uri.parse(run_uri)).checkpoint(1))


@pytest.mark.slow
def test_a_model_that_is_not_there_ends_with_a_message(tmp_path: Path, port: int) -> None:
    words = tmp_path / "termination-log"
    process = start(MODULE, tmp_path / "none", port, {"RLRUN_TERMINATION_LOG": str(words)})
    assert process.wait(60) == ExitCode.RESTART
    assert json.loads(words.read_text())["reason"] == "ModelMissing"
