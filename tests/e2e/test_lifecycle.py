"""Stop, suspend, resume, warm start, raised maxSteps, deadlines: nothing is lost, and everything can be continued.

The runs are on-policy and seeded, so that a continued one can be held against one that was never cut.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from rlrun.constants import CONFIG_ANNOTATION
from rlrun.storage.layout import RunLayout, S3Uri

from demo.install import BUCKET
from demo.kubectl import Object, condition, wait_for
from demo.watch import follow
from tests.e2e.conftest import NO_ENGINE, SECONDS, Platform
from tests.e2e.runs import metrics_of

SEEDED: dict[str, Any] = {"batchSize": 32, "maxAsyncLevel": 0, "oversamplingFactor": 1.0, "seed": 5}
LONG = 100_000
"""Steps of a run that the test ends itself."""
HALTED = ("stopped", "suspended")
"""Runs that their user ends and pauses while they train."""


def run_of(platform: Platform, name: str, namespace: str) -> Object:
    """The run as it is now."""
    return platform.kubectl.get("rlrun", name, namespace) or {}


def has_done(run: Object, step: int) -> bool:
    """Whether the run is under way and so many steps are done."""
    status = run.get("status", {})
    return bool(status.get("phase") == "Running" and (status.get("progress") or {}).get("step", 0) >= step)


def change(platform: Platform, name: str, namespace: str, patch: str) -> None:
    """`kubectl patch`, as a user does it."""
    platform.kubectl("patch", "rlrun", name, "-n", namespace, "--type", "merge", "-p", patch)


def in_phase(platform: Platform, name: str, namespace: str, phase: str, seconds: float = SECONDS) -> Object:
    """The run once it is in that phase and has no pods but finished ones."""

    def look() -> Object | None:
        run = platform.kubectl.get("rlrun", name, namespace) or {}
        pods = platform.kubectl.list("pods", namespace, f"rlrun.dev/run={name}")
        alive = [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]
        return run if run.get("status", {}).get("phase") == phase and not alive else None

    return wait_for(f"{name} {phase} without pods", look, seconds)


def checkpoints(platform: Platform, namespace: str, run: str) -> dict[int, Object]:
    """The run's Ready checkpoints by step."""
    found = platform.kubectl.list("rlcheckpoints", namespace, f"rlrun.dev/run={run}")
    return {o["spec"]["step"]: o for o in found if o.get("status", {}).get("phase") == "Ready"}


@pytest.fixture(scope="module")
def started(platform: Platform, model: str, module_namespace: Callable[[str], str]) -> str:
    """The namespace of the runs of HALTED; one trains, the other is being suspended."""
    namespace = module_namespace("halted")
    # No checkpoint is due: what there is in the end was saved because the trainer had to go.
    for name, steps in zip(HALTED, (LONG, 40), strict=True):
        spec = SEEDED | {"model": model, "maxSteps": steps, "checkpoints": {"interval": LONG}}
        platform.kubectl.apply(platform.run_object(name, namespace, **spec))
    for name in reversed(HALTED):
        wait_for(f"step 3 of {name}", lambda name=name: has_done(run_of(platform, name, namespace), 3), SECONDS, 0.3)
        if name == "suspended":
            change(platform, name, namespace, '{"spec": {"suspend": true}}')
    return namespace


@dataclass(frozen=True)
class Raised:
    """What was seen of a live run before its maxSteps was raised and once its orchestrator knew."""

    pods_before: set[str]
    pods_after: set[str]
    config_before: str | None
    config_after: str | None


@pytest.fixture(scope="module")
def raised(platform: Platform, started: str) -> Raised:
    """The run that is stopped later, with more steps than it was started with."""

    def pods() -> set[str]:
        found = platform.kubectl.list("pods", started, "rlrun.dev/run=stopped")
        return {pod["metadata"]["uid"] for pod in found}

    def config() -> str | None:
        (pod,) = platform.kubectl.list("pods", started, "rlrun.dev/run=stopped,rlrun.dev/role=orchestrator")
        return (pod["metadata"].get("annotations") or {}).get(CONFIG_ANNOTATION)

    def known() -> bool:
        return bool(run_of(platform, "stopped", started)["status"]["progress"].get("maxSteps") == LONG + 1)

    pods_before, config_before = pods(), config()
    change(platform, "stopped", started, json.dumps({"spec": {"maxSteps": LONG + 1}}))
    wait_for("the orchestrator to know", known, SECONDS)
    return Raised(pods_before, pods(), config_before, config())


@dataclass(frozen=True)
class Halted:
    """Runs that their user stopped and suspended, and what they had saved when their pods were gone."""

    namespace: str
    runs: dict[str, Object]
    saved: dict[str, dict[int, Object]]


@pytest.fixture(scope="module")
def halted(platform: Platform, started: str, raised: Raised) -> Halted:
    """Both runs of HALTED."""
    change(platform, "stopped", started, '{"spec": {"stop": true}}')
    runs = {name: in_phase(platform, name, started, name.capitalize()) for name in HALTED}
    saved = {
        name: wait_for(
            f"the emergency checkpoint of {name}", lambda name=name: checkpoints(platform, started, name), SECONDS
        )
        for name in HALTED
    }
    return Halted(started, runs, saved)


