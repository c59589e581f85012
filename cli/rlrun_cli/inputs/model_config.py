"""Reads a model's architecture from its `config.json`, and computes its number of parameters."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, Any

from rlrun_cli.terminal.errors import INVALID, CliError

CONFIG = "config.json"
MAX_BYTES = 16 * 1024**2
"""Maximum size in bytes of a model's JSON file. The content of a larger file is not used."""
HUB_SECONDS = 15
HUB = "https://huggingface.co"
READ_WHOLE = frozenset({"minimax_m3_vl", "qwen3_vl_moe"})
"""Model types for which each trainer process reads all weights instead of only its part. Types that `architecture` does
not support are left out; the trainer's tests for reading by parts list all types.
"""


@dataclass(frozen=True)
class Linear:
    """Linear layers with the same shape."""

    count: int
    inputs: int
    outputs: int

    @property
    def parameters(self) -> int:
        """Total number of weights."""
        return self.count * self.inputs * self.outputs


@dataclass(frozen=True)
class Architecture:
    """Dimensions of a decoder-only transformer."""

    layers: int
    attention_layers: int
    """Number of layers that cache keys and values for all tokens."""
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of the MLP, which tensor parallelism divides."""
    vocabulary: int
    has_head: bool
    """True if the output layer has its own weights."""
    linears: tuple[Linear, ...]
    """Layers that adapters train."""
    experts: tuple[Linear, ...] = ()
    """Routers, gate and up projections, and down projections of routed experts. Empty if there are none."""
    read_by_parts: bool = True
    """True if each process of a trainer reads only its part of the weights."""

    @property
    def parameters(self) -> int:
        """Number of weights, excluding norms and biases."""
        embeddings = self.vocabulary * self.hidden * (1 + self.has_head)
        return embeddings + sum(linear.parameters for linear in (*self.linears, *self.experts))

    def adapter_parameters(self, rank: int) -> int:
        """Return the number of weights in an adapter that covers all `linears`."""
        return _adapter_parameters(self.linears, rank)

    def expert_adapter_parameters(self, rank: int) -> tuple[int, int]:
        """Return the number of weights in an adapter for all routed experts, and the number stored in its file. Raises
        ValueError if there are no routed experts.

        The gate and up projections of an expert share the LoRA factor on their input. Most files store this factor
        twice.
        """
        _, gates, _ = self.experts
        stored = _adapter_parameters(self.experts[1:], rank)
        return stored - gates.count // 2 * rank * gates.inputs, stored

    def is_divisible(self, tensor: int) -> bool:
        """Return True if vLLM can divide each layer among `tensor` GPUs."""
        divides_kv = self.kv_heads % tensor == 0 or tensor % self.kv_heads == 0
        return self.heads % tensor == 0 and divides_kv and self.intermediate % tensor == 0


def architecture(config: Mapping[str, Any]) -> Architecture | None:
    """Return the architecture from a transformers configuration, or None if it is not supported."""
    text: Mapping[str, Any] = config.get("text_config") or config
    try:
        return _architecture(text, config)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _architecture(text: Mapping[str, Any], config: Mapping[str, Any]) -> Architecture | None:
    hidden, layers, heads = (int(text[key]) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    kv_heads = int(text.get("num_key_value_heads") or heads)
    head_dim = int(text.get("head_dim") or hidden // heads)
    if text.get("kv_lora_rank") or min(hidden, layers, heads, kv_heads, head_dim) < 1:
        # Multi-head latent attention has different projections and a different cache.
        return None
    kinds = list(text.get("layer_types") or [])
    recurrent = kinds.count("linear_attention")
    attention = layers - recurrent
    linears = [
        Linear(attention, hidden, heads * head_dim),
        Linear(2 * attention, hidden, kv_heads * head_dim),
        Linear(attention, heads * head_dim, hidden),
    ]
    if recurrent:
        keys = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
        values = int(text["linear_num_value_heads"]) * int(text["linear_value_head_dim"])
        linears += [Linear(recurrent, hidden, 2 * keys + 2 * values), Linear(recurrent, values, hidden)]
    routed = int(text.get("num_experts") or text.get("num_local_experts") or text.get("n_routed_experts") or 0)
    dense = _dense_layers(text, layers) if routed else layers
    widths = []
    experts: tuple[Linear, ...] = ()
    if dense:
        widths.append(int(text["intermediate_size"]))
        linears += _mlp_layers(dense, hidden, widths[-1])
    if routed:
        sparse, width = layers - dense, int(text.get("moe_intermediate_size") or text["intermediate_size"])
        shared = int(text.get("shared_expert_intermediate_size") or width * int(text.get("n_shared_experts") or 0))
        linears += _mlp_layers(sparse, hidden, shared) if shared else []
        experts = (Linear(sparse, hidden, routed), *_mlp_layers(sparse * routed, hidden, width))
        widths.append(width)
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", True))
    quantized = config.get("quantization_config") or text.get("quantization_config")
    return Architecture(
        layers, attention, hidden, heads, kv_heads, head_dim, widths[0], int(text["vocab_size"]), not tied,
        tuple(linears), experts, not quantized and config.get("model_type") not in READ_WHOLE,
    )  # fmt: skip


def _adapter_parameters(linears: Iterable[Linear], rank: int) -> int:
    return sum(linear.count * rank * (linear.inputs + linear.outputs) for linear in linears)


def _dense_layers(text: Mapping[str, Any], layers: int) -> int:
    """Return the number of dense layers of a mixture-of-experts model."""
    listed = set(text.get("mlp_only_layers") or [])
    step, first = int(text.get("decoder_sparse_step") or 1), int(text.get("first_k_dense_replace") or 0)
    return sum(i < first or i in listed or (i + 1) % step != 0 for i in range(layers))


def _mlp_layers(count: int, hidden: int, width: int) -> list[Linear]:
    """Return the linear layers of gated MLPs: gate, up and down."""
    return [Linear(2 * count, hidden, width), Linear(count, width, hidden)]


def read_config(path: Path) -> dict[str, Any]:
    """Read the configuration from a file, or from a model's folder. Raises CliError."""
    file = path / CONFIG if path.is_dir() else path
    try:
        data = file.read_bytes()[:MAX_BYTES]
    except OSError as error:
        raise CliError(
            f"cannot read {file}: {error.strerror}", "specify a config.json or the model's folder", code=INVALID
        ) from error
    return _parse(data, str(file))


