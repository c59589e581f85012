"""Environments of every kind take part in one real run, with evaluation and validation beside it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from demo.install import EXAMPLES, push_environment
from demo.run_metrics import mean_of
from demo.watch import follow
from tests.e2e.conftest import ENGINES, SECONDS, Platform
from tests.e2e.hostile_environment import ATTEMPTS, KERNEL, attempts_of, hostile_environment
from tests.e2e.judge import SCORE, start_judge
from tests.e2e.runs import KL_LIMITS, LOG_RATIO_LIMIT, largest_log_ratio, lines_of, metrics_of, rollout_errors

FOLDERS = ("alphabet_sort", "distinct_words", "number_guess", "plain_script")
ENVIRONMENTS = [
    {"id": "rlrun/number-guess", "args": {"letters": True, "limit": 16}, "weight": 1.0},
    {"id": "rlrun/plain-script", "args": {"words": 3}, "weight": 1.0},
    {"id": "rlrun/distinct-words", "args": {"num_examples": 200}, "weight": 2.0},
]


@pytest.mark.proves("env.id", "env.args", "env.egress", "val.interval", "eval.interval")
def test_several_turns_a_plain_script_a_judge_a_hostile_one_and_a_group_reward_in_one_run(
    platform: Platform, model: str, fresh_namespace: Callable[[str], str], tmp_path: Path
) -> None:
    for folder in FOLDERS:
        push_environment(platform.kubectl, EXAMPLES / "environments" / folder)
    namespace = fresh_namespace("many")
    judge = start_judge(platform.kubectl, namespace, tmp_path)
    platform.kubectl("annotate", "namespace", namespace, f"rlrun.dev/egress={judge.host}")
    judged = {"id": "tests/judged", "args": {"url": judge.url, "ca": judge.ca}, "egress": [judge.host], "weight": 1.0}
    hostile = hostile_environment(platform) | {"weight": 1.0}
    run = platform.run_object(
        "many",
        namespace,
        model=model,
        maxSteps=4,
        batchSize=64,
        env=[*ENVIRONMENTS, judged, hostile],
        # Four short steps: most tokens are one policy old, and what that costs grows with the square of the rate.
        learningRate=3e-4,
        sampling={"maxTokens": 12, "temperature": 0.7},
        val={"numExamples": 6, "interval": 2},
        eval={"interval": 3, "numExamples": 4, "rolloutsPerExample": 2, "env": [{"id": "rlrun/alphabet-sort"}]},
        infrastructure={"computeSize": "S"},
    )
    platform.kubectl.apply(run)

    done = follow(platform.kubectl, "many", namespace, seconds=SECONDS)

    lines = metrics_of(platform, done)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for name in ("number-guess", "plain-script", "distinct-words", "judged", "hostile"):
        assert any(f"reward/{name}/mean" in line for line in lines), name
        assert any(f"val_reward/{name}/mean" in line for line in lines), name
    assert max(line["num_turns/max"] for line in lines) > 1
    # One rollout of all may exceed a time limit while the other lane has the cores. A broken environment fails in each.
    errors = rollout_errors(platform, done)
    assert len(errors) <= 1, errors
    assert mean_of(lines, "mismatch_kl/all/mean") <= KL_LIMITS[model]
    # The proxy connects to the listed host over TLS, and to nothing else.
    assert mean_of(lines, "reward/judged/mean") == SCORE
    assert mean_of(lines, "metrics/other_host_refused/mean") == 1.0
    assert mean_of(lines, "metrics/metadata_refused/mean") == 1.0
    assert mean_of(lines, "metrics/redirect_refused/mean") == 1.0
    assert attempts_of(lines) == dict.fromkeys(ATTEMPTS, 1.0) | dict.fromkeys(KERNEL, 0.0)
    # The base model, every interval, and the last policy.
    evaluated = [line["step"] for line in lines_of(platform, done) if "eval/alphabet-sort/avg@2" in line]
    assert evaluated == [0, 3, 4]
    assert {"eval/alphabet-sort/pass@1", "eval/alphabet-sort/pass@2"} <= lines[-1].keys()
    if model == ENGINES:
        # Evaluation of the base model and validation share the engine with training: no row may get another's weights.
        assert largest_log_ratio(lines[0]) <= LOG_RATIO_LIMIT
        assert max(line.get("mismatch_kl/on_policy/mean", 0.0) for line in lines) <= LOG_RATIO_LIMIT**2
