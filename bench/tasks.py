"""Tasks of the benchmarks: model, texts, reward and hyperparameters, which both sides share.

The inputs of both sides are derived from a task: an RLRun and an RLModel for the cluster, and a JSON file for TRL. The
environments' data modules generate the texts and need no library, so both sides have the same texts and reward
function.
"""

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from rlrun.storage.layout import S3Uri

from demo.install import BUCKET, EXAMPLES

ENVIRONMENTS = EXAMPLES / "environments"
OWN = Path(__file__).parent
LORA_RANK = 16
TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class TaskModel:
    """Base model in the catalog."""

    id: str
    micro_batch_tokens: int = 4096
    kv_cache_bytes: int = 2**27
    trainer_memory: str = "3Gi"
    files_of: str = ""
    """Id of another model whose files this model uses. Empty if the model has files of its own."""
    sharing: Mapping[str, Any] | None = None
    """Section `sharing` of the RLModel."""

    @property
    def name(self) -> str:
        """Name of the RLModel."""
        return self.id.rpartition("/")[2]

    @property
    def uri(self) -> S3Uri:
        """Location of the model's files in the cluster's S3."""
        return S3Uri(BUCKET, f"models/{self.files_of or self.id}")

    def manifest(self) -> dict[str, Any]:
        """Return the RLModel: the example's manifest with this model's values."""
        model: dict[str, Any] = yaml.safe_load((EXAMPLES / "models" / "reverse-text-tiny.yaml").read_text())
        model["metadata"] = {"name": self.name}
        spec = model["spec"]
        spec |= {"id": self.id, "source": str(self.uri)}
        spec["lora"] = {"rank": LORA_RANK, "targetModules": list(TARGET_MODULES)}
        spec["trainer"]["microBatchTokens"] = self.micro_batch_tokens
        spec["trainer"]["resources"]["limits"]["memory"] = self.trainer_memory
        if self.sharing is not None:
            spec["sharing"] = dict(self.sharing)
        flags = spec["inference"]["extraArgs"]
        flags[flags.index("--kv-cache-memory-bytes") + 1] = str(self.kv_cache_bytes)
        return model


TINY = TaskModel("rlrun/reverse-text-tiny")
MIDDLE = TaskModel("rlrun/uneven-text-28m", micro_batch_tokens=1024, kv_cache_bytes=2**28, trainer_memory="5Gi")


@dataclass(frozen=True)
class Task:
    """Task with all numbers that both sides share."""

    name: str
    title: str
    model: TaskModel
    environment: str
    """Id of the environment, as `rlrun env push` prints it."""
    folder: Path
    """Package of the environment."""
    env_args: dict[str, Any]
    target: float
    """Mean reward of the last three steps at which the measurement ends."""
    aim: float
    """Target of the speed relative to TRL."""
    max_steps: int
    """Number of steps after which a side counts as not having reached the target."""
    seconds: int
    """Deadline of one side in seconds, including start-up."""
    max_tokens: int
    batch_size: int = 128
    rollouts_per_example: int = 8
    learning_rate: float = 1e-3
    lora_alpha: int = 32
    temperature: float = 1.0
    max_async_level: int = 1
    oversampling_factor: float = 1.0
    waits: bool = False
    """True if computing the reward waits for an external call."""
    notes: tuple[str, ...] = field(default=())

    def run_object(self, name: str, namespace: str, seed: int, **spec: Any) -> dict[str, Any]:
        """Return the RLRun. `spec` overrides its fields."""
        return {
            "apiVersion": "rlrun.dev/v1alpha1",
            "kind": "RLRun",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "model": self.model.id,
                "maxSteps": self.max_steps,
                "batchSize": self.batch_size,
                "rolloutsPerExample": self.rollouts_per_example,
                "learningRate": self.learning_rate,
                "loraAlpha": self.lora_alpha,
                "oversamplingFactor": self.oversampling_factor,
                "maxAsyncLevel": self.max_async_level,
                "seed": seed,
                "sampling": {"maxTokens": self.max_tokens, "temperature": self.temperature},
                "env": [{"id": self.environment, "args": copy.deepcopy(self.env_args)}],
                "checkpoints": {"interval": 1000, "keepCloud": 1},
                "adapters": {"interval": 1000, "keepLast": 1},
            }
            | spec,
        }

    def trl_settings(self, model_folder: Path, seed: int, threads: int) -> dict[str, Any]:
        """Return the settings for `bench/trl_worker.py`, as JSON."""
        shared = asdict(self)
        keep = ("env_args", "target", "max_steps", "max_tokens", "batch_size", "rollouts_per_example", "learning_rate")
        return {
            **{key: shared[key] for key in (*keep, "lora_alpha", "temperature", "waits")},
            "environment_folder": str(self.folder),
            "model_folder": str(model_folder),
            "lora_rank": LORA_RANK,
            "target_modules": list(TARGET_MODULES),
            "seed": seed,
            "threads": threads,
        }


DEMO = Task(
    name="demo",
    title="demo task (0.45 M parameters, answers of 5 to 10 tokens: overheads show)",
    model=TINY,
    environment="rlrun/reverse-text",
    folder=ENVIRONMENTS / "reverse_text",
    env_args={"num_examples": 2000, "min_length": 5, "max_length": 10},
    target=0.70,
    aim=0.5,
    max_steps=40,
    seconds=300,
    max_tokens=24,
    max_async_level=0,  # TRL is on-policy too, and asynchrony gains little with such short steps.
)
UNEVEN = Task(
    name="uneven",
    title="28 M parameters, answers of 4 to 48 tokens, most of them short",
    model=MIDDLE,
    environment="rlrun/uneven-text",
    folder=OWN / "uneven-text",
    env_args={"num_examples": 2000, "min_length": 4, "max_length": 48},
    target=0.55,
    aim=2.5,
    max_steps=30,
    seconds=600,
    max_tokens=56,
    # Only the first token of a long answer decides, and the mean over its tokens dilutes it; hence the higher rate.
    learning_rate=2e-3,
)
WAITING = Task(
    name="waiting",
    title="each reward waits about a second, unevenly, for an external call (0.45 M parameters)",
    model=TINY,
    environment="rlrun/slow-api",
    folder=ENVIRONMENTS / "slow_api",
    # Calls take 0.7 s (median), 2 s (one in ten) and 4.7 s (one in a hundred), as in a busy service.
    env_args={"num_examples": 2000, "min_length": 5, "max_length": 10, "mean_seconds": 1.0, "sigma": 0.8},
    target=0.70,
    aim=3.5,
    max_steps=40,
    seconds=420,
    max_tokens=24,
    max_async_level=2,
    oversampling_factor=2.0,
    waits=True,
)
LONG_TURNS = replace(
    WAITING,
    name="long turns",
    title="four turns, with calls of 1.5 s in between, so that a rollout takes longer than two steps",
    env_args=WAITING.env_args | {"turns": 4, "mean_seconds": 1.5, "sigma": 1.0},
    seconds=600,
)
TASKS = {task.name: task for task in (DEMO, UNEVEN, WAITING)}
