"""A whole run in one process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.run_processes import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    for server in world.servers:
        await server.close()
