"""Every defect of a batch is named before a step begins."""

from typing import Any

import pytest
from rlrun.protocol.trainer import Sample
from rlrun.service.errors import ProblemError
from rlrun_trainer.sessions.batch_validation import check_batch

from tests.support.trainer_requests import VOCABULARY


def sample(tokens: int, prompt: int = 1, **changes: Any) -> Sample:
    mask = [i >= prompt for i in range(tokens)]
    values = {
        "token_ids": list(range(tokens)),
        "loss_mask": mask,
        "logprobs": [-1.0 if m else 0.0 for m in mask],
        "advantage": 0.5,
        "policy_version": 0,
    }
    return Sample.model_validate(values | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token_ids": [1, 2]}, "differ in length"),
        ({"token_ids": [], "loss_mask": [], "logprobs": []}, "empty"),
        ({"token_ids": [1, 2, VOCABULARY]}, "vocabulary"),
        ({"token_ids": [1, -2, 3]}, "vocabulary"),
        ({"loss_mask": [True, True, True]}, r"lossMask\[0\]"),
        ({"logprobs": [0.0, float("nan"), -1.0]}, "logprobs"),
        ({"logprobs": [0.0, 2.0, -1.0]}, "logprobs"),
        ({"turn_starts": [0]}, "turnStarts"),
        ({"turn_starts": [1, 3]}, "turnStarts"),
        ({"turn_starts": [-1]}, "turnStarts"),
        ({"advantage": float("inf")}, "advantage"),
        ({"teacher_logprobs": [0.0, -1.0]}, "teacherLogprobs"),
        ({"teacher_logprobs": [0.0, float("nan"), -1.0]}, "teacherLogprobs"),
        ({"teacher_logprobs": [0.0, 1.0, -1.0]}, "teacherLogprobs"),
        ({"policy_versions": [0, 0]}, "policyVersions"),
        ({"loss": "cross_entropy", "logprobs": [0.0]}, "differ in length"),
        ({"loss": "cross_entropy", "token_ids": [1, 2, VOCABULARY]}, "vocabulary"),
    ],
)
def test_a_bad_sample_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ProblemError, match=rf"samples\[1\].*{words}"):
        check_batch([sample(3), sample(3, **changes)], 64, VOCABULARY)


def test_demonstrations_need_no_log_probs_and_no_advantage() -> None:
    nothing = float("nan")
    check_batch([sample(3, loss="cross_entropy", logprobs=[nothing] * 3, advantage=nothing)], 64, VOCABULARY)
    check_batch([sample(3, teacher_logprobs=[nothing, -0.5, -1.5], advantage=nothing)], 64, VOCABULARY)


def test_a_sample_as_long_as_the_session_allows_is_valid() -> None:
    check_batch([sample(5)], 5, VOCABULARY)


@pytest.mark.parametrize("key", ["logprobs", "teacher_logprobs"])
def test_a_log_probability_may_exceed_zero_by_rounding_only(key: str) -> None:
    check_batch([sample(4, **{key: [0.0, 0.0, 0.001, -0.25]})], 64, VOCABULARY)
    with pytest.raises(ProblemError, match="logarithm of a probability"):
        check_batch([sample(4, **{key: [0.0, 0.0, 0.002, -0.25]})], 64, VOCABULARY)


def test_a_batch_without_trainable_tokens_or_beyond_seq_len_is_refused() -> None:
    with pytest.raises(ProblemError, match="samples is empty"):
        check_batch([], 64, VOCABULARY)
    with pytest.raises(ProblemError, match="No token is trainable"):
        check_batch([sample(3, prompt=3)], 64, VOCABULARY)
    with pytest.raises(ProblemError, match="seqLen 4"):
        check_batch([sample(5)], 4, VOCABULARY)
