"""RLRun: one reinforcement-learning run. The spec mirrors the hosted TOML schema, plus what Kubernetes users expect."""

import re
from typing import ClassVar, Literal

from pydantic import Field

from rlrun.api.base.kubernetes_types import EnvFrom, KubernetesObject
from rlrun.api.base.names import LABEL, CheckpointId, ModelId, ObjectName
from rlrun.api.base.rules import Rule, Spec, Transition
from rlrun.api.run_sections.environments import TrainEnvironment, unique_names
from rlrun.api.run_sections.evaluation import Evaluation, Validation
from rlrun.api.run_sections.example_selection import Buffer, DifficultyFilter
from rlrun.api.run_sections.failure_policy import FailurePolicy
from rlrun.api.run_sections.infrastructure import Infrastructure
from rlrun.api.run_sections.monitoring import Wandb
from rlrun.api.run_sections.retention import Adapters, ArtifactPolicy, Checkpoints
from rlrun.api.run_sections.rollouts import Sampling, TrajectoryStrategy
from rlrun.api.run_sections.training import Algorithm, AlgorithmName, KlPenalty, Loss, RunLora
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import MAX_RUN_NAME

YEAR = 365 * 24 * 3600


class RLRunSpec(Spec):
    """What to train, on what, and how."""

    name: str | None = Field(default=None, min_length=1, max_length=128)
    """Display name; the object's name when absent."""
    model: ModelId
    """Model to train: the id of an RLModel, as `kubectl get rlmodels` lists them."""
    max_steps: int = Field(default=100, ge=1, le=1_000_000)
    """Optimizer steps. May be raised while the run lives, never lowered."""
    batch_size: int = Field(default=128, ge=1, le=65_536)
    """Rollouts per step; a multiple of rolloutsPerExample."""
    rollouts_per_example: int = Field(default=8, ge=2, le=1024)
    """Rollouts of one example: the group whose mean reward is the baseline, hence at least 2."""
    trajectory_strategy: TrajectoryStrategy = Field(default=TrajectoryStrategy.interleaved, strict=False)
    """interleaved joins the turns of a rollout to one training sequence wherever the tokens continue exactly; branching trains on every turn by itself."""  # noqa: E501
    learning_rate: float = Field(default=1e-4, gt=0, le=1)
    """Learning rate of AdamW."""
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Steps in which the learning rate rises to its value."""
    gradient_accumulation_steps: int = Field(default=1, ge=1, le=65_536)
    """Passes, at least, that a step's batch is split into: more need less memory and change nothing else."""
    lora_alpha: float = Field(default=16, gt=0, le=4096)
    """Scale of the LoRA update: it is multiplied by loraAlpha / rank."""
    lora: RunLora = Field(default_factory=RunLora)
    """Shape of the adapter, where it is not to be the RLModel's."""
    algorithm: Algorithm = Field(default_factory=Algorithm)
    """Where the learning signal comes from."""
    loss: Loss = Field(default_factory=Loss)
    """How the importance ratio enters the policy gradient."""
    kl_penalty: KlPenalty | None = None
    """Price on moving away from the model that training starts from; none when absent."""
    oversampling_factor: float = Field(default=2.0, ge=1, le=16)
    """Rollouts in flight relative to batchSize."""
    max_async_level: int = Field(default=2, ge=0, le=32)
    """How many steps old a policy may be when its rollouts are trained on; at least oversamplingFactor. 0 with oversamplingFactor 1 is strictly on-policy."""  # noqa: E501
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seed of the adapter's first weights, of the draw of examples and, with maxAsyncLevel 0, of the sampling."""
    checkpoint_id: CheckpointId | None = None
    """RLCheckpoint to start from, as name or namespace/name: Ready, of the same model, in this namespace or shared with it."""  # noqa: E501
    sampling: Sampling
    """How the policy draws tokens."""
    env: list[TrainEnvironment] = Field(min_length=1, max_length=16)
    """Environments to train on."""
    eval: Evaluation | None = None
    """Evaluation on environments of their own; none when absent."""
    val: Validation | None = None
    """Validation on held-out examples of the training environments; none when absent."""
    buffer: Buffer = Field(default_factory=Buffer)
    """Which examples are drawn next."""
    difficulty_filter: DifficultyFilter | None = None
    """Which groups are not trained on because their rewards teach too little; all count when absent."""
    wandb: Wandb | None = None
    """Where metrics go in Weights & Biases, besides S3. The key WANDB_API_KEY comes from a Secret of envFrom; without one the files of an offline run are kept with the run's artifacts."""  # noqa: E501
    checkpoints: Checkpoints = Field(default_factory=Checkpoints)
    """When checkpoints are saved and how many are kept."""
    adapters: Adapters = Field(default_factory=Adapters)
    """When adapters are uploaded and how many are kept."""
    infrastructure: Infrastructure = Field(default_factory=Infrastructure)
    """Size of the environment pods."""

    suspend: bool = False
    """While true the run has no pods; set back to false it continues from the newest checkpoint."""
    stop: bool = False
    """Ends the run and keeps its artifacts; cannot be undone."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=10 * YEAR)
    """Delete the RLRun this long after it finished; never when absent."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=10 * YEAR)
    """Fail the run when it has been active this long in all; no limit when absent."""
    start_deadline_seconds: int = Field(default=3600, ge=1, le=YEAR)
    """Fail the run when an attempt has not begun its first step after this long."""
    stall_deadline_seconds: int = Field(default=3600, ge=1, le=YEAR)
    """Fail the run when it has not finished a step for this long."""
    max_restarts: int = Field(default=3, ge=0, le=1000)
    """Crashes of one part of the run within an attempt, and restarts of the whole run, before the run fails; pods that are deleted, evicted or preempted do not count."""  # noqa: E501
    failure_policy: FailurePolicy = Field(default_factory=FailurePolicy)
    """What follows when a part of the run fails."""
    queue_name: ObjectName | None = None
    """LocalQueue of Kueue that the run's pods wait in for quota, by the label kueue.x-k8s.io/queue-name on its workloads; until they are admitted the run is Queued. Without Kueue in the cluster nothing waits."""  # noqa: E501
    priority_class_name: ObjectName | None = None
    """PriorityClass of the run's pods. A change holds for the pods of the next attempt, since that of a pod cannot be changed."""  # noqa: E501
    env_from: list[EnvFrom] = Field(default_factory=list, max_length=16)
    """Secrets of this namespace whose keys become variables of the environment pods, and of no others."""
    artifact_policy: ArtifactPolicy = Field(default=ArtifactPolicy.retain, strict=False)
    """Whether the run's files in S3 stay (Retain) or go (Delete) when the RLRun is deleted."""

    mutable: ClassVar[frozenset[str] | None] = frozenset(
        {
            "max_steps",
            "checkpoints",
            "adapters",
            "suspend",
            "stop",
            "ttl_seconds_after_finished",
            "active_deadline_seconds",
            "start_deadline_seconds",
            "stall_deadline_seconds",
            "max_restarts",
            "failure_policy",
            "priority_class_name",
            "artifact_policy",
        }
    )
    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "batchSize",
            "self.batchSize % self.rolloutsPerExample == 0",
            "batchSize must be a multiple of rolloutsPerExample: every batch is made of whole groups",
            lambda s: s.batch_size % s.rollouts_per_example == 0,
        ),
        Rule(
            "maxAsyncLevel",
            "self.maxAsyncLevel == 0 ? self.oversamplingFactor == 1.0"
            " : double(self.maxAsyncLevel) >= self.oversamplingFactor",
            "maxAsyncLevel must be at least oversamplingFactor, or 0 together with oversamplingFactor 1",
            lambda s: (
                s.oversampling_factor == 1.0
                if s.max_async_level == 0
                else float(s.max_async_level) >= s.oversampling_factor
            ),
        ),
        Rule(
            "buffer.envRatios",
            "self.buffer.envRatios.size() == 0 || self.buffer.envRatios.size() == self.env.size()",
            "buffer.envRatios must have one number per entry of env",
            lambda s: len(s.buffer.env_ratios) in (0, len(s.env)),
        ),
        Rule(
            "buffer.envRatios",
            "self.buffer.envRatios.size() == 0 || !self.env.exists(e, has(e.weight))",
            "buffer.envRatios and env[].weight say the same: use one of them",
            lambda s: not s.buffer.env_ratios or all(e.weight is None for e in s.env),
        ),
        Rule(
            "env",
            "self.env.all(e, has(e.weight)) || !self.env.exists(e, has(e.weight))",
            "give every entry of env a weight, or none",
            lambda s: len({e.weight is None for e in s.env}) <= 1,
        ),
        Rule(
            "buffer.skipVerification",
            "!self.buffer.skipVerification || self.algorithm.name != 'grpo'",
            "buffer.skipVerification leaves grpo without rewards to learn from: use it with another algorithm.name",
            lambda s: not s.buffer.skip_verification or s.algorithm.name is not AlgorithmName.grpo,
        ),
        Rule(
            "algorithm.sftSteps",
            "self.algorithm.sftSteps <= self.maxSteps",
            "algorithm.sftSteps must not exceed maxSteps",
            lambda s: s.algorithm.sft_steps <= s.max_steps,
        ),
        unique_names("env"),
    )
    spec_transitions: ClassVar[tuple[Transition, ...]] = (
        Transition(
            "maxSteps",
            "self.maxSteps >= oldSelf.maxSteps",
            "maxSteps can be raised, not lowered: stop the run to end it early",
            lambda new, old: new.max_steps >= old.max_steps,
        ),
        Transition(
            "stop",
            "self.stop || !oldSelf.stop",
            "stop cannot be undone: start a new run with checkpointId",
            lambda new, old: new.stop or not old.stop,
        ),
    )


class RLRun(KubernetesObject):
    """One reinforcement-learning run: what to train in spec, how it is going in status."""

    kind: Literal["RLRun"] = "RLRun"
    spec: RLRunSpec
    """What to train, on what, and how."""
    status: RLRunStatus = Field(default_factory=RLRunStatus)
    """How it is going; written by the operator."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "metadata.name",
            f"self.metadata.name.size() <= {MAX_RUN_NAME} && self.metadata.name.matches('{LABEL}')",
            f"metadata.name must have at most {MAX_RUN_NAME} characters: small letters, digits and -, a letter first",
            # An object that is still to get its name from generateName has none yet.
            lambda r: (
                not r.metadata.name
                or (len(r.metadata.name) <= MAX_RUN_NAME and re.fullmatch(LABEL, r.metadata.name) is not None)
            ),
        ),
    )
