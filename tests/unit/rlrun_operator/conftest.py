from collections.abc import Callable
from typing import Any

import pytest

from tests.support.cluster_objects import model_object, run_object, source_secret
from tests.support.fake_cluster import FakeCluster
from tests.support.operator_world import World


@pytest.fixture
def make_world() -> Callable[..., World]:
    def make(**spec: Any) -> World:
        return World(FakeCluster(run_object(**spec), model_object(), source_secret()))

    return make


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()
