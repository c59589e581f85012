"""Every defect of a batch is named before a step begins."""

from typing import Any

import pytest
from rlrun.protocol.train_batch import Sample, SampleLoss
from rlrun.service.errors import ProblemError
from rlrun_trainer.sessions.batch_validation import check_batch


def sample(tokens: int, prompt: int = 1, **changes: Any) -> Sample:
    mask = [i >= prompt for i in range(tokens)]
    values = {
        "token_ids": list(range(tokens)),
        "loss_mask": mask,
        "logprobs": [-1.0 if m else 0.0 for m in mask],
        "advantage": 0.5,
        "policy_version": 0,
    }
    return Sample(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss_mask": [True, True, True]}, r"lossMask\[0\]"),
        ({"turn_starts": [0]}, "turnStarts"),
        ({"turn_starts": [2], "turn_versions": [1]}, "turnVersions"),
        ({"turn_starts": [], "turn_versions": []}, "turnVersions"),
        ({"advantage": float("inf")}, "advantage"),
    ],
)
def test_a_bad_sample_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ProblemError, match=rf"samples\[1\].*{words}"):
        check_batch([sample(3), sample(3, **changes)], 64)


def test_demonstrations_and_taught_samples_need_no_advantage() -> None:
    nothing = float("nan")
    check_batch([sample(3, loss=SampleLoss.cross_entropy, advantage=nothing)], 64)
    check_batch([sample(3, teacher_logprobs=[0.0, -0.5, -1.5], advantage=nothing)], 64)


def test_a_sample_as_long_as_the_session_allows_is_valid() -> None:
    check_batch([sample(5)], 5)


def test_a_batch_without_trainable_tokens_or_beyond_seq_len_is_refused() -> None:
    with pytest.raises(ProblemError, match="samples is empty"):
        check_batch([], 64)
    with pytest.raises(ProblemError, match="No token is trainable"):
        check_batch([sample(3, prompt=3)], 64)
    with pytest.raises(ProblemError, match="seqLen 4"):
        check_batch([sample(5)], 4)
