"""Tests whether a model can use `varlen` attention, which needs no mask.

The model computes two samples of random tokens twice: separately, with the attention implementation that passed the
other checks, and together, with `varlen`. If log probabilities and gradients agree, the model uses `varlen`. Otherwise,
or if an operation fails, the model keeps its implementation, which is slower. All processes make the same choice.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.service.errors import ProblemError

from rlrun_trainer.model import row_layout, varlen_attention
from rlrun_trainer.model.decoder import decoder_of
from rlrun_trainer.model.failure_guard import FailureGuard
from rlrun_trainer.model.loader import Loader
from rlrun_trainer.model.row_layout import Head, Hidden
from rlrun_trainer.runtime.messages import MessageFormat

log = logging.getLogger(__name__)

EXACT, ROUNDED = 1e-3, 0.2
"""Maximum difference of gradients, relative to their norm, for computation in float32 and in lower precision."""


@dataclass(frozen=True)
class Vote:
    """Result of the test in one process."""

    problem: str
    """Reason against `varlen`, or an empty string."""


VOTES = MessageFormat(Vote)


@dataclass(frozen=True)
class Derivatives:
    """Result of a pass over several samples, one entry per sample."""

    logprobs: list[torch.Tensor]
    """[T - 1, 1] each: log probabilities of the tokens."""
    gradients: list[torch.Tensor]
    """[T, H] each: gradients of the sum of log probabilities with respect to the embeddings."""


@dataclass(frozen=True)
class Passes:
    """Model to test, and the functions of its forward pass."""

    model: Any
    hidden: Hidden
    """Function from token ids and positions [rows, width] to hidden states."""
    head: Head
    """Function from hidden states to logits."""
    guard: FailureGuard


def choose(passes: Passes, loader: Loader, mixing: Sequence[str]) -> bool:
    """Set the model's attention to `varlen` and return True if `varlen` is exact. All processes must call `choose`.

    `mixing` are the layer types that rule out rows with several samples. Raises ProblemError (ModelUnsupported) if
    `varlen` is not exact and the trainer's setting requires it.
    """
    present, model = loader.attention, passes.model
    votes = loader.world.vote(Vote(_problem(passes, loader, bool(mixing))), VOTES)
    problem = next((each.problem for each in votes if each.problem), None)
    if problem is None:
        loader.attention = varlen_attention.NAME
        log.info("Using varlen attention, without masks: log probabilities and gradients match %s", present)
        return True
    if loader.settings.attention == varlen_attention.NAME:
        raise ProblemError.of(
            UNPROCESSABLE,
            Reason.MODEL_UNSUPPORTED,
            f"{type(model).__name__} cannot be computed with varlen attention: {problem}. Use `--attention auto`.",
        )
    model.set_attn_implementation(present)
    log.info("Using %s attention, because varlen attention is not exact for this model: %s", present, problem)
    return False


def _problem(passes: Passes, loader: Loader, separate: bool) -> str:
    """Return the reason why `varlen` is not exact on this process, or an empty string. If `separate` is True, each
    sample gets its own row.
    """
    decoder = decoder_of(passes.model)
    if not decoder._supports_flash_attn:
        # Such a model may choose tokens or chunks by its mask alone, which the short samples of this test do not show.
        return "the model family supports no attention without a mask"
    try:
        first, second = row_layout.random_samples(len(passes.model.get_input_embeddings().weight), loader.device)
        each = [derivatives(passes, [[sample]]) for sample in (first, second)]
        alone = Derivatives([x for d in each for x in d.logprobs], [x for d in each for x in d.gradients])
        passes.model.set_attn_implementation(varlen_attention.NAME)
        if decoder.config._attn_implementation != varlen_attention.NAME:
            return "the model family has its own implementation of attention"
        together = derivatives(passes, [[first], [second]] if separate else [[first, second]])
        passes.guard.settle()
    except torch.distributed.DistError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return difference(together, alone, loader.dtype)


def derivatives(passes: Passes, rows: Sequence[Sequence[torch.Tensor]]) -> Derivatives:
    """Return the log probabilities of the samples in these rows, and gradients with respect to the embeddings.

    If weights are sharded, a failure is recorded in the guard, and the result is invalid.
    """
    embeddings: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        embeddings.append(output.detach().requires_grad_())
        return embeddings[-1]

    layout = row_layout.lay_out(rows)
    hook = passes.model.get_input_embeddings().register_forward_hook(keep)
    try:
        states = passes.hidden(layout.input_ids, layout.position_ids)
    finally:
        hook.remove()
    leaf = states.detach().requires_grad_()
    logprobs: list[torch.Tensor] = []
    with passes.guard.attempt():
        logprobs = layout.logprobs(leaf, passes.head)
        torch.cat(logprobs).sum().backward()
    states.backward(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
    gradient = embeddings[0].grad
    assert gradient is not None
    found = [gradient[row, start : start + len(sample)].float() for row, start, sample in layout.places]
    return Derivatives([each.detach() for each in logprobs], found)


def difference(found: Derivatives, alone: Derivatives, dtype: torch.dtype) -> str:
    """Describe a difference in log probabilities or gradients that exceeds rounding in this precision. Returns an empty
    string if there is none.
    """
    nats = row_layout.difference(found.logprobs, alone.logprobs)
    if not nats <= row_layout.tolerance(dtype):
        return f"log probabilities of samples in a batch differ by {nats:.2g} nats from those computed alone"
    parts = [float((x - y).norm() / y.norm()) for x, y in zip(found.gradients, alone.gradients, strict=True)]
    if not max(parts) <= (EXACT if dtype == torch.float32 else ROUNDED):
        return f"gradients of samples in a batch differ by {max(parts):.2g} of their norm from those computed alone"
    return ""
