"""Sampling distribution of the inference engine, recomputed from the trainer's logits.

With `--logprobs-mode processed_logprobs`, vLLM changes the model's logits in this order (v1/sample/sampler.py): it
masks stop tokens until min_tokens tokens are sampled; divides the logit of every token that the prompt or completion
already contains by the repetition penalty, or multiplies it if negative; divides by the temperature; keeps the tokens
with at least min_p times the highest probability, and of these the smallest set with a total probability of at least
top_p; renormalizes. Importance ratios are only meaningful if the trainer does the same. Because of rounding errors, the
two programs may disagree about a token at a threshold, so a sampled token is never masked.
"""

import functools
import logging
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rlrun.api.run_sections.rollouts import Sampling, SamplingOverrides
from torch.utils.checkpoint import checkpoint
from transformers import AutoTokenizer

from rlrun_trainer.model.base_model import Head

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SamplingDistribution:
    """Sampling parameters that turn logits into probabilities."""

    sampling: Sampling = field(default_factory=Sampling)
    stop_tokens: tuple[int, ...] = ()
    """Tokens masked until `min_tokens` tokens are sampled. Use those of the engine, from the function `stop_tokens`."""

    def with_overrides(self, sampling: SamplingOverrides | None) -> "SamplingDistribution":
        """Return a distribution in which the parameters of `sampling` take precedence."""
        return self if sampling is None else replace(self, sampling=sampling.apply_to(self.sampling))

    @property
    def needs_token_history(self) -> bool:
        """True if a token's probability depends on more than the logits and the temperature."""
        return (
            bool(self.sampling.min_p)
            or self.nucleus is not None
            or self.penalty is not None
            or self.enforces_min_tokens
        )

    @property
    def nucleus(self) -> float | None:
        """Value of top_p, or None if it excludes no token."""
        return None if self.sampling.top_p == 1 else self.sampling.top_p

    @property
    def penalty(self) -> float | None:
        """Repetition penalty, or None if it changes no logit."""
        return None if self.sampling.repetition_penalty == 1 else self.sampling.repetition_penalty

    @property
    def enforces_min_tokens(self) -> bool:
        """True if stop tokens are masked before `min_tokens` tokens are sampled."""
        return bool(self.sampling.min_tokens and self.stop_tokens)


PLAIN = SamplingDistribution()
"""Distribution of the unmodified logits."""


