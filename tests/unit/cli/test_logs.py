import time
from collections.abc import Iterator
from typing import Any

import pytest
from rlrun.cli import logs
from rlrun.cli.cluster import RUN, Object
from rlrun.cli.errors import CliError, NotReadyError, UnreachableError
from rlrun.cli.logs import Follower, Role, main_container, sources

from .conftest import FakeCluster, Rlrun


def pod(name: str, *containers: str, created: str = "2026-01-01T00:00:00Z", default: str | None = None) -> Object:
    names = containers or ("main",)
    return {
        "metadata": {
            "name": name,
            "creationTimestamp": created,
            "annotations": {"kubectl.kubernetes.io/default-container": default} if default else {},
        },
        "spec": {"containers": [{"name": n} for n in names]},
        "status": {"containerStatuses": [{"name": n, "restartCount": i} for i, n in enumerate(names)]},
    }


@pytest.fixture
def one(api: FakeCluster) -> FakeCluster:
    api.put(RUN, "first", spec={}, status={"phase": "Running"})
    api.pod_list = [pod("first-orchestrator-a1-x", "orchestrator")]
    api.logs["first-orchestrator-a1-x"] = ["one", "[two]", "three"]
    return api


def test_one_pod_speaks_plainly(rlrun: Rlrun, one: FakeCluster) -> None:
    assert rlrun("logs", "first").out == "one\n[two]\nthree\n"
    assert "pods rlrun.dev/run=first,rlrun.dev/role=orchestrator" in one.calls
    assert rlrun("logs", "first", "--tail", "1").out == "three\n"


def test_several_pods_are_named(rlrun: Rlrun, one: FakeCluster) -> None:
    one.pod_list = [pod("b", created="2026-01-02T00:00:00Z"), pod("a", created="2026-01-01T00:00:00Z")]
    one.logs = {"a": ["x"], "b": ["y"]}
    assert rlrun("logs", "first", "--role", "inference").out == "[a] x\n[b] y\n"


def test_main_container() -> None:
    assert main_container(pod("p", "vllm", "sidecar")) == "vllm"
    assert main_container(pod("p", "vllm", "sidecar", default="sidecar")) == "sidecar"
    assert main_container(pod("p", "vllm", default="gone")) == "vllm"
    assert sources([pod("p", "a", "b", default="b")])[0].restarts == 1


@pytest.mark.parametrize(("phase", "hint"), [("Completed", "S3"), ("Pending", "rlrun get first")])
def test_no_pod_is_explained(rlrun: Rlrun, api: FakeCluster, phase: str, hint: str) -> None:
    api.put(RUN, "first", spec={}, status={"phase": phase})
    answer = rlrun("logs", "first", "--role", "trainer")
    assert answer.code == 1
    assert "no trainer pod" in answer.err
    assert hint in answer.err


class Scripted(FakeCluster):
    """Logs that are cut off and start late."""

    def __init__(self, script: list[list[str | Exception]]) -> None:
        super().__init__()
        self.script = script

    def log(self, pod: str, container: str, *, follow: bool, tail: int | None, previous: bool) -> Iterator[str]:
        self.calls.append(f"log tail={tail}")
        for line in self.script.pop(0) if self.script else []:
            if isinstance(line, Exception):
                raise line
            yield line


def follow(api: FakeCluster, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[str]:
    monkeypatch.setattr(logs, "PERIOD", 0.05)
    follower = Follower(api, "first", Role.trainer, options.get("tail"), lambda seconds: time.sleep(0.01))
    return list(follower.lines())


def test_following_waits_for_the_start_and_survives_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Scripted([[NotReadyError("not yet")], ["one", "two", UnreachableError("cut")], ["one", "two", "three"]])
    running: Object = {"metadata": {"name": "first"}, "spec": {}, "status": {"phase": "Running"}}
    api.looks = [*[running] * 6, {**running, "status": {"phase": "Completed"}}]
    api.pod_list = [pod("p")]
    assert follow(api, monkeypatch) == ["one", "two", "three"]


def test_following_a_run_that_never_gets_a_pod_ends(api: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "START_SECONDS", 0.2)
    api.put(RUN, "first", spec={}, status={"phase": "Pending"})
    with pytest.raises(CliError, match="no trainer pod"):
        follow(api, monkeypatch)
