"""Order of the steps of `up`."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from local_cluster.host.paths import Paths
from local_cluster.providers import embedded_cluster
from local_cluster.providers.embedded_cluster import EmbeddedCluster

SECONDS = 60.0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `up` does, in order. The programs are done once image builds have begun, these once the cluster is up."""
    made: list[str] = []
    building, started = threading.Event(), threading.Event()

    def build_images() -> None:
        building.set()
        assert started.wait(SECONDS), "images delay the start"
        made.append("build images")

    def prepare(self: EmbeddedCluster) -> None:
        if embedded_cluster.missing_builds(("cluster",), self.paths):
            assert building.wait(SECONDS), "images wait for the programs"
        made.append("prepare")

    def start(self: EmbeddedCluster) -> None:
        made.append("start")
        started.set()

    monkeypatch.setattr(embedded_cluster, "_require_root", lambda: None)
    monkeypatch.setattr(embedded_cluster, "steps_ahead", lambda paths, images: None)
    monkeypatch.setattr(embedded_cluster, "build_images", build_images)
    monkeypatch.setattr(embedded_cluster, "ensure_images", lambda: made.append("ensure images"))
    monkeypatch.setattr(EmbeddedCluster, "prepare", prepare)
    monkeypatch.setattr(EmbeddedCluster, "_start", start)
    return made


@pytest.mark.parametrize(
    ("missing", "images", "expected"),
    [
        (["cluster"], True, ["prepare", "start", "build images", "ensure images"]),
        ([], True, ["prepare", "start", "ensure images"]),
        (["cluster"], False, ["prepare", "start"]),
    ],
)
def test_images_are_built_beside_missing_programs(
    missing: Sequence[str],
    images: bool,
    expected: list[str],
    calls: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedded_cluster, "missing_builds", lambda names, paths: missing)
    if not images:
        monkeypatch.setattr(EmbeddedCluster, "prepare", lambda self: calls.append("prepare"))
    EmbeddedCluster(Paths(state=tmp_path / "state", cache=tmp_path / "cache")).up(images)
    assert calls == expected
