"""Scenarios of the benchmark: bursts, runs that are quiet, runs that train, and operators that start anew."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.repetitions import percentile
from bench.scale import objects
from bench.scale.cluster import OperatorProcess, ScaleCluster, wait_for
from bench.scale.event_watch import EventWatch, NewPods
from bench.scale.objects import PODS_PER_RUN
from bench.scale.readings import Reading, Usage, read, usage
from bench.scale.step_delays import StepDelays
from local_cluster.host.progress import progress

PRESSURE_SECONDS = 20.0
"""Time for which the operator has to keep its Lease beside processes that want all cores."""
SETTLED_SECONDS = 10.0
SETTLED_REQUESTS = 3.0
"""Requests per second at most that an operator makes in which nothing happens."""


@dataclass(frozen=True)
class Burst:
    """Runs that were created at once."""

    seconds: float
    """From the first creation until all pods run."""
    used: Usage
    """Requests and CPU time of the operator, until it was quiet."""


@dataclass(frozen=True)
class Training:
    """Runs that make steps."""

    used: Usage
    delays: list[float] = field(default_factory=list)
    """Seconds from each step until a watch of the runs showed it or a later one."""

    def delay(self, percent: float) -> float:
        """Return a percentile of the delays in seconds."""
        return percentile(self.delays, percent)


@dataclass(frozen=True)
class Start:
    """An operator that started where runs existed already."""

    takeover_seconds: float
    """From the end of the operator before it, which was killed, until it had the Lease."""
    seconds: float
    """From holding the Lease until it had looked at all active runs."""
    used: Usage
    resident_bytes: float


def burst_of_jobs(cluster: ScaleCluster, prefix: str, pods: int) -> float:
    """Return the seconds until bare Jobs with so many pods run, from the first creation."""
    objects.create_namespaces(cluster.api, prefix)
    with NewPods(cluster.api, "Running") as running:
        began = time.time()
        objects.create_jobs(cluster.api, prefix, pods)
        wait_for(f"{pods} running pods of Jobs", lambda: running.count >= pods)
    return running.last - began


def burst_of_runs(
    cluster: ScaleCluster, operator: OperatorProcess, prefix: str, runs: int, phase: str = "Running"
) -> Burst:
    """Create runs at once and wait until their pods are in this phase and the operator is quiet."""
    objects.create_namespaces(cluster.api, prefix)
    before = read(operator)
    with NewPods(cluster.api, phase) as pods:
        began = time.time()
        objects.create_runs(cluster.api, prefix, runs)
        with progress.step(f"{PODS_PER_RUN * runs} pods {phase}"):
            wait_for(f"the pods of {runs} runs", lambda: pods.count >= PODS_PER_RUN * runs)
    return Burst(pods.last - began, usage(before, settled(operator)))


def rest(operator: OperatorProcess, seconds: float) -> Usage:
    """Return what the operator does while nothing happens."""
    before = read(operator)
    time.sleep(seconds)
    return usage(before, read(operator))


def training(
    cluster: ScaleCluster, operator: OperatorProcess, prefix: str, step_seconds: float, seconds: float
) -> Training:
    """Let all runs make steps for some time. The delays are those of the runs of the first namespace.

    Raises SystemExit if none of their steps was shown.
    """
    place = objects.namespaces(prefix)[0]
    found: StepDelays | None = None

    def on_event(_: str, run: dict[str, Any], now: float) -> None:
        step = int(((run.get("status") or {}).get("progress") or {}).get("step") or 0)
        if found is not None:
            found.show(f"{place}/{run['metadata']['name']}", step, now)

    with EventWatch(cluster.api, f"/apis/rlrun.dev/v1alpha1/namespaces/{place}/rlruns", on_event):
        pace = cluster.set_pace(step_seconds)
        # Begin where all runs have made their first step.
        time.sleep(step_seconds)
        before, found = read(operator), StepDelays(pace, time.time())
        time.sleep(seconds)
        used, delays = usage(before, read(operator)), found.until(time.time())
    if not delays:
        raise SystemExit(f"no step of {seconds:.0f} s was shown in the status of any run of {place}")
    cluster.set_pace(0, first=found.highest)
    return Training(used, delays)


def take_over(cluster: ScaleCluster, leader: OperatorProcess, active: int) -> tuple[OperatorProcess, Start]:
    """Kill the operator beside one that stands by, while other processes want all cores, and measure its successor.

    The other processes end when the successor has the Lease.
    """
    operator = cluster.start_operator()
    wait_for("an operator that stands by", operator.is_serving, pause=0.1)
    with busy_cores():
        time.sleep(PRESSURE_SECONDS)
        if not leader.is_ready():
            raise SystemExit("the operator lost the Lease because other processes wanted all cores")
        leader.kill()
        began = time.monotonic()
        wait_for("an operator that leads", operator.is_ready, pause=0.1)
        takeover = time.monotonic() - began
    before = after = read(operator)

    def has_looked() -> bool:
        nonlocal after
        after = read(operator)
        return after.looks - before.looks >= active and not after.waiting

    wait_for(f"looks at {active} runs", has_looked)
    return operator, Start(takeover, after.at - before.at, usage(before, after), after.resident_bytes)


@contextmanager
def busy_cores() -> Iterator[None]:
    """Run a process per core that never pauses."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait(30)


def settled(operator: OperatorProcess) -> Reading:
    """Wait until the operator makes only the requests that all runs share. Returns its counters then."""
    reading = read(operator)

    def is_quiet() -> bool:
        nonlocal reading
        time.sleep(SETTLED_SECONDS)
        last, reading = reading, read(operator)
        return not reading.waiting and reading.requests - last.requests <= SETTLED_REQUESTS * SETTLED_SECONDS

    wait_for("a quiet operator", is_quiet)
    return reading
