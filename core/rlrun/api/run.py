"""RLRun: one reinforcement-learning run. The spec has the fields of the TOML files of Prime Intellect's hosted service
and additional fields for Kubernetes.
"""

import json
import re
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlrun.api.base.kubernetes_types import EnvFrom, KubernetesObject
from rlrun.api.base.names import LABEL, CheckpointId, ModelId, ObjectName, snake
from rlrun.api.base.rules import Rule, Spec, Transition, cel_of_defaults
from rlrun.api.run_sections.environments import DEFAULT_ROLLOUT_TIMEOUT, TrainEnvironment, unique_names
from rlrun.api.run_sections.evaluation import Evaluation, Validation
from rlrun.api.run_sections.example_selection import Buffer, DifficultyFilter
from rlrun.api.run_sections.failure_policy import YEAR, FailurePolicy
from rlrun.api.run_sections.infrastructure import Infrastructure
from rlrun.api.run_sections.monitoring import Wandb
from rlrun.api.run_sections.retention import Adapters, ArtifactPolicy, Checkpoints
from rlrun.api.run_sections.rollouts import Sampling, TrajectoryStrategy
from rlrun.api.run_sections.samples import Samples
from rlrun.api.run_sections.training import (
    Advantage,
    Algorithm,
    AlgorithmName,
    KlPenalty,
    Loss,
    RunLora,
    Schedule,
)
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import MAX_RUN_NAME, Driver

_LOOP_DEFAULTS = {
    "maxSteps": 100,
    "batchSize": 128,
    "rolloutsPerExample": 8,
    "trajectoryStrategy": "interleaved",
    "learningRate": 1e-4,
    "warmupSteps": 0,
    "schedule": "constant",
    "weightDecay": 0.0,
    "maxGradNorm": 1.0,
    "gradientAccumulationSteps": 1,
    "oversamplingFactor": 2.0,
    "maxAsyncLevel": 2,
    "maxOffPolicySteps": 8,
}
"""Defaults of the fields that a run with `driver: Client` leaves to the client's program."""
_LOOP_SECTIONS: dict[str, type[Spec]] = {"sampling": Sampling, "algorithm": Algorithm, "loss": Loss, "buffer": Buffer}
"""Sections that a run with `driver: Client` leaves to the client's program."""
_ORCHESTRATOR_FIELDS = ("tokenBatchSize", "klPenalty", "eval", "val", "difficultyFilter", "wandb", "queueName")
"""Fields without a default that a run with `driver: Client` must not set."""


def _client_rule(field: str, cel: str, message: str, is_satisfied: Callable[[Any], bool]) -> Rule:
    """Return a rule about runs with `driver: Client`."""
    return Rule(
        field,
        f"self.driver == 'Orchestrator' || ({cel})",
        f"with driver Client, {message}",
        lambda s: s.driver is Driver.orchestrator or is_satisfied(s),
    )


_CLIENT_RULES = (
    _client_rule(
        "env",
        "self.env.size() == 0",
        "the client's program runs the environments: remove env",
        lambda s: not s.env,
    ),
    _client_rule(
        "driver",
        " && ".join(f"!has(self.{name})" for name in _ORCHESTRATOR_FIELDS),
        f"the run has no orchestrator and no pods: remove {', '.join(_ORCHESTRATOR_FIELDS)}",
        lambda s: all(getattr(s, snake(name)) is None for name in _ORCHESTRATOR_FIELDS),
    ),
    _client_rule(
        "driver",
        " && ".join(
            f"self.{name} == {repr(value) if isinstance(value, str) else json.dumps(value)}"
            for name, value in _LOOP_DEFAULTS.items()
        ),
        f"the client's program controls batches and steps: remove {', '.join(_LOOP_DEFAULTS)}",
        lambda s: all(getattr(s, snake(name)) == value for name, value in _LOOP_DEFAULTS.items()),
    ),
    _client_rule(
        "driver",
        " && ".join(cel_of_defaults(section, f"self.{name}") for name, section in _LOOP_SECTIONS.items()),
        f"the client's program controls rollouts and losses: remove {', '.join(_LOOP_SECTIONS)}",
        lambda s: all(getattr(s, name) == section() for name, section in _LOOP_SECTIONS.items()),
    ),
    _client_rule(
        "lora.enabled",
        "self.lora.enabled",
        "the run trains an adapter: remove lora.enabled: false",
        lambda s: s.lora.enabled,
    ),
    _client_rule(
        "infrastructure.dedicated",
        "!self.infrastructure.dedicated",
        "the run uses a shared pool: remove infrastructure.dedicated",
        lambda s: not s.infrastructure.dedicated,
    ),
)


