from collections.abc import Iterator
from pathlib import Path

import pytest
from rlrun.artifacts.store import Store
from rlrun_trainer.slots import BaseModel

from tests.unit.artifacts.seaweedfs import S3Server, running
from tests.unit_trainer import tiny


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def base(model_dir: Path) -> BaseModel:
    return tiny.load(model_dir)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def store(s3_server: S3Server) -> Iterator[Store]:
    store = s3_server.store()
    yield store
    store.close()
