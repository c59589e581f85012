"""Values of a batch's columns that no model can take are named before a step begins."""

from typing import Any

import pytest
from rlrun.protocol.train_batch import Sample, SampleLoss
from rlrun.service.errors import ProblemError
from rlrun_trainer.optimization.column_checks import check_columns

from tests.support.train_bodies import body_of, read_body

VOCABULARY = 40
NAN = float("nan")


def sample(**changes: Any) -> Sample:
    values = {
        "token_ids": [1, 2, 3, 4],
        "loss_mask": [False, True, True, True],
        "logprobs": [0.0, -1.0, -1.0, -1.0],
        "advantage": 0.5,
        "policy_version": 0,
    }
    return Sample(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token_ids": [1, 2, 3, VOCABULARY]}, "vocabulary"),
        ({"token_ids": [1, -2, 3, 4]}, "vocabulary"),
        ({"loss": SampleLoss.cross_entropy, "token_ids": [1, 2, 3, VOCABULARY]}, "vocabulary"),
        ({"logprobs": [0.0, NAN, -1.0, -1.0]}, "logprobs"),
        ({"logprobs": [0.0, float("-inf"), -1.0, -1.0]}, "logprobs"),
        ({"logprobs": [0.0, 2.0, -1.0, -1.0]}, "logprobs"),
        ({"teacher_logprobs": [0.0, NAN, -1.0, -1.0]}, "teacherLogprobs"),
        ({"teacher_logprobs": [0.0, 1.0, -1.0, -1.0]}, "teacherLogprobs"),
    ],
)
def test_a_bad_sample_is_named(changes: dict[str, Any], words: str) -> None:
    batch = [sample(), sample(**changes)]
    for samples in (batch, read_body(body_of(batch)).samples):
        with pytest.raises(ProblemError, match=rf"samples\[1\].*{words}"):
            check_columns(samples, VOCABULARY)


def test_values_of_tokens_that_were_not_sampled_are_ignored() -> None:
    check_columns([sample(loss=SampleLoss.cross_entropy, logprobs=[NAN] * 4)], VOCABULARY)
    check_columns([sample(teacher_logprobs=[NAN, -0.5, -1.5, -0.5]), sample(loss_mask=[False] * 4)], VOCABULARY)


@pytest.mark.parametrize("key", ["logprobs", "teacher_logprobs"])
def test_a_log_probability_may_exceed_zero_by_rounding_only(key: str) -> None:
    check_columns([sample(**{key: [0.0, 0.0, 0.001, -0.25]})], VOCABULARY)
    with pytest.raises(ProblemError, match="logarithm of a probability"):
        check_columns([sample(**{key: [0.0, 0.0, 0.002, -0.25]})], VOCABULARY)
