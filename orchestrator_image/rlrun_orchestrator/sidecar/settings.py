"""What the sidecar takes from its surroundings."""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field
from rlrun.schema.base import Schema
from rlrun.schema.wire import INFERENCE_PORT, SIDECAR_PORT, PolicyKind
from rlrun.service.settings import read_settings


class SidecarSettings(Schema):
    """Times are seconds."""

    engine_url: str = Field(default=f"http://127.0.0.1:{INFERENCE_PORT}", pattern=r"^https?://")
    adapters_dir: Path = Path("/adapters")
    """Shared with the engine, under the same path there."""
    policy_kind: PolicyKind = Field(default=PolicyKind.adapter, strict=False)
    """What the run trains, and so what its engine is brought."""
    sidecar_port: int = SIDECAR_PORT
    download_deadline: float = Field(default=240.0, gt=0)
    load_deadline: float = Field(default=120.0, gt=0)
    unload_grace: float = Field(default=120.0, ge=0)
    """How long files stay after an unload: requests under way may make the engine read them again."""


def settings_from(environment: Mapping[str, str] = os.environ) -> SidecarSettings:
    """Raises ValueError that names the variable that does not fit."""
    return read_settings(SidecarSettings, environment)
