"""Learning rate schedule: linear warmup, then a constant rate or a decay as in prime-rl
(`prime_rl.trainer.scheduler`).
"""

import math

from rlrun.api.run_sections.training import Schedule
from rlrun.protocol.trainer import SessionSpec


def learning_rate(spec: SessionSpec, step: int, updates: int) -> float:
    """Return the learning rate for the step that follows `step` steps of the run.

    `updates` counts earlier updates including those before a warm start, so that a warm start repeats no warmup.
    """
    peak, low, warmup = spec.learning_rate, spec.min_learning_rate, spec.warmup_steps
    if spec.schedule is Schedule.constant:
        return peak * min(1.0, (updates + 1) / (warmup + 1))
    if updates < warmup:
        return low + (peak - low) * updates / warmup
    if spec.schedule is Schedule.linear:
        decay = spec.max_steps - warmup if spec.decay_steps is None else spec.decay_steps
        # The last step has the lowest rate.
        progress = (step - spec.max_steps + decay) / max(1, decay - 1)
    else:
        progress = (1 - math.cos(math.pi * max(0, step - warmup) / max(1, spec.max_steps - warmup))) / 2
    return peak + (low - peak) * min(1.0, max(0.0, progress))
