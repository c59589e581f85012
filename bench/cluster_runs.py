"""Runs on the local cluster, applied like a user's runs and timed from their metrics in S3."""

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import fmean
from typing import Any

from rlrun.storage.layout import RunLayout
from rlrun.storage.metric_files import TRAINED, Line
from rlrun.storage.store import StoreError

from bench.machine_load import used_memory
from bench.prepare import ensure_in_s3
from bench.reward_curves import Step, Trace, arrival
from bench.tasks import Task
from demo.cluster import local_cluster
from demo.install import BUCKET, S3Access, install_chart, push_environment
from demo.kubectl import CommandFailed, Kubectl, Object, WaitedTooLong, wait_for
from demo.run_metrics import read_metrics
from demo.watch import TERMINAL, Follower, RunFailed, describe, pods

NAMESPACE = "bench"
POLL_SECONDS = 2.0
"""Seconds between two polls. Each poll starts kubectl on cores that the run needs."""
GONE_SECONDS = 120.0
FAILURES = (RunFailed, CommandFailed, WaitedTooLong, StoreError, subprocess.TimeoutExpired)
"""Errors with which `BenchmarkCluster.run` ends one run. Earlier measurements are kept."""
PARTS = ("time/step", "time/generate_completions", "time/wait_for_policy", "time/trainer", "time/update_weights")
MEANS = {"off_policy_steps_mean": "batch/off_policy_level/mean", "mismatch_kl_mean": "mismatch_kl/all/mean"}


@dataclass(frozen=True)
class Together:
    """Results of runs that were made at the same time."""

    seconds: float
    """Seconds until all runs had completed."""
    traces: Sequence[Trace]
    memory: int
    """Largest increase of the machine's used memory during the runs, in bytes."""

    @property
    def per_hour(self) -> float:
        """Number of completed runs per hour."""
        return 3600 * len(self.traces) / self.seconds

    @property
    def step_seconds(self) -> float:
        """Mean seconds of all steps of a run."""
        return fmean(trace.steps[-1].seconds for trace in self.traces)


