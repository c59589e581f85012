"""Record of one rollout, as a line of JSON in S3.

Texts of a record come from users' data and code, and must never be interpreted as markup.
"""

import json
import math
from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from rlrun.api.base.schema import Schema
from rlrun.protocol.environment import FunctionReward
from rlrun.protocol.problem import Problem

VERSION = 2
MAX_RECORD_BYTES = 256 * 1024
"""Maximum size of a record as JSON. `bounds` truncates longer records."""

Word = Annotated[str, Field(max_length=64)]
Identifier = Annotated[str, Field(max_length=128)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Message = dict[str, Any]
"""Chat message as in the OpenAI API: role, content, tool calls."""


class SampleSplit(StrEnum):
    """Purpose of the rollouts in an S3 object."""

    train = "train"
    val = "val"
    eval = "eval"
    filtered = "filtered"
    """Rollouts that no step trained on: filtered, errored and stale groups."""


class SampleStatus(StrEnum):
    """Outcome of a rollout."""

    trained = "trained"
    measured = "measured"
    """The rollout is part of a validation or an evaluation and is not trained on."""
    filtered = "filtered"
    errored = "errored"
    stale = "stale"


class TokenCounts(Schema):
    """Tokens of a rollout, over all its sequences."""

    model_config = ConfigDict(extra="ignore")

    prompt: int = Field(ge=0)
    """Tokens that the policy did not sample."""
    completion: int = Field(ge=0)
    """Tokens that the policy sampled."""


class LogprobSummary(Schema):
    """Summary of the sampled tokens' log-probabilities."""

    model_config = ConfigDict(extra="ignore")

    mean: Finite
    min: Finite
    p05: Finite
    """5th percentile."""
    low: Finite
    """Fraction of tokens with a log-probability below -5, that is, tokens that the policy considered unlikely."""


class Timings(Schema):
    """Durations in milliseconds, or None if they were not measured."""

    model_config = ConfigDict(extra="ignore")

    generate: Finite | None = None
    """Time from the first request to the last response of the rollout, including tools and waiting."""
    score: Finite | None = None
    """Time spent in reward functions."""
    group: Finite | None = None
    """Time that the rollout's whole group spent in the environment."""


class Cut(Schema):
    """Field of a record that was shortened, and by how much."""

    model_config = ConfigDict(extra="ignore")

    field: Identifier
    """Path of the field: completion.3.content."""
    removed: int = Field(ge=1)
    """Number of missing characters, or of missing entries of a list or a table."""


class SampleRecord(Schema):
    """Stored record of one rollout."""

    model_config = ConfigDict(extra="ignore")

    v: int = VERSION
    step: int = Field(ge=0)
    """Step that trained on the rollout, or in which the rollout's group was dropped, or whose policy was evaluated."""
    split: SampleSplit
    group: Identifier
    ordinal: int = 0
    """Number of the group since the beginning of the run."""
    rollout: Identifier
    agent: Identifier | None = None
    """Name of the agent, in an environment with agents. Advantages compare rollouts of the same agent."""
    episode: Identifier | None = None
    """Id of the episode, which has one rollout per agent."""
    environment: Identifier
    example: int
    """Number of the example in the environment's dataset."""
    policy_version: int | None = None
    """Version of the oldest policy that sampled tokens of the rollout."""
    staleness: int | None = None
    """Number of steps between `policy_version` and the policy that the step trained."""
    status: SampleStatus
    cause: Word | None = None
    """Reason for a status other than `trained` and `measured`."""
    reward: Finite | None = None
    """Reward, or None if the rollout has no finite reward."""
    advantage: Finite | None = None
    rewards: dict[str, FunctionReward] = Field(default_factory=dict)
    """Results of the individual reward functions, if the environment reports them."""
    metrics: dict[str, Finite] = Field(default_factory=dict)
    tokens: TokenCounts | None = None
    """Token counts. None for validation and evaluation, whose tokens are not recorded."""
    turns: int | None = None
    is_truncated: bool = False
    stop_condition: Word | None = None
    logprob: LogprobSummary | None = None
    ms: Timings = Field(default_factory=Timings)
    prompt: list[Message] = Field(default_factory=list)
    completion: list[Message] = Field(default_factory=list)
    answer: Any = None
    """Expected answer in the dataset."""
    info: Any = None
    """Column `info` of the example in the dataset."""
    error: Problem | None = None
    cut: list[Cut] = Field(default_factory=list)
    """Fields that were shortened to the limits of a record."""
    redacted: list[str] = Field(default_factory=list)
    """Fields of this record that were redacted."""

    def to_line(self) -> bytes:
        """Return the record as one line of JSON, without fields that are None. Raises ValueError for text that UTF-8
        cannot encode.
        """
        return self.__pydantic_serializer__.to_json(self, by_alias=True, exclude_none=True) + b"\n"

    @classmethod
    def from_line(cls, line: str | bytes) -> "SampleRecord":
        """Parse a record. Raises ValueError, which names the first invalid field."""
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"a record is not JSON ({error})") from error
        if not isinstance(document, dict):
            raise ValueError(f"a record is a {type(document).__name__} instead of an object")
        version = document.get("v")
        if version != VERSION:
            raise ValueError(f"a record has version {str(version)[:20]!r}, but this program reads only {VERSION}")
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))[:200]}: {first['msg']}") from error


def messages_of(value: Any, role: str = "assistant") -> list[Message]:
    """Convert a conversation to chat messages. A text or any other value becomes one message of this role."""
    if value is None or value == []:
        return []
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        return value
    return [{"role": role, "content": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}]


def finite_or_none(value: Any) -> float | None:
    """Return the value if it is a finite number, otherwise None."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None
