"""What the CPU image adds to vLLM: a plugin that multiplies LoRA by adapter and not by token (adapter_rows, lora)."""

from __future__ import annotations


def register() -> None:
    """Have vLLM's CPU platform take this project's LoRA arithmetic. Idempotent: vLLM calls it in every process.

    Protocol: vLLM's entry point group `vllm.general_plugins`. On any other platform nothing changes.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        current_platform.get_punica_wrapper = lambda: "rlrun_inference.lora.LoraByAdapter"
