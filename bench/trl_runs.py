"""Runs of TRL's GRPOTrainer, timed by the events of its process."""

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.machine_load import settled_load
from bench.prepare import folder_of, trl_python
from bench.report import BUILD
from bench.reward_curves import Step, Trace
from bench.tasks import Task

WORKER = Path(__file__).parent / "trl_worker.py"
LAST_CHARACTERS = 2000
CALIBRATION_STEPS = 4
CALIBRATION_SECONDS = 420
"""Deadline of each calibration with start-up. Options that do not complete two steps within it count as slower."""

Event = dict[str, Any]


class TrlFailed(RuntimeError):
    """Failure of TRL's process, or a run without a step. The message ends with the last lines of the process's log."""


@dataclass(frozen=True)
class TrlOptions:
    """Options that only TRL has. The benchmark uses the fastest combination."""

    threads: int = 2
    continuous: bool = False
    """True for the continuous batching of transformers, False for static batches (the default)."""

    def __str__(self) -> str:
        threads = f"{self.threads} torch thread{'s' if self.threads > 1 else ''}"
        return f"{'continuous batching' if self.continuous else 'static batches'}, {threads}"


@dataclass(frozen=True)
class Calibration:
    """Fastest options of TRL, with all that were tried."""

    best: TrlOptions
    seconds: dict[str, float | None]
    """Seconds per step, excluding the first step, by options. None for options that did not complete two steps."""
    cores_busy: Sequence[float] = ()
    """Number of busy cores before each calibration."""


def fastest(task: Task, load: Callable[[], float] = settled_load) -> Calibration:
    """Return the fastest options for a task.

    With small matrices, two threads that wait for each other are slower than one, and continuous batching has its own
    cost. Raises TrlFailed if TRL fails with any of the options, because using the others would favor us, or if it does
    not complete two steps with any of them.
    """
    short = replace(task, max_steps=CALIBRATION_STEPS, seconds=CALIBRATION_SECONDS, waits=False)
    paces: dict[TrlOptions, float] = {}
    busy: list[float] = []

    def attempt(options: TrlOptions) -> None:
        busy.append(load())
        steps = run(short, 0, options, target=math.inf).steps
        # The first step includes one-time work.
        enough = len(steps) > 1
        paces[options] = (steps[-1].seconds - steps[0].seconds) / (len(steps) - 1) if enough else math.inf

    def best() -> TrlOptions:
        return min(paces, key=lambda options: paces[options])

    for threads in (1, 2):
        attempt(TrlOptions(threads))
    attempt(replace(best(), continuous=True))
    if math.isinf(paces[best()]):
        raise TrlFailed(f"no options of TRL completed two steps of {task.name} within {CALIBRATION_SECONDS} s")
    seconds = {str(options): None if math.isinf(pace) else pace for options, pace in paces.items()}
    print(f"TRL, {task.name}: seconds a step {seconds}; using {best()}", flush=True)
    return Calibration(best(), seconds, busy)


def run(task: Task, seed: int, options: TrlOptions, *, target: float | None = None) -> Trace:
    """Train with TRL until the target (by default the task's), max_steps or the task's deadline.

    The trace of a run that the deadline ended may have no steps. Raises TrlFailed.
    """
    folder = BUILD / "work" / f"trl-{task.name}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    settings, trace, log = folder / "settings.json", folder / "trace.jsonl", folder / "log.txt"
    values = task.trl_settings(folder_of(task.model), seed, options.threads)
    values |= {"target": task.target if target is None else target, "continuous_batching": options.continuous}
    settings.write_text(json.dumps(values, indent=1) + "\n")
    trace.unlink(missing_ok=True)
    variables = {"OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    print(f"TRL: {task.name}, seed {seed}, {options}", flush=True)
    started = time.time()
    with log.open("w") as output:
        process = subprocess.Popen(
            # -P: the folder of the worker contains another trl.py.
            [str(trl_python()), "-P", str(WORKER), str(settings), str(trace)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(task.seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    events = [json.loads(line) for line in trace.read_text().splitlines()] if trace.exists() else []
    began = any(event["event"] == "began" for event in events)
    if code or not began:
        why = f"exited with code {code}" if code is not None else f"did not begin a step within {task.seconds} s"
        raise TrlFailed(f"TRL {why} ({log}):\n{log.read_text()[-LAST_CHARACTERS:]}")
    found = trace_of(events, started)
    print(f"TRL: {len(found.steps)} steps in {found.steps[-1].seconds if found.steps else 0:.1f} s", flush=True)
    return replace(found, seed=seed, facts=found.facts | {"options": str(options), "timed_out": code is None})


def trace_of(events: Sequence[Event], started: float) -> Trace:
    """Return the trace of a run from the events of the worker. `started` is the start of the process."""
    began = next(event["at"] for event in events if event["event"] == "began")
    facts = next(({"versions": e["versions"], "threads": e["threads"]} for e in events if e["event"] == "loaded"), {})
    steps = [
        Step(seconds=event["ended"] - began, reward=event["reward"], rollouts=event["rollouts"])
        for event in events
        if event["event"] == "step"
    ]
    return Trace(steps, began - started, facts=facts)
