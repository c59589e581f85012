"""RLModel: one entry of the platform's model catalog, with the configuration of its trainer and inference pods."""

import re
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
    "--max-model-len",
    "--logprobs-mode",
    "--api-key",
    "--middleware",
    "--allowed-media-domains",
    "--allowed-local-media-path",
)
"""Flags of the inference engine that only the operator may set. A file of `--config` could contain any of them."""
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
"""Flags that divide an engine over GPUs and servers, which `inference.parallelism` determines."""
DISTRIBUTION_FLAGS = ("--logits-processors", "--tool-strict-level")
"""Flags that change the distribution of tokens, which the trainer computes from the run's sampling section alone."""


def _sets_flag(flags: tuple[str, ...]) -> str:
    """Return a CEL expression that is true if `_flags_of` would return an argument."""
    names = ", ".join(f"'{flag}'" for flag in flags)
    name = "a.split('=')[0].replace('_', '-')"
    return f"self.extraArgs.exists(a, a.startsWith('-') && [{names}].exists(f, f.startsWith({name})))"


def _flags_of(arguments: list[str], flags: tuple[str, ...]) -> list[str]:
    """Return the arguments that set one of the flags as vLLM reads them: abbreviated, or with underscores."""
    return [
        argument
        for argument in arguments
        if argument.startswith("-")
        and any(flag.startswith(argument.partition("=")[0].replace("_", "-")) for flag in flags)
    ]


def is_gpu(resource: str) -> bool:
    """Return whether an extended resource is a GPU: also a shared one, or an instance of a partitioned one (MIG)."""
    vendor, _, name = resource.partition("/")
    return "." in vendor and (name in ("gpu", "gpu.shared") or name.startswith("mig-"))


Image = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\s]+$")]


class Lora(Spec):
    """LoRA adapters of runs that train this model."""

    rank: int = Field(default=16, ge=1, le=512)
    """Default rank of the adapters, and the maximum that a run may request."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the adapters' input during training. Above 0, trainer and engine probabilities differ slightly."""
    target_modules: list[Annotated[str, Field(min_length=1, max_length=128)]] = Field(
        default_factory=lambda: ["all-linear"], min_length=1, max_length=64
    )
    """Names of the linear layers that receive an adapter. all-linear selects every layer that can be trained and served: attention, linear attention, convolution, dense and shared MLPs. Routers and routed experts of a mixture of experts never receive one."""  # noqa: E501


class Pods(PodShape):
    """Fields that trainer and inference pods share."""

    image: Image | None = None
    """Container image. Unset: the chart's default."""
    gpus: int = Field(default=1, ge=0, le=16)
    """Number of GPUs per pod. 0 runs on CPUs."""
    resources: Resources = Field(default_factory=Resources)
    """CPU, memory and other resources of each pod, without the GPUs. CPU or memory that neither requests nor limits name: for each GPU a request of 2 CPUs and 8Gi and a limit of 16 CPUs and 128Gi; without GPUs 1 CPU and 2Gi, at most 16 CPUs and 32Gi."""  # noqa: E501
    shm_size: Quantity | None = None
    """Shared memory (/dev/shm) of each pod, which counts toward its memory. Unset: the chart's runs.shmSize."""
    cache_claim: ObjectName | None = None
    """PersistentVolumeClaim, in each namespace with pods of the model, for compiled kernels and other caches, so that a new pod does not compile them again. Unset: the caches end with the pod."""  # noqa: E501
    termination_grace_period_seconds: int | None = Field(default=None, ge=20, le=86400)
    """Seconds from SIGTERM to SIGKILL. A trainer needs them for its current step and a last checkpoint. Unset: the chart's runs.terminationGracePeriodSeconds."""  # noqa: E501
    env: list[EnvVar] = Field(default_factory=list, max_length=64, json_schema_extra={LIST_MAP_KEYS: ["name"]})
    """Additional environment variables of the container. Those of the Hugging Face hub (HF_*) are also set in the container that downloads the model from the hub; with valueFrom they are set only there."""  # noqa: E501
    pod_template: FreeForm = Field(default_factory=dict)
    """Patch of the pods, for fields that this object does not have: metadata (labels, annotations) and spec of a pod, merged as by kubectl patch. Fields that isolation rests on are refused: see docs/guides/models.md."""  # noqa: E501

    @field_validator("pod_template")
    @classmethod
    def _open_nothing(cls, patch: FreeForm) -> FreeForm:
        # The API server knows no fields of a free-form object, so that no rule in CEL can check it.
        if refused := refused_fields(patch):
            raise PydanticCustomError("refused", "{message}", {"message": "; ".join(refused)})
        return patch

    @property
    def all_gpus(self) -> int:
        """GPUs per pod, with those that `resources` names: a MIG instance counts as one."""
        named = {**self.resources.requests, **self.resources.limits}
        return self.gpus + sum(int(n) for name, n in named.items() if is_gpu(name) and n.isdecimal())


