"""What becomes of an environment's answer: which rollouts count, how the group is judged, what is trained."""

import math

import pytest
from pydantic import ValidationError
from rlrun.api.run_sections.rollouts import TrajectoryStrategy
from rlrun.api.run_sections.training import Advantage, Algorithm, AlgorithmName, LengthPenalty
from rlrun.protocol.environment import GroupResult, RolloutResult
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.problem import Problem
from rlrun_orchestrator.data.batch_metrics import MAX_NAMED_AGENTS, batch_metrics
from rlrun_orchestrator.data.example_buffer import Example
from rlrun_orchestrator.data.example_sampler import SampledExample
from rlrun_orchestrator.data.group_filter import FilterReason, GroupFilter
from rlrun_orchestrator.data.groups import Group, GroupState
from rlrun_orchestrator.data.scoring import MAX_AGENTS, ScoringSettings, score_group
from rlrun_orchestrator.data.trajectories import Turn
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, LiveGroups
from rlrun_orchestrator.training.serialization import trained_tokens, training_samples

from tests.support.reference_tables import documented

POLICY = PolicyRef(version=7, digest="0123456789abcdef", uri="s3://bucket/policy")


def live(*rollouts: str) -> LiveGroup:
    """A group in which these rollouts drew two tokens each, in this order."""
    group = LiveGroups("base").open(POLICY, ordinal=41)
    for rollout in rollouts:
        group.record_turn(rollout, group.next_arrival(), Turn.of([1], [2, 3], [-0.5, -0.25], "stop", version=7))
    return group


def test_tokens_keep_the_policy_of_their_turn() -> None:
    group = LiveGroups("base").open(POLICY, ordinal=41)
    for version, prompt in ((7, [1]), (9, [1, 2, 3, 4])):
        group.versions.add_turn(version)
        turn = Turn.of(prompt, [2, 3], [-0.5, -0.25], "stop", version=version)
        for rollout in ("both", "older")[: 1 if version == 9 else 2]:
            group.record_turn(rollout, group.next_arrival(), turn)
    found = scored([outcome("both", 1.0), outcome("older", 0.0)], group)
    assert (found.version, [rollout.versions for rollout in found.rollouts]) == (7, [{7, 9}, {7}])
    both, older = training_samples([found])
    assert (both.policy_version, both.turn_versions) == (7, [7, 9])
    assert list(both.loss_mask) == [0, 1, 1, 0, 1, 1]
    assert (older.policy_version, older.turn_versions) == (7, None), "one version needs no list"
    values = batch_metrics([found], 10, 2)
    assert (values["batch/off_policy_level/max"], values["batch/policies_per_rollout"]) == (3.0, 1.5)


SUPERVISED = Algorithm(name=AlgorithmName.sft)


def scoring(
    asked: int,
    filtering: GroupFilter | None = None,
    *,
    verify: bool = True,
    algorithm: Algorithm | None = None,
    filter_zero_advantages: bool = False,
) -> ScoringSettings:
    rules = filtering or GroupFilter()
    strategy = TrajectoryStrategy.interleaved
    return ScoringSettings(asked, strategy, 64, rules, verify, algorithm or Algorithm(), filter_zero_advantages)


def scored(outcomes: list[RolloutResult], recorded: LiveGroup, rules: ScoringSettings | None = None) -> Group:
    result = GroupResult(group_id="g", rollouts=outcomes, seconds=1.0)
    group = Group(recorded.id, SampledExample(recorded.ordinal, Example("env", 3)), recorded.versions)
    turns, refusals = recorded.turns_by_rollout(), recorded.final_refusals()
    group.enter(score_group(group, result, turns, refusals, rules or scoring(len(outcomes))))
    return group


def outcome(rollout: str, reward: float, error: Problem | None = None) -> RolloutResult:
    return RolloutResult(rollout_id=rollout, reward=reward, error=error)


def reasons(group: Group) -> list[str | None]:
    return [rollout.error.reason if rollout.error else None for rollout in group.rollouts]


