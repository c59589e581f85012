"""Benchmark of recovery: time until training continues after a pod was killed, with and without the pod's start.

    python -m bench.recovery                       every role, three times each (about 8 minutes)
    python -m bench.recovery --role trainer --kills 5

One long run of the demo's task on the local cluster. During training a pod of a role is deleted without grace. Three
times are recorded: the deletion, the readiness of the new pod (Kubernetes, imports, loading the model), and the end of
the first step after that. The rest, from readiness to that step minus the length of a usual step, is the part of this
project: processes find each other, open the session and load policies.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median
from typing import TypeVar

from rlrun.storage.metric_files import TRAINED

from bench.cluster_runs import NAMESPACE, BenchmarkCluster, first_line
from bench.report import Result, at_most, record
from bench.tasks import TASKS
from demo.kubectl import Object

ROLES = ("trainer", "inference", "environment", "orchestrator")
KILLS = 3
POLL_SECONDS = 0.3
DEADLINE_SECONDS = 180.0
"""Deadline of the first steps of the run, and of one recovery."""
STEPS_BETWEEN = 6
"""Undisturbed steps before the next kill; they include a checkpoint."""
NAME = "recovery"
REST_SECONDS = 2.0

T = TypeVar("T")


@dataclass(frozen=True)
class Recovery:
    """Times after one kill, in seconds since the pod was deleted."""

    role: str
    ready: float
    """Seconds until the new pod was ready."""
    trained: float
    """Seconds until the end of the first step after that."""
    usual_step: float
    """Median length of the steps before the kill."""

    @property
    def rest(self) -> float:
        """Seconds that belong neither to the start of the new pod nor to the step."""
        return max(0.0, self.trained - self.ready - self.usual_step)


class Lost(RuntimeError):
    """Failure of the run to continue within the deadline."""


def main() -> int:
    """Run the benchmark. Returns 0 if the run survived every kill."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--role", choices=ROLES, action="append", help="only this one; repeatable")
    parser.add_argument("--kills", type=int, default=KILLS, help=f"of each role (default {KILLS})")
    args = parser.parse_args()
    task = replace(TASKS["demo"], max_steps=100_000)
    cluster = BenchmarkCluster.ready([task])
    cluster.remove(NAME)
    checkpoints = {"interval": 3, "keepCloud": 2}
    cluster.kubectl.apply(task.run_object(NAME, NAMESPACE, 0, checkpoints=checkpoints, maxRestarts=1000))
    found: list[Recovery] = []
    problems: list[str] = []
    try:
        for kill in range(args.kills):
            for role in args.role or ROLES:
                try:
                    found.append(kill_one(cluster, role))
                    last = found[-1]
                    print(f"{role} {kill}: ready {last.ready:.1f} s, trained {last.trained:.1f} s", flush=True)
                except Lost as error:
                    problems.append(f"{role}, kill {kill}: {first_line(error)}")
                    print(problems[-1], flush=True)
    finally:
        cluster.remove(NAME)
    for result in results_of(found, problems):
        record("recovery", result)
    return 1 if problems or not found else 0


def kill_one(cluster: BenchmarkCluster, role: str) -> Recovery:
    """Wait for some steps, delete a pod of the role and time the recovery. Raises Lost."""
    before = len(step_times(cluster))
    times = _until(lambda: found if len(found := step_times(cluster)) >= before + STEPS_BETWEEN else None, "steps")
    usual = median(b - a for a, b in zip(times[-STEPS_BETWEEN:], times[-STEPS_BETWEEN + 1 :], strict=False))
    victim = _pods(cluster, role)[0]["metadata"]
    killed = time.time()
    cluster.kubectl(
        "delete", "pod", victim["name"], "-n", NAMESPACE, "--grace-period=0", "--force", "--wait=false", timeout=60
    )
    _until(lambda: _ready(_pods(cluster, role), victim["uid"]) or None, f"a new {role} pod")
    ready = time.time()
    trained = _until(lambda: next((t for t in step_times(cluster) if t > ready), None), "the next step")
    return Recovery(role, ready - killed, trained - killed, usual)


def step_times(cluster: BenchmarkCluster) -> list[float]:
    """Return the times at which trained steps ended, in seconds since the epoch, in order."""
    run = cluster.kubectl.get("rlrun", NAME, NAMESPACE)
    if run is None:
        raise Lost(f"rlrun {NAMESPACE}/{NAME} was deleted")
    if run.get("status", {}).get("phase") == "Failed":
        raise Lost(f"rlrun {NAMESPACE}/{NAME} failed: {run['status'].get('message')}")
    lines = (line for line in cluster.lines(run) if TRAINED in line)
    return sorted(datetime.fromisoformat(line["time"]).timestamp() for line in lines)


def _pods(cluster: BenchmarkCluster, role: str) -> list[Object]:
    pods = cluster.kubectl.list("pods", NAMESPACE)
    return [pod for pod in pods if pod["metadata"]["labels"].get("rlrun.dev/role") == role]


def _ready(pods: Sequence[Object], victim: str) -> bool:
    return any(
        pod["metadata"]["uid"] != victim
        and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
        for pod in pods
    )


def _until(poll: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (found := poll()) is None:
        if time.monotonic() > deadline:
            raise Lost(f"waited without success for {what} for {DEADLINE_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)
    return found


def results_of(found: Sequence[Recovery], problems: Sequence[str]) -> list[Result]:
    """Return the rest (p95) per role, with both totals in the notes."""
    results = []
    for role in dict.fromkeys(r.role for r in found):
        of_it = [r for r in found if r.role == role]
        trained, rest = [r.trained for r in of_it], [r.rest for r in of_it]
        results.append(
            Result(
                name=role,
                what=f"{role} pod killed: seconds until training goes on, without the new pod's start and the step",
                ratio=percentile(rest, 95),
                aim=at_most(REST_SECONDS),
                unit="s p95",
                samples=[vars(r) | {"rest": r.rest} for r in of_it],
                notes=[
                    f"{role}: training goes on after {percentile(trained, 50):.1f} s (p50), "
                    f"{percentile(trained, 95):.1f} s (p95) in all; "
                    f"new pod ready after {median(r.ready for r in of_it):.1f} s (p50), {len(of_it)} kills",
                    *(p for p in problems if p.startswith(role)),
                ],
                figures={"p50_seconds": percentile(trained, 50), "p95_seconds": percentile(trained, 95)},
            )
        )
    return results


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


if __name__ == "__main__":
    sys.exit(main())
