"""Benchmark of policy publication: time from the trainer to every replica, from the metrics of real runs.

    python -m bench.publish_latency                        the demo's run on the local cluster (about 4 minutes)
    python -m bench.publish_latency s3://bucket/run ...    finished runs; AWS_* variables give access to S3
    python -m bench.publish_latency metrics.jsonl ...      the same from files of their metrics

`time/update_weights` begins with the response of the trainer, when the policy is complete in S3, and ends when all
replicas have confirmed that they serve it: files downloaded and verified, adapter loaded and listed. The line of a step
has the publication of the policy before it. The first line includes the start of the engines: it is kept among the
samples and not counted.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from rlrun.storage.layout import S3Uri
from rlrun.storage.metric_files import TRAINED, Line, merge_lines, parse_lines
from rlrun.storage.store import Store

from bench.report import Result, at_most, record

STEPS = 40
PUBLISH, STEP = "time/update_weights", "time/step"


@dataclass(frozen=True)
class PublishTiming:
    """Timing of one publication, in seconds."""

    run: str
    step: int
    seconds: float
    step_seconds: float
    counted: bool

    @property
    def share(self) -> float:
        """Share of the step during which it was published."""
        return self.seconds / self.step_seconds if self.step_seconds > 0 else float("nan")


def main() -> int:
    """Run the benchmark. Returns 0 if there was something to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.publish_latency", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "runs", nargs="*", help="s3:// uris of runs or files of metric lines; none: run the demo's task"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of the run that is made (default {STEPS})")
    args = parser.parse_args()
    sources = {name: lines_of(name) for name in args.runs} or demo_run(args.steps)
    found = [publication for name, lines in sources.items() for publication in publications(name, lines)]
    for result in results_of(found):
        record("publish", result)
    return 0 if any(publication.counted for publication in found) else 1


def lines_of(name: str) -> list[Line]:
    """Read the metric lines of a run in S3 or of a file. Raises StoreError, OSError, ValueError."""
    if not name.startswith("s3://"):
        return merge_lines(parse_lines(Path(name).read_text()))
    store, folder = Store(), S3Uri.parse(name) / "metrics"
    texts = [store.get_bytes(folder / file).decode() for file, _ in store.list_files(folder)]
    return merge_lines(line for text in texts for line in parse_lines(text))


def demo_run(steps: int) -> dict[str, list[Line]]:
    """Run the task of the demo on the local cluster and return its metric lines."""
    from bench.cluster_runs import BenchmarkCluster
    from bench.tasks import TASKS

    task = replace(TASKS["demo"], max_steps=steps)
    cluster = BenchmarkCluster.ready([task])
    name = "publish-demo"
    _, run = cluster.run(task, name, 0, target=None)
    return {name: cluster.lines(run)}


def publications(run: str, lines: Iterable[Line]) -> list[PublishTiming]:
    """Return all publications of a run in order."""
    trained = [line for line in lines if TRAINED in line and PUBLISH in line]
    return [
        PublishTiming(run, int(line["step"]), float(line[PUBLISH]), float(line[STEP]), counted=index > 0)
        for index, line in enumerate(trained)
    ]


def results_of(found: Sequence[PublishTiming]) -> list[Result]:
    """Return the median in seconds and its share of a step."""
    counted = [publication for publication in found if publication.counted]
    samples = [
        {"run": p.run, "step": p.step, "seconds": p.seconds, "step_seconds": p.step_seconds, "counted": p.counted}
        for p in found
    ]
    seconds = sorted(p.seconds for p in counted)
    figures = {"p90_seconds": seconds[int(0.9 * (len(seconds) - 1))], "max_seconds": seconds[-1]} if seconds else {}
    notes = [] if counted else ["no line of a trained step beyond the first: nothing was measured"]
    return [
        Result(
            name="latency",
            what="trainer has the policy in S3 -> every replica has confirmed that it serves it",
            ratio=median(seconds) if seconds else None,
            aim=at_most(0.5),
            unit="s p50",
            samples=samples,
            notes=notes,
            figures=figures,
        ),
        Result(
            name="share of a step",
            what="publication beside the length of a step; it goes on beside the next batch's rollouts",
            ratio=100 * median(p.share for p in counted) if counted else None,
            aim=at_most(10),
            unit="% p50",
            samples=[{"run": p.run, "step": p.step, "percent": 100 * p.share, "counted": p.counted} for p in found],
            notes=notes,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
