"""Plugin for vLLM that skips the LoRA kernels of the output head while no adapter changes the head.

In vLLM 0.32 the head of every model has LoRA kernels, which assume one row per sampling request. For `prompt_logprobs`
the rows are the tokens of a prompt. With fewer rows than requests, the kernels read and write beyond the end of the
logits: the engine crashes for all runs, or computes with corrupted numbers. If no adapter changes the head, the kernels
only add zeros, so skipping them changes no result.

The hazard remains while an adapter with `lm_head` is loaded. Runs with `driver: Client` cannot train such adapters.
"""

import importlib
from typing import Any

ENTRY_POINTS = "[vllm.general_plugins]\nrlrun_engine_access = rlrun_engine_access.head_adapters:register\n"
"""Entry point by which vLLM finds the plugin."""
_SLOTS = "_rlrun_slots"
"""Name of the layer's attribute with the slots of adapters that have weights for the head."""


class _BaseHead:
    """Replacement for vLLM's LoRA kernels that leaves the logits unchanged."""

    def add_lora_logits(self, logits: Any, *_: Any, **__: Any) -> Any:
        return logits


def register() -> None:
    """Patch vLLM's layer. Idempotent, because vLLM calls this function in every process."""
    omit_unused_kernels(importlib.import_module("vllm.lora.layers.logits_processor").LogitsProcessorWithLoRA)


def omit_unused_kernels(layer: Any) -> None:
    """Make the class `layer` call its LoRA kernels only while an adapter has weights for the head."""
    if hasattr(layer, _SLOTS):
        return
    set_lora, reset_lora, get_logits = layer.set_lora, layer.reset_lora, layer._get_logits

    def set_and_note(self: Any, index: int, *arguments: Any, **options: Any) -> None:
        set_lora(self, index, *arguments, **options)
        setattr(self, _SLOTS, getattr(self, _SLOTS) | {index})

    def reset_and_note(self: Any, index: int) -> None:
        reset_lora(self, index)
        setattr(self, _SLOTS, getattr(self, _SLOTS) - {index})

    def get_logits_of_adapters(self: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(self, _SLOTS):
            return get_logits(self, *arguments, **options)
        kernels = self.punica_wrapper
        self.punica_wrapper = _BaseHead()
        try:
            return get_logits(self, *arguments, **options)
        finally:
            self.punica_wrapper = kernels

    setattr(layer, _SLOTS, frozenset())
    layer.set_lora, layer.reset_lora, layer._get_logits = set_and_note, reset_and_note, get_logits_of_adapters
