"""KL penalty against the initial model, and the controller of its weight.

The divergence is estimated on the policy's own tokens with Schulman's k3 (joschu.net/blog/kl-approx.html), which is
never negative and has low variance. The controller is that of Ziegler et al. 2019 (arXiv 1909.08593, section 2.2).
"""

import torch
from rlrun.api.run_sections.training import KlPenalty

LOG_RATIO_LIMIT = 20.0
"""Limit that keeps the estimate finite, without gradient, for a token with probability 0 under one model."""
ERROR_LIMIT = 0.2
"""Largest relative error, in both directions, that the controller reacts to."""
GAIN = 0.1
"""Share of the error by which beta changes in a step."""


def divergence(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return k3 of every token, q/p - log(q/p) - 1 with policy p and reference q: [N], in nats."""
    log_ratio = (reference.detach() - logprobs).nan_to_num(nan=0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return log_ratio.expm1() - log_ratio


def first_beta(penalty: KlPenalty, kept: float | None) -> float:
    """Return the weight for a step: the one kept by the controller, if it is enabled."""
    return penalty.beta if penalty.target_kl is None or kept is None else kept


def next_beta(penalty: KlPenalty, beta: float, kl: float) -> float:
    """Return the weight after a step with `kl` nats per token. Unchanged without a target."""
    if penalty.target_kl is None:
        return beta
    error = kl / penalty.target_kl - 1
    return beta * (1 + GAIN * max(-ERROR_LIMIT, min(ERROR_LIMIT, error)))
