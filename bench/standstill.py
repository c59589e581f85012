"""How long training stands still for a checkpoint, from the metrics that a run leaves.

    python -m bench.standstill                     the demo's task with many checkpoints (about 2 minutes)

The trainer takes a snapshot between two steps and uploads it behind the training's back. `time/save_ckpt` of a step is
the wait for that snapshot after the step before it; it is set beside the length of a step.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from rlrun.artifacts.metric_lines import TRAINED, Line

from bench.cluster_runs import Cluster
from bench.report import Result, at_most, record
from bench.tasks import TASKS

STEPS = 60
INTERVAL = 5
SAVE, STEP = "time/save_ckpt", "time/step"


def main() -> int:
    """The exit code: 0 when there was something to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.standstill", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of the run (default {STEPS})")
    args = parser.parse_args()
    task = replace(TASKS["demo"], max_steps=args.steps)
    cluster = Cluster.ready([task])
    name = "standstill"
    _, run = cluster.run(task, name, 0, target=None, checkpoints={"interval": INTERVAL, "keepCloud": 2})
    result = result_of(cluster.lines(run), INTERVAL)
    record("checkpoint", result)
    return 0 if result.ratio is not None else 1


def result_of(lines: Sequence[Line], interval: int) -> Result:
    """The median wait for a checkpoint in percent of the median step. Pure."""
    trained = [line for line in lines if TRAINED in line and SAVE in line]
    # A line carries the wait after the step before it.
    waits = [float(line[SAVE]) for line in trained if int(line["step"]) > 1 and (int(line["step"]) - 1) % interval == 0]
    step = median(float(line[STEP]) for line in trained) if trained else 0.0
    return Result(
        name="standstill",
        what="training waits for the snapshot of a checkpoint: share of a step's length, demo task",
        ratio=100 * median(waits) / step if waits and step else None,
        aim=at_most(1.0),
        unit="% of a step, p50",
        samples=[{"seconds": wait} for wait in waits],
        notes=[f"p50 {1000 * median(waits):.1f} ms beside steps of {step:.2f} s"] if waits else ["no checkpoint"],
        figures={"step_seconds": step, "wait_seconds_p50": median(waits) if waits else None},
    )


if __name__ == "__main__":
    sys.exit(main())
