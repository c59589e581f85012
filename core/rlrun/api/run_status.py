"""Status of an RLRun, written by the operator."""

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from pydantic import AwareDatetime, Field, ValidationError

from rlrun.api.base.kubernetes_types import Condition, Quantity, Status
from rlrun.api.base.names import EnvironmentId, PackageDigest, PackageVersion
from rlrun.api.base.phases import Phase

MAX_LISTED = 10
"""Maximum number of checkpoints, and of adapters, listed in a run's status. Each artifact also has an object of its
own.
"""


class Progress(Status):
    """Progress of training."""

    step: int = Field(default=0, ge=0)
    """Number of completed optimizer steps."""
    max_steps: int | None = Field(default=None, ge=1)
    """Requested number of optimizer steps."""
    reward: float | None = None
    """Mean reward of the newest batch."""
    policy_version: int = Field(default=0, ge=0)
    """Newest version of the policy that rollouts were sampled from when the progress was last updated."""
    eta_seconds: float | None = Field(default=None, ge=0)
    """Estimated seconds until the last step completes."""
    last_step_time: AwareDatetime | None = None
    """Time at which the operator first saw the newest step."""
    mismatch_kl: float | None = None
    """Mismatch between trainer and inference engine: the mean of r - log r - 1 over the tokens of the newest batch, where r is the trainer's probability divided by the engine's. Near 0 if both agree."""  # noqa: E501


class Groups(Status):
    """Number of rollout groups by outcome since the run started. inFlight counts groups that have no outcome yet."""

    trained: int = Field(default=0, ge=0)
    """Groups that were trained on."""
    filtered: int = Field(default=0, ge=0)
    """Groups dropped by the difficulty buffer or filter, or because no rollout of their batch could be trained on."""
    errored: int = Field(default=0, ge=0)
    """Groups whose rollouts or rewards failed."""
    stale: int = Field(default=0, ge=0)
    """Groups dropped because their oldest token was older than maxOffPolicySteps allows."""
    in_flight: int = Field(default=0, ge=0)
    """Groups in progress."""


class ArtifactEntry(Status):
    """Summary of one checkpoint or adapter."""

    step: int = Field(ge=0)
    """Number of optimizer steps that the artifact includes. With driver Client, number of the call that saved it."""
    name: str = Field(default="", max_length=253)
    """Name of the RLCheckpoint or RLAdapter."""
    id: str | None = Field(default=None, max_length=320)
    """Id of a checkpoint, valid as checkpointId of runs in any namespace. Unset for adapters."""
    uri: str = Field(max_length=1024)
    """URI of the artifact's folder in S3."""
    reward: float | None = None
    """Mean reward of the step after which the artifact was saved."""
    created_at: datetime | None = None
    """Time at which the upload completed."""


class StartupFailureKind(StrEnum):
    """Cause that keeps a pod from starting. Each cause has its own deadline, most of them in failurePolicy."""

    image_pull = "ImagePull"
    config_error = "ConfigError"
    unschedulable = "Unschedulable"
    access = "Access"


class PodRecord(Status):
    """One pod of the current attempt. The restarts of the run and the crashes of its components are counted from these
    records.
    """

    uid: str = Field(min_length=1, max_length=64)
    """UID of the pod."""
    restarts: int = Field(default=0, ge=0)
    """Number of container restarts counted so far."""
    ended: bool = False
    """True if the end of the pod has been counted."""
    obstacle: StartupFailureKind | None = None
    """Cause that keeps the pod from starting: ImagePull, ConfigError, Unschedulable or Access."""
    obstacle_since: datetime | None = None
    """Time since which the pod cannot start."""


class ComponentStatus(Status):
    """One component of the run in the current attempt."""

    name: str = Field(min_length=1, max_length=63)
    """Name of the component, as in the label rlrun.dev/component: trainer, inference, orchestrator, env-0, eval-0."""
    ready: int = Field(default=0, ge=0)
    """Number of ready pods."""
    crashes: int = Field(default=0, ge=0)
    """Number of container crashes in this attempt that count toward maxRestarts."""
    pods: list[PodRecord] = Field(default_factory=list, max_length=256)
    """Pods of the component."""


