"""Decisions after a restart: what to do about the step of the trainer, and which state the draw continues from."""

from itertools import product
from typing import Any

import pytest
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.trainer import SessionState, StepResult
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.storage.recovery import (
    Acknowledge,
    Continue,
    Decision,
    Exact,
    Initial,
    KnownStates,
    Nearest,
    OtherRun,
    Resend,
    Rewind,
    checkpoint_lacks_state,
    choose_sampler_state,
    decide,
    newest_state,
    restore_sampler,
)

from tests.support.resume_states import STEP, sampler, sent, state_after

POLICY = PolicyRef(version=0, digest="0123456789abcdef", uri="s3://bucket/policy")


def session(step: int, *, made_of: str | None = None) -> SessionState:
    """A trainer at `step`. `made_of`: the batch that its result names; None: it has no result."""
    return SessionState(step=step, policy=POLICY, last=result(step, made_of) if made_of is not None else None)


def result(step: int, made_of: str) -> StepResult:
    return StepResult(step=step, policy=POLICY, metrics={}, batch_id=made_of)


def decided(trainer: SessionState, batches: list[SentBatch], *, in_hand: bool = False, posted: bool = True) -> Decision:
    newest = batches[-1] if in_hand else None
    return decide(trainer, batches, at_step=STEP, in_hand=newest, posted=posted)


@pytest.mark.parametrize("posted", [False, True])
@pytest.mark.parametrize("made_of", [None, "", "x", "other"])
def test_at_the_same_step_a_batch_in_hand_is_sent_again(made_of: str | None, posted: bool) -> None:
    trainer = session(STEP, made_of=made_of)
    assert decided(trainer, sent("w", "x"), in_hand=True, posted=posted) == Resend("x")
    assert decided(trainer, sent("w", "x")) == Continue(), "nothing is in hand"
    assert decided(trainer, []) == Continue()


@pytest.mark.parametrize(
    ("batches", "in_hand", "posted", "made_of", "expected"),
    [
        # The result names a batch that was posted.
        ("wx", True, True, "x", "x"),
        ("wx", True, True, "w", "w"),
        ("wx", True, False, "w", "w"),
        ("wx", False, True, "w", "w"),
        ("xx", True, False, "x", "x"),
        # It names none, or the trainer has no result: the newest batch that was posted.
        ("wx", True, True, "", "x"),
        ("wx", True, False, "", "w"),
        ("wx", False, True, "", "x"),
        ("wx", True, True, None, "x"),
        ("wx", True, False, None, "w"),
        ("wx", False, True, None, "x"),
        # It names an unknown one.
        ("wx", True, True, "other", None),
        ("wx", True, False, "other", None),
        ("wx", False, True, "other", None),
        ("x", True, False, "x", None),
        # No batch was posted.
        ("x", True, False, "", None),
        ("", False, True, "", None),
        ("", False, True, "x", None),
    ],
)
def test_one_step_ahead_the_step_is_acknowledged_with_the_batch_it_was_made_of(
    batches: str, in_hand: bool, posted: bool, made_of: str | None, expected: str | None
) -> None:
    decision = decided(session(STEP + 1, made_of=made_of), sent(*batches), in_hand=in_hand, posted=posted)
    assert isinstance(decision, Acknowledge)
    assert (decision.batch.id if decision.batch else None) == expected
    assert decision.result == result(STEP + 1, made_of or "")


def test_one_step_ahead_without_a_result_or_a_posted_batch_the_run_follows_the_trainer() -> None:
    assert decided(session(STEP + 1), sent("x"), in_hand=True, posted=False) == Rewind(STEP + 1)
    assert decided(session(STEP + 1), []) == Rewind(STEP + 1)


def test_a_result_of_another_step_is_ignored() -> None:
    trainer = session(STEP + 1).model_copy(update={"last": result(STEP, "x")})
    assert decided(trainer, []) == Rewind(STEP + 1)


@pytest.mark.parametrize("step", [0, STEP - 1, STEP + 2])
def test_at_any_other_step_the_run_follows_the_trainer(step: int) -> None:
    for in_hand, posted in product([False, True], repeat=2):
        assert decided(session(step), sent("x"), in_hand=in_hand, posted=posted) == Rewind(step)
    assert decided(session(step, made_of="x"), sent("x")) == Rewind(step, result(step, "x"))


