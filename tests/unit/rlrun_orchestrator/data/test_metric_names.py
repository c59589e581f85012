"""Code of an environment chooses names: each would be another series."""

from types import SimpleNamespace

from rlrun.constants import Reason
from rlrun.protocol.environment import MAX_METRIC_NAME, MAX_METRICS, RolloutResult
from rlrun_orchestrator.data.batch_metrics import environment_metrics
from rlrun_orchestrator.data.metric_names import MAX_NAMES, ChosenMetricNames


def test_names_of_each_step_are_no_new_series() -> None:
    names, seen = ChosenMetricNames(), set[str]()
    for step in range(10):
        reported = {f"metrics/id-{step}-{number}/mean": 1.0 for number in range(1000)}
        seen |= names.select({**reported, "reward/mean": 0.5}).keys()
    assert len(seen) == MAX_NAMES + 1
    assert "reward/mean" in seen
    problem = names.problem
    assert problem
    assert problem.reason == Reason.METRIC_NAMES_DROPPED
    assert problem.message.startswith("metrics dropped from the newest step: 1000 (")
    assert "metrics/id-9-0/mean" in problem.message


def test_a_name_that_was_kept_stays_and_the_warning_ends() -> None:
    names = ChosenMetricNames(2)
    names.select({"metrics/a/mean": 1.0, "metrics/b/mean": 1.0, "metrics/c/mean": 1.0})
    assert names.problem
    assert names.select({"metrics/b/mean": 2.0}) == {"metrics/b/mean": 2.0}
    assert names.problem is None


def test_agents_count_and_environments_do_not() -> None:
    names = ChosenMetricNames(1)
    values = {"reward/env/one/mean": 1.0, "reward/env/two/mean": 1.0, "reward/env/mean": 1.0}
    assert names.select(values) == {"reward/env/one/mean": 1.0, "reward/env/mean": 1.0}


def test_agents_of_evaluations_count_too() -> None:
    names = ChosenMetricNames(1)
    values = {f"eval/env/{agent}/avg@2": 1.0 for agent in ("one", "two")} | {"val_reward/env/three/mean": 1.0}
    assert names.select({**values, "eval/env/avg@2": 1.0}) == {"eval/env/one/avg@2": 1.0, "eval/env/avg@2": 1.0}


def test_a_worker_that_keeps_no_limit_has_its_metrics_cut() -> None:
    """The limits of the worker are in the process of user code."""
    metrics = {"x" * (MAX_METRIC_NAME + 1): 1.0, **{f"m{number}": 1.0 for number in range(10_000)}}
    result = RolloutResult.model_validate({"rolloutId": "r", "reward": 1.0, "metrics": metrics})
    assert list(result.metrics) == [f"m{number}" for number in range(MAX_METRICS)]


def test_metrics_are_the_mean_of_the_rollouts_that_report_them() -> None:
    rollouts = [SimpleNamespace(result=SimpleNamespace(metrics=m)) for m in ({"b": 1.0, "a": 2.0}, {"b": 3.0}, {})]
    values = environment_metrics(rollouts)  # type: ignore[arg-type]
    assert list(values.items()) == [("metrics/a/mean", 2.0), ("metrics/b/mean", 2.0)]