class EnvironmentPackage(Status):
    """Package that the pods of one or more environments of the run have loaded."""

    id: EnvironmentId
    """Id of the package, as in the run's spec: owner/name."""
    requested_version: PackageVersion | None = None
    """Version in the spec. If unset, the newest version at the start of the run."""
    version: str = Field(min_length=1, max_length=1024)
    """Version of the package."""
    digest: PackageDigest
    """SHA-256 of the package's files, computed over the output of `sha256sum *.whl`, sorted by name."""


class RunQueue(Status):
    """Position of the run in the platform's queue. A run starts an attempt, and has pods, only after its admission."""

    since: datetime | None = None
    """Time at which the run began to wait. Kept after the admission."""
    runs_ahead: int | None = Field(default=None, ge=0)
    """Approximate number of runs that wait ahead of this one. With the reason PoolFull, only runs that wait for the same shared pool count. May be off by 10 %, so that a long queue needs few updates. Unset after the admission."""  # noqa: E501
    admitted_time: datetime | None = None
    """Time of the admission. The run holds its quota until this field is unset, which happens when none of its pods can
    run any longer.
    """
    blocked_time: datetime | None = None
    """Time since which the run has been first in the queue without enough free resources. For a limited time after this, runs that need fewer resources may start first."""  # noqa: E501
    priority: int = 0
    """Value of the run's PriorityClass. The queue is ordered by this value."""
    resources: dict[str, Quantity] | None = None
    """Sum of the resources of all pods of the run, limited to the resources that the platform has quotas for."""


class ResolvedValues(Status):
    """Values of the newest attempt for fields that the spec may leave unset. They are fixed when the attempt starts."""

    model_source: str | None = Field(default=None, max_length=1024)
    """Source of the base model for all pods of the attempt, from the RLModel. A Hugging Face source includes the commit."""  # noqa: E501
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of completion tokens per turn, from sampling.maxTokens or the default in the RLModel."""
    checkpoint_interval: int | None = Field(default=None, ge=1)
    """Interval of checkpoints in steps, from checkpoints.interval or the default of the platform."""
    checkpoint_id: str | None = Field(default=None, max_length=320)
    """Id of the checkpoint in checkpointId, which the run starts from."""
    wandb_project: str | None = Field(default=None, max_length=128)
    """Project in Weights & Biases, from wandb.project or the namespace of the run. Unset if wandb is unset."""
    gpus: int | None = Field(default=None, ge=0)
    """Total number of GPUs in the run's own trainer and inference pods. Pods of a shared pool do not count."""


class RunPool(Status):
    """Shared pool that samples for the run, and trains it unless the RLModel's trainer has several GPUs or nodes."""

    name: str = Field(min_length=1, max_length=63)
    """Name of the pool's Deployment and Service in the run's namespace."""


class EndedAttempt(Status):
    """Ended attempt that is not in the usage log yet."""

    attempt: int = Field(ge=1)
    """Number of the attempt."""
    gpus: int = Field(default=0, ge=0)
    """Total number of GPUs in the trainer and inference pods of the attempt."""
    start_time: datetime
    """Start of the attempt."""
    end_time: datetime
    """End of the attempt."""


