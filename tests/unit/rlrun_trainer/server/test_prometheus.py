"""Metrics of sessions that are open, and of no others."""

from rlrun.protocol.trainer import StepResult
from rlrun_trainer.server.prometheus import GAUGES, TrainerMetrics

from tests.support.policy_refs import policy


def test_closed_sessions_have_no_series() -> None:
    metrics = TrainerMetrics()
    figures = {key: 1.0 for key, _ in GAUGES.values()}
    for session in ("u-1", "u-2"):
        metrics.set_step(session, 0)
        metrics.on_step(session, StepResult(step=1, policy=policy(1, "s3://bucket/runs/u"), metrics=figures))
    before = metrics.text().decode()
    metrics.keep_only(["u-1"])
    after = metrics.text().decode()
    assert before.count("u-2") == before.count("u-1") == after.count("u-1") == len(GAUGES) + 3
    assert "u-2" not in after
    metrics.keep_only([])
    assert "u-1" not in metrics.text().decode()
