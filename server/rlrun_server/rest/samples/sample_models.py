"""Responses about stored rollouts."""

from pydantic import Field
from rlrun.api.base.schema import Schema
from rlrun.storage.samples.record import SampleRecord, SampleSplit, SampleStatus
from rlrun.storage.samples.summary import RewardSummary


class SampleObject(Schema):
    """Rollouts of one step and split. For val and eval, the rollouts of one environment."""

    step: int
    split: SampleSplit
    environment: str | None = None
    """Environment of the rollouts. Unset for train and filtered, which have several."""
    counts: dict[SampleStatus, int] = Field(default_factory=dict)
    """Number of rollouts by status. Empty if there is no summary; the list of the step's rollouts has the numbers."""
    reward: RewardSummary | None = None
    """Rewards of the rollouts that did not fail."""
    size_bytes: int
    omitted: int = 0
    """Number of rollouts that are not stored, because there were too many."""


class StepList(Schema):
    """Page of the steps of a run that have stored rollouts."""

    namespace: str
    uid: str
    items: list[SampleObject]
    """Objects with rollouts, ordered by step, split and environment."""
    total: int
    """Number of items on all pages."""
    next: str | None = None
    """Cursor of the next page."""
    first_step: int | None = None
    """First step with stored rollouts. Filters do not affect this field and the following ones."""
    last_step: int | None = None
    splits: list[SampleSplit] = Field(default_factory=list)
    environments: list[str] = Field(default_factory=list)
    """Environments with rollouts. At most 200."""
    is_complete: bool = True
    """False if objects or their summaries are missing because there are too many, or they are too large."""
    is_stale: bool = False
    """True if S3 does not respond and this is the data that was read last."""


class SampleItem(Schema):
    """Rollout in a list, without its texts."""

    rollout: str
    """Id of the rollout in paths: its own id, or `~` and a digest if its own id is empty, not unique or not valid in a
    path.
    """
    group: str
    """Id of the group in paths, formed like `rollout`."""
    agent: str | None = None
    """Agent of the rollout, in an environment with several agents."""
    status: SampleStatus
    cause: str | None = None
    """Reason for a status other than trained or measured."""
    reward: float | None = None
    advantage: float | None = None
    rewards: dict[str, float] = Field(default_factory=dict)
    """Value of each reward function, without weights."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    turns: int | None = None
    is_truncated: bool = False
    stop_condition: str | None = None
    text: str = ""
    """Beginning of the last model output, or of the error."""


class SampleGroupInfo(Schema):
    """Group of rollouts of one example."""

    group: str
    """Id of the group in paths."""
    environment: str
    example: int
    """Number of the example in the environment's dataset."""
    ordinal: int = 0
    """Number of the group since the beginning of the run."""
    policy_version: int | None = None
    """Version of the policy with which the group started."""
    staleness: int | None = None
    """Number of steps between `policyVersion` and the policy that the step trained."""
    rollouts: int
    """Number of rollouts of the group, before filters."""
    mean: float | None = None
    """Mean reward of the rollouts that did not fail."""
    has_texts: bool = True
    """False if only the rows are stored, because the step's rollouts exceeded the size limit of an object."""


class StepAnswer(Schema):
    """Response about the rollouts of a step."""

    namespace: str
    uid: str
    step: int
    split: SampleSplit


class SampleList(StepAnswer):
    """Page of the rollouts of a step."""

    items: list[SampleItem]
    groups: list[SampleGroupInfo]
    """Groups of the items."""
    functions: list[str] = Field(default_factory=list)
    """Names of the reward functions of the items, at most 64."""
    total: int
    """Number of rollouts on all pages."""
    next: str | None = None
    """Cursor of the next page."""
    problems: list[str] = Field(default_factory=list)
    """Errors in the stored data. Some rollouts may be missing."""


class SampleGroupDetail(StepAnswer):
    """All rollouts of a group, with their texts."""

    group: SampleGroupInfo
    items: list[SampleItem]
    """All rollouts of the group."""
    records: list[SampleRecord]
    """Records with all texts, in the order of `items`. Some or all are missing if `problem` is set."""
    problem: str | None = None
    """Reason why records are missing."""


class SampleDetail(StepAnswer):
    """Rollout with its texts."""

    group: SampleGroupInfo
    item: SampleItem
    record: SampleRecord | None = None
    """Record with all texts. Unset if `problem` is set."""
    problem: str | None = None
    """Reason why there is no record."""


class ExamplePoint(Schema):
    """Mean reward of one group of an example."""

    step: int
    split: SampleSplit
    mean: float
    """Mean reward of the group."""


class ExampleHistory(Schema):
    """Mean rewards of one example over the steps."""

    namespace: str
    uid: str
    environment: str
    example: int
    points: list[ExamplePoint]
    """Mean rewards, ordered by step. `GET .../steps/{step}/samples?env=&example=` lists the rollouts of a point."""
    is_complete: bool = True
    """False if points may be missing, for example because the summary of a step has at most 512 groups."""
    is_stale: bool = False
    """True if S3 does not respond and this is the data that was read last."""


class RewardBin(Schema):
    """Range of rewards, and the number of rollouts with a reward in this range."""

    min: float
    max: float
    """Upper bound. A reward equal to this bound is in the next bin, unless this is the last bin."""
    count: int


class RewardHistogram(StepAnswer):
    """Distribution of the rewards of a step's rollouts that did not fail."""

    bins: list[RewardBin]
    """Bins of equal width. There is one bin if all rewards are equal, and none if there are no rewards."""
    count: int
    """Number of rollouts in all bins."""
    mean: float | None = None
    problems: list[str] = Field(default_factory=list)
    """Errors in the stored data. Some rollouts may be missing."""
