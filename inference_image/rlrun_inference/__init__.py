"""What the CPU image adds to vLLM, as a plugin: LoRA multiplied by adapter and not by token (adapter_rows, lora), and
an engine that does not import everything a second time (start).
"""

from __future__ import annotations


def register() -> None:
    """Have vLLM's CPU platform take both. Idempotent: vLLM calls it in every process.

    Protocol: vLLM's entry point group `vllm.general_plugins`. On any other platform nothing changes.
    """
    from vllm.platforms import current_platform

    from rlrun_inference.engine_fork import fork_the_engine

    if current_platform.is_cpu():
        current_platform.get_punica_wrapper = lambda: "rlrun_inference.adapter_lora.LoraByAdapter"
        fork_the_engine(current_platform)
