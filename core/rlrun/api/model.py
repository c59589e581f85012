"""RLModel: one entry of the platform's model catalog, with the configuration of its trainer and inference pods."""

import re
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from rlrun.api.base.kubernetes_types import (
    Condition,
    EnvVar,
    KubernetesObject,
    Quantity,
    Resources,
    Status,
)
from rlrun.api.base.names import ModelId, ObjectName
from rlrun.api.base.pod_patch import refused_fields
from rlrun.api.base.pod_shape import FreeForm, PodShape
from rlrun.api.base.rules import LIST_MAP_KEYS, Rule, Spec

OWNED_FLAGS = (
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--uds",
    "--config",
    "--enable-lora",
    "--no-enable-lora",
    "--max-loras",
    "--max-lora-rank",
    "--enable-mixed-moe-lora-format",
    "--enable-moe-shared-loras",
    "--max-model-len",
    "--logprobs-mode",
    "--api-key",
    "--middleware",
    "--allowed-media-domains",
    "--allowed-local-media-path",
)
"""Flags of the inference engine that only the operator may set. `--config` names a file that could set the others."""
PARALLEL_FLAGS = (
    "--tensor-parallel-size",
    "-tp",
    "--pipeline-parallel-size",
    "-pp",
    "--data-parallel-size",
    "-dp",
    "--data-parallel-size-local",
    "-dpl",
    "--data-parallel-rank",
    "-dpn",
    "--data-parallel-start-rank",
    "-dpr",
    "--data-parallel-address",
    "-dpa",
    "--data-parallel-rpc-port",
    "-dpp",
    "--data-parallel-backend",
    "-dpb",
    "--data-parallel-hybrid-lb",
    "-dph",
    "--data-parallel-external-lb",
    "-dpe",
    "--data-parallel-multi-port-external-lb",
    "-dpm",
    "--nnodes",
    "-n",
    "--node-rank",
    "-r",
    "--api-server-count",
    "-asc",
    "--headless",
)
"""Flags that divide an engine among GPUs and servers. `inference.parallelism` determines this division."""
SHARED_FLAGS = ("--kv-transfer-config", "--ec-transfer-config", "--enable-prompt-embeds")
"""Flags that would let requests of one run reach data of another run in a shared engine."""
DISTRIBUTION_FLAGS = ("--logits-processors", "--tool-strict-level")
"""Flags that change the distribution of sampled tokens. The trainer derives the distribution only from the run's
sampling section, so it would not know of the change.
"""


def _sets_flag(flags: tuple[str, ...]) -> str:
    """Return the CEL expression that is equivalent to a non-empty result of `_flags_of`."""
    names = ", ".join(f"'{flag}'" for flag in flags)
    name = "a.split('=')[0].replace('_', '-')"
    return f"self.extraArgs.exists(a, a.startsWith('-') && [{names}].exists(f, f.startsWith({name})))"


def _flags_of(arguments: list[str], flags: tuple[str, ...]) -> list[str]:
    """Return the arguments that set one of the flags. As in vLLM, flags may be abbreviated or contain underscores."""
    return [
        argument
        for argument in arguments
        if argument.startswith("-")
        and any(flag.startswith(argument.partition("=")[0].replace("_", "-")) for flag in flags)
    ]


def is_gpu(resource: str) -> bool:
    """Return whether an extended resource is a GPU, including shared GPUs and instances of partitioned GPUs (MIG)."""
    vendor, _, name = resource.partition("/")
    return "." in vendor and (name in ("gpu", "gpu.shared") or name.startswith("mig-"))


Image = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\s]+$")]


class Lora(Spec):
    """Settings of the LoRA adapters that runs train for this model."""

    rank: int = Field(default=16, ge=1, le=512)
    """Default rank of the adapters, and the maximum that a run may request."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the adapters' input during training. Above 0, trainer and engine probabilities differ slightly."""
    target_modules: list[Annotated[str, Field(min_length=1, max_length=128)]] = Field(
        default_factory=lambda: ["all-linear"], min_length=1, max_length=64
    )
    """Names of the linear layers that receive an adapter. all-linear selects every linear layer that can be trained and served: attention, linear attention, convolution, dense and shared MLPs. experts selects the routed experts of a mixture of experts, whose adapters are many times larger and are served on GPUs only. Routers never receive one."""  # noqa: E501


