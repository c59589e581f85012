"""Objective of a step, and one micro-batch's contribution to its gradient and metrics.

The loss of a batch is the policy gradient loss, plus beta times the divergence from the reference, plus the
cross-entropy of supervised samples. Each term is summed over its tokens and divided by the number of trainable tokens
of the batch.
"""

from dataclasses import dataclass

import torch
from rlrun.api.run_sections.training import Loss

from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.optimization.distillation import distillation_targets
from rlrun_trainer.optimization.kl_penalty import divergence
from rlrun_trainer.optimization.packing import MicroBatch
from rlrun_trainer.optimization.policy_loss import policy_loss
from rlrun_trainer.optimization.sampling_distribution import PLAIN, SamplingDistribution, token_logprobs

OLDEST_AGE = 8
"""Age in steps from which tokens are counted together, in one sum."""
AGE_TOKENS = tuple(f"tokens_of_age_{age}" for age in range(OLDEST_AGE + 1))
AGE_MISMATCHES = tuple(f"mismatch_of_age_{age}" for age in range(OLDEST_AGE + 1))
SUMS = (
    "policy_loss", "cross_entropy", "entropy", "mismatch", "ratio", "masked", "kl", "taught", "teacher_kl",
    *AGE_TOKENS, *AGE_MISMATCHES,
)  # fmt: skip
"""Metrics that are sums over the tokens of a micro-batch. `taught` counts tokens with a teacher. A token's age is the
number of steps made since the policy that sampled it; the mismatch at age 0 shows how much trainer and engine differ.
"""
MAXIMA = ("mismatch", "ratio")
CHUNK_ELEMENTS = {"cpu": 2**22, "cuda": 2**25}
"""Maximum number of logits (tokens * vocabulary) computed at a time, by type of device. At least FEWEST_CHUNK_TOKENS
tokens are computed at a time, even if they have more logits.
"""
FEWEST_CHUNK_TOKENS = {"cpu": 256, "cuda": 2048}
"""Minimum number of tokens whose logits are computed at a time. An H200 (989 TFLOP/s, 4.8 TB/s) reads the head's
weights in the time in which it multiplies 206 tokens by them.
"""
SORTED_SHARE = 4
"""Divisor of a GPU's chunk size, including the minimum, if the distribution has a nucleus, because sorting the logits
takes about four times the memory.
"""


@dataclass(frozen=True)
class Objective:
    """Parameters shared by all micro-batches of a step."""

    loss: Loss
    beta: float | None
    """Weight of the divergence. If it is None, the reference's forward pass is skipped."""
    version: int
    """Version of the policy before the step."""
    trainable: float
    """Number of trainable tokens in the whole batch."""


