"""Stages that scenarios are played on, one per level: opened once per call, closed at its end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.chaos.scenario import Level


@contextmanager
def stage(level: Level) -> Iterator[Any]:
    """Nothing for unit; an API server, an S3 and a proxy between for apiserver; the local cluster for e2e."""
    if level == "unit":
        yield None
    elif level == "apiserver":
        from tests.chaos.apiserver.place import opened

        with opened() as place:
            yield place
    else:
        from tests.chaos.cluster_run import opened as cluster

        with cluster() as platform:
            yield platform
