"""The draw of examples over processes: scores count once, and unused examples are drawn again."""

from rlrun_orchestrator.data.example_buffer import BufferSettings, ExampleBuffer
from rlrun_orchestrator.data.example_sampler import ExampleSampler


def sampler() -> ExampleSampler:
    return ExampleSampler(ExampleBuffer({"a": 50}, None, BufferSettings(filtering=True)))


def test_scores_since_the_last_batch_count_once() -> None:
    """One example was filtered, another is ready: of the first only its score is left, the second is dealt again."""
    before, after = sampler(), sampler()
    filtered, ready = (before.next_example(["a"]), before.next_example(["a"]))
    assert filtered is not None
    assert ready is not None
    for dealt in (filtered, ready):
        before.add_score(dealt, 1.0)
    after.restore(before.snapshot([ready]))
    after.apply_scores()
    assert after.buffer.state().pools["a"].excluded == [(filtered.example.index, "easy")]
    assert after.next_example(["a"]) == ready
    after.add_score(ready, 1.0)
    after.apply_scores()
    before.apply_scores()
    assert after.buffer.state() == before.buffer.state()


def test_examples_of_discarded_batches_are_drawn_again() -> None:
    one = sampler()
    drawn = [found for _ in range(4) if (found := one.next_example(["a"])) is not None]
    one.requeue(drawn[1:3])
    one.discard([2])
    again = [one.next_example(["a"]), one.next_example(["a"])]
    assert [found.ordinal for found in again if found is not None] == [1, 4]


def test_a_stale_example_is_drawn_again_twice_over_all_processes() -> None:
    before = sampler()
    first, second = before.next_example(["a"]), before.next_example(["a"])
    assert first is not None
    assert second is not None
    assert before.redraw(first)
    assert before.next_example(["a"]) == first, "before new ones, under its ordinal"
    after = sampler()
    after.restore(before.snapshot([first, second]))
    assert [after.next_example(["a"]), after.next_example(["a"])] == [first, second]
    assert after.redraw(first)
    assert after.next_example(["a"]) == first
    assert not after.redraw(first), "lost"
    assert after.redraw(second), "each example has its own count"
    ended = after.snapshot([])
    assert ended.redraws == [(second.ordinal, 1)], "what has ended is forgotten"