def backward(
    base: BaseModel, slot: AdapterSlot, batch: MicroBatch, objective: Objective
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the micro-batch's gradient to the gradients of the slot's parameters, and return the SUMS and MAXIMA of the
    micro-batch, two float64 tensors on the model's device.
    """
    batch = batch.to(base.device)
    reference = None
    # Sharded weights need all processes in every pass, even those without policy tokens.
    if objective.beta is not None and (batch.policy_tokens or base.world.size > 1):
        with base.reference(slot):
            hidden = _hidden_states(base, batch)
            with base.guard.attempt():
                reference, _ = _policy_logprobs(base, hidden, batch)
    hidden = _hidden_states(base, batch)
    # Compute in two halves: the first has no collective operations, so a failure there does not block other processes.
    leaf = hidden.detach().requires_grad_()
    figures = tuple(torch.zeros(len(n), dtype=torch.float64, device=base.device) for n in (SUMS, MAXIMA))
    with base.guard.attempt():
        figures = _backward_to(base, leaf, batch, objective, reference)
    # Without an adapter below the head, as with targetModules: [lm_head], the hidden states need no gradient.
    if hidden.requires_grad:
        hidden.backward(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
    return figures[0], figures[1]


def _backward_to(
    base: BaseModel, hidden: torch.Tensor, batch: MicroBatch, objective: Objective, reference: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Backpropagate to the hidden states that predict tokens [N, H]. Returns SUMS and MAXIMA."""
    n = batch.policy_tokens
    sums = dict.fromkeys(SUMS, torch.zeros((), dtype=torch.float64, device=base.device))
    maxima = dict.fromkeys(MAXIMA, sums["kl"])
    loss = torch.zeros((), device=base.device)
    if n:
        logprobs, entropy = _policy_logprobs(base, hidden, batch)
        scored, advantages = logprobs, batch.advantages[:n]
        if batch.teacher_logprobs is not None:
            scored, advantages, taught = _score_taught_tokens(base, hidden, batch, logprobs)
            sums |= {"taught": taught.sum(), "teacher_kl": -advantages[taught].sum()}
        result = policy_loss(
            scored,
            batch.engine_logprobs[:n],
            advantages,
            batch.sample_of[:n],
            batch.samples,
            objective.loss,
        )
        kl = result.mismatch_kl
        loss = loss + result.loss
        sums |= {
            "policy_loss": result.loss,
            "entropy": entropy.sum(),
            "mismatch": kl.sum(),
            "ratio": result.ratio.sum(),
            "masked": (~result.kept).sum(),
        }
        sums |= _sums_by_age(kl, objective.version - batch.versions[:n])
        maxima = {"mismatch": kl.max(), "ratio": result.ratio.max()}
        if objective.beta is not None:
            assert reference is not None
            sums["kl"] = divergence(logprobs, reference, batch.engine_logprobs[:n]).sum()
            loss = loss + objective.beta * sums["kl"]
    if n < len(batch.targets):
        logprobs, entropy = token_logprobs(hidden[n:], batch.targets[n:], base.head, PLAIN, chunk_tokens(base, PLAIN))
        sums["cross_entropy"] = -logprobs.sum()
        sums["entropy"] = sums["entropy"] + entropy.sum()
        loss = loss + sums["cross_entropy"]
    (loss / objective.trainable).backward()
    return _stack([sums[name] for name in SUMS]), _stack([maxima[name] for name in MAXIMA])


def _sums_by_age(kl: torch.Tensor, ages: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the sums of `AGE_TOKENS` and `AGE_MISMATCHES` for tokens with these mismatches and ages: [N] each."""
    columns = torch.arange(OLDEST_AGE + 1, device=ages.device)
    has_age = ages.clamp(max=OLDEST_AGE)[:, None] == columns
    mismatches = torch.where(has_age, kl[:, None], torch.zeros_like(kl)[:, None])
    return dict(
        zip((*AGE_TOKENS, *AGE_MISMATCHES), (*has_age.sum(0).unbind(), *mismatches.sum(0).unbind()), strict=True)
    )


def _score_taught_tokens(
    base: BaseModel, hidden: torch.Tensor, batch: MicroBatch, logprobs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probabilities and advantages of the policy's tokens, and a mask of the tokens with a teacher: [N]
    each.
    """
    n = batch.policy_tokens
    assert batch.teacher_logprobs is not None
    teacher = batch.teacher_logprobs[:n]
    taught = ~teacher.isnan()
    plain = logprobs
    if batch.distribution.sampling.temperature != 1 or batch.distribution.needs_token_history:
        plain, _ = token_logprobs(hidden[:n], batch.targets[:n], base.head, PLAIN, chunk_tokens(base, PLAIN))
    scored, advantages = distillation_targets(logprobs, plain, teacher)
    return torch.where(taught, scored, logprobs), torch.where(taught, advantages, batch.advantages[:n]), taught


def _hidden_states(base: BaseModel, batch: MicroBatch) -> torch.Tensor:
    return base.hidden_states(batch.input_ids, batch.position_ids).flatten(0, 1)[batch.predicting]


def _policy_logprobs(base: BaseModel, hidden: torch.Tensor, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    n = batch.policy_tokens
    history = batch.history.rows(0, n) if batch.history is not None else None
    chunk = chunk_tokens(base, batch.distribution)
    return token_logprobs(hidden[:n], batch.targets[:n], base.head, batch.distribution, chunk, history)


def chunk_tokens(base: BaseModel, distribution: SamplingDistribution) -> int:
    """Return the number of tokens whose logits are computed at a time."""
    # A CPU is fastest with logits that fit into its cache.
    device = base.device.type
    tokens = max(FEWEST_CHUNK_TOKENS[device], CHUNK_ELEMENTS[device] // base.vocab_size)
    return tokens // SORTED_SHARE if device == "cuda" and distribution.nucleus is not None else tokens


def _stack(figures: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([figure.detach().double() for figure in figures])
