"""Choice of the provider."""

from pathlib import Path

import pytest

from local_cluster.host.errors import LocalClusterError
from local_cluster.providers.selection import provider


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory without a cluster, on a machine without kind and Docker."""
    monkeypatch.setenv("RLRUN_STATE", str(tmp_path))
    monkeypatch.delenv("RLRUN_CLUSTER", raising=False)
    monkeypatch.setenv("PATH", "")
    return tmp_path


def test_machine_without_docker_gets_the_embedded_cluster(state: Path) -> None:
    assert provider().name == "embedded"


def test_existing_kind_cluster_is_found_when_docker_is_stopped(state: Path) -> None:
    (state / "kind.yaml").touch()
    assert provider().name == "kind"


@pytest.mark.parametrize("name", ["embedded", "kind"])
def test_variable_overrides_an_existing_cluster(name: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (state / "kind.yaml").touch()
    (state / "kubeconfig").touch()
    monkeypatch.setenv("RLRUN_CLUSTER", name)
    assert provider().name == name


def test_unknown_provider_is_rejected_with_the_known_ones(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_CLUSTER", "minikube")
    with pytest.raises(LocalClusterError, match=r"minikube.*`embedded` or `kind`"):
        provider()
