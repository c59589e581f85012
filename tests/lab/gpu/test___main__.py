from typing import Any

import pytest

from tests.gpu.__main__ import judge, on_gpu, summarized


def result(rewards: list[float], mismatch: float = 1e-3, phase: str = "Completed") -> dict[str, Any]:
    lines = [
        {"step": i + 1, "reward/mean": reward, "mismatch_kl/all/mean": mismatch, "time/step": 1.0 + i}
        for i, reward in enumerate(rewards)
    ]
    return {"status": {"phase": phase}, "summary": summarized(lines)}


RISING = [0.3, 0.4, 0.5, 0.6, 0.7]


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (result(RISING), None),
        (result(RISING[::-1]), "rose from 0.700 to 0.300 only"),
        (result([0.5, 0.5, 0.5, 0.5, 0.55]), "rose from 0.500 to 0.550 only"),
        (result(RISING, mismatch=float("nan")), "mean mismatch KL nan"),
        (result(RISING, mismatch=0.5), "mean mismatch KL 0.5, limit 0.01"),
        (result(RISING, phase="Failed"), "ended in phase Failed"),
        (result([]), "No step was trained"),
    ],
)
def test_a_run_is_judged_by_its_end_its_reward_and_its_mismatch(found: dict[str, Any], problem: str | None) -> None:
    problems = judge(found, mismatch=1e-2)
    assert (problem is None and not problems) or (problem and any(problem in text for text in problems)), problems


def test_an_engine_that_did_not_start_again_is_a_problem() -> None:
    found = result(RISING)
    found["summary"]["seconds_to_engine"] = {"empty cache": 70.0, "kept cache": 20.0}
    assert judge(found, mismatch=1e-2) == []
    found["summary"]["seconds_to_engine"]["kept cache"] = None
    [problem] = judge(found, mismatch=1e-2)
    assert "not ready in time" in problem


def test_the_summary_has_the_median_of_each_time() -> None:
    assert result(RISING)["summary"]["medians"] == {"time/step": 3.0}


def test_a_model_for_cpus_gets_gpus_and_loses_the_flags_for_cpus() -> None:
    model = {
        "id": "a/b",
        "trainer": {"gpus": 0, "microBatchTokens": 4096, "env": [{"name": "RLRUN_THREADS", "value": "1"}]},
        "inference": {"gpus": 0, "extraArgs": ["--dtype", "float32"]},
    }
    found = on_gpu(model)
    assert found["trainer"] == {"gpus": 1, "microBatchTokens": 4096}
    assert found["inference"]["gpus"] == 1
    assert "float32" not in found["inference"]["extraArgs"]
    assert model["trainer"]["gpus"] == 0
