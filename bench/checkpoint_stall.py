"""How long training stands still for a checkpoint, from the metrics that a run leaves.

    python -m bench.checkpoint_stall                     the demo's task with many checkpoints (about 2 minutes)

The trainer copies what a checkpoint needs between two steps and uploads the copies behind the training's back. Two
figures of a step are set beside its length: how long the trainer was busy with copies after the step before it
(`trainer/time/save_ckpt`), which is the most that training can stand still, and how long a batch that was there waited
for them (`time/save_ckpt`), which is how long it did.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from rlrun.artifacts.metric_lines import TRAINED, Line

from bench.cluster_runs import BenchmarkCluster
from bench.report import Result, at_most, record
from bench.tasks import TASKS

STEPS = 60
INTERVAL = 5
COPIES, WAIT, STEP = "trainer/time/save_ckpt", "time/save_ckpt", "time/step"


def main() -> int:
    """The exit code: 0 when there was something to measure."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.checkpoint_stall", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of the run (default {STEPS})")
    args = parser.parse_args()
    task = replace(TASKS["demo"], max_steps=args.steps)
    cluster = BenchmarkCluster.ready([task])
    name = "standstill"
    _, run = cluster.run(task, name, 0, target=None, checkpoints={"interval": INTERVAL, "keepCloud": 2})
    result = result_of(cluster.lines(run), INTERVAL)
    record("checkpoint", result)
    return 0 if result.ratio is not None else 1


def result_of(lines: Sequence[Line], interval: int) -> Result:
    """The median time for the copies of a checkpoint in percent of the median step. Pure."""
    trained = [line for line in lines if TRAINED in line and COPIES in line]
    # A line carries what came after the step before it.
    after = [line for line in trained if int(line["step"]) > 1 and (int(line["step"]) - 1) % interval == 0]
    samples = [{"copies": float(line[COPIES]), "waited": float(line[WAIT])} for line in after]
    step = median(float(line[STEP]) for line in trained) if trained else 0.0
    copies, waited = (median([s[name] for s in samples] or [0.0]) for name in ("copies", "waited"))
    return Result(
        name="standstill",
        what="the trainer copies what a checkpoint needs: share of a step's length, demo task",
        ratio=100 * copies / step if samples and step else None,
        aim=at_most(1.0),
        unit="% of a step, p50",
        samples=samples,
        notes=[
            f"p50 {1000 * copies:.2f} ms of copying beside steps of {step:.2f} s; a batch that was there waited "
            f"{1000 * waited:.3f} ms for it"
        ]
        if samples
        else ["no checkpoint"],
        figures={"step_seconds": step, "copies_seconds_p50": copies, "waited_seconds_p50": waited},
    )


if __name__ == "__main__":
    sys.exit(main())
