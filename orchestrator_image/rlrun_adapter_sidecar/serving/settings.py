"""Settings of the serving sidecar, read from `RLRUN_*` variables."""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field
from rlrun.api.base.schema import Schema
from rlrun.constants import INFERENCE_PORT, SIDECAR_PORT
from rlrun.protocol.serving import ORDER_DIR, ORDER_KEY
from rlrun.service.settings import read_settings


class ServingSettings(Schema):
    """Settings of the serving sidecar. Times are in seconds."""

    engine_url: str = Field(default=f"http://127.0.0.1:{INFERENCE_PORT}", pattern=r"^https?://")
    adapters_dir: Path = Path("/adapters")
    """Folder shared with the engine under the same path."""
    order_path: Path = Path(ORDER_DIR) / ORDER_KEY
    """File with the desired adapters, which apply until the operator sends a newer list."""
    max_lora_rank: int = Field(ge=1)
    """Value of the engine's --max-lora-rank."""
    sidecar_port: int = SIDECAR_PORT
    token: str = Field(default="", repr=False)
    """Token of the pool, which the engine also requires. If empty, all requests are accepted."""
    download_deadline: float = Field(default=600.0, gt=0)
    load_deadline: float = Field(default=120.0, gt=0)
    unload_grace: float = Field(default=120.0, ge=0)
    """Delay before deleting unloaded files, because requests in progress may make the engine read them again."""
    check_pause: float = Field(default=2.0, gt=0)
    """Pause between two checks of the engine."""


def settings_from(environment: Mapping[str, str] = os.environ) -> ServingSettings:
    """Read the settings. Raises ValueError that names the invalid variable."""
    return read_settings(ServingSettings, environment)
