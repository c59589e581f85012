"""Parameters of requests about stored rollouts."""

from enum import StrEnum
from typing import Annotated

from fastapi import Path
from pydantic import Field
from rlrun.api.base.names import MAX_ENVIRONMENT_ID
from rlrun.api.base.schema import Schema
from rlrun.storage.samples.record import SampleSplit, SampleStatus

from rlrun_server.rest.base.pages import MAX_CURSOR
from rlrun_server.rest.metrics.metric_columns import MAX_STEP

MAX_EXAMPLE = 2**53
MAX_REWARD = 1e308
EnvironmentInRun = Annotated[str, Field(max_length=MAX_ENVIRONMENT_ID)]
Step = Annotated[int, Path(ge=0, le=MAX_STEP)]
AddressedSample = Annotated[
    str,
    Path(
        max_length=128, pattern=r"^[A-Za-z0-9~][A-Za-z0-9._-]*$", description="Id, as in the step's list of rollouts."
    ),
]
Reward = Annotated[float, Field(ge=-MAX_REWARD, le=MAX_REWARD)]


class Order(StrEnum):
    """Sort direction."""

    asc = "asc"
    desc = "desc"


class StepFilter(Schema):
    """Parameters that select steps with stored rollouts."""

    split: list[SampleSplit] = Field(default_factory=list, max_length=4)
    """Splits of the rollouts. Defaults to all."""
    env: EnvironmentInRun | None = None
    """Environment of the rollouts (val and eval only)."""
    min_step: int = Field(default=0, ge=0, le=MAX_STEP, alias="min_step")
    max_step: int = Field(default=MAX_STEP, ge=0, le=MAX_STEP, alias="max_step")
    order: Order = Order.asc
    """Order of steps."""


class StepScope(StepFilter):
    """Parameters of a list of steps that must stay the same while a cursor is used."""

    uid: str


class StepQuery(StepFilter):
    """Parameters of the list of steps."""

    limit: int = Field(default=500, ge=1, le=2000)
    cursor: str = Field(default="", max_length=MAX_CURSOR)
    """`next` of the previous page."""


class SampleSort(StrEnum):
    """Value by which rollouts are sorted."""

    position = "position"
    """Order in the stored object. Rollouts of a group are adjacent."""
    reward = "reward"
    advantage = "advantage"
    tokens = "tokens"
    """Number of sampled tokens."""
    turns = "turns"
    mean = "mean"
    """Mean reward of the group."""


class SampleSelection(Schema):
    """Parameters that select and sort the rollouts of a step."""

    split: SampleSplit = SampleSplit.train
    env: EnvironmentInRun | None = None
    """Environment of the rollouts."""
    status: SampleStatus | None = None
    min_reward: Reward | None = Field(default=None, alias="min_reward")
    """Minimum reward. A rollout without a reward does not match."""
    max_reward: Reward | None = Field(default=None, alias="max_reward")
    group: str | None = Field(default=None, max_length=128)
    """Id of the group, as in the list of rollouts."""
    example: int | None = Field(default=None, ge=-MAX_EXAMPLE, le=MAX_EXAMPLE)
    """Number of the example in the environment's dataset."""
    q: str = Field(default="", max_length=200)
    """Text to find in the beginning of the model output, the ids, the cause or the stop condition. Case is ignored."""
    sort: SampleSort = SampleSort.position
    order: Order = Order.asc


class SampleScope(SampleSelection):
    """Parameters of a list of rollouts that must stay the same while a cursor is used."""

    uid: str
    step: int


class SampleQuery(SampleSelection):
    """Parameters of the list of rollouts of a step."""

    limit: int = Field(default=100, ge=1, le=512)
    cursor: str = Field(default="", max_length=MAX_CURSOR)
    """`next` of the previous page."""


class SplitQuery(Schema):
    """Parameter that selects a split."""

    split: SampleSplit = SampleSplit.train


class ExampleQuery(Schema):
    """Parameters that select the groups of an example."""

    split: SampleSplit | None = None
    """Split of the groups. Defaults to all splits."""


class HistogramQuery(SplitQuery):
    """Parameters of a reward histogram."""

    env: EnvironmentInRun | None = None
    """Environment of the rollouts."""
    bins: int = Field(default=20, ge=1, le=100)
