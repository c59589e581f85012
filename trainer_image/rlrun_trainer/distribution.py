"""The distribution that the engine drew from, made again from the trainer's logits.

vLLM, whose log-probs come from `--logprobs-mode processed_logprobs`, changes the model's logits in this order
(v1/sample/sampler.py): the end of the text is forbidden before min_tokens; the logit of every token that prompt or
answer already has is divided by the repetition penalty, or multiplied where it is negative; the temperature divides; of
what is left, the smallest set of tokens with probability top_p is kept and renormalised. An importance ratio means
nothing unless the trainer does the same. Two programs may still disagree about the border of the nucleus by a rounding
error, so a token that was drawn always counts as one that could be drawn.
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoTokenizer

log = logging.getLogger(__name__)

Head = Callable[[torch.Tensor], torch.Tensor]
"""[N, hidden] -> logits [N, vocabulary]"""


@dataclass(frozen=True)
class Distribution:
    """How logits become probabilities."""

    temperature: float = 1.0
    top_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_tokens: tuple[int, ...] = ()
    """What min_tokens forbids; `stop_tokens()` says what the engine does."""

    @property
    def bent(self) -> bool:
        """Whether it depends on more than the temperature, and so on each token's history."""
        return self.nucleus is not None or self.penalty is not None or self.forbids

    @property
    def nucleus(self) -> float | None:
        """top_p where it leaves anything out."""
        return None if self.top_p == 1 else self.top_p

    @property
    def penalty(self) -> float | None:
        """The repetition penalty where it changes anything."""
        return None if self.repetition_penalty == 1 else self.repetition_penalty

    @property
    def forbids(self) -> bool:
        """Whether some tokens cannot end the text."""
        return bool(self.min_tokens and self.stop_tokens)


PLAIN = Distribution()
"""The model's own probabilities."""


