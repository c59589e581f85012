"""Directories of the cluster."""

from pathlib import Path

import pytest

from local_cluster.host.paths import paths


def test_directories_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLRUN_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("RLRUN_CACHE", str(tmp_path / "cache"))
    found = paths()
    assert found.kubeconfig == tmp_path / "state" / "kubeconfig"
    assert found.containerd_root == tmp_path / "cache" / "containerd"
    # Beside the state, because `down` removes the state while it holds the lock.
    assert found.state not in found.lock.parents
    assert found.state not in found.control_plane.parents
