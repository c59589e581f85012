import pytest

from tests.support.cluster_objects import model_object, source_secret
from tests.support.fake_cluster import FakeCluster
from tests.support.serving_pools import MemorySidecars, Pools


@pytest.fixture
def pools() -> Pools:
    cluster = FakeCluster(model_object(), source_secret())
    return Pools(cluster, MemorySidecars(cluster))
