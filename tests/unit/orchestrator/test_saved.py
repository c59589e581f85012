"""Which of the states that earlier processes left a new one continues from."""

from typing import Any

import pytest
from rlrun.schema.wire import PolicyRef, SessionState, StepResult
from rlrun_orchestrator import saved
from rlrun_orchestrator.batch import Batch
from rlrun_orchestrator.board import RunProgress
from rlrun_orchestrator.buffer import Buffer, BufferSettings, Example
from rlrun_orchestrator.deal import Deal

POLICY = PolicyRef(version=0, digest="0123456789abcdef", uri="s3://bucket/policy")


def deal() -> Deal:
    return Deal(Buffer({"a": 50}, None, BufferSettings(filtering=True)))


def left(step: int, drawn: int, *, run: str = "uid", sent: bool = False) -> dict[str, Any]:
    """The state after `step` steps with `drawn` examples, of which the last two are under way."""
    progress, one = RunProgress(), deal()
    progress.reward_errors = drawn
    dealt = [found for _ in range(drawn) if (found := one.draw(["a"])) is not None]
    one.done(dealt[:-2])
    one.buffer.scored(Example("a", 7), 1.0)
    batch = Batch(step, [], dealt[-2:], 10, values={"reward/mean": 0.5}, reward=0.5, id="x")
    return saved.state_of(run, step, progress, one, [batch.sent()] if sent else [])


def session(step: int, checkpointed: dict[str, Any] | None = None, *, made_of: str | None = None) -> SessionState:
    last = StepResult(step=step, policy=POLICY, metrics={}, batch_id=made_of) if made_of is not None else None
    return SessionState(step=step, policy=POLICY, orchestrator_state=checkpointed, last=last)


def restored(
    state: SessionState, found: dict[str, Any] | None, kept: dict[str, Any] | None = None
) -> tuple[int, int, saved.Unheard | None, Deal]:
    """(ordinal dealt next, reward errors, the step nobody heard of, the deal)."""
    progress, one = RunProgress(), deal()
    continued = saved.restore("uid", found, kept, state, progress, one)
    dealt = one.draw(["a"])
    assert dealt is not None
    return dealt.ordinal, progress.reward_errors, continued.unheard, one


def test_a_run_that_begins_is_dealt_from_the_beginning() -> None:
    assert restored(session(0), None)[:3] == (0, 0, None)


def test_the_newest_state_counts_where_the_trainer_is_at_its_step() -> None:
    assert restored(session(3), left(3, 10))[:3] == (8, 10, None)
    assert restored(session(3, left(2, 6)), left(3, 10, sent=True))[:3] == (8, 10, None), "the batch was not trained"


def test_one_batch_further_its_examples_are_trained() -> None:
    ordinal, _, unheard, _ = restored(session(4, made_of="x"), left(3, 10, sent=True))
    assert ordinal == 10
    assert unheard is not None
    assert unheard.batch is not None
    assert (unheard.batch.step, unheard.batch.ordinals, unheard.batch.reward) == (3, [8, 9], 0.5)


def test_a_step_is_of_the_batch_that_the_trainer_names_and_of_no_other() -> None:
    ordinal, _, unheard, _ = restored(session(4, made_of="y"), left(3, 10, sent=True))
    assert unheard == saved.Unheard(None), "nobody knows that batch"
    assert ordinal == 8, "x was not trained"
    two = left(3, 10, sent=True)
    two["sent"] = [two["sent"][0] | {"id": "w", "reward": 0.25}, two["sent"][0]]
    unheard = restored(session(4, made_of="w"), two)[2]
    assert unheard is not None
    assert unheard.batch is not None
    assert unheard.batch.reward == 0.25


def test_a_checkpoint_that_a_trainer_saved_when_it_ended_has_the_step_of_the_batch_that_was_sent() -> None:
    ordinal, _, unheard, _ = restored(session(4, {}), left(3, 10, sent=True))
    assert ordinal == 10
    assert unheard is not None
    assert unheard.batch is not None
    assert unheard.batch.id == "x"


def test_batches_of_the_next_step_may_be_under_way() -> None:
    progress, one = RunProgress(), deal()
    continued = saved.restore("uid", left(3, 10, sent=True), None, session(3), progress, one)
    assert continued.unheard is None
    assert [batch.id for batch in continued.sent] == ["x"]


def test_a_step_made_without_any_record_of_its_batch_is_told_all_the_same() -> None:
    unheard = restored(session(4, made_of=""), left(3, 10))[2]
    assert unheard == saved.Unheard(None)
    assert restored(session(4), left(3, 10))[2] is None, "the trainer knows nothing of it either"


def test_a_checkpoint_without_a_state_has_the_one_that_was_kept_for_its_step() -> None:
    assert restored(session(5, {}), left(7, 30), left(5, 20))[:2] == (18, 30)
    assert restored(session(5, {}), left(7, 30), left(4, 20))[0] == 28, "of another step: the nearest is used"
    assert restored(session(5, left(5, 14)), left(7, 30), left(5, 20))[0] == 12, "the checkpoint's own goes before it"


def test_the_nearest_draw_is_better_than_the_first() -> None:
    assert restored(session(5), left(3, 12))[0] == 10
    assert restored(session(5, left(4, 14)), left(7, 30))[0] == 12, "a step before it rather than one after it"


def test_a_checkpoint_of_a_later_step_than_the_state_that_s3_has_knows_more() -> None:
    ordinal, errors, unheard, _ = restored(session(5, left(5, 14)), left(4, 12, sent=True))
    assert (ordinal, errors, unheard) == (12, 14, None)


def test_a_trainer_that_went_back_brings_the_draw_of_its_checkpoint_and_not_its_counters() -> None:
    assert restored(session(2, left(2, 6)), left(5, 20, sent=True))[:3] == (4, 20, None)
    assert restored(session(0), left(5, 20))[:2] == (0, 20), "no checkpoint: from the beginning"


def test_another_runs_checkpoint_brings_its_knowledge_of_the_examples_only() -> None:
    ordinal, errors, _, one = restored(session(0, left(5, 20, run="other")), None)
    assert (ordinal, errors) == (0, 0)
    assert one.buffer.metrics()["pool/easy"] == 1 / 50


@pytest.mark.parametrize("broken", [{}, {"step": 3}, {"step": "x", "board": 1}, {"step": 3, "board": {}, "deal": []}])
def test_a_state_of_another_shape_is_left(broken: dict[str, Any]) -> None:
    assert restored(session(3, left(3, 6)), broken)[0] == 4


def test_what_was_scored_since_the_last_batch_counts_once() -> None:
    """One example was filtered, another is ready: of the first only its score is left, the second is dealt again."""
    before, after = deal(), deal()
    filtered, ready = (before.draw(["a"]), before.draw(["a"]))
    assert filtered is not None
    assert ready is not None
    for dealt in (filtered, ready):
        before.scored(dealt, 1.0)
    before.done([filtered])
    after.restore(before.state())
    after.settle()
    assert after.buffer.state()["pools"]["a"]["easy"] == [filtered.example.index]
    assert after.draw(["a"]) == ready
    after.scored(ready, 1.0)
    after.settle()
    before.settle()
    assert after.buffer.state() == before.buffer.state()


def test_batches_that_were_sent_for_nothing_are_dealt_again() -> None:
    one = deal()
    drawn = [found for _ in range(4) if (found := one.draw(["a"])) is not None]
    one.put_back(drawn[1:3])
    one.forget([2])
    again = [one.draw(["a"]), one.draw(["a"])]
    assert [found.ordinal for found in again if found is not None] == [1, 4]
