"""What users and platform teams get wrong, each ending in a condition with a reason and a next step.

Every test deletes its run as soon as the condition has been seen: two cores do not hold many runs at once. Runs that
never get as far as asking their engine have none, and start together.
"""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from demo.install import SYSTEM_NAMESPACE
from demo.kubectl import CommandFailed, condition, wait_for
from tests.e2e.conftest import NO_ENGINE, SECONDS, Platform


@pytest.fixture
def here(fresh_namespace: Callable[[str], str]) -> str:
    return fresh_namespace("bad-input")


def test_invalid_spec_is_refused_with_the_field_named(platform: Platform, here: str) -> None:
    run = platform.run_object("invalid", here, batchSize=10, rolloutsPerExample=4)
    with pytest.raises(CommandFailed, match="batchSize"):
        platform.kubectl.apply(run)
    assert platform.kubectl.get("rlrun", "invalid", here) is None


def test_unknown_model_names_the_known_ones(platform: Platform, here: str) -> None:
    platform.kubectl.apply(platform.run_object("unknown-model", here, model="nobody/nothing"))
    found = platform.wait_for_condition("unknown-model", here, "Validated", "ModelNotFound", SECONDS)
    assert "nobody/nothing" in found["message"]
    assert "rlrun/reverse-text-tiny" in found["message"]


def test_run_starts_by_itself_when_its_model_appears(platform: Platform, here: str) -> None:
    platform.kubectl.apply(platform.run_object("early", here, model="tests/late"))
    platform.wait_for_condition("early", here, "Validated", "ModelNotFound", SECONDS)
    model = platform.model_object("late", "tests/late")
    model["spec"]["inference"] |= NO_ENGINE
    platform.kubectl.apply(model)
    try:
        wait_for("the pods", lambda: platform.kubectl.list("pods", here, "rlrun.dev/role=trainer"), SECONDS)
    finally:
        platform.kubectl("delete", "rlmodel", "late")


def test_answer_longer_than_the_model_allows(platform: Platform, here: str) -> None:
    platform.kubectl.apply(platform.run_object("too-long", here, sampling={"maxTokens": 100_000}))
    found = platform.wait_for_condition("too-long", here, "Validated", "MaxTokensTooLarge", SECONDS)
    assert "maxTokens" in found["message"]


def test_arguments_that_no_variable_can_hold(platform: Platform, here: str) -> None:
    env = [{"id": "rlrun/reverse-text", "args": {"text": "x" * 200_000}}]
    platform.kubectl.apply(platform.run_object("huge-args", here, env=env))
    found = platform.wait_for_condition("huge-args", here, "Validated", "EnvironmentArgsTooLarge", SECONDS)
    assert "spec.env[0]" in found["message"]
    assert platform.kubectl.list("pods", here) == []


def test_a_run_named_like_the_account_of_all_pods(platform: Platform, here: str) -> None:
    account = wait_for("the account", lambda: platform.kubectl.get("serviceaccount", "default", here), SECONDS)
    platform.kubectl.apply(platform.run_object("default", here))
    platform.wait_for_condition("default", here, "ChildrenApplied", "NameTaken", SECONDS)
    after = platform.kubectl.get("serviceaccount", "default", here) or {}
    assert after["metadata"] == account["metadata"]


def test_start_deadline_makes_the_condition_a_failure(platform: Platform, here: str) -> None:
    platform.kubectl.apply(platform.run_object("hopeless", here, model="nobody/nothing", startDeadlineSeconds=5))

    def phase() -> bool:
        run = platform.kubectl.get("rlrun", "hopeless", here) or {}
        return bool(run.get("status", {}).get("phase") == "Failed")

    wait_for("the run's failure", phase, SECONDS)
    failed = condition(platform.kubectl.get("rlrun", "hopeless", here) or {}, "Failed")
    assert failed
    assert failed["status"] == "True"
    assert failed["reason"] in {"ModelNotFound", "StartDeadlineExceeded"}
    assert platform.kubectl.list("pods", here) == []


ENVIRONMENT_MISTAKES: list[tuple[str, dict[str, Any], str, str]] = [
    ("missing-package", {"id": "tests/never-pushed"}, "EnvironmentPackageMissing", "rlrun env push"),
    ("load-raises", {"id": "tests/load-raises"}, "EnvironmentLoadFailed", "questions.jsonl"),
]


@pytest.fixture(scope="module")
def engineless(platform: Platform, module_namespace: Callable[[str], str]) -> Iterator[str]:
    """The namespace of runs that fail before they would need an engine, started together."""
    namespace = module_namespace("bad-input")
    little = platform.model_object("no-memory", "tests/no-memory")
    little["spec"]["trainer"]["resources"] = {"requests": {"memory": "64Mi"}, "limits": {"memory": "64Mi"}}
    usual = platform.model_object("no-engine", "tests/no-engine")
    for model in (little, usual):
        model["spec"]["inference"] |= NO_ENGINE
        platform.kubectl.apply(model)
    for name, env, _, _ in ENVIRONMENT_MISTAKES:
        platform.kubectl.apply(platform.run_object(name, namespace, model="tests/no-engine", env=[env]))
    exceeded = {"reasons": ["OOMKilled"], "messagePattern": "exceeded its memory limit"}
    rule = {"action": "Fail", "roles": ["trainer"], **exceeded}
    policy = {"rules": [{"action": "RestartRun", "roles": ["inference"]}, rule]}
    platform.kubectl.apply(platform.run_object("no-memory", namespace, model="tests/no-memory", failurePolicy=policy))
    yield namespace
    platform.kubectl("delete", "rlmodel", "no-memory", "no-engine")