@pytest.mark.parametrize(("saved", "own", "expected"), [(3, None, 3), (None, 3, 3), (3, 3, 3), (5, 3, 5), (3, 5, 5)])
def test_the_newest_state_is_of_the_later_step(saved: int | None, own: int | None, expected: int) -> None:
    """Of the same step the one in S3, which is younger than the checkpoint's."""
    in_s3 = state_after(saved, 6) if saved is not None else None
    in_checkpoint = state_after(own, 9) if own is not None else None
    found = newest_state("uid", in_s3, in_checkpoint)
    assert found is (in_s3 if saved == expected else in_checkpoint)
    assert found is not None
    assert found.step == expected


def test_another_runs_state_is_never_the_newest_of_this_run() -> None:
    assert newest_state("uid", None, state_after(5, 6, run="other")) is None


def test_only_a_state_of_this_run_and_of_the_step_makes_a_checkpoint_complete() -> None:
    assert not checkpoint_lacks_state("uid", 0, None), "there is no checkpoint of step 0"
    assert checkpoint_lacks_state("uid", 3, None)
    assert checkpoint_lacks_state("uid", 3, state_after(2, 6))
    assert checkpoint_lacks_state("uid", 3, state_after(3, 6, run="other"))
    assert not checkpoint_lacks_state("uid", 3, state_after(3, 6))


OLDER, EQUAL, NEWER = state_after(2, 6), state_after(3, 8), state_after(5, 12)
OTHER = state_after(3, 10, run="other")


@pytest.mark.parametrize(
    ("step", "states", "expected"),
    [
        (3, KnownStates(OLDER, EQUAL, NEWER), Exact(EQUAL)),
        (3, KnownStates(EQUAL, NEWER, OLDER), Exact(EQUAL)),
        (3, KnownStates(OLDER, NEWER, EQUAL), Exact(EQUAL)),
        (3, KnownStates(None, OLDER, None), Nearest(OLDER)),
        (3, KnownStates(None, NEWER, None), Nearest(NEWER)),
        (3, KnownStates(OLDER, NEWER, None), Nearest(OLDER)),
        (3, KnownStates(NEWER, OLDER, None), Nearest(OLDER)),
        (6, KnownStates(OLDER, NEWER, None), Nearest(NEWER)),
        (3, KnownStates(None, None, OLDER), Initial()),
        (3, KnownStates(OTHER, None, None), Initial()),
        (3, KnownStates(OTHER, OLDER, None), Nearest(OLDER)),
        (0, KnownStates(None, None, None), Initial()),
        (0, KnownStates(None, NEWER, None), Initial()),
        (0, KnownStates(OTHER, None, None), OtherRun(OTHER)),
        (0, KnownStates(OTHER, NEWER, None), OtherRun(OTHER)),
        (0, KnownStates(OTHER, state_after(0, 4), None), Exact(state_after(0, 4))),
    ],
)
def test_the_draw_continues_from_a_state_of_the_step_or_the_nearest(
    step: int, states: KnownStates, expected: object
) -> None:
    assert choose_sampler_state("uid", step, states) == expected


def next_ordinal(choice: Any, step: int) -> int:
    one = sampler()
    restore_sampler(one, choice, step)
    sampled = one.next_example(["a"])
    assert sampled is not None
    return sampled.ordinal


def test_the_next_ordinal_follows_the_chosen_state(caplog: pytest.LogCaptureFixture) -> None:
    assert next_ordinal(Exact(EQUAL), 3) == 6
    assert next_ordinal(OtherRun(OTHER), 0) == 0, "ordinals are this run's own"
    assert next_ordinal(Initial(), 0) == 0
    assert not caplog.records
    assert next_ordinal(Nearest(OLDER), 3) == 4
    assert next_ordinal(Initial(), 3) == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def test_another_runs_checkpoint_brings_its_knowledge_of_the_examples() -> None:
    one = sampler()
    restore_sampler(one, OtherRun(OTHER), 0)
    assert one.buffer.metrics()["pool/easy"] == 1 / 50
