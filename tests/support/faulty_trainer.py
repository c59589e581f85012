"""The trainer's entry point with a trap: what the file TRAP names befalls the process that does not lead.

A process that unpickles anything from another one fails.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rlrun_trainer.__main__ import main
from rlrun_trainer.optimization import objective
from torch.distributed import distributed_c10d
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

TRAP = Path(os.environ.get("TRAP", "/nonexistent"))


def trapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, unless the trap is armed: "forward" and "again" are a layer's first and second computation."""

    def call(*arguments: Any, **named: Any) -> Any:
        kind = TRAP.read_text() if TRAP.is_file() and os.environ["RANK"] == "1" else ""
        if kind == "die":
            os._exit(9)
        here = ("again" if torch.is_grad_enabled() else "forward") if name == "layer" else name
        if kind == here and (name != "layer" or arguments[0].layer_idx == 1):
            raise torch.OutOfMemoryError("a trap")
        return function(*arguments, **named)

    return call


def refuse(*arguments: Any) -> Any:
    raise AssertionError("a process of the trainer unpickled what it received")


assert callable(distributed_c10d._tensor_to_object), "torch unpickles elsewhere now"
distributed_c10d._tensor_to_object = refuse
objective.token_logprobs = trapped("head", objective.token_logprobs)
Qwen3Attention.forward = trapped("layer", Qwen3Attention.forward)  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
