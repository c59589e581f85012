"""The engine's process is forked from the API server's, which has torch and vLLM imported already.

vLLM spawns it on CPUs, and a second import of everything is most of the time until the engine answers. A fork is safe
where no thread pool of OpenMP can be cut in two by it: with one thread (OMP_NUM_THREADS=1) there is none. In all other
cases vLLM's own choice stands.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


def fork_the_engine(platform: Any) -> None:
    """Let `platform` (vLLM's CPU platform) ask for a fork at the end of its check of the configuration. Idempotent."""
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
