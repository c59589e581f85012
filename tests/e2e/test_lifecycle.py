"""Stop, suspend, resume, warm start, raised maxSteps, deadlines: nothing is lost, and everything can be continued.

The runs are on-policy and seeded, so that a continued one can be held against one that was never cut.
"""

import time
from collections.abc import Callable
from typing import Any

from rlrun.artifacts.layout import S3Uri

from demo.kubectl import Object, wait_for
from demo.watch import follow
from tests.e2e.conftest import Platform
from tests.e2e.runs import metrics_of

SEEDED: dict[str, Any] = {"batchSize": 32, "maxAsyncLevel": 0, "oversamplingFactor": 1.0, "seed": 5}
LONG = 100_000
"""Steps of a run that the test ends itself."""
SECONDS = 240


def at_step(platform: Platform, name: str, namespace: str, step: int) -> Object:
    """The run once so many steps are done."""

    def look() -> Object | None:
        run = platform.kubectl.get("rlrun", name, namespace) or {}
        progress = run.get("status", {}).get("progress") or {}
        return run if progress.get("step", 0) >= step and run["status"].get("phase") == "Running" else None

    return wait_for(f"step {step} of {name}", look, SECONDS, every=0.3)


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


def test_a_stopped_run_leaves_a_checkpoint_of_its_last_step_and_another_run_goes_on_from_it(
    platform: Platform, fresh_namespace: Callable[[str], str]
) -> None:
    namespace = fresh_namespace("stopped")
    # No checkpoint is due: what there is in the end was saved because the trainer had to go.
    spec = SEEDED | {"maxSteps": LONG, "checkpoints": {"interval": LONG}}
    platform.kubectl.apply(platform.run_object("first", namespace, **spec))
    at_step(platform, "first", namespace, 3)

    change(platform, "first", namespace, '{"spec": {"stop": true}}')
    stopped = in_phase(platform, "first", namespace, "Stopped")
    last = metrics_of(platform, stopped)[-1]["step"]
    ready = wait_for("the emergency checkpoint", lambda: checkpoints(platform, namespace, "first"), 90)

    [(step, checkpoint)] = ready.items()
    assert step >= last, "steps whose metrics are there are in the checkpoint"
    assert platform.s3.store().is_complete(S3Uri.parse(checkpoint["spec"]["uri"]))

    name = checkpoint["metadata"]["name"]
    warm = SEEDED | {"maxSteps": 3, "checkpointId": name}
    platform.kubectl.apply(platform.run_object("second", namespace, **warm))
    done = follow(platform.kubectl, "second", namespace, seconds=SECONDS)
    lines = metrics_of(platform, done)
    assert [line["step"] for line in lines] == [1, 2, 3]
    cold = metrics_of(platform, stopped)[0]["reward/mean"]
    assert lines[0]["reward/mean"] != cold, "the first batch is drawn by the policy of the checkpoint"


def test_a_suspended_run_gives_its_pods_back_and_goes_on_at_its_own_step(
    platform: Platform, fresh_namespace: Callable[[str], str]
) -> None:
    namespace = fresh_namespace("suspended")
    spec = SEEDED | {"maxSteps": 40, "checkpoints": {"interval": LONG}}
    platform.kubectl.apply(platform.run_object("run", namespace, **spec))
    at_step(platform, "run", namespace, 3)

    change(platform, "run", namespace, '{"spec": {"suspend": true}}')
    in_phase(platform, "run", namespace, "Suspended")
    saved = wait_for("the emergency checkpoint", lambda: checkpoints(platform, namespace, "run"), 90)
    change(platform, "run", namespace, '{"spec": {"suspend": false, "maxSteps": 45}}')
    done = follow(platform.kubectl, "run", namespace, seconds=SECONDS)

    steps = [line["step"] for line in metrics_of(platform, done)]
    assert steps == list(range(1, 46)), "no step is lost, none is made twice, and the raised maxSteps holds"
    assert max(saved) >= 3
    assert done["status"]["attempt"] == 2


def test_max_steps_raised_on_a_live_run_takes_effect(platform: Platform, fresh_namespace: Callable[[str], str]) -> None:
    namespace = fresh_namespace("raised")
    # Far more steps than are made until the change is there.
    spec = SEEDED | {"maxSteps": 3000, "checkpoints": {"interval": LONG}}
    platform.kubectl.apply(platform.run_object("run", namespace, **spec))
    run = at_step(platform, "run", namespace, 2)
    pods = {pod["metadata"]["uid"] for pod in platform.kubectl.list("pods", namespace)}

    change(platform, "run", namespace, '{"spec": {"maxSteps": 4000}}')
    # By itself the kubelet brings a changed ConfigMap to a pod within about a minute; it is told to look at once.
    wait_for(
        "the orchestrator to know",
        lambda: (platform.kubectl.get("rlrun", "run", namespace) or run)["status"]["progress"].get("maxSteps") == 4000,
        25,
    )
    assert {pod["metadata"]["uid"] for pod in platform.kubectl.list("pods", namespace)} == pods, "nothing restarted"


def test_deadlines_end_a_run_with_their_reason(platform: Platform, fresh_namespace: Callable[[str], str]) -> None:
    namespace = fresh_namespace("deadlines")
    platform.kubectl.apply(
        platform.run_object(
            "active", namespace, **SEEDED, maxSteps=LONG, activeDeadlineSeconds=45, ttlSecondsAfterFinished=5
        )
    )
    began = time.monotonic()
    failed = platform.wait_for_condition("active", namespace, "Failed", "ActiveDeadlineExceeded", SECONDS, "True")
    assert time.monotonic() - began >= 40
    assert "activeDeadlineSeconds" in failed["message"]
    wait_for("the run to be deleted", lambda: platform.kubectl.get("rlrun", "active", namespace) is None, 60)