def test_a_group_becomes_samples_with_advantages_and_errors_stay_out() -> None:
    failed = Problem(reason="RewardFunctionError", message="boom")
    group = scored(
        [
            RolloutResult(rollout_id="r0", reward=1.0, metrics={"acc": 1.0}),
            outcome("r1", 0.0),
            outcome("r2", 0.0, failed),
            outcome("made-up", 1.0),
        ],
        live("r0", "r1", "r2", "r3"),
    )
    assert group.state is GroupState.ready
    assert (group.version, group.ordinal) == (7, 41)
    assert reasons(group) == [None, None, "RewardFunctionError", "RolloutNotRecorded"]
    samples = training_samples([group])
    assert [s.advantage for s in samples] == [0.5, -0.5]
    assert {s.policy_version for s in samples} == {7}
    values = batch_metrics([group], 9, 4)
    assert values["reward/mean"] == 0.5
    assert values["error/mean"] == 0.5
    assert values["batch/off_policy_level/mean"] == 2.0
    assert values["seq_len/mean"] == 3.0
    assert values["metrics/acc/mean"] == 1.0


def test_first_error_is_that_of_the_first_rollout_that_failed() -> None:
    failed = [Problem(reason=reason, message="m") for reason in ("RewardFunctionError", "RolloutTimeout")]
    answer = [outcome("r0", 1.0), outcome("r1", 0.0, failed[0]), outcome("r2", 0.0, failed[1])]
    assert scored(answer, live("r0", "r1", "r2")).first_error == failed[0]
    assert scored(answer[:1], live("r0")).first_error is None


def test_a_rollout_is_truncated_if_one_of_its_turns_is_or_the_environment_says_so() -> None:
    recorded = live("r0", "r1", "r2")
    recorded.record_turn("r0", recorded.next_arrival(), Turn.of([1, 2, 3, 4], [5], [-0.5], "length"))
    answer = [outcome("r0", 1.0), outcome("r1", 0.0), RolloutResult(rollout_id="r2", reward=0.0, is_truncated=True)]
    assert [rollout.truncated for rollout in scored(answer, recorded).rollouts] == [True, False, True]


def test_one_recorded_rollout_cannot_be_claimed_twice() -> None:
    group = scored([outcome("r0", 1.0)] * 3, live("r0"))
    assert group.state is GroupState.errored
    assert len(group.valid_rollouts) == 1
    assert reasons(group) == [None, "RolloutRepeated", "RolloutRepeated"]


def test_more_rollouts_than_asked_for_weigh_no_more() -> None:
    answer = [outcome(f"r{i}", float(i)) for i in range(5)]
    group = scored(answer, live(*(f"r{i}" for i in range(5))), scoring(3))
    assert reasons(group) == [None] * 3 + ["RolloutUnasked"] * 2
    assert group.rewards == [0.0, 1.0, 2.0]


def test_unrequested_rollouts_do_not_replace_requested_ones() -> None:
    group = scored([outcome("fake", 9.0), outcome("r0", 1.0), outcome("r1", 0.0)], live("r0", "r1"), scoring(2))
    assert group.rewards == [1.0, 0.0]
    assert reasons(group)[-1] == "RolloutUnasked"


def part(rollout: str, episode: str, agent: str, reward: float) -> RolloutResult:
    return RolloutResult(rollout_id=rollout, episode=episode, agent=agent, reward=reward)


DUEL = [
    part("a1", "e1", "asker", 3.0),
    part("b1", "e1", "guesser", -3.0),
    part("a2", "e2", "asker", 1.0),
    part("b2", "e2", "guesser", -1.0),
]


