"""Runs of the end-to-end level: their model is one that the level installs, and S3 may be away when they are judged."""

from types import SimpleNamespace

import pytest
import yaml
from rlrun.storage.errors import Unreachable

from demo.install import EXAMPLES
from tests.chaos import cluster_run
from tests.chaos.cluster_run import SPEC, ClusterRun


def test_runs_train_a_model_that_the_platform_of_the_demo_has() -> None:
    models = [yaml.safe_load(file.read_text()) for file in (EXAMPLES / "models").glob("reverse-text-tiny.yaml")]
    assert SPEC["model"] in [model["spec"]["id"] for model in models]


class LateStore:
    """Does not answer the first times."""

    def __init__(self, silent: int) -> None:
        self.silent = silent

    def list_files(self, root: object) -> list[tuple[str, int]]:
        self.silent -= 1
        if self.silent >= 0:
            raise Unreachable("the S3 endpoint does not respond")
        return [("metrics/0.jsonl", 7)]

    def close(self) -> None:
        pass


def judged(store: LateStore, monkeypatch: pytest.MonkeyPatch) -> ClusterRun:
    monkeypatch.setattr(cluster_run, "LOOK_SECONDS", 0.0)
    platform = SimpleNamespace(kubectl=SimpleNamespace(list=lambda *_: []), s3=SimpleNamespace(store=lambda: store))
    return ClusterRun(platform, "chaos-1", "uid-1")  # type: ignore[arg-type]


def test_a_run_is_judged_when_s3_answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [file.size for file in judged(LateStore(2), monkeypatch).picture().files.values()] == [7]


def test_s3_that_stays_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_run, "SETTLE_SECONDS", 0.0)
    with pytest.raises(Unreachable):
        judged(LateStore(1000), monkeypatch).picture()