def read_hub_config(source: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Read the configuration of hf://owner/name@COMMIT. Raises CliError.

    Like the hub's own tools, it uses HF_ENDPOINT and HF_TOKEN.
    """
    repository, _, commit = source.removeprefix("hf://").partition("@")
    url = f"{environ.get('HF_ENDPOINT') or HUB}/{repository}/resolve/{commit}/{CONFIG}"
    token = environ.get("HF_TOKEN")
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.build_opener(_Redirects).open(request, timeout=HUB_SECONDS) as answer:
            data = answer.read(MAX_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise CliError(
            f"cannot read {url}: {reason}", "pass the model's config.json with --config", code=INVALID
        ) from error
    return _parse(data, url)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirect handler that does not send the token to other servers, such as content delivery networks."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        followed = super().redirect_request(req, fp, code, msg, headers, newurl)
        if followed and (followed.type, followed.host) != (req.type, req.host):
            followed.remove_header("Authorization")
        return followed


def _parse(data: bytes, place: str) -> dict[str, Any]:
    try:
        config = json.loads(data)
    except ValueError as error:
        raise CliError(f"{place} is not JSON: {error}", "pass the model's config.json", code=INVALID) from error
    if not isinstance(config, dict):
        raise CliError(f"{place} is not a JSON object", "pass the model's config.json", code=INVALID)
    return config