@pytest.fixture(scope="module")
def continued(platform: Platform, model: str, halted: Halted) -> dict[str, Object]:
    """The suspended run and one that starts from the checkpoint of the stopped one, both finished."""
    change(platform, "suspended", halted.namespace, '{"spec": {"suspend": false, "maxSteps": 45}}')
    [checkpoint] = halted.saved["stopped"].values()
    warm = SEEDED | {"maxSteps": 3, "checkpointId": checkpoint["metadata"]["name"], "artifactPolicy": "Delete"}
    platform.kubectl.apply(platform.run_object("warm", halted.namespace, model=model, **warm))
    return {name: follow(platform.kubectl, name, halted.namespace, SECONDS) for name in ("warm", "suspended")}


def test_a_stopped_run_leaves_a_checkpoint_of_its_last_step(platform: Platform, halted: Halted) -> None:
    last = metrics_of(platform, halted.runs["stopped"])[-1]["step"]
    [(step, checkpoint)] = halted.saved["stopped"].items()
    assert step >= last, "steps whose metrics are there are in the checkpoint"
    assert platform.s3.store().is_complete(S3Uri.parse(checkpoint["spec"]["uri"]))


@pytest.mark.proves("checkpointId")
def test_another_run_goes_on_from_the_checkpoint_of_a_stopped_one(
    platform: Platform, halted: Halted, continued: dict[str, Object]
) -> None:
    lines = metrics_of(platform, continued["warm"])
    assert [line["step"] for line in lines] == [1, 2, 3]
    cold = metrics_of(platform, halted.runs["stopped"])[0]["reward/mean"]
    assert lines[0]["reward/mean"] != cold, "the first batch is drawn by the policy of the checkpoint"


def test_a_suspended_run_gives_its_pods_back_and_goes_on_at_its_own_step(
    platform: Platform, halted: Halted, continued: dict[str, Object]
) -> None:
    steps = [line["step"] for line in metrics_of(platform, continued["suspended"])]
    assert steps == list(range(1, 46)), "no step is lost, none is made twice, and the raised maxSteps holds"
    assert max(halted.saved["suspended"]) >= 3
    assert continued["suspended"]["status"]["attempt"] == 2


def test_max_steps_raised_on_a_live_run_takes_effect(raised: Raised) -> None:
    # By itself the kubelet brings a changed ConfigMap to a pod within about a minute; this makes it look at once.
    assert raised.config_after != raised.config_before
    assert raised.pods_after == raised.pods_before, "nothing restarted"


@pytest.fixture
def engineless_model(platform: Platform) -> Iterator[str]:
    """The id of a model whose engines never start."""
    model = platform.model_object("engineless", "tests/engineless")
    model["spec"]["inference"] |= NO_ENGINE
    platform.kubectl.apply(model)
    yield "tests/engineless"
    platform.kubectl("delete", "rlmodel", "engineless")


def test_deadlines_end_a_run_with_their_reason(
    platform: Platform, fresh_namespace: Callable[[str], str], engineless_model: str
) -> None:
    namespace = fresh_namespace("deadlines")
    deadline = 45
    platform.kubectl.apply(
        platform.run_object(
            "active",
            namespace,
            **SEEDED,
            model=engineless_model,
            maxSteps=LONG,
            activeDeadlineSeconds=deadline,
            ttlSecondsAfterFinished=30,
        )
    )

    def finished() -> Object | None:
        run = platform.kubectl.get("rlrun", "active", namespace)
        assert run is not None, "it was deleted before anybody could see how it ended"
        return run if (run.get("status") or {}).get("completionTime") else None

    run = wait_for("its end", finished, SECONDS)
    failed = condition(run, "Failed")
    assert failed
    assert (failed["status"], failed["reason"]) == ("True", "ActiveDeadlineExceeded")
    assert "activeDeadlineSeconds" in failed["message"]
    began, ended = (datetime.fromisoformat(run["status"][time]) for time in ("startTime", "completionTime"))
    # The status has whole seconds.
    assert (ended - began).total_seconds() >= deadline - 1
    wait_for("the run to be deleted", lambda: platform.kubectl.get("rlrun", "active", namespace) is None, SECONDS)


@pytest.mark.proves("artifactPolicy")
def test_deleting_a_run_removes_its_artifacts_by_policy(
    platform: Platform, halted: Halted, continued: dict[str, Object]
) -> None:
    store = platform.s3.store()
    layout, source = (
        RunLayout.of(BUCKET, "", halted.namespace, run["metadata"]["uid"])
        for run in (continued["warm"], halted.runs["stopped"])
    )
    assert store.list_folders(layout.root / "checkpoints")
    platform.kubectl("delete", "rlrun", "warm", "-n", halted.namespace, "--timeout=400s", timeout=420)
    wait_for("the end of the deleted run's artifacts", lambda: not store.list_files(layout.root), SECONDS)
    assert store.list_folders(source.root / "checkpoints"), "the checkpoint that it started from belongs to another run"
