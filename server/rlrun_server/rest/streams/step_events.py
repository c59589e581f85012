"""Events of steps, made of the lines that a run writes. Pure: the lines are a tenant's."""

from itertools import islice

from pydantic import ValidationError
from rlrun.storage.metric_files import TRAINED
from rlrun.storage.samples.summary import StepSamples

from rlrun_server.rest.metrics.metric_columns import MAX_LINE, MAX_STEP, OTHERS, numeric_lines
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
    found = _samples(line)
    if found is None:
        return None
    event = StepSummary(
        step=found.step,
        split=found.split,
        environment=found.environment,
        counts=found.counts,
        reward=None if found.reward is None else found.reward.mean,
    )
    return event.model_dump_json(by_alias=True, exclude_none=True).encode()


def sample_step(line: bytes) -> int | None:
    """Return the step of a line about stored samples."""
    found = _samples(line)
    return None if found is None else found.step


def _samples(line: bytes) -> StepSamples | None:
    if len(line) > MAX_LINE:
        return None
    try:
        found = StepSamples.model_validate_json(line)
    except ValidationError:
        return None
    is_usable = 0 <= found.step <= MAX_STEP and len(found.environment or "") <= 256
    return found if is_usable else None