class Trainer(Pods):
    """Configuration of the trainer pods."""

    nodes: int = Field(default=1, ge=1, le=64)
    """Number of pods that train together, each on its own node."""
    micro_batch_tokens: int = Field(default=8192, ge=1, le=4_194_304)
    """Number of tokens packed into one forward pass. Higher values are faster and need more memory."""
    shard_size: int | None = Field(default=None, ge=1, le=1024)
    """Number of GPUs that divide the model's weights among them. Each such group holds the whole model, and all groups share the batch. Unset: all GPUs of all nodes, which needs the least memory. A lower number exchanges weights between fewer GPUs, for example those of one node."""  # noqa: E501
    full_fine_tuning: bool = False
    """Allows runs to train all weights (lora.enabled false), which needs several times the memory."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        *Pods.spec_rules,
        Rule(
            "nodes",
            "self.nodes == 1 || self.gpus > 0",
            "nodes above 1 need gpus: training on CPUs runs on one node",
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
    """Division of an engine over the GPUs of its pod: tensor x pipeline x data = gpus."""

    tensor: int | None = Field(default=None, ge=1, le=16)
    """Number of GPUs that compute each layer together. Must divide the number of attention heads. Unset: the GPUs that pipeline and data leave, so all of them by default."""  # noqa: E501
    pipeline: int = Field(default=1, ge=1, le=16)
    """Number of groups of GPUs that hold successive layers, for models whose heads cannot be divided by gpus."""
    data: int = Field(default=1, ge=1, le=16)
    """Number of copies of the model behind the engine's one server; mixtures of experts divide their experts over them. For other models, inference.replicas does the same with engines that fail one by one."""  # noqa: E501

    def tensor_size(self, gpus: int) -> int:
        """Return the number of GPUs that compute each layer together."""
        return self.tensor or max(gpus, 1) // (self.pipeline * self.data)

    def product(self, gpus: int) -> int:
        """Return the number of GPUs that this division of `gpus` uses."""
        return self.tensor_size(gpus) * self.pipeline * self.data