def test_each_agent_of_an_episode_is_a_sample_compared_with_its_own_agent_only() -> None:
    found = scored(DUEL, live("a1", "b1", "a2", "b2"), scoring(2))
    assert found.state is GroupState.ready
    assert {one.result.rollout_id: one.advantage for one in found.rollouts} == {
        "a1": 1.0,
        "b1": -1.0,
        "a2": -1.0,
        "b2": 1.0,
    }
    assert [sample.advantage for sample in training_samples([found])] == [1.0, -1.0, -1.0, 1.0]
    values = batch_metrics([found], 8, 2)
    assert (values["reward/env/mean"], values["batch/missing_rollouts"]) == (0.0, 0.0)
    assert (values["reward/env/asker/mean"], values["reward/env/guesser/mean"]) == (2.0, -2.0)
    assert all(documented(name) for name in values)
    assert batch_metrics([found], 8, 3)["batch/missing_rollouts"] == 1.0


def test_more_agents_than_an_environment_has_by_design_get_no_metrics() -> None:
    for agents, reported in ((MAX_NAMED_AGENTS, MAX_NAMED_AGENTS), (MAX_NAMED_AGENTS + 1, 0)):
        names = [f"r{number}" for number in range(agents)]
        parts = [part(name, name, f"agent-{name}", 1.0) for name in names]
        found = scored(parts, live(*names), scoring(agents, algorithm=SUPERVISED))
        values = batch_metrics([found], 8, agents)
        assert sum(name.startswith("reward/env/agent-") and name.endswith("/mean") for name in values) == reported


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, "a\nb"])
def test_a_name_of_an_agent_that_metrics_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="agent"):
        part("r1", "e1", name, 1.0)


def test_no_more_episodes_count_than_were_asked_for() -> None:
    found = scored([*DUEL, part("a3", "e3", "asker", 9.0)], live("a1", "b1", "a2", "b2", "a3"), scoring(2))
    assert reasons(found) == [None] * 4 + ["RolloutUnasked"]


def test_an_episode_has_a_bounded_number_of_rollouts() -> None:
    many = [part(f"r{number}", "e1", "asker", float(number)) for number in range(MAX_AGENTS + 2)]
    found = scored(many, live(*(one.rollout_id for one in many)), scoring(1))
    assert reasons(found) == [None] * MAX_AGENTS + ["RolloutUnasked"] * 2


def test_an_agent_without_a_second_rollout_is_left_out() -> None:
    found = scored(DUEL[:3], live("a1", "b1", "a2"), scoring(2))
    assert found.state is GroupState.ready
    assert [one.left_out for one in found.rollouts] == [False, True, False]
    assert len(training_samples([found])) == 2
    alone = scored(DUEL[:2], live("a1", "b1"), scoring(2))
    assert alone.state is GroupState.errored


def test_agents_with_other_names_in_each_episode_are_an_error_with_a_cause() -> None:
    names = [f"r{number}" for number in range(10)]
    found = scored([part(name, name, f"agent-{name}", 1.0) for name in names], live(*names), scoring(10))
    assert found.state is GroupState.errored
    assert reasons(found) == ["AgentsNotComparable"] * 10
    assert found.first_error
    assert "agent-r0, agent-r1" in found.first_error.message
    assert "agent-r7 and others. Give an agent the same name in every episode" in found.first_error.message
    alone = scored(DUEL[:2], live("a1", "b1"), scoring(2))
    assert reasons(alone) == [None, None], "its other episode failed, which is the cause"


def test_each_agent_has_a_mean_of_its_own() -> None:
    found = scored(
        [one.model_copy(update={"reward": 1.0 if one.agent == "asker" else -1.0}) for one in DUEL],
        live("a1", "b1", "a2", "b2"),
        scoring(2),
    )
    assert sorted(found.mean_rewards) == [-1.0, 1.0]


