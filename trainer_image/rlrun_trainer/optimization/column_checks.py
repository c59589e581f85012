"""Validates the values in a batch's columns. Invalid values would cause an opaque device error in the model."""

from collections.abc import Sequence

import numpy as np
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.train_batch import Sample, SampleLoss
from rlrun.protocol.trainer import LARGEST_LOGPROB
from rlrun.service.errors import ProblemError


def check_columns(samples: Sequence[Sample], vocab_size: int) -> None:
    """Raise ProblemError (BatchInvalid) for a token outside of the vocabulary, and for a sampled token whose
    log-probability, or the teacher's, is not the logarithm of a probability above 0.
    """
    for index, sample in enumerate(samples):
        tokens = np.asarray(sample.token_ids)
        if tokens.min() < 0 or tokens.max() >= vocab_size:
            raise _invalid(index, f"tokenIds has a token outside the vocabulary of {vocab_size}")
        if sample.loss is not SampleLoss.policy:
            continue
        mask = np.asarray(sample.loss_mask, dtype=bool)
        if not _are_logprobs(np.asarray(sample.logprobs)[mask]):
            raise _invalid(index, "logprobs has a value that is not the logarithm of a probability")
        if sample.teacher_logprobs is not None and not _are_logprobs(np.asarray(sample.teacher_logprobs)[mask]):
            raise _invalid(index, "teacherLogprobs has a value that is not the logarithm of a probability")


def _are_logprobs(values: np.ndarray) -> bool:
    # Comparisons with NaN are false.
    return not len(values) or bool(values.max() <= LARGEST_LOGPROB and values.min() > -np.inf)


def _invalid(index: int, what: str) -> ProblemError:
    return ProblemError.of(UNPROCESSABLE, Reason.BATCH_INVALID, f"samples[{index}]: {what}")
