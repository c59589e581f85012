"""Stop, suspend, resume, warm start, raised maxSteps, deadlines: nothing is lost, and everything can be continued.

The runs are on-policy and seeded, so that a continued one can be held against one that was never cut.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from rlrun.constants import CONFIG_ANNOTATION
from rlrun.storage.layout import S3Uri

from demo.kubectl import Object, condition, wait_for
from demo.watch import follow
from tests.e2e.conftest import SECONDS, Platform
from tests.e2e.runs import metrics_of

SEEDED: dict[str, Any] = {"batchSize": 32, "maxAsyncLevel": 0, "oversamplingFactor": 1.0, "seed": 5}
LONG = 100_000
"""Steps of a run that the test ends itself."""
CHANGES = {"stopped": '{"spec": {"stop": true}}', "suspended": '{"spec": {"suspend": true}}'}
"""Runs and what their user does once they are under way."""


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


@dataclass(frozen=True)
class Halted:
    """Runs that their user stopped and suspended, and what they had saved when their pods were gone."""

    namespace: str
    runs: dict[str, Object]
    saved: dict[str, dict[int, Object]]


@pytest.fixture(scope="module")
def halted(platform: Platform, module_namespace: Callable[[str], str]) -> Halted:
    """Both runs of CHANGES."""
    namespace = module_namespace("halted")
    # No checkpoint is due: what there is in the end was saved because the trainer had to go.
    for name, steps in (("stopped", LONG), ("suspended", 40)):
        spec = SEEDED | {"maxSteps": steps, "checkpoints": {"interval": LONG}}
        platform.kubectl.apply(platform.run_object(name, namespace, **spec))
    waiting = dict(CHANGES)

    def all_changed() -> bool:
        for name in list(waiting):
            if has_done(platform.kubectl.get("rlrun", name, namespace) or {}, 3):
                change(platform, name, namespace, waiting.pop(name))
        return not waiting

    wait_for("step 3 of both runs", all_changed, SECONDS, every=0.3)
    runs = {name: in_phase(platform, name, namespace, name.capitalize()) for name in CHANGES}
    saved = {
        name: wait_for(
            f"the emergency checkpoint of {name}", lambda name=name: checkpoints(platform, namespace, name), SECONDS
        )
        for name in CHANGES
    }
    return Halted(namespace, runs, saved)


@pytest.fixture(scope="module")
def continued(platform: Platform, halted: Halted) -> dict[str, Object]:
    """The suspended run and one that starts from the checkpoint of the stopped one, both finished."""
    change(platform, "suspended", halted.namespace, '{"spec": {"suspend": false, "maxSteps": 45}}')
    [checkpoint] = halted.saved["stopped"].values()
    warm = SEEDED | {"maxSteps": 3, "checkpointId": checkpoint["metadata"]["name"]}
    platform.kubectl.apply(platform.run_object("warm", halted.namespace, **warm))
    return {name: follow(platform.kubectl, name, halted.namespace, SECONDS) for name in ("warm", "suspended")}


def test_a_stopped_run_leaves_a_checkpoint_of_its_last_step(platform: Platform, halted: Halted) -> None:
    last = metrics_of(platform, halted.runs["stopped"])[-1]["step"]
    [(step, checkpoint)] = halted.saved["stopped"].items()
    assert step >= last, "steps whose metrics are there are in the checkpoint"
    assert platform.s3.store().is_complete(S3Uri.parse(checkpoint["spec"]["uri"]))


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


def test_max_steps_raised_on_a_live_run_takes_effect(platform: Platform, fresh_namespace: Callable[[str], str]) -> None:
    namespace = fresh_namespace("raised")
    # Far more steps than are made until the change is there.
    spec = SEEDED | {"maxSteps": 3000, "checkpoints": {"interval": LONG}}
    platform.kubectl.apply(platform.run_object("run", namespace, **spec))

    def under_way() -> Object | None:
        run = platform.kubectl.get("rlrun", "run", namespace) or {}
        return run if has_done(run, 2) else None

    def orchestrator() -> Object:
        (pod,) = platform.kubectl.list("pods", namespace, "rlrun.dev/role=orchestrator")
        return pod

    run = wait_for("step 2", under_way, SECONDS, every=0.3)
    pods = {pod["metadata"]["uid"] for pod in platform.kubectl.list("pods", namespace)}
    told = orchestrator()["metadata"].get("annotations", {}).get(CONFIG_ANNOTATION)

    change(platform, "run", namespace, '{"spec": {"maxSteps": 4000}}')
    wait_for(
        "the orchestrator to know",
        lambda: (platform.kubectl.get("rlrun", "run", namespace) or run)["status"]["progress"].get("maxSteps") == 4000,
        SECONDS,
    )
    # By itself the kubelet brings a changed ConfigMap to a pod within about a minute; this makes it look at once.
    assert orchestrator()["metadata"].get("annotations", {}).get(CONFIG_ANNOTATION) != told
    assert {pod["metadata"]["uid"] for pod in platform.kubectl.list("pods", namespace)} == pods, "nothing restarted"


def test_deadlines_end_a_run_with_their_reason(platform: Platform, fresh_namespace: Callable[[str], str]) -> None:
    namespace = fresh_namespace("deadlines")
    deadline = 45
    platform.kubectl.apply(
        platform.run_object(
            "active", namespace, **SEEDED, maxSteps=LONG, activeDeadlineSeconds=deadline, ttlSecondsAfterFinished=30
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