def test_an_agent_whose_rewards_teach_nothing_is_left_out_alone() -> None:
    rewards = {"a1": 1.0, "b1": 0.0, "a2": 1.0, "b2": 1.0}
    outcomes = [one.model_copy(update={"reward": rewards[one.rollout_id]}) for one in DUEL]
    rules = scoring(2, GroupFilter(online=True))
    found = scored(outcomes, live(*rewards), rules)
    assert (found.state, found.filter_reason) == (GroupState.ready, None)
    assert [one.left_out for one in found.rollouts] == [True, False, True, False]
    same = scored([one.model_copy(update={"reward": 1.0}) for one in DUEL], live(*rewards), rules)
    assert (same.state, same.filter_reason) == (GroupState.filtered, FilterReason.all_one)


def test_fewer_rollouts_than_asked_for_are_counted_as_missing() -> None:
    group = scored([outcome("r0", 1.0), outcome("r1", 0.0)], live("r0", "r1"), scoring(4))
    assert group.state is GroupState.ready
    assert batch_metrics([group], 7, 4)["batch/missing_rollouts"] == 2.0
    assert scored([outcome("r0", 1.0)], live("r0"), scoring(4)).state is GroupState.errored
    nothing = scored([], live(), scoring(4))
    assert (nothing.state, nothing.mean_rewards) == (GroupState.errored, [])


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1e19, -1e300])
def test_a_reward_that_is_no_finite_number_costs_its_rollout_only(reward: float) -> None:
    answer = [outcome("r0", reward), outcome("r1", 1.0), outcome("r2", 0.0)]
    group = scored(answer, live("r0", "r1", "r2"))
    assert reasons(group) == ["RewardNotFinite", None, None]
    assert [rollout.advantage for rollout in group.valid_rollouts] == [0.5, -0.5]


def test_rollouts_are_in_the_order_of_their_first_requests_whatever_the_answer_says() -> None:
    group = scored([outcome("b", 1.0), outcome("c", 0.0), outcome("a", 0.5)], live("a", "b", "c"))
    assert [rollout.result.rollout_id for rollout in group.rollouts] == ["a", "b", "c"]


TWO_EQUAL = pytest.mark.parametrize(
    ("filtering", "rewards", "cause"),
    [
        (GroupFilter(), [1.0, 1.0], None),
        (GroupFilter(online=True), [1.0, 0.0], None),
        (GroupFilter(online=True), [0.5, 0.5], None),
        (GroupFilter(online=True), [1.0, 1.0], FilterReason.all_one),
        (GroupFilter(online=True), [0.0, 0.0], FilterReason.all_zero),
        # Their mean is 0 or 1, and they have the most signal of all.
        (GroupFilter(online=True), [-1.0, 1.0], None),
        (GroupFilter(online=True), [0.0, 2.0], None),
        (GroupFilter(online=True), [0.5, 1.5], None),
        (GroupFilter(min_reward_variance=0.0), [0.1, 0.1, 0.1], FilterReason.low_variance),
        (GroupFilter(min_reward_variance=0.0), [0.1, 0.1, 0.2], None),
        (GroupFilter(min_reward_variance=0.25), [0.0, 1.0], None),
        (GroupFilter(min_reward_variance=0.25), [0.0, 0.9], FilterReason.low_variance),
        (GroupFilter(min_reward_variance=None, max_reward=0.8), [0.7, 1.0], FilterReason.high_reward),
        (GroupFilter(min_reward_variance=None, max_reward=0.85), [0.7, 1.0], None),
        (GroupFilter(min_reward_variance=None, min_reward=0.2), [0.0, 0.3], FilterReason.low_reward),
        (GroupFilter(min_reward_variance=None, min_reward=0.15), [0.0, 0.3], None),
    ],
)


@TWO_EQUAL
def test_groups_that_teach_too_little_are_filtered_and_say_why(
    filtering: GroupFilter, rewards: list[float], cause: FilterReason | None
) -> None:
    names = [f"r{i}" for i in range(len(rewards))]
    answer = [outcome(name, reward) for name, reward in zip(names, rewards, strict=True)]
    group = scored(answer, live(*names), scoring(len(rewards), filtering))
    assert group.filter_reason is cause
    assert group.state is (GroupState.ready if cause is None else GroupState.filtered)


