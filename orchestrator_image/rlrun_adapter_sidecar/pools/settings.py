"""Settings of a shared pool's sidecar, read from `RLRUN_*` variables."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field
from rlrun.protocol.policy import PolicyKind
from rlrun.protocol.shared_pool import ORDER_DIR, ORDER_KEY
from rlrun.service.settings import read_settings

from rlrun_adapter_sidecar.policies.settings import SidecarSettings


class PoolSettings(SidecarSettings):
    """Settings of a shared pool's sidecar. Times are in seconds."""

    policy_kind: Literal[PolicyKind.adapter] = PolicyKind.adapter
    order_path: Path = Path(ORDER_DIR) / ORDER_KEY
    """File with the `PoolOrder` that applies until the operator sends a newer one."""
    token: str = Field(min_length=1, repr=False)
    """Token of the pool, which the engine also requires."""


def settings_from(environment: Mapping[str, str] = os.environ) -> PoolSettings:
    """Read the settings. Raises ValueError that names the invalid variable."""
    return read_settings(PoolSettings, environment)