@pytest.mark.parametrize(("name", "env", "reason", "hint"), ENVIRONMENT_MISTAKES)
def test_environment_that_cannot_serve(
    platform: Platform, engineless: str, name: str, env: dict[str, Any], reason: str, hint: str
) -> None:
    found = platform.wait_for_condition(name, engineless, "EnvironmentsReady", reason, SECONDS)
    assert hint in found["message"]
    platform.kubectl("delete", "rlrun", name, "-n", engineless, "--wait=false")


def test_trainer_out_of_memory(platform: Platform, engineless: str) -> None:
    found = platform.wait_for_condition("no-memory", engineless, "Failed", "TrainerOutOfMemory", SECONDS, status="True")
    assert "memory" in found["message"]
    assert "Failed after" not in found["message"], "the rule ends the run at the first crash, not after maxRestarts"


def test_reward_function_that_raises_is_counted_and_shown(platform: Platform, here: str) -> None:
    platform.kubectl.apply(platform.run_object("reward-raises", here, env=[{"id": "tests/reward-raises"}], maxSteps=50))

    def warned() -> Any:
        run = platform.kubectl.get("rlrun", "reward-raises", here) or {}
        found = condition(run, "RewardFunctionsHealthy")
        return found if found and found["status"] == "False" else None

    found = wait_for("the warning", warned, SECONDS)
    assert found["reason"] == "RewardFunctionErrors"
    assert "ZeroDivisionError" in found["message"]


def test_image_that_cannot_be_pulled(platform: Platform, here: str) -> None:
    model = platform.model_object("no-image", "tests/no-image")
    model["spec"]["trainer"]["image"] = "rlrun-nowhere/trainer:none"
    model["spec"]["inference"] |= NO_ENGINE
    platform.kubectl.apply(model)
    try:
        policy = {"imagePullDeadlineSeconds": 20}
        platform.kubectl.apply(platform.run_object("no-image", here, model="tests/no-image", failurePolicy=policy))
        failed = platform.wait_for_condition("no-image", here, "Failed", "ImagePullFailed", SECONDS, status="True")
        assert "rlrun-nowhere/" in failed["message"]
        # Either image may be missed first. The condition of that role stays when the run has ended.
        run = platform.kubectl.get("rlrun", "no-image", here) or {}
        role = next(role for role in ("trainer", "inference") if f"rlrun-nowhere/{role}:none" in failed["message"])
        found = condition(run, f"{role.capitalize()}Ready") or {}
        assert found.get("reason") == "ImagePullFailed"
        assert f"rlrun-nowhere/{role}:none" in found["message"]
    finally:
        platform.kubectl("delete", "rlmodel", "no-image")


@pytest.mark.alone
@pytest.mark.parametrize(
    ("broken", "reason"), [({"AWS_SECRET_ACCESS_KEY": "wrong"}, "S3AccessDenied"), ({}, "S3BucketMissing")]
)
def test_s3_that_does_not_answer_as_configured(
    platform: Platform, here: str, broken: dict[str, str], reason: str
) -> None:
    kubectl = platform.kubectl
    secret = kubectl.get("secret", platform.s3.secret_name, SYSTEM_NAMESPACE)
    assert secret
    original = dict(secret["data"])
    try:
        if broken:
            encoded = {k: base64.b64encode(v.encode()).decode() for k, v in broken.items()}
            set_secret(platform, original | encoded)
        else:
            kubectl.helm(*upgrade(platform, "--set", "s3.bucket=never-made"), timeout=420)
        kubectl.apply(platform.run_object("s3", here))
        found = platform.wait_for_condition("s3", here, "Validated", reason, SECONDS)
        assert found["message"]
    finally:
        if broken:
            set_secret(platform, original)
        else:
            kubectl.helm(*upgrade(platform), timeout=420)
    platform.wait_for_condition("s3", here, "Validated", "Valid", SECONDS, status="True")


def set_secret(platform: Platform, data: dict[str, str]) -> None:
    meta = {"name": platform.s3.secret_name, "namespace": SYSTEM_NAMESPACE}
    platform.kubectl.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})


def upgrade(platform: Platform, *extra: str) -> list[str]:
    from demo.install import CHART, RELEASE, chart_values

    command = ["upgrade", RELEASE, str(CHART), "-n", SYSTEM_NAMESPACE, "--wait", "--timeout", "400s"]
    return [*command, *chart_values(platform.s3), *extra]