@dataclass
class History:
    """What came before each of N drawn tokens, in its own sample."""

    drawn: torch.Tensor
    """[N] int64: tokens that the policy had drawn before it in the same turn"""
    distinct: torch.Tensor
    """[D] int64: each sample's different tokens in the order in which they first appear, sample after sample"""
    start: torch.Tensor
    """[N] int64: where the token's sample begins in `distinct`"""
    count: torch.Tensor
    """[N] int64: how many of them come before the token"""

    def rows(self, start: int, end: int) -> "History":
        """Of the tokens from `start` to `end` only."""
        cut = slice(start, end)
        return replace(self, drawn=self.drawn[cut], start=self.start[cut], count=self.count[cut])

    def to(self, device: torch.device) -> "History":
        """The same on that device."""
        return replace(self, **{name: value.to(device) for name, value in vars(self).items()})

    def seen(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(row, token) of every token that comes before a row: two int64 tensors of one length."""
        rows = torch.repeat_interleave(self.count)
        within = torch.arange(len(rows), device=rows.device) - (self.count.cumsum(0) - self.count)[rows]
        return rows, self.distinct[self.start[rows] + within]


@dataclass
class HistoryBuilder:
    """Collects the histories of samples that are put one behind the other."""

    _drawn: list[np.ndarray] = field(default_factory=list)
    _distinct: list[np.ndarray] = field(default_factory=list)
    _start: list[np.ndarray] = field(default_factory=list)
    _count: list[np.ndarray] = field(default_factory=list)
    _length: int = 0

    def add(self, token_ids: np.ndarray, columns: np.ndarray) -> None:
        """A sample [T] whose tokens at `columns` (ascending) were drawn; a turn is an unbroken run of these."""
        firsts = np.sort(np.unique(token_ids, return_index=True)[1])
        index = np.arange(len(columns))
        begins = np.diff(columns, prepend=-1) != 1
        self._drawn.append(index - np.maximum.accumulate(np.where(begins, index, 0)))
        self._distinct.append(token_ids[firsts])
        self._start.append(np.full(len(columns), self._length))
        self._count.append(np.searchsorted(firsts, columns))
        self._length += len(firsts)

    def history(self) -> History:
        """Of all samples added."""
        parts = (self._drawn, self._distinct, self._start, self._count)
        return History(*(torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *p])) for p in parts))


def token_logprobs(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    head: Head,
    distribution: Distribution,
    chunk: int,
    history: History | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log p(target) and entropy under `distribution`, both [N] float32.

    hidden: [N, H]; targets: [N]; `history` is needed where the distribution is bent. Gradients flow through the first
    result only. Logits exist for `chunk` tokens at a time: the vocabulary is never held for a whole micro-batch.
    """
    if not distribution.bent:
        history = None
    elif history is None:
        raise ValueError("a bent distribution needs the tokens' history")
    score = _differentiable if head(hidden[:1].detach()).requires_grad else _frozen
    values, entropies = [], []
    for i in range(0, max(1, len(targets)), chunk):
        past = history.rows(i, i + chunk) if history is not None else None
        value, entropy = score(hidden[i : i + chunk], targets[i : i + chunk], head, distribution, past)
        values.append(value)
        entropies.append(entropy)
    return torch.cat(values), torch.cat(entropies)


def _differentiable(
    hidden: torch.Tensor, targets: torch.Tensor, head: Head, distribution: Distribution, history: History | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """For a head that is trained itself: the logits are made a second time in the backward pass."""

    def piece(h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logp = torch.log_softmax(_processed(head(h), targets, distribution, history), dim=-1)
        return logp.gather(-1, targets[:, None]).squeeze(-1), _entropy(logp.detach(), logp.detach().exp(), distribution)

    result: tuple[torch.Tensor, torch.Tensor] = checkpoint(piece, hidden, use_reentrant=False, preserve_rng_state=False)
    return result


def _frozen(
    hidden: torch.Tensor, targets: torch.Tensor, head: Head, distribution: Distribution, history: History | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """For a head that stays as it is: d log p / d hidden is worked out while the logits are there."""
    wanted = torch.is_grad_enabled() and hidden.requires_grad
    h = hidden.detach().requires_grad_(wanted)
    logits = _processed(head(h), targets, distribution, history)
    with torch.no_grad():
        logp = torch.log_softmax(logits, dim=-1)
        value = logp.gather(-1, targets[:, None]).squeeze(-1)
        p = logp.exp()
        entropy = _entropy(logp, p, distribution)
        if not wanted:
            return value, entropy
        # d log p(t) / d logits is 1 at t, minus p.
        slope = p.neg_()
        slope[torch.arange(len(targets), device=targets.device), targets] += 1
    [slopes] = torch.autograd.grad(logits, h, slope)
    known: torch.Tensor = _Known.apply(hidden, value, slopes)
    return known, entropy


class _Known(torch.autograd.Function):  # type: ignore[misc]
    """Values [N] of hidden [N, H] whose slopes [N, H] are known already."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, values: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(slopes)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return (gradients[0][:, None] * slopes).to(slopes.dtype), None, None


def _processed(
    logits: torch.Tensor, targets: torch.Tensor, distribution: Distribution, history: History | None
) -> torch.Tensor:
    logits = logits.float()
    if history is not None:
        return _bend(logits, targets, distribution, history)
    return logits if distribution.temperature == 1 else logits / distribution.temperature


def _entropy(logp: torch.Tensor, p: torch.Tensor, distribution: Distribution) -> torch.Tensor:
    terms = p * logp
    # Where tokens are impossible, 0 times minus infinity means 0.
    return -(terms.nan_to_num_(nan=0.0) if distribution.bent else terms).sum(-1)


def _bend(logits: torch.Tensor, targets: torch.Tensor, how: Distribution, history: History) -> torch.Tensor:
    """Logits [N, V] float32 of the distribution that the engine drew `targets` [N] from."""
    if how.forbids:
        assert how.min_tokens is not None
        stops = torch.tensor(how.stop_tokens, device=logits.device)
        early = (history.drawn < how.min_tokens)[:, None] & (stops != targets[:, None])
        rows, which = early.nonzero(as_tuple=True)
        logits = logits.index_put((rows, stops[which]), logits.new_tensor(-torch.inf))
    if how.penalty is not None:
        with torch.no_grad():
            seen = history.seen()
            scale = torch.ones_like(logits)
            scale[seen] = torch.where(logits[seen] > 0, 1 / how.penalty, how.penalty)
        logits = logits * scale
    logits = logits / how.temperature
    if how.nucleus is not None:
        with torch.no_grad():
            ascending, order = logits.sort(-1)
            beyond = ascending.softmax(-1).cumsum(-1) <= 1 - how.nucleus
            beyond[:, -1] = False
            outside = torch.zeros_like(beyond).scatter_(-1, order, beyond).scatter_(-1, targets[:, None], False)
        logits = logits.masked_fill(outside, -torch.inf)
    return logits


def stop_tokens(model: Any) -> tuple[int, ...]:
    """Tokens that end a text in vLLM: the tokenizer's end and those of the model's generation_config.json."""
    named = getattr(model.generation_config, "eos_token_id", None)
    several = named if isinstance(named, list) else [] if named is None else [named]
    end = _tokenizer_end(model.name_or_path)
    return tuple(sorted({*several, *([] if end is None else [end])}))


@functools.cache
def _tokenizer_end(folder: str) -> int | None:
    # transformers makes up a tokenizer where there is none.
    if not any((Path(folder) / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    try:
        end: int | None = AutoTokenizer.from_pretrained(folder, local_files_only=True).eos_token_id
    except (OSError, ValueError, KeyError, ImportError) as error:
        log.warning("the tokenizer of %s does not load, so minTokens goes by its generation config: %s", folder, error)
        return None
    return end
