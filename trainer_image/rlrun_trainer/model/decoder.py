"""Decoder of a model: the module that maps token ids to hidden states."""

import types
from typing import Any

import torch

from rlrun_trainer.model import varlen_attention

DECODE = "rlrun_decode"
"""Name of the model's method that returns the last hidden states."""


def decoder_of(model: Any) -> Any:
    """Return the model's decoder. For a multimodal model, returns the language model without the encoders of other
    modalities.
    """
    found = model.get_decoder()
    # transformers does not find the decoder of Llama 4's text model, and returns the whole model.
    return model.model if found is model else found


def add_decode(model: Any) -> None:
    """Add the method named by `DECODE` to the model."""
    setattr(model, DECODE, types.MethodType(decode, model))


def decode(model: Any, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
    """Return the last hidden states [rows, width, H] of token ids and positions [rows, width]."""
    decoder, arguments = decoder_of(model), {}
    if decoder.config._attn_implementation == varlen_attention.NAME:
        arguments["boundaries"] = varlen_attention.Boundaries.of(position_ids)
    output = decoder(input_ids=input_ids, position_ids=position_ids, use_cache=False, **arguments)
    states: torch.Tensor = output.last_hidden_state
    return states
