"""Engines that tests of several modules share: each start takes half a minute."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engine_process import VLLM
from tests.support.engine_wire import engine


@pytest.fixture(scope="session")
def plain_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a whole `vllm serve` with random weights, started like the engine of a run without adapters."""
    with engine(VLLM, tmp_path_factory.mktemp("vllm"), adapters=False) as url:
        yield url


@pytest.fixture(scope="session")
def adapter_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of `adapter_engine`."""
    return tmp_path_factory.mktemp("vllm-with-adapters")


@pytest.fixture(scope="session")
def adapter_engine(adapter_folder: Path) -> Iterator[str]:
    """URL of a whole `vllm serve` with random weights, started like the engine of a run. Tests leave no adapter."""
    with engine(VLLM, adapter_folder) as url:
        yield url
