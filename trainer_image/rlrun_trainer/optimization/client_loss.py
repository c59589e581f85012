"""Losses for client programs: the formulas in Tinker's public documentation, as sums over tokens and datums.

p is the policy's probability of the target token, q = exp(`logprobs`) the sampler's, A the token's `advantages`, and
r = p / q.

    cross_entropy         -w log p, with `weights` w of any sign
    importance_sampling   -r A
    ppo                   -min(r A, clip(r) A)
    cispo                 -clip(r) log p A, with clip(r) as a constant
    dro                   -(log p A - beta / 2 (log p - log q)^2)
    gspo                  as ppo, with one ratio for all tokens of a datum: the geometric mean of r over the tokens that
                          `sequence_ratio_mask` marks. Each token's ratio has the gradient of its own log p.

Nothing is divided by a number of tokens: clients scale weights or advantages, and the learning rate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

LARGEST_PARAMETER = 1e6
"""Maximum value of a loss parameter."""


@dataclass(frozen=True)
class LossInputs:
    """Tokens of several datums, one datum after the other. N is the number of tokens."""

    logprobs: torch.Tensor
    """[N] float32: log p, differentiable."""
    tensors: Mapping[str, torch.Tensor]
    """[N] float32 each: tensors of the datums other than the targets."""
    lengths: Sequence[int]
    """Number of tokens of each datum."""
    parameters: Mapping[str, float]

    @property
    def advantages(self) -> torch.Tensor:
        """Advantages [N]."""
        return self.tensors["advantages"]

    def weighted(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values, with 0 for tokens without an advantage. The loss multiplies the values by the advantages,
        and clients often send no probability for tokens that were not sampled.
        """
        return torch.where(self.advantages != 0, values, 0.0)

    @property
    def log_ratio(self) -> torch.Tensor:
        """log r [N], 0 for tokens without an advantage."""
        return self.weighted(self.logprobs - self.tensors["logprobs"])

    def clip(self, ratio: torch.Tensor) -> torch.Tensor:
        """Return the ratio clipped to the loss's thresholds."""
        return ratio.clamp(self.parameters["clip_low_threshold"], self.parameters["clip_high_threshold"])

    def clipped_objective(self, ratio: torch.Tensor) -> torch.Tensor:
        """Return min(ratio A, clip(ratio) A)."""
        return torch.minimum(ratio * self.advantages, self.clip(ratio) * self.advantages)


@dataclass(frozen=True)
class ClientLoss:
    """Loss that a client can select by name."""

    terms: Callable[[LossInputs], torch.Tensor]
    """Function that returns the loss of each token [N]."""
    tensors: tuple[str, ...]
    """Tensors that each datum must have in addition to `target_tokens`."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Parameters that `loss_fn_config` may set, with their defaults. Values must be from 0 to LARGEST_PARAMETER."""
    several_targets: bool = False
    """True if a token may have several targets. The loss is then minus the sum of their log p times `weights`."""


def _cross_entropy(of: LossInputs) -> torch.Tensor:
    return -weigh(of.logprobs, of.tensors["weights"])


def weigh(logprobs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return w log p. A target with weight 0 gives 0 even if its probability is 0."""
    return weights * torch.where(weights != 0, logprobs, 0.0)


def _importance_sampling(of: LossInputs) -> torch.Tensor:
    return -of.log_ratio.exp() * of.advantages


def _ppo(of: LossInputs) -> torch.Tensor:
    return -of.clipped_objective(of.log_ratio.exp())


def _cispo(of: LossInputs) -> torch.Tensor:
    return -of.clip(of.log_ratio.detach().exp()) * of.weighted(of.logprobs) * of.advantages


def _dro(of: LossInputs) -> torch.Tensor:
    penalty = 0.5 * of.parameters["beta"] * (of.logprobs - of.tensors["logprobs"]) ** 2
    return penalty - of.weighted(of.logprobs) * of.advantages


def _gspo(of: LossInputs) -> torch.Tensor:
    marked = of.tensors["sequence_ratio_mask"] != 0
    log_ratios = torch.where(marked, of.logprobs.detach() - of.tensors["logprobs"], 0.0)
    # A sum for each datum instead of one scattered sum, whose order of additions varies on a GPU.
    means = [
        (ratios.sum() / count.sum()).expand(len(ratios))
        for ratios, count in zip(log_ratios.split(list(of.lengths)), marked.split(list(of.lengths)), strict=True)
    ]
    own = of.weighted(of.logprobs)
    return -of.clipped_objective(torch.cat(means).exp() * (own - own.detach()).exp())


_RATIO = ("logprobs", "advantages")
_THRESHOLDS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
LOSSES: Mapping[str, ClientLoss] = {
    "cross_entropy": ClientLoss(_cross_entropy, ("weights",), several_targets=True),
    "importance_sampling": ClientLoss(_importance_sampling, _RATIO),
    "ppo": ClientLoss(_ppo, _RATIO, _THRESHOLDS),
    # The clipped ratio is only a weight, so the documented default limits it on one side.
    "cispo": ClientLoss(_cispo, _RATIO, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
    "dro": ClientLoss(_dro, _RATIO, {"beta": 0.05}),
    "gspo": ClientLoss(_gspo, (*_RATIO, "sequence_ratio_mask"), _THRESHOLDS),
}
REFUSED = {
    "stable_reinforce": "its formula is not public; use loss_fn=importance_sampling",
    "custom": "this trainer does not run uploaded losses; call forward_backward_custom with a function",
}
"""Losses of the SDK that are refused, with the reason and what to use instead."""