class Inference(Pods):
    """Configuration of the inference pods."""

    replicas: int = Field(default=1, ge=1, le=256)
    """Number of inference engines that share the rollouts of a run."""
    parallelism: Parallelism = Field(default_factory=Parallelism)
    """Division of each engine over its GPUs."""
    extra_args: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(default_factory=list, max_length=64)
    """Additional command-line arguments of `vllm serve`."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        *Pods.spec_rules,
        Rule(
            "extraArgs",
            f"!{_sets_flag(OWNED_FLAGS)}",
            "extraArgs must not set what the operator sets itself: " + ", ".join(OWNED_FLAGS),
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
            "tensor x pipeline x data of parallelism must be gpus (1 without GPUs); without tensor, pipeline x data "
            "must divide gpus",
            lambda i: i.parallelism.product(i.gpus) == max(i.gpus, 1),
        ),
        Rule(
            "extraArgs",
            f"!{_sets_flag(DISTRIBUTION_FLAGS)}",
            "extraArgs must not change the distribution of tokens, which the trainer could not follow: "
            + ", ".join(DISTRIBUTION_FLAGS),
            lambda i: not _flags_of(i.extra_args, DISTRIBUTION_FLAGS),
        ),
    )


HUB_SOURCE = "^hf://[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*@[0-9a-f]{40}$"
"""Repository of the Hugging Face hub at a commit. Branches and tags can move between the starts of two pods."""

IMAGE_SOURCE = "^oci://[A-Za-z0-9][A-Za-z0-9.:-]*(/[a-z0-9][a-z0-9._-]*)+@sha256:[0-9a-f]{64}(/[^/]+)*$"
"""Image of a registry at a digest, and a folder in it. Tags can move between the starts of two pods."""


class WeightsCache(Spec):
    """Volume that keeps the weights for all runs and serving pools of a namespace. A Job downloads them once per namespace and source; their pods wait for it, and mount the volume read-only."""  # noqa: E501

    storage_class: ObjectName | None = None
    """StorageClass of the PersistentVolumeClaims. Unset: the cluster's default."""
    size: Quantity
    """Size of each volume. It must hold the weights of one source."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = "ReadWriteMany"
    """Access mode of the volumes. A ReadWriteOnce volume is attached to one node at a time, and no pod is placed by it: choose it if trainer and inference select the same node, because pods on others wait in ContainerCreating. It needs trainer.nodes 1."""  # noqa: E501


class RLModelSpec(Spec):
    """Model, source of its weights, and configuration of the pods that train and serve it."""

    id: ModelId
    """Id that runs use in spec.model: owner/name."""
    source: str = Field(min_length=6, max_length=1024, pattern=r"^(hf|s3|pvc|oci)://[^/\s]+(/[^\s]*)?$")
    """Source of the weights: hf://owner/name@COMMIT, s3://bucket/path, pvc://claim/path or oci://registry/repository@sha256:DIGEST/path. A repository of the Hugging Face hub is named with the 40 digits of a commit, and an image with its digest, so that all pods of a run have the same files. Image volumes need Kubernetes 1.35."""  # noqa: E501
    seq_len: int = Field(default=4096, ge=16, le=16_777_216)
    """Maximum length of a sequence (prompt and completions) in tokens."""
    default_max_tokens: int | None = Field(default=None, ge=1, le=1_048_576)
    """Value of sampling.maxTokens for runs that do not set it. Must be below seqLen. Unset: half of seqLen."""
    cache: WeightsCache | None = None
    """Keeps the weights on a volume of each namespace with pods of the model. Unset: each pod downloads them when it starts."""  # noqa: E501
    lora: Lora = Field(default_factory=Lora)
    """Configuration of the LoRA adapters."""
    trainer: Trainer = Field(default_factory=Trainer)
    """Configuration of the trainer pods."""
    inference: Inference = Field(default_factory=Inference)
    """Configuration of the inference pods."""

    mutable: ClassVar[frozenset[str] | None] = frozenset(
        {"source", "cache", "seq_len", "default_max_tokens", "lora", "trainer", "inference"}
    )
    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "source",
            f"!self.source.startsWith('hf://') || self.source.matches('{HUB_SOURCE}')",
            "an hf:// source must name a commit of the repository: hf://owner/name@ and its 40 hexadecimal digits",
            lambda m: not m.source.startswith("hf://") or bool(re.fullmatch(HUB_SOURCE, m.source)),
        ),
        Rule(
            "source",
            f"!self.source.startsWith('oci://') || self.source.matches('{IMAGE_SOURCE}')",
            "an oci:// source must name the digest of an image: oci://registry/repository@sha256: and its 64"
            " hexadecimal digits, then the path of a folder in it, if any",
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
    """Number of runs that use the model and are neither finished nor suspended. Updated when the operator lists all runs."""  # noqa: E501
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
