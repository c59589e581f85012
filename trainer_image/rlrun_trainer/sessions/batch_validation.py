"""Validates a batch before its step, except for the values in its columns (see `Backend.train`)."""

import math
from collections.abc import Sequence

from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.train_batch import Sample, SampleLoss
from rlrun.service.errors import ProblemError


def check_batch(samples: Sequence[Sample], seq_len: int) -> None:
    """Validate the batch. Raises ProblemError (BatchInvalid), whose message names the first invalid sample, if any."""
    if not samples:
        raise ProblemError.of(UNPROCESSABLE, Reason.BATCH_INVALID, "samples is empty. Send at least one sample.")
    for index, sample in enumerate(samples):
        length = len(sample.token_ids)
        if length > seq_len:
            raise invalid_sample(index, f"{length} tokens exceed the session's seqLen {seq_len}")
        if sample.loss_mask[0]:
            raise invalid_sample(index, "lossMask[0] is true, but the first token has no prediction")
        if not all(sample.loss_mask[start] for start in sample.turn_starts):
            raise invalid_sample(index, "turnStarts has a position whose token was not sampled")
        if sample.turn_versions is not None and [*sample.turn_starts[:1]] != _first_sampled(sample):
            raise invalid_sample(index, "turnVersions is set, but turnStarts does not begin at the first sampled token")
        is_scored = sample.loss is SampleLoss.policy and sample.teacher_logprobs is None
        if is_scored and not math.isfinite(sample.advantage):
            raise invalid_sample(index, "advantage is not finite")
    if not any(sample.trainable for sample in samples):
        raise ProblemError.of(
            UNPROCESSABLE, Reason.BATCH_INVALID, "No token is trainable: lossMask is false for all tokens."
        )


def _first_sampled(sample: Sample) -> list[int]:
    return [sample.loss_mask.index(1)] if sample.trainable else []


def invalid_sample(index: int, what: str) -> ProblemError:
    """Return the error for an invalid sample."""
    return ProblemError.of(UNPROCESSABLE, Reason.BATCH_INVALID, f"samples[{index}]: {what}")
