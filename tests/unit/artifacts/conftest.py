from collections.abc import Iterator
from pathlib import Path

import pytest
from rlrun.artifacts.store import Store

from tests.unit.artifacts.seaweedfs import S3Server, running


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder: Path = tmp_path_factory.mktemp("seaweedfs")
    with running(folder) as server:
        yield server


@pytest.fixture
def store(s3_server: S3Server) -> Iterator[Store]:
    store = s3_server.store()
    yield store
    store.close()
