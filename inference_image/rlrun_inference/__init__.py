"""Plugin of the CPU image for vLLM: one LoRA product per adapter instead of per token, and a faster engine start."""

from __future__ import annotations


def register() -> None:
    """Register the plugin's changes with vLLM's CPU platform. Idempotent, because vLLM calls this function in every
    process.

    vLLM finds the function by the entry point group `vllm.general_plugins`. Other platforms are not changed.
    """
    from vllm.platforms import current_platform

    from rlrun_inference.engine_fork import fork_the_engine
    from rlrun_inference.model_inspection import inspect_in_process

    if current_platform.is_cpu():
        from vllm.model_executor.models import registry

        current_platform.get_punica_wrapper = lambda: "rlrun_inference.adapter_lora.LoraByAdapter"
        fork_the_engine(current_platform)
        inspect_in_process(registry)
