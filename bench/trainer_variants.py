"""Three variants of the same update: the trainer, the plain loop in order, and the plain loop sorted by length."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rlrun.protocol.train_batch import Sample
from rlrun_trainer.model.base_model import load_base
from rlrun_trainer.model.peft_format import AdapterShape
from rlrun_trainer.optimization.step import StepPlan, train_step
from rlrun_trainer.runtime.settings import TrainerSettings

from bench.baseline_loop import PlainLoop

RANK, ALPHA = 16, 32.0
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# Small enough that repeating one batch changes neither the ratios nor the work.
LEARNING_RATE = 1e-6
ON_GPU = {"perf/peak_memory": "peak_gib", "perf/mfu": "mfu"}


class TrainerVariants:
    """Steps of the variants on one model folder."""

    def __init__(self, folder: Path, device: str, dtype: str, budget: int, plain: bool = True, slots: int = 1) -> None:
        settings = TrainerSettings(model_dir=folder, slots=slots, device=device, dtype=dtype, threads=1)
        self.base = load_base(settings)
        shape = AdapterShape(RANK, ALPHA, TARGETS)
        self.slots = [self.base.open(f"bench{i}", "bench/model", shape, seed=i) for i in range(slots)]
        self.plan = StepPlan(learning_rate=LEARNING_RATE, micro_batch_tokens=budget, max_grad_norm=1.0)
        self.plain = PlainLoop(folder, RANK, ALPHA, TARGETS, LEARNING_RATE, device, dtype) if plain else None
        self.attention = str(getattr(self.base.model.config, "_attn_implementation", "unknown"))

    def step(self, way: str, samples: Sequence[Sample], slot: int = 0) -> dict[str, float]:
        """Make one update of a slot. The trainer makes the update `packed`; the plain loop makes `plain` and `sorted`.

        Returns seconds, loss and share of padding; on a GPU also peak memory (GiB) and MFU (%).
        """
        if way != "packed" and self.plain is not None:
            return self.plain.step(samples, self.plan.micro_batch_tokens, by_length=way == "sorted")
        # Updates are asynchronous on a GPU; reading the metrics inside waits for them.
        started = _clock(self.base.device)
        metrics = train_step(self.base, self.slots[slot], samples, self.plan)
        seconds = _clock(self.base.device) - started
        found = {"seconds": seconds, "loss": metrics["loss/mean"], "padding": metrics["batch/padding"]}
        return found | {short: metrics[name] for name, short in ON_GPU.items() if name in metrics}


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
