"""What tests want to know of finished runs: their lines of metrics, and whether trainer and engine agreed."""

import math

from rlrun.storage.layout import RunLayout
from rlrun.storage.samples.record import SampleRecord, SampleSplit
from rlrun_cli.remote.run_data.stored_rollouts import open_step

from demo.install import BUCKET
from demo.kubectl import Object
from demo.run_metrics import Line, read_metrics
from tests.e2e.conftest import ENGINES, STUBS, Platform

KL_LIMIT = 0.01
"""Mean r - log r - 1 over a run, in nats: what trainers of the field hold themselves to."""
KL_LIMITS = {ENGINES: KL_LIMIT, STUBS: 1e-9}
"""By model. The stubs compare each token with the policy that its sample names, so only rounding is left."""
LOG_RATIO_LIMIT = 1e-3
"""Largest |log r| of a token drawn by the very policy that is trained, in float32 on both sides."""


def lines_of(platform: Platform, run: Object) -> list[Line]:
    """The run's lines, that of step 0 with the evaluation of the base model included."""
    return read_metrics(
        platform.s3.store(), RunLayout.of(BUCKET, "", run["metadata"]["namespace"], run["metadata"]["uid"])
    )


def metrics_of(platform: Platform, run: Object) -> list[Line]:
    """The run's lines, one per trained step."""
    return [line for line in lines_of(platform, run) if "loss/mean" in line]


def rollout_errors(platform: Platform, run: Object) -> list[str]:
    """Environment, reason and message of each rollout that failed, of all steps."""
    return [f"{r.environment}: {r.error.reason}: {r.error.message}" for r in rollout_records(platform, run) if r.error]


def rollout_records(platform: Platform, run: Object) -> list[SampleRecord]:
    """The record of each rollout, of all steps."""
    layout = RunLayout.of(BUCKET, "", run["metadata"]["namespace"], run["metadata"]["uid"])
    store = platform.s3.store()
    steps = [line["step"] for line in metrics_of(platform, run)]
    stored = [samples for step in steps for samples in open_step(store, layout, step, SampleSplit.train, None)]
    return [record for samples in stored for group in samples.index.groups for record in samples.records(group)]


def largest_log_ratio(line: Line) -> float:
    """|log r| of the token with the largest mismatch: r - log r - 1 is (log r)^2 / 2 for a ratio near 1."""
    return math.sqrt(2 * line["mismatch_kl/all/max"])
