"""Strictly on-policy and with one seed, a run is the same run again, also when it was suspended in the middle."""

import json
from collections.abc import Callable

import pytest

from demo.kubectl import Object, wait_for
from demo.run_metrics import Line
from demo.watch import follow
from tests.e2e.conftest import ON_POLICY, SECONDS, SEEDS, Neighbours, Platform
from tests.e2e.runs import metrics_of

STEPS = ON_POLICY["maxSteps"]


def numbers(lines: list[Line]) -> tuple[list[int], list[float], list[float]]:
    """Steps, rewards and losses."""
    return (
        [line["step"] for line in lines],
        [line["reward/mean"] for line in lines],
        [line["loss/mean"] for line in lines],
    )


def assert_equal(ours: list[Line], theirs: list[Line]) -> None:
    steps, rewards, losses = numbers(ours)
    steps_there, rewards_there, losses_there = numbers(theirs)
    assert steps == steps_there == list(range(1, STEPS + 1))
    assert rewards == rewards_there
    # The engine adds floats in the order in which requests happened to share a batch: the last digits are its own.
    assert losses == pytest.approx(losses_there, rel=1e-3, abs=1e-5)


@pytest.mark.proves("seed", "sampling.seed", "maxAsyncLevel", "checkpoints.interval", "suspend")
def test_a_suspended_and_resumed_run_equals_an_uninterrupted_one(
    platform: Platform, model: str, neighbours: Neighbours, fresh_namespace: Callable[[str], str]
) -> None:
    namespace = fresh_namespace("cut")
    kubectl = platform.kubectl
    first, other = (metrics_of(platform, run) for run in neighbours.runs)
    assert other[0]["reward/mean"] != first[0]["reward/mean"], "the seed has no effect, so equality shows nothing"

    kubectl.apply(platform.run_object("cut", namespace, **ON_POLICY, model=platform.slowed(model), seed=SEEDS[0]))
    wait_for("the checkpoint to continue from", lambda: checkpoint_ready(platform, namespace, "cut"), SECONDS, 0.3)
    patch(platform, namespace, "cut", {"suspend": True})
    wait_for("the end of its pods", lambda: not kubectl.list("pods", namespace, "rlrun.dev/run=cut"), SECONDS)
    step = ((kubectl.get("rlrun", "cut", namespace) or {})["status"].get("progress") or {}).get("step", 0)
    assert step < STEPS, "the run was over before it could be cut"
    patch(platform, namespace, "cut", {"suspend": False})

    assert_equal(metrics_of(platform, follow(kubectl, "cut", namespace, SECONDS)), first)


def checkpoint_ready(platform: Platform, namespace: str, run: str) -> bool:
    found = platform.kubectl.list("rlcheckpoints", namespace)
    return any(o["spec"]["runName"] == run and o.get("status", {}).get("phase") == "Ready" for o in found)


def patch(platform: Platform, namespace: str, run: str, spec: Object) -> None:
    platform.kubectl("patch", "rlrun", run, "-n", namespace, "--type=merge", "-p", json.dumps({"spec": spec}))
