"""The environment tests/hostile: its arguments on this cluster, and what its code was refused."""

import json
from typing import Any

from demo.install import BUCKET, SYSTEM_NAMESPACE
from demo.run_metrics import Line, mean_of
from tests.e2e.conftest import Platform

SERVER_URL = f"https://rlrun-server.{SYSTEM_NAMESPACE}.svc:8443"
ATTEMPTS = (
    "api_server_refused",
    "s3_refused",
    "signature_refused",
    "user_signature_refused",
    "has_no_s3_key",
    "trainer_refused",
    "engine_refused",
    "engine_tokenizer_refused",
    "sidecar_refused",
    "status_refused",
    "package_refused",
    "group_refused",
)
KERNEL = ("node_kernel_hidden", "kernel_is_gvisor")
"""What code sees of the kernel below it: 1 under gVisor, 0 where it shares the node's."""


def hostile_environment(platform: Platform) -> dict[str, Any]:
    """An entry of a run's `env`."""
    (node,) = json.loads(platform.kubectl("get", "nodes", "-o", "json"))["items"]
    args = {
        "s3": f"{platform.s3.cluster_endpoint}/{BUCKET}",
        "server": SERVER_URL,
        "package": "rlrun/reverse-text",
        "kernel": node["status"]["nodeInfo"]["kernelVersion"],
    }
    return {"id": "tests/hostile", "args": args}


def attempts_of(lines: list[Line]) -> dict[str, float]:
    """The mean of each metric of the environment over a run: 1 if it held each time, 0 if never."""
    return {name: mean_of(lines, f"metrics/{name}/mean") for name in (*ATTEMPTS, *KERNEL)}
