"""Index of an object with rollouts: the rows of a step's list, and the location of each group's records."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, FailFast, Field

from rlrun.api.base.schema import Schema
from rlrun.storage.samples.record import (
    Finite,
    Identifier,
    Message,
    SampleRecord,
    SampleSplit,
    SampleStatus,
    Word,
)

PREVIEW = 80
"""Maximum number of characters of the answer preview in a row."""


class SampleRow(Schema):
    """One rollout in a list."""

    model_config = ConfigDict(extra="ignore")

    rollout: Identifier
    agent: Identifier | None = None
    """Name of the agent, in an environment with agents."""
    status: SampleStatus
    cause: Word | None = None
    reward: Finite | None = None
    advantage: Finite | None = None
    rewards: dict[str, Finite] = Field(default_factory=dict, max_length=1024)
    """Value of each reward function, without weights."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    turns: int | None = None
    is_truncated: bool = False
    stop_condition: Word | None = None
    text: str = Field(default="", max_length=PREVIEW + 1)
    """Beginning of the last message of the completion, or of the error."""


class SampleGroup(Schema):
    """Rows of a group, and the location of its records."""

    model_config = ConfigDict(extra="ignore")

    group: Identifier
    environment: Identifier
    example: int
    ordinal: int = 0
    policy_version: int | None = None
    staleness: int | None = None
    offset: int = Field(default=0, ge=0)
    """First byte of the group's zstd frame in the object."""
    size: int = Field(default=0, ge=0)
    """Size of the frame in bytes. 0 if only the rows are stored, because the records exceed a limit of the object, and
    in an index that `scan` has built.
    """
    rows: Annotated[list[SampleRow], FailFast()]

    @property
    def rewards(self) -> list[float]:
        """Rewards of the group's rollouts that did not fail."""
        return [r.reward for r in self.rows if r.reward is not None and r.status is not SampleStatus.errored]


class SampleIndex(Schema):
    """Index of the rollouts in one S3 object."""

    model_config = ConfigDict(extra="ignore")

    v: int
    step: int = Field(ge=0)
    split: SampleSplit
    groups: Annotated[list[SampleGroup], FailFast()]
    # FailFast, because an error for each of a million entries would need more memory than the entries themselves.

    def pairs(self) -> Iterator[tuple[SampleGroup, SampleRow]]:
        """Yield all rows with their groups."""
        for group in self.groups:
            for row in group.rows:
                yield group, row


def group_of(records: list[SampleRecord], offset: int = 0, size: int = 0) -> SampleGroup:
    """Return the index entry of a group. `records` has all records of the group and must not be empty."""
    first = records[0]
    oldest = min(records, key=lambda record: record.policy_version or 0)
    return SampleGroup(
        group=first.group,
        environment=first.environment,
        example=first.example,
        ordinal=first.ordinal,
        policy_version=oldest.policy_version,
        staleness=oldest.staleness,
        offset=offset,
        size=size,
        rows=[row_of(record) for record in records],
    )


def row_of(record: SampleRecord) -> SampleRow:
    """Return the row of a record."""
    return SampleRow(
        rollout=record.rollout,
        agent=record.agent,
        status=record.status,
        cause=record.cause,
        reward=record.reward,
        advantage=record.advantage,
        rewards={name: found.value for name, found in record.rewards.items()},
        prompt_tokens=record.tokens.prompt if record.tokens else None,
        completion_tokens=record.tokens.completion if record.tokens else None,
        turns=record.turns,
        is_truncated=record.is_truncated,
        stop_condition=record.stop_condition,
        text=preview(record),
    )


def preview(record: SampleRecord) -> str:
    """Return the beginning of the completion's last message, or of the error if the rollout failed, on one line."""
    if record.error is not None:
        return shorten(f"{record.error.reason}: {record.error.message}")
    return shorten(text_of(record.completion[-1])) if record.completion else ""


def text_of(message: Message) -> str:
    """Return the text of a message: its content, its text parts, or its tool calls."""
    content: Any = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = " ".join(part for part in parts if isinstance(part, str))
    if content:
        return str(content)
    calls = message.get("tool_calls")
    names = [_tool_name(call) for call in calls] if isinstance(calls, list) else []
    return " ".join(f"{name}(...)" for name in names if name)


def _tool_name(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = (function if isinstance(function, Mapping) else call if isinstance(call, Mapping) else {}).get("name")
    return name if isinstance(name, str) else ""


def shorten(text: str) -> str:
    """Return the text on one line of at most PREVIEW + 1 characters."""
    # Split only the beginning of a long text into words.
    plain = " ".join(text[: 8 * PREVIEW].split())
    return plain if len(plain) <= PREVIEW else plain[:PREVIEW] + "…"
