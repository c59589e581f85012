"""Policy gradient loss with importance ratios.

Tokens were sampled by another program, the inference engine, and often by an older policy. Each token is therefore
weighted by the ratio of its two probabilities, and tokens with too large or too small ratios are masked. The default is
REINFORCE with masked importance weights as in prime-rl 0.4.0 (`default_loss_fn` with its default bounds on tokens,
sequence means and single tokens of a sequence), with two corrections from later versions: the sum is divided by the
trainable tokens of the whole batch, not of one worker, and the mismatch is measured over all tokens of the policy,
before masking. The estimator r - log r - 1 is Schulman's k3 (joschu.net/blog/kl-approx.html).

The ratio of a sequence is the geometric mean of its tokens' ratios, as in GSPO (arXiv 2507.18071, equation 7). The
product, which prime-rl 0.4.0 uses, is the exact weight of the sequence, but its logarithm grows with the length: at a
mismatch of only 0.001 nats per token, the logarithm is -16 +- 6 for 16,384 tokens, outside of any bounds. The logarithm
of the geometric mean is -0.001.

DPPO is `default_loss_fn` of prime-rl 0.8: a token whose probability has moved too far in the direction of its advantage
has no policy gradient (arXiv 2602.04879), and the squared log-ratio of every token is penalized (arXiv 2602.02276).
"""

from dataclasses import dataclass

import torch
from rlrun.api.run_sections.training import Dppo, Loss, RatioLimit, RatioType

LOG_RATIO_LIMIT = 20.0
"""Limit on log-ratios. It keeps ratio and mismatch finite for a token with probability 0 in trainer or engine."""


@dataclass
class PolicyLoss:
    """Loss of one micro-batch with N policy tokens. The caller divides it by the trainable tokens of the batch."""

    loss: torch.Tensor
    """Scalar, differentiable: the sum over the tokens."""
    mismatch_kl: torch.Tensor
    """[N] float64: r - log r - 1 of every token, masked or not."""
    ratio: torch.Tensor
    """[N]: importance ratio as defined by `ratio_type` (of the token with DPPO), before any configured limit."""
    kept: torch.Tensor
    """[N] bool: True for tokens with a policy gradient. The penalty of DPPO applies to all tokens."""


def policy_loss(
    logprobs: torch.Tensor,
    engine_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    sample_of: torch.Tensor,
    samples: int,
    how: Loss | None = None,
) -> PolicyLoss:
    """Return the policy-gradient loss, summed over tokens. All tensors are [N]; `sample_of` is in [0, samples).

    A is the advantage. r is a probability ratio, used as a constant: exp(log p - engine's log p) of the token
    (`token`), or the geometric mean of the ratios of all tokens in the token's sample (`sequence`). A sample is masked
    if this mean is outside the bounds for sequence means, or if the ratio of one of its tokens is outside the bounds
    for a sequence's tokens. For all other samples:

        mask   -r A log p             of tokens with low <= r <= high (the default)
        clip   -clamp(r) A log p      of all tokens: truncated importance sampling, as in CISPO (arXiv 2506.13585)
        ppo    -min(r A, clamp(r) A)  with the gradient of r (arXiv 1707.06347, equation 7); where clamp(r) A is
                                      smaller, the gradient is zero and the token counts as masked

    If `how.dppo` is set, returns the loss of DPPO instead (see `_dppo`).
    """
    how = how or Loss()
    if how.dppo is not None:
        return _dppo(logprobs, engine_logprobs, advantages, how.dppo)
    low, high = how.ratio_low, how.ratio_high
    log_ratio = (logprobs - engine_logprobs).detach()
    sums = log_ratio.new_zeros(2, samples)
    sums = sums.index_add(1, sample_of, torch.stack([log_ratio, torch.ones_like(log_ratio)]))
    mean = sums[0] / sums[1].clamp_min(1)
    mean_ratio = mean.exp()
    sample_kept = (mean_ratio >= how.sequence_mean_low) & (mean_ratio <= how.sequence_mean_high)
    token_ratio = log_ratio.exp()
    far = (token_ratio < how.sequence_token_low) | (token_ratio > how.sequence_token_high)
    sample_kept &= sums.new_zeros(samples).index_add(0, sample_of, far.to(sums.dtype)) == 0
    own = mean[sample_of] if how.ratio_type is RatioType.sequence else log_ratio
    ratio = own.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    # A token with probability 0 in the trainer has no finite gradient.
    kept = sample_kept[sample_of] & logprobs.detach().isfinite()
    within = ratio.clamp(low, high)
    if how.ratio_limit is RatioLimit.mask:
        kept = kept & (ratio >= low) & (ratio <= high)
    elif how.ratio_limit is RatioLimit.ppo:
        kept = kept & (ratio * advantages <= within * advantages)
    weight = (within if how.ratio_limit is RatioLimit.clip else ratio) * advantages
    loss = -(torch.where(kept, weight, 0.0) * torch.where(kept, logprobs, 0.0)).sum()
    if how.ratio_limit is RatioLimit.ppo:
        # The gradient is correct; set the value to that of the objective.
        counted = torch.where(sample_kept[sample_of], torch.minimum(ratio * advantages, within * advantages), 0.0)
        loss = loss - loss.detach() - counted.sum()
    return PolicyLoss(loss=loss, mismatch_kl=_mismatch(log_ratio), ratio=ratio, kept=kept)


def _dppo(logprobs: torch.Tensor, engine_logprobs: torch.Tensor, advantages: torch.Tensor, how: Dppo) -> PolicyLoss:
    """Return -r A + klTau (log r)^2, summed over tokens. The first term is 0 for tokens that moved too far."""
    # A token with probability 0 in the trainer has no finite gradient.
    finite = logprobs.detach().isfinite()
    log_ratio = (logprobs - engine_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    moved = (logprobs.exp() - engine_logprobs.exp()).detach()
    kept = finite & ~torch.where(advantages > 0, moved > how.high, moved < -how.low)
    loss = torch.where(finite, how.kl_tau * log_ratio**2, 0.0) - torch.where(kept, ratio * advantages, 0.0)
    log_ratio = log_ratio.detach()
    return PolicyLoss(loss=loss.sum(), mismatch_kl=_mismatch(log_ratio), ratio=ratio.detach(), kept=kept)


def _mismatch(log_ratio: torch.Tensor) -> torch.Tensor:
    # In float32, exp(x) - x - 1 is 0 for every |x| below 3e-4, which is too coarse for two programs that nearly agree.
    bounded = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).double()
    return bounded.expm1() - bounded
