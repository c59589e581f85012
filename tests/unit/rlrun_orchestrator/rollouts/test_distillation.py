"""A teacher judges the policy's own tokens."""

import math
from array import array

import pytest
from rlrun.api.base.address_rules import INTERNET_ONLY
from rlrun.protocol.orchestrator import RunPhase
from rlrun_orchestrator.data.trajectories import SampledSpan, TokenSequence
from rlrun_orchestrator.rollouts.distillation import LOWEST, sampled_logprobs

from tests.support.fake_teacher import FakeTeacher
from tests.support.run_processes import World, serve


@pytest.fixture
async def taught(world: World) -> World:
    """A run with a teacher."""
    world.teacher = FakeTeacher()
    await world.start()
    world.spec["algorithm"] = {"name": "distillation", "teacher": {"url": world.teacher_url, "model": "big"}}
    return world


def test_sampled_tokens_have_the_teachers_log_probability_and_others_none() -> None:
    sequence = TokenSequence(array("i", [1, 2, 3, 4]), array("f", [0.0, -1.0, -0.5, -9.0]), [SampledSpan(1, 4, 0)])
    assert list(sampled_logprobs(sequence, [-3.0, -0.25, -9999.0, -0.5])) == [0.0, -0.25, LOWEST, -0.5]
    assert list(sampled_logprobs(sequence, [0.0, -math.inf, -0.5, -9.0])) == [0.0, LOWEST, -0.5, -9.0]


@pytest.mark.proves("algorithm.name", "algorithm.teacher.url", "algorithm.teacher.model")
async def test_every_drawn_token_has_the_teachers_opinion(taught: World) -> None:
    assert await taught.run() == 0
    assert taught.teacher
    asked = taught.teacher.requests[0]
    assert (asked["model"], asked["max_tokens"], asked["prompt_logprobs"]) == ("big", 1, 0)
    for _, batch in taught.trainer.batches:
        assert len(batch.samples) == 8
        for sample in batch.samples:
            assert sample.teacher_logprobs is not None
            assert sample.advantage == 0.0, "rewards are reported and not learnt from"
            # The engine's own log probabilities have no part in it: the trainer compares with those of its policy.
            expected = [
                max(LOWEST, FakeTeacher.logprob(token)) if mask else 0.0
                for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True)
            ]
            assert list(sample.teacher_logprobs) == pytest.approx(expected)
    line = taught.lines()[-1]
    assert line["reward/mean"] == 0.4375
    assert "teacher_kl/mean" not in line, "the trainer reports it"


async def test_a_teacher_judges_single_rollouts(taught: World) -> None:
    taught.spec["rolloutsPerExample"] = 1
    assert await taught.run() == 0
    assert taught.last_word.groups.trained == 40
    assert {len(batch.samples) for _, batch in taught.trainer.batches} == {8}


@pytest.mark.proves("buffer.skipVerification")
async def test_without_verification_environments_are_not_asked_for_rewards(taught: World) -> None:
    taught.spec["buffer"] = {"skipVerification": True}
    taught.environments["words"].rewards = [5.0]
    assert await taught.run() == 0
    assert {request.score for request in taught.environments["words"].requests} == {False}
    assert taught.last_word.reward == 0.0
    assert taught.last_word.groups.trained == 10
    assert all(sample.teacher_logprobs for _, batch in taught.trainer.batches for sample in batch.samples)


async def test_with_verification_environments_are_asked_for_rewards(taught: World) -> None:
    assert await taught.run() == 0
    assert {request.score for request in taught.environments["words"].requests} == {True}


async def test_a_teacher_that_is_away_is_waited_for(taught: World) -> None:
    assert taught.teacher
    taught.teacher.failures = 3
    assert await taught.run() == 0
    assert taught.last_word.phase is RunPhase.completed
    assert taught.last_word.waiting_for is None


async def test_a_teacher_that_stays_away_ends_the_attempt(taught: World) -> None:
    assert taught.teacher
    taught.teacher.failures = 10**9
    taught.settings["teacher_deadline"] = 0.2
    assert await taught.run() == 1
    assert taught.last_word.problem
    assert taught.last_word.problem.reason == "TeacherUnreachable"
    assert taught.last_word.waiting_for == taught.last_word.problem
    assert not taught.trainer.batches


async def test_a_teacher_that_refuses_ends_the_run(taught: World) -> None:
    assert taught.teacher
    taught.teacher.refusal = "This model's maximum context length is 8 tokens"
    assert await taught.run() == 64
    assert taught.last_word.problem
    assert taught.last_word.problem.reason == "TeacherRefused"
    assert "responded with 400 (Bad Request)" in taught.last_word.problem.message
    assert "maximum context length" not in taught.last_word.problem.message, "the URL may lead to an internal server"


