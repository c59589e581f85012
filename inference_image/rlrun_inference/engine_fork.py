"""Forks the engine process from vLLM's API server, which has already imported torch and vLLM.

On CPUs vLLM spawns the process, and importing everything again takes most of the time until the engine responds. A fork
would break OpenMP's thread pool, so the process is forked only if OMP_NUM_THREADS is 1, with which there is no pool.
Otherwise vLLM's own choice is kept.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


def fork_the_engine(platform: Any) -> None:
    """Make vLLM's CPU platform select `fork` for starting the engine process, at the end of the platform's
    configuration check, if OMP_NUM_THREADS is 1. Idempotent.
    """
    check = platform.check_and_update_config
    if getattr(check, "forks", False):
        return

    @wraps(check)
    def check_and_fork(vllm_config: Any) -> None:
        check(vllm_config)
        if os.environ.get("OMP_NUM_THREADS") == "1":
            os.environ[METHOD] = "fork"

    check_and_fork.forks = True  # type: ignore[attr-defined]
    platform.check_and_update_config = check_and_fork
