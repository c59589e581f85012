"""Runs of TRL's GRPOTrainer, timed from the events of its process."""

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

from bench import trl_venv
from bench.prepare import folder_of
from bench.report import BUILD
from bench.reward_curves import Step, Trace
from bench.tasks import Task

WORKER = Path(__file__).parent / "trl_worker.py"
CORES = 2
"""Cores of both sides: the default of torch on a machine with two cores."""
LAST_LINES = 2000
CALIBRATION_STEPS = 4
CALIBRATION_SECONDS = 75

Say = Callable[[str], None]
Event = dict[str, Any]


class TrlFailed(RuntimeError):
    """Failure of the process of TRL, or a run without a step. The message has its last lines."""


@dataclass(frozen=True)
class Options:
    """Options of TRL without a counterpart on the other side. The benchmark uses the fastest ones."""

    threads: int = CORES
    continuous: bool = False
    """True for the continuous batching of transformers, False for static batches (the default)."""

    def __str__(self) -> str:
        threads = f"{self.threads} torch thread{'s' if self.threads > 1 else ''}"
        return f"{'continuous batching' if self.continuous else 'static batches'}, {threads}"


def fastest(task: Task, say: Say = print) -> tuple[Options, dict[str, float]]:
    """Return the fastest options for a task, and the seconds per step of all options tried.

    With small matrices, two threads that wait for each other are slower than one, and continuous batching has its own
    cost. Options with which TRL fails, or makes too few steps in CALIBRATION_SECONDS, are excluded.
    """
    short = replace(task, max_steps=CALIBRATION_STEPS, seconds=CALIBRATION_SECONDS, waits=False)
    seconds: dict[Options, float] = {}

    def attempt(options: Options) -> None:
        try:
            steps = run(short, 0, options, target=math.inf, say=say).steps
            seconds[options] = (steps[-1].seconds - steps[0].seconds) / (len(steps) - 1)
        except (TrlFailed, ZeroDivisionError) as error:
            say(f"TRL with {options}: {error}")

    def best() -> Options:
        return min(seconds, key=lambda options: seconds[options], default=Options())

    for threads in range(1, CORES + 1):
        attempt(Options(threads))
    attempt(replace(best(), continuous=True))
    found = {str(options): value for options, value in seconds.items()}
    say(f"TRL, {task.name}: seconds a step {found}; using {best()}")
    return best(), found


def run(
    task: Task, seed: int, options: Options | None = None, *, target: float | None = None, say: Say = print
) -> Trace:
    """Train with TRL until the target (by default that of the task), max_steps or the deadline of the task.

    Raises TrlFailed.
    """
    options = options or Options()
    threads = options.threads
    folder = BUILD / "work" / f"trl-{task.name}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    settings, trace, log = folder / "settings.json", folder / "trace.jsonl", folder / "log.txt"
    values = task.trl_settings(folder_of(task.model, say), seed, threads)
    values |= {"target": task.target if target is None else target, "continuous_batching": options.continuous}
    settings.write_text(json.dumps(values, indent=1) + "\n")
    trace.unlink(missing_ok=True)
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    environment.pop("PYTHONPATH", None)
    say(f"TRL: {task.name}, seed {seed}, {options}")
    started = time.time()
    with log.open("w") as output:
        process = subprocess.Popen(
            # -P: the folder of the worker contains another trl.py.
            [str(trl_venv.python()), "-P", str(WORKER), str(settings), str(trace)],
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
    # A run that the deadline ended has steps; a failed run has an error.
    if code or not any(event["event"] == "step" for event in events):
        why = f"ended with code {code}" if code is not None else f"made no step within {task.seconds} s"
        raise TrlFailed(f"TRL {why} ({log}):\n{log.read_text()[-LAST_LINES:]}")
    found = trace_of(events, started)
    found = replace(found, facts=found.facts | {"options": str(options)})
    say(f"TRL: {len(found.steps)} steps in {found.steps[-1].seconds:.1f} s, reward {found.steps[-1].reward:.3f}")
    return found


def trace_of(events: Sequence[Event], started: float) -> Trace:
    """Return the trace of a run from the events of the worker. `started` is the start of the process."""
    began = next(event["at"] for event in events if event["event"] == "began")
    facts = next(({"versions": e["versions"], "threads": e["threads"]} for e in events if e["event"] == "loaded"), {})
    steps = [
        Step(seconds=event["ended"] - began, reward=event["reward"], rollouts=event["rollouts"])
        for event in events
        if event["event"] == "step"
    ]
    return Trace(steps, began - started, facts)