@dataclass
class History:
    """Tokens that precede each of N sampled tokens in its sample."""

    drawn: torch.Tensor
    """[N] int64: number of tokens sampled before this token in the same turn."""
    distinct: torch.Tensor
    """[D] int64: each sample's distinct tokens in order of first appearance, concatenated."""
    start: torch.Tensor
    """[N] int64: start of the token's sample in `distinct`."""
    count: torch.Tensor
    """[N] int64: number of distinct tokens that precede this token."""

    def rows(self, start: int, end: int) -> "History":
        """Return the history of the tokens from `start` to `end`."""
        cut = slice(start, end)
        return replace(self, drawn=self.drawn[cut], start=self.start[cut], count=self.count[cut])

    def to(self, device: torch.device) -> "History":
        """Return a copy on the device."""
        return replace(self, **{name: value.to(device) for name, value in vars(self).items()})

    def seen_tokens(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (row, token) of every token that precedes a row: two int64 tensors of equal length."""
        rows = torch.repeat_interleave(self.count)
        within = torch.arange(len(rows), device=rows.device) - (self.count.cumsum(0) - self.count)[rows]
        return rows, self.distinct[self.start[rows] + within]


@dataclass
class HistoryBuilder:
    """Builder for the history of concatenated samples."""

    _drawn: list[np.ndarray] = field(default_factory=list)
    _distinct: list[np.ndarray] = field(default_factory=list)
    _start: list[np.ndarray] = field(default_factory=list)
    _count: list[np.ndarray] = field(default_factory=list)
    _length: int = 0

    def add(self, token_ids: np.ndarray, columns: np.ndarray, turn_starts: np.ndarray) -> None:
        """Add a sample [T]. The tokens at `columns` (ascending) were sampled. A turn starts at each of `turn_starts`,
        and after tokens that were not sampled.
        """
        firsts = np.sort(np.unique(token_ids, return_index=True)[1])
        index = np.arange(len(columns))
        begins = (np.diff(columns, prepend=-1) != 1) | np.isin(columns, turn_starts)
        self._drawn.append(index - np.maximum.accumulate(np.where(begins, index, 0)))
        self._distinct.append(token_ids[firsts])
        self._start.append(np.full(len(columns), self._length))
        self._count.append(np.searchsorted(firsts, columns))
        self._length += len(firsts)

    def history(self) -> History:
        """Return the history of all added samples."""
        parts = (self._drawn, self._distinct, self._start, self._count)
        return History(*(torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *p])) for p in parts))


def token_logprobs(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    head: Head,
    distribution: SamplingDistribution,
    chunk: int,
    history: History | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log p(target) and entropy under `distribution`, both [N] float32.

    hidden: [N, H]; targets: [N]. `history` is required if the distribution depends on it. Gradients flow only through
    the first result. Logits exist for `chunk` tokens at a time, never for a whole micro-batch.
    """
    if not distribution.needs_token_history:
        history = None
    elif history is None:
        raise ValueError("This distribution requires the tokens' history")
    score = _differentiable if head(hidden[:1].detach()).requires_grad else _score_frozen
    values, entropies = [], []
    for i in range(0, max(1, len(targets)), chunk):
        past = history.rows(i, i + chunk) if history is not None else None
        value, entropy = score(hidden[i : i + chunk], targets[i : i + chunk], head, distribution, past)
        values.append(value)
        entropies.append(entropy)
    return torch.cat(values), torch.cat(entropies)


def _differentiable(
    hidden: torch.Tensor, targets: torch.Tensor, head: Head, distribution: SamplingDistribution, history: History | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Score with a trained head. The backward pass recomputes the logits."""

    def piece(h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logp = torch.log_softmax(_process_logits(head(h), targets, distribution, history), dim=-1)
        frozen = logp.detach()
        return logp.gather(-1, targets[:, None]).squeeze(-1), -_mean(frozen, frozen.exp(), distribution)

    result: tuple[torch.Tensor, torch.Tensor] = checkpoint(piece, hidden, use_reentrant=False, preserve_rng_state=False)
    return result


def _score_frozen(
    hidden: torch.Tensor, targets: torch.Tensor, head: Head, distribution: SamplingDistribution, history: History | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Score with a frozen head. d log p / d hidden is computed while the logits exist."""
    wanted = torch.is_grad_enabled() and hidden.requires_grad
    h = hidden.detach().requires_grad_(wanted)
    logits = _process_logits(head(h), targets, distribution, history)
    with torch.no_grad():
        # Only logits and probabilities exist at once: each is 1.2 GB for 2,048 tokens of a vocabulary of 152k.
        p = torch.softmax(logits, dim=-1)
        top, log_top = logits.amax(-1), p.amax(-1).log()
        value = logits.gather(-1, targets[:, None]).squeeze(-1) - top + log_top
        entropy = top - log_top - _mean(logits, p, distribution)
        if not wanted:
            return value, entropy
        # d log p(t) / d logits is 1 at t, minus p.
        slope = p.neg_()
        slope[torch.arange(len(targets), device=targets.device), targets] += 1
    [slopes] = torch.autograd.grad(logits, h, slope)
    known: torch.Tensor = _PrecomputedGradient.apply(hidden, value, slopes)
    return known, entropy


class _PrecomputedGradient(torch.autograd.Function):  # type: ignore[misc]
    """Values [N] of hidden [N, H] with precomputed gradients [N, H]."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, values: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(slopes)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return (gradients[0][:, None] * slopes).to(slopes.dtype), None, None


def _process_logits(
    logits: torch.Tensor, targets: torch.Tensor, distribution: SamplingDistribution, history: History | None
) -> torch.Tensor:
    logits = logits.float()
    if history is not None:
        return _bend(logits, targets, distribution, history)
    temperature = distribution.sampling.temperature
    return logits if temperature == 1 else logits / temperature


def _mean(values: torch.Tensor, p: torch.Tensor, distribution: SamplingDistribution) -> torch.Tensor:
    """Return the means [N] of values [N, V] under the probabilities p [N, V]."""
    if distribution.needs_token_history:
        # A masked token contributes 0, although 0 times minus infinity is NaN.
        return (p * values).nan_to_num_(nan=0.0).sum(-1)
    return torch.bmm(p[:, None], values[..., None]).flatten()


def _bend(logits: torch.Tensor, targets: torch.Tensor, how: SamplingDistribution, history: History) -> torch.Tensor:
    """Return the logits [N, V] float32 of the sampling distribution. `targets` [N] are the sampled tokens, which are
    never masked.
    """
    if how.enforces_min_tokens:
        assert how.sampling.min_tokens is not None
        stops = torch.tensor(how.stop_tokens, device=logits.device)
        early = (history.drawn < how.sampling.min_tokens)[:, None] & (stops != targets[:, None])
        rows, which = early.nonzero(as_tuple=True)
        logits = logits.index_put((rows, stops[which]), logits.new_tensor(-torch.inf))
    if how.penalty is not None:
        with torch.no_grad():
            seen = history.seen_tokens()
            scale = torch.ones_like(logits)
            scale[seen] = torch.where(logits[seen] > 0, 1 / how.penalty, how.penalty)
        logits = logits * scale
    logits = logits / how.sampling.temperature
    if how.sampling.min_p:
        lowest = logits.detach().amax(-1, keepdim=True) + math.log(how.sampling.min_p)
        logits = logits.masked_fill((logits < lowest).scatter(-1, targets[:, None], False), -torch.inf)
    if how.nucleus is not None:
        with torch.no_grad():
            ascending, order = logits.sort(-1)
            beyond = ascending.softmax(-1).cumsum(-1) <= 1 - how.nucleus
            beyond[:, -1] = False
            outside = torch.zeros_like(beyond).scatter_(-1, order, beyond).scatter_(-1, targets[:, None], False)
        logits = logits.masked_fill(outside, -torch.inf)
    return logits


def stop_tokens(model: Any) -> tuple[int, ...]:
    """Return the stop tokens that vLLM uses, from the tokenizer and the model's generation_config.json."""
    named = getattr(model.generation_config, "eos_token_id", None)
    several = named if isinstance(named, list) else [] if named is None else [named]
    end = _tokenizer_end(model.name_or_path)
    return tuple(sorted({*several, *([] if end is None else [end])}))


@functools.cache
def _tokenizer_end(folder: str) -> int | None:
    # transformers creates a default tokenizer for a folder without one.
    if not any((Path(folder) / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    try:
        end: int | None = AutoTokenizer.from_pretrained(folder, local_files_only=True).eos_token_id
    except (OSError, ValueError, KeyError, ImportError) as error:
        log.warning(
            "Could not load the tokenizer of %s; minTokens applies only to stop tokens in generation_config.json (%s)",
            folder,
            error,
        )
        return None
    return end
