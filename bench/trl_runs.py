"""A run of TRL's GRPOTrainer, timed from the events that its process writes."""

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
"""What both sides get: torch's own default on a machine of two cores."""
LAST_LINES = 2000
CALIBRATION_STEPS = 4
CALIBRATION_SECONDS = 75

Say = Callable[[str], None]
Event = dict[str, Any]


class TrlFailed(RuntimeError):
    """TRL's process ended with an error, or without a step; the message carries its last lines."""


@dataclass(frozen=True)
class Options:
    """What TRL leaves to its user and has no counterpart on the other side: it gets whatever is fastest."""

    threads: int = CORES
    continuous: bool = False
    """Whether it generates with the continuous batching of transformers, or in static batches (its default)."""

    def __str__(self) -> str:
        threads = f"{self.threads} torch thread{'s' if self.threads > 1 else ''}"
        return f"{'continuous batching' if self.continuous else 'static batches'}, {threads}"


def fastest(task: Task, say: Say = print) -> tuple[Options, dict[str, float]]:
    """The options with which TRL makes this task's steps fastest, and the seconds a step of all that were tried.

    Two threads that wait for one another are slower than one where matrices are small, and continuous batching has a
    price of its own. Options with which TRL fails, or makes too few steps in CALIBRATION_SECONDS, are out.
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
    say(f"TRL, {task.name}: seconds a step {found}; {best()} it is")
    return best(), found


def run(
    task: Task, seed: int, options: Options | None = None, *, target: float | None = None, say: Say = print
) -> Trace:
    """Trains until the target (the task's, unless another is given), max_steps or the task's deadline, with TRL.

    Raises TrlFailed.
    """
    options = options or Options()
    threads = options.threads
    room = BUILD / "work" / f"trl-{task.name}-{seed}"
    room.mkdir(parents=True, exist_ok=True)
    settings, trace, log = room / "settings.json", room / "trace.jsonl", room / "log.txt"
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
            # -P: the worker's own folder has a trl.py as well.
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
    # A run that was cut off by the deadline has steps to show; one that failed has an error.
    if code or not any(event["event"] == "step" for event in events):
        why = f"ended with code {code}" if code is not None else f"made no step within {task.seconds} s"
        raise TrlFailed(f"TRL {why} ({log}):\n{log.read_text()[-LAST_LINES:]}")
    found = trace_of(events, started)
    found = replace(found, facts=found.facts | {"options": str(options)})
    say(f"TRL: {len(found.steps)} steps in {found.steps[-1].seconds:.1f} s, reward {found.steps[-1].reward:.3f}")
    return found


def trace_of(events: Sequence[Event], started: float) -> Trace:
    """The run's trace from the worker's events; `started` is when the process was. Pure."""
    began = next(event["at"] for event in events if event["event"] == "began")
    facts = next(({"versions": e["versions"], "threads": e["threads"]} for e in events if e["event"] == "loaded"), {})
    steps = [
        Step(seconds=event["ended"] - began, reward=event["reward"], rollouts=event["rollouts"])
        for event in events
        if event["event"] == "step"
    ]
    return Trace(steps, began - started, facts)
