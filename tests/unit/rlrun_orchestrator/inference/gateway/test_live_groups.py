"""Groups that may use the gateway."""

import dataclasses
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun.protocol.policy import PolicyRef
from rlrun_orchestrator.data.trajectories import Turn
from rlrun_orchestrator.inference.gateway import conversations
from rlrun_orchestrator.inference.gateway.conversations import Conversation, Conversations, prefix_keys
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, LiveGroups


@pytest.fixture
def group() -> LiveGroup:
    return LiveGroups().open(PolicyRef(version=0, digest="0123456789abcdef", uri="s3://bucket/policy"))


def chat(text: str, arrival: int, before: Conversation | None = None) -> Conversation:
    key = prefix_keys([{"role": "user", "content": str(arrival)}])[-1]
    turn = Turn.of([1], [2], [-0.1])
    return Conversation(key, 1, {"content": text}, turn, True, before=before, arrival=arrival)


def test_the_chats_of_a_rollout_are_bound_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "MAX_CHAT_BYTES", 10_000)
    known, chats = Conversations(), [chat("x" * 1000, number) for number in range(20)]
    for each in chats:
        known.add(each)
    kept = list(known)
    assert kept == chats[-len(kept) :]
    assert 2 < len(kept) < 6
    known.add(large := chat("x" * 20_000, 21))
    assert list(known) == [large], "the newest one stays"


@pytest.mark.parametrize(
    "letter", ["x", "\N{LATIN SMALL LETTER E WITH ACUTE}", "\N{RIGHTWARDS ARROW}", "\N{GRINNING FACE}"]
)
def test_the_size_of_a_chat_is_the_memory_of_its_texts(letter: str) -> None:
    text = letter * 10_000
    made = dataclasses.replace(chat(text, 1), sampled_text=text)
    assert 2 * sys.getsizeof(text) <= made.size <= 2.2 * sys.getsizeof(text)


def test_chats_that_a_recorded_one_continues_stay_until_it_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "MAX_CHAT_BYTES", 12_000)
    known, root = Conversations(), chat("x" * 1000, 1)
    branches = [chat("x" * 1000, number, root) for number in (2, 3)]
    leaf = chat("x" * 1000, 4, branches[0])
    for each in (root, *branches, leaf):
        known.add(each)
    for number in range(5, 9):
        known.add(chat("x" * 1000, number))
        kept = list(known)
        assert sum(one.size for one in kept) <= 12_000
        assert all(one.before is None or one.before in kept for one in kept), "so the size is that of all in memory"
    assert [one.arrival for one in kept] == [1, 5, 6, 7, 8]


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
        group.record_turn("r", arrival, Turn.of(prompt, answer, [-0.5] * len(answer)))
        prompt = [*prompt, *answer[dropped:], *range(added)]
    recorded = group.turns_of("r")
    assert [list(turn.prompt_ids) for turn in recorded] == prompts
    assert sum(map(stored, recorded)) <= 2 * len(prompt)


tokens = st.lists(st.integers(0, 1), max_size=6)


@given(st.lists(st.tuples(tokens.filter(bool), tokens), max_size=8))
def test_prompts_of_recorded_turns_are_those_of_the_engine(turns: list[tuple[list[int], list[int]]]) -> None:
    group = LiveGroups().open(PolicyRef(version=0, digest="0123456789abcdef", uri="s3://bucket/policy"))
    for arrival, (prompt, completion) in enumerate(turns):
        group.record_turn("r", arrival, Turn.of(prompt, completion, [-0.5] * len(completion)))
    assert [(list(turn.prompt_ids), list(turn.completion_ids)) for turn in group.turns_of("r")] == turns
