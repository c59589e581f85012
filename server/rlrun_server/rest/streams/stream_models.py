"""Events of streams, and their parameters."""

from enum import StrEnum

from pydantic import Field
from rlrun.api.base.schema import Schema
from rlrun.constants import Role
from rlrun.storage.samples.record import SampleSplit, SampleStatus

from rlrun_server.rest.logs.log_models import LogLine
from rlrun_server.rest.metrics.metric_columns import MAX_STEP

MAX_CURSOR = 2048


class Topic(StrEnum):
    """Topics of a stream of a run. Events have these types."""

    status = "status"
    """`RunSummary`, first the present one."""
    metrics = "metrics"
    """`StepMetrics`."""
    steps = "steps"
    """`StepSummary`."""
    log = "log"
    """`LogLines`."""
    events = "events"
    """`RunEvent`."""


class EventType(StrEnum):
    """Types of events besides the topics."""

    deleted = "deleted"
    """`DeletedRun`, in the stream of a namespace."""
    reset = "reset"
    """`Reset`, in the stream of a namespace."""
    bye = "bye"
    """`Bye`, the last event."""


class ByeReason(StrEnum):
    """Cause for which the server ends a stream."""

    reconnect = "reconnect"
    """An hour is over, or the server ends: open another one with the id of the last event."""
    unauthorized = "unauthorized"
    """The credential or a right has ended."""
    slow = "slow"
    """The client does not take the events fast enough."""
    deleted = "deleted"
    """The run is deleted."""
    unavailable = "unavailable"
    """The API server does not say whether you still have the right."""


class StepMetrics(Schema):
    """Event `metrics`: one line of a run's metrics. A step may have several: evaluations end later."""

    step: int
    time: str
    values: dict[str, float]
    """Numbers by name. A later line of the step adds to them, or replaces them after a restart."""
    is_trained: bool
    """True for the line of a trained step, False for that of an evaluation."""
    is_complete: bool = True
    """False if metrics are missing because there are too many for one event."""


class StepSummary(Schema):
    """Event `steps`: samples of a step are stored."""

    step: int
    split: SampleSplit
    environment: str | None = None
    """Environment that was measured. Unset for train and filtered, which have several."""
    counts: dict[SampleStatus, int]
    reward: float | None = None
    """Mean reward."""


class LogLines(Schema):
    """Event `log`: new lines, oldest first."""

    lines: list[LogLine]


class DeletedRun(Schema):
    """Event `deleted`."""

    namespace: str
    name: str
    uid: str


class Reset(Schema):
    """Event `reset`: changes were missed. List the runs again."""

    detail: str


class Bye(Schema):
    """Event `bye`: the end of the stream."""

    reason: ByeReason
    detail: str


class NamespaceStreamQuery(Schema):
    """Parameters of the stream of a namespace's runs."""

    topics: str = Field(pattern=r"^status$")
    """`status`."""
    last_event_id: str | None = Field(default=None, alias="last_event_id", max_length=MAX_CURSOR)
    """Id of the last event that was received, instead of the header Last-Event-ID."""


class RunStreamQuery(Schema):
    """Parameters of the stream of a run."""

    topics: str = Field(pattern=r"^(status|metrics|steps|log|events)(,(status|metrics|steps|log|events)){0,4}$")
    """Topics, with commas between them."""
    last_event_id: str | None = Field(default=None, alias="last_event_id", max_length=MAX_CURSOR)
    """Id of the last event that was received, instead of the header Last-Event-ID."""
    after_step: int | None = Field(default=None, ge=-1, le=MAX_STEP, alias="after_step")
    """Begin `metrics` and `steps` after this step, -1 for all. Default: with the newest step."""
    role: list[Role] = Field(default_factory=list, max_length=4)
    """Processes whose log is followed. Repeatable. Default: the orchestrator, and with `env` the environments."""
    env: str | None = Field(default=None, min_length=1, max_length=256)
    """Environment whose log is followed, as for `logs`."""
