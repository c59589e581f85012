"""The draw of examples: what it depends on, and that timing and restarts are not among it."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun_orchestrator.data.example_buffer import BufferSettings, Example, ExampleBuffer
from rlrun_orchestrator.data.example_sampler import ExampleSampler, SampledExample

FILTERING = BufferSettings(seed=1, filtering=True)


def test_an_epoch_draws_every_example_once_and_the_next_in_another_order() -> None:
    buffer = ExampleBuffer({"a": 20}, None, BufferSettings(seed=1))
    epochs = [[buffer.draw().index for _ in range(20)] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20))
    assert epochs[0] != epochs[1]


def test_another_seed_is_another_order() -> None:
    def drawn(seed: int) -> list[Example]:
        buffer = ExampleBuffer({"a": 20, "b": 20}, None, BufferSettings(seed=seed))
        return [buffer.draw() for _ in range(30)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_environments_are_drawn_by_weight() -> None:
    buffer = ExampleBuffer({"a": 5, "b": 5}, [3.0, 1.0], BufferSettings(seed=1))
    drawn = [buffer.draw().environment for _ in range(4000)]
    assert 0.73 < drawn.count("a") / 4000 < 0.77
    assert all(buffer.draw(["b"]).environment == "b" for _ in range(5))


def test_easy_and_hard_examples_leave_the_draw_and_come_back_when_nothing_else_is_left() -> None:
    buffer = ExampleBuffer({"a": 3}, None, FILTERING)
    buffer.record_reward(Example("a", 0), 0.9)
    buffer.record_reward(Example("a", 1), 0.1)
    assert {buffer.draw().index for _ in range(6)} == {2}
    buffer.record_reward(Example("a", 2), 0.95)
    assert {buffer.draw().index for _ in range(6)} == {0}, "the one that was excluded longest ago"
    buffer.record_reward(Example("a", 0), 0.95)
    assert {buffer.draw().index for _ in range(6)} == {1}
    assert buffer.metrics()["readmitted_examples"] == 2.0
    assert buffer.metrics()["readmitted_examples"] == 0.0, "counted from one step to the next"


def exclude_all_but(buffer: ExampleBuffer, size: int, normal: int) -> None:
    for index in range(normal, size):
        buffer.record_reward(Example("a", index), 1.0)


@pytest.mark.parametrize("normal", [0, 1, 15, 16, 17])
def test_few_normal_examples_are_joined_by_those_excluded_longest_ago(normal: int) -> None:
    buffer = ExampleBuffer({"a": 1000}, None, replace(FILTERING, groups_per_batch=16))
    exclude_all_but(buffer, 1000, normal)
    drawn = [buffer.draw().index for _ in range(1000)]
    assert set(drawn) == set(range(max(16, normal)))
    assert max(Counter(drawn).values()) <= 1000 // 16 + 1
    for start in range(1000 - 16):
        assert max(Counter(drawn[start : start + 16]).values()) <= 2, "no example more than twice in a batch"
    assert buffer.metrics()["readmitted_examples"] == max(0, 16 - normal)


def test_all_excluded_examples_come_back_in_turn_while_one_alone_is_normal() -> None:
    buffer = ExampleBuffer({"a": 100}, None, replace(FILTERING, groups_per_batch=16))
    exclude_all_but(buffer, 100, 1)
    seen: Counter[int] = Counter()
    for _ in range(50):
        batch = [buffer.draw().index for _ in range(16)]
        assert max(Counter(batch).values()) <= 2
        seen.update(batch)
        for index in batch:
            buffer.record_reward(Example("a", index), 0.5 if index == 0 else 1.0)
    assert set(seen) == set(range(100))
    assert max(count for index, count in seen.items() if index) <= 2 * min(seen.values())


def test_an_environment_smaller_than_a_batch_keeps_all_its_examples() -> None:
    buffer = ExampleBuffer({"a": 5, "b": 100}, None, replace(FILTERING, groups_per_batch=16))
    for index in range(5):
        buffer.record_reward(Example("a", index), 1.0)
    drawn = [buffer.draw(["a"]).index for _ in range(10)]
    assert Counter(drawn) == dict.fromkeys(range(5), 2)


def test_thresholds_belong_to_the_pools() -> None:
    buffer = ExampleBuffer({"a": 4}, None, BufferSettings(filtering=True, easy_threshold=0.7, hard_threshold=0.3))
    for index, reward in enumerate((0.7, 0.69, 0.31, 0.3)):
        buffer.record_reward(Example("a", index), reward)
    values = buffer.metrics()
    assert (values["pool/easy"], values["pool/normal"], values["pool/hard"]) == (0.25, 0.5, 0.25)


def test_evictions_are_counted_from_one_step_to_the_next() -> None:
    buffer = ExampleBuffer({"a": 10}, None, FILTERING)
    for index in range(3):
        buffer.record_reward(Example("a", index), 1.0)
    buffer.record_reward(Example("a", 3), 0.0)
    values = buffer.metrics()
    assert (values["evicted_examples/easy"], values["evicted_examples/hard"]) == (3.0, 1.0)
    assert buffer.metrics()["evicted_examples/easy"] == 0.0


def test_without_filtering_nothing_leaves_the_draw() -> None:
    buffer = ExampleBuffer({"a": 2}, None, BufferSettings(seed=1))
    buffer.record_reward(Example("a", 0), 1.0)
    assert {buffer.draw().index for _ in range(4)} == {0, 1}


@pytest.mark.parametrize(("easy", "hard", "reward"), [(0.3, 0.0, 1.0), (0.0, 0.3, 0.0)])
def test_a_share_of_the_easy_and_of_the_hard_examples_may_stay(easy: float, hard: float, reward: float) -> None:
    settings = BufferSettings(seed=1, filtering=True, easy_fraction=easy, hard_fraction=hard)
    buffer = ExampleBuffer({"a": 1000}, None, settings)
    for index in range(1000):
        buffer.record_reward(Example("a", index), reward)
    assert 0.25 < buffer.metrics()["pool/normal"] < 0.35
    drawn = Counter(buffer.draw().index for _ in range(500))
    assert max(drawn.values()) <= 2, "those that stay are drawn in turn"


@given(st.integers(0, 60), st.integers(0, 5))
def test_a_restored_buffer_goes_on_with_the_same_examples(before: int, seed: int) -> None:
    settings = BufferSettings(seed=seed, filtering=True)
    one = ExampleBuffer({"a": 7, "b": 11}, [1.0, 2.0], settings)
    for number in range(before):
        one.record_reward(one.draw(), (7 * number % 10) / 10)
    two = ExampleBuffer({"a": 7, "b": 11}, [1.0, 2.0], settings)
    two.restore(one.state())
    assert [two.draw() for _ in range(30)] == [one.draw() for _ in range(30)]


def test_a_buffer_that_has_drawn_returns_to_an_older_state() -> None:
    buffer = ExampleBuffer({"a": 5}, None, BufferSettings(seed=1))
    state = buffer.state()
    drawn = [buffer.draw() for _ in range(12)]
    buffer.restore(state)
    assert [buffer.draw() for _ in range(12)] == drawn


def test_an_environment_of_another_size_keeps_its_position() -> None:
    saved = ExampleBuffer({"a": 5}, None, BufferSettings(seed=1))
    for _ in range(3):
        saved.draw()
    buffer = ExampleBuffer({"a": 4, "b": 2}, None, BufferSettings(seed=1))
    buffer.restore(saved.state())
    assert (buffer.state().draws, buffer.state().pools["a"].cursor) == (3, 0)


def test_an_environment_without_weight_cannot_be_drawn_from() -> None:
    buffer = ExampleBuffer({"a": 2, "b": 2}, [1.0, 0.0], BufferSettings())
    assert [buffer.can_draw(names) for names in (["a"], ["b"], ["a", "b"])] == [True, False, True]


def test_a_state_counts_the_draws() -> None:
    buffer = ExampleBuffer({"a": 2}, None, BufferSettings())
    assert buffer.state().draws == 0
    for _ in range(3):
        buffer.draw()
    state = buffer.state()
    assert (state.draws, state.pools["a"].epoch, state.pools["a"].cursor) == (3, 1, 1)


@pytest.mark.parametrize(
    ("environment", "index", "expected"),
    [("a", 0, True), ("a", 1, True), ("a", 2, False), ("a", -1, False), ("b", 0, False)],
)
def test_contained_are_the_examples_of_the_environments(environment: str, index: int, expected: bool) -> None:
    assert ExampleBuffer({"a": 2}, None, BufferSettings()).contains(Example(environment, index)) is expected


@pytest.mark.parametrize(
    ("sizes", "weights"), [({"a": 0}, None), ({}, None), ({"a": 1}, [1.0, 1.0]), ({"a": 1}, [0.0])]
)
def test_a_buffer_with_nothing_to_draw_is_refused(sizes: dict[str, int], weights: list[float] | None) -> None:
    with pytest.raises(ValueError, match=r"environment"):
        ExampleBuffer(sizes, weights, BufferSettings())


# --- the deal ---------------------------------------------------------------------------------------------------------

ALL = ["a", "b"]


def deal() -> ExampleSampler:
    return ExampleSampler(ExampleBuffer({"a": 7, "b": 11}, [1.0, 2.0], FILTERING))


def draw(from_: ExampleSampler) -> SampledExample:
    sampled = from_.next_example(ALL)
    assert sampled is not None
    return sampled


def run(one: ExampleSampler, steps: int, order: random.Random) -> list[list[SampledExample]]:
    """Steps of four groups that come back in any order; every third ordinal is filtered and replaced."""
    batches = []
    for _ in range(steps):
        flying, batch = [draw(one) for _ in range(4)], []
        while flying:
            sampled = flying.pop(order.randrange(len(flying)))
            one.add_score(sampled, (sampled.ordinal % 5) / 4)
            if sampled.ordinal % 3 == 0:
                flying.append(draw(one))
            else:
                batch.append(sampled)
        one.apply_scores()
        batches.append(sorted(batch))
    return batches


@given(st.randoms(use_true_random=False))
def test_examples_do_not_depend_on_the_order_in_which_groups_finish(order: random.Random) -> None:
    assert run(deal(), 6, order) == run(deal(), 6, random.Random(0))


@given(st.integers(0, 5), st.randoms(use_true_random=False))
def test_a_restored_sampler_continues_with_the_same_examples(stop: int, order: random.Random) -> None:
    whole = run(deal(), 6, order)
    one = deal()
    first = run(one, stop, order)
    two = deal()
    two.restore(one.snapshot([]))
    assert first + run(two, 6 - stop, order) == whole


def test_examples_in_flight_are_drawn_again_first_with_their_ordinals() -> None:
    one = deal()
    sampled = [draw(one) for _ in range(6)]
    state = one.snapshot([sampled[1], sampled[2], sampled[4], sampled[5]])
    two = deal()
    two.restore(state)
    assert [draw(two) for _ in range(4)] == [sampled[1], sampled[2], sampled[4], sampled[5]]
    assert draw(two).ordinal == 6
    three = deal()
    three.restore(state)
    three.discard([1, 2])
    assert [draw(three) for _ in range(2)] == [sampled[4], sampled[5]]


def test_a_group_that_outlives_a_rewind_is_not_dealt_a_second_time() -> None:
    one = deal()
    first = [draw(one) for _ in range(2)]
    state = one.snapshot(first)
    alive, lost = draw(one), draw(one)
    one.restore(state, outstanding=[alive])
    again = [draw(one) for _ in range(4)]
    assert again[:2] == first
    assert again[2] == lost, "its number is free, the one before is still under way"
    assert again[3].ordinal == lost.ordinal + 1
    assert alive not in again


def test_ordinals_of_groups_kept_by_a_rewind_are_not_given_to_others() -> None:
    one = deal()
    first = [draw(one) for _ in range(2)]
    state = one.snapshot(first)
    alive, lost = draw(one), draw(one)
    one.restore(state, outstanding=[alive])
    two = deal()
    two.restore(one.snapshot([alive]))
    assert [draw(one).ordinal for _ in range(4)] == [0, 1, lost.ordinal, 4], "though nothing tells whether it ended"
    assert [draw(two).ordinal for _ in range(5)] == [0, 1, alive.ordinal, lost.ordinal, 4]


def test_examples_of_an_environment_that_is_away_wait_for_it() -> None:
    one = deal()
    sampled = [draw(one) for _ in range(8)]
    assert {d.example.environment for d in sampled} == {"a", "b"}
    two = deal()
    two.restore(one.snapshot(sampled))
    only_a = [d for d in sampled if d.example.environment == "a"]
    assert [two.next_example(["a"]) for _ in only_a] == only_a
    assert two.next_example([]) is None
    assert draw(two) == next(d for d in sampled if d.example.environment == "b")


@pytest.mark.parametrize(
    ("means", "pool"),
    [
        ([0.5], "normal"),
        ([1.0, 0.5], "normal"),
        ([0.0, 0.5], "normal"),
        ([1.0, 0.9], "easy"),
        ([0.0, 0.1], "hard"),
        ([0.0, 1.0], "easy"),
        ([-1.0, 1.0], "easy"),
    ],
)
def test_an_example_is_excluded_if_no_agent_can_learn_from_it(means: list[float], pool: str) -> None:
    buffer = ExampleBuffer({"a": 10}, None, BufferSettings(filtering=True))
    buffer.record_reward(Example("a", 0), buffer.settings.decisive_mean(means))
    values = buffer.metrics()
    assert [name for name in ("easy", "hard") if values[f"pool/{name}"]] == ([] if pool == "normal" else [pool])
