"""KL penalty against the model from which reinforcement learning starts, and the controller of its weight.

With policy p, reference q and a token x that the engine sampled with probability m(x):

    w = min(p/m, WEIGHT_LIMIT)      importance weight, a constant
    value     w (q/p - log(q/p) - 1)        Schulman's k3 (joschu.net/blog/kl-approx.html): its mean is KL(p, q)
    gradient  w log(p/q) d log p            its mean is the gradient of KL(p, q)

k3 used as a loss has a different gradient: its mean is the gradient of KL(q, p), the other direction, because the
expectation depends on p as well (Tang and Munos 2025, arXiv 2506.09477). The gradient above equals the gradients of k1
in the reward, of the loss w (log(p/q))^2 / 2, and of k3 times a ratio that is also differentiated (DeepSeek-V3.2, arXiv
2512.02556). Like them, it is per token in the sampled contexts: the effect of a token on the divergence of later tokens
is ignored. The controller follows Ziegler et al. 2019 (arXiv 1909.08593, section 2.2).
"""

import torch
from rlrun.api.run_sections.training import KlPenalty

LOG_RATIO_LIMIT = 20.0
"""Limit on the log-ratio. It keeps value and gradient finite for a token with probability 0 under one of the models."""
WEIGHT_LIMIT = 8.0
"""Limit on the importance weight, equal to the default of `loss.ratioHigh`. Larger weights would only add variance."""
ERROR_LIMIT = 0.2
"""Limit on the relative error, in both directions. The controller reacts to a larger error as to this one."""
GAIN = 0.1
"""Fraction of the error by which beta changes in a step."""


def divergence(logprobs: torch.Tensor, reference: torch.Tensor, engine_logprobs: torch.Tensor) -> torch.Tensor:
    """Return an estimate of KL(policy, reference) in nats for every token. The gradient of the result estimates the
    gradient of the divergence. All tensors are [N].
    """
    p = logprobs.detach()
    log_ratio = (p - reference.detach()).nan_to_num(nan=0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    weight = (p - engine_logprobs).exp().clamp(max=WEIGHT_LIMIT)
    value = (-log_ratio).expm1() + log_ratio
    # The value is zero, with the gradient of log p. A token with probability 0 in the trainer has no finite gradient.
    finite = p.isfinite()
    moving = torch.where(finite, logprobs, 0.0) - torch.where(finite, p, 0.0)
    return weight * (value + log_ratio * moving)


def first_beta(penalty: KlPenalty, kept: float | None) -> float:
    """Return the KL penalty's weight for a step: `kept`, the controller's current weight, or the configured weight if
    the controller is disabled or has not set a weight yet.
    """
    return penalty.beta if penalty.target_kl is None or kept is None else kept


def next_beta(penalty: KlPenalty, beta: float, kl: float) -> float:
    """Return the KL penalty's weight after a step with a divergence of `kl` nats per token. If no target is configured,
    the weight is unchanged.
    """
    if penalty.target_kl is None:
        return beta
    error = kl / penalty.target_kl - 1
    return beta * (1 + GAIN * max(-ERROR_LIMIT, min(ERROR_LIMIT, error)))