class RLRunStatus(Status):
    """Observed state of the run."""

    phase: Phase | None = None
    """Phase of the run: Queued, Pending, Running, Completed, Failed, Stopped or Suspended."""
    observed_generation: int | None = Field(default=None, ge=0)
    """Generation of the spec that this status describes."""
    conditions: list[Condition] = Field(default_factory=list, max_length=32)
    """Conditions, one entry per type."""
    reason: str | None = Field(default=None, max_length=256)
    """Reason for the phase, as one CamelCase word."""
    message: str | None = Field(default=None, max_length=4096)
    """Explanation of the phase, and what to do about it."""
    progress: Progress | None = None
    """Progress of training."""
    groups: Groups | None = None
    """Number of rollout groups by outcome."""
    attempt: int = Field(default=1, ge=1)
    """Number of the current attempt, starting at 1."""
    attempt_start_time: datetime | None = None
    """Start time of the current attempt. Unset while no attempt is active."""
    past_active_seconds: int = Field(default=0, ge=0)
    """Total active time of earlier attempts in seconds."""
    past_gpu_seconds: int = Field(default=0, ge=0)
    """GPU-seconds of earlier attempts: the sum of each attempt's active time times its number of GPUs."""
    ended_attempts: list[EndedAttempt] = Field(default_factory=list, max_length=32)
    """Ended attempts that are not in the usage log in S3 yet, for example because S3 is unavailable."""
    restarts: int = Field(default=0, ge=0)
    """Total number of container restarts, pod replacements and restarts of the whole run."""
    run_restarts: int = Field(default=0, ge=0)
    """Number of restarts of the whole run, including those that do not count toward maxRestarts."""
    run_restarts_toward_max: int = Field(default=0, ge=0)
    """Number of restarts of the whole run that count toward maxRestarts."""
    restart_backoff_seconds: int = Field(default=0, ge=0)
    """Pause in seconds before the latest restart of the whole run: 10 for the first restart, doubled each time up to 300, and reset after an attempt that was Running for 10 minutes."""  # noqa: E501
    next_restart_time: datetime | None = None
    """Start time of the next attempt. Set only while it is pending."""
    refused_since: datetime | None = None
    """Time since which the API server has rejected pods of the run, across attempts. The run fails startDeadlineSeconds after this time."""  # noqa: E501
    queue: RunQueue | None = None
    """Position of the run in the queue. Unset if the run is neither waiting nor admitted, or if the platform has no
    queue.
    """
    pool: RunPool | None = None
    """Shared pool of the newest attempt. Fixed when the attempt starts. Unset if the run has engines of its own."""
    pool_evicted: bool = False
    """True if the trainer of the shared pool has evicted the run, because the trainer crashed twice within an hour while it computed for the run, or because the run did not fit into the trainer's memory. Later attempts of the run have a trainer and engines of their own."""  # noqa: E501
    components: list[ComponentStatus] = Field(default_factory=list, max_length=64)
    """Components of the run with their pods and crashes."""
    resolved: ResolvedValues | None = None
    """Values of the newest attempt for fields that the spec may leave unset. Set once the references in the spec are valid."""  # noqa: E501
    environments: list[EnvironmentPackage] = Field(default_factory=list, max_length=32)
    """Packages of the training and evaluation environments, recorded when all environments are ready. Later attempts and restarted pods use exactly these packages. If a package has changed or is missing, the run fails with EnvironmentChanged."""  # noqa: E501
    start_time: datetime | None = None
    """Start time of the first attempt."""
    completion_time: datetime | None = None
    """Time at which the run completed, failed or was stopped."""
    checkpoints: list[ArtifactEntry] = Field(default_factory=list, max_length=MAX_LISTED)
    """Newest Ready checkpoints, newest first."""
    adapters: list[ArtifactEntry] = Field(default_factory=list, max_length=MAX_LISTED)
    """Newest Ready adapters, newest first."""
    last_checkpoint: str | None = Field(default=None, max_length=253)
    """Name of the newest Ready checkpoint."""

    @classmethod
    def parse(cls, raw: Mapping[str, Any] | None, required: Collection[str] = ()) -> Self:
        """Parse the status of an RLRun, dropping values that do not match the schema.

        Another version of the operator may have written such values. Raises ValidationError if a value in a
        `required` field does not match.
        """
        fields = raw or {}
        while True:
            try:
                return cls.model_validate(fields, by_alias=True, by_name=False)
            except ValidationError as error:
                wrong = {e["loc"][:-1] if e["type"] == "missing" else e["loc"] for e in error.errors()}
                if any(path[0] in required for path in wrong):
                    raise
                fields = _without(fields, wrong)


def _without(fields: Mapping[str, Any], paths: Iterable[tuple[str | int, ...]]) -> dict[str, Any]:
    """Return a copy of the fields without the values at the paths."""
    found = deepcopy(dict(fields))
    # Remove the last element of a list first, so that the indexes of the others stay valid.
    for *parents, last in sorted(paths, reverse=True):
        section: Any = found
        for part in parents:
            section = section[part]
        del section[last]
    return found
