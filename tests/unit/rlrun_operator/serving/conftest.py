import pytest

from tests.support.operator_world import MemoryCluster, model_object, source_secret
from tests.support.serving_pools import MemorySidecars, Pools


@pytest.fixture
def pools() -> Pools:
    cluster = MemoryCluster(model_object(), source_secret())
    return Pools(cluster, MemorySidecars(cluster))
