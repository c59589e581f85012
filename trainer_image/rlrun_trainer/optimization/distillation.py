"""On-policy distillation: the policy gradient that minimizes KL(policy, teacher) on the policy's own tokens.

Let p and t be the probabilities of a token under policy and teacher in their unmodified distributions (temperature 1,
no truncation), s the policy's probability in the run's sampling distribution, and m the probability with which the
engine sampled the token:

    weight     min(p/s, WEIGHT_LIMIT), times the ratio s/m of the policy loss
    advantage  log t - log p under the policy that is trained now, a constant within +-LIMIT
    gradient   weight * advantage * d log p

The mean of this gradient over tokens sampled with probability m is the gradient of -KL(p, t), per token in the sampled
contexts: the estimator of prime-rl (`ref_kl_loss_fn`) and of Agarwal et al. 2023 (arXiv 2306.13649) with reverse KL and
student sampling. Policy and teacher use their unmodified distributions, because engines report no others: vLLM computes
`prompt_logprobs` from the logits alone, and a temperature or a nucleus cannot be applied to the probability of a single
token. A policy that equals the teacher has advantage 0 at every temperature. Tokens outside of a nucleus are never
sampled and have no gradient.
"""

import torch

LIMIT = 5.0
"""Limit on the advantage in nats. Beyond a factor of 150 between the two probabilities, the size of the advantage
carries no information, and one token that the teacher considers impossible would outweigh all other tokens of a batch.
"""
WEIGHT_LIMIT = 8.0
"""Limit on the weight between the two distributions, equal to the default of `loss.ratioHigh`."""


def distillation_targets(
    logprobs: torch.Tensor, plain: torch.Tensor, teacher: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities, and the advantages times their weights, for `policy_loss`: [N] each.

    `logprobs` are the policy's log-probabilities in the sampling distribution, `plain` are its log-probabilities in the
    unmodified distribution, and `teacher` are the teacher's log-probabilities. The returned log-probabilities have the
    values of `logprobs`, so that ratios refer to the sampling distribution, and the gradient of `plain`. A token with
    probability 0 in the trainer has no finite gradient and gets the advantage 0.
    """
    p, s = plain.detach(), logprobs.detach()
    finite = p.isfinite() & s.isfinite()
    weight = (p - s).exp().clamp(max=WEIGHT_LIMIT)
    advantages = torch.where(finite, weight * (teacher - p).clamp(-LIMIT, LIMIT), 0.0)
    moving = torch.where(finite, plain, 0.0) - torch.where(finite, p, 0.0)
    return s + moving, advantages.nan_to_num(nan=0.0)
