"""RLModel: one entry of the platform's model catalog, with the configuration of its trainer and inference pods."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlrun.api.base.kubernetes_types import (
    Condition,
    EnvVar,
    KubernetesObject,
    LabelValue,
    Resources,
    Status,
    Toleration,
)
from rlrun.api.base.names import ModelId
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
DISTRIBUTION_FLAGS = ("--logits-processors", "--tool-strict-level")
"""Flags that change the distribution of tokens, which the trainer computes from the run's sampling section alone."""


def _sets_flag(flags: tuple[str, ...]) -> str:
    """Return a CEL expression that is true if `_flags_of` would return an argument."""
    names = ", ".join(f"'{flag}'" for flag in flags)
    name = "a.split('=')[0].replace('_', '-')"
    return f"self.extraArgs.exists(a, a.startsWith('--') && [{names}].exists(f, f.startsWith({name})))"


def _flags_of(arguments: list[str], flags: tuple[str, ...]) -> list[str]:
    """Return the arguments that set one of the flags as vLLM reads them: abbreviated, or with underscores."""
    return [
        argument
        for argument in arguments
        if argument.startswith("--")
        and any(flag.startswith(argument.partition("=")[0].replace("_", "-")) for flag in flags)
    ]


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


class Pods(Spec):
    """Fields that trainer and inference pods share."""

    image: Image | None = None
    """Container image. Unset: the chart's default."""
    gpus: int = Field(default=1, ge=0, le=16)
    """Number of GPUs per pod. 0 runs on CPUs."""
    resources: Resources = Field(default_factory=Resources)
    """CPU, memory and other resources of each pod, without the GPUs."""
    node_selector: dict[str, LabelValue] = Field(default_factory=dict, max_length=32)
    """Labels that a node must have to run the pods."""
    tolerations: list[Toleration] = Field(default_factory=list, max_length=32)
    """Tolerations of the pods."""
    env: list[EnvVar] = Field(default_factory=list, max_length=64, json_schema_extra={LIST_MAP_KEYS: ["name"]})
    """Additional environment variables of the container. Those of the Hugging Face hub (HF_*) are also set in the container that downloads the model from the hub; with valueFrom they are set only there."""  # noqa: E501


class Trainer(Pods):
    """Configuration of the trainer pods."""

    nodes: int = Field(default=1, ge=1, le=64)
    """Number of pods that train together, each on its own node."""
    micro_batch_tokens: int = Field(default=8192, ge=1, le=4_194_304)
    """Number of tokens packed into one forward pass. Higher values are faster and need more memory."""
    full_fine_tuning: bool = False
    """Allows runs to train all weights (lora.enabled false), which needs several times the memory."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "nodes",
            "self.nodes == 1 || self.gpus > 0",
            "nodes above 1 need gpus: training on CPUs runs on one node",
            lambda t: t.nodes == 1 or t.gpus > 0,
        ),
    )


class Inference(Pods):
    """Configuration of the inference pods."""

    replicas: int = Field(default=1, ge=1, le=256)
    """Number of inference engines that share the rollouts of a run."""
    extra_args: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(default_factory=list, max_length=64)
    """Additional command-line arguments of `vllm serve`."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "extraArgs",
            f"!{_sets_flag(OWNED_FLAGS)}",
            "extraArgs must not set what the operator sets itself: " + ", ".join(OWNED_FLAGS),
            lambda i: not _flags_of(i.extra_args, OWNED_FLAGS),
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


class RLModelSpec(Spec):
    """Model, source of its weights, and configuration of the pods that train and serve it."""

    id: ModelId
    """Id that runs use in spec.model: owner/name."""
    source: str = Field(min_length=6, max_length=1024, pattern=r"^(hf|s3|pvc)://[^/\s]+(/[^\s]*)?$")
    """Source of the weights: hf://owner/name@COMMIT, s3://bucket/path or pvc://claim/path. A repository of the Hugging Face hub is named with the 40 digits of a commit, so that all pods of a run have the same files."""  # noqa: E501
    seq_len: int = Field(default=4096, ge=16, le=16_777_216)
    """Maximum length of a sequence (prompt and completions) in tokens."""
    default_max_tokens: int | None = Field(default=None, ge=1, le=1_048_576)
    """Value of sampling.maxTokens for runs that do not set it. Must be below seqLen. Unset: half of seqLen."""
    lora: Lora = Field(default_factory=Lora)
    """Configuration of the LoRA adapters."""
    trainer: Trainer = Field(default_factory=Trainer)
    """Configuration of the trainer pods."""
    inference: Inference = Field(default_factory=Inference)
    """Configuration of the inference pods."""

    mutable: ClassVar[frozenset[str] | None] = frozenset(
        {"source", "seq_len", "default_max_tokens", "lora", "trainer", "inference"}
    )
    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "source",
            f"!self.source.startsWith('hf://') || self.source.matches('{HUB_SOURCE}')",
            "an hf:// source must name a commit of the repository: hf://owner/name@ and its 40 hexadecimal digits",
            lambda m: not m.source.startswith("hf://") or bool(re.fullmatch(HUB_SOURCE, m.source)),
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
