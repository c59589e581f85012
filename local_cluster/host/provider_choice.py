"""Choice between the embedded cluster and kind, based on this machine and its directories."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from local_cluster.host.docker_engine import docker_problem
from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import MARKER, paths

ProviderName = Literal["embedded", "kind"]
_NAMES: tuple[ProviderName, ...] = ("embedded", "kind")


@dataclass(frozen=True)
class ProviderChoice:
    """Name of the provider, and a clause that gives the reason for choosing it."""

    name: ProviderName
    reason: str


def choose_provider(
    variable: str, *, kind_exists: bool, embedded_exists: bool, kind_problem: Callable[[], str | None]
) -> ProviderChoice:
    """Return the requested provider, or else the provider of an existing cluster, or else kind if usable, or else
    embedded.

    Args:
        variable: Value of RLRUN_CLUSTER.
        kind_exists: True if a kind cluster was created with this cache directory.
        embedded_exists: True if an embedded cluster was created in this state directory.
        kind_problem: Returns why kind cannot be used, or None. Called only if nothing else decides.

    Raises:
        LocalClusterError: RLRUN_CLUSTER names no provider.
    """
    for name in _NAMES:
        if variable == name:
            return ProviderChoice(name, f"RLRUN_CLUSTER={name}")
    if variable:
        raise LocalClusterError(f"RLRUN_CLUSTER is {variable!r}. Set it to `embedded` or `kind`, or unset it.")
    # An existing cluster decides: `down` must find it even if Docker was started or stopped since.
    if kind_exists:
        return ProviderChoice("kind", "a kind cluster exists")
    if embedded_exists:
        return ProviderChoice("embedded", "an embedded cluster exists")
    problem = kind_problem()
    if problem is not None:
        return ProviderChoice("embedded", f"not kind: {problem}")
    return ProviderChoice("kind", "kind is installed and a Docker engine responds")


def provider_choice() -> ProviderChoice:
    """Return the provider for this machine."""
    directories = paths()
    return choose_provider(
        os.environ.get("RLRUN_CLUSTER", ""),
        kind_exists=directories.kind_config.exists(),
        embedded_exists=(directories.state / MARKER).exists(),
        kind_problem=_kind_problem,
    )


def _kind_problem() -> str | None:
    return "kind is not on PATH" if shutil.which("kind") is None else docker_problem()
