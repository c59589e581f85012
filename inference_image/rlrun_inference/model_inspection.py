"""Inspects the model's class inside vLLM's API server, instead of in a separate process.

vLLM asks a subprocess which capabilities a model class has, so that the API server does not import the class and
thereby initialize CUDA. On CPUs there is no CUDA to initialize, and the subprocess imports torch and vLLM once more,
which takes almost half of the CPU time until the engine responds. The engine needs the class anyway, and a forked
engine already has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def inspect_in_process(registry: Any) -> None:
    """Make vLLM's module `model_executor.models.registry` inspect models in its own process. Idempotent."""

    def run(inspect: Callable[[], Any]) -> Any:
        return inspect()

    registry._run_in_subprocess = run