class RLRunSpec(Spec):
    """Model, environments and training parameters of the run."""

    name: str | None = Field(default=None, min_length=1, max_length=128)
    """Display name, shown by `rlrun get` and in Weights & Biases unless wandb.name is set. Defaults to the object's
    name.
    """
    model: ModelId
    """Id of the RLModel to train. `kubectl get rlmodels` lists the available ids."""
    driver: Driver = Field(default=Driver.orchestrator, strict=False)
    """Program that runs the training loop. Orchestrator is a pod of the run, which generates rollouts in the environments and trains on them. Client is a program of the user, which calls the platform's Tinker-compatible API. A run with driver Client has no environments and no pods of its own, and needs an RLModel whose trainer and engines are shared (sharing.mode: Namespace)."""  # noqa: E501
    max_steps: int = Field(default=100, ge=1, le=1_000_000)
    """Number of optimizer steps. Can be raised until the run has finished, but not lowered."""
    batch_size: int = Field(default=128, ge=1, le=65_536)
    """Number of valid rollouts per step. Must be a multiple of rolloutsPerExample. Additional groups replace failed rollouts, so a step may have up to rolloutsPerExample - 1 more rollouts."""  # noqa: E501
    token_batch_size: int | None = Field(default=None, ge=1, le=1_073_741_824)
    """Number of tokens per step, in place of a number of rollouts, as in prime-rl. A step takes groups until their valid rollouts contain this many tokens, including prompt tokens. batchSize is then the number of demonstrations in a supervised step, and the expected number of rollouts per step until the first groups have ended. Requires a maxAsyncLevel of at least 1."""  # noqa: E501
    rollouts_per_example: int = Field(default=8, ge=1, le=1024)
    """Number of rollouts per example. They form a group, whose mean reward is the baseline of the advantages. Must be at least 2 with the algorithm grpo, unless algorithm.advantage is none."""  # noqa: E501
    trajectory_strategy: TrajectoryStrategy = Field(default=TrajectoryStrategy.interleaved, strict=False)
    """Conversion of a multi-turn rollout to training sequences. interleaved joins turns whose tokens continue exactly; branching makes one sequence of each turn. The order in which turns are generated is the same with both: rollouts of all examples run at the same time."""  # noqa: E501
    learning_rate: float = Field(default=1e-4, gt=0, le=1)
    """Learning rate of the AdamW optimizer."""
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Number of steps over which the learning rate rises linearly to learningRate. With the schedules linear and cosine, the first step has minLearningRate, as in prime-rl."""  # noqa: E501
    schedule: Schedule = Field(default=Schedule.constant, strict=False)
    """Learning rate after warmupSteps, as in prime-rl: constant keeps learningRate, linear lowers the rate to minLearningRate during the last decaySteps steps, and cosine lowers it during all steps after warmupSteps. Raising maxSteps during a run raises the rate of later steps."""  # noqa: E501
    decay_steps: int | None = Field(default=None, ge=0, le=1_000_000)
    """Number of steps before maxSteps in which the schedule linear lowers the learning rate. At 0, the rate stays constant after the warmup. Defaults to all steps after warmupSteps."""  # noqa: E501
    min_learning_rate: float = Field(default=0.0, ge=0, le=1)
    """Lowest learning rate of the schedules linear and cosine."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Weight decay of the AdamW optimizer. Each step multiplies the trained weights by (1 - learning rate x weightDecay)."""  # noqa: E501
    max_grad_norm: float = Field(default=1.0, gt=0, le=1_000_000)
    """Maximum norm of a step's gradient. A gradient with a higher norm is scaled down to this norm."""
    gradient_accumulation_steps: int = Field(default=1, ge=1, le=65_536)
    """Minimum number of passes per step. Higher values need less memory and do not change the result."""
    lora_alpha: float = Field(default=16, gt=0, le=4096)
    """Scale of the LoRA update. The update is multiplied by loraAlpha / rank."""
    lora: RunLora = Field(default_factory=RunLora)
    """LoRA settings that override those of the RLModel."""
    algorithm: Algorithm = Field(default_factory=Algorithm)
    """Training algorithm, which determines what the policy learns from and how advantages are computed."""
    loss: Loss = Field(default_factory=Loss)
    """Policy-gradient loss, and its importance ratio between trainer and inference engine."""
    kl_penalty: KlPenalty | None = None
    """KL penalty against the model that reinforcement learning starts from. By default, there is none."""
    oversampling_factor: float = Field(default=2.0, ge=1, le=16)
    """Number of rollouts in flight, as a multiple of batchSize. If tokenBatchSize is set, a multiple of the expected number of rollouts per step."""  # noqa: E501
    max_async_level: int = Field(default=2, ge=0, le=32)
    """Maximum number of steps by which the generation of rollouts may run ahead of the trainer. Must be at least oversamplingFactor. Can be 0 if oversamplingFactor is 1, for strictly on-policy training."""  # noqa: E501
    max_off_policy_steps: int = Field(default=8, ge=0, le=64)
    """Maximum age in steps of the oldest token of a rollout that is trained on. Must be at least maxAsyncLevel. If maxAsyncLevel is 0, every token is sampled from the policy that the step trains."""  # noqa: E501
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seed for the adapter's initial weights, the selection of examples and, if maxAsyncLevel is 0, token sampling."""
    checkpoint_id: CheckpointId | None = None
    """RLCheckpoint to start from, as name, namespace/name or id (cp_namespace.name, shown by `rlrun checkpoints`). The checkpoint must be Ready, belong to the same model, and be in this namespace or shared with it."""  # noqa: E501
    checkpoint_optimizer: bool = True
    """Restores the optimizer, the learning-rate schedule and the random-number state from checkpointId. If false, only the weights are restored. Requires checkpointId."""  # noqa: E501
    sampling: Sampling = Field(default_factory=Sampling)
    """Sampling parameters for training rollouts."""
    env: list[TrainEnvironment] = Field(default_factory=list, max_length=16)
    """Environments to train on. At least one is required. Must be empty with driver Client."""
    eval: Evaluation | None = None
    """Evaluation on separate environments during training. Disabled if unset."""
    val: Validation | None = None
    """Validation on the training environments, with held-out examples if they have an eval_dataset. Disabled if unset."""  # noqa: E501
    buffer: Buffer = Field(default_factory=Buffer)
    """Selection of examples by difficulty and environment."""
    difficulty_filter: DifficultyFilter | None = None
    """Filter for groups whose rewards give too little training signal. If unset, no group is filtered."""
    wandb: Wandb | None = None
    """Logging of metrics to Weights & Biases, in addition to S3. The API key is read from WANDB_API_KEY in a Secret of envFrom. Without the key the run does not start, unless offline is set."""  # noqa: E501
    samples: Samples = Field(default_factory=Samples)
    """Rollouts stored in S3 for people to read."""
    checkpoints: Checkpoints = Field(default_factory=Checkpoints)
    """Interval and retention of checkpoints."""
    adapters: Adapters = Field(default_factory=Adapters)
    """Interval and retention of adapter uploads."""
    infrastructure: Infrastructure = Field(default_factory=Infrastructure)
    """Size of the environment pods, and use of shared engines."""

    suspend: bool = False
    """Suspends the run: its pods are deleted. Set to false to continue from the newest checkpoint."""
    stop: bool = False
    """Ends the run permanently. Its artifacts are kept."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=10 * YEAR)
    """Seconds from the end of the run until the RLRun is deleted. If unset, it is never deleted."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=10 * YEAR)
    """Total seconds for which the run may be active before it fails. Unlimited if unset."""
    start_deadline_seconds: int = Field(default=3600, ge=1, le=YEAR)
    """Seconds within which each attempt must start its first step; otherwise the run fails."""
    stall_deadline_seconds: int = Field(default=3600, ge=1, le=YEAR)
    """Seconds within which each step must finish; otherwise the run fails. Has no effect with driver Client."""
    max_restarts: int = Field(default=3, ge=0, le=1000)
    """Maximum number of crashes per component within an attempt, and of restarts of the whole run. Exceeding it fails the run. Deleted, evicted and preempted pods do not count, except pods evicted for exceeding their own ephemeral-storage limit. If nodes repeatedly evict or reject the pods of a component while none of them is ready, the whole run restarts after a pause, and this restart counts."""  # noqa: E501
    failure_policy: FailurePolicy = Field(default_factory=FailurePolicy)
    """Rules that select the action after a failure of a component."""
    queue_name: ObjectName | None = None
    """Kueue LocalQueue in the run's namespace, which admits all pods of the run at the same time. Until admission the run is Queued and has no pods. A platform without Kueue refuses the run."""  # noqa: E501
    priority_class_name: ObjectName | None = None
    """PriorityClass of the run's pods. A change takes effect with the next attempt, because the priority of an existing pod is immutable. The platform defines which classes runs may use."""  # noqa: E501
    env_from: list[EnvFrom] = Field(default_factory=list, max_length=16)
    """Secrets in this namespace whose keys become environment variables of the environment pods only, except WANDB_API_KEY, which only the orchestrator gets. The Secret env.owner.name is used for the environment owner/name even if it is not listed. The platform reserves some names, such as `*-s3`."""  # noqa: E501
    artifact_policy: ArtifactPolicy = Field(default=ArtifactPolicy.retain, strict=False)
    """Handling of the run's files in S3 when the RLRun is deleted: Retain keeps them, Delete removes them."""

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
            "env",
            "self.driver == 'Client' || self.env.size() > 0",
            "env is empty: add an entry for each environment to train on",
            lambda s: s.driver is Driver.client or len(s.env) > 0,
        ),
        *_CLIENT_RULES,
        Rule(
            "checkpointOptimizer",
            "self.checkpointOptimizer || has(self.checkpointId)",
            "checkpointOptimizer can be false only if checkpointId is set: it selects what is restored from there",
            lambda s: s.checkpoint_optimizer or s.checkpoint_id is not None,
        ),
        Rule(
            "batchSize",
            # A client may write 128.0, which reaches an admission policy unconverted.
            "int(self.batchSize) % int(self.rolloutsPerExample) == 0",
            "batchSize must be a multiple of rolloutsPerExample: every batch consists of whole groups",
            lambda s: s.batch_size % s.rollouts_per_example == 0,
        ),
        Rule(
            "tokenBatchSize",
            "!has(self.tokenBatchSize) || self.maxAsyncLevel > 0",
            "tokenBatchSize requires a maxAsyncLevel of at least 1: more groups may start than a batch needs, and with "
            "maxAsyncLevel 0 no later step could train on them",
            lambda s: s.token_batch_size is None or s.max_async_level > 0,
        ),
        Rule(
            "rolloutsPerExample",
            "self.rolloutsPerExample > 1 || self.algorithm.name != 'grpo' || self.algorithm.advantage == 'none'",
            "rolloutsPerExample must be at least 2 with the algorithm grpo: a single rollout has no baseline",
            lambda s: (
                s.rollouts_per_example > 1
                or s.algorithm.name is not AlgorithmName.grpo
                or s.algorithm.advantage is Advantage.none
            ),
        ),
        Rule(
            "minLearningRate",
            "self.minLearningRate <= (self.schedule == 'constant' ? 0.0 : self.learningRate)",
            "minLearningRate must not exceed learningRate, and requires the schedule linear or cosine",
            lambda s: s.min_learning_rate <= (0.0 if s.schedule is Schedule.constant else s.learning_rate),
        ),
        Rule(
            "decaySteps",
            "!has(self.decaySteps) || self.schedule == 'linear'",
            "decaySteps requires the schedule linear: cosine lowers the learning rate in all steps after warmupSteps",
            lambda s: s.decay_steps is None or s.schedule is Schedule.linear,
        ),
        Rule(
            "warmupSteps",
            "self.schedule == 'constant'"
            " || int(self.warmupSteps) + (has(self.decaySteps) ? int(self.decaySteps) : 1) <= int(self.maxSteps)",
            "warmupSteps + decaySteps must not exceed maxSteps, and the schedules linear and cosine need a "
            "step after warmupSteps",
            lambda s: (
                s.schedule is Schedule.constant
                or s.warmup_steps + (1 if s.decay_steps is None else s.decay_steps) <= s.max_steps
            ),
        ),
        Rule(
            "maxAsyncLevel",
            "self.maxAsyncLevel == 0 ? self.oversamplingFactor == 1.0"
            " : double(self.maxAsyncLevel) >= self.oversamplingFactor",
            "maxAsyncLevel must be at least oversamplingFactor; 0 is allowed only if oversamplingFactor is 1",
            lambda s: (
                s.oversampling_factor == 1.0
                if s.max_async_level == 0
                else float(s.max_async_level) >= s.oversampling_factor
            ),
        ),
        Rule(
            "maxOffPolicySteps",
            "self.maxOffPolicySteps >= self.maxAsyncLevel",
            "maxOffPolicySteps must be at least maxAsyncLevel: rollouts may wait that many steps before they are "
            "trained on",
            lambda s: s.max_off_policy_steps >= s.max_async_level,
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
            "buffer.envRatios and env[].weight have the same meaning: use only one of them",
            lambda s: not s.buffer.env_ratios or all(e.weight is None for e in s.env),
        ),
        Rule(
            "env",
            "self.env.all(e, has(e.weight)) || !self.env.exists(e, has(e.weight))",
            "set weight for every entry of env or for none",
            lambda s: len({e.weight is None for e in s.env}) <= 1,
        ),
        Rule(
            "buffer.skipVerification",
            "!self.buffer.skipVerification || self.algorithm.name != 'grpo'",
            "buffer.skipVerification cannot be used with grpo, which learns from rewards: choose another "
            "algorithm.name",
            lambda s: not s.buffer.skip_verification or s.algorithm.name is not AlgorithmName.grpo,
        ),
        Rule(
            "algorithm.sftSteps",
            "self.algorithm.sftSteps <= self.maxSteps",
            "algorithm.sftSteps must not exceed maxSteps",
            lambda s: s.algorithm.sft_steps <= s.max_steps,
        ),
        Rule(
            "env",
            # Allow the default with a short stallDeadlineSeconds: few rollouts of such runs take that long.
            f"self.env.all(e, !has(e.rolloutTimeoutSeconds) || e.rolloutTimeoutSeconds <= {DEFAULT_ROLLOUT_TIMEOUT}"
            " || e.rolloutTimeoutSeconds * 10 < self.stallDeadlineSeconds * 9)",
            f"env[].rolloutTimeoutSeconds must be at most {DEFAULT_ROLLOUT_TIMEOUT} or below 0.9 x stallDeadlineSeconds"
            f", because a run fails if a step waits longer for rollouts and scores: raise stallDeadlineSeconds too",
            lambda s: all(
                e.rollout_timeout_seconds <= DEFAULT_ROLLOUT_TIMEOUT
                or e.rollout_timeout_seconds * 10 < s.stall_deadline_seconds * 9
                for e in s.env
            ),
        ),
        Rule(
            "env",
            "self.env.all(e, !has(e.maxConcurrent) || (e.maxConcurrent >= self.rolloutsPerExample"
            " && (!has(self.val) || e.maxConcurrent >= self.val.rolloutsPerExample)))",
            "env[].maxConcurrent must be at least rolloutsPerExample of the run and of val, because all rollouts of an "
            "example run concurrently",
            lambda s: all(
                e.max_concurrent is None
                or e.max_concurrent
                >= max(s.rollouts_per_example, s.val.rollouts_per_example if s.val is not None else 0)
                for e in s.env
            ),
        ),
        unique_names("env"),
    )
    spec_transitions: ClassVar[tuple[Transition, ...]] = (
        Transition(
            "maxSteps",
            "self.maxSteps >= oldSelf.maxSteps",
            "maxSteps cannot be lowered: set stop to end the run early",
            lambda new, old: new.max_steps >= old.max_steps,
        ),
        Transition(
            "stop",
            "self.stop || !oldSelf.stop",
            "stop cannot be reverted: start a new run with checkpointId",
            lambda new, old: new.stop or not old.stop,
        ),
    )

    @property
    def oldest_token_age(self) -> int:
        """Maximum age in steps of a token that is trained on."""
        return self.max_off_policy_steps if self.max_async_level else 0

    @property
    def policies_in_use(self) -> int:
        """Maximum number of policies that an engine serves at a time, including a policy that is loading.

        A turn keeps its policy, so turns in progress may use the newest policy and any of the last maxOffPolicySteps.
        Evaluation and validation may each use one older policy.
        """
        return self.oldest_token_age + 2 + (self.eval is not None) + (self.val is not None)


class RLRun(KubernetesObject):
    """One reinforcement-learning run: its configuration in spec, its progress in status."""

    kind: Literal["RLRun"] = "RLRun"
    spec: RLRunSpec
    """Model, environments and training parameters of the run."""
    status: RLRunStatus = Field(default_factory=RLRunStatus)
    """Observed state of the run. Written by the operator."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "metadata.name",
            f"self.metadata.name.size() <= {MAX_RUN_NAME} && self.metadata.name.matches('{LABEL}')",
            f"metadata.name must have at most {MAX_RUN_NAME} characters: lower-case letters, digits and -, beginning "
            f"with a letter and ending with a letter or digit",
            # An object with generateName has no name until it is created.
            lambda r: (
                not r.metadata.name
                or (len(r.metadata.name) <= MAX_RUN_NAME and re.fullmatch(LABEL, r.metadata.name) is not None)
            ),
        ),
    )
