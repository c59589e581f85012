"""The provider of the chosen name."""

from pathlib import Path

import pytest

from local_cluster.providers.selection import provider


@pytest.mark.parametrize("name", ["embedded", "kind"])
def test_each_name_has_a_provider(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_STATE", str(tmp_path))
    monkeypatch.setenv("RLRUN_CACHE", str(tmp_path))
    monkeypatch.setenv("RLRUN_CLUSTER", name)
    assert provider().name == name
