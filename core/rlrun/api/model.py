"""RLModel: one entry of the platform's catalogue, with the shapes of its trainer and its inference."""

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
    "--enable-lora",
    "--max-lora-rank",
    "--max-model-len",
    "--api-key",
)
"""Flags of the inference engine that the operator sets itself."""

Image = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\s]+$")]


class Lora(Spec):
    """Shape of the LoRA adapters of this model."""

    rank: int = Field(default=16, ge=1, le=512)
    """Rank of the adapters, and the highest one that a run may ask for."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the adapters' input while training. Anything but 0 makes trainer and engine disagree a little."""
    target_modules: list[Annotated[str, Field(min_length=1, max_length=128)]] = Field(
        default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        min_length=1,
        max_length=64,
    )
    """Names of the linear layers that get an adapter."""


class Pods(Spec):
    """What trainer and inference pods have in common."""

    image: Image | None = None
    """Container image; the chart's default when absent."""
    gpus: int = Field(default=1, ge=0, le=16)
    """GPUs of each pod; 0 runs on CPUs."""
    resources: Resources = Field(default_factory=Resources)
    """CPU, memory and other resources of each pod, besides the GPUs."""
    node_selector: dict[str, LabelValue] = Field(default_factory=dict, max_length=32)
    """Labels that a node must have."""
    tolerations: list[Toleration] = Field(default_factory=list, max_length=32)
    """Taints that the pods put up with."""
    env: list[EnvVar] = Field(default_factory=list, max_length=64, json_schema_extra={LIST_MAP_KEYS: ["name"]})
    """Environment variables of the container, besides the operator's own."""


class Trainer(Pods):
    """Shape of the trainer."""

    nodes: int = Field(default=1, ge=1, le=64)
    """Pods that train together, each on a node of its own."""
    micro_batch_tokens: int = Field(default=8192, ge=1, le=4_194_304)
    """Tokens packed into one forward pass: more is faster until memory runs out."""
    full_fine_tuning: bool = False
    """Whether runs may train all weights (lora.enabled false), which needs several times the memory."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "nodes",
            "self.nodes == 1 || self.gpus > 0",
            "nodes above 1 need gpus: training on CPUs runs on one node",
            lambda t: t.nodes == 1 or t.gpus > 0,
        ),
    )


class Inference(Pods):
    """Shape of the inference engine."""

    replicas: int = Field(default=1, ge=1, le=256)
    """Engines that share the rollouts of a run."""
    extra_args: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(default_factory=list, max_length=64)
    """Further arguments of the engine's command line, as `vllm serve` takes them."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "extraArgs",
            "!self.extraArgs.exists(a, "
            + " || ".join(f"a == '{f}' || a.startsWith('{f}=')" for f in OWNED_FLAGS)
            + ")",
            "extraArgs must not set what the operator sets itself: " + ", ".join(OWNED_FLAGS),
            lambda i: not any(a.partition("=")[0] in OWNED_FLAGS for a in i.extra_args),
        ),
    )


class RLModelSpec(Spec):
    """The model, where its weights are, and the shapes it is trained and served with."""

    id: ModelId
    """What runs write in spec.model: owner/name."""
    source: str = Field(min_length=6, max_length=1024, pattern=r"^(hf|s3|pvc)://[^/\s]+(/[^\s]*)?$")
    """Where the weights are: hf://owner/name, s3://bucket/path or pvc://claim/path."""
    seq_len: int = Field(default=4096, ge=16, le=16_777_216)
    """Longest sequence of prompt and answers, in tokens."""
    lora: Lora = Field(default_factory=Lora)
    """Shape of the adapters."""
    trainer: Trainer = Field(default_factory=Trainer)
    """Shape of the trainer."""
    inference: Inference = Field(default_factory=Inference)
    """Shape of the inference engine."""

    mutable: ClassVar[frozenset[str] | None] = frozenset({"source", "seq_len", "lora", "trainer", "inference"})


class RLModelStatus(Status):
    """Whether the entry can be used."""

    observed_generation: int | None = Field(default=None, ge=0)
    """Generation of the spec that this status is about."""
    runs: int | None = Field(default=None, ge=0)
    """Runs that use the model, neither finished nor suspended; counted whenever the operator lists all runs."""
    conditions: list[Condition] = Field(
        default_factory=list, max_length=32, json_schema_extra={LIST_MAP_KEYS: ["type"]}
    )
    """State for machines, one entry per type."""


class RLModel(KubernetesObject):
    """A model that runs can train: the platform team's catalogue."""

    kind: Literal["RLModel"] = "RLModel"
    spec: RLModelSpec
    """The model, where its weights are, and the shapes it is trained and served with."""
    status: RLModelStatus = Field(default_factory=RLModelStatus)
    """Whether the entry can be used; written by the operator."""
