import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from rlrun.storage.store import Store
from rlrun_trainer.model.base_model import BaseModel
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.torch_backend.collective_executor import CollectiveExecutor

from tests.support import tiny_model
from tests.support.seaweedfs import S3Server, running
from tests.support.trainer_client import Client, serving


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def base(model_dir: Path, tmp_path: Path) -> BaseModel:
    return tiny_model.load(model_dir, scratch=tmp_path / "scratch")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def store(s3_server: S3Server) -> Iterator[Store]:
    store = s3_server.store()
    yield store
    store.close()


@pytest.fixture
async def make_client(base: BaseModel, store: Store) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as trainers:

        async def make(**settings: Any) -> Client:
            chosen = TrainerSettings(**settings)
            return await trainers.enter_async_context(serving(CollectiveExecutor(base), store, chosen))

        yield make


@pytest.fixture
async def client(make_client: Callable[..., Any]) -> Client:
    made: Client = await make_client()
    return made


@pytest.fixture
def run_uri(s3_server: S3Server) -> str:
    return f"s3://{s3_server.bucket}/t/team/{uuid.uuid4().hex}"


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    def wait(condition: Callable[[], bool], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    return wait