@pytest.mark.parametrize(("leave_out", "samples", "tokens"), [(True, 2, 4), (False, 20, 40)])
def test_rollouts_without_an_advantage_are_left_out_of_samples_and_tokens(
    leave_out: bool, samples: int, tokens: int
) -> None:
    """Nine of ten groups have equal rewards: with them in the denominator the gradient would be a tenth."""
    rules = scoring(2, filter_zero_advantages=leave_out)
    pairs = [(0.1 * number, 0.1 * number) for number in range(9)]
    groups = [
        scored([outcome("r0", one), outcome("r1", two)], live("r0", "r1"), rules) for one, two in [*pairs, (0.0, 1.0)]
    ]
    assert len(training_samples(groups)) == samples
    assert trained_tokens(groups) == tokens
    values = batch_metrics(groups, 7, 2)
    assert values["batch/effective_batch_size"] == samples
    assert values["batch/zero_advantage_rollouts"] == 20 - samples
    assert values["reward/mean"] == pytest.approx(sum(2 * one for one, _ in pairs) / 20 + 1 / 20)


def test_the_mean_rollout_of_a_group_is_left_out_and_the_others_are_trained() -> None:
    answer = [outcome("r0", 0.1), outcome("r1", 0.2), outcome("r2", 0.3)]
    group = scored(answer, live("r0", "r1", "r2"), scoring(3, filter_zero_advantages=True))
    assert [rollout.left_out for rollout in group.rollouts] == [False, True, False]
    assert len(group.valid_rollouts) == 3
    assert len(group.trained_rollouts) == 2


def test_a_failed_rollout_is_not_left_out_but_failed() -> None:
    failed = Problem(reason="RewardFunctionError", message="boom")
    answer = [outcome("r0", 1.0), outcome("r1", 1.0), outcome("r2", 1.0, failed)]
    group = scored(answer, live("r0", "r1", "r2"), scoring(3, filter_zero_advantages=True))
    assert [rollout.left_out for rollout in group.rollouts] == [True, True, False]
    assert batch_metrics([group], 7, 3)["batch/missing_rollouts"] == 1.0
    assert group.trained_rollouts == []


def test_without_a_baseline_no_rollout_is_left_out() -> None:
    group = scored([outcome("r0", 1.0)], live("r0"), scoring(4, algorithm=SUPERVISED, filter_zero_advantages=True))
    assert len(group.trained_rollouts) == 1


def test_rewards_are_the_advantages_of_single_rollouts_without_a_baseline() -> None:
    rules = scoring(4, algorithm=Algorithm(advantage=Advantage.none), filter_zero_advantages=True)
    assert [one.advantage for one in scored([outcome("r0", 1.0)], live("r0"), rules).trained_rollouts] == [1.0]
    group = scored([outcome("r0", 1.0), outcome("r1", 1.0), outcome("r2", 0.0)], live("r0", "r1", "r2"), rules)
    assert [one.advantage for one in group.trained_rollouts] == [1.0, 1.0]


def test_the_shorter_of_two_solutions_has_the_greater_advantage() -> None:
    recorded = live("r0", "r1")
    recorded.record_turn("r0", recorded.next_arrival(), Turn.of([1, 2, 3], [5, 6], [-0.5, -0.5], "stop"))
    rules = scoring(2, algorithm=Algorithm(length_penalty=LengthPenalty(input_tokens_weight=0, turns_weight=0)))
    long, short = scored([outcome("r0", 1.0), outcome("r1", 1.0)], recorded, rules).rollouts
    assert long.completion_tokens > short.completion_tokens
    share = 0.25 * short.completion_tokens / long.completion_tokens
    assert (long.advantage, short.advantage) == pytest.approx(((share - 0.25) / 2, (0.25 - share) / 2))