class Pods(PodShape):
    """Fields common to trainer and inference pods."""

    image: Image | None = None
    """Container image. Defaults to the image in the chart's values."""
    gpus: int = Field(default=1, ge=0, le=16)
    """Number of GPUs per pod. 0 means that the pods run on CPUs."""
    resources: Resources = Field(default_factory=Resources)
    """CPU, memory and other resources of each pod, in addition to gpus. If CPU or memory has neither a request nor a limit, it defaults to a request of 2 CPUs and 8Gi and a limit of 16 CPUs and 128Gi per GPU. In pods without GPUs, the defaults are a request of 1 CPU and 2Gi and a limit of 16 CPUs and 32Gi."""  # noqa: E501
    shm_size: Quantity | None = None
    """Size of the shared memory (/dev/shm) of each pod, which counts toward its memory limit. Defaults to runs.shmSize
    in the chart's values.
    """
    cache_claim: ObjectName | None = None
    """Name of a PersistentVolumeClaim for compiled kernels and other caches, so that a new pod does not compile them again. Must exist in each namespace with pods of the model. If unset, the caches are deleted with the pod."""  # noqa: E501
    termination_grace_period_seconds: int | None = Field(default=None, ge=20, le=86400)
    """Seconds from SIGTERM to SIGKILL, in which a trainer completes its current step and saves a last checkpoint. Defaults to runs.terminationGracePeriodSeconds in the chart's values."""  # noqa: E501
    env: list[EnvVar] = Field(default_factory=list, max_length=64, json_schema_extra={LIST_MAP_KEYS: ["name"]})
    """Additional environment variables of the container. Variables of the Hugging Face hub (HF_*) are also set in the container that downloads the model; those with valueFrom are set only there."""  # noqa: E501
    pod_template: FreeForm = Field(default_factory=dict)
    """Strategic merge patch for pod fields that this object does not have: metadata (labels, annotations) and spec. Fields that affect the isolation of pods are refused: see docs/guides/models.md."""  # noqa: E501

    @field_validator("pod_template")
    @classmethod
    def _open_nothing(cls, patch: FreeForm) -> FreeForm:
        # The API server does not know the fields of a free-form object, so a CEL rule cannot check them.
        if refused := refused_fields(patch):
            raise PydanticCustomError("refused", "{message}", {"message": "; ".join(refused)})
        return patch

    @property
    def all_gpus(self) -> int:
        """Number of GPUs per pod, including those in `resources`. A MIG instance counts as one GPU."""
        named = {**self.resources.requests, **self.resources.limits}
        return self.gpus + sum(int(n) for name, n in named.items() if is_gpu(name) and n.isdecimal())


class Trainer(Pods):
    """Configuration of the trainer pods."""

    nodes: int = Field(default=1, ge=1, le=64)
    """Number of pods that train together, each on its own node."""
    micro_batch_tokens: int = Field(default=8192, ge=1, le=4_194_304)
    """Number of tokens packed into one forward pass. Higher values are faster and need more memory."""
    shard_size: int | None = Field(default=None, ge=1, le=1024)
    """Number of GPUs that the model's weights are sharded over. Each such group of GPUs holds the whole model, and the groups share the batch. Defaults to the GPUs of one node, so that nodes do not exchange weights in every layer. Set it to gpus x nodes for a model that one node cannot hold."""  # noqa: E501
    full_fine_tuning: bool = False
    """Allows runs to train all weights (lora.enabled: false), which needs several times the memory."""

    @property
    def is_shareable(self) -> bool:
        """True if runs can share the trainer: one process with at most one GPU."""
        return self.nodes == 1 and self.all_gpus <= 1

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        *Pods.spec_rules,
        Rule(
            "nodes",
            "self.nodes == 1 || self.gpus > 0",
            "nodes must be 1 if gpus is 0: training on CPUs uses one node",
            lambda t: t.nodes == 1 or t.gpus > 0,
        ),
        Rule(
            "shardSize",
            "!has(self.shardSize) || (self.gpus > 0 ? self.gpus * self.nodes : 1) % self.shardSize == 0",
            "shardSize must divide the number of GPUs, gpus x nodes",
            lambda t: t.shard_size is None or (max(t.gpus, 1) * t.nodes) % t.shard_size == 0,
        ),
    )