@dataclass(frozen=True)
class BenchmarkCluster:
    """Local cluster with chart, models and environments installed."""

    kubectl: Kubectl
    s3: S3Access

    @classmethod
    def ready(cls, tasks: Sequence[Task]) -> "BenchmarkCluster":
        """Install the chart, models and environments that the tasks need. Can be repeated. Raises CalledProcessError if
        no cluster is running.
        """
        kubectl, s3 = local_cluster()
        install_chart(kubectl, s3, print)
        kubectl.ensure_namespace(NAMESPACE)
        for model in {task.model.id: task.model for task in tasks}.values():
            ensure_in_s3(model, s3)
            kubectl.apply(model.manifest())
            wait_for(f"rlmodel {model.name}", lambda name=model.name: kubectl.get("rlmodel", name), 30)  # type: ignore[misc]
        for folder in sorted({task.folder for task in tasks}):
            push_environment(kubectl, folder, print)
        return cls(kubectl, s3)

    def run(self, task: Task, name: str, seed: int, *, target: float | None, **spec: Any) -> Trace:
        """Run a task and return its trace. If `target` is set, the run is deleted when it reaches the target.

        Raises:
            RunFailed: The run failed or did not end within the task's deadline. FAILURES lists the other errors.
        """
        # A benchmark that was killed may have left a run with this name.
        self.remove(name)
        applied = time.time()
        self.kubectl.apply(task.run_object(name, NAMESPACE, seed, **spec))
        print(f"applied {name}", flush=True)
        try:
            run = self._watch(task, name, target)
            lines = self.lines(run)
            if not steps_of(lines, task.batch_size):
                raise RunFailed(f"rlrun {NAMESPACE}/{name} left no metrics:\n{describe(run)}")
            trace = trace_of(lines, applied, task.batch_size)
            groups = run.get("status", {}).get("groups", {})
            return replace(trace, seed=seed, facts=trace.facts | {"groups": groups})
        finally:
            self.remove(name)

    def run_together(self, task: Task, count: int, first_seed: int = 0) -> Together:
        """Run a task `count` times at the same time, with different seeds, until all have completed.

        Raises the same errors as `run`.
        """
        names = [f"{task.name}-{first_seed + i}" for i in range(count)]
        self.remove(*names)
        before, began = used_memory(), time.monotonic()
        applied = time.time()
        try:
            for seed, name in enumerate(names, first_seed):
                self.kubectl.apply(task.run_object(name, NAMESPACE, seed))
            print(f"applied {', '.join(names)}", flush=True)
            most, waiting = before, dict.fromkeys(names)
            done: list[Object] = []
            while waiting:
                time.sleep(POLL_SECONDS)
                most = max(most, used_memory())
                for run in self.kubectl.list("rlruns", NAMESPACE):
                    name, phase = run["metadata"]["name"], run.get("status", {}).get("phase")
                    if name in waiting and phase == "Completed":
                        print(f"{name} completed after {time.monotonic() - began:.0f} s", flush=True)
                        del waiting[name]
                        done.append(run)
                    elif name in waiting and (phase in TERMINAL or time.monotonic() - began > task.seconds):
                        raise RunFailed(f"rlrun {name} is {phase}:\n{describe(run)}\n{pods(self.kubectl, NAMESPACE)}")
            seconds = time.monotonic() - began
            traces = [trace_of(self.lines(run), applied, task.batch_size) for run in done]
            return Together(seconds, traces, most - before)
        finally:
            self.remove(*names)

    def lines(self, run: Object) -> list[Line]:
        """Return the metrics that the run has written so far."""
        return read_metrics(self.s3.store(), RunLayout.of(BUCKET, "", NAMESPACE, run["metadata"]["uid"]))

    def remove(self, *names: str) -> None:
        """Delete the runs and wait until all pods are gone, because the next measurement needs the cores."""
        self.kubectl("delete", "rlrun", *names, "-n", NAMESPACE, "--ignore-not-found", "--wait=true", timeout=180)
        try:
            wait_for("an empty namespace", lambda: not self.kubectl.list("pods", NAMESPACE), GONE_SECONDS)
        except WaitedTooLong:
            self.kubectl("delete", "pods", "--all", "-n", NAMESPACE, "--grace-period=0", "--force", timeout=180)

    def _watch(self, task: Task, name: str, target: float | None) -> Object:
        """Wait until the run has completed or reached the target, and return it."""
        follower, deadline, seen = Follower(print), time.monotonic() + task.seconds, 0
        while True:
            run = self.kubectl.get("rlrun", name, NAMESPACE)
            if run is None:
                raise RunFailed(f"rlrun {NAMESPACE}/{name} does not exist")
            follower.see(run)
            phase = run.get("status", {}).get("phase")
            step = (run.get("status", {}).get("progress") or {}).get("step", 0)
            if phase == "Completed":
                return run
            if target is not None and step > seen:
                # The status skips steps; the metrics in S3 have all of them.
                seen = step
                if arrival(steps_of(self.lines(run), task.batch_size), target) is not None:
                    return run
            if phase in TERMINAL or time.monotonic() > deadline:
                why = f"ended {phase}" if phase in TERMINAL else f"still {phase} after {task.seconds} s"
                raise RunFailed(f"rlrun {name} {why}:\n{describe(run)}\n{pods(self.kubectl, NAMESPACE)}")
            time.sleep(POLL_SECONDS)


def first_line(error: Exception) -> str:
    """Return the first line of an error message."""
    return (str(error) or type(error).__name__).splitlines()[0]


def steps_of(lines: Sequence[Line], batch_size: int) -> list[Step]:
    """Return the steps of a run. Their time counts from the start of the first step."""
    return [
        Step(
            seconds=_time(line) - first_step_began(lines),
            reward=float(line["reward/mean"]),
            rollouts=int(
                line.get("batch/effective_batch_size", batch_size) + line.get("batch/zero_advantage_rollouts", 0)
            ),
        )
        for line in lines
        if TRAINED in line
    ]


def first_step_began(lines: Sequence[Line]) -> float:
    """Return the start of the first step in seconds since the epoch. Lines are written at the end of steps."""
    first = next(line for line in lines if TRAINED in line)
    return _time(first) - float(first["time/step"])


def trace_of(lines: Sequence[Line], applied: float, batch_size: int) -> Trace:
    """Return the trace of a run, with the mean seconds of each part of a step."""

    def means(names: dict[str, str]) -> dict[str, float]:
        values = {shown: [line[name] for line in lines if name in line] for shown, name in names.items()}
        return {shown: sum(found) / len(found) for shown, found in values.items() if found}

    facts = {"mean_seconds": means({name: name for name in PARTS}), **means(MEANS)}
    return Trace(steps_of(lines, batch_size), first_step_began(lines) - applied, facts=facts)


def _time(line: Line) -> float:
    return datetime.fromisoformat(line["time"]).timestamp()
