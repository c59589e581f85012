"""Events of steps, from the lines that a run writes. Pure. A tenant's process writes the lines."""

from itertools import islice

from rlrun.api.base.received import InputInvalid, parse
from rlrun.storage.metric_files import TRAINED
from rlrun.storage.samples.summary import StepSamples

from rlrun_server.rest.metrics.metric_columns import MAX_STEP, OTHERS, numeric_lines
from rlrun_server.rest.streams.stream_models import StepMetrics, StepSummary

MAX_VALUES = 500
"""Numbers of one event."""


def metric_event(line: bytes) -> bytes | None:
    """Return the data of the event for a line of metrics. None: it is none."""
    for found in numeric_lines(line):
        values = ((name, value) for name, value in found.items() if name not in OTHERS)
        event = StepMetrics(
            step=found["step"],
            time=found["time"],
            values=dict(islice(values, MAX_VALUES)),
            is_trained=TRAINED in found,
            is_complete=len(found) - len(OTHERS) <= MAX_VALUES,
        )
        return event.model_dump_json(by_alias=True).encode()
    return None


def metric_step(line: bytes) -> int | None:
    """Return the step of a line of metrics."""
    return next((int(found["step"]) for found in numeric_lines(line)), None)


def step_event(line: bytes) -> bytes | None:
    """Return the data of the event for a line about stored samples. None: it is none."""
    summary = _samples(line)
    if summary is None:
        return None
    event = StepSummary(
        step=summary.step,
        split=summary.split,
        environment=summary.environment,
        counts=summary.counts,
        reward=None if summary.reward is None else summary.reward.mean,
    )
    return event.model_dump_json(by_alias=True, exclude_none=True).encode()


def sample_step(line: bytes) -> int | None:
    """Return the step of a line about stored samples."""
    summary = _samples(line)
    return None if summary is None else summary.step


def _samples(line: bytes) -> StepSamples | None:
    try:
        summary = parse(StepSamples, line)
    except InputInvalid:
        return None
    is_usable = 0 <= summary.step <= MAX_STEP and len(summary.environment or "") <= 256
    return summary if is_usable else None
