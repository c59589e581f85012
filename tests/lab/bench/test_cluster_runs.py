"""Benchmark runs on a cluster end at target, completion or deadline, and are always removed."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from bench import cluster_runs
from bench.cluster_runs import BenchmarkCluster
from bench.tasks import DEMO as REAL
from demo.install import S3Access
from demo.kubectl import Kubectl
from demo.watch import RunFailed

DEMO = replace(REAL, seconds=10)
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class Server:
    """A stand-in for kubectl: every look at the run finds it one step further."""

    def __init__(self, phases: dict[int, str], last: int) -> None:
        self.step = 0
        self.phases = phases
        self.last = last
        self.applied: dict[str, Any] = {}
        self.deleted: list[str] = []

    def __call__(self, *args: str, **_: Any) -> str:
        if args[0] == "delete" and args[1] == "rlrun":
            self.deleted.append(args[2])
        return ""

    def apply(self, obj: dict[str, Any]) -> None:
        self.applied = obj

    def list(self, *_: Any) -> list[Any]:
        return []

    def get(self, *_: Any) -> dict[str, Any]:
        self.step = min(self.step + 1, self.last)
        progress = {"step": self.step, "reward": 0.5}
        return {
            "metadata": {"uid": "u"},
            "spec": {"maxSteps": 40},
            "status": {"phase": self.phases.get(self.step, "Running"), "progress": progress},
        }


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(cluster_runs, "POLL_SECONDS", 0.0)

    def make(server: Server, rewards: list[float]) -> BenchmarkCluster:
        def lines(*_: Any) -> list[dict[str, Any]]:
            return [
                {
                    "step": i + 1,
                    "time": (BEGAN + timedelta(seconds=2 * (i + 1))).isoformat(),
                    "progress/step": i + 1.0,
                    "time/step": 2.0,
                    "reward/mean": reward,
                }
                for i, reward in enumerate(rewards[: server.step])
            ]

        found = BenchmarkCluster(cast(Kubectl, server), cast(S3Access, None))
        monkeypatch.setattr(BenchmarkCluster, "lines", lines)
        return found

    return make


def test_run_ends_at_its_target_and_is_removed(cluster: Any) -> None:
    server = Server({}, last=40)
    trace = cluster(server, [0.4, 0.6, 0.7, 0.8, 0.9, 0.9]).run(DEMO, "r", 3, target=0.7)
    assert len(trace.steps) == 4
    assert trace.steps[-1].seconds == 8.0
    assert server.deleted == ["r", "r"]
    assert server.applied["spec"]["seed"] == 3


def test_run_without_a_target_runs_to_its_end(cluster: Any) -> None:
    server = Server({6: "Completed"}, last=6)
    trace = cluster(server, [0.9] * 6).run(DEMO, "r", 0, target=None, maxAsyncLevel=2)
    assert len(trace.steps) == 6
    assert server.applied["spec"]["maxAsyncLevel"] == 2


@pytest.mark.parametrize(("phases", "seconds"), [({2: "Failed"}, 300), ({}, 0)])
def test_failed_or_late_run_raises_and_is_removed(cluster: Any, phases: Any, seconds: int) -> None:
    server = Server(phases, last=2)
    with pytest.raises(RunFailed, match="ended Failed" if phases else "after 0 s"):
        cluster(server, [0.4, 0.4]).run(replace(DEMO, seconds=seconds), "r", 0, target=0.7)
    assert server.deleted == ["r", "r"]


def test_recorded_trace_is_json(cluster: Any) -> None:
    trace = cluster(Server({}, last=40), [0.8] * 6).run(DEMO, "r", 0, target=0.7)
    assert json.loads(json.dumps(trace.sample(side="ours")))["mean_seconds"] == {"time/step": 2.0}


def test_runs_together_end_when_all_have_completed(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server({}, last=40)
    looks = 0

    def runs(kind: str, *_: Any) -> list[dict[str, Any]]:
        nonlocal looks
        if kind != "rlruns":
            return []
        looks += 1
        phases = {"demo-5": "Completed", "demo-6": "Running" if looks < 3 else "Completed"}
        return [{"metadata": {"name": n, "uid": n}, "status": {"phase": phase}} for n, phase in phases.items()]

    monkeypatch.setattr(server, "list", runs)
    server.step = 3
    found = cluster(server, [0.4, 0.6, 0.7]).run_together(DEMO, 2, first_seed=5)
    assert (looks, len(found.traces)) == (3, 2)
    assert found.step_seconds == 6.0
    assert server.deleted == ["demo-5", "demo-5"]
