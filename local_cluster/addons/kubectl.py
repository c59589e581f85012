"""kubectl with the kubeconfig of the local cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_cluster.host.shell import run

_NEXT = "`python -m local_cluster status` shows which part has failed."


@dataclass(frozen=True)
class LocalClusterKubectl:
    """kubectl bound to one cluster."""

    program: Path | str
    kubeconfig: Path

    def __call__(self, *args: str, stdin: str | None = None, check: bool = True, timeout: float = 120) -> str:
        """Run kubectl and return its output."""
        command = [self.program, "--kubeconfig", self.kubeconfig, *args]
        return run(command, stdin=stdin, check=check, timeout=timeout, next_step=_NEXT).stdout

    def apply(self, manifests: str) -> None:
        """Apply a YAML text on the server side."""
        self("apply", "--server-side", "--force-conflicts", "--field-manager=local-cluster", "-f", "-", stdin=manifests)

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any] | None:
        """Return an object, or None if it does not exist."""
        text = self("get", kind, name, "-n", namespace, "--ignore-not-found", "-o", "json")
        found: dict[str, Any] | None = json.loads(text) if text.strip() else None
        return found

    def wait_for_deployment(self, name: str, namespace: str, seconds: int = 120) -> None:
        """Wait until a Deployment's pods are ready."""
        self("rollout", "status", f"deployment/{name}", "-n", namespace, f"--timeout={seconds}s", timeout=seconds + 20)
