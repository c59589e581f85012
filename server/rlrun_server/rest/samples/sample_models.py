"""Answers about stored rollouts."""

from pydantic import Field
from rlrun.api.base.schema import Schema
from rlrun.storage.samples.record import SampleRecord, SampleSplit, SampleStatus
from rlrun.storage.samples.summary import RewardSummary


class SampleObject(Schema):
    """Rollouts of one step and split, and of one environment for val and eval."""

    step: int
    split: SampleSplit
    environment: str | None = None
    """Environment that was measured. Unset for train and filtered, which have several."""
    counts: dict[SampleStatus, int] = Field(default_factory=dict)
    """Number of rollouts by status. Empty: there is no summary, and the step's list has the numbers."""
    reward: RewardSummary | None = None
    """Rewards of the rollouts that did not fail."""
    size_bytes: int
    omitted: int = 0
    """Rollouts of which nothing is stored, because there were too many."""


class StepList(Schema):
    """Stored rollouts by step."""

    namespace: str
    uid: str
    items: list[SampleObject]
    """Ordered by step, split and environment."""
    total: int
    """Number of items of all pages."""
    next: str | None = None
    """Cursor of the next page."""
    first_step: int | None = None
    """First step with stored rollouts. The filters do not count, as for the following fields."""
    last_step: int | None = None
    splits: list[SampleSplit] = Field(default_factory=list)
    environments: list[str] = Field(default_factory=list)
    """Environments with rollouts. At most 200."""
    is_complete: bool = True
    """False if there are more objects than the server lists."""
    is_stale: bool = False
    """True if S3 does not answer and this is what was read last."""


class SampleItem(Schema):
    """One rollout in a list."""

    rollout: str
    """Id of the rollout in paths. `~` and a digest if its own id is empty, repeated, or not possible in a path."""
    group: str
    """Id of the group in paths, as for the rollout."""
    agent: str | None = None
    """Agent that the rollout is of, in an environment with agents."""
    status: SampleStatus
    cause: str | None = None
    """Reason for a status other than trained and measured."""
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
    """Beginning of the last answer, or of the error."""


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
    """Version of the policy that the group began with."""
    staleness: int | None = None
    """Steps between that policy and the one that the step trained."""
    rollouts: int
    """Number of rollouts of the group, regardless of filters."""
    mean: float | None = None
    """Mean reward of the rollouts that did not fail."""
    has_texts: bool = True
    """False: the step's rollouts exceeded the limit of an object, so that only the rows are stored."""


class SampleList(Schema):
    """A page of the rollouts of a step."""

    namespace: str
    uid: str
    step: int
    split: SampleSplit
    items: list[SampleItem]
    groups: list[SampleGroupInfo]
    """Groups of the items."""
    functions: list[str] = Field(default_factory=list)
    """Names of reward functions. At most 64."""
    total: int
    """Number of rollouts of all pages."""
    next: str | None = None
    """Cursor of the next page."""
    problems: list[str] = Field(default_factory=list)
    """Damage of what is stored: some rollouts may be missing."""


class SampleGroupDetail(Schema):
    """All rollouts of a group."""

    namespace: str
    uid: str
    step: int
    split: SampleSplit
    group: SampleGroupInfo
    items: list[SampleItem]
    """All rollouts of the group."""
    records: list[SampleRecord]
    """Records with all texts, in the order of `items`. Fewer, or none, if `problem` is set."""
    problem: str | None = None
    """Reason for which not all records are here."""


class SampleDetail(Schema):
    """One rollout."""

    namespace: str
    uid: str
    step: int
    split: SampleSplit
    group: SampleGroupInfo
    item: SampleItem
    record: SampleRecord | None = None
    """Record with all texts. Unset if `problem` is set."""
    problem: str | None = None
    """Reason for which there is no record."""


class ExamplePoint(Schema):
    """One group of an example."""

    step: int
    split: SampleSplit
    mean: float
    """Mean reward of the group."""


class ExampleHistory(Schema):
    """Mean rewards of one example through the steps."""

    namespace: str
    uid: str
    environment: str
    example: int
    points: list[ExamplePoint]
    """Ordered by step. `GET .../steps/{step}/samples?env=&example=` lists the rollouts of one."""
    is_complete: bool = True
    """False if there may be more points: the summary of a step has at most 512 groups."""
    is_stale: bool = False
    """True if S3 does not answer and this is what was read last."""


class RewardBin(Schema):
    """Rollouts with a reward in a range."""

    min: float
    max: float
    """Upper end, which belongs to the next bin, except for the last one."""
    count: int


class RewardHistogram(Schema):
    """Rewards of the rollouts of a step that did not fail."""

    namespace: str
    uid: str
    step: int
    split: SampleSplit
    bins: list[RewardBin]
    """Bins of equal width. One if all rewards are equal, none without a reward."""
    count: int
    """Number of rollouts in all bins."""
    mean: float | None = None
    problems: list[str] = Field(default_factory=list)
    """Damage of what is stored: some rollouts may be missing."""
