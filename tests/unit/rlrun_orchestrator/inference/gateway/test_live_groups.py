"""Groups that may use the gateway."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun.protocol.policy import PolicyRef
from rlrun_orchestrator.data.trajectories import Turn
from rlrun_orchestrator.inference.gateway import live_groups
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, LiveGroups
from rlrun_orchestrator.inference.gateway.prefixes import Conversation


@pytest.fixture
def group() -> LiveGroup:
    return LiveGroups().open(PolicyRef(version=0, digest="0123456789abcdef", uri="s3://bucket/policy"))


def chat(text: str) -> Conversation:
    messages = [{"role": "user", "content": text}]
    return Conversation(messages, {"content": "yes"}, Turn([1], [2], [-0.1]), True, messages, [1])


def test_the_chats_of_a_rollout_are_bound_by_their_bytes(group: LiveGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_groups, "MAX_CHAT_BYTES", 10_000)
    chats = [chat("x" * 1000) for _ in range(20)]
    for each in chats:
        group.record_conversation("r", each, None)
    kept = group.rollout_session("r").conversations
    assert kept == chats[-len(kept) :]
    assert 2 < len(kept) < 6
    group.record_conversation("r", large := chat("x" * 20_000), None)
    assert group.rollout_session("r").conversations == [large], "the newest one stays"


def stored(turn: Turn) -> int:
    """Numbers in the lists of a turn."""
    return sum(len(value) for name in Turn.__slots__ if isinstance(value := getattr(turn, name), list))


@pytest.mark.parametrize(
    ("added", "dropped"), [(700, 0), (700, 50), (0, 0)], ids=["exact", "reasoning is dropped", "nothing is added"]
)
def test_the_tokens_of_a_conversation_are_stored_once(group: LiveGroup, added: int, dropped: int) -> None:
    answer = list(range(1000, 1100))
    prompt, prompts = list(range(700)), list[list[int]]()
    for arrival in range(40):
        prompts.append(prompt)
        group.record_turn("r", arrival, Turn(prompt, answer, [-0.5] * len(answer)))
        prompt = [*prompt, *answer[dropped:], *range(added)]
    recorded = group.turns_of("r")
    assert [turn.prompt_ids for turn in recorded] == prompts
    assert sum(map(stored, recorded)) <= 2 * len(prompt)


tokens = st.lists(st.integers(0, 1), max_size=6)


@given(st.lists(st.tuples(tokens.filter(bool), tokens), max_size=8))
def test_prompts_of_recorded_turns_are_those_of_the_engine(turns: list[tuple[list[int], list[int]]]) -> None:
    group = LiveGroups().open(PolicyRef(version=0, digest="0123456789abcdef", uri="s3://bucket/policy"))
    for arrival, (prompt, completion) in enumerate(turns):
        group.record_turn("r", arrival, Turn(prompt, completion, [-0.5] * len(completion)))
    assert [(turn.prompt_ids, turn.completion_ids) for turn in group.turns_of("r")] == turns
