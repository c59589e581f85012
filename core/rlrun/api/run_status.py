"""How a run is going, as the operator writes it."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from pydantic import Field, ValidationError

from rlrun.api.base.kubernetes_types import Condition, Status
from rlrun.api.base.rules import LIST_MAP_KEYS

MAX_LISTED = 10
"""Newest checkpoints and adapters listed in a run's status; all of them are objects of their own."""


class Phase(StrEnum):
    """One word for people: where a run stands."""

    queued = "Queued"
    pending = "Pending"
    running = "Running"
    completed = "Completed"
    failed = "Failed"
    stopped = "Stopped"
    suspended = "Suspended"

    @property
    def finished(self) -> bool:
        """Whether a run in this phase never runs again."""
        return self in (Phase.completed, Phase.failed, Phase.stopped)


class Progress(Status):
    """How far the run is."""

    step: int = Field(default=0, ge=0)
    """Optimizer steps done."""
    max_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps asked for."""
    reward: float | None = None
    """Mean reward of the newest batch."""
    policy_version: int = Field(default=0, ge=0)
    """Newest version of the policy that rollouts are drawn from."""
    eta_seconds: float | None = Field(default=None, ge=0)
    """Seconds until the last step, as it looks now."""
    last_step_time: datetime | None = None
    """When the newest step was done."""
    mismatch_kl: float | None = None
    """Mean of r - log r - 1 over the newest batch's tokens, r being trainer over engine probability; near 0 when both agree."""  # noqa: E501


class Groups(Status):
    """What became of the groups of rollouts since the run began; each ends in exactly one of the first four."""

    trained: int = Field(default=0, ge=0)
    """Groups that a step was made of."""
    filtered: int = Field(default=0, ge=0)
    """Groups dropped by the difficulty buffer or because all their rewards were equal."""
    errored: int = Field(default=0, ge=0)
    """Groups whose rollouts or rewards failed."""
    stale: int = Field(default=0, ge=0)
    """Groups dropped because their policy was older than maxAsyncLevel allows."""
    in_flight: int = Field(default=0, ge=0)
    """Groups being rolled out now."""


class ArtifactSummary(Status):
    """One checkpoint or adapter, in brief."""

    step: int = Field(ge=0)
    """Step it was taken after."""
    name: str = Field(default="", max_length=253)
    """Name of its RLCheckpoint or RLAdapter."""
    uri: str = Field(max_length=1024)
    """Where it is in S3."""
    reward: float | None = None
    """Mean reward at that step."""
    created_at: datetime | None = None
    """When its manifest was written."""


class StartupFailureKind(StrEnum):
    """What keeps a pod from starting, as the deadlines of failurePolicy tell it apart."""

    image_pull = "ImagePull"
    config_error = "ConfigError"
    unschedulable = "Unschedulable"


class PodRecord(Status):
    """One pod of the running attempt, as the operator counted it: the memory behind `restarts` and `crashes`."""

    uid: str = Field(min_length=1, max_length=64)
    """Uid of the pod."""
    restarts: int = Field(default=0, ge=0)
    """Restarts of its containers that are counted."""
    ended: bool = False
    """Whether its end is counted."""
    obstacle: StartupFailureKind | None = None
    """What has kept the pod from starting since `obstacleSince`: ImagePull, ConfigError or Unschedulable."""
    obstacle_since: datetime | None = None
    """When that began."""


class ComponentStatus(Status):
    """One part of the run in the running attempt."""

    name: str = Field(min_length=1, max_length=63)
    """Name of the part, as in the label rlrun.dev/component: trainer, inference, orchestrator, env-0, eval-0."""
    ready: int = Field(default=0, ge=0)
    """Its pods that are ready."""
    crashes: int = Field(default=0, ge=0)
    """Times that one of its containers ended by its own fault in this attempt, where it counts toward maxRestarts."""
    pods: list[PodRecord] = Field(
        default_factory=list, max_length=256, json_schema_extra={"x-kubernetes-list-map-keys": ["uid"]}
    )
    """Its pods."""


class RLRunStatus(Status):
    """How the run is going."""

    phase: Phase | None = None
    """One word for people: Queued, Pending, Running, Completed, Failed, Stopped or Suspended."""
    observed_generation: int | None = Field(default=None, ge=0)
    """Generation of the spec that this status is about."""
    conditions: list[Condition] = Field(
        default_factory=list, max_length=32, json_schema_extra={LIST_MAP_KEYS: ["type"]}
    )
    """State for machines, one entry per type."""
    reason: str | None = Field(default=None, max_length=256)
    """Why the run is in its phase, as one CamelCase word."""
    message: str | None = Field(default=None, max_length=4096)
    """Why the run is in its phase and what to do about it."""
    progress: Progress | None = None
    """How far the run is."""
    groups: Groups | None = None
    """What became of the groups of rollouts."""
    attempt: int = Field(default=1, ge=1)
    """The attempt that runs now, counting from 1."""
    attempt_start_time: datetime | None = None
    """When the attempt that runs now was started; absent while the run is suspended."""
    past_active_seconds: int = Field(default=0, ge=0)
    """Seconds that earlier attempts were active in all."""
    restarts: int = Field(default=0, ge=0)
    """Restarts of containers, replacements of pods and restarts of the whole run, since the run began."""
    run_restarts: int = Field(default=0, ge=0)
    """Restarts of the whole run by its failure policy."""
    run_restarts_toward_max: int = Field(default=0, ge=0)
    """Those of them that count toward maxRestarts."""
    restart_backoff_seconds: int = Field(default=0, ge=0)
    """How long the newest restart of the whole run waited: 10 s at first, then doubled up to 300 s, until an attempt runs for 10 minutes."""  # noqa: E501
    next_restart_time: datetime | None = None
    """When the next attempt begins, while one waits to begin."""
    components: list[ComponentStatus] = Field(
        default_factory=list, max_length=64, json_schema_extra={"x-kubernetes-list-map-keys": ["name"]}
    )
    """The parts of the run and how often each has crashed."""
    start_time: datetime | None = None
    """When the first attempt was started."""
    completion_time: datetime | None = None
    """When the run finished, well or not."""
    checkpoints: list[ArtifactSummary] = Field(
        default_factory=list, max_length=MAX_LISTED, json_schema_extra={LIST_MAP_KEYS: ["step"]}
    )
    """Newest checkpoints that are Ready, newest first."""
    adapters: list[ArtifactSummary] = Field(
        default_factory=list, max_length=MAX_LISTED, json_schema_extra={LIST_MAP_KEYS: ["step"]}
    )
    """Newest adapters that are Ready, newest first."""
    last_checkpoint: str | None = Field(default=None, max_length=253)
    """Name of the newest Ready checkpoint."""

    @classmethod
    def parse(cls, raw: Mapping[str, Any] | None) -> Self:
        """Return the typed status of an RLRun; an empty one where another writer left what does not fit."""
        try:
            return cls.model_validate(raw or {}, by_alias=True, by_name=False)
        except ValidationError:
            return cls()
