from collections.abc import Callable
from typing import Any

import pytest

from tests.support.operator_world import MemoryCluster, World, model_object, run_object, source_secret


@pytest.fixture
def make_world() -> Callable[..., World]:
    def make(**spec: Any) -> World:
        return World(MemoryCluster(run_object(**spec), model_object(), source_secret()))

    return make


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()
