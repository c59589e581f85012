"""From log-probs to the policy gradient.

The engine that drew the tokens and the trainer that learns from them are two programs, and the policy has moved on
since. Each token is therefore weighted by the ratio of its two probabilities, and what the ratio says is no longer
comparable is left out. As it stands by default this is REINFORCE with masked importance weights as in prime-rl 0.4
(`default_loss_fn`, with adv_tau 1 and kl_tau 0), with two corrections that its successors made: the sum is divided by
the trainable tokens of the whole batch, not of one worker, and the mismatch is measured over all of the policy's
tokens, before any is left out. The mismatch estimator r - log r - 1 is Schulman's k3 (joschu.net/blog/kl-approx.html).
"""

from dataclasses import dataclass

import torch
from rlrun.schema.algorithm import Loss, RatioLimit, RatioType

LOG_RATIO_LIMIT = 20.0
"""Keeps ratio and mismatch numbers when one side gives a token no probability at all."""


@dataclass
class PolicyLoss:
    """Sums over the N tokens of one micro-batch that the policy drew; whoever has the whole batch divides."""

    loss: torch.Tensor
    """Scalar, differentiable."""
    mismatch_kl: torch.Tensor
    """[N] float64: r - log r - 1 of every token by itself, kept or not."""
    ratio: torch.Tensor
    """[N]: the importance ratio as `ratio_type` defines it, before any limit."""
    kept: torch.Tensor
    """[N] bool: what moves the policy"""


def policy_loss(
    logprobs: torch.Tensor,
    engine_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    sample_of: torch.Tensor,
    samples: int,
    how: Loss | None = None,
) -> PolicyLoss:
    """The policy gradient's loss, summed over tokens; all tensors are [N], `sample_of` is in [0, samples).

    r is exp(log p - engine's log p) of the token (`token`), or the product of these over its sample (`sequence`), as a
    constant; A is the advantage. Samples whose geometric mean of the tokens' ratios is outside of the sequence bounds
    never count. Of the others,

        mask   -r A log p             of tokens with low <= r <= high (the default)
        clip   -clamp(r) A log p      of all tokens: truncated importance sampling, as in CISPO (arXiv 2506.13585)
        ppo    -min(r A, clamp(r) A)  with the gradient of r (arXiv 1707.06347, equation 7); where the clamped one is
                                      smaller it has none, and the token counts as left out
    """
    how = how or Loss()
    low, high = how.ratio_low, how.ratio_high
    log_ratio = (logprobs - engine_logprobs).detach()
    sums = torch.zeros(2, samples, device=logprobs.device)
    sums = sums.index_add(1, sample_of, torch.stack([log_ratio, torch.ones_like(log_ratio)]))
    mean_ratio = (sums[0] / sums[1].clamp_min(1)).exp()
    sample_kept = (mean_ratio >= how.sequence_mean_low) & (mean_ratio <= how.sequence_mean_high)
    own = sums[0][sample_of] if how.ratio_type is RatioType.sequence else log_ratio
    ratio = own.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    # No gradient leads to a token that the trainer finds impossible.
    kept = sample_kept[sample_of] & logprobs.detach().isfinite()
    within = ratio.clamp(low, high)
    if how.ratio_limit is RatioLimit.mask:
        kept = kept & (ratio >= low) & (ratio <= high)
    elif how.ratio_limit is RatioLimit.ppo:
        kept = kept & (ratio * advantages <= within * advantages)
    weight = (within if how.ratio_limit is RatioLimit.clip else ratio) * advantages
    loss = -(torch.where(kept, weight, 0.0) * torch.where(kept, logprobs, 0.0)).sum()
    if how.ratio_limit is RatioLimit.ppo:
        # The gradient is right; the value becomes that of the objective.
        counted = torch.where(sample_kept[sample_of], torch.minimum(ratio * advantages, within * advantages), 0.0)
        loss = loss - loss.detach() - counted.sum()
    # In float32, exp(x) - x - 1 is 0 for every |x| below 3e-4: too coarse to tell two programs that agree from one.
    bounded = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).double()
    return PolicyLoss(loss=loss, mismatch_kl=bounded.expm1() - bounded, ratio=ratio, kept=kept)