def test_a_masked_rollout_is_not_trained_but_counts_for_the_mean() -> None:
    answer = [RolloutResult(rollout_id="r0", reward=0.0, is_truncated=True), outcome("r1", 1.0)]
    group = scored(answer, live("r0", "r1"), scoring(2, algorithm=Algorithm(mask_truncated=True)))
    assert [rollout.advantage for rollout in group.rollouts] == [-0.5, 0.5]
    assert [sample.advantage for sample in training_samples([group])] == [0.5]
    assert group.valid_rollouts == group.rollouts, "it is not sampled again"


@pytest.mark.parametrize(("reward", "reason"), [(1.0, FilterReason.truncated), (0.0, FilterReason.zero_advantage)])
def test_a_group_without_a_trained_rollout_has_a_reason(reward: float, reason: FilterReason) -> None:
    answer = [
        RolloutResult(rollout_id=name, reward=own, is_truncated=True) for name, own in (("r0", reward), ("r1", 0.0))
    ]
    rules = scoring(2, algorithm=Algorithm(mask_truncated=True), filter_zero_advantages=True)
    group = scored(answer, live("r0", "r1"), rules)
    assert (group.trained_rollouts, group.untrained_reason) == ([], reason)


def test_without_verification_rewards_are_zero_and_nothing_is_filtered() -> None:
    rules = scoring(2, GroupFilter(online=True), verify=False, algorithm=SUPERVISED)
    group = scored([outcome("r0", 5.0), outcome("r1", math.nan)], live("r0", "r1"), rules)
    assert group.state is GroupState.ready
    assert group.rewards == [0.0, 0.0]


def test_without_a_baseline_one_rollout_is_enough_and_has_no_advantage() -> None:
    group = scored([outcome("r0", 1.0)], live("r0"), scoring(4, algorithm=SUPERVISED))
    assert group.state is GroupState.ready
    assert group.valid_rollouts[0].advantage == 0.0


TOO_LONG = Problem(reason="PromptTooLong", message="4096 tokens, and the prompt has 5000")


def refused(problem: Problem = TOO_LONG, turns: int = 0) -> LiveGroup:
    """A group whose rollouts r0 to r2 were answered, and r3 `turns` times before it was refused."""
    group = live("r0", "r1", "r2", *["r3"] * turns)
    group.record_refusal("r3", group.next_arrival(), problem)
    return group


def four(error: Problem | None = None) -> list[RolloutResult]:
    return [outcome("r0", 1.0), outcome("r1", 0.0), outcome("r2", 0.0), outcome("r3", 0.0, error)]


def test_a_rollout_that_the_engine_refused_says_why() -> None:
    group = scored(four(), refused())
    assert reasons(group) == [None, None, None, "PromptTooLong"]
    assert group.rollouts[3].error == TOO_LONG
    assert [rollout.truncated for rollout in group.rollouts] == [False, False, False, True]


def test_a_refusal_explains_the_exception_that_follows_it() -> None:
    failed = Problem(reason="RolloutFailed", message="BadRequestError: 400")
    last = scored(four(failed), refused()).rollouts[3].error
    assert last
    assert (last.reason, TOO_LONG.message in last.message, failed.message in last.message) == (
        "PromptTooLong",
        True,
        True,
    )
    own = Problem(reason="RewardFunctionError", message="KeyError")
    assert scored(four(own), refused()).rollouts[3].error == own


def test_a_conversation_that_outgrows_seq_len_is_trained_on_and_counts_as_truncated() -> None:
    group = scored(four(), refused(turns=1))
    assert reasons(group) == [None] * 4
    assert [rollout.truncated for rollout in group.rollouts] == [False, False, False, True]


def test_turns_without_room_for_a_trained_token_are_no_missing_requests() -> None:
    recorded = live("r0", "r1", "r2")
    recorded.record_turn("r3", recorded.next_arrival(), Turn.of([1] * 70, [2], [-0.5], "length"))
    last = scored(four(), recorded).rollouts[3].error
    assert last
    assert (last.reason, "70 tokens" in last.message) == ("PromptTooLong", True)
