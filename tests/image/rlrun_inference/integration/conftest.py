"""An engine that tests of several modules share: each start takes half a minute."""

from collections.abc import Iterator

import pytest

from tests.support.engine_process import VLLM
from tests.support.engine_wire import engine


@pytest.fixture(scope="session")
def plain_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a whole `vllm serve` with random weights, started like the engine of a run without adapters."""
    with engine(VLLM, tmp_path_factory.mktemp("vllm"), adapters=False) as url:
        yield url
