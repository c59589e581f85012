"""Model FLOPs utilization: the work of a step divided by what the GPUs could do at peak performance in the same time.

The work is counted as is usual in the field, so that values are comparable: 6 FLOP per token and weight, except
embeddings and output head, plus causal attention, as if all weights were trained (Chowdhery et al. 2022, PaLM, appendix
B). A LoRA step does less work, because frozen weights get no gradient.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlrun_trainer.model.adapter_targets import EXPERT_COUNTS
from rlrun_trainer.model.decoder import decoder_of

PEAK_TFLOPS: Mapping[str, float] = {
    "B200": 2250.0, "H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "A6000": 155.0,
}  # fmt: skip
"""Dense bf16 TFLOPS from the vendor's data sheets, by part of the device's name. The first match applies."""


def peak_flops(device_name: str) -> float | None:
    """Return the peak FLOP per second of a GPU, or None for an unknown device."""
    return next((tera * 1e12 for name, tera in PEAK_TFLOPS.items() if name in device_name), None)


def model_step_flops(model: Any, lengths: Sequence[int]) -> float:
    """Return the FLOP of a step on sequences of these lengths. Raises an error if the configuration lacks a field."""
    config = model.config.get_text_config()
    weights = active_weights(((name, p.numel()) for name, p in decoder_of(model).named_parameters()), config)
    return step_flops(weights, config, lengths)


def active_weights(parameters: Iterable[tuple[str, int]], config: Any) -> float:
    """Return the number of weights used per token, from (name, size) of all parameters.

    Embeddings, the output head and adapters are not counted. In a mixture-of-experts model, expert weights are
    multiplied by the fraction of experts chosen per token.
    """
    experts = next((count for field in EXPERT_COUNTS if (count := getattr(config, field, None))), None)
    chosen = (getattr(config, "num_experts_per_tok", None) or 1) / experts if experts else 1.0
    weights = 0.0
    for name, size in parameters:
        if "embed" in name or "lm_head" in name or "lora_" in name:
            continue
        weights += size * (chosen if ".experts." in name else 1.0)
    return weights


def step_flops(weights: float, config: Any, lengths: Sequence[int]) -> float:
    """Return the FLOP of forward and backward pass for sequences of these lengths.

    Attention needs 12 FLOP per layer, head, dimension of the head and pair of tokens; causal attention needs half as
    many.
    """
    heads = int(config.num_attention_heads)
    head_size: int = getattr(config, "head_dim", None) or config.hidden_size // heads
    attention = 6.0 * int(config.num_hidden_layers) * heads * head_size
    return 6.0 * weights * sum(lengths) + attention * sum(length * length for length in lengths)
