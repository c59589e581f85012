"""A price on moving away from the model that training starts from, and how the price follows a target.

The divergence is estimated on the policy's own tokens with Schulman's k3 (joschu.net/blog/kl-approx.html): never
negative, and with little variance. The controller is that of Ziegler et al. 2019 (arXiv 1909.08593, section 2.2).
"""

import torch
from rlrun.schema.algorithm import KlPenalty

LOG_RATIO_LIMIT = 20.0
"""Keeps the estimate a number, and without gradient, where one model gives a token no probability at all."""
ERROR_LIMIT = 0.2
"""Largest relative error that the controller sees, either way."""
GAIN = 0.1
"""Share of the error by which beta changes in a step."""


def divergence(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """k3 of every token, q/p - log(q/p) - 1 with p the policy's and q the reference's probability: [N], in nats."""
    log_ratio = (reference.detach() - logprobs).nan_to_num(nan=0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return log_ratio.expm1() - log_ratio


def first_beta(penalty: KlPenalty, kept: float | None) -> float:
    """The weight of a step: the one that the controller left behind, if there is a controller."""
    return penalty.beta if penalty.target_kl is None or kept is None else kept


def next_beta(penalty: KlPenalty, beta: float, kl: float) -> float:
    """The weight after a step that saw `kl` nats per token; the same without a target."""
    if penalty.target_kl is None:
        return beta
    error = kl / penalty.target_kl - 1
    return beta * (1 + GAIN * max(-ERROR_LIMIT, min(ERROR_LIMIT, error)))