class Parallelism(Spec):
    """Parallelism of an engine over the GPUs of its pod: tensor x pipeline x data = gpus."""

    tensor: int | None = Field(default=None, ge=1, le=16)
    """Number of GPUs that compute each layer together. Must divide the number of attention heads. Defaults to gpus / (pipeline x data)."""  # noqa: E501
    pipeline: int = Field(default=1, ge=1, le=16)
    """Number of pipeline stages, each of which holds successive layers. For models whose number of heads is not
    divisible by gpus.
    """
    data: int = Field(default=1, ge=1, le=16)
    """Number of copies of the model behind one server. Mixture-of-experts models divide their experts among the copies. For other models, prefer inference.replicas, whose engines fail independently."""  # noqa: E501

    def tensor_size(self, gpus: int) -> int:
        """Return the number of GPUs that compute each layer together, given `gpus` GPUs."""
        return self.tensor or max(gpus, 1) // (self.pipeline * self.data)

    def product(self, gpus: int) -> int:
        """Return the number of GPUs that the engine uses, given `gpus` GPUs."""
        return self.tensor_size(gpus) * self.pipeline * self.data


class Inference(Pods):
    """Configuration of the inference pods."""

    replicas: int = Field(default=1, ge=1, le=256)
    """Number of inference engines that share the rollouts of a run."""
    parallelism: Parallelism = Field(default_factory=Parallelism)
    """Parallelism of each engine over its GPUs."""
    extra_args: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(default_factory=list, max_length=64)
    """Additional command-line arguments of `vllm serve`."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        *Pods.spec_rules,
        Rule(
            "extraArgs",
            f"!{_sets_flag(OWNED_FLAGS)}",
            "extraArgs must not contain flags that only the operator sets: " + ", ".join(OWNED_FLAGS),
            lambda i: not _flags_of(i.extra_args, OWNED_FLAGS),
        ),
        Rule(
            "extraArgs",
            f"!{_sets_flag(PARALLEL_FLAGS)}",
            "extraArgs must not divide the engine over GPUs (--tensor-parallel-size, -tp, --data-parallel-size and the "
            "like): set inference.parallelism",
            lambda i: not _flags_of(i.extra_args, PARALLEL_FLAGS),
        ),
        Rule(
            "parallelism",
            "(has(self.parallelism.tensor) ? self.parallelism.tensor * self.parallelism.pipeline * "
            "self.parallelism.data == (self.gpus > 0 ? self.gpus : 1) : "
            "(self.gpus > 0 ? self.gpus : 1) % (self.parallelism.pipeline * self.parallelism.data) == 0)",
            "tensor x pipeline x data must equal gpus (1 if gpus is 0); if tensor is unset, pipeline x data must "
            "divide gpus",
            lambda i: i.parallelism.product(i.gpus) == max(i.gpus, 1),
        ),
        Rule(
            "extraArgs",
            f"!{_sets_flag(DISTRIBUTION_FLAGS)}",
            "extraArgs must not change the distribution of tokens, because the trainer could not reproduce it: "
            + ", ".join(DISTRIBUTION_FLAGS),
            lambda i: not _flags_of(i.extra_args, DISTRIBUTION_FLAGS),
        ),
    )


HUB_SOURCE = "^hf://[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*@[0-9a-f]{40}$"
"""Pattern of a Hugging Face repository pinned to a commit. Branches and tags are refused, because they can move between
the starts of two pods.
"""

IMAGE_SOURCE = "^oci://[A-Za-z0-9][A-Za-z0-9.:-]*(/[a-z0-9][a-z0-9._-]*)+@sha256:[0-9a-f]{64}(/[^/]+)*$"
"""Pattern of an image pinned to a digest, with an optional folder in the image. Tags are refused, because they can move
between the starts of two pods.
"""


class WeightsCache(Spec):
    """Volume that caches the weights for all runs and serving pools of a namespace. A Job downloads the weights once per namespace and source. Pods of the model wait for the Job and mount the volume read-only."""  # noqa: E501

    storage_class: ObjectName | None = None
    """StorageClass of the PersistentVolumeClaims. Defaults to the cluster's default StorageClass."""
    size: Quantity
    """Size of each volume, which must hold the weights of one source."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = "ReadWriteMany"
    """Access mode of the volumes. A ReadWriteOnce volume is attached to one node at a time, but does not influence scheduling: use it only if trainer and inference select the same node, because pods on other nodes stay in ContainerCreating. ReadWriteOnce needs trainer.nodes 1."""  # noqa: E501


class SharingMode(StrEnum):
    """Owner of the trainer and the engines of a run."""

    dedicated = "Dedicated"
    namespace = "Namespace"


class Sharing(Spec):
    """Trainer and engines that several runs share. A shared pool belongs to one namespace and serves the runs that train adapters for this model. A trainer with several GPUs or nodes is not shared: each run then has its own."""  # noqa: E501

    mode: SharingMode = Field(default=SharingMode.dedicated, strict=False)
    """Dedicated gives each run its own trainer and engines. Namespace lets the runs of a namespace share a pool."""
    max_runs: int = Field(default=8, ge=1, le=64)
    """Number of slots of a pool, one for each run. Further runs are queued. Each slot takes engine memory for the policies of one run, and trainer memory for its adapter and optimizer. After a change, new attempts therefore get a new pool."""  # noqa: E501
    engines: int = Field(default=1, ge=1, le=256)
    """Number of inference engines of a pool, in place of inference.replicas."""
    idle_seconds: int = Field(default=600, ge=0, le=86_400)
    """Seconds without runs after which the objects of a pool are deleted. The next run creates them again. A pool that no run can join because the RLModel has changed is deleted immediately."""  # noqa: E501
    recovery_seconds: int = Field(default=60, ge=1, le=86_400)
    """Seconds of a run's device time after which the shared trainer saves a recovery copy of the run's state, at the end of a step. If the trainer crashes, the run loses about this much device time."""  # noqa: E501


class RLModelSpec(Spec):
    """Model, source of its weights, and configuration of the pods that train and serve it."""

    id: ModelId
    """Id that runs use in spec.model: owner/name, or a name without an owner."""
    source: str = Field(min_length=6, max_length=1024, pattern=r"^(hf|s3|pvc|oci)://[^/\s]+(/[^\s]*)?$")
    """Source of the weights: hf://owner/name@COMMIT, s3://bucket/path, pvc://claim/path or oci://registry/repository@sha256:DIGEST/path. A Hugging Face repository must be pinned to a commit (40 hexadecimal digits) and an image to its digest, so that all pods of a run have the same files. Image volumes need Kubernetes 1.35."""  # noqa: E501
    seq_len: int = Field(default=4096, ge=16, le=16_777_216)
    """Maximum length of a sequence (prompt and completions) in tokens."""
    default_max_tokens: int | None = Field(default=None, ge=1, le=1_048_576)
    """Value of sampling.maxTokens for runs that do not set it. Must be below seqLen. Defaults to half of seqLen."""
    cache: WeightsCache | None = None
    """Caches the weights on a volume in each namespace with pods of the model. If unset, each pod downloads the weights when it starts."""  # noqa: E501
    lora: Lora = Field(default_factory=Lora)
    """Configuration of the LoRA adapters."""
    trainer: Trainer = Field(default_factory=Trainer)
    """Configuration of the trainer pods."""
    inference: Inference = Field(default_factory=Inference)
    """Configuration of the inference pods."""
    sharing: Sharing = Field(default_factory=Sharing)
    """Trainer and engines shared by several runs. A change takes effect with the next attempt of a run."""

    @property
    def has_shared_trainer(self) -> bool:
        """True if the runs of a namespace share a trainer, which runs with `driver: Client` need."""
        return self.sharing.mode is SharingMode.namespace and self.trainer.is_shareable

    mutable: ClassVar[frozenset[str] | None] = frozenset(
        {"source", "cache", "seq_len", "default_max_tokens", "lora", "trainer", "inference", "sharing"}
    )
    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "source",
            f"!self.source.startsWith('hf://') || self.source.matches('{HUB_SOURCE}')",
            "an hf:// source must be pinned to a commit: hf://owner/name@ and the commit's 40 hexadecimal digits",
            lambda m: not m.source.startswith("hf://") or bool(re.fullmatch(HUB_SOURCE, m.source)),
        ),
        Rule(
            "source",
            f"!self.source.startsWith('oci://') || self.source.matches('{IMAGE_SOURCE}')",
            "an oci:// source must be pinned to a digest: oci://registry/repository@sha256: and 64 hexadecimal "
            "digits, optionally followed by the path of a folder in the image",
            lambda m: not m.source.startswith("oci://") or bool(re.fullmatch(IMAGE_SOURCE, m.source)),
        ),
        Rule(
            "cache",
            "!has(self.cache) || !(self.source.startsWith('pvc://') || self.source.startsWith('oci://'))",
            "cache needs a source that is downloaded (hf:// or s3://): a pvc:// or oci:// source is a volume already",
            lambda m: m.cache is None or not m.source.startswith(("pvc://", "oci://")),
        ),
        Rule(
            "cache.accessMode",
            "!has(self.cache) || self.cache.accessMode != 'ReadWriteOnce' || self.trainer.nodes == 1",
            "ReadWriteOnce needs trainer.nodes 1: the volume is attached to one node at a time",
            lambda m: m.cache is None or m.cache.access_mode != "ReadWriteOnce" or m.trainer.nodes == 1,
        ),
        Rule(
            "inference.extraArgs",
            f"!has(self.sharing) || self.sharing.mode != 'Namespace' || !has(self.inference) || "
            f"!has(self.inference.extraArgs) || !{_sets_flag(SHARED_FLAGS).replace('self.', 'self.inference.')}",
            "extraArgs of shared engines must not contain flags that let a request reach data of other runs: "
            + ", ".join(SHARED_FLAGS),
            lambda m: m.sharing.mode is SharingMode.dedicated or not _flags_of(m.inference.extra_args, SHARED_FLAGS),
        ),
        Rule(
            "defaultMaxTokens",
            "!has(self.defaultMaxTokens) || self.defaultMaxTokens < self.seqLen",
            "defaultMaxTokens must be below seqLen, which includes the prompt",
            lambda m: m.default_max_tokens is None or m.default_max_tokens < m.seq_len,
        ),
    )

    @property
    def max_tokens_of_runs(self) -> int:
        """Maximum number of completion tokens per turn in runs that do not set sampling.maxTokens."""
        return self.default_max_tokens or self.seq_len // 2


class RLModelStatus(Status):
    """Observed state of the catalog entry."""

    observed_generation: int | None = Field(default=None, ge=0)
    """Generation of the spec that this status describes."""
    runs: int | None = Field(default=None, ge=0)
    """Number of runs that use the model and are neither finished nor suspended. Updated each time the operator lists all runs."""  # noqa: E501
    conditions: list[Condition] = Field(
        default_factory=list, max_length=32, json_schema_extra={LIST_MAP_KEYS: ["type"]}
    )
    """Conditions, one entry per type."""


class RLModel(KubernetesObject):
    """One entry of the platform's model catalog: a model that runs can train."""

    kind: Literal["RLModel"] = "RLModel"
    spec: RLModelSpec
    """Model, source of its weights, and configuration of the pods that train and serve it."""
    status: RLModelStatus = Field(default_factory=RLModelStatus)
    """Observed state of the catalog entry. Written by the operator."""
