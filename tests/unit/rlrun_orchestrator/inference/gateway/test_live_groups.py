"""Groups that may use the gateway."""

import pytest
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
