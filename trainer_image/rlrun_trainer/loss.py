"""From hidden states to the policy gradient, without ever holding the vocabulary for a whole micro-batch.

The engine that drew the tokens and the trainer that learns from them are two programs, and the policy has moved on
since. Each token is therefore weighted by the ratio of its two probabilities, and what the ratio says is no longer
comparable is left out. This is REINFORCE with masked importance weights as in prime-rl 0.4 (`default_loss_fn`, with
adv_tau 1 and kl_tau 0), with two corrections that its successors made: the sum is divided by the trainable tokens of
the whole batch, not of one worker, and the mismatch is measured over all trainable tokens, before any is left out. The
mismatch estimator r - log r - 1 is Schulman's k3 (joschu.net/blog/kl-approx.html).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint

TOKEN_RATIO = (1 / 8, 8.0)
"""A token whose ratio lies outside does not count."""
SAMPLE_RATIO = (0.1, 10.0)
"""A sample whose geometric mean ratio lies outside does not count."""
LOG_RATIO_LIMIT = 20.0
"""Keeps the mismatch a number when one side gives a token no probability at all."""
CHUNK_ELEMENTS = 2**25
"""Logits (tokens * vocabulary) that are in memory at once: 128 MiB in float32."""

Head = Callable[[torch.Tensor], torch.Tensor]
"""[N, hidden] -> logits [N, vocabulary]"""


def token_logprobs(
    hidden: torch.Tensor, targets: torch.Tensor, head: Head, temperature: float, chunk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """log p(target) and entropy of the sampling distribution softmax(logits / temperature), both [N] float32.

    hidden: [N, H]; targets: [N]. Gradients flow through the first result only. With more than `chunk` tokens the logits
    are made chunk by chunk and a second time in the backward pass.
    """

    def piece(h: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logp = torch.log_softmax(head(h).float() / temperature, dim=-1)
        with torch.no_grad():
            entropy = -(logp.exp() * logp).nan_to_num(nan=0.0).sum(-1)
        return logp.gather(-1, t[:, None]).squeeze(-1), entropy

    if len(targets) <= chunk:
        return piece(hidden, targets)
    pieces = [
        checkpoint(piece, h, t, use_reentrant=False, preserve_rng_state=False)
        for h, t in zip(hidden.split(chunk), targets.split(chunk), strict=True)
    ]
    return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])


@dataclass
class PolicyLoss:
    """Sums over the N trainable tokens of one micro-batch; whoever has the whole batch divides."""

    loss: torch.Tensor
    """Scalar, differentiable."""
    mismatch_kl: torch.Tensor
    """[N] float64: r - log r - 1 of every trainable token, kept or not."""
    kept: torch.Tensor
    """[N] bool"""


def policy_loss(
    logprobs: torch.Tensor,
    engine_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    sample_of: torch.Tensor,
    samples: int,
) -> PolicyLoss:
    """-sum over kept tokens of stopgrad(r) * A * log p, with r = exp(log p - engine's log p).

    All tensors are [N]; `sample_of` is in [0, samples). Kept are tokens with r inside TOKEN_RATIO, in samples whose
    geometric mean of r is inside SAMPLE_RATIO.
    """
    log_ratio = (logprobs - engine_logprobs).detach()
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    sums = torch.zeros(2, samples, device=logprobs.device)
    sums = sums.index_add(1, sample_of, torch.stack([log_ratio, torch.ones_like(log_ratio)]))
    mean_ratio = (sums[0] / sums[1].clamp_min(1)).exp()
    sample_kept = (mean_ratio >= SAMPLE_RATIO[0]) & (mean_ratio <= SAMPLE_RATIO[1])
    kept = (ratio >= TOKEN_RATIO[0]) & (ratio <= TOKEN_RATIO[1]) & sample_kept[sample_of]
    weight = torch.where(kept, ratio * advantages, 0.0)
    # In float32, exp(x) - x - 1 is 0 for every |x| below 3e-4: too coarse to tell two programs that agree from one.
    bounded = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).double()
    loss = -(weight * torch.where(kept, logprobs, 0.0)).sum()
    return PolicyLoss(loss=loss, mismatch_kl=bounded.expm1() - bounded, kept=kept)
