"""Learning signals beside rewards, and weights beside adapters, on a real node."""

from collections.abc import Callable

import pytest

from demo.kubectl import Object
from demo.metrics import mean_of
from demo.watch import follow
from tests.e2e.conftest import Platform
from tests.e2e.runs import KL_LIMIT, metrics_of


@pytest.mark.proves("algorithm.name", "algorithm.sftSteps", "warmupSteps")
def test_supervised_warm_up_then_grpo(platform: Platform, fresh_namespace: Callable[[str], str]) -> None:
    namespace = fresh_namespace("warmup")
    run = platform.run_object("warm", namespace, maxSteps=8, algorithm={"sftSteps": 4}, warmupSteps=4, batchSize=64)
    platform.kubectl.apply(run)

    lines = metrics_of(platform, follow(platform.kubectl, "warm", namespace, seconds=400))

    assert [line["step"] for line in lines] == list(range(1, 9))
    supervised, rewarded = lines[:4], lines[4:]
    assert all("reward/mean" not in line for line in supervised)
    assert all("reward/mean" in line for line in rewarded)
    assert supervised[-1]["loss/mean"] < supervised[0]["loss/mean"], "the answers did not become more likely"
    rates = [line["optim/lr"] for line in lines]
    assert rates[:4] == sorted(rates[:4])
    assert rates[0] < rates[-1] == 1e-3
    assert mean_of(rewarded, "mismatch_kl/all/mean") <= KL_LIMIT


@pytest.mark.proves("algorithm.name", "algorithm.teacher.url", "algorithm.teacher.model", "buffer.skipVerification")
def test_distillation_from_a_teacher(platform: Platform, fresh_namespace: Callable[[str], str]) -> None:
    """The base model is the teacher of an adapter that starts elsewhere: its divergence has to fall."""
    namespace = fresh_namespace("distil")
    teacher = {"url": "http://pupil-inference:8000/v1", "model": "rlrun/reverse-text-tiny"}
    run = platform.run_object(
        "pupil",
        namespace,
        maxSteps=8,
        batchSize=64,
        algorithm={"name": "distillation", "sftSteps": 3, "teacher": teacher},
        buffer={"skipVerification": True},
    )
    platform.kubectl.apply(run)

    lines = metrics_of(platform, follow(platform.kubectl, "pupil", namespace, seconds=400))

    distances = [line["teacher_kl/mean"] for line in lines[3:]]
    assert distances[0] > 0, "the warm-up did not move the policy away from its teacher"
    assert min(distances[2:]) < distances[0]
    assert all(line["reward/mean"] == 0 for line in lines[3:]), "verification was to be skipped"


@pytest.mark.proves("lora.enabled")
def test_all_weights_are_trained_and_served(platform: Platform, fresh_namespace: Callable[[str], str]) -> None:
    namespace = fresh_namespace("weights")
    model: Object = platform.model_object("reverse-text-full", "rlrun/reverse-text-full")
    model["spec"]["trainer"]["fullFineTuning"] = True
    platform.kubectl.apply(model)
    run = platform.run_object(
        "whole", namespace, model="rlrun/reverse-text-full", maxSteps=8, learningRate=1e-4, lora={"enabled": False}
    )
    platform.kubectl.apply(run)

    lines = metrics_of(platform, follow(platform.kubectl, "whole", namespace, seconds=500))

    assert [line["step"] for line in lines] == list(range(1, 9))
    assert mean_of(lines, "mismatch_kl/all/mean") <= KL_LIMIT, "the engine does not serve the weights that are trained"
    assert mean_of(lines[-3:], "reward/mean") > mean_of(lines[:3], "reward/mean")
    adapters = platform.kubectl.list("rladapters", namespace)
    assert [a["status"]["phase"] for a in adapters] == ["Ready"]
