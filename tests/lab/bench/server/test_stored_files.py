"""Files of runs that the benchmark writes: readers of the product accept them."""

from rlrun.storage.layout import RunLayout, S3Uri
from rlrun_server.rest.metrics.metric_columns import read_columns

from bench.samples import step_of_rollouts
from bench.server.stored_files import METRICS, read_whole, write_metrics, write_rollouts
from tests.support.fake_s3 import InMemoryStore

LAYOUT = RunLayout.of("bucket", "", "team", "uid")


def test_metrics_are_those_that_the_page_shows_first() -> None:
    store = InMemoryStore("bucket")
    write_metrics(store, LAYOUT, 450, 1)
    parts = [store.get_bytes(S3Uri("bucket", found.key)) for found in store.walk(LAYOUT.root / "metrics")]
    columns = read_columns(parts)
    assert list(columns.steps) == list(range(1, 451))
    assert set(METRICS) <= set(columns.values)
    assert len(parts) == 3


def test_a_whole_step_is_read() -> None:
    store = InMemoryStore("bucket")
    size = write_rollouts(store, LAYOUT, 3, step_of_rollouts(4, 2))
    assert size > 1000
    found = read_whole(store, LAYOUT, 3)
    assert len([line for line in found if "prompt" in line]) == 8
