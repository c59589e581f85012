import pytest

from tests.unit.controller.serving.pools import MemorySidecars, Pools
from tests.unit.controller.world import MemoryCluster, model_object, source_secret


@pytest.fixture
def pools() -> Pools:
    cluster = MemoryCluster(model_object(), source_secret())
    return Pools(cluster, MemorySidecars(cluster))
