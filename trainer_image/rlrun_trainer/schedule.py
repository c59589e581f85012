"""The learning rate: linear warm-up, then constant. A pure function of the updates already made."""


def learning_rate(peak: float, warmup_steps: int, updates: int) -> float:
    """The rate of the next update, after `updates` earlier ones (those before a warm start included)."""
    return peak * min(1.0, (updates + 1) / (warmup_steps + 1)) if warmup_steps > 0 else peak