async def test_a_sequence_that_the_teacher_refuses_costs_its_rollout_only(taught: World) -> None:
    assert taught.teacher

    def is_refused(prompt: list[int]) -> bool:
        return len(prompt) > 2 and sum(prompt) % 3 == 0

    taught.teacher.refuses = is_refused
    assert await taught.run() == 0
    assert all(8 <= len(batch.samples) < 8 + 4 for _, batch in taught.trainer.batches), "further groups fill a batch"
    assert taught.last_word.groups.trained > 10
    assert taught.last_word.rollout_errors > 0
    trained = [sample for _, batch in taught.trainer.batches for sample in batch.samples]
    assert all(sample.teacher_logprobs for sample in trained)
    assert not any(is_refused(sample.token_ids) for sample in trained)
    assert sum(line["batch/untaught_rollouts"] for line in taught.lines()) > 0
    records = [record for summary in taught.summaries() for record in taught.rollouts(summary.step)]
    untaught = [record for record in records if record["status"] == "errored"]
    assert {record["cause"] for record in untaught} == {"TeacherRefused"}
    assert all("refused a sequence of" in record["error"]["message"] for record in untaught)


async def test_a_sequence_with_a_nan_of_the_teacher_costs_its_rollout_only(taught: World) -> None:
    assert taught.teacher

    def is_confusing(prompt: list[int]) -> bool:
        return len(prompt) > 2 and sum(prompt) % 3 == 0

    taught.teacher.confused = is_confusing
    assert await taught.run() == 0
    trained = [sample for _, batch in taught.trainer.batches for sample in batch.samples]
    assert trained
    assert not any(is_confusing(sample.token_ids) for sample in trained)
    assert sum(line["batch/untaught_rollouts"] for line in taught.lines()) > 0
    records = [record for summary in taught.summaries() for record in taught.rollouts(summary.step)]
    assert {record["cause"] for record in records if record["status"] == "errored"} == {"TeacherAnswerUnusable"}


async def test_a_group_of_which_the_teacher_refuses_every_rollout_fills_no_batch(taught: World) -> None:
    assert taught.teacher
    digit = len("example ")
    taught.teacher.refuses = lambda prompt: len(prompt) > 2 and prompt[digit] % 2 == 1
    assert await taught.run() == 0
    assert taught.last_word.groups.errored > 0
    assert {len(batch.samples) for _, batch in taught.trainer.batches} == {8}


async def test_an_environment_does_not_pause_for_what_the_teacher_refuses(taught: World) -> None:
    assert taught.teacher
    digit = len("example ")
    taught.teacher.refuses = lambda prompt: len(prompt) > 2 and prompt[digit] % 2 == 1
    taught.spec |= {"maxAsyncLevel": 0, "oversamplingFactor": 1}
    taught.settings["environment_backoff"] = 3600.0
    assert await taught.run(timeout=30.0) == 0
    assert taught.last_word.groups.errored > 0


async def test_without_a_refusal_no_rollout_is_untaught(taught: World) -> None:
    assert await taught.run() == 0
    assert {line["batch/untaught_rollouts"] for line in taught.lines()} == {0.0}


async def test_a_teacher_with_numbers_that_no_probability_has_ends_the_run(taught: World) -> None:
    assert taught.teacher
    taught.teacher.optimistic = True
    assert await taught.run() == 64
    assert taught.last_word.problem
    assert taught.last_word.problem.reason == "TeacherAnswerUnusable"


async def test_a_teacher_with_another_tokenizer_ends_the_run(taught: World) -> None:
    assert taught.teacher
    taught.teacher.foreign = True
    assert await taught.run() == 64
    assert taught.last_word.problem
    assert taught.last_word.problem.reason == "TeacherAnswerUnusable"


async def test_text_of_an_unusable_answer_is_not_shown(taught: World) -> None:
    assert taught.teacher
    taught.teacher.text_for_number = "text of an internal server"
    assert await taught.run() == 64
    assert taught.last_word.problem
    assert taught.last_word.problem.reason == "TeacherAnswerUnusable"
    assert "internal server" not in (taught.folder / "termination").read_text()


async def test_a_teacher_that_redirects_ends_the_run_and_leads_nowhere(taught: World) -> None:
    inside = FakeTeacher()
    server = await serve(inside.application())
    taught.servers.append(server)
    assert taught.teacher
    taught.teacher.redirect = str(server.make_url("/v1/completions"))
    assert await taught.run() == 64
    assert inside.requests == []
    assert taught.last_word.problem
    assert taught.last_word.problem.reason == "TeacherRefused"
    assert "a redirect to 127.0.0.1. " in taught.last_word.problem.message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_teacher_inside_the_cluster_is_not_called_unless_the_platform_allows_it(
    taught: World, host: str
) -> None:
    assert taught.teacher
    taught.settings["private_addresses"] = INTERNET_ONLY
    taught.spec["algorithm"]["teacher"]["url"] = taught.teacher_url.replace("127.0.0.1", host)
    assert await taught.run() == 64
    assert taught.teacher.requests == []
    assert taught.last_word.problem
    assert taught.last_word.problem.reason == "AddressNotAllowed"
    for part in ("`spec.algorithm.teacher.url`", host, "runs.privateAddresses"):
        assert part in taught.last_word.problem.message
