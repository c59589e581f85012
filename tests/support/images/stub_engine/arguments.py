"""Command line of the stub engine: the flags of `vllm serve` that the operator and the example models use.

Every other flag ends the process as vLLM's own parser does, also one that vLLM knows: the stub cannot have its effect.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

IGNORED_VALUES = (
    "--logprobs-mode", "--dtype", "--max-num-seqs", "--kv-cache-memory-bytes", "--max-loras", "--max-cpu-loras",
    "--tool-call-parser", "--allowed-media-domains",
)  # fmt: skip
IGNORED_SWITCHES = ("--enforce-eager", "--enable-auto-tool-choice", "--enable-prompt-tokens-details")
ENV_ADAPTERS = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
ENV_WEIGHTS = "VLLM_SERVER_DEV_MODE"


@dataclass(frozen=True)
class EngineArguments:
    """Arguments that have an effect."""

    model: Path
    served_model_name: str
    host: str
    port: int
    max_model_len: int
    max_lora_rank: int | None
    """None: adapters are not enabled."""
    middleware: list[str]
    """Names of ASGI classes, outermost last."""


def parse_arguments(argv: Sequence[str]) -> EngineArguments:
    """Return the arguments. An unknown flag ends the process with exit code 2."""
    parser = argparse.ArgumentParser(prog="vllm serve", allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-lora-rank", type=int, default=16)
    parser.add_argument("--middleware", action="append", default=[])
    for flag in IGNORED_VALUES:
        parser.add_argument(flag)
    for flag in IGNORED_SWITCHES:
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args(argv)
    return EngineArguments(
        model=Path(given.model),
        served_model_name=given.served_model_name or given.model,
        host=given.host,
        port=given.port,
        max_model_len=given.max_model_len,
        max_lora_rank=given.max_lora_rank if given.enable_lora else None,
        middleware=given.middleware,
    )
